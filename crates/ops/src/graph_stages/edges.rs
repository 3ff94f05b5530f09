//! The map stage: parses edges, and sends them to the partitions of their vertices.

use arrow_array::RecordBatch;
use inshore_graph::{edges_of_lines, weighted_edges_of_lines};
use inshore_kernel::{Failure, FinalFailure, Sources, TaskSource};
use inshore_stages::OutputWriter;
use inshore_store::Job;
use inshore_tables::{FilePart, Input, LineBlocks};

use super::{
    Arguments,
    exchange::{BATCH_ROWS, edges, vertices},
    rows::partition_of,
    weights::Weight,
};
use crate::files::piece_of;

/// The largest block of lines in bytes, and so the longest line.
const BLOCK_BYTES: u64 = 1 << 20;
/// The largest buffer of edges and vertices in bytes. Equal edges and vertices in a buffer are sent once.
const BUFFER_BYTES: u64 = 64 << 20;

/// Reads pieces of a list of edges. Writes each edge to the range of its source, and its target as a vertex to the range of
/// the target. The edges of a symmetric program are written in both directions.
pub(super) fn map<W: Weight>(
    job: &Job,
    arguments: &Arguments,
    input: Sources,
    output: &mut OutputWriter,
) -> Result<(), Failure> {
    let free = job.budget().free_bytes();
    let block_bytes = BLOCK_BYTES.min(free / 16);
    let _blocks = job.budget().reserve(2 * block_bytes, "blocks of lines")?;
    let program = arguments.program;
    let mut buffer = Buffer::<W>::new(job, arguments.partitions, BUFFER_BYTES.min(free / 2))?;
    buffer.is_symmetric = program.is_symmetric();
    for source in input {
        let TaskSource { source, whole, .. } = source?;
        let name = usize::try_from(whole).ok().and_then(|whole| arguments.names.get(whole));
        let name = name.ok_or("the request does not name a file of edges")?;
        let lines = source.base().lines;
        let part = FilePart { at: 0, ..piece_of(job, &source)? };
        let input = Input::of_parts(name, "", source.part_bytes(), vec![part]);
        let mut blocks = LineBlocks::new(input.open(job.budget())?, usize::try_from(block_bytes)?);
        let mut recycled = Vec::new();
        while let Some(block) = blocks.next_block(recycled)? {
            job.check_cancelled()?;
            let first_line = lines + block.first_line;
            let mut push = |source, target, weight| buffer.push(source, target, W::of(weight), output);
            let pushed = match program.is_weighted() {
                true => weighted_edges_of_lines(name, first_line, &block.bytes, push),
                false => edges_of_lines(name, first_line, &block.bytes, |one, other| push(one, other, 1.0)),
            };
            pushed.map_err(of_line)?;
            recycled = block.bytes;
        }
    }
    buffer.flush(output)
}

/// Makes an error of a malformed line final: each attempt would read the same line.
fn of_line(failure: Failure) -> Failure {
    match failure.downcast_ref() {
        Some(error @ inshore_graph::Error::BadInput { .. }) => FinalFailure(error.to_string()).into(),
        _ => failure,
    }
}

/// Edges and vertices with their ranges.
struct Buffer<W> {
    partitions: u32,
    /// True if each edge leads in both directions. Each vertex then is the source of an edge.
    is_symmetric: bool,
    edges_max: usize,
    edges: Vec<(u32, u64, u64, W)>,
    vertices: Vec<(u32, u64)>,
    _memory: inshore_store::Reservation,
}

impl<W: Weight> Buffer<W> {
    fn new(job: &Job, partitions: u32, bytes: u64) -> Result<Buffer<W>, Failure> {
        let memory = job.budget().reserve(bytes, "edges and vertices")?;
        let record_bytes = size_of::<(u32, u64, u64, W)>() + size_of::<(u32, u64)>();
        let edges_max = usize::try_from(bytes)? / record_bytes;
        let (edges, vertices) = (Vec::with_capacity(edges_max), Vec::with_capacity(edges_max));
        Ok(Buffer { partitions, is_symmetric: false, edges_max, edges, vertices, _memory: memory })
    }

    fn push(
        &mut self,
        source: u64,
        target: u64,
        weight: W,
        output: &mut OutputWriter,
    ) -> Result<(), Failure> {
        // An edge in both directions takes two places.
        if self.edges.len() + 2 > self.edges_max {
            self.flush(output)?;
        }
        self.edges.push((partition_of(source, self.partitions), source, target, weight));
        let range = partition_of(target, self.partitions);
        match (target != source, self.is_symmetric) {
            (true, true) => self.edges.push((range, target, source, weight)),
            (true, false) => self.vertices.push((range, target)),
            (false, _) => {}
        }
        Ok(())
    }

    /// Writes each edge and each vertex once, and empties the buffer.
    fn flush(&mut self, output: &mut OutputWriter) -> Result<(), Failure> {
        self.edges.sort_unstable();
        // The first one of equal edges has the smallest weight.
        self.edges.dedup_by_key(|edge| (edge.1, edge.2));
        self.vertices.sort_unstable();
        self.vertices.dedup();
        write(
            &self.edges,
            |edge| edge.0,
            |part| edges(part.iter().map(|edge| (edge.1, edge.2, edge.3))),
            output,
        )?;
        let of_vertices = |part: &[(u32, u64)]| vertices::<W>(part.iter().map(|vertex| vertex.1));
        write(&self.vertices, |vertex| vertex.0, of_vertices, output)?;
        self.edges.clear();
        self.vertices.clear();
        Ok(())
    }
}

/// Writes records to their ranges.
fn write<T>(
    records: &[T],
    range: impl Fn(&T) -> u32,
    batch: impl Fn(&[T]) -> Result<RecordBatch, Failure>,
    output: &mut OutputWriter,
) -> Result<(), Failure> {
    for records in records.chunk_by(|one, next| range(one) == range(next)) {
        for part in records.chunks(BATCH_ROWS) {
            output.batch(range(&part[0]), &batch(part)?)?;
        }
    }
    Ok(())
}
