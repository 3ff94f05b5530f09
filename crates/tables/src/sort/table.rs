//! Sorts tables. Rows are encoded so that the order of their bytes is the order of their values ([`RowCodec`]).
//!
//! If all inputs are text files such as CSV, and the output is CSV, all columns pass through the sort unchanged as
//! text. Copies of the numeric keys, converted to numbers, follow these columns ([`TableLayout`]).

use std::{path::Path, sync::Arc};

use arrow_array::{ArrayRef, RecordBatch, UInt32Array};
use arrow_schema::{ArrowError, DataType, Field, Schema, SchemaRef, SortOptions as ColumnOrder};
use inshore_sortreduce::rows::{
    FramedRows, KeepAll, KeepFirst, RowConfig, RowOperation, RowSort, RowStats, SortedRows,
    smallest_row_memory_bytes,
};
use inshore_store::Job;
use serde::{Deserialize, Serialize};

use super::{Inputs, SortOptions, SortSummary, check_rows, check_space, sort_memory};
use crate::{
    Error, Input, Result, RowCodec, TableMetadata, TableReader, TableWriter, normal_floats,
    reader::{TextTable, with_exact_columns},
    resume,
    writer::BackgroundWriter,
};

/// A column that rows are sorted by.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SortKey {
    /// The column's name.
    pub column: String,
    /// True if the greatest value comes first.
    pub descending: bool,
}

/// Sorting may use this fraction (numerator and denominator) of the budget. The rest is for pages, batches in flight
/// and the writer.
const MEMORY_PART: (u64, u64) = (3, 4);
const BATCH_ROWS: usize = 8 << 10;
/// The number of bytes of encoded rows that are decoded to one batch.
const BLOCK_BYTES: usize = 1 << 20;

/// Sorts the rows of tables (Parquet, CSV, TSV, Arrow) that have equal columns. Rows are sorted by the columns `keys`
/// and written to `output`, whose extension determines the format. Nulls come last. Rows with equal keys keep the order
/// of the input. With [`SortOptions::unique`], only the first of these rows is kept (-0.0 equals 0.0, and all NaNs are
/// equal). [`SortOptions::descending`] reverses every key. Columns of CSV and JSON
/// lines whose names are in `as_text` are read as text, even if their values look like numbers.
///
/// Types of CSV and JSON lines are inferred from the first rows, or from all rows if a later row contradicts the
/// inferred types. If the inputs and the result are CSV, values keep their digits.
///
/// # Errors
/// - Returns the errors of [`TableReader::open_stored`] and [`TableWriter::create`].
/// - Returns [`Error::NoColumn`] if an input does not have a key column.
/// - Returns [`Error::NoRoom`] if a disk has too little free space.
/// - Returns [`Error::Unsupported`] if the columns of the tables differ.
/// - Returns [`Error::TooLarge`] if a row does not fit the budget.
pub fn sort_table(
    job: &Job,
    inputs: &[Input],
    output: &Path,
    keys: &[SortKey],
    as_text: &[String],
    options: SortOptions,
) -> Result<SortSummary> {
    TableWriter::check_path(output)?;
    let is_carried = TableWriter::writes_csv(output) && inputs.iter().all(Input::is_text);
    let table = Table { job, keys, as_text, options, is_carried };
    with_exact_columns(job, inputs, as_text, |inputs| {
        sort(&table, Inputs::files(inputs), TableTarget::File(output))
    })
}

