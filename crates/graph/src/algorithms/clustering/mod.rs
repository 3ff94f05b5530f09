//! Local clustering coefficients, as LDBC Graphalytics defines them: the share of the pairs of a vertex's neighbours
//! that an edge joins. The neighbours of a vertex are the other ends of its out-edges and in-edges. Two edges in
//! opposite directions between two neighbours count as two.
//!
//! Every triangle is found once, within the budget, by the method of Hu, Tao and Chung ("Massive graph triangulation",
//! 2013). Edges are oriented towards the end of higher degree, so that no row is longer than the square root of twice
//! the number of edges. As many rows as fit are held in memory, and all rows are streamed. For each edge u → v of a
//! streamed row, the row of u is compared with the row of v if the row of v is in memory. A vertex w in both rows
//! completes a triangle of u, v and w. With M bytes of memory and E bytes of edges the method makes E / M passes over
//! all edges. Sort-reduce sums the contributions of all triangles to each vertex.
//!
//! The code that finds triangles is in `triangles.rs`. All numbers are integers until the last division, so the answer
//! is the same bit for bit in every run.

mod triangles;

use std::sync::{Arc, atomic::AtomicU64};

use arrow_array::Float64Array;
use arrow_schema::{DataType, Field, Schema};
use inshore_sortreduce::{Config, Operation, SortReduce, Sorted};
use inshore_store::{FileWriter, Job};
use serde::{Deserialize, Serialize};

use self::triangles::Triangles;
use crate::{
    Answer, Error, Graph, Result, Summary, Tuning,
    answer::VertexRows,
    csr::{
        self, Csr, CsrWriter, IdentityNumbering, RowReader, StagedRows, Unweighted, edge_key, parallel_parts,
    },
    engine::{StateCursor, StateStream, VertexArray, flash_memory_bytes, memory_bytes},
    graph::check_budget,
    ids::SingleValue,
    in_memory::InMemoryGraph,
};

/// Sets the options of the clustering job.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ClusteringOptions {
    /// Overrides the choices of the engine, for tests and comparisons. With any strategy but `dense`, degrees are on
    /// flash.
    pub tuning: Tuning,
}

/// The most vertices that the algorithm supports: an entry of an oriented row is 32 bits, one of which is a flag for
/// edges in both directions.
const VERTICES_MAX: u64 = 1 << 31;

/// The sum, for each vertex, of the contributions of the triangles that contain the vertex.
#[derive(Clone)]
struct SumOfEdges;

impl Operation for SumOfEdges {
    type Key = u32;
    type Value = u64;
    fn combine(&self, a: u64, b: u64) -> u64 {
        a + b
    }
}

