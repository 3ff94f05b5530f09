//! Sorting tables: rows are encoded so that their bytes compare as their values do ([`RowCodec`]).

use std::path::Path;

use arrow::{
    compute::SortOptions as ColumnOrder,
    datatypes::{Schema, SchemaRef},
};
use inshore_sortreduce::rows::{
    FramedRows, KeepAll, KeepFirst, RowConfig, RowOperation, RowSort, RowStats, SortedRows,
    smallest_row_memory_bytes,
};
use inshore_store::Job;

use super::{SortOptions, SortSummary, check_space, sort_memory};
use crate::{Error, Input, Result, RowCodec, TableReader, TableWriter, resume, writer::BackgroundWriter};

/// A column that rows are sorted by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SortKey {
    /// Its name.
    pub column: String,
    /// The greatest first.
    pub descending: bool,
}

const BATCH_ROWS: usize = 8 << 10;
/// Bytes of encoded rows that become one batch.
const BLOCK_BYTES: usize = 1 << 20;

/// Sorts the rows of tables (Parquet, CSV, TSV, Arrow) with the same columns by some of them, and writes them to
/// `output`, whose ending chooses the format. Nulls come last. Rows with equal keys keep the order of the input; with
/// [`SortOptions::unique`] the first of them stays. [`SortOptions::descending`] turns every key around. Columns of CSV
/// named in `as_text` are text.
///
/// # Errors
/// Those of [`TableReader::open_stored`] and [`TableWriter::create`]; [`Error::NoColumn`]; [`Error::NoRoom`];
/// [`Error::Unsupported`] for tables whose columns differ; [`Error::TooLarge`] for a row that does not fit the budget.
pub fn sort_table(
    job: &Job,
    inputs: &[Input],
    output: &Path,
    keys: &[SortKey],
    as_text: &[String],
    options: SortOptions,
) -> Result<SortSummary> {
    TableWriter::check_path(output)?;
    let table = Table { job, inputs, output, keys, as_text, options };
    if options.unique { table.sort(KeepFirst) } else { table.sort(KeepAll) }
}

struct Table<'a> {
    job: &'a Job,
    inputs: &'a [Input],
    output: &'a Path,
    keys: &'a [SortKey],
    as_text: &'a [String],
    options: SortOptions,
}

