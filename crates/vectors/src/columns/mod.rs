//! The columns of a table that are not vectors. This module imports them, and adds their values to answers.
//!
//! ```text
//!   docs.parquet ─┬─ embedding (lists of numbers) ─► vectors
//!                 └─ title, year, doc_id ──────────► columns.parquet, with _row, the number of the vector
//! ```
//!
//! A dataset that was imported from a table has these files in addition to those of [`crate::Vectors`]:
//!
//! - `columns.parquet` contains the other columns, with one row for each vector, in small row groups. A query over this
//!   table turns a predicate into a selection of vectors ([`crate::RowSet`]).
//! - `id-column` contains the name of the column whose values are the ids in answers. The file exists only if the table
//!   was imported with a column of ids.

mod answers;
mod import;
mod spread;
mod unique;

use inshore_store::{FileReader, Job, NamedFile};
use inshore_tables::Input;

pub(crate) use self::import::{COLUMNS_BUFFER_BYTES, COLUMNS_CHECK_BYTES, DatasetFile};
pub use self::{
    answers::{AnswerColumns, schema_with, taken_bytes},
    import::{TableColumns, import_table},
    spread::{SpreadTable, TableRows},
};
use crate::{Error, Result, Vectors, dataset::COLUMNS};

/// The name of the column with the row number of each vector.
pub const ROW_COLUMN: &str = "_row";
/// The largest length, in bytes, of the name of a column of ids.
const NAME_BYTES_MAX: usize = 64 << 10;

/// Returns the table with the columns of the dataset. The table has one row for each vector, and the column
/// [`ROW_COLUMN`] has the row number of the vector.
///
/// # Errors
/// Returns [`Error::BadDataset`] if the vectors have no columns.
pub fn columns_input(job: &Job, vectors: &Vectors) -> Result<Input> {
    let name = &vectors.info().name;
    let file = vectors.columns.clone().ok_or_else(|| Error::BadDataset {
        name: name.clone(),
        what: "columns",
        found: "none".to_string(),
        expected: "vectors that were imported from Parquet or Arrow".to_string(),
    })?;
    let named = NamedFile { dataset: name.clone(), name: COLUMNS.to_string(), is_all: false, file };
    Ok(Input::of_stored(job, named))
}

/// Returns the name of the column of ids, or `None` if the dataset has no such column.
fn id_column(job: &Job, vectors: &Vectors) -> Result<Option<String>> {
    let Some(file) = &vectors.id_column else { return Ok(None) };
    let mut name = Vec::new();
    let mut reader =
        FileReader::new(job, file, 0..file.len().min(NAME_BYTES_MAX as u64), file.block_bytes())?;
    while let Some(piece) = reader.next_piece()? {
        name.extend_from_slice(piece);
    }
    let bad = |_| Error::BadDataset {
        name: vectors.info().name.clone(),
        what: "the name of the column of ids",
        found: "other bytes".to_string(),
        expected: "UTF-8".to_string(),
    };
    String::from_utf8(name).map(Some).map_err(bad)
}

/// Refuses a dataset with columns. Its rows cannot be changed, because a new row would have no values in the columns.
///
/// # Errors
/// Returns [`Error::BadDataset`] if the dataset has columns.
pub(crate) fn check_no_columns(vectors: &Vectors, change: &str) -> Result<()> {
    match &vectors.columns {
        None => Ok(()),
        Some(_) => Err(Error::BadDataset {
            name: vectors.info().name.clone(),
            what: "columns",
            found: "those of a table".to_string(),
            expected: format!("none, to {change}: import the table again"),
        }),
    }
}
