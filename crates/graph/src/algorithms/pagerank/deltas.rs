//! PageRank by changes: every vertex sends by how much its rank changed since it last sent, and only while that is more than a
//! share of it, so that each converges for itself and late supersteps walk along few edges (McSherry, "A uniform approach to
//! accelerated PageRank computation", 2005; Zhang, Gao, Gao and Wang, "Maiter", 2014; PageRankDelta in Shun and Blelloch,
//! "Ligra", 2013).
//!
//! ```text
//!   state      rank      x, 1 / n at first
//!              pending   p, by how much it changed since the vertex last sent: all of it at first
//!   superstep  who has more than t x pending, up or down, sends pending / degree along each edge; d times the sum of what
//!              arrives is added to rank and pending
//! ```
//!
//! The thesis (2018, algorithm 4) recomputes whole sums of the vertices that may change, and finds who sends to them along
//! in-edges and by a Bloom filter. Changes need none of that: the vertices that send are those that were finalized with much
//! pending, as in every other program here.
//!
//! Ranks r solve r = c + d A r, where c is the same for all vertices, whatever share of it comes from those without
//! out-edges. So for every b the solution of x = b + d A x is r but for one factor, and dividing by the sum at the end gives r.
//! While all vertices are looked at, b follows what those without out-edges hold, as in plain iterations: then these changes
//! sum to nothing and shrink as fast as those of plain iterations. (Maiter begins with b and nothing else, and all that is
//! pending has one sign and shrinks by d at best: on a Kronecker graph that took 40 times all edges.) Once few vertices send, b
//! stays as it is. A threshold that is the same for all vertices would keep those with the largest ranks, which have most edges,
//! sending long after their last digits stopped to matter: twice as many edges there as with a share of each rank.
//!
//! **How far it is from converged ranks.** At every moment x = b + d A (x - p). Let x* = b + d A x*, and e = x* - x: then
//! e = d A p + (d A)^2 p + ..., and since no column of A sums to more than 1, |e| sums to at most d / (1 - d) of what |p| sums to. That
//! is no more than t of what x sums to, where everybody is done. Dividing x and x* each by its sum at most doubles the distance:
//! the absolute differences of all ranks sum to at most 2 d t / (1 - d), and to less by what |p| really sums to, which is
//! what is told; also where supersteps were capped.
//!
//! Everything is rounded towards nothing, so that what is pending grows less with every superstep, and it ends with every t.
//! Rounding loses at most 2 x 2^-62 for each edge that is walked along, and its part in the distance is told with it.

use inshore_store::Job;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::{ONE, PageRankOptions, answer, check_vertex_tolerance};
use crate::{
    Answer, Error, Graph, Result, Summary,
    checkpoint::Checkpoints,
    engine::{Collect, Dense, Engine, Frontier, Setup, StepProgram, Superstep},
};

/// Supersteps before few edges have something to carry, as far as can be told before: 6 to 13 in Kronecker graphs.
const CROWDED: u32 = 8;

#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Rank {
    rank: i64,
    /// What was not sent when the vertex was last finalized. More than the tolerance is sent in the superstep after that.
    pending: i64,
}

/// `ALL`: every vertex is finalized in each superstep, whether it got something or not. Then what is pending beyond the tolerance
/// is what is still to be sent, so that all vertices may be walked over instead of a list of those that send. Without, a
/// vertex that sent and got nothing since keeps what it had pending.
#[derive(Clone)]
struct Deltas<const ALL: bool> {
    vertices: u64,
    damping: u64,
    /// The share of its rank that a vertex may keep to itself.
    tolerance: u64,
    /// What vertices without out-edges have sent to all: at first all of what there is, which makes each rank 1 / n.
    spread: u64,
    /// What each vertex gets of it in this superstep.
    each: i64,
}

/// A share of a change, rounded towards nothing, lest a last bit goes round for ever.
fn share_of(share: u64, change: i64) -> i64 {
    (i128::from(share) * i128::from(change) / i128::from(ONE)) as i64
}

impl<const ALL: bool> Deltas<ALL> {
    fn sends(&self, state: &Rank) -> bool {
        let [rank, pending] = [state.rank, state.pending].map(|number| u128::from(number.unsigned_abs()));
        pending * u128::from(ONE) > rank * u128::from(self.tolerance)
    }

