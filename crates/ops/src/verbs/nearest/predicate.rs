//! Selects the vectors that satisfy a predicate over their columns.

use inshore_sql::Tables;
use inshore_store::Job;
use inshore_vectors::{self as vectors, RowSet, Vectors};

use crate::{error::Result, row_selection::select_rows};

/// Selects the vectors for which the SQL expression `predicate`, over the columns of the dataset, is true.
///
/// # Errors
/// - Returns an error if the vectors have no columns.
/// - Returns the errors of [`select_rows`].
pub(super) fn select(job: &Job, vectors: &Vectors, predicate: &str) -> Result<RowSet> {
    let info = vectors.info();
    let input = vectors::columns_input(job, vectors)?;
    let tables = Tables::default().with_inputs(&info.name, vec![input]);
    select_rows(job, info, predicate, tables)
}
