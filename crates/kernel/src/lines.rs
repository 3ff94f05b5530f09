//! Counts the lines before each block of a source, while several workers process blocks.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Condvar, Mutex},
};

/// The line counts of the blocks of a source. A worker records the count of a block after it has read the block.
#[derive(Debug, Default)]
pub(crate) struct LineCounts {
    state: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    /// Maps a block to the number of lines before the block. Contains only blocks whose number a worker may still need.
    before: BTreeMap<u64, u64>,
    /// Maps a block to the number of its lines. Contains the counted blocks that come after the first uncounted block.
    early: BTreeMap<u64, u64>,
    /// The blocks for which no worker needs the number of preceding lines. Contains only blocks for which this number
    /// is still unknown.
    forgotten: BTreeSet<u64>,
    /// True if the run has ended early. No further block is then counted.
    is_closed: bool,
    /// The first block that is not counted.
    next: u64,
    sum: u64,
}

impl LineCounts {
    /// Records the number of lines of a block. Each block is recorded once.
    pub fn tell(&self, block: u64, lines: u64) {
        let mut counts = self.state.lock().expect("no panic under this lock");
        counts.early.insert(block, lines);
        while let Some(lines) = {
            let next = counts.next;
            counts.early.remove(&next)
        } {
            let (next, sum) = (counts.next, counts.sum);
            if !counts.forgotten.remove(&next) {
                counts.before.insert(next, sum);
            }
            counts.sum += lines;
            counts.next += 1;
        }
        drop(counts);
        self.changed.notify_all();
    }

    /// Records a line count of 0 for a block, unless a count of this block was recorded before.
    pub fn tell_none(&self, block: u64) {
        let counts = self.state.lock().expect("no panic under this lock");
        let told = counts.next > block || counts.early.contains_key(&block);
        drop(counts);
        if !told {
            self.tell(block, 0);
        }
    }

    /// Returns the number of lines before a recorded block. The call waits until all earlier blocks are recorded. After
    /// [`Self::close`], the result is arbitrary.
    pub fn before(&self, block: u64) -> u64 {
        let counts = self.state.lock().expect("no panic under this lock");
        let counts = self.changed.wait_while(counts, |counts| counts.next <= block && !counts.is_closed);
        counts.expect("no panic under this lock").before.get(&block).copied().unwrap_or(0)
    }

    /// Ends the waits of all workers in [`Self::before`]. The runner calls this function when the run ends early.
    pub fn close(&self) {
        if let Ok(mut counts) = self.state.lock() {
            counts.is_closed = true;
        }
        self.changed.notify_all();
    }

    /// Removes the stored number of lines before a block, after its last use.
    pub fn forget(&self, block: u64) {
        let mut counts = self.state.lock().expect("no panic under this lock");
        if counts.before.remove(&block).is_none() {
            counts.forgotten.insert(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_told_in_any_order_add_up() {
        let counts = LineCounts::default();
        counts.tell(2, 30);
        counts.tell(1, 5);
        std::thread::scope(|scope| {
            let late = scope.spawn(|| counts.before(2));
            counts.tell(0, 7);
            assert_eq!(late.join().unwrap(), 12);
        });
        assert_eq!((counts.before(0), counts.before(1)), (0, 7));
        counts.forget(0);
        assert_eq!(counts.before(1), 7);
        counts.tell(4, 1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| counts.before(4));
            counts.close();
            waiting.join().unwrap();
        });
    }
}
