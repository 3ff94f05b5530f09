//! Sorting tables: rows are encoded so that their bytes compare as their values do ([`RowCodec`]).

use std::{path::Path, sync::Arc};

use arrow_array::{RecordBatch, UInt32Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef, SortOptions as ColumnOrder};
use inshore_sortreduce::rows::{
    FramedRows, KeepAll, KeepFirst, RowConfig, RowOperation, RowSort, RowStats, SortedRows,
    smallest_row_memory_bytes,
};
use inshore_store::Job;
use serde::{Deserialize, Serialize};

use super::{Inputs, SortOptions, SortSummary, check_space, sort_memory};
use crate::{Error, Input, Result, RowCodec, TableReader, TableWriter, resume, writer::BackgroundWriter};

/// A column that rows are sorted by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    sort(&Table { job, keys, as_text, options }, Inputs::files(inputs), Target::File(output))
}

/// The same, but gives the rows to `each` in batches of about `block_bytes` bytes. Their last column, beside those of the tables,
/// has the type `UInt32`: the [number](Input::numbered) of the input that the row is of. Of Parquet [of parts](Input::of_parts)
/// the row groups are read that are here.
///
/// # Errors
/// As [`sort_table`], and what `each` returns.
pub fn sorted_table(
    job: &Job,
    inputs: Inputs<'_>,
    keys: &[SortKey],
    options: SortOptions,
    block_bytes: usize,
    each: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<SortSummary> {
    sort(&Table { job, keys, as_text: &[], options }, inputs, Target::Batches(block_bytes, each))
}

fn sort(table: &Table<'_>, inputs: Inputs<'_>, target: Target<'_>) -> Result<SortSummary> {
    match table.options.unique {
        true => table.sort(KeepFirst, inputs, target),
        false => table.sort(KeepAll, inputs, target),
    }
}

/// Where sorted rows go.
enum Target<'a> {
    /// A file, or standard output.
    File(&'a Path),
    /// Batches of about so many bytes, with the number of each row's input.
    Batches(usize, &'a mut dyn FnMut(RecordBatch) -> Result<()>),
}

struct Table<'a> {
    job: &'a Job,
    keys: &'a [SortKey],
    as_text: &'a [String],
    options: SortOptions,
}

/// The columns of sorted rows: with the number of their input behind those of the table, where that is wanted.
fn columns_of(schema: &SchemaRef, target: &Target<'_>) -> SchemaRef {
    let number = matches!(target, Target::Batches(..)).then(|| Field::new("input", DataType::UInt32, false));
    Arc::new(Schema::new(schema.fields().iter().cloned().chain(number.map(Arc::new)).collect::<Vec<_>>()))
}

impl Table<'_> {
    fn sort<O: RowOperation>(
        &self,
        operation: O,
        mut inputs: Inputs<'_>,
        target: Target<'_>,
    ) -> Result<SortSummary> {
        let budget = self.job.budget();
        let (sizes, files) = (inputs.bytes(), inputs.files);
        let Some(first) = inputs.next().transpose()? else { return Ok(SortSummary::default()) };
        let opened = self.open(&first)?;
        let schema = opened.schema().clone();
        let columns = columns_of(&schema, &target);
        let codec = self.codec(first.name(), &columns, inputs.in_any_order)?;
        // The rest is for pages, batches on their way and the writer.
        let smallest = smallest_row_memory_bytes(budget.threads());
        let memory_bytes = sort_memory(budget, "sorting", 0, (3, 4), smallest)?;
        let threads = budget.threads();
        let question = (self.keys, self.as_text, self.options.descending, self.options.unique);
        let keep = resume::keep(self.options.resume, self.job, "sort", question, files)?;
        let kept_bytes = resume::bytes_kept(keep.as_ref())?;
        let config =
            RowConfig { memory_bytes, threads, keep: keep.clone(), name: "sort", ..RowConfig::default() };
        self.job.start_phase("sorting", "bytes", sizes.unwrap_or(0));
        let mut sort = RowSort::new(self.job, RowCodec::SHAPE, operation, &config)?;
        let (mut sink, mut block, mut scratch) = (sort.sink(), Vec::new(), None);
        let (mut next, mut opened) = (Some(first), Some(opened));
        while let Some(input) = next.take() {
            let mut reader = opened.take().map_or_else(|| self.open(&input), Ok)?;
            if reader.schema() != &schema {
                return Err(different(&input, &schema, reader.schema()));
            }
            let mut position = 0;
            for (group, share) in units(&reader, &input, sizes)? {
                if let Some(group) = group {
                    reader.read_row_groups(group..group + 1)?;
                }
                while let Some(batch) = reader.next_batch()? {
                    self.job.check_cancelled()?;
                    block.clear();
                    codec.encode(&with_number(&batch, &input, &columns)?, &mut block)?;
                    sink.write(&block)?;
                    self.job.progress().add(reader.position().saturating_sub(position));
                    position = reader.position();
                    if scratch.is_none() {
                        let read = batch.num_rows() as f64;
                        let share = match reader.rows() {
                            Some(left) => read / (read + left as f64) * share,
                            None => position as f64 / sizes.unwrap_or(0).max(1) as f64,
                        };
                        let all = sizes.map(|_| (sink.bytes() as f64 / share.max(1e-12)) as u64);
                        scratch = Some(self.foresee(&target, all, sizes, memory_bytes, kept_bytes)?);
                    }
                }
            }
            // Their memory is free before the next one is begun.
            drop((reader, input));
            next = inputs.next().transpose()?;
        }
        let bytes_in = sink.bytes();
        sink.finish()?;
        let sorted = sort.finish().map_err(|error| too_long(error, inputs.name()))?;
        self.job.start_phase("merging", "rows", sorted.stats().rows_in);
        let (bytes, stats) = match target {
            Target::File(path) => {
                let mut writer = BackgroundWriter::create(path, columns, budget);
                let stats = self.give(sorted, &codec, BLOCK_BYTES, &mut |batch| writer.write(batch))?;
                writer.finish()?;
                (std::fs::metadata(path).map_or(0, |written| written.len()), stats)
            }
            Target::Batches(block_bytes, each) => (0, self.give(sorted, &codec, block_bytes, each)?),
        };
        resume::finish(keep)?;
        let stats = RowStats { bytes_in, ..stats };
        Ok(SortSummary { rows: stats.rows_out, bytes, scratch_bytes_expected: scratch.flatten(), stats })
    }

    /// How rows become bytes; `by_number`: those with equal keys are in the order of their inputs' numbers, the last column.
    fn codec(&self, name: &str, schema: &SchemaRef, by_number: bool) -> Result<RowCodec> {
        let mut keys = sort_columns(name, schema, self.keys, self.options)?;
        if by_number {
            keys.push((schema.fields().len() - 1, ColumnOrder { descending: false, nulls_first: false }));
        }
        RowCodec::new(name, schema, &keys)
    }

    fn open(&self, input: &Input) -> Result<TableReader> {
        let input = input.clone().stopped_by(self.job.cancel());
        let reader =
            TableReader::open_stored(&input, None, self.as_text, BATCH_ROWS, self.job.budget(), (0, 1))?;
        sort_columns(input.name(), reader.schema(), self.keys, self.options)?;
        Ok(reader)
    }

    /// Refuses what has no room; gives the bytes of runs, if so many bytes of rows come. `kept` bytes of them are there.
    fn foresee(
        &self,
        target: &Target<'_>,
        all: Option<u64>,
        sizes: Option<u64>,
        memory: u64,
        kept: u64,
    ) -> Result<Option<u64>> {
        let (Some(all), Some(bytes)) = (all, sizes) else { return Ok(None) };
        let scratch = if all > memory / 4 * 3 { all } else { 0 };
        let output = match target {
            Target::File(path) => Some(*path).filter(|path| *path != Path::new("-")),
            Target::Batches(..) => None,
        };
        check_space(self.job, scratch.saturating_sub(kept), output, bytes)?;
        Ok(Some(scratch))
    }

    /// Gives rows in batches of about `block_bytes` bytes.
    fn give<O: RowOperation>(
        &self,
        mut sorted: SortedRows<FramedRows, O>,
        codec: &RowCodec,
        block_bytes: usize,
        each: &mut dyn FnMut(RecordBatch) -> Result<()>,
    ) -> Result<RowStats> {
        let mut block = Vec::with_capacity(block_bytes + block_bytes / 8);
        loop {
            block.clear();
            sorted.append(&mut block, block_bytes)?;
            if block.is_empty() {
                return Ok(sorted.stats());
            }
            let batch = codec.decode(&block)?;
            self.job.progress().add(batch.num_rows() as u64);
            each(batch)?;
        }
    }
}

