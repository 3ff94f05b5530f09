//! PageRank (Page, Brin, Motwani and Winograd 1999), as LDBC Graphalytics defines it: with damping and a fixed number
//! of iterations. The ranks of vertices without out-edges are spread evenly over all vertices. Ranks sum to 1.
//!
//! Ranks are 64-bit fixed-point numbers with 62 bits behind the point. Integer sums do not depend on their order,
//! unlike sums of floating-point numbers. The ranks are therefore the same bit for bit at every budget, strategy and
//! number of threads. The price is an absolute error of 2^-62 for each edge into a vertex. For a graph of a billion
//! vertices this is about 10^-6 of a small rank, far below the tolerance of 10^-4 that LDBC sets.
//!
//! With a tolerance per vertex, ranks converge vertex by vertex instead: see `deltas.rs`.

mod arithmetic;
mod deltas;

use std::{sync::Arc, time::Duration};

use arrow_array::Float64Array;
use arrow_schema::{DataType, Field, Schema};
use inshore_store::Job;
use serde::{Deserialize, Serialize};

use self::arithmetic::ONE;
pub use self::arithmetic::RankArithmetic;
use crate::{
    Answer, Error, Graph, Result, Summary, Tuning,
    answer::VertexRows,
    checkpoint::{Checkpoints, seconds},
    engine::{
        Dense, Engine, Frontier, FrontierCollection, Setup, State, StateStream, StepProgram, Superstep,
    },
    graph::check_budget,
    in_memory::InMemoryGraph,
};

/// Sets the options of PageRank.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PageRankOptions {
    /// The largest number of iterations. With `None`, the default, the limit is 10, or there is no limit if
    /// `vertex_tolerance` is set.
    pub iterations: Option<u32>,
    /// The share of rank that a vertex sends along its edges, from 0 to 1; 0.85 by default.
    pub damping: f64,
    /// Stops early once the sum of all changes of ranks in an iteration is at most this value; 0 by default.
    pub tolerance: f64,
    /// Makes each vertex send only changes of its rank. A vertex sends its unsent change only if the change is more
    /// than this share of its rank. The share is more than 0 and less than 1 - damping. Late supersteps then read few
    /// vertices and edges, and the job ends when no vertex sends (or after `iterations`). The absolute differences
    /// between all ranks and the converged ranks then sum to at most 2 damping `vertex_tolerance` / (1 - damping).
    /// [`Summary::error_max`] has the bound of this job. With `None`, the default, all vertices send their whole rank
    /// in each iteration.
    pub vertex_tolerance: Option<f64>,
    /// Resumes an interrupted job with the same options on the same graph, and saves checkpoints at about this
    /// interval. [`Rows::finish`](crate::Rows::finish) removes the checkpoints. With `None`, the job does not resume,
    /// and saves no checkpoints.
    #[serde(with = "seconds")]
    pub resume: Option<Duration>,
    /// Overrides the choices of the engine, for tests and comparisons.
    pub tuning: Tuning,
}

impl Default for PageRankOptions {
    fn default() -> Self {
        PageRankOptions {
            iterations: None,
            damping: 0.85,
            tolerance: 0.0,
            vertex_tolerance: None,
            resume: None,
            tuning: Tuning::default(),
        }
    }
}

impl PageRankOptions {
    /// Creates options with this `vertex_tolerance`, and without a limit on the number of supersteps.
    pub fn converging(vertex_tolerance: f64) -> Self {
        PageRankOptions { vertex_tolerance: Some(vertex_tolerance), ..PageRankOptions::default() }
    }

    /// Returns the largest number of iterations.
    pub fn iterations_max(&self) -> u32 {
        let default = if self.vertex_tolerance.is_some() { u32::MAX } else { 10 };
        self.iterations.unwrap_or(default)
    }
}

#[derive(Clone)]
struct PageRank {
    arithmetic: RankArithmetic,
    /// The part of each new rank that does not depend on the vertex's edges: it comes from random jumps and from
    /// vertices without out-edges.
    base: u64,
}

impl StepProgram for PageRank {
    type State = u64;
    type Message = u64;
    const NOTHING: u64 = 0;
    const EVERY_VERTEX: bool = true;

    fn edge_program(&self, _vertex: u32, rank: &u64, degree: u32) -> Option<u64> {
        Some(self.arithmetic.share(*rank, degree))
    }

    fn reduce(&self, a: u64, b: u64) -> u64 {
        a + b
    }

    fn finalize(&self, _vertex: u32, sum: u64, _rank: &u64) -> u64 {
        self.arithmetic.rank(self.base, sum)
    }

    fn is_active(&self, _vertex: u32, _new: &u64, _old: &u64) -> bool {
        true
    }

