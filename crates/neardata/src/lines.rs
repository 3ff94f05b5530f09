//! How many lines the blocks of a source have that lie before a block, while several workers count.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Condvar, Mutex},
};

/// The lines of a source's blocks, as they become known.
#[derive(Debug, Default)]
pub(crate) struct LineCounts {
    state: Mutex<Counts>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Counts {
    /// Lines before each block that may still be asked for.
    before: BTreeMap<u64, u64>,
    /// Counted, but not all before them are.
    early: BTreeMap<u64, u64>,
    /// Not counted, and nobody will ask for them.
    forgotten: BTreeSet<u64>,
    /// Nobody will count any more.
    is_closed: bool,
    /// The first block that is not counted.
    next: u64,
    sum: u64,
}

impl LineCounts {
    /// Tells the lines of a block. Each block is told once.
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

    /// Tells that a block has no lines, unless it was told.
    pub fn tell_none(&self, block: u64) {
        let counts = self.state.lock().expect("no panic under this lock");
        let told = counts.next > block || counts.early.contains_key(&block);
        drop(counts);
        if !told {
            self.tell(block, 0);
        }
    }

    /// Lines before a block that was told. Waits for those before it; where nobody counts these any more, any number.
    pub fn before(&self, block: u64) -> u64 {
        let counts = self.state.lock().expect("no panic under this lock");
        let counts = self.changed.wait_while(counts, |counts| counts.next <= block && !counts.is_closed);
        counts.expect("no panic under this lock").before.get(&block).copied().unwrap_or(0)
    }

    /// Nobody counts any more, since the run ends early.
    pub fn close(&self) {
        if let Ok(mut counts) = self.state.lock() {
            counts.is_closed = true;
        }
        self.changed.notify_all();
    }

    /// Nobody will ask for a block any more.
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
