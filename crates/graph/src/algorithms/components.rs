//! Weakly connected components: vertices that edges connect, whatever their direction.
//!
//! Every vertex starts with its own number as label and takes the smallest label that a neighbour sends; who
//! changed sends again (label propagation to the minimum, as in Pregel, Malewicz et al. 2010). At the end the
//! label is the smallest number, and so the smallest of the user's ids, in the component. Supersteps: at most the
//! longest shortest path from a component's smallest vertex, plus one.

use std::sync::Arc;

use arrow::{
    array::UInt64Builder,
    datatypes::{DataType, Field, Schema},
};
use inshore_store::Job;

use crate::{
    Answer, Graph, Result, Tuning,
    answer::VertexRows,
    check::Plain,
    engine::{Engine, Frontier, VertexProgram},
    graph::check_budget,
    ids::Translation,
};

/// What the components job is to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct ComponentsOptions {
    /// For tests and comparisons.
    pub tuning: Tuning,
}

#[derive(Clone)]
struct Components;

impl VertexProgram for Components {
    type State = u32;
    type Message = u32;
    const NOTHING: u32 = u32::MAX;
    const CELLS_KEEP_STATE: bool = true;

    fn edge_program(&self, _vertex: u32, label: &u32, _degree: u32) -> Option<u32> {
        Some(*label)
    }

    fn reduce(&self, a: u32, b: u32) -> u32 {
        a.min(b)
    }

    fn finalize(&self, _vertex: u32, received: u32, label: &u32) -> u32 {
        received.min(*label)
    }

    fn kept(&self, label: &u32) -> u32 {
        *label
    }

    fn is_active(&self, new: &u32, old: &u32) -> bool {
        new < old
    }
}

/// The component of all vertices: columns `vertex`, `component` (the smallest of the user's ids in it).
///
/// Cost: the first superstep reads all edges, in both directions if the graph is directed; later ones those of
/// vertices whose label changed. A directed graph that was imported without in-edges is turned around first, at
/// the price of one sort of all edges; the summary's notice says so.
///
/// # Errors
/// [`inshore_store::Error::BudgetTooSmall`]; I/O and damage; cancellation.
pub fn components(graph: &Graph, job: &Job, options: &ComponentsOptions) -> Result<Answer> {
    check_budget(job, "components")?;
    let in_edges = if graph.info().directed { Some(graph.in_edges(job)?) } else { None };
    let rows: Vec<_> = std::iter::once(graph.out()).chain(&in_edges).collect();
    let mut engine = Engine::new::<Components>(job, graph.vertices(), &options.tuning, 0, |vertex| vertex)?;
    let mut active = Frontier::All;
    while !active.is_empty() {
        active = engine.superstep(&mut Components, &rows, &active, true, None)?.active;
    }
    let mut summary = engine.summary();
    summary.notice = graph.reverse_notice();
    let mut labels = engine.into_stream()?;
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
    Ok(Answer { summary, rows: VertexRows::stream(graph, job, schema, labels, column)? })
}

/// Compares labels (vertex numbers) with a union-find in memory.
///
/// # Errors
/// What is wrong, in words, with the user's ids.
pub fn verify(graph: &Plain, labels: &[u32]) -> std::result::Result<String, String> {
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