/// Computes the local clustering coefficient of all vertices in columns `vertex`, `coefficient`; a vertex with fewer
/// than two neighbours has 0. The summary has the number of triangles.
///
/// Cost: all edges are read twice, and each edge is written once in its orientation. The oriented edges are loaded into
/// memory part by part (4 bytes per edge), and all of them are read once for each part. Two rows are compared for each
/// edge. If degrees do not fit in a quarter of the memory, all edges are sorted too (16 bytes each, in both
/// directions). A directed graph that was imported without in-edges is transposed first by a sort of all edges, with a
/// notice in the summary.
///
/// # Errors
/// - Returns [`Error::TooManyVertices`] if the graph has more than 2^31 vertices.
/// - Returns [`inshore_store::Error::BudgetTooSmall`] if the memory budget is too small.
///
/// The function also fails if an I/O operation fails, stored data is damaged, or the job was cancelled.
pub fn clustering(graph: &Graph, job: &Job, options: &ClusteringOptions) -> Result<Answer> {
    check_budget(job, "clustering")?;
    let vertices = graph.vertices();
    if vertices > VERTICES_MAX {
        return Err(Error::TooManyVertices { found: vertices, limit: VERTICES_MAX });
    }
    let incoming = if graph.info().directed { Some(graph.in_edges(job)?.unweighted()) } else { None };
    let neighbours = Neighbours { job, out: graph.out().unweighted(), incoming };
    let in_memory =
        options.tuning.allows_dense() && memory_bytes::<u32>(vertices) <= job.budget().free_bytes() / 4;
    let mut degrees = neighbours.degrees(in_memory)?;
    let (oriented, row_max) = neighbours.oriented(&mut degrees)?;
    let triangles =
        Triangles { job, oriented: &oriented, row_max, tuning: &options.tuning, seen: AtomicU64::new(0) };
    let (sums, passes, strategy) = triangles.find()?;
    let found = triangles.seen.into_inner();
    let coefficients = divide(job, vertices, sums, &mut degrees)?;
    drop(degrees);
    let summary = Summary {
        supersteps: passes,
        edges_traversed: oriented.entries * passes as u64,
        state: if in_memory { "memory" } else { "flash" },
        strategy: strategy.to_string(),
        triangles: Some(found),
        notice: graph.reverse_notice(),
        ..Summary::default()
    };
    let schema = Arc::new(Schema::new(vec![
        Field::new("vertex", DataType::UInt64, false),
        Field::new("coefficient", DataType::Float64, false),
    ]));
    let column = |_: u32, values: &[f64]| {
        Ok(vec![Arc::new(Float64Array::from_iter_values(values.iter().copied())) as _])
    };
    let states = StateStream::new(vertices, coefficients)?;
    Ok(Answer { summary, rows: VertexRows::stream(graph, job, schema, states, column)? })
}

/// A view of the graph as pairs of neighbours, without directions and self-loops.
struct Neighbours<'a> {
    job: &'a Job,
    out: Csr,
    /// In-edges of a directed graph.
    incoming: Option<Csr>,
}