    fn aggregate(&self, _vertex: u32, rank: &u64, degree: u32) -> u64 {
        if degree == 0 { *rank } else { 0 }
    }

    fn set_aggregate(&mut self, dangling: u64) {
        self.base = self.arithmetic.base(dangling);
    }

    fn change(&self, new: &u64, old: &u64) -> u64 {
        new.abs_diff(*old)
    }
}

/// Computes the ranks of all vertices, in columns `vertex`, `rank`.
///
/// Cost: edges are first partitioned by destination if this is estimated to save time. Partitioning reads all edges
/// once (up to 4 bytes per edge, and 4 per vertex) and writes 2 to 3 bytes per edge. Each iteration then reads the
/// partitions that are not in memory. With `vertex_tolerance`, a vertex takes 16 bytes of state instead of 8. Once few
/// edges carry a change, only the rows of senders are read. The engine's documentation has the other costs.
///
/// # Errors
/// - Returns [`Error::BadOption`] if an option is out of its range.
/// - Returns [`inshore_store::Error::BudgetTooSmall`] if the memory budget is too small.
///
/// The function also fails if an I/O operation fails, stored data is damaged, or the job was cancelled.
pub fn pagerank(graph: &Graph, job: &Job, options: &PageRankOptions) -> Result<Answer> {
    check_budget(job, "PageRank")?;
    check_options(options)?;
    if let Some(vertex_tolerance) = options.vertex_tolerance {
        return deltas::pagerank(graph, job, options, vertex_tolerance);
    }
    let (vertices, iterations) = (graph.vertices(), options.iterations_max());
    let arithmetic = RankArithmetic::new(vertices, options.damping)?;
    let mut program = PageRank { arithmetic, base: 0 };
    let start = |_| arithmetic.start();
    let question = (iterations, options.damping, options.tolerance);
    let mut checkpoints = Checkpoints::new(graph, job, options.resume, "graph pagerank", question)?;
    let kept_bytes = checkpoints.bytes::<u64>(vertices);
    let is_done = |change: f64| change <= options.tolerance;
    let supersteps = match checkpoints.numbers::<u64>(vertices)? {
        Some([_, change]) if is_done(f64::from_bits(change)) => 0,
        Some([done, _]) => iterations.saturating_sub(done as u32),
        None => iterations,
    };
    let dense = Some(Dense::new(job, vertices - graph.info().sinks, supersteps, false));
    let rows = vec![graph.out().unweighted()];
    let setup = Setup { tuning: &options.tuning, rows, has_in_edges: false, dense, kept_bytes };
    let mut engine = Engine::new::<PageRank>(job, setup, start)?;
    let (done, mut last_change) = match engine.resume_from(&checkpoints)? {
        Some((_, numbers)) => (numbers[0] as u32, Some(f64::from_bits(numbers[1]))),
        None => (0, None),
    };
    for iteration in done + 1..=iterations {
        if last_change.is_some_and(is_done) {
            break;
        }
        let done = engine.superstep(&mut program, Superstep::new(&Frontier::All, FrontierCollection::No))?;
        let change = RankArithmetic::to_f64(done.change);
        last_change = Some(change);
        engine.save(&mut checkpoints, &Frontier::All, [iteration.into(), change.to_bits()])?;
    }
    let summary = Summary { last_change, ..engine.summary() };
    answer(graph, job, summary, engine.into_stream()?, checkpoints, |rank| RankArithmetic::to_f64(*rank))
}

/// Makes a row for each vertex with the rank that its state encodes.
fn answer<S: State>(
    graph: &Graph,
    job: &Job,
    summary: Summary,
    states: StateStream<S>,
    checkpoints: Checkpoints,
    rank: impl Fn(&S) -> f64 + Send + 'static,
) -> Result<Answer> {
    let schema = Arc::new(Schema::new(vec![
        Field::new("vertex", DataType::UInt64, false),
        Field::new("rank", DataType::Float64, false),
    ]));
    let column = move |_, states: &[S]| {
        Ok(vec![Arc::new(Float64Array::from_iter_values(states.iter().map(&rank))) as _])
    };
    let rows = VertexRows::stream(graph, job, schema, states, column)?;
    Ok(Answer { summary, rows: rows.kept(checkpoints) })
}

/// Checks the damping and the tolerance.
///
/// # Errors
/// Returns [`Error::BadOption`] if an option is out of its range.
pub fn check_options(options: &PageRankOptions) -> Result<()> {
    check_damping(options.damping)?;
    if options.tolerance.is_nan() || options.tolerance < 0.0 {
        let (found, expected) = (options.tolerance.to_string(), "0 or more".to_string());
        return Err(Error::BadOption { option: "tolerance", found, expected });
    }
    Ok(())
}

