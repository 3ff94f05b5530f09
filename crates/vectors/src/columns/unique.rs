//! Checks that ids are unique, and finds the ids of a table in a dataset. The pairs of id and row number are sorted by
//! id, so that equal ids become neighbours.

use std::io::Write;

use arrow_array::{
    Array, RecordBatch,
    cast::AsArray,
    types::{Int64Type, UInt64Type},
};
use arrow_schema::{DataType, Field};
use inshore_sortreduce::rows::{
    FramedRows, KeepAll, RowConfig, RowShape, RowSort, SortedRows, frame, smallest_row_memory_bytes,
};
use inshore_store::Job;
use inshore_tables::{Input, TableReader};

use crate::{Error, Result, RowSet};

const SHAPE: FramedRows = FramedRows { row_bytes_hint: 32 };
const BATCH_ROWS: usize = 4 << 10;
/// The bytes of sorted rows that are read in one step.
const BLOCK_BYTES: usize = 64 << 10;

/// The rows of a dataset, with whose ids the ids of a table are compared.
pub(crate) struct KnownIds<'a> {
    /// The columns of the dataset.
    pub input: &'a Input,
    /// The name of the dataset.
    pub name: &'a str,
    /// The number of rows.
    pub rows: u64,
    /// The rows whose vectors were not removed. The value is `None` if no vector was removed.
    pub live: Option<&'a RowSet>,
}

/// An id that a live row of a dataset and a row of a table have.
pub(crate) struct KnownId<'a> {
    /// The id as text.
    pub id: &'a [u8],
    /// The row of the dataset.
    pub known_row: u64,
    /// The row of the table.
    pub row: u64,
}

/// Checks that all values of a column are different, and that none of them is null.
///
/// The function reads the column once and sorts it. If the pairs of id and row number do not fit into half of the free
/// memory, the sort writes them to flash.
///
/// # Errors
/// - Returns [`Error::BadFile`] if a value is null or occurs twice. For a repeated value, the error names its two rows.
/// - Returns [`Error::Store`] if an I/O operation fails, the budget has too little free memory, or the job was
///   cancelled.
pub(super) fn check(job: &Job, input: &Input, id: &Field) -> Result<()> {
    let sorted = sort_ids(job, id, &[(input, None)])?;
    compare(sorted, (input.name(), id.name()), None, &mut |_| Ok(()))
}

