//! Numbers the senders, which are the vertices with edges, in the order of vertices. Vertices without edges send
//! nothing and take no space.

use inshore_store::{Job, Reservation};

use super::{MessageSums, walk};
use crate::{
    Result,
    csr::{Csr, RANGE_UNIT, parallel_ranges},
};

/// The number of senders before each group of [`RANGE_UNIT`] vertices, and the number of all senders.
pub(super) struct Senders {
    before: Vec<u64>,
    count: u64,
    _memory: Reservation,
}

/// Returns the memory of the counts per group of [`RANGE_UNIT`] vertices, and of the lists of counts that threads
/// build. The capacity of a list may be twice its length.
pub(super) fn memory_bytes(vertices: u64) -> u64 {
    vertices.div_ceil(RANGE_UNIT) * (8 + 2 * 16)
}

impl Senders {
    /// Counts senders by one pass over the index.
    pub fn new(job: &Job, rows: &Csr, threads: usize) -> Result<Senders> {
        let vertices = rows.vertices;
        let units = vertices.div_ceil(RANGE_UNIT) as usize;
        let memory = job.budget().reserve(memory_bytes(vertices), "numbers of senders")?;
        let counted = parallel_ranges(vertices, vec![Vec::new(); threads], |counted, range| {
            walk(job, rows, range, |vertex, degree| {
                let unit = u64::from(vertex) / RANGE_UNIT;
                match counted.last_mut() {
                    Some((last, count)) if *last == unit => *count += u64::from(degree > 0),
                    _ => counted.push((unit, u64::from(degree > 0))),
                }
                Ok(MessageSums::default())
            })?;
            Ok(())
        })?;
        let mut before = vec![0; units];
        for (unit, count) in counted.into_iter().flatten() {
            before[unit as usize] = count;
        }
        let mut count = 0;
        for before in &mut before {
            count += std::mem::replace(before, count);
        }
        Ok(Senders { before, count, _memory: memory })
    }

    /// Returns the number of senders.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Returns the number of senders before `vertex`, which must be a multiple of [`RANGE_UNIT`].
    pub fn before(&self, vertex: u64) -> u64 {
        debug_assert!(vertex.is_multiple_of(RANGE_UNIT));
        self.before[(vertex / RANGE_UNIT) as usize]
    }
}
