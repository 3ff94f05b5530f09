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
mod append;
mod compact;
mod import;
mod spread;
mod unique;
mod values;

use inshore_store::{FileReader, Job, NamedFile};
use inshore_tables::{Input, TableReader};

pub use self::{
    answers::{AnswerColumns, schema_with, taken_bytes},
    import::{TableColumns, import_table},
    spread::{SpreadTable, TableRows},
};
pub(crate) use self::{
    append::append_columns,
    compact::{copy_columns, copy_columns_bytes},
    import::{
        BATCH_ROWS, CHUNK_BYTES, COLUMNS_BUFFER_BYTES, COLUMNS_CHECK_BYTES, DatasetFile, Layout, Lists,
    },
    unique::{KnownId, KnownIds, find_known, ids_bytes},
    values::{RowOfValue, rows_of_values},
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
        expected: "vectors that were imported from Parquet or Arrow, whose columns are kept".to_string(),
    })?;
    let named = NamedFile { dataset: name.clone(), name: COLUMNS.to_string(), is_all: false, file };
    Ok(Input::of_stored(job, named))
}

/// Returns the names of the columns.
///
/// # Errors
/// - Returns the errors of [`columns_input`].
/// - Returns [`Error::Table`] if the table is damaged.
pub(crate) fn column_names(job: &Job, vectors: &Vectors) -> Result<Vec<String>> {
    let schema = TableReader::describe(&columns_input(job, vectors)?, &[], job.budget())?.schema;
    Ok(schema.fields().iter().map(|field| field.name().clone()).collect())
}

/// Returns the name of the column of ids, or `None` if the dataset has no such column.
pub(crate) fn id_column(job: &Job, vectors: &Vectors) -> Result<Option<String>> {
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

/// Refuses a dataset with columns, since a file of vectors has no values for them. `is_added` is true if the vectors
/// are added, and false if they replace others.
///
/// # Errors
/// Returns [`Error::BadDataset`] if the dataset has columns.
pub(crate) fn check_no_columns(vectors: &Vectors, is_added: bool) -> Result<()> {
    if vectors.columns.is_none() {
        return Ok(());
    }
    let (found, expected) = match (&vectors.content, is_added) {
        (None, true) => ("those of a table", "none, to add a file of vectors: add a table"),
        (None, false) => ("those of a table", "none, to replace by a file of vectors: use a table"),
        (Some(_), true) => ("the paths of files", "none, to add a file of vectors: add images or documents"),
        (Some(_), false) => {
            ("the paths of files", "none, to replace vectors: remove the vectors and add the files")
        }
    };
    Err(Error::BadDataset {
        name: vectors.info().name.clone(),
        what: "columns",
        found: found.to_string(),
        expected: expected.to_string(),
    })
}
