//! Finds the connected components of links on flash. The method alternates two operations, the large star and the small
//! star, each of which takes one sort.
//!
//! ```text
//!   links, both ways ─► large star ─► sort ─► small star ─► sort ─► ... until nothing changes ─► (id, smallest id)
//! ```
//!
//! For each vertex u, the *large star* operation links all neighbours with larger ids to the smallest id among u and
//! its neighbours. For each vertex u, the *small star* operation links u and its neighbours with smaller ids to the
//! smallest id among them. Both operations keep each component connected. At the end each component is a star: all its
//! vertices are linked to its smallest id. The method is algorithm 4 of Kiveris et al., "Connected Components in
//! MapReduce and Beyond", 2014. A round consists of one large star and one small star. The number of rounds is at most
//! about the squared logarithm of the number of ids, and usually below six.
//!
//! The sort puts the smallest neighbour of a vertex first, so a star operation needs the memory of one link. A
//! union-find structure over all vectors would take fewer passes, but it needs a number in memory for each vector. This
//! memory may exceed the budget.

use inshore_store::Job;

use crate::{
    Result,
    pairs::{IDS_BYTES, ROWS_BYTES, Sorted, Sorter, each_row, push_ids, sorter},
};

/// Links each id with the smallest id of its component. Returns these links in both directions, in ascending order.
/// `links` must have each link in both directions.
///
/// Each round sorts all links twice. Two sorts, each with `sort_bytes` bytes of memory, exist at the same time.
///
/// # Errors
/// Returns [`crate::Error::Store`] if the budget has too little free memory, a read or write fails, or the job was
/// cancelled.
pub(super) fn components(job: &Job, mut links: Sorted, sort_bytes: u64) -> Result<Sorted> {
    let _memory = job.budget().reserve(components_bytes(), "links")?;
    loop {
        job.start_phase("grouping", "links", 0);
        let mut to_smaller = Links::new(job, sort_bytes)?;
        let mut is_done = true;
        let (mut vertex, mut smallest) = (u64::MAX, u64::MAX);
        each_row(&mut links, IDS_BYTES, |from, to, _| {
            if from != vertex {
                (vertex, smallest) = (from, from.min(to));
            }
            if to > from {
                is_done &= smallest == from;
                to_smaller.push(to, smallest)?;
            }
            Ok(())
        })?;
        drop(links);
        let mut to_smaller = to_smaller.finish()?;
        let mut both_ways = Links::new(job, sort_bytes)?;
        (vertex, smallest) = (u64::MAX, u64::MAX);
        each_row(&mut to_smaller, IDS_BYTES, |from, to, _| {
            let is_first = from != vertex;
            if is_first {
                (vertex, smallest) = (from, to);
            }
            is_done &= is_first;
            let linked = if is_first { from } else { to };
            both_ways.push(linked, smallest)?;
            both_ways.push(smallest, linked)
        })?;
        drop(to_smaller);
        links = both_ways.finish()?;
        if is_done {
            return Ok(links);
        }
    }
}

/// Returns the memory of [`components`], in bytes, without the memory of the sorts.
pub(super) fn components_bytes() -> u64 {
    3 * (ROWS_BYTES + 2 * IDS_BYTES) as u64
}

/// A sort of links.
struct Links {
    sort: Sorter,
    rows: Vec<u8>,
}

impl Links {
    fn new(job: &Job, sort_bytes: u64) -> Result<Links> {
        let rows = Vec::with_capacity(ROWS_BYTES + IDS_BYTES);
        Ok(Links { sort: sorter(job, "links", IDS_BYTES, sort_bytes)?, rows })
    }

    fn push(&mut self, from: u64, to: u64) -> Result<()> {
        push_ids(&mut self.rows, from, to);
        if self.rows.len() >= ROWS_BYTES {
            self.sort.write(&self.rows)?;
            self.rows.clear();
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Sorted> {
        self.sort.write(&self.rows)?;
        Ok(self.sort.finish()?)
    }
}