impl Table<'_> {
    fn sort<O: RowOperation>(&self, operation: O) -> Result<SortSummary> {
        let budget = self.job.budget();
        let sizes: Option<u64> = self.inputs.iter().map(Input::compressed_bytes).sum();
        let first = self.inputs.first().expect("the command line asks for one");
        let mut reader = Some(self.open(first)?);
        let schema = reader.as_ref().expect("opened above").schema().clone();
        let codec = self.codec(first.name(), &schema)?;
        // The rest is for pages, batches on their way and the writer.
        let smallest = smallest_row_memory_bytes(budget.threads());
        let memory_bytes = sort_memory(budget, "sorting", 0, (3, 4), smallest)?;
        let threads = budget.threads();
        let question = (self.keys, self.as_text, self.options.descending, self.options.unique);
        let keep = resume::keep(self.options.resume, self.job, "sort", question, self.inputs)?;
        let kept_bytes = resume::bytes_kept(keep.as_ref())?;
        let config =
            RowConfig { memory_bytes, threads, keep: keep.clone(), name: "sort", ..RowConfig::default() };
        self.job.start_phase("sorting", "bytes", sizes.unwrap_or(0));
        let mut sort = RowSort::new(self.job, RowCodec::SHAPE, operation, &config)?;
        let (mut sink, mut block, mut scratch) = (sort.sink(), Vec::new(), None);
        for input in self.inputs {
            let mut reader = match reader.take() {
                Some(reader) => reader,
                None => self.open(input)?,
            };
            if reader.schema() != &schema {
                return Err(different(input, &schema, reader.schema()));
            }
            let mut position = 0;
            let this_share = share_of(input, sizes);
            while let Some(batch) = reader.next_batch()? {
                self.job.check_cancelled()?;
                block.clear();
                codec.encode(&batch, &mut block)?;
                sink.write(&block)?;
                self.job.progress().add(reader.position() - position);
                position = reader.position();
                if scratch.is_none() {
                    let read = batch.num_rows() as f64;
                    let share = match reader.rows() {
                        Some(left) => read / (read + left as f64) * this_share,
                        None => position as f64 / sizes.unwrap_or(0).max(1) as f64,
                    };
                    let all = sizes.map(|_| (sink.bytes() as f64 / share.max(1e-12)) as u64);
                    scratch = Some(self.foresee(all, sizes, memory_bytes, kept_bytes)?);
                }
            }
        }
        let bytes_in = sink.bytes();
        sink.finish()?;
        let sorted = sort.finish().map_err(|error| too_long(error, first.name()))?;
        self.job.start_phase("merging", "rows", sorted.stats().rows_in);
        let (rows, stats) = self.write(sorted, &codec, &schema)?;
        resume::finish(keep)?;
        let bytes = std::fs::metadata(self.output).map_or(0, |written| written.len());
        let stats = RowStats { bytes_in, ..stats };
        Ok(SortSummary { rows, bytes, scratch_bytes_expected: scratch.flatten(), stats })
    }

    fn codec(&self, name: &str, schema: &SchemaRef) -> Result<RowCodec> {
        let key = |key: &SortKey| {
            let column = schema.index_of(&key.column).expect("looked for when the table was opened");
            let descending = key.descending != self.options.descending;
            (column, ColumnOrder { descending, nulls_first: false })
        };
        RowCodec::new(name, schema, &self.keys.iter().map(key).collect::<Vec<_>>())
    }

    fn open(&self, input: &Input) -> Result<TableReader> {
        let input = input.clone().stopped_by(self.job.cancel());
        let reader =
            TableReader::open_stored(&input, None, self.as_text, BATCH_ROWS, self.job.budget(), (0, 1))?;
        for key in self.keys {
            if reader.schema().column_with_name(&key.column).is_none() {
                return Err(no_column(&input, &key.column, reader.schema()));
            }
        }
        Ok(reader)
    }

    /// Refuses what has no room; gives the bytes of runs, if so many bytes of rows come. `kept` bytes of them are there.
    fn foresee(&self, all: Option<u64>, sizes: Option<u64>, memory: u64, kept: u64) -> Result<Option<u64>> {
        let (Some(all), Some(bytes)) = (all, sizes) else { return Ok(None) };
        let scratch = if all > memory / 4 * 3 { all } else { 0 };
        let is_stdout = self.output == Path::new("-");
        check_space(self.job, scratch.saturating_sub(kept), (!is_stdout).then_some(self.output), bytes)?;
        Ok(Some(scratch))
    }

    fn write<O: RowOperation>(
        &self,
        mut sorted: SortedRows<FramedRows, O>,
        codec: &RowCodec,
        schema: &SchemaRef,
    ) -> Result<(u64, RowStats)> {
        let mut writer = BackgroundWriter::create(self.output, schema.clone(), self.job.budget());
        let mut block = Vec::with_capacity(BLOCK_BYTES + BLOCK_BYTES / 8);
        loop {
            block.clear();
            sorted.append(&mut block, BLOCK_BYTES)?;
            if block.is_empty() {
                break;
            }
            let batch = codec.decode(&block)?;
            self.job.progress().add(batch.num_rows() as u64);
            writer.write(batch)?;
        }
        let stats = sorted.stats();
        drop(sorted);
        Ok((writer.finish()?, stats))
    }
}

/// What part of all bytes lies in one input.
fn share_of(input: &Input, sizes: Option<u64>) -> f64 {
    match (input.compressed_bytes(), sizes) {
        (Some(bytes), Some(all)) if all > 0 => bytes as f64 / all as f64,
        _ => 1.0,
    }
}

pub(crate) fn no_column(input: &Input, column: &str, schema: &Schema) -> Error {
    let columns = schema.fields().iter().map(|field| field.name().clone()).collect();
    Error::NoColumn { file: input.name().to_string(), column: column.to_string(), found: 0, columns }
}

pub(crate) fn different(input: &Input, expected: &Schema, found: &Schema) -> Error {
    let list = |schema: &Schema| {
        let fields = schema.fields().iter().map(|field| format!("{} {}", field.name(), field.data_type()));
        fields.collect::<Vec<_>>().join(", ")
    };
    let what = format!(
        "its columns are not those of the first input: expected {}, got {}",
        list(expected),
        list(found)
    );
    Error::unsupported(input.name(), what)
}

/// A row that does not fit, told with a name.
pub(crate) fn too_long(error: inshore_sortreduce::Error, place: &str) -> Error {
    match error {
        inshore_sortreduce::Error::RowTooLong { bytes, limit, .. } => Error::TooLarge {
            place: place.to_string(),
            what: "a row",
            bytes: bytes.unwrap_or(limit + 1),
            limit,
        },
        other => other.into(),
    }
}
