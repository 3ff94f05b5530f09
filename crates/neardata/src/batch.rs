//! How many blocks are given at once to a kernel that reads them itself: so many that it counts little that it has to be asked,
//! and so few that no other worker waits long for the last of them.

use std::time::Duration;

/// Half of the parts that may wait for their turn.
const BLOCKS_MAX: u64 = 32;
/// To ask costs some 20 us. Where others want the cores too, that much of a time slice is taken away now and then.
const TIME: Duration = Duration::from_millis(10);

/// The blocks that a worker takes at once, by how long the last ones took.
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

    /// So many blocks took so long.
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
        // The end of a file says nothing about more of them.
        let mut short = Batch::default();
        short.took(1, TIME / 2);
        assert_eq!(short.blocks(), Batch::default().blocks());
        for _ in 0..10 {
            batch.took(batch.blocks(), 3 * TIME);
        }
        assert_eq!(batch.blocks(), 1);
    }
}