/// Sorts as [`sort_table`] does, and passes the rows to `each` in batches of about `block_bytes` bytes. An additional
/// last column of type `UInt32` has the [number](Input::numbered) of the row's input. For Parquet [of
/// parts](Input::of_parts), only the row groups on this machine are read. If `is_carried` is true, the columns are
/// those of [`TableLayout::carried`].
/// # Errors
/// Returns the errors of [`sort_table`] and of `each`.
pub fn sorted_table(
    job: &Job,
    inputs: Inputs<'_>,
    (keys, is_carried): (&[SortKey], bool),
    options: SortOptions,
    block_bytes: usize,
    each: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<SortSummary> {
    let table = Table { job, keys, as_text: &[], options, is_carried };
    sort(&table, inputs, TableTarget::Batches(block_bytes, each))
}

fn sort(table: &Table<'_>, inputs: Inputs<'_>, target: TableTarget<'_>) -> Result<SortSummary> {
    match table.options.unique {
        true => table.sort(KeepFirst, inputs, target),
        false => table.sort(KeepAll, inputs, target),
    }
}

/// The destination of sorted rows.
enum TableTarget<'a> {
    /// A file, or standard output.
    File(&'a Path),
    /// Batches of about this number of bytes. The last column has the number of each row's input.
    Batches(usize, &'a mut dyn FnMut(RecordBatch) -> Result<()>),
}

struct Table<'a> {
    job: &'a Job,
    keys: &'a [SortKey],
    as_text: &'a [String],
    options: SortOptions,
    /// True if all columns pass through the sort as text, byte for byte.
    is_carried: bool,
}

/// The columns that a sort reads from a table.
#[derive(Clone, Debug)]
pub struct TableLayout {
    /// The columns of the table. If all columns pass through the sort as text, copies of the numeric keys follow,
    /// converted to numbers.
    pub read: SchemaRef,
    /// The number of the table's own columns.
    pub columns: usize,
    /// The position of each key column in `read`, and its order.
    pub keys: Vec<(usize, ColumnOrder)>,
}

impl TableLayout {
    /// Makes the layout of a table whose columns keep their types. `name` is the table's name in errors.
    ///
    /// # Errors
    /// Returns the errors of [`sort_columns`].
    pub fn plain(
        name: &str,
        read: &SchemaRef,
        keys: &[SortKey],
        options: SortOptions,
    ) -> Result<TableLayout> {
        let (read, columns) = (read.clone(), read.fields().len());
        Ok(TableLayout { columns, keys: sort_columns(name, &read, keys, options)?, read })
    }

    /// Makes the layout of a text table with known columns, all of which pass through the sort as text.
    ///
    /// # Errors
    /// Returns the errors of [`sort_columns`].
    pub fn carried(
        name: &str,
        known: &TableMetadata,
        keys: &[SortKey],
        options: SortOptions,
    ) -> Result<TableLayout> {
        let TableMetadata { schema: known, unseen, .. } = known;
        let mut read: Vec<Field> =
            known.fields().iter().map(|field| Field::new(field.name(), DataType::Utf8, true)).collect();
        let columns = read.len();
        let mut places = sort_columns(name, known, keys, options)?;
        for (place, _) in &mut places {
            let field = known.field(*place);
            if field.data_type() != &DataType::Utf8 || unseen.contains(field.name()) {
                *place = read.len();
                read.push(field.clone());
            }
        }
        Ok(TableLayout { read: Arc::new(Schema::new(read)), columns, keys: places })
    }

    /// Returns the columns of the table.
    pub fn shown(&self) -> SchemaRef {
        Arc::new(Schema::new(self.read.fields()[..self.columns].to_vec()))
    }
}

/// The columns of encoded rows. If only unique rows are kept, each floating-point key column has a copy in normal form,
/// in which all zeros are equal and all NaNs are equal. Rows are compared by this copy.
///
/// ```text
///   [ read | keys of fractions in their normal form, where equal rows become one | number of the input ]
/// ```
struct EncodedColumns {
    layout: TableLayout,
    schema: SchemaRef,
    /// The positions of the columns that have a second copy in normal form.
    normal: Vec<usize>,
    keys: Vec<(usize, ColumnOrder)>,
    has_number: bool,
}

impl EncodedColumns {
    fn new(layout: TableLayout, is_unique: bool, has_number: bool, by_number: bool) -> EncodedColumns {
        let mut fields = layout.read.fields().to_vec();
        let (mut keys, mut normal) = (layout.keys.clone(), Vec::new());
        for (place, _) in keys.iter_mut().filter(|_| is_unique) {
            let field = layout.read.field(*place).clone();
            if field.data_type().is_floating() {
                normal.push(*place);
                *place = fields.len();
                fields.push(Arc::new(field));
            }
        }
        if has_number {
            fields.push(Arc::new(Field::new("input", DataType::UInt32, false)));
        }
        if by_number {
            keys.push((fields.len() - 1, ColumnOrder { descending: false, nulls_first: false }));
        }
        EncodedColumns { schema: Arc::new(Schema::new(fields)), layout, normal, keys, has_number }
    }

    /// Converts a batch of the table to a batch of the columns that are encoded.
    fn of_read(&self, batch: &RecordBatch, input: &Input) -> Result<RecordBatch> {
        let mut all = batch.columns().to_vec();
        all.extend(self.normal.iter().map(|&place| normal_floats(batch.column(place))));
        if self.has_number {
            all.push(Arc::new(UInt32Array::from_value(input.number(), batch.num_rows())));
        }
        let whole = RecordBatch::try_new(self.schema.clone(), all);
        whole.map_err(|error| Error::unsupported(input.name(), error.to_string()))
    }

    /// Returns the columns of the result.
    fn given(&self) -> SchemaRef {
        if !self.has_number {
            return self.layout.shown();
        }
        let number = self.schema.fields().last().cloned();
        Arc::new(Schema::new(self.layout.read.fields().iter().cloned().chain(number).collect::<Vec<_>>()))
    }

    /// Converts decoded rows to the columns of the result.
    fn of_decoded(&self, batch: &RecordBatch) -> std::result::Result<RecordBatch, ArrowError> {
        let last = batch.num_columns() - 1;
        let columns: Vec<ArrayRef> = match self.has_number {
            true => (0..self.layout.read.fields().len())
                .chain([last])
                .map(|at| batch.column(at).clone())
                .collect(),
            false => batch.columns()[..self.layout.columns].to_vec(),
        };
        RecordBatch::try_new(self.given(), columns)
    }
}

impl Table<'_> {
    fn sort<O: RowOperation>(
        &self,
        operation: O,
        mut inputs: Inputs<'_>,
        target: TableTarget<'_>,
    ) -> Result<SortSummary> {
        let budget = self.job.budget();
        let (sizes, files) = (inputs.bytes(), inputs.files);
        let Some(first) = inputs.next().transpose()? else { return Ok(SortSummary::default()) };
        let (opened, layout) = self.open(&first)?;
        let schema = layout.read.clone();
        let has_number = matches!(target, TableTarget::Batches(..));
        let encoded = EncodedColumns::new(layout, self.options.unique, has_number, inputs.in_any_order);
        let codec = RowCodec::new(first.name(), &encoded.schema, &encoded.keys)?;
        let smallest = smallest_row_memory_bytes(budget.threads());
        let memory_bytes = sort_memory(budget, "sorting", 0, MEMORY_PART, smallest)?;
        let threads = budget.threads();
        let options = (self.options.descending, self.options.unique);
        let question = (self.keys, self.as_text, options, encoded.schema.fields());
        let keep = resume::keep(self.options.resume, self.job, "sort", question, files)?;
        let kept_bytes = resume::bytes_kept(keep.as_ref())?;
        let config =
            RowConfig { memory_bytes, threads, keep: keep.clone(), name: "sort", ..RowConfig::default() };
        self.job.start_phase("sorting", "bytes", sizes.unwrap_or(0));
        let mut sort = RowSort::new(self.job, RowCodec::SHAPE, operation, &config)?;
        let (mut sink, mut block, mut scratch) = (sort.sink(), Vec::new(), None);
        let (mut next, mut opened) = (Some(first), Some(opened));
        while let Some(input) = next.take() {
            let mut reader = match opened.take() {
                Some(opened) => opened,
                None => self.open(&input)?.0,
            };
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
                    codec.encode(&encoded.of_read(&batch, &input)?, &mut block)?;
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
                        if let Some(bytes) = all.filter(|_| !O::COMBINES) {
                            check_rows(budget, memory_bytes, MEMORY_PART, bytes)?;
                        }
                        scratch = Some(self.foresee(&target, all, sizes, memory_bytes, kept_bytes)?);
                    }
                }
            }
            // The reader's memory is freed before the next input is opened.
            drop((reader, input));
            next = inputs.next().transpose()?;
        }
        let bytes_in = sink.bytes();
        sink.finish()?;
        let sorted = sort.finish().map_err(|error| too_long(error, inputs.name()))?;
        self.job.start_phase("merging", "rows", sorted.stats().rows_in);
        let (bytes, stats) = self.give_to(target, sorted, (&codec, &encoded))?;
        resume::finish(keep)?;
        let stats = RowStats { bytes_in, ..stats };
        Ok(SortSummary { rows: stats.rows_out, bytes, scratch_bytes_expected: scratch.flatten(), stats })
    }

    /// Passes the sorted rows to their target. Returns the size of the file in bytes, and the counters of the sort.
    fn give_to<O: RowOperation>(
        &self,
        target: TableTarget<'_>,
        sorted: SortedRows<FramedRows, O>,
        decoder: (&RowCodec, &EncodedColumns),
    ) -> Result<(u64, RowStats)> {
        match target {
            TableTarget::File(path) => {
                let mut writer = BackgroundWriter::create(path, decoder.1.given(), self.job.budget());
                let stats = self.give(sorted, decoder, BLOCK_BYTES, &mut |batch| writer.write(batch))?;
                writer.finish()?;
                Ok((std::fs::metadata(path).map_or(0, |written| written.len()), stats))
            }
            TableTarget::Batches(block_bytes, each) => {
                Ok((0, self.give(sorted, decoder, block_bytes, each)?))
            }
        }
    }

    fn open(&self, input: &Input) -> Result<(TableReader, TableLayout)> {
        let input = input.clone().stopped_by(self.job.cancel());
        let budget = self.job.budget();
        if self.is_carried {
            let keys: Vec<&str> = self.keys.iter().map(|key| &*key.column).collect();
            let carried = TableReader::open_carried(&input, &keys, self.as_text, BATCH_ROWS, budget)?;
            if let Some(TextTable { reader, columns, keys }) = carried {
                let orders = key_orders(input.name(), self.keys, self.options)?;
                let keys = keys.into_iter().zip(orders).collect();
                let layout = TableLayout { read: reader.schema().clone(), columns, keys };
                return Ok((reader, layout));
            }
        }
        let reader = TableReader::open_stored(&input, None, self.as_text, BATCH_ROWS, budget, (0, 1))?;
        let layout = TableLayout::plain(input.name(), reader.schema(), self.keys, self.options)?;
        Ok((reader, layout))
    }

    /// Checks that there is enough space for the sorted runs and the result. Returns the expected size of the sorted
    /// runs in bytes, if the size of the input is known. Sorted runs of `kept` bytes already exist.
    fn foresee(
        &self,
        target: &TableTarget<'_>,
        all: Option<u64>,
        sizes: Option<u64>,
        memory: u64,
        kept: u64,
    ) -> Result<Option<u64>> {
        let (Some(all), Some(bytes)) = (all, sizes) else { return Ok(None) };
        let scratch = if all > memory / 4 * 3 { all } else { 0 };
        let output = match target {
            TableTarget::File(path) => Some(*path).filter(|path| *path != Path::new("-")),
            TableTarget::Batches(..) => None,
        };
        check_space(self.job, scratch.saturating_sub(kept), output, bytes)?;
        Ok(Some(scratch))
    }

    /// Passes rows to `each` in batches of about `block_bytes` bytes.
    fn give<O: RowOperation>(
        &self,
        mut sorted: SortedRows<FramedRows, O>,
        (codec, encoded): (&RowCodec, &EncodedColumns),
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
            let given = encoded.of_decoded(&batch);
            each(given.map_err(|error| Error::damaged("sorted rows", error.to_string()))?)?;
        }
    }
}

