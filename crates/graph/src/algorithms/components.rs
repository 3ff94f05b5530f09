//! Weakly connected components: vertices that edges connect, whatever their direction.
//!
//! Where a number for each vertex fits in memory, edges are streamed once into a forest of disjoint sets (Tarjan 1975),
//! which all workers join trees of at once: a root is only ever hung below a smaller one, by a compare-and-swap (as in
//! Jayanti and Tarjan, "Concurrent disjoint set union", 2021), and paths are halved on the way.
//!
//! Where it does not, every vertex starts with its own number as label and takes the smallest label that a neighbour
//! sends; who changed sends again (label propagation to the minimum, as in Pregel, Malewicz et al. 2010). Supersteps: at
//! most the longest shortest path from a component's smallest vertex, plus one.
//!
//! Either way the label is at the end the smallest number, and so the smallest of the user's ids, in the component.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use arrow::{
    array::UInt64Builder,
    datatypes::{DataType, Field, Schema},
};
use inshore_sortreduce::prefetch;
use inshore_store::Job;
use zerocopy::{FromBytes, IntoBytes};

use crate::{
    Answer, Graph, Result, Summary, Tuning,
    answer::VertexRows,
    check::Plain,
    checkpoint::Checkpoints,
    csr::{self, scan_parallel},
    engine::{Asked, Columns, Engine, Frontier, StateStream, VertexArray, VertexProgram, memory_bytes},
    graph::check_budget,
    ids::Translation,
};

/// What the components job is to do.
#[derive(Clone, Copy, Debug, Default)]
pub struct ComponentsOptions {
    /// Goes on where an interrupted job ended that asked the same of the same graph, and keeps what it needs for that,
    /// about this often. [`Rows::finish`](crate::Rows::finish) forgets it. `None`: neither.
    pub resume: Option<Duration>,
    /// For tests and comparisons.
    pub tuning: Tuning,
}

/// Scanning edges, and then translating and writing labels, needs so much beside the forest, and a sixteenth.
const BESIDE_FOREST_BYTES: u64 = 4 << 20;

