//! Copies the columns of the live rows of a dataset.

use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch, UInt64Array};
use arrow_schema::{Field, Schema};
use arrow_select::filter::filter_record_batch;
use inshore_store::{DatasetBuilder, Job};
use inshore_tables::{ParquetStream, TableReader};

use super::{
    COLUMNS_BUFFER_BYTES, COLUMNS_CHECK_BYTES, DatasetFile, ROW_COLUMN, columns_input, import::BATCH_ROWS,
};
use crate::{Error, Result, RowSet, Vectors, dataset::COLUMNS};

/// Returns the memory, in bytes, that [`copy_columns`] needs.
pub(crate) fn copy_columns_bytes(vectors: &Vectors) -> u64 {
    match vectors.columns {
        None => 0,
        Some(_) => {
            ParquetStream::<DatasetFile>::MEMORY_BYTES
                + 2 * (COLUMNS_BUFFER_BYTES + COLUMNS_CHECK_BYTES) as u64
        }
    }
}

/// Writes the columns of the rows in `live` to a new file of `builder`, with the numbers that the rows have in the new
/// dataset. The function does nothing if the dataset has no columns.
///
/// # Errors
/// - Returns [`Error::BadDataset`] if the columns do not have a row for each vector.
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
///   memory, or the job was cancelled.
pub(crate) fn copy_columns(
    job: &Job,
    vectors: &Vectors,
    live: &RowSet,
    builder: &mut DatasetBuilder,
) -> Result<()> {
    if vectors.columns.is_none() {
        return Ok(());
    }
    let input = columns_input(job, vectors)?;
    let mut reader = TableReader::open_stored(&input, None, &[], BATCH_ROWS, job.budget(), (0, 1))?;
    let fields = reader.schema().fields().iter();
    let fields = fields.map(|field| Field::clone(field).with_nullable(field.name() != ROW_COLUMN));
    let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
    let file = builder.file_with_buffers(COLUMNS, COLUMNS_CHECK_BYTES, COLUMNS_BUFFER_BYTES, 2)?;
    let mut kept = ParquetStream::new(DatasetFile(file), COLUMNS, schema.clone(), job.budget())?;
    job.start_phase("compacting columns", "vectors", vectors.info().vectors);
    let mut row = 0;
    while let Some(batch) = reader.next_batch()? {
        job.check_cancelled()?;
        let end = row + batch.num_rows() as u64;
        let wanted: BooleanArray = (row..end).map(|row| Some(live.contains(row))).collect();
        row = end;
        job.progress().add(batch.num_rows() as u64);
        let some = filter_record_batch(&batch, &wanted).expect("a mask with a bit for each row");
        if some.num_rows() == 0 {
            continue;
        }
        let numbers = UInt64Array::from_iter_values(kept.rows()..kept.rows() + some.num_rows() as u64);
        let mut columns = some.columns().to_vec();
        *columns.last_mut().expect("the column of row numbers") = Arc::new(numbers);
        kept.write(&RecordBatch::try_new(schema.clone(), columns).expect("the columns that were read"))?;
    }
    if row != vectors.info().vectors {
        return Err(Error::BadDataset {
            name: vectors.info().name.clone(),
            what: "columns",
            found: format!("{row} rows"),
            expected: format!("{}, one for each vector", vectors.info().vectors),
        });
    }
    drop(reader);
    builder.add(kept.finish()?.0)?;
    Ok(())
}
