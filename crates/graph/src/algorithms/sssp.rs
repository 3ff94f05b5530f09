//! Single-source shortest paths: finds for each vertex the least sum of weights of a path from the source.
//!
//! A vertex whose distance has decreased sends the new distance to its neighbours (Bellman 1958, Ford 1956). The list
//! of active vertices is that of Pregel (Malewicz et al. 2010). Each superstep extends paths by one edge, so the number
//! of supersteps is at most the number of edges of the longest shortest path. An edge is read again only if the
//! distance of its source has decreased.
//!
//! The weights of a path are added in the order of its edges, from the source on. The floating-point sums therefore do
//! not depend on the order of messages, and the answer is the same bit for bit in every run.

use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arrow_array::Float64Array;
use arrow_schema::{DataType, Field, Schema};
use inshore_store::Job;
use serde::{Deserialize, Serialize};

use crate::{
    Answer, Error, Graph, Result, Tuning,
    answer::VertexRows,
    checkpoint::{Checkpoints, seconds},
    engine::{Engine, Frontier, FrontierCollection, Setup, StepProgram, Superstep},
    graph::check_budget,
    in_memory::InMemoryGraph,
};

/// Sets the options of the search for shortest paths.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SsspOptions {
    /// The user's id of the vertex at which the search starts.
    pub source: u64,
    /// Resumes an interrupted job with the same options on the same graph, and saves checkpoints at about this
    /// interval. [`Rows::finish`](crate::Rows::finish) removes the checkpoints. With `None`, the job does not resume,
    /// and saves no checkpoints.
    #[serde(default, with = "seconds")]
    pub resume: Option<Duration>,
    /// Overrides the choices of the engine, for tests and comparisons.
    #[serde(default)]
    pub tuning: Tuning,
}

impl SsspOptions {
    /// Creates options for a search from `source`.
    pub fn new(source: u64) -> Self {
        SsspOptions { source, resume: None, tuning: Tuning::default() }
    }
}

#[derive(Clone)]
struct Sssp {
    /// The bits of the most negative weight so far, or those of 0.0 if no weight was negative.
    negative: Arc<AtomicU64>,
}

impl StepProgram for Sssp {
    type State = f64;
    type Message = f64;
    const NOTHING: f64 = f64::INFINITY;
    const ACCUMULATORS_KEEP_STATE: bool = true;
    const WEIGHTED: bool = true;
    const REREADS: bool = true;

    fn edge_program(&self, _vertex: u32, distance: &f64, _degree: u32) -> Option<f64> {
        Some(*distance)
    }

    #[inline]
    fn along(&self, _to: u32, distance: f64, weight: f64) -> f64 {
        if weight < 0.0 {
            // Of several negative numbers, the least one has the greatest bits, compared as unsigned integers.
            self.negative.fetch_max(weight.to_bits(), Ordering::Relaxed);
        }
        distance + weight
    }

    fn reduce(&self, a: f64, b: f64) -> f64 {
        a.min(b)
    }

    fn finalize(&self, _vertex: u32, received: f64, distance: &f64) -> f64 {
        received.min(*distance)
    }

    fn kept(&self, distance: &f64) -> f64 {
        *distance
    }

    fn is_active(&self, _vertex: u32, new: &f64, old: &f64) -> bool {
        new < old
    }
}