impl Neighbours<'_> {
    /// Calls `each(vertex, neighbour, both)` for all neighbours of a range of vertices, in order. `both` is true if
    /// edges lead in both directions between the two vertices.
    fn scan(
        &self,
        vertices: std::ops::Range<u64>,
        mut each: impl FnMut(u32, u32, bool) -> Result<()>,
    ) -> Result<()> {
        let Some(incoming) = &self.incoming else {
            return csr::scan(self.job, &self.out, vertices, |vertex, row, _| {
                row.iter().filter(|&&to| to != vertex).try_for_each(|&to| each(vertex, to, true))
            });
        };
        let mut out = RowReader::new(self.job, &self.out, vertices.clone())?;
        let mut incoming = RowReader::new(self.job, incoming, vertices.clone())?;
        for vertex in vertices {
            let vertex = vertex as u32;
            out.start(vertex)?;
            incoming.start(vertex)?;
            let mut each = |to: u32, both: bool| if to == vertex { Ok(()) } else { each(vertex, to, both) };
            let (mut a, mut b) = (&[][..], &[][..]);
            loop {
                if a.is_empty() {
                    a = out.part()?.map_or(&[], |part| part.row);
                }
                if b.is_empty() {
                    b = incoming.part()?.map_or(&[], |part| part.row);
                }
                match (a, b) {
                    ([], []) => break,
                    (rest, []) | ([], rest) => {
                        rest.iter().try_for_each(|&to| each(to, false))?;
                        (a, b) = (&[], &[]);
                    }
                    _ => {
                        let (mut i, mut j) = (0, 0);
                        while i < a.len() && j < b.len() {
                            let (x, y) = (a[i], b[j]);
                            i += usize::from(x <= y);
                            j += usize::from(y <= x);
                            each(x.min(y), x == y)?;
                        }
                        (a, b) = (&a[i..], &b[j..]);
                    }
                }
            }
        }
        Ok(())
    }

    /// Counts the neighbours of each vertex.
    fn degrees(&self, in_memory: bool) -> Result<VertexArray<u32>> {
        let vertices = self.out.vertices;
        self.job.start_phase("counting neighbours", "edges", self.out.entries);
        let mut array = VertexArray::new(self.job, vertices, in_memory, |_| 0)?;
        match array.cursor() {
            StateCursor::Memory(degrees) => {
                let scans = if self.incoming.is_some() { 2 } else { 1 };
                let threads = (csr::scan_threads(self.job) / scans).max(1);
                parallel_parts(degrees, vec![(); threads], |(), range, part| {
                    let first = range.start as u32;
                    let mut edges = 0;
                    self.scan(range, |vertex, _, _| {
                        part[(vertex - first) as usize] += 1;
                        edges += 1;
                        Ok(())
                    })?;
                    self.job.progress().add(edges);
                    Ok(())
                })?;
            }
            mut cursor => {
                self.scan(0..vertices, |vertex, _, _| {
                    *cursor.get_mut(vertex)? += 1;
                    Ok(())
                })?;
            }
        }
        Ok(array)
    }

    /// Orients edges: each edge is stored only in the row of its end with the lower degree. If both degrees are equal,
    /// the edge is stored in the row of the end with the smaller number. Returns the rows, which consist of [`entry`]s,
    /// and the length of the longest row.
    fn oriented(&self, degrees: &mut VertexArray<u32>) -> Result<(Csr, usize)> {
        let job = self.job;
        let vertices = self.out.vertices;
        job.start_phase("orienting edges to higher degrees", "edges", self.out.entries);
        let create = |name: &str, block_bytes, buffer_bytes| {
            Ok(FileWriter::create(job, &format!("oriented.{name}"), block_bytes, buffer_bytes)?)
        };
        let rows = CsrWriter::new(job, create, vertices, false, false)?;
        let mut writer = OrientedWriter {
            name: self.out.edges.name().to_string(),
            last: None,
            keys: Vec::with_capacity(csr::STEP),
            staged: rows.stage::<Unweighted>(),
            rows,
        };
        match degrees.cursor() {
            StateCursor::Memory(degrees) => {
                let rank = |vertex: u32| (degrees[vertex as usize], vertex);
                self.scan(0..vertices, |vertex, to, both| {
                    if rank(vertex) < rank(to) { writer.push(vertex, to, both) } else { Ok(()) }
                })?;
            }
            cursor => self.orient_by_sort(cursor, &mut writer)?,
        }
        writer.flush()?;
        let files = writer.rows.finish()?;
        let oriented = Csr {
            vertices,
            entries: files.stats.entries,
            entry_range: 2 * vertices,
            index: files.index.finish()?,
            edges: files.edges.finish()?,
            blocks: files.blocks.finish()?,
            weights: None,
        };
        Ok((oriented, files.stats.degree_max as usize))
    }

    /// Orients edges if degrees are not in memory: each vertex sends its degree to its neighbours through sort-reduce.
    fn orient_by_sort(&self, mut degrees: StateCursor<'_, u32>, writer: &mut OrientedWriter) -> Result<()> {
        let job = self.job;
        let scans = csr::SCAN_BYTES * if self.incoming.is_some() { 2 } else { 1 };
        let writing = 2 * csr::checksum_bytes(&self.out);
        let memory_bytes = job.budget().free_bytes().saturating_sub(scans + writing);
        let config = Config { memory_bytes, sinks: 1, name: "degrees", ..Config::default() };
        let sorter = SortReduce::new(job, SingleValue, &config)?;
        let mut sink = sorter.sink()?;
        self.scan(0..self.out.vertices, |vertex, to, both| {
            let value = (*degrees.get(vertex)? as u64) << 1 | u64::from(both);
            Ok(sink.push(edge_key(to, vertex), value)?)
        })?;
        sink.finish()?;
        let mut sorted = sorter.finish()?;
        while let Some(block) = sorted.next_block()? {
            for (&key, &value) in block.keys.iter().zip(block.values) {
                let (vertex, from) = ((key >> 32) as u32, key as u32);
                if (*degrees.get(vertex)?, vertex) < ((value >> 1) as u32, from) {
                    writer.push(vertex, from, value & 1 == 1)?;
                }
            }
        }
        Ok(())
    }
}

struct OrientedWriter {
    /// The name of the graph's file of out-edges, for error messages.
    name: String,
    last: Option<u64>,
    keys: Vec<u64>,
    staged: StagedRows,
    rows: CsrWriter,
}