/// Checks the column of ids of a table as an import does, and calls `each` with each id that a live row of the dataset
/// has. The ids come in the order of their texts.
///
/// The function reads the columns of ids of the dataset and of the table once, and sorts them.
///
/// # Errors
/// - Returns [`Error::BadFile`] if a value of the table is null or occurs twice in the table.
/// - Returns [`Error::BadDataset`] if an id occurs twice in the dataset.
/// - Returns [`Error::Store`] if an I/O operation fails, the budget has too little free memory, or the job was
///   cancelled.
/// - Returns the errors of `each`.
pub(crate) fn find_known(
    job: &Job,
    (input, id): (&Input, &Field),
    known: &KnownIds<'_>,
    each: &mut dyn FnMut(KnownId<'_>) -> Result<()>,
) -> Result<()> {
    let sorted = sort_ids(job, id, &[(known.input, known.live), (input, None)])?;
    compare(sorted, (input.name(), id.name()), Some(known), each)
}

/// Returns the memory, in bytes, that the comparison of ids needs.
pub(crate) fn ids_bytes(threads: usize) -> u64 {
    smallest_row_memory_bytes(threads)
}

/// Sorts the pairs of id and row number of tables. If a set of rows is given, the other rows of this table are left
/// out. The rows of the second table have the numbers that follow those of the first one.
fn sort_ids(
    job: &Job,
    id: &Field,
    tables: &[(&Input, Option<&RowSet>)],
) -> Result<SortedRows<FramedRows, KeepAll>> {
    let kind = read_type(id.data_type());
    let threads = job.budget().threads();
    let smallest = ids_bytes(threads);
    job.budget().need(smallest, || "the check that ids are unique".to_string())?;
    let memory_bytes = (job.budget().free_bytes() / 2).max(smallest);
    let config = RowConfig { memory_bytes, threads, name: "ids", ..RowConfig::default() };
    let mut sort = RowSort::new(job, SHAPE, KeepAll, &config)?;
    let mut sink = sort.sink();
    let (mut block, mut key, mut row) = (Vec::new(), Vec::new(), 0u64);
    for &(input, rows) in tables {
        let mut reader = TableReader::open(input, &[(id.name(), kind.clone())], BATCH_ROWS, job.budget())?;
        job.start_phase("checking ids", "ids", reader.rows().unwrap_or(0));
        while let Some(batch) = reader.next_batch()? {
            job.check_cancelled()?;
            block.clear();
            for place in 0..batch.num_rows() {
                if rows.is_none_or(|rows| rows.contains(row)) {
                    write_key(&batch, place, &mut key);
                    frame(&key, &row.to_le_bytes(), &mut block);
                }
                row += 1;
            }
            sink.write(&block)?;
            job.progress().add(batch.num_rows() as u64);
        }
    }
    sink.finish()?;
    Ok(sort.finish()?)
}

/// Returns the type with which a column of ids is read.
pub(super) fn read_type(stored: &DataType) -> DataType {
    match stored {
        DataType::Utf8 => DataType::Utf8,
        kind if kind.is_unsigned_integer() => DataType::UInt64,
        _ => DataType::Int64,
    }
}

/// Writes an id as text to `key`. The first column of the batch has the ids.
pub(super) fn write_key(batch: &RecordBatch, row: usize, key: &mut Vec<u8>) {
    key.clear();
    let column = batch.column(0);
    let written = match column.data_type() {
        DataType::Utf8 => key.write_all(column.as_string::<i32>().value(row).as_bytes()),
        DataType::UInt64 => write!(key, "{}", column.as_primitive::<UInt64Type>().value(row)),
        _ => write!(key, "{}", column.as_primitive::<Int64Type>().value(row)),
    };
    written.expect("memory takes any bytes");
}

/// Compares each sorted id with the next one. The rows of the dataset, if there is one, come before those of the table.
fn compare(
    mut sorted: SortedRows<FramedRows, KeepAll>,
    (file, column): (&str, &str),
    known: Option<&KnownIds<'_>>,
    each: &mut dyn FnMut(KnownId<'_>) -> Result<()>,
) -> Result<()> {
    let (mut block, mut last) = (Vec::new(), None::<(Vec<u8>, u64)>);
    let start = known.map_or(0, |known| known.rows);
    loop {
        block.clear();
        sorted.append(&mut block, BLOCK_BYTES)?;
        let mut rest = &block[..];
        if rest.is_empty() {
            return Ok(());
        }
        while let Some(len) = SHAPE.row_len(rest) {
            let (row, others) = rest.split_at(len);
            rest = others;
            let key = SHAPE.key(row);
            let number = u64::from_le_bytes(SHAPE.rest(row).try_into().expect("a number of eight bytes"));
            match &mut last {
                Some((before, other)) if before == key => {
                    let (first, second) = (number.min(*other), number.max(*other));
                    match known {
                        Some(_) if first < start && second >= start => {
                            each(KnownId { id: key, known_row: first, row: second - start })?;
                            // A third row with this id is compared with the row of the table.
                            *other = second;
                        }
                        Some(known) if second < start => return Err(twice_in(known, key)),
                        _ => return Err(twice((file, column), key, (first - start, second - start))),
                    }
                }
                Some((before, first)) => {
                    before.clear();
                    before.extend_from_slice(key);
                    *first = number;
                }
                None => last = Some((key.to_vec(), number)),
            }
        }
    }
}

/// Returns the error of an id that two rows of a table have.
fn twice((file, column): (&str, &str), id: &[u8], (first, second): (u64, u64)) -> Error {
    Error::BadFile {
        file: file.to_string(),
        place: format!("rows {first} and {second}, column '{column}'"),
        found: format!("{:?} twice", String::from_utf8_lossy(id)),
        expected: "ids that occur once".to_string(),
    }
}

/// Returns the error of an id that two live rows of a dataset have.
fn twice_in(known: &KnownIds<'_>, id: &[u8]) -> Error {
    Error::BadDataset {
        name: known.name.to_string(),
        what: "column of ids",
        found: format!("{:?} twice", String::from_utf8_lossy(id)),
        expected: "ids that occur once".to_string(),
    }
}