/// What of a table is read one after the other, and what part of all bytes that is: all of it, or those row groups that are here.
fn units(reader: &TableReader, input: &Input, sizes: Option<u64>) -> Result<Vec<(Option<usize>, f64)>> {
    let Some(groups) = reader.row_groups().filter(|_| input.is_of_parts()) else {
        return Ok(vec![(None, share_of(input, sizes))]);
    };
    let all = sizes.unwrap_or(0).max(1) as f64;
    let mut here = Vec::new();
    for group in 0..groups {
        let bytes = reader.row_group_bytes(group)?.unwrap_or_default();
        if input.holds(&bytes) {
            here.push((Some(group), (bytes.end - bytes.start) as f64 / all));
        }
    }
    Ok(here)
}

/// A batch with the columns that are sorted: the number of its input behind its own, where that is wanted.
fn with_number(batch: &RecordBatch, input: &Input, columns: &SchemaRef) -> Result<RecordBatch> {
    let mut all = batch.columns().to_vec();
    if all.len() < columns.fields().len() {
        all.push(Arc::new(UInt32Array::from_value(input.number(), batch.num_rows())));
    }
    let numbered = RecordBatch::try_new(columns.clone(), all);
    numbered.map_err(|error| Error::unsupported(input.name(), error.to_string()))
}

/// The columns that rows are sorted by, and in which order: nulls come last. Errors call the table `name`.
///
/// # Errors
/// [`Error::NoColumn`]; [`Error::Unsupported`] where no column is named.
pub fn sort_columns(
    name: &str,
    schema: &Schema,
    keys: &[SortKey],
    options: SortOptions,
) -> Result<Vec<(usize, ColumnOrder)>> {
    if keys.is_empty() {
        return Err(Error::unsupported(name, "a table is sorted by columns, and none is named"));
    }
    let column = |key: &SortKey| {
        let (column, _) =
            schema.column_with_name(&key.column).ok_or_else(|| no_column(name, &key.column, schema))?;
        let descending = key.descending != options.descending;
        Ok((column, ColumnOrder { descending, nulls_first: false }))
    };
    keys.iter().map(column).collect()
}

/// What part of all bytes lies in one input.
fn share_of(input: &Input, sizes: Option<u64>) -> f64 {
    match (input.bytes_here(), sizes) {
        (Some(bytes), Some(all)) if all > 0 => bytes as f64 / all as f64,
        _ => 1.0,
    }
}

pub(crate) fn no_column(name: &str, column: &str, schema: &Schema) -> Error {
    let columns = schema.fields().iter().map(|field| field.name().clone()).collect();
    Error::NoColumn { file: name.to_string(), column: column.to_string(), found: 0, columns }
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
