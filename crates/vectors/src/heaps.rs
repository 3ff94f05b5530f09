//! Heaps hold the nearest rows of each query. Some types of heaps can be used by one thread only, and others by several
//! threads at the same time.

use std::cell::Cell;

use crate::{
    Result,
    topk::{Entry, TopK},
};

/// Keeps the nearest entries of each query. An entry is the key and the id of a row.
pub(crate) trait Heaps {
    /// Returns a bound on the keys that a query needs. An entry with a larger key is not among the nearest entries.
    fn bound(&self, query: usize) -> f64;
    /// Adds an entry if its key is small enough.
    fn push(&self, query: usize, entry: Entry);

    /// Returns the first error that occurred while entries were kept, if there was one.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if an I/O operation fails or the job was cancelled.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}

/// Heaps of any type that several threads share.
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

/// The heaps of consecutive queries. The first heap belongs to the query `first`.
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

/// Keeps the single nearest entry of each query, for one thread.
#[derive(Debug, Default)]
pub(crate) struct Nearest(Vec<Cell<Entry>>);

impl Nearest {
    /// Removes all entries, and prepares for `count` queries.
    pub fn reset(&mut self, count: usize) {
        self.0.clear();
        self.0.resize(count, Cell::new(Entry { key: f64::INFINITY, id: u64::MAX }));
    }

    /// Returns the id of the nearest entry of a query.
    pub fn id(&self, query: usize) -> u64 {
        self.0[query].get().id
    }

    /// Returns the memory, in bytes, that each query takes.
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
