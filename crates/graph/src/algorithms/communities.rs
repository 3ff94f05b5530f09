//! Communities by label propagation (Raghavan, Albert and Kumara 2007), as LDBC Graphalytics defines it.
//!
//! Every vertex starts with its own number as label. In each iteration all vertices at once take the most frequent
//! label among their neighbours, or the smallest of equally frequent labels. A neighbour counts twice if edges lead in
//! both directions. Vertex numbers serve as labels because they have the same order as the user's ids.
//!
//! Unlike a sum, a most frequent label cannot be combined from partial results. If labels fit in memory, each vertex
//! looks up its neighbours' labels. Edges are then streamed without a sort, and only rows of more than 65,536 edges go
//! through sort-reduce. If labels do not fit, a message with the label of the source is sent along each edge.
//! Sort-reduce counts these messages, with destination and label as the key. Sorted messages to one vertex are
//! adjacent, and equal labels to one vertex are combined before they are written to flash.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use arrow_array::builder::UInt64Builder;
use arrow_schema::{DataType, Field, Schema};
use inshore_sortreduce::{Config, Operation, Sink, SortReduce, Sorted, Strategy, smallest_memory_bytes};
use inshore_store::Job;
use serde::{Deserialize, Serialize};

use crate::{
    Answer, Graph, Result, Summary, Tuning,
    answer::VertexRows,
    checkpoint::{CheckpointPosition, Checkpoints, seconds},
    csr::{self, Csr, RowReader, edge_key, parallel_parts},
    engine::{Engine, Frontier, Sender, StateStream, VertexArray, memory_bytes},
    graph::check_budget,
    ids::Translation,
    in_memory::InMemoryGraph,
};

/// Sets the options of the communities job.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct CommunitiesOptions {
    /// The largest number of iterations; 10 by default. The job ends earlier if no label changes.
    pub iterations: u32,
    /// Resumes an interrupted job with the same options on the same graph, and saves checkpoints at about this
    /// interval. [`Rows::finish`](crate::Rows::finish) removes the checkpoints. With `None`, the job does not resume,
    /// and saves no checkpoints.
    #[serde(with = "seconds")]
    pub resume: Option<Duration>,
    /// Overrides the choices of the engine, for tests and comparisons. With any strategy but `dense`, labels are sent
    /// along edges through sort-reduce.
    pub tuning: Tuning,
}

impl Default for CommunitiesOptions {
    fn default() -> Self {
        CommunitiesOptions { iterations: 10, resume: None, tuning: Tuning::default() }
    }
}

/// The largest number of neighbours' labels that a thread sorts in memory: 256 KiB of labels.
const GATHERED_MAX: u32 = 64 << 10;
/// The usual limit on the memory in which the labels of rows with more than [`GATHERED_MAX`] edges are sorted. The
/// limit is higher if sort-reduce needs more.
const LONG_ROWS_BYTES_MAX: u64 = 64 << 20;

/// Counts how often a label arrives at a vertex. The key of the count consists of the vertex and the label.
#[derive(Clone)]
struct CountLabels;

impl Operation for CountLabels {
    type Key = u64;
    type Value = u32;
    fn combine(&self, a: u32, b: u32) -> u32 {
        a.saturating_add(b)
    }
}

/// Sends the label of every vertex.
struct SendLabels;

impl Sender for SendLabels {
    type State = u32;
    type Sent = u32;
    type Sink = Sink<CountLabels>;

    fn send(&self, _vertex: u32, label: &u32, _degree: u32) -> Option<u32> {
        Some(*label)
    }

    fn push(
        &self,
        sink: &mut Sink<CountLabels>,
        window: &[u32],
        row: Range<usize>,
        _: &[f64],
        label: u32,
    ) -> Result<()> {
        for &target in &window[row] {
            sink.push(edge_key(target, label), 1)?;
        }
        Ok(())
    }
}

