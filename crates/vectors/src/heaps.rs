//! The heaps hold the nearest rows of each query. Some are for one thread, and others are shared by several threads.

use std::cell::Cell;

use crate::{
    Result,
    topk::{Entry, TopK},
};

/// Keeps the nearest entries of each query.
pub(crate) trait Heaps {
    /// Returns a key for a query. An entry with a larger key is not needed.
    fn bound(&self, query: usize) -> f64;
    /// Adds an entry, if it is near enough.
    fn push(&self, query: usize, entry: Entry);

    /// Returns the error of an entry that could not be kept.
    ///
    /// # Errors
    /// I/O; cancellation.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// Any heaps that several threads share.
pub(crate) type SharedHeaps<'a> = &'a (dyn Heaps + Sync);

impl Heaps for SharedHeaps<'_> {
    fn bound(&self, query: usize) -> f64 {
        (**self).bound(query)
    }

    fn push(&self, query: usize, entry: Entry) {
        (**self).push(query, entry);
    }

    fn check(&self) -> Result<()> {
        (**self).check()
    }
}

/// The heaps of queries from number `first` on.
pub(crate) struct Tops<'a> {
    pub first: usize,
    pub tops: &'a [TopK],
}

impl Heaps for Tops<'_> {
    fn bound(&self, query: usize) -> f64 {
        self.tops[query - self.first].bound()
    }

    fn push(&self, query: usize, entry: Entry) {
        self.tops[query - self.first].push(entry);
    }
}

/// The single nearest entry of each query.
#[derive(Debug, Default)]
pub(crate) struct Nearest(Vec<Cell<Entry>>);

impl Nearest {
    /// Forgets all entries, and has room for `count` queries.
    pub fn reset(&mut self, count: usize) {
        self.0.clear();
        self.0.resize(count, Cell::new(Entry { key: f64::INFINITY, id: u64::MAX }));
    }

    /// Returns the id of the entry of a query.
    pub fn id(&self, query: usize) -> u64 {
        self.0[query].get().id
    }

    /// Returns the memory of a query.
    pub fn bytes_each() -> u64 {
        size_of::<Cell<Entry>>() as u64
    }
}

impl Heaps for Nearest {
    fn bound(&self, query: usize) -> f64 {
        self.0[query].get().key
    }

    fn push(&self, query: usize, entry: Entry) {
        let nearest = &self.0[query];
        if entry < nearest.get() {
            nearest.set(entry);
        }
    }
}