/// Checks the damping.
///
/// # Errors
/// Returns [`Error::BadOption`] if the damping is outside of 0 to 1.
pub(crate) fn check_damping(damping: f64) -> Result<()> {
    if !(0.0..=1.0).contains(&damping) {
        let (found, expected) = (damping.to_string(), "0 to 1".to_string());
        return Err(Error::BadOption { option: "damping", found, expected });
    }
    Ok(())
}

/// Checks the tolerance per vertex.
///
/// # Errors
/// Returns [`Error::BadOption`] if the tolerance is so large that no vertex would send, or that the bound on the
/// distance would be meaningless.
pub(crate) fn check_vertex_tolerance(vertex_tolerance: f64, damping: f64) -> Result<()> {
    if vertex_tolerance > 0.0 && vertex_tolerance < 1.0 - damping {
        return Ok(());
    }
    let expected = format!("more than 0 and less than 1 - damping, which is {}", 1.0 - damping);
    Err(Error::BadOption { option: "vertex_tolerance", found: vertex_tolerance.to_string(), expected })
}

/// The largest distance from exact ranks that rounding may add.
const ROUNDING: f64 = 1e-6;

/// Compares `ranks` with those of a plain power iteration in floating point. Each rank may differ by 10^-6 of the
/// expected rank, and the sum of all ranks may differ from 1 by 10^-6. With a `vertex_tolerance` the check ignores
/// `iterations` and iterates until ranks converge. The sum of differences may then reach the bound that is documented
/// at that option.
///
/// # Errors
/// Returns a description of the difference, in the ids of the user.
pub fn verify(
    graph: &InMemoryGraph,
    options: &PageRankOptions,
    ranks: &[f64],
) -> std::result::Result<String, String> {
    let damping = options.damping;
    let iterations = match options.vertex_tolerance {
        None => options.iterations_max(),
        // The distance from converged ranks is 2 at first, and each iteration multiplies it by at most the damping.
        Some(_) => (1e-9f64.ln() / damping.ln()).ceil().max(1.0) as u32,
    };
    let mut expected = vec![1.0 / graph.vertices() as f64; graph.vertices()];
    for _ in 0..iterations {
        let next = power_step(graph, damping, &expected);
        let is_settled = next == expected;
        expected = next;
        if is_settled {
            break;
        }
    }
    let sum: f64 = ranks.iter().sum();
    let is_one = (sum - 1.0).abs() <= ROUNDING;
    if !is_one {
        return Err(format!("ranks sum to {sum}"));
    }
    match options.vertex_tolerance {
        None => each_is_near(graph, ranks, &expected),
        Some(vertex_tolerance) => {
            all_are_near(ranks, &expected, 2.0 * damping * vertex_tolerance / (1.0 - damping))
        }
    }
}

fn each_is_near(
    graph: &InMemoryGraph,
    ranks: &[f64],
    expected: &[f64],
) -> std::result::Result<String, String> {
    let mut worst: f64 = 0.0;
    for (vertex, (&rank, &expected)) in ranks.iter().zip(expected).enumerate() {
        let error = (rank - expected).abs() / expected;
        if error.is_nan() || error > ROUNDING {
            return Err(format!("vertex {}: rank {rank}, expected {expected}", graph.id(vertex)));
        }
        worst = worst.max(error);
    }
    Ok(format!("{} ranks within {worst:.1e} of a power iteration in memory", ranks.len()))
}

fn all_are_near(ranks: &[f64], expected: &[f64], limit: f64) -> std::result::Result<String, String> {
    let off: f64 = ranks.iter().zip(expected).map(|(rank, expected)| (rank - expected).abs()).sum();
    let (count, told) = (ranks.len(), "the ranks of a power iteration in memory that converged");
    match off <= limit + ROUNDING {
        true => Ok(format!("{count} ranks, all together within {off:.1e} of {told}")),
        false => {
            Err(format!("{count} ranks, all together {off:.1e} from {told}, expected at most {limit:.1e}"))
        }
    }
}

/// Returns the ranks after one iteration.
fn power_step(graph: &InMemoryGraph, damping: f64, ranks: &[f64]) -> Vec<f64> {
    let count = graph.vertices();
    let dangling: f64 = (0..count).filter(|&v| graph.out(v).is_empty()).map(|v| ranks[v]).sum();
    let base = (1.0 - damping + damping * dangling) / count as f64;
    let mut next = vec![base; count];
    for (vertex, rank) in ranks.iter().enumerate() {
        let share = damping * rank / graph.out(vertex).len() as f64;
        graph.out(vertex).iter().for_each(|&to| next[to as usize] += share);
    }
    next
}
