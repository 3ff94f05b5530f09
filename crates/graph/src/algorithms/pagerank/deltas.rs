//! PageRank by changes: a vertex sends the change of its rank since its last message. The vertex sends the change only
//! if the change is more than a given share of the rank. Each vertex converges separately, and late supersteps read few
//! edges (McSherry, "A uniform approach to accelerated PageRank computation", 2005; Zhang, Gao, Gao and Wang, "Maiter",
//! 2014; PageRankDelta in Shun and Blelloch, "Ligra", 2013).
//!
//! ```text
//!   state      rank      x; 1 / n at first
//!              pending   p: the change of x since the vertex last sent a message; 1 / n at first
//!   superstep  every vertex with |p| > t x sends p / degree along each edge; the sum of a vertex's messages,
//!              times d, is added to the rank and the pending change of the vertex
//! ```
//!
//! Here n is the number of vertices, t the tolerance, and d the damping.
//!
//! The 2018 thesis (algorithm 4) recomputes whole sums for the vertices that may change. It finds the senders of these
//! sums along in-edges and by a Bloom filter. Sending changes requires no in-edges and no Bloom filter: the senders are
//! the vertices that were finalized with a large pending change.
//!
//! Let x be the vector of ranks, p the vector of pending changes, and A the matrix that divides the rank of each vertex
//! evenly among its out-edges.
//!
//! The converged ranks r solve r = c + d A r, where c is the same number for all vertices. (A part of c comes from
//! vertices without out-edges.) For every number b, the solution x of x = b + d A x is therefore a multiple of r, and
//! division by the sum of x at the end gives r. While all vertices are active, b changes with the ranks of vertices
//! without out-edges, as in plain iterations. The pending changes then sum to 0, and shrink as fast as the changes of
//! plain iterations. (Maiter keeps b fixed. All pending changes then have one sign, and shrink by a factor of d at
//! best; a Kronecker graph needed 40 passes over all edges.) Once few vertices send, b is constant.
//!
//! The threshold is a share of each rank. With an absolute threshold, the vertices of the largest ranks, which have
//! most edges, would send changes in digits that do not matter, along twice as many edges.
//!
//! **Distance from converged ranks.** At every moment x = b + d A (x - p). Let x* = b + d A x*, and e = x* - x. Then e
//! = d A p + (d A)^2 p + ... No column of A sums to more than 1, so |e| sums to at most d / (1 - d) times the sum of
//! |p|. When no vertex sends any more, |p| sums to no more than t times the sum of x. Dividing x and x* each by its sum
//! at most doubles the distance: the absolute differences of all ranks sum to at most 2 d t / (1 - d). The summary
//! reports a smaller bound, computed from the true sum of |p|, also if the number of supersteps was limited.
//!
//! All divisions round towards zero, so pending changes shrink with every superstep, and the loop ends for every t.
//! Rounding loses at most 2 x 2^-62 for each edge that is read, and the reported distance includes this loss.

use inshore_store::Job;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{ONE, PageRankOptions, answer, check_vertex_tolerance};
use crate::{
    Answer, Error, Graph, Result, Summary,
    checkpoint::Checkpoints,
    engine::{Dense, Engine, Frontier, FrontierCollection, Setup, StepProgram, Superstep},
};

/// Estimated number of supersteps in which many edges carry a change: 6 to 13 in Kronecker graphs.
const CROWDED: u32 = 8;

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Rank {
    rank: i64,
    /// The change of rank that the vertex has not sent. A vertex sends this change in the next superstep if the change
    /// is above the tolerance.
    pending: i64,
}

/// The vertex program of PageRank by changes. With `ALL`, every vertex is finalized in each superstep, with or without
/// a message. A pending change above the tolerance then makes the vertex a sender, so the engine may scan all vertices
/// instead of a list of senders. Without `ALL`, a vertex that has sent and receives no message keeps its pending change
/// in its state.
#[derive(Clone)]
struct Deltas<const ALL: bool> {
    vertices: u64,
    damping: u64,
    /// The tolerance: a vertex sends its pending change only if the change is more than this share of the vertex's
    /// rank.
    tolerance: u64,
    /// The sum that vertices without out-edges have sent to all vertices. The initial value is the sum of all ranks,
    /// which corresponds to an initial rank of 1 / n for each vertex.
    spread: u64,
    /// The part of the latest change of `spread` that each vertex gets in this superstep.
    each: i64,
}

/// Multiplies a change by a share. The product is rounded towards zero, so that changes of the last bit vanish after
/// some supersteps.
fn share_of(share: u64, change: i64) -> i64 {
    (i128::from(share) * i128::from(change) / i128::from(ONE)) as i64
}

impl<const ALL: bool> Deltas<ALL> {
    fn sends(&self, state: &Rank) -> bool {
        let [rank, pending] = [state.rank, state.pending].map(|number| u128::from(number.unsigned_abs()));
        pending * u128::from(ONE) > rank * u128::from(self.tolerance)
    }

    /// Returns the change that remains pending after all senders have sent.
    fn kept(&self, state: &Rank) -> i64 {
        if self.sends(state) { 0 } else { state.pending }
    }
}

impl<const ALL: bool> StepProgram for Deltas<ALL> {
    type State = Rank;
    /// A signed change, stored as an unsigned number. Wrapping sums of signed and of unsigned numbers have the same
    /// bits.
    type Message = u64;
    const NOTHING: u64 = 0;
    const EVERY_VERTEX: bool = ALL;