impl OrientedWriter {
    fn push(&mut self, vertex: u32, to: u32, both: bool) -> Result<()> {
        let key = edge_key(vertex, entry(to, both));
        if self.last.is_some_and(|last| last >= key) {
            return Err(bad_row(&self.name, vertex));
        }
        self.last = Some(key);
        self.keys.push(key);
        if self.keys.len() == csr::STEP { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.staged.push::<Unweighted>(&self.keys, &[(); csr::STEP], &IdentityNumbering);
        self.keys.clear();
        self.rows.append(&mut self.staged)
    }
}

fn bad_row(name: &str, vertex: u32) -> Error {
    Error::BadGraph {
        name: name.to_string(),
        what: "a row",
        found: format!("neighbours of vertex number {vertex} out of order or in one direction only"),
        expected: "ascending ones, in both directions if the graph has none".to_string(),
    }
}

/// Encodes a vertex and a flag for edges in both directions. The order of these codes is the order of vertices.
fn entry(vertex: u32, both: bool) -> u32 {
    vertex << 1 | u32::from(both)
}

fn vertex_of(entry: u32) -> u32 {
    entry >> 1
}

/// Returns the number of directed edges that an entry stands for: 1 or 2.
fn edges_of(entry: u32) -> u64 {
    1 + u64::from(entry & 1)
}

/// Computes coefficients: divides the number of edges between neighbours by the number of ordered pairs of neighbours.
fn divide(
    job: &Job,
    vertices: u64,
    mut sums: Sorted<SumOfEdges>,
    degrees: &mut VertexArray<u32>,
) -> Result<VertexArray<f64>> {
    job.start_phase("dividing", "vertices", vertices);
    let free = job.budget().free_bytes();
    let in_memory = memory_bytes::<f64>(vertices) + flash_memory_bytes::<f64>(vertices) <= free;
    let mut coefficients = VertexArray::new(job, vertices, in_memory, |_| 0.0)?;
    let (mut values, mut degrees) = (coefficients.cursor(), degrees.cursor());
    while let Some(block) = sums.next_block()? {
        job.check_cancelled()?;
        for (&vertex, &sum) in block.keys.iter().zip(block.values) {
            let degree = *degrees.get(vertex)? as f64;
            if degree < 2.0 {
                return Err(bad_row("clustering", vertex));
            }
            *values.get_mut(vertex)? = sum as f64 / (degree * (degree - 1.0));
        }
    }
    Ok(coefficients)
}

/// Compares coefficients with those computed from plain sets of neighbours.
///
/// # Errors
/// Returns a description of the difference, in the ids of the user.
pub fn verify(graph: &InMemoryGraph, answer: &[f64]) -> std::result::Result<String, String> {
    let mut neighbours = vec![Vec::new(); graph.vertices()];
    for vertex in 0..graph.vertices() {
        for &to in graph.out(vertex).iter().filter(|&&to| to as usize != vertex) {
            neighbours[vertex].push(to);
            neighbours[to as usize].push(vertex as u32);
        }
    }
    for row in &mut neighbours {
        row.sort_unstable();
        row.dedup();
    }
    let mut sum = 0.0;
    for (vertex, (&found, row)) in answer.iter().zip(&neighbours).enumerate() {
        let mut edges = 0u64;
        for &neighbour in row {
            let mut last = None;
            for &to in graph.out(neighbour as usize) {
                let counts = to != neighbour && last != Some(to) && row.binary_search(&to).is_ok();
                edges += u64::from(counts);
                last = Some(to);
            }
        }
        let degree = row.len() as f64;
        let expected = if row.len() < 2 { 0.0 } else { edges as f64 / (degree * (degree - 1.0)) };
        if found != expected {
            return Err(format!("vertex {}: coefficient {found}, expected {expected}", graph.id(vertex)));
        }
        sum += expected;
    }
    let mean = sum / graph.vertices() as f64;
    Ok(format!("{} coefficients, {mean:.4} on average, as sets in memory give them", answer.len()))
}
