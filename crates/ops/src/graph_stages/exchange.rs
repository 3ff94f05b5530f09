//! The rows of exchanges and states: vertices with values, and the totals of a partition.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, RecordBatch, UInt32Array, UInt64Array,
    cast::AsArray,
    types::{UInt32Type, UInt64Type},
};
use inshore_kernel::Failure;
use inshore_stages::{OutputWriter, RangeInput};
use inshore_store::Job;

use super::weights::Weight;

/// The number of rows of a batch, which takes 64 KiB.
pub(super) const BATCH_ROWS: usize = 4 << 10;
/// The number of ids of each partition, from which the ranges of the result are chosen.
pub(super) const SAMPLES: usize = 32;

/// Returns a batch of vertices and their values.
fn batch_of<V: Value>(vertices: Vec<u64>, values: &[V]) -> Result<RecordBatch, Failure> {
    let vertices: ArrayRef = Arc::new(UInt64Array::from(vertices));
    Ok(RecordBatch::try_from_iter(std::iter::once(("vertex", vertices)).chain(V::columns(values)))?)
}

/// Returns a batch of edges: sources, targets, and their weights if they have any.
pub(super) fn edges<W: Weight>(
    edges: impl Iterator<Item = (u64, u64, W)> + Clone,
) -> Result<RecordBatch, Failure> {
    let sources = UInt64Array::from_iter_values(edges.clone().map(|edge| edge.0));
    let targets = UInt64Array::from_iter_values(edges.clone().map(|edge| edge.1));
    with_weights(sources, targets, W::column(edges.map(|edge| edge.2)))
}

/// Returns a batch of vertices among batches of edges: sources without a target.
pub(super) fn vertices<W: Weight>(
    vertices: impl ExactSizeIterator<Item = u64>,
) -> Result<RecordBatch, Failure> {
    let count = vertices.len();
    let weights = W::column(std::iter::repeat_n(W::of(0.0), count));
    with_weights(UInt64Array::from_iter_values(vertices), UInt64Array::new_null(count), weights)
}

fn with_weights(
    sources: UInt64Array,
    targets: UInt64Array,
    weights: Option<ArrayRef>,
) -> Result<RecordBatch, Failure> {
    let columns =
        [("source", Arc::new(sources) as ArrayRef, false), ("target", Arc::new(targets) as _, true)];
    let weights = weights.map(|weights| ("weight", weights, false));
    Ok(RecordBatch::try_from_iter_with_nullable(columns.into_iter().chain(weights))?)
}

/// Returns the vertices of a batch, and their values if they have any.
pub(super) fn columns(batch: &RecordBatch) -> Result<(&[u64], Option<&[u64]>), Failure> {
    let [vertices, values, ..] = batch.columns() else {
        return Err("invalid rows: expected two columns".into());
    };
    let numbers = (vertices.as_primitive_opt::<UInt64Type>(), values.as_primitive_opt::<UInt64Type>());
    let (Some(vertices), Some(values)) = numbers else { return Err("invalid rows: expected numbers".into()) };
    let has_values = values.null_count() == 0;
    Ok((vertices.values(), has_values.then_some(values.values())))
}

/// The value of a vertex, in states and in the rows of the result.
pub(super) trait Value: Copy {
    fn columns(values: &[Self]) -> Vec<(&'static str, ArrayRef)>;
    fn read(columns: &[ArrayRef]) -> Result<Vec<Self>, Failure>;
}

impl Value for u64 {
    fn columns(values: &[u64]) -> Vec<(&'static str, ArrayRef)> {
        vec![("value", Arc::new(UInt64Array::from(values.to_vec())))]
    }

    fn read(columns: &[ArrayRef]) -> Result<Vec<u64>, Failure> {
        let values = columns.first().and_then(|values| values.as_primitive_opt::<UInt64Type>());
        Ok(values.ok_or("invalid state: expected values")?.values().to_vec())
    }
}

/// The value of a vertex in a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Visit {
    pub value: u64,
    /// The superstep that has set the value, or [`NEVER`].
    pub since: u32,
}

/// Stands for no superstep.
pub(super) const NEVER: u32 = u32::MAX;

impl Value for Visit {
    fn columns(visits: &[Visit]) -> Vec<(&'static str, ArrayRef)> {
        let values = UInt64Array::from_iter_values(visits.iter().map(|visit| visit.value));
        let since = UInt32Array::from_iter_values(visits.iter().map(|visit| visit.since));
        vec![("value", Arc::new(values)), ("since", Arc::new(since))]
    }

    fn read(columns: &[ArrayRef]) -> Result<Vec<Visit>, Failure> {
        let [values, since] = columns else { return Err("invalid state: expected two columns".into()) };
        let since = since.as_primitive_opt::<UInt32Type>().ok_or("invalid state: expected supersteps")?;
        let values = values.as_primitive_opt::<UInt64Type>().ok_or("invalid state: expected values")?;
        let visits = values.values().iter().zip(since.values());
        Ok(visits.map(|(&value, &since)| Visit { value, since }).collect())
    }
}

/// Writes the values of all vertices as a state.
pub(super) fn write_values<V: Value>(
    values: &[V],
    state: u32,
    output: &mut OutputWriter,
) -> Result<(), Failure> {
    for values in values.chunks(BATCH_ROWS) {
        output.batch(state, &RecordBatch::try_from_iter(V::columns(values))?)?;
    }
    Ok(())
}