    /// What is left of what was pending, once those that are active have sent.
    fn kept(&self, state: &Rank) -> i64 {
        if self.sends(state) { 0 } else { state.pending }
    }
}

impl<const ALL: bool> StepProgram for Deltas<ALL> {
    type State = Rank;
    /// A number with a sign: sums of such are the same bits as sums of these.
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

    /// What a vertex without out-edges has sent.
    fn gather(&self, _vertex: u32, state: &Rank, degree: u32) -> u64 {
        if ALL && degree == 0 { (state.rank - self.kept(state)).max(0).cast_unsigned() } else { 0 }
    }

    fn gathered(&mut self, spread: u64) {
        if ALL {
            let more = spread.cast_signed() - self.spread.cast_signed();
            self.each = share_of(self.damping, more) / self.vertices.cast_signed();
            self.spread = spread;
        }
    }

    /// Counts active vertices.
    fn change(&self, new: &Rank, _old: &Rank) -> u64 {
        self.sends(new).into()
    }
}

/// # Errors
/// As [`super::pagerank`].
pub(super) fn pagerank(
    graph: &Graph,
    job: &Job,
    options: &PageRankOptions,
    vertex_tolerance: f64,
) -> Result<Answer> {
    let vertices = graph.vertices();
    check_vertex_tolerance(vertex_tolerance, options.damping)?;
    if options.tolerance > 0.0 {
        let (found, expected) = (options.tolerance.to_string(), "0 beside a vertex_tolerance".to_string());
        return Err(Error::BadOption { option: "tolerance", found, expected });
    }
    let damping = (options.damping * ONE as f64) as u64;
    let tolerance = (vertex_tolerance * ONE as f64) as u64;
    let question = (options.iterations, options.damping, "vertex tolerance", vertex_tolerance);
    let mut checkpoints = Checkpoints::new(graph, job, options.resume, "graph pagerank", question)?;
    let kept_bytes = checkpoints.bytes::<Rank>(vertices);
    let crowded = checkpoints.numbers::<Rank>(vertices)?;
    let supersteps = crowded.map_or(options.iterations, |[to_come, _]| to_come as u32).min(CROWDED);
    let dense = Some(Dense::new(job, vertices - graph.info().sinks, supersteps, true));
    let rows = vec![graph.out().unweighted()];
    let setup = Setup { tuning: &options.tuning, rows, has_in_edges: false, dense, kept_bytes };
    let first = (ONE / vertices).cast_signed();
    let start = |_| Rank { rank: first, pending: first };
    let mut engine = Engine::new::<Deltas<true>>(job, setup, start)?;
    let begun = engine.take_up(&checkpoints)?;
    let (mut active, [mut to_come, spread]) =
        begun.unwrap_or((Frontier::All, [options.iterations.into(), ONE]));
    let mut all = Deltas::<true> { vertices, damping, tolerance, spread, each: 0 };
    let mut some = Deltas::<false> { vertices, damping, tolerance, spread: 0, each: 0 };
    for superstep in engine.summary().supersteps + 1..=options.iterations {
        if active.is_empty() || (active.is_all() && to_come == 0) {
            break;
        }
        // Once few edges carry something a list says who sends, since what is pending alone does not.
        let done = match active.is_all() {
            true => engine.superstep(&mut all, Superstep::new(&active, Collect::WhenFew))?,
            false => engine.superstep(&mut some, Superstep::new(&active, Collect::Yes))?,
        };
        active = done.active;
        // Supersteps of all vertices, at most.
        let is_crowded = active.is_all() && done.change > 0;
        to_come = if is_crowded { (options.iterations - superstep).into() } else { 0 };
        engine.save(&mut checkpoints, &active, [to_come, all.spread])?;
    }
    let summary = engine.summary();
    // What nobody sent: what is little everywhere, and what those have who would be next.
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
        // Where there is a list, whoever has much is in it or has sent it.
        if active.is_all() || !all.sends(state) {
            pending += u128::from(state.pending.unsigned_abs());
        }
        Ok(())
    })?;
    // As told at the top, in units of ranks before they are divided.
    let lost = 2.0 * summary.edges_traversed as f64;
    let missing = (options.damping * pending as f64 + lost) / (1.0 - options.damping);
    let error_max = Some((2.0 * missing / sum as f64).min(2.0));
    answer(graph, job, Summary { error_max, ..summary }, states, checkpoints, move |state| {
        state.rank as f64 / sum as f64
    })
}
