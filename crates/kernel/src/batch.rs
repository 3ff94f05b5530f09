//! Chooses the batch size for a compute kernel that reads blocks itself. The batch size is the number of blocks in one
//! call of the compute kernel. A batch has enough blocks to make the cost of each call small, and few enough that no
//! other worker waits long for the last blocks.

use std::time::Duration;

/// The largest number of blocks in a batch. It is half of the number of block results per worker that may wait for
/// delivery.
const BLOCKS_MAX: u64 = 32;
/// The target time of a batch. A call takes about 20 us in addition to the processing of its blocks. On a busy machine,
/// the scheduler sometimes suspends a worker for about as long as this target time.
const TIME: Duration = Duration::from_millis(10);

/// The batch size of a worker. It follows the time that the last batches took.
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
        // A batch with fewer blocks than the batch size, as at the end of a file, does not change the batch size.
        let mut short = Batch::default();
        short.took(1, TIME / 2);
        assert_eq!(short.blocks(), Batch::default().blocks());
        for _ in 0..10 {
            batch.took(batch.blocks(), 3 * TIME);
        }
        assert_eq!(batch.blocks(), 1);
    }
}
