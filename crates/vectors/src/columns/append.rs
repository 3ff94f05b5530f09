//! Appends to the columns of a dataset.

use inshore_store::{DatasetBuilder, Job};
use inshore_tables::ParquetStream;

use super::{COLUMNS_BUFFER_BYTES, COLUMNS_CHECK_BYTES, DatasetFile, columns_input};
use crate::{Error, Result, Vectors, dataset::COLUMNS};

/// Begins to append rows to the columns of a dataset that `builder` extends. Returns `None` if the dataset has no
/// columns.
///
/// # Errors
/// - Returns [`Error::BadDataset`] if the columns do not have a row for each vector.
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, or the budget has too little free
///   memory.
pub(crate) fn append_columns(
    job: &Job,
    vectors: &Vectors,
    builder: &mut DatasetBuilder,
) -> Result<Option<ParquetStream<DatasetFile>>> {
    if vectors.columns.is_none() {
        return Ok(None);
    }
    let (former, info) = (columns_input(job, vectors)?, vectors.info());
    let stream = ParquetStream::append(&former, COLUMNS, job.budget(), |kept| {
        let sizes = (COLUMNS_CHECK_BYTES, COLUMNS_BUFFER_BYTES, 2);
        builder.append_from(COLUMNS, kept, sizes).map(DatasetFile)
    })?;
    match stream.rows() == info.vectors {
        true => Ok(Some(stream)),
        false => Err(Error::BadDataset {
            name: info.name.clone(),
            what: "columns",
            found: format!("{} rows", stream.rows()),
            expected: format!("{}, one for each vector", info.vectors),
        }),
    }
}
