//! PageRank (Page, Brin, Motwani and Winograd 1999), as LDBC Graphalytics defines it: damping, dangling mass spread
//! evenly over all vertices, a fixed number of iterations; ranks sum to 1.
//!
//! Ranks are 64-bit fixed-point numbers with 62 bits behind the point. Integer sums do not depend on their
//! order, so the ranks are the same bit for bit at every budget, strategy and number of threads, which floating
//! point cannot give. The price is an absolute error of 2^-62 for each edge into a vertex: for a graph of a billion
//! vertices about 10^-6 of a small rank, far below the tolerance of 10^-4 that LDBC sets.

use std::{sync::Arc, time::Duration};

use arrow::{
    array::Float64Array,
    datatypes::{DataType, Field, Schema},
};
use inshore_store::Job;

use crate::{
    Answer, Error, Graph, Result, Tuning,
    answer::VertexRows,
    check::Plain,
    checkpoint::Checkpoints,
    engine::{Asked, Columns, Engine, Frontier, VertexProgram},
    graph::check_budget,
};

/// What PageRank is to do.
#[derive(Clone, Copy, Debug)]
pub struct PageRankOptions {
    /// Iterations; 10 by default.
    pub iterations: u32,
    /// The share of rank that follows edges, 0 to 1; 0.85 by default.
    pub damping: f64,
    /// Stops before the last iteration when all ranks together change by no more than this; 0 by default.
    pub tolerance: f64,
    /// Goes on where an interrupted job ended that asked the same of the same graph, and keeps what it needs for that,
    /// about this often. [`Rows::finish`](crate::Rows::finish) forgets it. `None`: neither.
    pub resume: Option<Duration>,
    /// For tests and comparisons.
    pub tuning: Tuning,
}

impl Default for PageRankOptions {
    fn default() -> Self {
        PageRankOptions {
            iterations: 10,
            damping: 0.85,
            tolerance: 0.0,
            resume: None,
            tuning: Tuning::default(),
        }
    }
}

/// 1.0 in fixed point.
const ONE: u64 = 1 << 62;

fn times(a: u64, b: u64) -> u64 {
    ((a as u128 * b as u128 + (ONE / 2) as u128) >> 62) as u64
}

#[derive(Clone)]
struct PageRank {
    vertices: u64,
    damping: u64,
    /// What each vertex gets whatever its edges are: from random jumps and from vertices without out-edges.
    base: u64,
}

impl VertexProgram for PageRank {
    type State = u64;
    type Message = u64;
    const NOTHING: u64 = 0;
    const EVERY_VERTEX: bool = true;

    fn edge_program(&self, _vertex: u32, rank: &u64, degree: u32) -> Option<u64> {
        Some((rank + degree as u64 / 2) / degree as u64)
    }

    fn reduce(&self, a: u64, b: u64) -> u64 {
        a + b
    }

    fn finalize(&self, _vertex: u32, sum: u64, _rank: &u64) -> u64 {
        self.base + times(self.damping, sum)
    }

    fn is_active(&self, _new: &u64, _old: &u64) -> bool {
        true
    }

    fn gather(&self, rank: &u64, degree: u32) -> u64 {
        if degree == 0 { *rank } else { 0 }
    }

    fn gathered(&mut self, dangling: u64) {
        self.base = (ONE - self.damping + times(self.damping, dangling)) / self.vertices;
    }

    fn change(&self, new: &u64, old: &u64) -> u64 {
        new.abs_diff(*old)
    }
}

