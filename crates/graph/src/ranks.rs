//! Vertices in groups of about the same out-degree, the highest first, and within a group in order: degree-based grouping
//! (Faldu, Diamond and Grot, "A closer look at lightweight graph reordering", 2019).
//!
//! Most edges of many graphs begin at few vertices. In an array by rank those lie together and stay in the cache, and
//! what lay close together of the others still does. Groups are powers of two, so that nothing is sorted: a rank is the
//! number of vertices in higher groups and of those before in its own, and who walks over degrees in order has it at once.

use inshore_store::{Job, Reservation};

use crate::{
    Result,
    csr::{Csr, Degrees, RANGE_UNIT, parallel_ranges},
};

/// Groups of degrees of 1, 2 to 3, 4 to 7 and so on, in 32 bits.
const GROUPS: usize = 32;

/// The rank of the next vertex of each group, the lowest first.
type Next = [u32; GROUPS];

/// The ranks of all vertices with out-edges.
pub(crate) struct Ranks {
    /// At the beginning of each [`RANGE_UNIT`] of vertices.
    units: Vec<Next>,
    ranked: u64,
    _memory: Reservation,
}

impl Ranks {
    /// Reads the index of out-edges once.
    pub fn new(job: &Job, out: &Csr, threads: usize) -> Result<Ranks> {
        let count = out.vertices.div_ceil(RANGE_UNIT) as usize;
        let memory = job.budget().reserve((count * size_of::<Next>()) as u64, "ranks of vertices")?;
        // What threads count, in lists that may have twice the room.
        let counting = 2 * count * size_of::<(usize, Next)>();
        let _counting = job.budget().reserve(counting as u64, "counts of degrees")?;
        let counted = parallel_ranges(out.vertices, vec![Vec::new(); threads], |counted, range| {
            let mut degrees = Degrees::new(job, out)?;
            let mut vertices = range;
            while !vertices.is_empty() {
                let unit = (vertices.start / RANGE_UNIT) as usize;
                let end = (vertices.start + RANGE_UNIT).min(vertices.end);
                let mut counts = Next::default();
                for vertex in vertices.start..end {
                    if let Some(group) = degrees.of(vertex as u32)?.checked_ilog2() {
                        counts[group as usize] += 1;
                    }
                }
                counted.push((unit, counts));
                vertices.start = end;
            }
            Ok(())
        })?;
        let mut units = vec![Next::default(); count];
        for (unit, counts) in counted.into_iter().flatten() {
            units[unit] = counts;
        }
        let mut next = 0;
        for group in (0..GROUPS).rev() {
            for unit in &mut units {
                let count = unit[group];
                unit[group] = next;
                next += count;
            }
        }
        Ok(Ranks { units, ranked: next.into(), _memory: memory })
    }

    /// How many there are.
    pub fn len(&self) -> u64 {
        self.ranked
    }

    /// Ranks from `vertex` on, the first of a [`RANGE_UNIT`].
    pub fn from(&self, vertex: u64) -> RankCursor {
        debug_assert!(vertex.is_multiple_of(RANGE_UNIT));
        RankCursor(self.units[(vertex / RANGE_UNIT) as usize])
    }
}

/// Walks over vertices in order.
pub(crate) struct RankCursor(Next);

impl RankCursor {
    /// The rank of the next vertex; none without out-edges.
    #[inline]
    pub fn next(&mut self, degree: u32) -> Option<u32> {
        let next = &mut self.0[degree.checked_ilog2()? as usize];
        *next += 1;
        Some(*next - 1)
    }
}
