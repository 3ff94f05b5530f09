//! Checks that ids are unique. The pairs of id and row number are sorted by id, so that equal ids become neighbours.

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

use crate::{Error, Result};

const SHAPE: FramedRows = FramedRows { row_bytes_hint: 32 };
const BATCH_ROWS: usize = 4 << 10;
/// The bytes of sorted rows that are read in one step.
const BLOCK_BYTES: usize = 64 << 10;

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
    let kind = match id.data_type() {
        DataType::Utf8 => DataType::Utf8,
        kind if kind.is_unsigned_integer() => DataType::UInt64,
        _ => DataType::Int64,
    };
    let threads = job.budget().threads();
    let smallest = smallest_row_memory_bytes(threads);
    job.budget().need(smallest, || "the check that ids are unique".to_string())?;
    let memory_bytes = (job.budget().free_bytes() / 2).max(smallest);
    let config = RowConfig { memory_bytes, threads, name: "ids", ..RowConfig::default() };
    let mut sort = RowSort::new(job, SHAPE, KeepAll, &config)?;
    let mut sink = sort.sink();
    let mut reader = TableReader::open(input, &[(id.name(), kind)], BATCH_ROWS, job.budget())?;
    job.start_phase("checking ids", "ids", reader.rows().unwrap_or(0));
    let (mut block, mut key, mut row) = (Vec::new(), Vec::new(), 0u64);
    while let Some(batch) = reader.next_batch()? {
        job.check_cancelled()?;
        block.clear();
        for place in 0..batch.num_rows() {
            write_key(&batch, place, &mut key);
            frame(&key, &row.to_le_bytes(), &mut block);
            row += 1;
        }
        sink.write(&block)?;
        job.progress().add(batch.num_rows() as u64);
    }
    drop(reader);
    sink.finish()?;
    compare(sort.finish()?, input.name(), id.name())
}

/// Writes an id as text to `key`.
fn write_key(batch: &RecordBatch, row: usize, key: &mut Vec<u8>) {
    key.clear();
    let column = batch.column(0);
    let written = match column.data_type() {
        DataType::Utf8 => key.write_all(column.as_string::<i32>().value(row).as_bytes()),
        DataType::UInt64 => write!(key, "{}", column.as_primitive::<UInt64Type>().value(row)),
        _ => write!(key, "{}", column.as_primitive::<Int64Type>().value(row)),
    };
    written.expect("memory takes any bytes");
}

/// Compares each sorted id with the next one.
fn compare(mut sorted: SortedRows<FramedRows, KeepAll>, file: &str, column: &str) -> Result<()> {
    let (mut block, mut last) = (Vec::new(), None::<(Vec<u8>, u64)>);
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
                Some((before, first)) if before == key => {
                    return Err(Error::BadFile {
                        file: file.to_string(),
                        place: format!("rows {first} and {number}, column '{column}'"),
                        found: format!("{:?} twice", String::from_utf8_lossy(key)),
                        expected: "ids that occur once".to_string(),
                    });
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