/// Reads the values of `count` vertices from a state. The caller has reserved their memory.
pub(super) fn read_values<V: Value>(job: &Job, state: RangeInput, count: usize) -> Result<Vec<V>, Failure> {
    let mut all = Vec::with_capacity(count);
    for batch in state.open(job)? {
        let values = V::read(batch?.columns())?;
        if values.len() > count - all.len() {
            return Err("invalid state: more values than vertices".into());
        }
        all.extend(values);
    }
    if all.len() < count { Err("invalid state: fewer values than vertices".into()) } else { Ok(all) }
}

/// Passes the index of each vertex among the ids, and its place among the vertices. Both lists are in ascending order.
pub(super) fn find_all(
    ids: &[u64],
    vertices: &[u64],
    mut each: impl FnMut(usize, usize),
) -> Result<(), Failure> {
    let Some(first) = vertices.first() else { return Ok(()) };
    let mut index = ids.partition_point(|id| id < first);
    for (place, vertex) in vertices.iter().enumerate() {
        index += distance(&ids[index..], *vertex);
        match ids.get(index) {
            Some(id) if id == vertex => each(index, place),
            _ => return Err(format!("invalid messages: partition without the vertex {vertex}").into()),
        }
    }
    Ok(())
}

/// Returns the index of the first id that is not less than `vertex`, by an exponential search: the index is usually small.
fn distance(ids: &[u64], vertex: u64) -> usize {
    let mut bound = 1;
    while bound < ids.len() && ids[bound] < vertex {
        bound *= 2;
    }
    let (start, end) = (bound / 2, (bound + 1).min(ids.len()));
    start + ids[start..end].partition_point(|&id| id < vertex)
}

/// Facts about a partition, or their sum over all partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub vertices: u64,
    /// The values of vertices without out-edges, added up.
    pub dangling: u64,
    /// Ids of vertices, evenly spread over the partition.
    pub sample: Vec<u64>,
}

impl Totals {
    fn batch(&self) -> Result<RecordBatch, Failure> {
        let mut all = vec![(0, self.vertices), (1, self.dangling)];
        all.extend(self.sample.iter().map(|&id| (2, id)));
        let (tags, values): (Vec<u64>, Vec<u64>) = all.into_iter().unzip();
        batch_of(tags, &values)
    }

    /// Adds the totals of another partition.
    fn add(&mut self, batch: &RecordBatch) -> Result<(), Failure> {
        let (tags, values) = columns(batch)?;
        for (&tag, &value) in tags.iter().zip(values.unwrap_or_default()) {
            match tag {
                0 => self.vertices += value,
                1 => self.dangling += value,
                2 => self.sample.push(value),
                _ => return Err("invalid rows: unknown totals of a partition".into()),
            }
        }
        Ok(())
    }

    /// Reads ranges that begin with the totals of their partition. Adds these up, and passes all pairs to `each`.
    pub fn read(
        job: &Job,
        ranges: Vec<RangeInput>,
        mut each: impl FnMut(&[u64], &[u64]) -> Result<(), Failure>,
    ) -> Result<Totals, Failure> {
        let mut totals = Totals::default();
        for range in ranges {
            job.check_cancelled()?;
            let mut batches = range.open(job)?;
            totals.add(&batches.next().ok_or("invalid rows: a range without totals")??)?;
            for batch in batches {
                let batch = batch?;
                let (vertices, values) = columns(&batch)?;
                each(vertices, values.ok_or("invalid rows: vertices without values")?)?;
            }
        }
        Ok(totals)
    }
}

/// Writes vertices with values, in ascending order of ranges. Each range begins with the totals of the partition, if there
/// are any; otherwise a range without a vertex has no byte.
pub(super) struct RangesWriter<'a, V> {
    output: &'a mut OutputWriter,
    totals: Option<RecordBatch>,
    ranges: u32,
    /// The range that is being written.
    range: Option<u32>,
    vertices: Vec<u64>,
    values: Vec<V>,
}

impl<'a, V: Value> RangesWriter<'a, V> {
    pub fn new(
        output: &'a mut OutputWriter,
        totals: Option<&Totals>,
        ranges: u32,
    ) -> Result<RangesWriter<'a, V>, Failure> {
        let totals = totals.map(Totals::batch).transpose()?;
        Ok(RangesWriter { output, totals, ranges, range: None, vertices: Vec::new(), values: Vec::new() })
    }

    /// Appends a vertex to a range.
    pub fn push(&mut self, range: u32, vertex: u64, value: V) -> Result<(), Failure> {
        if self.range != Some(range) {
            self.begin(range)?;
        }
        self.vertices.push(vertex);
        self.values.push(value);
        if self.vertices.len() == BATCH_ROWS { self.flush() } else { Ok(()) }
    }

    /// Ends all ranges before `range`, and begins this one.
    fn begin(&mut self, range: u32) -> Result<(), Failure> {
        self.flush()?;
        for next in self.range.map_or(0, |last| last + 1)..=range {
            if let Some(before) = next.checked_sub(1) {
                self.output.close(before)?;
            }
            if let Some(totals) = &self.totals {
                self.output.batch(next, totals)?;
            }
        }
        self.range = Some(range);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let Some(range) = self.range.filter(|_| !self.vertices.is_empty()) else { return Ok(()) };
        let (vertices, values) = (std::mem::take(&mut self.vertices), std::mem::take(&mut self.values));
        self.output.batch(range, &batch_of(vertices, &values)?)
    }

    /// Writes the remaining vertices, and the totals of ranges without vertices.
    pub fn finish(mut self) -> Result<(), Failure> {
        match self.ranges.checked_sub(1) {
            Some(last) if self.range != Some(last) => self.begin(last),
            _ => self.flush(),
        }
    }
}