/// Ranks of all vertices: columns `vertex`, `rank`.
///
/// Cost: where it pays, edges are cut into columns first, which reads them once (up to 4 bytes an edge, 4 a vertex) and writes 2 to 3 bytes an
/// edge; an iteration reads these, as far as they do not stay in memory. See the engine for the rest.
///
/// # Errors
/// [`Error::BadOption`]; [`inshore_store::Error::BudgetTooSmall`]; I/O and damage; cancellation.
pub fn pagerank(graph: &Graph, job: &Job, options: &PageRankOptions) -> Result<Answer> {
    check_budget(job, "PageRank")?;
    check_damping(options.damping)?;
    if options.tolerance.is_nan() || options.tolerance < 0.0 {
        let (found, expected) = (options.tolerance.to_string(), "0 or more".to_string());
        return Err(Error::BadOption { option: "tolerance", found, expected });
    }
    let vertices = graph.vertices();
    let damping = (options.damping * ONE as f64) as u64;
    let mut program = PageRank { vertices, damping, base: 0 };
    let start = |_| ONE / vertices;
    let question = (options.iterations, options.damping, options.tolerance);
    let mut checkpoints = Checkpoints::new(graph, job, options.resume, "graph pagerank", question)?;
    let kept_bytes = checkpoints.bytes::<u64>(vertices);
    let is_done = |change: f64| change <= options.tolerance;
    let supersteps = match checkpoints.numbers::<u64>(vertices)? {
        Some([_, change]) if is_done(f64::from_bits(change)) => 0,
        Some([done, _]) => options.iterations.saturating_sub(done as u32),
        None => options.iterations,
    };
    let rows = [graph.out()];
    let senders = vertices - graph.info().sinks;
    let asked = Asked { rows: &rows, senders, supersteps, kept_bytes, has_sparse: false };
    let columns = Columns::new::<PageRank>(job, &options.tuning, &asked)?;
    let tuning = &options.tuning;
    let mut engine =
        Engine::with_columns::<PageRank>(job, columns.as_ref(), vertices, tuning, kept_bytes, start)?;
    let (done, mut last_change) = match engine.take_up(&checkpoints)? {
        Some((_, numbers)) => (numbers[0] as u32, Some(f64::from_bits(numbers[1]))),
        None => (0, None),
    };
    for iteration in done + 1..=options.iterations {
        if last_change.is_some_and(is_done) {
            break;
        }
        let step = match &columns {
            Some(columns) => engine.column_step(&mut program, columns, false)?,
            None => engine.superstep(&mut program, &rows, &Frontier::All, false, None)?,
        };
        let change = step.change as f64 / ONE as f64;
        last_change = Some(change);
        engine.save(&mut checkpoints, &Frontier::All, [iteration.into(), change.to_bits()])?;
    }
    let summary = crate::Summary { last_change, ..engine.summary() };
    let schema = Arc::new(Schema::new(vec![
        Field::new("vertex", DataType::UInt64, false),
        Field::new("rank", DataType::Float64, false),
    ]));
    let column = |ranks: &[u64]| {
        let ranks = ranks.iter().map(|&rank| rank as f64 / ONE as f64);
        Ok(vec![Arc::new(Float64Array::from_iter_values(ranks)) as _])
    };
    let rows = VertexRows::stream(graph, job, schema, engine.into_stream()?, move |_, ranks| column(ranks))?;
    Ok(Answer { summary, rows: rows.kept(checkpoints) })
}

/// # Errors
/// [`Error::BadOption`] for a damping that is no share.
pub(crate) fn check_damping(damping: f64) -> Result<()> {
    if !(0.0..=1.0).contains(&damping) {
        let (found, expected) = (damping.to_string(), "0 to 1".to_string());
        return Err(Error::BadOption { option: "damping", found, expected });
    }
    Ok(())
}

/// Compares `ranks` with a plain power iteration in floating point: each within 10^-6 of the expected rank, relative
/// to it, and all together 1.
///
/// # Errors
/// What is wrong, in words, with the user's ids.
pub fn verify(
    graph: &Plain,
    options: &PageRankOptions,
    ranks: &[f64],
) -> std::result::Result<String, String> {
    let count = graph.vertices() as f64;
    let mut expected = vec![1.0 / count; graph.vertices()];
    for _ in 0..options.iterations {
        let dangling: f64 =
            (0..graph.vertices()).filter(|&v| graph.out(v).is_empty()).map(|v| expected[v]).sum();
        let base = (1.0 - options.damping + options.damping * dangling) / count;
        let mut next = vec![base; graph.vertices()];
        for (vertex, rank) in expected.iter().enumerate() {
            let share = options.damping * rank / graph.out(vertex).len() as f64;
            graph.out(vertex).iter().for_each(|&to| next[to as usize] += share);
        }
        expected = next;
    }
    let sum: f64 = ranks.iter().sum();
    if (sum - 1.0).abs() > 1e-6 {
        return Err(format!("ranks sum to {sum}"));
    }
    let mut worst: f64 = 0.0;
    for (vertex, (&rank, &expected)) in ranks.iter().zip(&expected).enumerate() {
        let error = (rank - expected).abs() / expected;
        if error.is_nan() || error > 1e-6 {
            return Err(format!("vertex {}: rank {rank}, expected {expected}", graph.id(vertex)));
        }
        worst = worst.max(error);
    }
    Ok(format!("{} ranks within {worst:.1e} of a power iteration in memory", ranks.len()))
}
