//! Grows a set of connected vertices during passes over the edges, and collects the edges outside of the set.
//!
//! Nearly all graphs have one component with most of the edges, and membership takes one bit per vertex. The set begins
//! with the vertex of highest degree. If a row has a vertex of the set, all vertices of the row join the set
//! immediately. The same pass then continues with the larger set. The edges of other rows are written to scratch. After
//! one or two passes few edges remain in scratch, and then the whole set is treated as one vertex. (This is a
//! contraction, as in Sutton, Ben-Nun and Barak, "Optimizing parallel graph connectivity computation via subgraph
//! sampling", 2018, who find the largest component by a sample.)
//!
//! Which vertices join, and in which pass, depends on the timing of threads. The result does not depend on timing: the
//! set is connected, and every edge that is not within the set was written to scratch.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use inshore_store::Job;

use super::{
    edges_once,
    pairs::{PairWriter, Pairs, writer_bytes},
    ranges::RangePlan,
    sets::{MemberNumbers, SharedSet, VertexSet},
};
use crate::{
    Result,
    checkpoint::{CheckpointPosition, Checkpoints},
    csr::{Csr, Degrees, SCAN_BYTES, parallel_ranges, scan_parallel, scan_threads},
    engine::Frontier,
};

/// Size of the buffer in which each thread collects remaining edges.
const BUFFER_BYTES: usize = 64 << 10;
/// If more edges remain than all edges divided by this number, another pass costs less than writing the remaining
/// edges.
const REMAINING_SHARE: u64 = 8;
/// Passes over the remaining edges repeat while each pass removes at least a share of 1 / `SHRINKS_BY` of these edges.
const SHRINKS_BY: u64 = 4;

/// The set of connected vertices, and the edges outside of it.
pub(super) struct AbsorbedSet {
    /// Connected vertices.
    pub set: VertexSet,
    /// The smallest member of the set, which represents the set.
    pub first: u32,
    /// Maps `first`, and all non-members with a remaining edge, to consecutive numbers.
    pub left: MemberNumbers,
    /// The edges that are not within the set. Each edge is a pair of vertices.
    pub pairs: Vec<Pairs>,
    /// The number of passes over all rows. If the job resumed from a checkpoint, the earlier job's passes are included.
    pub passes: u32,
    pub passes_kept: Option<u32>,
    /// Number of edges that were read.
    pub edges: u64,
}

/// Returns the bytes of memory that the set, the set of marked vertices and the marked vertices' numbers take.
fn sets_bytes(vertices: u64) -> u64 {
    2 * VertexSet::bytes(vertices) + MemberNumbers::bytes(vertices)
}

/// Tells whether `free` bytes are enough for the sets of `sets_bytes` and for a pass over the edges. They must also be
/// enough for a forest of all vertices, in case no vertex joins the set.
pub(super) fn fits(free: u64, vertices: u64) -> bool {
    let beside = free.saturating_sub(sets_bytes(vertices));
    beside / 2 >= SCAN_BYTES + writer_bytes(BUFFER_BYTES) && RangePlan::new(beside, vertices, None).is_some()
}

/// The sets that a pass over edges reads and extends.
struct Pass<'a> {
    set: SharedSet<'a>,
    /// The vertices of edges that were written to scratch.
    marks: SharedSet<'a>,
}

impl Pass<'_> {
    fn leave(&self, writer: &mut PairWriter, vertex: u32, row: &[u32]) -> Result<()> {
        for &to in row.iter().filter(|&&to| to != vertex) {
            self.marks.add(vertex);
            self.marks.add(to);
            writer.push(vertex, to)?;
        }
        Ok(())
    }
}

