//! Connected components of links on flash: alternating stars, by sorts.
//!
//! ```text
//!   links, both ways ─► large star ─► sort ─► small star ─► sort ─► ... until nothing changes ─► (id, smallest id)
//! ```
//!
//! *Large star*: each vertex u links all its larger neighbours to the smallest of u and its neighbours. *Small star*:
//! each vertex u links itself and its smaller neighbours to the smallest of these. Both keep components connected, and
//! at the end each component is a star around its smallest id (Kiveris et al., "Connected Components in MapReduce and
//! Beyond", 2014, algorithm 4). The number of rounds is at most about log² of the number of ids, and mostly below six.
//!
//! A sort puts the smallest neighbour of an id first, so a star needs the memory of one link. An array of one number
//! for each vector (union-find) would take fewer passes, and would not fit into every budget.

use inshore_store::Job;

use crate::{
    Result,
    pairs::{IDS_BYTES, ROWS_BYTES, Sorted, Sorter, each_row, push_ids, sorter},
};

/// Returns links both ways between each id and the smallest id of its component, in order.
///
/// The cost is two sorts of all links in each round. Two sorts of `sort_bytes` exist at the same time.
///
/// # Errors
/// Too little memory; I/O; cancellation.
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

/// Returns the memory beside that of the sorts.
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