/// Computes the distances of all vertices from the source in columns `vertex`, `distance`. The distance is null if no
/// path to the vertex has a length that a 64-bit float can hold. Paths follow edges from source to destination.
///
/// Cost: the edges of a reached vertex are read once, and again whenever its distance decreases. An edge with its
/// weight is 12 bytes. State is 8 bytes per vertex.
///
/// # Errors
/// - Returns [`Error::BadInput`] if the graph has no weights, or a reached edge has a negative weight.
/// - Returns [`Error::NoSuchVertex`] if the graph has no vertex with the given id.
/// - Returns [`inshore_store::Error::BudgetTooSmall`] if the memory budget is too small.
///
/// The function also fails if an I/O operation fails, stored data is damaged, or the job was cancelled.
pub fn sssp(graph: &Graph, job: &Job, options: &SsspOptions) -> Result<Answer> {
    check_budget(job, "shortest paths")?;
    let bad = |found: String, expected: &str| Error::BadInput {
        place: graph.info().name.clone(),
        found,
        expected: expected.to_string(),
    };
    if !graph.info().weighted {
        return Err(bad("none".to_string(), "edges with weights (import --weighted keeps them)"));
    }
    let source = graph.number_of(job, options.source)?;
    let mut program = Sssp { negative: Arc::default() };
    let mut checkpoints = Checkpoints::new(graph, job, options.resume, "graph sssp", options.source)?;
    let setup = Setup {
        tuning: &options.tuning,
        rows: vec![graph.out().clone()],
        has_in_edges: false,
        dense: None,
        kept_bytes: checkpoints.bytes::<f64>(graph.vertices()),
    };
    let mut engine =
        Engine::new::<Sssp>(job, setup, |vertex| if vertex == source { 0.0 } else { f64::INFINITY })?;
    let mut active = match engine.resume_from(&checkpoints)? {
        Some((active, _)) => active,
        None => Frontier::one(source),
    };
    while !active.is_empty() {
        active = engine.superstep(&mut program, Superstep::new(&active, FrontierCollection::Yes))?.active;
        let negative = f64::from_bits(program.negative.load(Ordering::Relaxed));
        if negative < 0.0 {
            return Err(bad(negative.to_string(), "weights of 0 or more"));
        }
        engine.save(&mut checkpoints, &active, [0, 0])?;
    }
    let mut summary = engine.summary();
    let mut distances = engine.into_stream()?;
    let mut reached = 0;
    distances.for_each(|_, distance| {
        reached += distance.is_finite() as u64;
        Ok(())
    })?;
    summary.reached = Some(reached);
    let schema = Arc::new(Schema::new(vec![
        Field::new("vertex", DataType::UInt64, false),
        Field::new("distance", DataType::Float64, true),
    ]));
    let column = |_: u32, distances: &[f64]| {
        let values = distances.iter().map(|&distance| Some(distance).filter(|distance| distance.is_finite()));
        Ok(vec![Arc::new(Float64Array::from_iter(values)) as _])
    };
    let rows = VertexRows::stream(graph, job, schema, distances, column)?;
    Ok(Answer { summary, rows: rows.kept(checkpoints) })
}

/// Compares distances (by vertex number) with those of Dijkstra's algorithm (1959), which must have the same bits.
///
/// # Errors
/// Returns a description of the difference, in the ids of the user.
pub fn verify(
    graph: &InMemoryGraph,
    source: usize,
    answer: &[Option<f64>],
) -> std::result::Result<String, String> {
    let mut distances = vec![None; graph.vertices()];
    // Weights are not negative, so the bits of distances, compared as unsigned integers, have the order of the
    // distances.
    let mut queue = BinaryHeap::from([Reverse((0.0f64.to_bits(), source))]);
    let mut reached = 0;
    while let Some(Reverse((bits, vertex))) = queue.pop() {
        if distances[vertex].is_some() {
            continue;
        }
        let distance = f64::from_bits(bits);
        distances[vertex] = Some(distance);
        reached += 1;
        for (&to, &weight) in graph.out(vertex).iter().zip(graph.weights(vertex)) {
            if distances[to as usize].is_none() && (distance + weight).is_finite() {
                queue.push(Reverse(((distance + weight).to_bits(), to as usize)));
            }
        }
    }
    for (vertex, (found, expected)) in answer.iter().zip(&distances).enumerate() {
        if found != expected {
            let say = |distance: &Option<f64>| match distance {
                None => "unreached".to_string(),
                Some(distance) => format!("distance {distance}"),
            };
            return Err(format!("vertex {}: {}, expected {}", graph.id(vertex), say(found), say(expected)));
        }
    }
    Ok(format!("{reached} vertices reached, distances as Dijkstra's algorithm finds them"))
}
