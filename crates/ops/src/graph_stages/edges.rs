//! The map stage: parses edges, and sends them to the partitions of their vertices.

use arrow_array::RecordBatch;
use inshore_graph::edges_of_lines;
use inshore_kernel::{Failure, FinalFailure, Sources, TaskSource};
use inshore_stages::OutputWriter;
use inshore_store::Job;
use inshore_tables::{FilePart, Input, LineBlocks};

use super::{
    Arguments,
    exchange::{BATCH_ROWS, pairs},
    rows::partition_of,
};
use crate::files::piece_of;

/// The largest block of lines in bytes, and so the longest line.
const BLOCK_BYTES: u64 = 1 << 20;
/// The largest buffer of edges and vertices in bytes. Equal edges and vertices in a buffer are sent once.
const BUFFER_BYTES: u64 = 64 << 20;
/// The bytes of an edge and of a vertex in the buffer.
const RECORD_BYTES: u64 = (size_of::<(u32, u64, u64)>() + size_of::<(u32, u64)>()) as u64;

/// Reads pieces of a list of edges. Writes each edge to the range of its source, and its target as a vertex to the range of
/// the target.
pub(super) fn map(
    job: &Job,
    arguments: &Arguments,
    input: Sources,
    output: &mut OutputWriter,
) -> Result<(), Failure> {
    let free = job.budget().free_bytes();
    let block_bytes = BLOCK_BYTES.min(free / 16);
    let _blocks = job.budget().reserve(2 * block_bytes, "blocks of lines")?;
    let mut buffer = Buffer::new(job, arguments.partitions, BUFFER_BYTES.min(free / 2))?;
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
            let each = |source, target| buffer.push(source, target, output);
            edges_of_lines(name, lines + block.first_line, &block.bytes, each).map_err(of_line)?;
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
struct Buffer {
    partitions: u32,
    edges_max: usize,
    edges: Vec<(u32, u64, u64)>,
    vertices: Vec<(u32, u64)>,
    _memory: inshore_store::Reservation,
}

impl Buffer {
    fn new(job: &Job, partitions: u32, bytes: u64) -> Result<Buffer, Failure> {
        let memory = job.budget().reserve(bytes, "edges and vertices")?;
        let edges_max = usize::try_from(bytes / RECORD_BYTES)?;
        let (edges, vertices) = (Vec::with_capacity(edges_max), Vec::with_capacity(edges_max));
        Ok(Buffer { partitions, edges_max, edges, vertices, _memory: memory })
    }

    fn push(&mut self, source: u64, target: u64, output: &mut OutputWriter) -> Result<(), Failure> {
        if self.edges.len() >= self.edges_max {
            self.flush(output)?;
        }
        self.edges.push((partition_of(source, self.partitions), source, target));
        if target != source {
            self.vertices.push((partition_of(target, self.partitions), target));
        }
        Ok(())
    }

    /// Writes each edge and each vertex once, and empties the buffer.
    fn flush(&mut self, output: &mut OutputWriter) -> Result<(), Failure> {
        self.edges.sort_unstable();
        self.edges.dedup();
        self.vertices.sort_unstable();
        self.vertices.dedup();
        let edges = |edges: &[(u32, u64, u64)]| {
            pairs(edges.iter().map(|edge| edge.1).collect(), Some(edges.iter().map(|edge| edge.2).collect()))
        };
        write(&self.edges, |edge| edge.0, edges, output)?;
        let vertices =
            |vertices: &[(u32, u64)]| pairs(vertices.iter().map(|vertex| vertex.1).collect(), None);
        write(&self.vertices, |vertex| vertex.0, vertices, output)?;
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
