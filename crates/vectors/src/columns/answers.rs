//! Adds columns of the dataset to the rows of an answer.
//!
//! ```text
//!   rows: query, rank, number, distance ─► numbers, ascending ─► their row groups, one after the other ─► values
//!                                                                                                           │
//!   rows: query, rank, id, distance, title, url ◄── in the order of the answer ─────────────────────────────┘
//! ```
//!
//! The rows of an answer are collected, so that one read of a row group serves many rows.

use std::sync::Arc;

use arrow_array::{Array, ArrayRef, RecordBatch, UInt64Array, cast::AsArray, types::UInt64Type};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use arrow_select::{
    concat::{concat, concat_batches},
    take::take,
};
use inshore_store::{Job, Reservation, format_bytes};
use inshore_tables::TableReader;

use super::{columns_input, id_column};
use crate::{Error, Result, Vectors, live::RowsOfIds, schema};

/// The largest number of rows of an answer that are collected.
const PENDING_ROWS: usize = 128 << 10;
/// The size, in bytes, of a row of an answer without the columns of the dataset.
const ROW_BYTES: usize = 24;
/// The memory is divided by this number. Values take one quarter before they are joined, one quarter as joined arrays,
/// and one quarter in the answer. The collected rows take the rest.
const VALUES_SHARE: u64 = 4;
/// The smallest and the largest memory, in bytes, for collected rows and the values of their columns. Between these
/// limits, the memory is the budget divided by `MEMORY_SHARE`.
const MEMORY_BYTES_MIN: u64 = 2 << 20;
const MEMORY_BYTES_MAX: u64 = 64 << 20;
const MEMORY_SHARE: u64 = 8;
/// The number of rows that are decoded in one step.
const BATCH_ROWS: usize = 4 << 10;
/// The columns of a search include the row numbers of vectors. This is the position of their column.
const NUMBERS: usize = 2;

/// Adds columns of the dataset to the rows of an answer. If the dataset has a column of ids, the values of this column
/// replace the row numbers in the answer.
///
/// The memory is an eighth of the budget, but at least 2 MiB and at most 64 MiB. It is reserved. If rows do not have
/// their numbers as ids, after an upsert or a compaction, the ids take memory in addition, as in a search. Rows of the
/// answer are collected in groups of 131,072 rows, or fewer if there is little memory. For each such group, every row
/// group of the columns that contains one of its rows is read once.
pub struct AnswerColumns {
    job: Job,
    /// The name of the vectors, for error messages.
    name: String,
    reader: TableReader,
    /// The number of the first row of each row group. The last element is the number of all rows.
    firsts: Vec<u64>,
    /// The rows of the numbers in an answer. The value is `None` if each number is that of its row.
    rows: Option<RowsOfIds>,
    id: Option<String>,
    schema: SchemaRef,
    pending: Vec<RecordBatch>,
    pending_rows: usize,
    pending_rows_max: usize,
    memory: Reservation,
}

/// The receiver of the batches of an answer.
type Each<'a> = &'a mut dyn FnMut(RecordBatch) -> Result<()>;

impl AnswerColumns {
    /// Opens the columns `selected` and the column of ids. Returns `None` if there is no column of ids and `selected`
    /// is empty.
    ///
    /// # Errors
    /// - Returns [`Error::Table`] if a column does not exist. The error lists the columns that exist.
    /// - Returns [`Error::BadOption`] if a column has the name of another column of the answer.
    /// - Returns [`Error::BadDataset`] if the vectors have no columns.
    /// - Returns [`Error::Store`] if a read fails, stored bytes are damaged, or the budget has too little free memory.
    pub fn open(job: &Job, vectors: &Vectors, selected: &[String]) -> Result<Option<AnswerColumns>> {
        let id = id_column(job, vectors)?;
        if id.is_none() && selected.is_empty() {
            return Ok(None);
        }
        let input = columns_input(job, vectors)?;
        let wanted = (job.budget().memory_bytes() / MEMORY_SHARE).clamp(MEMORY_BYTES_MIN, MEMORY_BYTES_MAX);
        let memory = job.budget().reserve(wanted, "columns of an answer")?;
        let names: Vec<String> = id.iter().chain(selected).cloned().collect();
        let described = TableReader::describe(&input, &[], job.budget())?.schema;
        for (place, name) in selected.iter().enumerate() {
            check_name(&described, (vectors.info().name.as_str(), selected), place, name)?;
        }
        let mut distinct = names.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let reader =
            TableReader::open_stored(&input, Some(&distinct), &[], BATCH_ROWS, job.budget(), (0, 1))?;
        let mut firsts = vec![0];
        for rows in reader.row_group_rows().unwrap_or_default() {
            firsts.push(firsts[firsts.len() - 1] + rows);
        }
        if firsts[firsts.len() - 1] != vectors.info().vectors {
            return Err(Error::BadDataset {
                name: vectors.info().name.clone(),
                what: "columns",
                found: format!("{} rows", firsts[firsts.len() - 1]),
                expected: format!("{}, one for each vector", vectors.info().vectors),
            });
        }
        let rows = vectors.id_runs.as_ref().map(|_| RowsOfIds::read(job, vectors)).transpose()?;
        Ok(Some(AnswerColumns {
            job: job.clone(),
            name: vectors.info().name.clone(),
            schema: schema_of(reader.schema(), id.as_deref(), selected),
            reader,
            firsts,
            rows,
            id,
            pending: Vec::new(),
            pending_rows: 0,
            pending_rows_max: PENDING_ROWS.min(wanted as usize / (8 * ROW_BYTES)),
            memory,
        }))
    }