/// Divides a table into units that are read one after the other. A unit is the complete table, or one of the row groups
/// that this machine has. The second value of each unit is the fraction of the bytes of all inputs that belongs to this
/// unit.
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

/// Finds the columns that rows are sorted by, and the order of each column. Nulls come last. `name` names the table in
/// errors.
///
/// # Errors
/// - Returns [`Error::NoColumn`] if the table does not have a column.
/// - Returns [`Error::Unsupported`] if `keys` is empty.
pub fn sort_columns(
    name: &str,
    schema: &Schema,
    keys: &[SortKey],
    options: SortOptions,
) -> Result<Vec<(usize, ColumnOrder)>> {
    let orders = key_orders(name, keys, options)?;
    let column = |(key, order): (&SortKey, ColumnOrder)| {
        let (column, _) =
            schema.column_with_name(&key.column).ok_or_else(|| no_column(name, &key.column, schema))?;
        Ok((column, order))
    };
    keys.iter().zip(orders).map(column).collect()
}

fn key_orders(name: &str, keys: &[SortKey], options: SortOptions) -> Result<Vec<ColumnOrder>> {
    if keys.is_empty() {
        return Err(Error::unsupported(name, "no column to sort by is given"));
    }
    let order =
        |key: &SortKey| ColumnOrder { descending: key.descending != options.descending, nulls_first: false };
    Ok(keys.iter().map(order).collect())
}

/// Returns the fraction of the bytes of all inputs that belongs to this input.
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
    let (all_expected, all_found) = (list(expected), list(found));
    // If the types of this input were guessed, a guess may have caused the difference.
    if input.is_text() && input.columns().is_none() {
        return Error::Contradiction {
            place: input.name().to_string(),
            expected: format!("the columns {all_expected}, as in the first input"),
            found: all_found,
        };
    }
    let what =
        format!("its columns differ from those of the first input: expected {all_expected}, got {all_found}");
    Error::unsupported(input.name(), what)
}

/// If the error is about a row that does not fit the budget, adds the name `place` to it.
pub(crate) fn too_long(error: inshore_sortreduce::Error, place: &str) -> Error {
    match error {
        inshore_sortreduce::Error::RowTooLong { bytes, limit, .. } => Error::TooLarge {
            place: place.to_string(),
            what: "a row",
            bytes: bytes.unwrap_or(limit + 1),
            limit,
            enough: None,
        },
        other => other.into(),
    }
}