/// Grows the set until a forest of the remaining vertices fits in memory, or until the remaining edges stop shrinking.
/// Tests set `narrow`, the width of the forest's ranges, so that all branches run with little data.
pub(super) fn absorb(
    job: &Job,
    out: &Csr,
    directed: bool,
    narrow: Option<u64>,
    checkpoints: &mut Checkpoints,
) -> Result<AbsorbedSet> {
    let mut set = VertexSet::new(job, out.vertices)?;
    let mut marks = VertexSet::new(job, out.vertices)?;
    let (states, array) = set.states();
    let kept = checkpoints.resume_from(job, states, array, 0)?;
    let passes_kept = kept.as_ref().map(|point| point.supersteps as u32);
    let (mut passes, mut edges) =
        kept.map_or((0, 0), |point| (point.supersteps as u32, point.edges_traversed));
    let mut pairs = None;
    if passes == 0 {
        set.share().add(of_highest_degree(job, out)?);
        let room = if narrow.is_some() { 0 } else { out.entries / REMAINING_SHARE };
        pairs = over_rows(job, out, directed, room, &Pass { set: set.share(), marks: marks.share() })?;
        (passes, edges) = (1, out.entries);
        if pairs.is_none() {
            let (states, array) = set.states();
            let point = || CheckpointPosition {
                active: Frontier::All,
                supersteps: 1,
                edges_traversed: edges,
                numbers: [0; 2],
            };
            checkpoints.save(job, states, array, point)?;
        }
    }
    let mut pairs = match pairs {
        Some(pairs) => pairs,
        None => {
            marks.words_mut().fill(0);
            (passes, edges) = (passes + 1, edges + out.entries);
            let pass = Pass { set: set.share(), marks: marks.share() };
            over_rows(job, out, directed, u64::MAX, &pass)?.expect("there was room for all")
        }
    };
    loop {
        keep_remaining(&mut marks, &set);
        let left = marks.words().iter().map(|word| u64::from(word.count_ones())).sum();
        let free = job.budget().free_bytes().saturating_sub(MemberNumbers::bytes(out.vertices));
        let before: u64 = pairs.iter().map(Pairs::len).sum();
        if before == 0 || RangePlan::new(free, left, narrow).is_some_and(|plan| plan.ranges() == 1) {
            break;
        }
        marks.words_mut().fill(0);
        pairs = over_pairs(job, pairs, &Pass { set: set.share(), marks: marks.share() })?;
        edges += before;
        let after: u64 = pairs.iter().map(Pairs::len).sum();
        if after > before - before / SHRINKS_BY {
            keep_remaining(&mut marks, &set);
            break;
        }
    }
    let first = set.first().expect("a vertex that it began with");
    Ok(AbsorbedSet { set, first, left: MemberNumbers::of(job, marks)?, pairs, passes, passes_kept, edges })
}

/// Removes the members of the set from the marks, and adds the smallest member.
fn keep_remaining(marks: &mut VertexSet, set: &VertexSet) {
    marks.words_mut().iter_mut().zip(set.words()).for_each(|(mark, set)| *mark &= !set);
    marks.share().add(set.first().expect("a vertex that it began with"));
}

/// Returns the first vertex of highest degree.
pub(super) fn of_highest_degree(job: &Job, out: &Csr) -> Result<u32> {
    job.start_phase("finding the vertex of highest degree", "vertices", out.vertices);
    let found = parallel_ranges(out.vertices, vec![(0, u32::MAX); scan_threads(job)], |best, range| {
        let mut degrees = Degrees::new(job, out)?;
        let mut next = range.start;
        while next < range.end {
            job.check_cancelled()?;
            let page = degrees.from(next as u32)?;
            let page = &page[..page.len().min((range.end - next) as usize)];
            for (vertex, &degree) in (next as u32..).zip(page) {
                if (degree, best.1) > (best.0, vertex) {
                    *best = (degree, vertex);
                }
            }
            next += page.len() as u64;
            job.progress().add(page.len() as u64);
        }
        Ok(())
    })?;
    let longest = found.into_iter().max_by_key(|&(degree, vertex)| (degree, u32::MAX - vertex));
    Ok(longest.map_or(0, |(_, vertex)| if vertex == u32::MAX { 0 } else { vertex }))
}

/// Reads all rows once, and grows the set. Returns `None` if more than `room` edges remain outside of the set. The
/// edges that were written to scratch are then discarded.
fn over_rows(job: &Job, out: &Csr, directed: bool, room: u64, pass: &Pass) -> Result<Option<Vec<Pairs>>> {
    job.start_phase("growing a set of connected vertices by rows", "edges", out.entries);
    let new_writer = |_| PairWriter::new(job, "remaining edges", BUFFER_BYTES);
    let writers = (0..scan_threads(job)).map(new_writer).collect::<Result<Vec<_>>>()?;
    let (left, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let writers = scan_parallel(job, out, writers, |writer, vertex, row, _| {
        job.progress().add(row.len() as u64);
        if pass.set.absorb(vertex, row) || is_over.load(Ordering::Relaxed) {
            return Ok(());
        }
        let row = edges_once(directed, vertex, row);
        if left.fetch_add(row.len() as u64, Ordering::Relaxed) + row.len() as u64 > room {
            is_over.store(true, Ordering::Relaxed);
            return Ok(());
        }
        pass.leave(writer, vertex, row)
    })?;
    if is_over.into_inner() {
        return Ok(None);
    }
    writers.into_iter().map(PairWriter::finish).collect::<Result<_>>().map(Some)
}

/// Reads the remaining edges once, grows the set, and writes the edges that are still outside of the set.
fn over_pairs(job: &Job, pairs: Vec<Pairs>, pass: &Pass) -> Result<Vec<Pairs>> {
    job.start_phase(
        "growing a set of connected vertices by remaining edges",
        "edges",
        pairs.iter().map(Pairs::len).sum(),
    );
    let work = |pairs: Pairs| -> Result<Pairs> {
        let mut writer = PairWriter::new(job, "remaining edges", BUFFER_BYTES)?;
        pairs.for_each(job, |a, b| match pass.set.absorb(a, &[b]) {
            true => Ok(()),
            false => pass.leave(&mut writer, a, &[b]),
        })?;
        job.progress().add(pairs.len());
        writer.finish()
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = pairs.into_iter().map(|pairs| scope.spawn(|| work(pairs))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a pass does not panic")).collect()
    })
}
