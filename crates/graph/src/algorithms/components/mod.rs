//! Weakly connected components: sets of vertices that edges connect, whatever the direction of the edges.
//!
//! If a number per vertex fits in memory, edges are streamed once into a forest of disjoint sets (`forest.rs`).
//!
//! Otherwise (`contract.rs`), a set of connected vertices grows by passes over the edges, with a bit per vertex
//! (`absorb.rs`), until few edges remain outside of the set. The remaining edges go into a forest of which one range of
//! vertices at a time is in memory (`ranges.rs`). If a bit per vertex does not fit either, all edges go into the forest
//! of `ranges.rs`.
//!
//! Edges are read in one direction, so in-edges are not needed. The final label is the smallest vertex number in the
//! component, which also has the smallest of the user's ids. The number of passes does not depend on the length of
//! paths.

mod absorb;
mod contract;
mod forest;
mod pairs;
mod ranges;
mod sets;

use std::{sync::Arc, time::Duration};

use arrow_array::builder::UInt64Builder;
use arrow_schema::{DataType, Field, Schema};
use inshore_store::Job;
use serde::{Deserialize, Serialize};

use self::contract::contract;
use crate::{
    Answer, Graph, Result, Tuning,
    answer::VertexRows,
    checkpoint::{Checkpoints, seconds},
    graph::check_budget,
    ids::Translation,
    in_memory::InMemoryGraph,
};

/// Sets the options of the components job.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ComponentsOptions {
    /// Resumes an interrupted job with the same options on the same graph, and saves checkpoints at about this
    /// interval. [`Rows::finish`](crate::Rows::finish) removes the checkpoints. With `None`, the job does not resume,
    /// and saves no checkpoints.
    #[serde(with = "seconds")]
    pub resume: Option<Duration>,
    /// Overrides the choices of the engine, for tests and comparisons.
    pub tuning: Tuning,
}

/// Finds the component of all vertices in columns `vertex`, `component` (the smallest of the user's ids in the
/// component).
///
/// Cost: all edges are read once if 4 bytes of memory per vertex are free. Otherwise they are read once or twice, and
/// the edges outside of the largest component are written, 8 bytes each. If memory is less than about half a byte per
/// vertex, or no component has most of the edges, vertices are divided into ranges. The written edges are then read and
/// written again at most once per range. The number of ranges is the size of the parents of remaining vertices, 4 bytes
/// each, divided by half the memory.
///
/// # Errors
/// Returns [`inshore_store::Error::BudgetTooSmall`] if the memory budget is too small. The function also fails if a
/// read or write fails, stored data is damaged, or the job was cancelled.
pub fn components(graph: &Graph, job: &Job, options: &ComponentsOptions) -> Result<Answer> {
    check_budget(job, "components")?;
    let mut checkpoints = Checkpoints::new(graph, job, options.resume, "graph components", ())?;
    let (mut summary, mut labels) = match forest::is_right(job, graph.vertices(), &options.tuning)? {
        true => forest::join(graph, job)?,
        false => contract(graph, job, &options.tuning, &mut checkpoints)?,
    };
    let mut count = 0;
    let mut translation = Translation::new(graph, job, |each| labels.for_each(|v, label| each(v, *label)))?;
    labels.for_each(|vertex, label| {
        count += (vertex == *label) as u64;
        Ok(())
    })?;
    summary.components = Some(count);
    let schema = Arc::new(Schema::new(vec![
        Field::new("vertex", DataType::UInt64, false),
        Field::new("component", DataType::UInt64, false),
    ]));
    let column = move |first: u32, labels: &[u32]| {
        let mut ids = UInt64Builder::with_capacity(labels.len());
        for (vertex, &label) in (first..).zip(labels) {
            ids.append_value(translation.id(vertex, label)?);
        }
        Ok(vec![Arc::new(ids.finish()) as _])
    };
    let rows = VertexRows::stream(graph, job, schema, labels, column)?;
    Ok(Answer { summary, rows: rows.kept(checkpoints) })
}

/// Returns the part of a row that must be read so that each edge of the graph is read once. (In an undirected graph an
/// edge is in the rows of both its ends.)
fn edges_once(directed: bool, vertex: u32, row: &[u32]) -> &[u32] {
    if directed { row } else { &row[row.partition_point(|&to| to < vertex)..] }
}

/// Compares labels (vertex numbers) with those of a union-find in memory.
///
/// # Errors
/// Returns a description of the difference, in the ids of the user.
pub fn verify(graph: &InMemoryGraph, labels: &[u32]) -> std::result::Result<String, String> {
    let mut roots: Vec<u32> = (0..graph.vertices() as u32).collect();
    let find = |roots: &mut Vec<u32>, mut vertex: u32| {
        while roots[vertex as usize] != vertex {
            roots[vertex as usize] = roots[roots[vertex as usize] as usize];
            vertex = roots[vertex as usize];
        }
        vertex
    };
    for vertex in 0..graph.vertices() {
        for &to in graph.out(vertex) {
            let (a, b) = (find(&mut roots, vertex as u32), find(&mut roots, to));
            // The smaller number is always the root.
            roots[a.max(b) as usize] = a.min(b);
        }
    }
    let mut count = 0;
    for (vertex, &label) in labels.iter().enumerate() {
        let expected = find(&mut roots, vertex as u32);
        if label != expected {
            let [vertex, label, expected] =
                [vertex, label as usize, expected as usize].map(|number| graph.id(number));
            return Err(format!("vertex {vertex}: component {label}, expected {expected}"));
        }
        count += (expected == vertex as u32) as u64;
    }
    Ok(format!("{count} components, as union-find in memory finds them"))
}
