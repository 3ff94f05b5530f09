//! The rows of a partition: its vertices, and their out-edges in the order of targets.
//!
//! ```text
//!   state:  (number of vertices, 0)                  one row
//!           (id, out-degree)                         a row for each vertex, ascending
//!           (id of the target, index of the source)  a row for each edge, by partition of the target, target, source
//! ```

use std::sync::{Arc, LazyLock};

use arrow_array::{
    RecordBatch, UInt32Array, UInt64Array,
    cast::AsArray,
    types::{UInt32Type, UInt64Type},
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use inshore_kernel::Failure;
use inshore_stages::{MergeInputs, OutputWriter, RangeInput, RangeReader, StageTask};
use inshore_store::{Job, Reservation};

use super::{
    exchange::{BATCH_ROWS, RangesWriter, SAMPLES, Totals, columns},
    memory::{Growing, reserve},
};

static STATE: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("id", DataType::UInt64, false),
        Field::new("number", DataType::UInt32, false),
    ]))
});

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
pub(super) struct Rows {
    /// The ids of the vertices, ascending.
    pub ids: Vec<u64>,
    /// The numbers of out-edges.
    pub degrees: Vec<u32>,
    /// The target of each edge, and the index of its source.
    pub edges: Vec<(u64, u64)>,
}

impl Rows {
    /// Builds rows from edges in any order, and from the ids of further vertices. Equal edges count once, and a loop is an
    /// edge, as in an import.
    pub fn of(mut edges: Vec<(u64, u64)>, mut vertices: Vec<u64>, partitions: u32) -> Rows {
        edges.sort_unstable();
        edges.dedup();
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
            *edge = (edge.1, index as u64);
        }
        edges.sort_unstable_by_key(|&(target, source)| (partition_of(target, partitions), target, source));
        Rows { ids, degrees, edges }
    }

    fn totals(&self) -> Totals {
        let step = self.ids.len().div_ceil(SAMPLES).max(1);
        Totals {
            vertices: self.ids.len() as u64,
            edges: self.edges.len() as u64,
            sample: self.ids.iter().copied().step_by(step).collect(),
            ..Totals::default()
        }
    }
}

/// Returns the sources of sorted edges and sorted vertices, each id once.
fn union(edges: &[(u64, u64)], vertices: &[u64]) -> Vec<u64> {
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
pub(super) fn build(
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
                    edges.room(job, partition, sources.len(), |edges| {
                        edges.sort_unstable();
                        edges.dedup();
                    })?;
                    edges.values.extend(sources.iter().copied().zip(targets.iter().copied()));
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
    RangesWriter::new(output, &rows.totals(), partitions)?.finish()
}

/// Returns an upper bound of the number of different sources: the number of changes of the source between neighbours.
fn count_sources(edges: &[(u64, u64)]) -> usize {
    edges.chunk_by(|one, next| one.0 == next.0).count()
}

fn write_state(rows: &Rows, state: u32, output: &mut OutputWriter) -> Result<(), Failure> {
    let mut write = |ids: Vec<u64>, numbers: Vec<u32>| {
        let columns = vec![Arc::new(UInt64Array::from(ids)) as _, Arc::new(UInt32Array::from(numbers)) as _];
        output.batch(state, &RecordBatch::try_new(STATE.clone(), columns)?)
    };
    write(vec![rows.ids.len() as u64], vec![0])?;
    for (ids, degrees) in rows.ids.chunks(BATCH_ROWS).zip(rows.degrees.chunks(BATCH_ROWS)) {
        write(ids.to_vec(), degrees.to_vec())?;
    }
    for edges in rows.edges.chunks(BATCH_ROWS) {
        // The number of vertices of a partition fits in 32 bits.
        write(edges.iter().map(|edge| edge.0).collect(), edges.iter().map(|edge| edge.1 as u32).collect())?;
    }
    Ok(())
}

/// The vertices of a partition, and its edges as a stream.
pub(super) struct StoredRows {
    pub ids: Vec<u64>,
    pub degrees: Vec<u32>,
    edges: RangeReader,
    _memory: Reservation,
}

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
        Ok(StoredRows { ids, degrees, edges: batches, _memory: memory })
    }

    /// Returns the number of edges.
    pub fn edge_count(&self) -> u64 {
        self.degrees.iter().map(|&degree| u64::from(degree)).sum()
    }

    /// Passes the target and the index of the source of each edge to `each`, in the order of the state.
    pub fn each_edge(
        self,
        job: &Job,
        mut each: impl FnMut(u64, usize) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        for batch in self.edges {
            job.check_cancelled()?;
            let batch = batch?;
            let (targets, sources) = numbers(&batch)?;
            for (&target, &source) in targets.iter().zip(sources) {
                each(target, source as usize)?;
            }
        }
        Ok(())
    }
}

fn numbers(batch: &RecordBatch) -> Result<(&[u64], &[u32]), Failure> {
    let [ids, numbers] = batch.columns() else { return Err("invalid state: expected two columns".into()) };
    match (ids.as_primitive_opt::<UInt64Type>(), numbers.as_primitive_opt::<UInt32Type>()) {
        (Some(ids), Some(numbers)) => Ok((ids.values(), numbers.values())),
        _ => Err("invalid state: expected numbers".into()),
    }
}
