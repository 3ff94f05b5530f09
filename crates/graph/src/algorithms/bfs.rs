//! Breadth-first search: finds the level of each vertex (the number of edges from the source) and its parent.
//!
//! As in the 2018 thesis (section 9.7.1), a message along an edge is the number of the edge's source. All senders to an
//! unreached vertex are one level above that vertex. The sender with the smallest number becomes the vertex's parent.
//! The answer therefore does not depend on the order of messages.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use arrow_array::{UInt32Array, UInt64Array};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use arrow_schema::{DataType, Field, Schema};
use inshore_store::Job;
use serde::{Deserialize, Serialize};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::NONE;
use crate::{
    Answer, Graph, Result, Tuning,
    answer::VertexRows,
    checkpoint::{Checkpoints, seconds},
    csr::Csr,
    engine::{Engine, Frontier, FrontierCollection, Pull, Setup, StepProgram, Superstep},
    graph::check_budget,
    ids::Translation,
    in_memory::InMemoryGraph,
};

/// Sets the options of a breadth-first search.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BfsOptions {
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

impl BfsOptions {
    /// Creates options for a search from `source`.
    pub fn new(source: u64) -> Self {
        BfsOptions { source, resume: None, tuning: Tuning::default() }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Visit {
    parent: u32,
    level: u32,
}

const UNREACHED: Visit = Visit { parent: NONE, level: NONE };

#[derive(Clone)]
struct Bfs {
    level: u32,
}

impl StepProgram for Bfs {
    type State = Visit;
    type Message = u32;
    const NOTHING: u32 = NONE;
    const PULL: Pull = Pull::First;

    fn waits(&self, _vertex: u32, visit: &Visit) -> bool {
        *visit == UNREACHED
    }

    fn message_of(&self, vertex: u32) -> u32 {
        vertex
    }

    fn edge_program(&self, vertex: u32, _visit: &Visit, _degree: u32) -> Option<u32> {
        Some(vertex)
    }

    fn reduce(&self, a: u32, b: u32) -> u32 {
        a.min(b)
    }

    fn finalize(&self, _vertex: u32, parent: u32, visit: &Visit) -> Visit {
        if *visit == UNREACHED { Visit { parent, level: self.level } } else { *visit }
    }

    /// Returns 0, so that a visited vertex accepts no message: messages are reduced to the smallest, and no vertex
    /// number is below 0.
    fn kept(&self, _visit: &Visit) -> u32 {
        0
    }

    fn is_active(&self, _vertex: u32, new: &Visit, old: &Visit) -> bool {
        new != old
    }
}

/// Searches breadth first, and returns the parent and level of all vertices in columns `vertex`, `parent`, `level`. The
/// source is its own parent, at level 0; unreached vertices have null. The search follows edges from source to
/// destination.
///
/// Cost: each edge is read at most once, in whole blocks of the edge file. If the graph has in-edges, a superstep pulls
/// along the in-edges of unreached vertices if that reads fewer edges. The rows of vertices that remain unreached are
/// cached in memory if they fit, so that in-edges are read once.
///
/// # Errors
/// - Returns [`crate::Error::NoSuchVertex`] if the graph has no vertex with the given id.
/// - Returns [`inshore_store::Error::BudgetTooSmall`] if the memory budget is too small.
///
/// The function also fails if an I/O operation fails, stored data is damaged, or the job was cancelled.
pub fn bfs(graph: &Graph, job: &Job, options: &BfsOptions) -> Result<Answer> {
    check_budget(job, "BFS")?;
    let source = graph.number_of(job, options.source)?;
    let mut checkpoints = Checkpoints::new(graph, job, options.resume, "graph bfs", options.source)?;
    let in_edges = graph.kept_in_edges();
    let mut rows = vec![graph.out().unweighted()];
    rows.extend(in_edges.filter(|_| graph.info().directed).map(Csr::unweighted));
    let setup = Setup {
        tuning: &options.tuning,
        rows,
        has_in_edges: in_edges.is_some(),
        dense: None,
        kept_bytes: checkpoints.bytes::<Visit>(graph.vertices()),
    };
    let mut engine = Engine::new::<Bfs>(job, setup, |vertex| {
        if vertex == source { Visit { parent: source, level: 0 } } else { UNREACHED }
    })?;
    let (mut active, mut levels, mut edges_before) = match engine.resume_from(&checkpoints)? {
        Some((active, [levels, walked])) => (active, levels as u32, walked),
        None => (Frontier::one(source), 0, 0),
    };
    while !active.is_empty() {
        levels += 1;
        let asked = Superstep { edges_before, ..Superstep::new(&active, FrontierCollection::Yes) };
        let done = engine.superstep(&mut Bfs { level: levels }, asked)?;
        edges_before += done.edges_counted.unwrap_or(0);
        active = done.active;
        engine.save(&mut checkpoints, &active, [levels.into(), edges_before])?;
    }
    let mut summary = engine.summary();
    let mut states = engine.into_stream()?;
    let mut reached = 0;
    let mut translation = {
        let visits = |each: &mut dyn FnMut(u32, u32) -> Result<()>| {
            states.for_each(
                |vertex, visit| if *visit == UNREACHED { Ok(()) } else { each(vertex, visit.parent) },
            )
        };
        Translation::new(graph, job, visits)?
    };
    states.for_each(|_, visit| {
        reached += (*visit != UNREACHED) as u64;
        Ok(())
    })?;
    (summary.reached, summary.levels) = (Some(reached), Some(levels));
    let schema = Arc::new(Schema::new(vec![
        Field::new("vertex", DataType::UInt64, false),
        Field::new("parent", DataType::UInt64, true),
        Field::new("level", DataType::UInt32, true),
    ]));
    let columns = move |first: u32, visits: &[Visit]| {
        let reached = BooleanBuffer::collect_bool(visits.len(), |at| visits[at] != UNREACHED);
        let reached = Some(NullBuffer::from(reached)).filter(|reached| reached.null_count() > 0);
        let (mut parents, mut levels) = (Vec::with_capacity(visits.len()), Vec::with_capacity(visits.len()));
        for (vertex, visit) in (first..).zip(visits) {
            // Arrow stores a value even for a null; this value is 0.
            let is_reached = *visit != UNREACHED;
            parents.push(if is_reached { translation.id(vertex, visit.parent)? } else { 0 });
            levels.push(if is_reached { visit.level } else { 0 });
        }
        let parents = UInt64Array::new(parents.into(), reached.clone());
        Ok(vec![Arc::new(parents) as _, Arc::new(UInt32Array::new(levels.into(), reached)) as _])
    };
    let rows = VertexRows::stream(graph, job, schema, states, columns)?;
    Ok(Answer { summary, rows: rows.kept(checkpoints) })
}

/// Compares parents and levels (by vertex number) with those of a search that uses a queue in memory.
///
/// # Errors
/// Returns a description of the difference, in the ids of the user.
pub fn verify(
    graph: &InMemoryGraph,
    source: usize,
    answer: &[Option<(u32, u32)>],
) -> std::result::Result<String, String> {
    let mut levels = vec![NONE; graph.vertices()];
    let mut parents = vec![NONE; graph.vertices()];
    (levels[source], parents[source]) = (0, source as u32);
    let mut queue = VecDeque::from([source]);
    let mut reached = 0;
    while let Some(vertex) = queue.pop_front() {
        reached += 1;
        for &to in graph.out(vertex) {
            let to = to as usize;
            if levels[to] == NONE {
                levels[to] = levels[vertex] + 1;
                queue.push_back(to);
            }
            if levels[to] == levels[vertex] + 1 {
                parents[to] = parents[to].min(vertex as u32);
            }
        }
    }
    for (vertex, &found) in answer.iter().enumerate() {
        let expected = (levels[vertex] != NONE).then_some((parents[vertex], levels[vertex]));
        if found != expected {
            let say = |visit: Option<(u32, u32)>| match visit {
                None => "unreached".to_string(),
                Some((parent, level)) => format!("parent {} at level {level}", graph.id(parent as usize)),
            };
            return Err(format!("vertex {}: {}, expected {}", graph.id(vertex), say(found), say(expected)));
        }
    }
    Ok(format!("{reached} vertices reached, parents and levels as a search in memory finds them"))
}