/// Supersteps in which many labels change, as far as can be told before: three in graphs of people and of links.
const CROWDED: u32 = 3;
/// From this part of all vertices on, sending all labels takes less time than to send those that changed.
const CROWDED_SHARE: u64 = 16;

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
/// Cost: with 4 bytes of memory a vertex all edges are read once, in one direction. With less, the first superstep reads
/// all edges, in both directions if the graph is directed (once more if they are cut into columns), and later ones those of
/// vertices whose label changed; a
/// directed graph that was imported without in-edges is turned around first, at the price of one sort of all edges, and
/// the summary's notice says so.
///
/// # Errors
/// [`inshore_store::Error::BudgetTooSmall`]; I/O and damage; cancellation.
pub fn components(graph: &Graph, job: &Job, options: &ComponentsOptions) -> Result<Answer> {
    check_budget(job, "components")?;
    let forest_bytes = memory_bytes::<u32>(graph.vertices());
    let free = job.budget().free_bytes();
    let fits = forest_bytes + BESIDE_FOREST_BYTES + free / 16 <= free;
    let mut checkpoints = Checkpoints::new(graph, job, options.resume, "graph components", ())?;
    let (mut summary, mut labels) = match options.tuning.allows_dense() && fits {
        true => join(graph, job)?,
        false => propagate(graph, job, options, &mut checkpoints)?,
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

/// Smallest labels are sent along edges until none changes.
fn propagate(
    graph: &Graph,
    job: &Job,
    options: &ComponentsOptions,
    checkpoints: &mut Checkpoints,
) -> Result<(Summary, StateStream<u32>)> {
    let in_edges = if graph.info().directed { Some(graph.in_edges(job)?) } else { None };
    let rows: Vec<_> = std::iter::once(graph.out()).chain(&in_edges).collect();
    let (vertices, tuning) = (graph.vertices(), &options.tuning);
    let kept_bytes = checkpoints.bytes::<u32>(vertices);
    let is_crowded = |active: u64| active > vertices / CROWDED_SHARE;
    // Who goes on with a job whose crowded supersteps are over needs no columns.
    let has_crowded = checkpoints.numbers::<u32>(vertices)?.is_none_or(|[active, _]| is_crowded(active));
    let supersteps = if has_crowded { CROWDED } else { 0 };
    let asked = Asked { rows: &rows, senders: vertices, supersteps, kept_bytes, has_sparse: true };
    let columns = Columns::new::<Components>(job, tuning, &asked)?;
    let mut engine =
        Engine::with_columns::<Components>(job, columns.as_ref(), vertices, tuning, kept_bytes, |vertex| {
            vertex
        })?;
    let mut active = engine.take_up(checkpoints)?.map_or(Frontier::All, |(active, _)| active);
    while !active.is_empty() {
        let has_many = is_crowded(active.count().unwrap_or(vertices));
        let step = match columns.as_ref().filter(|_| has_many) {
            // Labels that did not change tell nobody anything new.
            Some(columns) => engine.column_step(&mut Components, columns, true)?,
            None => engine.superstep(&mut Components, &rows, &active, true, None)?,
        };
        active = step.active;
        engine.save(checkpoints, &active, [active.count().unwrap_or(vertices), 0])?;
    }
    let summary = Summary { notice: graph.reverse_notice(), ..engine.summary() };
    Ok((summary, engine.into_stream()?))
}

/// Edges join trees of a forest in memory.
fn join(graph: &Graph, job: &Job) -> Result<(Summary, StateStream<u32>)> {
    let out = graph.out().unweighted();
    job.start_phase("joining trees", "edges", out.entries);
    job.progress().tell(|| "a forest of all vertices in memory, edges are read once from flash".to_string());
    let mut labels = VertexArray::new(job, graph.vertices(), true, |vertex| vertex)?;
    let parents = labels.in_memory().expect("made in memory");
    let forest = Forest(
        <[AtomicU32]>::mut_from_bytes(parents.as_mut_bytes()).expect("a cell is as large as its number"),
    );
    // An undirected edge is in the rows of both its ends.
    let once = !graph.info().directed;
    scan_parallel(job, &out, vec![(); csr::scan_threads(job)], |(), vertex, row, _| {
        job.progress().add(row.len() as u64);
        let row = if once { &row[row.partition_point(|&to| to < vertex)..] } else { row };
        forest.join_all(vertex, row);
        Ok(())
    })?;
    // A parent is never larger than its child: whoever comes later finds its parent's root.
    for vertex in 0..parents.len() {
        parents[vertex] = parents[parents[vertex] as usize];
    }
    let summary = Summary {
        supersteps: 1,
        edges_traversed: out.entries,
        state: "memory",
        strategy: "union-find".to_string(),
        ..Summary::default()
    };
    Ok((summary, StateStream::new(graph.vertices(), labels)?))
}

/// The parent of each vertex; a root is its own.
struct Forest<'a>(&'a [AtomicU32]);

/// Neighbours ahead of the present one whose parents are asked for.
const AHEAD: usize = 16;

impl Forest<'_> {
    fn join_all(&self, vertex: u32, row: &[u32]) {
        let mut root = self.root(vertex);
        for (place, &to) in row.iter().enumerate() {
            if let Some(&ahead) = row.get(place + AHEAD) {
                prefetch(&self.0[ahead as usize]);
            }
            if self.parent(to) != root {
                root = self.join(root, to);
            }
        }
    }

    #[inline(always)]
    fn parent(&self, vertex: u32) -> u32 {
        self.0[vertex as usize].load(Ordering::Relaxed)
    }

    fn root(&self, mut vertex: u32) -> u32 {
        loop {
            let parent = self.parent(vertex);
            let above = self.parent(parent);
            if above == parent {
                return parent;
            }
            // Another thread may have halved the path further: then it stays so.
            let cell = &self.0[vertex as usize];
            _ = cell.compare_exchange_weak(parent, above, Ordering::Relaxed, Ordering::Relaxed);
            vertex = above;
        }
    }

    /// Joins two trees and gives the root.
    fn join(&self, a: u32, b: u32) -> u32 {
        let (mut a, mut b) = (self.root(a), self.root(b));
        while a != b {
            let (low, high) = (a.min(b), a.max(b));
            let cell = &self.0[high as usize];
            match cell.compare_exchange(high, low, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return low,
                // It is no root any more.
                Err(_) => (a, b) = (self.root(low), self.root(high)),
            }
        }
        a
    }
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
