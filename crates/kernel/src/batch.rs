//! Chooses the batch size for a kernel that reads blocks itself: the number of blocks that the kernel gets at once. A
//! batch has enough blocks to make the cost of each call small, and few enough that no other worker waits long for the
//! last blocks.

use std::time::Duration;

/// The largest number of blocks in a batch: half of the number of parts per worker that may wait for delivery.
const BLOCKS_MAX: u64 = 32;
/// The target time of a batch. One call costs some 20 us. On a busy machine, the scheduler now and then suspends a
/// worker for about this long.
const TIME: Duration = Duration::from_millis(10);

/// The batch size of a worker, adapted to the time of the last batches.
#[derive(Debug)]
pub(crate) struct Batch {
    blocks: u64,
}

impl Default for Batch {
    fn default() -> Batch {
        Batch { blocks: 2 }
    }
}

impl Batch {
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Adapts the batch size to the time that the last batch of `blocks` blocks took.
    pub fn took(&mut self, blocks: u64, time: Duration) {
        if time > 2 * TIME {
            self.blocks = (self.blocks / 2).max(1);
        } else if time < TIME && blocks == self.blocks {
            self.blocks = (self.blocks * 2).min(BLOCKS_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_grow_while_blocks_are_fast_and_shrink_to_one() {
        let mut batch = Batch::default();
        for _ in 0..10 {
            batch.took(batch.blocks(), TIME / 2);
        }
        assert_eq!(batch.blocks(), BLOCKS_MAX);
        // A short batch at the end of a file does not change the batch size.
        let mut short = Batch::default();
        short.took(1, TIME / 2);
        assert_eq!(short.blocks(), Batch::default().blocks());
        for _ in 0..10 {
            batch.took(batch.blocks(), 3 * TIME);
        }
        assert_eq!(batch.blocks(), 1);
    }
}
