//! The rows of a partition: its vertices, and their out-edges in the order of targets.
//!
//! ```text
//!   state:  (number of vertices, 0)                  one row
//!           (id, out-degree)                         a row for each vertex, ascending
//!           (id of the target, index of the source)  a row for each edge, by partition of the target, target, source
//! ```
//!
//! If edges have weights, a row has a third column.

use std::sync::Arc;

use arrow_array::{
    ArrayRef, RecordBatch, UInt32Array, UInt64Array,
    cast::AsArray,
    types::{UInt32Type, UInt64Type},
};
use inshore_kernel::Failure;
use inshore_stages::{MergeInputs, OutputWriter, RangeInput, RangeReader, StageTask};
use inshore_store::{Job, Reservation};

use super::{
    exchange::{BATCH_ROWS, RangesWriter, SAMPLES, Totals, columns},
    memory::{Growing, reserve},
    weights::Weight,
};

/// Returns the partition of a vertex. The result depends on the id and the number of partitions only, so that all nodes
/// agree: a finalizer of 64-bit hashes (splitmix64), scaled to the number of partitions.
pub(super) fn partition_of(vertex: u64, partitions: u32) -> u32 {
    let mixed = (vertex ^ (vertex >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    let mixed = mixed ^ (mixed >> 31);
    ((u128::from(mixed) * u128::from(partitions)) >> 64) as u32
}

/// The vertices and edges of a partition.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Rows<W> {
    /// The ids of the vertices, ascending.
    pub ids: Vec<u64>,
    /// The numbers of out-edges.
    pub degrees: Vec<u32>,
    /// The target of each edge, the index of its source, and its weight.
    pub edges: Vec<(u64, u64, W)>,
}

impl<W: Weight> Rows<W> {
    /// Builds rows from edges in any order, and from the ids of further vertices. Equal edges count once, with the smallest
    /// weight, and a loop is an edge, as in an import.
    pub fn of(mut edges: Vec<(u64, u64, W)>, mut vertices: Vec<u64>, partitions: u32) -> Rows<W> {
        sort_edges(&mut edges);
        vertices.sort_unstable();
        vertices.dedup();
        let ids = union(&edges, &vertices);
        drop(vertices);
        let mut degrees = vec![0; ids.len()];
        let mut index = 0;
        for edge in &mut edges {
            while ids[index] < edge.0 {
                index += 1;
            }
            degrees[index] += 1;
            *edge = (edge.1, index as u64, edge.2);
        }
        edges.sort_unstable_by_key(|&(target, source, _)| (partition_of(target, partitions), target, source));
        Rows { ids, degrees, edges }
    }

    fn totals(&self) -> Totals {
        let step = self.ids.len().div_ceil(SAMPLES).max(1);
        Totals {
            vertices: self.ids.len() as u64,
            sample: self.ids.iter().copied().step_by(step).collect(),
            ..Totals::default()
        }
    }
}

/// Sorts edges, and keeps the one with the smallest weight of equal ones.
fn sort_edges<W: Weight>(edges: &mut Vec<(u64, u64, W)>) {
    edges.sort_unstable();
    edges.dedup_by_key(|edge| (edge.0, edge.1));
}

/// Returns the sources of sorted edges and sorted vertices, each id once.
fn union<W>(edges: &[(u64, u64, W)], vertices: &[u64]) -> Vec<u64> {
    let each = |take: &mut dyn FnMut(u64)| {
        let mut sources = edges.chunk_by(|one, next| one.0 == next.0).map(|row| row[0].0).peekable();
        for &vertex in vertices {
            while let Some(source) = sources.next_if(|&source| source < vertex) {
                take(source);
            }
            sources.next_if_eq(&vertex);
            take(vertex);
        }
        sources.for_each(take);
    };
    let mut count = 0;
    each(&mut |_| count += 1);
    let mut ids = Vec::with_capacity(count);
    each(&mut |id| ids.push(id));
    ids
}

/// The stage that builds the rows of a partition and writes them as its state.
pub(super) fn build<W: Weight>(
    task: &StageTask<'_>,
    partitions: u32,
    inputs: MergeInputs,
    output: &mut OutputWriter,
) -> Result<(), Failure> {
    let (job, partition) = (task.job, task.partition);
    let mut edges = Growing::new(job, "the edges of a partition")?;
    let mut vertices = Growing::new(job, "the vertices of a partition")?;
    for range in inputs.ranges.into_iter().flatten() {
        job.check_cancelled()?;
        for batch in range.open(job)? {
            let batch = batch?;
            match columns(&batch)? {
                (sources, Some(targets)) => {
                    edges.room(job, partition, sources.len(), sort_edges)?;
                    let weights = W::read(batch.columns().get(2), sources.len())?;
                    let more = sources.iter().zip(targets).zip(weights);
                    edges.values.extend(more.map(|((&source, &target), weight)| (source, target, weight)));
                }
                (ids, None) => {
                    vertices.room(job, partition, ids.len(), |vertices| {
                        vertices.sort_unstable();
                        vertices.dedup();
                    })?;
                    vertices.values.extend_from_slice(ids);
                }
            }
        }
    }
    let ((edges, _edges), (vertices, _vertices)) = (edges.into_parts(), vertices.into_parts());
    let bytes = (count_sources(&edges) + vertices.len()) as u64 * 12;
    let _ids = reserve(job, partition, bytes, "the ids of a partition")?;
    let rows = Rows::of(edges, vertices, partitions);
    if u32::try_from(rows.ids.len()).is_err() {
        return Err(format!(
            "partition {partition} has {} vertices: expected fewer than 2^32",
            rows.ids.len()
        )
        .into());
    }
    write_state(&rows, partitions, output)?;
    RangesWriter::<u64>::new(output, Some(&rows.totals()), partitions)?.finish()
}

/// Returns an upper bound of the number of different sources: the number of changes of the source between neighbours.
fn count_sources<W>(edges: &[(u64, u64, W)]) -> usize {
    edges.chunk_by(|one, next| one.0 == next.0).count()
}

fn write_state<W: Weight>(rows: &Rows<W>, state: u32, output: &mut OutputWriter) -> Result<(), Failure> {
    let mut write = |ids: Vec<u64>, numbers: Vec<u32>, weights: Option<ArrayRef>| {
        let columns: [(_, ArrayRef); 2] =
            [("id", Arc::new(UInt64Array::from(ids))), ("number", Arc::new(UInt32Array::from(numbers)))];
        let weights = weights.map(|weights| ("weight", weights));
        output.batch(state, &RecordBatch::try_from_iter(columns.into_iter().chain(weights))?)
    };
    // All rows of a state have the same columns.
    let no_weights = |count| W::column(std::iter::repeat_n(W::of(0.0), count));
    write(vec![rows.ids.len() as u64], vec![0], no_weights(1))?;
    for (ids, degrees) in rows.ids.chunks(BATCH_ROWS).zip(rows.degrees.chunks(BATCH_ROWS)) {
        write(ids.to_vec(), degrees.to_vec(), no_weights(ids.len()))?;
    }
    for edges in rows.edges.chunks(BATCH_ROWS) {
        // The number of vertices of a partition fits in 32 bits.
        let sources = edges.iter().map(|edge| edge.1 as u32).collect();
        let weights = W::column(edges.iter().map(|edge| edge.2));
        write(edges.iter().map(|edge| edge.0).collect(), sources, weights)?;
    }
    Ok(())
}

/// The vertices of a partition, and its edges as a stream.
pub(super) struct StoredRows {
    pub ids: Vec<u64>,
    pub degrees: Vec<u32>,
    pub edges: StoredEdges,
    /// The memory of the ids, the degrees, and two values of each vertex.
    _memory: Reservation,
}

/// The edges of a partition as a stream.
pub(super) struct StoredEdges(RangeReader);

/// The memory of a vertex in a superstep, in bytes: its id, its degree, its value and its sum.
const VERTEX_BYTES: u64 = 28;

impl StoredRows {
    /// Reads the vertices of a state. Reserves memory for their values and sums, too.
    pub fn open(job: &Job, partition: u32, state: RangeInput) -> Result<StoredRows, Failure> {
        let mut batches = state.open(job)?;
        let first = batches.next().ok_or("invalid state: no rows")??;
        let (count, _) = numbers(&first)?;
        let count = *count.first().ok_or("invalid state: no number of vertices")?;
        let memory =
            reserve(job, partition, count.saturating_mul(VERTEX_BYTES), "the vertices of a partition")?;
        let count = usize::try_from(count)?;
        let (mut ids, mut degrees) = (Vec::with_capacity(count), Vec::with_capacity(count));
        while ids.len() < count {
            let batch = batches.next().ok_or("invalid state: fewer vertices than expected")??;
            let (some_ids, some_degrees) = numbers(&batch)?;
            ids.extend_from_slice(some_ids);
            degrees.extend_from_slice(some_degrees);
        }
        Ok(StoredRows { ids, degrees, edges: StoredEdges(batches), _memory: memory })
    }

    /// Returns the number of edges.
    pub fn edge_count(&self) -> u64 {
        self.degrees.iter().map(|&degree| u64::from(degree)).sum()
    }
}

impl StoredEdges {
    /// Passes the target, the index of the source and the weight of each edge to `each`, in the order of the state.
    pub fn each<W: Weight>(
        self,
        job: &Job,
        mut each: impl FnMut(u64, usize, W) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for batch in self.0 {
            job.check_cancelled()?;
            let batch = batch?;
            let (targets, sources) = numbers(&batch)?;
            let weights = W::read(batch.columns().get(2), targets.len())?;
            for ((&target, &source), weight) in targets.iter().zip(sources).zip(weights) {
                each(target, source as usize, weight)?;
            }
        }
        Ok(())
    }
}

fn numbers(batch: &RecordBatch) -> Result<(&[u64], &[u32]), Failure> {
    let [ids, numbers, ..] = batch.columns() else {
        return Err("invalid state: expected two columns".into());
    };
    match (ids.as_primitive_opt::<UInt64Type>(), numbers.as_primitive_opt::<UInt32Type>()) {
        (Some(ids), Some(numbers)) => Ok((ids.values(), numbers.values())),
        _ => Err("invalid state: expected numbers".into()),
    }
}