    fn edge_program(&self, _vertex: u32, state: &Rank, degree: u32) -> Option<u64> {
        let share = state.pending / i64::from(degree);
        (self.sends(state) && share != 0).then_some(share.cast_unsigned())
    }

    fn reduce(&self, a: u64, b: u64) -> u64 {
        a.wrapping_add(b)
    }

    fn finalize(&self, _vertex: u32, sum: u64, old: &Rank) -> Rank {
        let change = self.each + share_of(self.damping, sum.cast_signed());
        Rank { rank: old.rank + change, pending: self.kept(old) + change }
    }

    fn is_active(&self, _vertex: u32, new: &Rank, _old: &Rank) -> bool {
        self.sends(new)
    }

    /// Returns the sum that a vertex without out-edges has sent to all vertices.
    fn aggregate(&self, _vertex: u32, state: &Rank, degree: u32) -> u64 {
        if ALL && degree == 0 { (state.rank - self.kept(state)).max(0).cast_unsigned() } else { 0 }
    }

    fn set_aggregate(&mut self, spread: u64) {
        if ALL {
            let more = spread.cast_signed() - self.spread.cast_signed();
            self.each = share_of(self.damping, more) / self.vertices.cast_signed();
            self.spread = spread;
        }
    }

    /// Returns 1 for a vertex that sends in the next superstep. The sum over all vertices is then the number of
    /// senders.
    fn change(&self, new: &Rank, _old: &Rank) -> u64 {
        self.sends(new).into()
    }
}

/// Runs PageRank with a vertex tolerance.
///
/// # Errors
/// Returns the errors of [`super::pagerank`].
pub(super) fn pagerank(
    graph: &Graph,
    job: &Job,
    options: &PageRankOptions,
    vertex_tolerance: f64,
) -> Result<Answer> {
    let (vertices, iterations) = (graph.vertices(), options.iterations_max());
    check_vertex_tolerance(vertex_tolerance, options.damping)?;
    if options.tolerance > 0.0 {
        let (found, expected) = (options.tolerance.to_string(), "0 with a vertex_tolerance".to_string());
        return Err(Error::BadOption { option: "tolerance", found, expected });
    }
    let damping = (options.damping * ONE as f64) as u64;
    let tolerance = (vertex_tolerance * ONE as f64) as u64;
    let question = (iterations, options.damping, "vertex tolerance", vertex_tolerance);
    let mut checkpoints = Checkpoints::new(graph, job, options.resume, "graph pagerank", question)?;
    let kept_bytes = checkpoints.bytes::<Rank>(vertices);
    let crowded = checkpoints.numbers::<Rank>(vertices)?;
    let supersteps = crowded.map_or(iterations, |[to_come, _]| to_come as u32).min(CROWDED);
    let dense = Some(Dense::new(job, vertices - graph.info().sinks, supersteps, true));
    let rows = vec![graph.out().unweighted()];
    let setup = Setup { tuning: &options.tuning, rows, has_in_edges: false, dense, kept_bytes };
    let first = (ONE / vertices).cast_signed();
    let start = |_| Rank { rank: first, pending: first };
    let mut engine = Engine::new::<Deltas<true>>(job, setup, start)?;
    let begun = engine.resume_from(&checkpoints)?;
    let (mut active, [mut to_come, spread]) = begun.unwrap_or((Frontier::All, [iterations.into(), ONE]));
    let mut all = Deltas::<true> { vertices, damping, tolerance, spread, each: 0 };
    let mut some = Deltas::<false> { vertices, damping, tolerance, spread: 0, each: 0 };
    for superstep in engine.summary().supersteps + 1..=iterations {
        if active.is_empty() || (active.is_all() && to_come == 0) {
            break;
        }
        // Once few edges carry a change, a list of vertices contains the senders, since pending changes alone no longer
        // tell which vertices send.
        let done = match active.is_all() {
            true => engine.superstep(&mut all, Superstep::new(&active, FrontierCollection::WhenFew))?,
            false => engine.superstep(&mut some, Superstep::new(&active, FrontierCollection::Yes))?,
        };
        active = done.active;
        // The largest number of further supersteps in which all vertices can be active.
        let is_crowded = active.is_all() && done.change > 0;
        to_come = if is_crowded { (iterations - superstep).into() } else { 0 };
        engine.save(&mut checkpoints, &active, [to_come, all.spread])?;
    }
    let summary = engine.summary();
    // The sum of the changes that were never sent: the small changes of all vertices, and the changes of the vertices
    // that would send in the next superstep.
    let mut pending = 0;
    if !active.is_all() {
        let (mut listed, mut states) = (active.reader(job, vertices)?, engine.cursor());
        while let Some(vertex) = listed.next()? {
            pending += u128::from(states.get(vertex)?.pending.unsigned_abs());
        }
    }
    let (mut states, mut sum) = (engine.into_stream()?, 0);
    states.for_each(|_, state| {
        sum += state.rank;
        // If there is a list of senders, a vertex with a large pending change is in the list and was counted, or has
        // sent the change.
        if active.is_all() || !all.sends(state) {
            pending += u128::from(state.pending.unsigned_abs());
        }
        Ok(())
    })?;
    // The bound that the module's documentation derives, in units of ranks before division.
    let lost = 2.0 * summary.edges_traversed as f64;
    let missing = (options.damping * pending as f64 + lost) / (1.0 - options.damping);
    let error_max = Some((2.0 * missing / sum as f64).min(2.0));
    answer(graph, job, Summary { error_max, ..summary }, states, checkpoints, move |state| {
        state.rank as f64 / sum as f64
    })
}