    /// Returns the schema of the answer.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Collects rows of a search. Once enough rows are collected, the requested columns of the dataset are added to
    /// them, and they are passed to `each`.
    ///
    /// # Errors
    /// - Returns [`Error::BadDataset`] if the values of a single row do not fit into the memory.
    /// - Returns the errors of `each`.
    /// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, or the job was cancelled.
    pub fn add(&mut self, batch: RecordBatch, each: Each<'_>) -> Result<()> {
        self.pending_rows += batch.num_rows();
        self.pending.push(batch);
        if self.pending_rows >= self.pending_rows_max { self.finish(each) } else { Ok(()) }
    }

    /// Passes the collected rows to `each` with their columns.
    ///
    /// # Errors
    /// Returns the errors of [`AnswerColumns::add`].
    pub fn finish(&mut self, each: Each<'_>) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        self.pending_rows = 0;
        let Some(first) = pending.first() else { return Ok(()) };
        let batch = concat_batches(&first.schema(), &pending).map_err(|error| self.damaged(error))?;
        drop(pending);
        self.fill(&batch, each)
    }

    /// Adds the requested columns of the dataset to the rows of `batch`, and passes the rows to `each`. If the values
    /// of the columns do not fit into the memory, the batch is split into halves.
    fn fill(&mut self, batch: &RecordBatch, each: Each<'_>) -> Result<()> {
        let numbers = self.row_numbers(batch.column(NUMBERS).as_primitive::<UInt64Type>().values())?;
        let mut distinct = numbers.clone();
        distinct.sort_unstable();
        distinct.dedup();
        let rows = batch.num_rows();
        if let Some(values) = self.values_of(&distinct)? {
            let places = numbers.iter().map(|number| {
                distinct.binary_search(number).expect("each number is among the distinct ones") as u64
            });
            let places = UInt64Array::from_iter_values(places);
            let bytes: u64 = values.iter().map(|values| taken_bytes(values, &places)).sum();
            if bytes <= self.memory.bytes() / VALUES_SHARE {
                let taken = values.iter().map(|values| take(values, &places, None));
                let taken: Vec<ArrayRef> =
                    taken.collect::<std::result::Result<_, _>>().map_err(|error| self.damaged(error))?;
                return each(self.answer(batch, taken));
            }
        }
        if rows == 1 {
            let limit = format_bytes(self.memory.bytes() / VALUES_SHARE);
            return Err(Error::BadDataset {
                name: self.name.clone(),
                what: "columns",
                found: format!("more than {limit} in row {}", numbers[0]),
                expected: "less, or more --memory".to_string(),
            });
        }
        self.fill(&batch.slice(0, rows / 2), each)?;
        self.fill(&batch.slice(rows / 2, rows - rows / 2), each)
    }

    /// Returns the row of each vector of an answer. A search returns vectors by their ids.
    fn row_numbers(&self, ids: &[u64]) -> Result<Vec<u64>> {
        let Some(rows) = &self.rows else { return Ok(ids.to_vec()) };
        let mut distinct = ids.to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let found = rows.find(&distinct);
        let row = |id| found[distinct.binary_search(id).expect("each id is among the distinct ones")];
        ids.iter()
            .map(|id| row(id).ok_or_else(|| self.damaged(format!("no row of the vector {id}"))))
            .collect()
    }

