//! Keeps the best neighbours of each query. All threads share them.
//!
//! An entry is a key and an id. Entries are ordered by key, and entries with equal keys by id. The k smallest entries
//! of a set do not depend on the order in which entries are added, so the answer does not depend on blocks and threads.

use std::{
    collections::{BinaryHeap, HashSet},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

/// A neighbour of a query. A smaller key means a nearer neighbour.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Entry {
    pub key: f64,
    pub id: u64,
}

impl Eq for Entry {}

impl Ord for Entry {
    fn cmp(&self, other: &Entry) -> std::cmp::Ordering {
        self.key.total_cmp(&other.key).then(self.id.cmp(&other.id))
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Entry) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

/// The entries that a heap holds.
#[derive(Debug)]
struct Entries {
    heap: BinaryHeap<Entry>,
    /// The ids in the heap, if an id may be added more than once.
    ids: Option<HashSet<u64>>,
}

/// Keeps the k nearest entries of a query.
#[derive(Debug)]
pub(crate) struct TopK {
    entries: Mutex<Entries>,
    /// The bits of an f64, which is the bound of the heap. No entry of the answer has a key above the bound.
    bound: AtomicU64,
    k: usize,
    /// The id whose entries are not kept.
    excluded: Option<u64>,
}

impl TopK {
    /// Creates an empty heap with memory for `k` entries. `bound` is the initial bound. Callers must not add entries
    /// with keys above `bound`.
    pub fn new(k: usize, bound: f64) -> TopK {
        let entries = Entries { heap: BinaryHeap::with_capacity(k), ids: None };
        TopK { entries: Mutex::new(entries), bound: AtomicU64::new(bound.to_bits()), k, excluded: None }
    }

    /// Creates an empty heap that keeps at most one entry of each id. All entries with the same id must have the same
    /// key.
    pub fn distinct(k: usize, bound: f64) -> TopK {
        let entries =
            Entries { heap: BinaryHeap::with_capacity(k), ids: Some(HashSet::with_capacity(k + 1)) };
        TopK { entries: Mutex::new(entries), bound: AtomicU64::new(bound.to_bits()), k, excluded: None }
    }

    /// Changes the heap so that it drops entries with this id, and returns the heap.
    pub fn without(self, id: u64) -> TopK {
        TopK { excluded: Some(id), ..self }
    }

    /// Returns the memory, in bytes, of a heap that keeps one entry of each id.
    pub fn distinct_bytes(k: u64) -> u64 {
        // A hash table has up to 16/7 slots for each id, and a control byte for each slot.
        TopK::bytes(k) + ((k + 1) * 16 / 7).next_power_of_two() * (size_of::<u64>() as u64 + 1) + 64
    }

    /// Returns the memory of a heap in bytes.
    pub fn bytes(k: u64) -> u64 {
        size_of::<TopK>() as u64 + k * size_of::<Entry>() as u64
    }

    /// Returns the bound of the heap. An entry with a larger key is not in the answer. An entry with an equal key may
    /// be in the answer.
    pub fn bound(&self) -> f64 {
        f64::from_bits(self.bound.load(Ordering::Relaxed))
    }

    /// Adds an entry if it is among the k nearest entries so far.
    pub fn push(&self, entry: Entry) {
        if self.excluded == Some(entry.id) {
            return;
        }
        let mut entries = self.entries.lock().expect("no panic under this lock");
        let Entries { heap, ids } = &mut *entries;
        let is_full = heap.len() == self.k;
        if is_full && heap.peek().is_some_and(|worst| entry >= *worst) {
            return;
        }
        if ids.as_mut().is_some_and(|ids| !ids.insert(entry.id)) {
            return;
        }
        if is_full {
            let mut worst = heap.peek_mut().expect("k is at least 1");
            if let Some(ids) = ids {
                ids.remove(&worst.id);
            }
            *worst = entry;
        } else {
            heap.push(entry);
        }
        if heap.len() == self.k {
            let bound = heap.peek().expect("k is at least 1").key;
            self.bound.store(bound.to_bits(), Ordering::Relaxed);
        }
    }

    /// Removes all entries, and sets the bound. Callers must not add entries with keys above `bound`.
    pub fn reset(&self, bound: f64) {
        let mut entries = self.entries.lock().expect("no panic under this lock");
        entries.heap.clear();
        if let Some(ids) = &mut entries.ids {
            ids.clear();
        }
        self.bound.store(bound.to_bits(), Ordering::Relaxed);
    }

    /// Calls `each` with the entries, in no particular order.
    pub fn each(&self, each: impl FnMut(&Entry)) {
        self.entries.lock().expect("no panic under this lock").heap.iter().for_each(each);
    }

    /// Returns the entries in ascending order, the nearest one first.
    pub fn into_sorted(self) -> Vec<Entry> {
        self.entries.into_inner().expect("no panic under this lock").heap.into_sorted_vec()
    }
}