/// Finds the community of all vertices, in columns `vertex`, `community` (the user's id that serves as label).
///
/// Cost: each iteration reads all edges, in both directions if the graph is directed. Labels take 8 bytes of memory per
/// vertex. With less memory, each iteration sorts a record of 12 bytes for each edge that it reads. A directed graph
/// that was imported without in-edges is transposed first by a sort of all edges, with a notice in the summary.
///
/// # Errors
/// Returns [`inshore_store::Error::BudgetTooSmall`] if the memory budget is too small. The function also fails if a
/// read or write fails, stored data is damaged, or the job was cancelled.
pub fn communities(graph: &Graph, job: &Job, options: &CommunitiesOptions) -> Result<Answer> {
    check_budget(job, "communities")?;
    let mut rows = vec![graph.out().unweighted()];
    if graph.info().directed {
        rows.push(graph.in_edges(job)?.unweighted());
    }
    let rows: Vec<&Csr> = rows.iter().collect();
    let mut checkpoints =
        Checkpoints::new(graph, job, options.resume, "graph communities", options.iterations)?;
    let kept_bytes = checkpoints.bytes::<u32>(graph.vertices());
    let lookup = Lookup::fit(job, graph.vertices(), &rows, kept_bytes);
    let (mut summary, mut labels) = match lookup.filter(|_| options.tuning.allows_dense()) {
        Some(lookup) => lookup.run(options.iterations, &mut checkpoints)?,
        None if options.tuning.strategy == Some(Strategy::Dense) => {
            let (what, given) = ("labels in memory".to_string(), job.budget().memory_bytes());
            let smallest = given + 4 * memory_bytes::<u32>(graph.vertices()) + LONG_ROWS_BYTES_MAX;
            return Err(inshore_store::Error::BudgetTooSmall { what, given, smallest }.into());
        }
        None => exchange(job, graph.vertices(), &rows, options, &mut checkpoints)?,
    };
    summary.notice = graph.reverse_notice();
    let mut translation = Translation::new(graph, job, |each| labels.for_each(|v, label| each(v, *label)))?;
    let schema = Arc::new(Schema::new(vec![
        Field::new("vertex", DataType::UInt64, false),
        Field::new("community", DataType::UInt64, false),
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

/// Returns the most frequent of `labels`, or the smallest of equally frequent ones. There must be at least one label.
fn most_frequent(labels: &mut [u32]) -> u32 {
    labels.sort_unstable();
    let runs = labels.chunk_by(|a, b| a == b);
    // Of several labels that are equally frequent, the first one wins, since it is the smallest.
    let longest = runs.reduce(|best, run| if run.len() > best.len() { run } else { best });
    longest.expect("at least one label")[0]
}

/// Calls `each` with every vertex to which a label was sent, and with the most frequent label that was sent to it. The
/// vertices are in ascending order.
fn for_most_frequent(
    mut arrived: Sorted<CountLabels>,
    mut each: impl FnMut(u32, u32) -> Result<()>,
) -> Result<()> {
    let mut best: Option<(u32, u32, u32)> = None;
    while let Some(block) = arrived.next_block()? {
        for (&key, &count) in block.keys.iter().zip(block.values) {
            let (vertex, label) = ((key >> 32) as u32, key as u32);
            match &mut best {
                Some((open, best_label, best_count)) if *open == vertex => {
                    if count > *best_count {
                        (*best_label, *best_count) = (label, count);
                    }
                }
                _ => {
                    if let Some((vertex, label, _)) = best.replace((vertex, label, count)) {
                        each(vertex, label)?;
                    }
                }
            }
        }
    }
    best.map_or(Ok(()), |(vertex, label, _)| each(vertex, label))
}

/// Runs all iterations by sending labels along edges through sort-reduce.
fn exchange(
    job: &Job,
    vertices: u64,
    rows: &[&Csr],
    options: &CommunitiesOptions,
    checkpoints: &mut Checkpoints,
) -> Result<(Summary, StateStream<u32>)> {
    // The partition strategy divides the range of keys, and a key of a vertex and a label has no known range.
    let strategy = options.tuning.strategy.filter(|&strategy| strategy != Strategy::Partition);
    let tuning = Tuning { strategy, ..options.tuning };
    let kept_bytes = checkpoints.bytes::<u32>(vertices);
    let mut engine =
        Engine::for_exchange::<CountLabels>(job, vertices, &tuning, kept_bytes, |vertex| vertex)?;
    let (done, mut changed) = match engine.resume_from(checkpoints)? {
        Some((_, numbers)) => (numbers[0] as u32, numbers[1]),
        None => (0, 1),
    };
    for iteration in done + 1..=options.iterations {
        if changed == 0 {
            break;
        }
        changed = 0;
        let (arrived, _) = engine.exchange(&SendLabels, CountLabels, rows, &Frontier::All)?;
        let mut labels = engine.cursor();
        for_most_frequent(arrived, |vertex, label| {
            if *labels.get(vertex)? != label {
                *labels.get_mut(vertex)? = label;
                changed += 1;
            }
            Ok(())
        })?;
        engine.save(checkpoints, &Frontier::All, [iteration.into(), changed])?;
    }
    Ok((engine.summary(), engine.into_stream()?))
}

/// Runs all iterations with labels in memory: each vertex looks up the labels of its neighbours.
struct Lookup<'a> {
    job: &'a Job,
    vertices: u64,
    rows: &'a [&'a Csr],
    threads: usize,
    long_rows_bytes: u64,
}

impl<'a> Lookup<'a> {
    /// Reserves memory; returns `None` if the labels of two iterations and the buffers of all threads do not fit.
    fn fit(job: &'a Job, vertices: u64, rows: &'a [&'a Csr], kept_bytes: u64) -> Option<Self> {
        let labels = 2 * memory_bytes::<u32>(vertices);
        let free = job.budget().free_bytes().checked_sub(labels + kept_bytes)?;
        let each = rows.len() as u64 * csr::SCAN_BYTES + GATHERED_MAX as u64 * 4;
        let threads = job.budget().threads().min((free / 2 / each) as usize);
        let record_bytes = size_of::<u64>() + size_of::<u32>();
        let smallest = smallest_memory_bytes(threads.max(1), record_bytes);
        let long_rows_bytes = (free - threads as u64 * each).min(LONG_ROWS_BYTES_MAX.max(smallest));
        let is_enough = threads > 0 && long_rows_bytes >= smallest;
        is_enough.then_some(Lookup { job, vertices, rows, threads, long_rows_bytes })
    }

    fn run(&self, iterations: u32, checkpoints: &mut Checkpoints) -> Result<(Summary, StateStream<u32>)> {
        let array = |initial: fn(u32) -> u32| VertexArray::new(self.job, self.vertices, true, initial);
        let plan = || "labels in memory, vertices read their neighbours' labels, edges on flash";
        self.job.progress().tell(|| plan().to_string());
        let (mut labels, mut next) = (array(|vertex| vertex)?, array(|_| 0)?);
        let entries: u64 = self.rows.iter().map(|rows| rows.entries).sum();
        let point = checkpoints.resume_from(self.job, self.vertices, &mut labels, 0)?;
        let supersteps_kept = point.as_ref().map(|point| point.numbers[0] as u32);
        let (mut supersteps, mut changed) =
            (supersteps_kept.unwrap_or(0), point.map_or(1, |point| point.numbers[1]));
        while supersteps < iterations && changed > 0 {
            supersteps += 1;
            self.job.start_phase(format!("superstep {supersteps}"), "edges", entries);
            changed = {
                let made = "made in memory";
                self.step(labels.in_memory().expect(made), next.in_memory().expect(made))?
            };
            std::mem::swap(&mut labels, &mut next);
            checkpoints.save(self.job, self.vertices, &mut labels, || CheckpointPosition {
                active: Frontier::All,
                supersteps: supersteps.into(),
                edges_traversed: entries * u64::from(supersteps),
                numbers: [supersteps.into(), changed],
            })?;
        }
        drop(next);
        let edges_traversed = entries * supersteps as u64;
        let summary = Summary {
            supersteps,
            supersteps_kept,
            edges_traversed,
            state: "memory",
            strategy: "look-up".to_string(),
            ..Summary::default()
        };
        Ok((summary, StateStream::new(self.vertices, labels)?))
    }

    /// Computes the labels of the next iteration; returns how many changed.
    fn step(&self, labels: &[u32], next: &mut [u32]) -> Result<u64> {
        let config = Config {
            memory_bytes: self.long_rows_bytes,
            sinks: self.threads,
            name: "labels",
            ..Config::default()
        };
        let sorter = SortReduce::new(self.job, CountLabels, &config)?;
        let mut workers = Vec::with_capacity(self.threads);
        for _ in 0..self.threads {
            workers.push((sorter.sink()?, Vec::with_capacity(GATHERED_MAX as usize)));
        }
        let changed = AtomicU64::new(0);
        let workers = parallel_parts(next, workers, |(sink, gathered), range, next| {
            let mut readers = Vec::with_capacity(self.rows.len());
            for rows in self.rows {
                readers.push(RowReader::new(self.job, rows, range.clone())?);
            }
            let (mut edges, mut others) = (0, 0);
            for (vertex, next) in (range.start as u32..).zip(next) {
                let mut degree = 0u64;
                for reader in &mut readers {
                    degree += reader.start(vertex)? as u64;
                }
                edges += degree;
                *next = labels[vertex as usize];
                gathered.clear();
                for reader in &mut readers {
                    while let Some(part) = reader.part()? {
                        let theirs = part.row.iter().map(|&neighbour| labels[neighbour as usize]);
                        if degree <= GATHERED_MAX as u64 {
                            gathered.extend(theirs);
                        } else {
                            theirs.into_iter().try_for_each(|label| sink.push(edge_key(vertex, label), 1))?;
                        }
                    }
                }
                if !gathered.is_empty() {
                    *next = most_frequent(gathered);
                    others += u64::from(*next != labels[vertex as usize]);
                }
            }
            changed.fetch_add(others, Ordering::Relaxed);
            self.job.progress().add(edges);
            Ok(())
        })?;
        for (sink, _) in workers {
            sink.finish()?;
        }
        let mut changed = changed.into_inner();
        for_most_frequent(sorter.finish()?, |vertex, label| {
            next[vertex as usize] = label;
            changed += u64::from(label != labels[vertex as usize]);
            Ok(())
        })?;
        Ok(changed)
    }
}

/// Compares labels (vertex numbers) with the labels that the same iterations over plain vectors give.
///
/// # Errors
/// Returns a description of the difference, in the ids of the user.
pub fn verify(
    graph: &InMemoryGraph,
    directed: bool,
    options: &CommunitiesOptions,
    answer: &[u32],
) -> std::result::Result<String, String> {
    let mut neighbours = vec![Vec::new(); graph.vertices()];
    for vertex in 0..graph.vertices() {
        for &to in graph.out(vertex) {
            neighbours[vertex].push(to);
            if directed {
                neighbours[to as usize].push(vertex as u32);
            }
        }
    }
    let mut labels: Vec<u32> = (0..graph.vertices() as u32).collect();
    for _ in 0..options.iterations {
        let label = |vertex: usize| {
            let mut counts = std::collections::BTreeMap::new();
            for &neighbour in &neighbours[vertex] {
                *counts.entry(labels[neighbour as usize]).or_insert(0u64) += 1;
            }
            let most = counts.values().copied().max();
            counts.into_iter().find(|(_, count)| Some(*count) == most).map_or(labels[vertex], |found| found.0)
        };
        labels = (0..graph.vertices()).map(label).collect();
    }
    for (vertex, (&found, &expected)) in answer.iter().zip(&labels).enumerate() {
        if found != expected {
            let [vertex, found, expected] =
                [vertex, found as usize, expected as usize].map(|number| graph.id(number));
            return Err(format!("vertex {vertex}: community {found}, expected {expected}"));
        }
    }
    labels.sort_unstable();
    labels.dedup();
    Ok(format!("{} communities, as label propagation in memory finds them", labels.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_of_equally_frequent_labels_is_taken() {
        assert_eq!(most_frequent(&mut [7]), 7);
        assert_eq!(most_frequent(&mut [7, 3, 7, 3, 9]), 3);
        assert_eq!(most_frequent(&mut [9, 7, 9, 3]), 9);
    }
}