    /// Returns the values of all columns that are read, for the rows in `numbers`. The row numbers must be in ascending
    /// order. Returns `None` if the values take more than a quarter of the memory before they are joined.
    fn values_of(&mut self, numbers: &[u64]) -> Result<Option<Vec<ArrayRef>>> {
        let columns = self.reader.schema().fields().len();
        let mut pieces: Vec<Vec<ArrayRef>> = vec![Vec::new(); columns];
        let (mut at, mut bytes) = (0, 0);
        while at < numbers.len() {
            let group = self.firsts.partition_point(|&first| first <= numbers[at]) - 1;
            let end = at + numbers[at..].partition_point(|&number| number < self.firsts[group + 1]);
            self.reader.read_row_groups(group..group + 1)?;
            while at < end {
                self.job.check_cancelled()?;
                let batch = self.reader.next_batch()?.ok_or_else(|| self.damaged("rows are missing"))?;
                let first = self.reader.place();
                let until =
                    at + numbers[at..end].partition_point(|&number| number < first + batch.num_rows() as u64);
                let places =
                    UInt64Array::from_iter_values(numbers[at..until].iter().map(|number| number - first));
                at = until;
                if places.is_empty() {
                    continue;
                }
                for (column, pieces) in batch.columns().iter().zip(&mut pieces) {
                    let some = take(column, &places, None).map_err(|error| self.damaged(error))?;
                    bytes += some.get_array_memory_size() as u64;
                    pieces.push(some);
                }
                if bytes > self.memory.bytes() / VALUES_SHARE {
                    return Ok(None);
                }
            }
        }
        let joined = pieces.iter().map(|pieces| {
            let pieces: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
            concat(&pieces)
        });
        joined.collect::<std::result::Result<_, _>>().map(Some).map_err(|error| self.damaged(error))
    }

    /// Combines the columns that a search returns with the values of the selected columns.
    fn answer(&self, batch: &RecordBatch, values: Vec<ArrayRef>) -> RecordBatch {
        let read = self.reader.schema();
        let value = |name: &str| values[read.index_of(name).expect("a column that is read")].clone();
        let mut columns = batch.columns().to_vec();
        if let Some(id) = &self.id {
            columns[NUMBERS] = value(id);
        }
        columns.extend(self.schema.fields()[columns.len()..].iter().map(|field| value(field.name())));
        RecordBatch::try_new(self.schema.clone(), columns).expect("columns of the schema's types")
    }

    fn damaged(&self, what: impl ToString) -> Error {
        Error::BadDataset {
            name: self.name.clone(),
            what: "columns",
            found: what.to_string(),
            expected: "a row for each vector".to_string(),
        }
    }
}

/// Checks that a selected column exists, and that its name occurs only once in the answer.
fn check_name(
    columns: &Schema,
    (vectors, selected): (&str, &[String]),
    place: usize,
    name: &str,
) -> Result<()> {
    if columns.index_of(name).is_err() {
        let all = columns.fields().iter().map(|field| field.name().clone()).collect();
        let (file, column) = (vectors.to_string(), name.to_string());
        return Err(Error::Table(inshore_tables::Error::NoColumn { file, column, found: 0, columns: all }));
    }
    let is_taken = schema().index_of(name).is_ok();
    if is_taken || selected[..place].iter().any(|before| before == name) {
        let expected = match is_taken {
            true => {
                "columns whose names are not query, rank, id or distance, which the answer has".to_string()
            }
            false => "each column once".to_string(),
        };
        return Err(Error::BadOption { option: "select", found: name.to_string(), expected });
    }
    Ok(())
}

/// Returns the schema of an answer that also has the columns `selected` of the vectors `vectors`. `columns` are all
/// columns of the vectors, which include the column of ids `id`.
///
/// # Errors
/// - Returns [`Error::Table`] if a selected column does not exist. The error lists the columns that exist.
/// - Returns [`Error::BadOption`] if a column has the name of another column of the answer.
pub fn schema_with(
    columns: &Schema,
    vectors: &str,
    id: Option<&str>,
    selected: &[String],
) -> Result<SchemaRef> {
    for (place, name) in selected.iter().enumerate() {
        check_name(columns, (vectors, selected), place, name)?;
    }
    Ok(schema_of(columns, id, selected))
}

/// Returns the schema of an answer. The types of the selected columns and of the ids are those in `read`.
fn schema_of(read: &Schema, id: Option<&str>, selected: &[String]) -> SchemaRef {
    let field = |name: &str| read.field(read.index_of(name).expect("a column that is read"));
    let mut fields: Vec<Field> = schema().fields().iter().map(|field| field.as_ref().clone()).collect();
    if let Some(id) = id {
        fields[NUMBERS] = Field::new("id", field(id).data_type().clone(), true);
    }
    fields.extend(selected.iter().map(|name| Field::new(name, field(name).data_type().clone(), true)));
    Arc::new(Schema::new(fields))
}

/// Returns how many bytes the values at the positions `places` take when they are copied to a new array.
pub fn taken_bytes(values: &ArrayRef, places: &UInt64Array) -> u64 {
    let width = |place: u64| match values.data_type() {
        DataType::Utf8 => 4 + values.as_string::<i32>().value_length(place as usize) as u64,
        DataType::Binary => 4 + values.as_binary::<i32>().value_length(place as usize) as u64,
        DataType::FixedSizeBinary(bytes) => *bytes as u64,
        kind => kind.primitive_width().unwrap_or(1) as u64,
    };
    places.values().iter().map(|&place| width(place)).sum()
}
