//! Chooses the batch size for a compute kernel that reads blocks itself. The batch size is the number of blocks in one
//! call of the compute kernel. A batch has enough blocks to make the cost of each call small, and few enough that no
//! other worker waits long for the last blocks.

use std::time::Duration;

/// The largest number of blocks in a batch. The number is half of the limit of undelivered parts (results of blocks)
/// per worker.
const BLOCKS_MAX: u64 = 32;
/// The target time of a batch. The fixed cost of a batch is about 20 us, so it is small compared with this time. On a
/// busy machine, the operating system sometimes suspends a worker for about this time.
const TIME: Duration = Duration::from_millis(10);

/// The batch size of a worker. The size adapts to the time that the previous batches took.
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

    /// Adapts the batch size after a batch of `blocks` blocks has taken the time `time`.
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
        // A batch can have fewer blocks than the batch size, for example at the end of a file. Such a batch does not
        // increase the batch size.
        let mut short = Batch::default();
        short.took(1, TIME / 2);
        assert_eq!(short.blocks(), Batch::default().blocks());
        for _ in 0..10 {
            batch.took(batch.blocks(), 3 * TIME);
        }
        assert_eq!(batch.blocks(), 1);
    }
}
