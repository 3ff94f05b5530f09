//! The rows of exchanges: pairs of a vertex and a value, after the totals of their partition.

use std::sync::{Arc, LazyLock};

use arrow_array::{Array, RecordBatch, UInt64Array, cast::AsArray, types::UInt64Type};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use inshore_kernel::Failure;
use inshore_stages::{OutputWriter, RangeInput};
use inshore_store::Job;

/// The number of rows of a batch, which takes 64 KiB.
pub(super) const BATCH_ROWS: usize = 4 << 10;
/// The number of ids of each partition, from which the ranges of the result are chosen.
pub(super) const SAMPLES: usize = 32;

static PAIRS: LazyLock<SchemaRef> = LazyLock::new(|| {
    Arc::new(Schema::new(vec![
        Field::new("vertex", DataType::UInt64, false),
        Field::new("value", DataType::UInt64, true),
    ]))
});

/// Returns a batch of pairs, or of vertices without a value.
pub(super) fn pairs(vertices: Vec<u64>, values: Option<Vec<u64>>) -> Result<RecordBatch, Failure> {
    let values = values.map_or_else(|| UInt64Array::new_null(vertices.len()), UInt64Array::from);
    let columns = vec![Arc::new(UInt64Array::from(vertices)) as _, Arc::new(values) as _];
    Ok(RecordBatch::try_new(PAIRS.clone(), columns)?)
}

/// Returns the vertices of a batch, and their values if they have any.
pub(super) fn columns(batch: &RecordBatch) -> Result<(&[u64], Option<&[u64]>), Failure> {
    let [vertices, values] = batch.columns() else { return Err("invalid rows: expected two columns".into()) };
    let numbers = (vertices.as_primitive_opt::<UInt64Type>(), values.as_primitive_opt::<UInt64Type>());
    let (Some(vertices), Some(values)) = numbers else { return Err("invalid rows: expected numbers".into()) };
    let has_values = values.null_count() == 0;
    Ok((vertices.values(), has_values.then_some(values.values())))
}

/// Facts about a partition, or their sum over all partitions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    pub vertices: u64,
    pub edges: u64,
    /// The values of vertices without out-edges, added up.
    pub dangling: u64,
    /// The changes of all values in the last iteration, added up.
    pub change: u64,
    /// The number of iterations.
    pub iterations: u64,
    /// The change of the whole graph in the last iteration, if no further iteration follows it.
    pub final_change: Option<u64>,
    /// Ids of vertices, evenly spread over the partition.
    pub sample: Vec<u64>,
}

impl Totals {
    fn batch(&self) -> Result<RecordBatch, Failure> {
        let mut all = vec![
            (0, self.vertices),
            (1, self.edges),
            (2, self.dangling),
            (3, self.change),
            (4, self.iterations),
        ];
        all.extend(self.final_change.map(|change| (5, change)));
        all.extend(self.sample.iter().map(|&id| (6, id)));
        let (tags, values) = all.into_iter().unzip();
        pairs(tags, Some(values))
    }

    /// Adds the totals of another partition.
    fn add(&mut self, batch: &RecordBatch) -> Result<(), Failure> {
        let (tags, values) = columns(batch)?;
        for (&tag, &value) in tags.iter().zip(values.unwrap_or_default()) {
            match tag {
                0 => self.vertices += value,
                1 => self.edges += value,
                2 => self.dangling += value,
                3 => self.change += value,
                4 => self.iterations = value,
                5 => self.final_change = Some(value),
                6 => self.sample.push(value),
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

/// Writes pairs, in ascending order of ranges. Each range begins with the totals of the partition.
pub(super) struct RangesWriter<'a> {
    output: &'a mut OutputWriter,
    totals: RecordBatch,
    ranges: u32,
    /// The range that is being written.
    range: Option<u32>,
    vertices: Vec<u64>,
    values: Vec<u64>,
}

impl<'a> RangesWriter<'a> {
    pub fn new(
        output: &'a mut OutputWriter,
        totals: &Totals,
        ranges: u32,
    ) -> Result<RangesWriter<'a>, Failure> {
        let totals = totals.batch()?;
        Ok(RangesWriter { output, totals, ranges, range: None, vertices: Vec::new(), values: Vec::new() })
    }

    /// Appends a pair to a range.
    pub fn push(&mut self, range: u32, vertex: u64, value: u64) -> Result<(), Failure> {
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
            self.output.batch(next, &self.totals)?;
        }
        self.range = Some(range);
        Ok(())
    }

    fn flush(&mut self) -> Result<(), Failure> {
        let Some(range) = self.range.filter(|_| !self.vertices.is_empty()) else { return Ok(()) };
        let (vertices, values) = (std::mem::take(&mut self.vertices), std::mem::take(&mut self.values));
        self.output.batch(range, &pairs(vertices, Some(values))?)
    }

    /// Writes the remaining pairs, and the totals of ranges without pairs.
    pub fn finish(mut self) -> Result<(), Failure> {
        match self.ranges.checked_sub(1) {
            Some(last) if self.range != Some(last) => self.begin(last),
            _ => self.flush(),
        }
    }
}
