//! Selects the vectors that satisfy a predicate over their columns.

use arrow_array::{cast::AsArray, types::UInt64Type};
use inshore_sql::{Query, Tables};
use inshore_store::Job;
use inshore_vectors::{self as vectors, ROW_COLUMN, RowSet, Vectors};

use crate::error::Result;

/// Selects the vectors for which the SQL expression `predicate`, over the columns of the dataset, is true.
///
/// The cost is one read of the columns in the predicate. The memory of the query is freed when it ends. The memory of
/// the set stays reserved until the set is dropped.
///
/// # Errors
/// - Returns an error if the vectors have no columns.
/// - Returns an error if the predicate is not an SQL expression, or has an unknown column.
/// - Returns an error if a read fails, stored bytes are damaged, the budget has too little free memory, or the job was
///   cancelled.
pub(super) fn select(job: &Job, vectors: &Vectors, predicate: &str) -> Result<RowSet> {
    let info = vectors.info();
    let input = vectors::columns_input(job, vectors)?;
    let mut selected = RowSet::empty(job.budget(), info.vectors)?;
    let tables = Tables::default().with_inputs(&info.name, vec![input]);
    let table = info.name.replace('"', "\"\"");
    // The line feeds end a comment at the end of the predicate.
    let text = format!("SELECT \"{ROW_COLUMN}\" FROM \"{table}\" WHERE (\n{predicate}\n)");
    job.start_phase("selecting", "vectors", info.vectors);
    let mut query = Query::start(job, &text, tables)?;
    while let Some(batch) = query.next_batch()? {
        for &row in batch.column(0).as_primitive::<UInt64Type>().values() {
            if row >= info.vectors {
                return Err(vectors::Error::BadDataset {
                    name: info.name.clone(),
                    what: "columns",
                    found: format!("vector {row}"),
                    expected: format!("numbers below {}", info.vectors),
                }
                .into());
            }
            selected.insert(row);
        }
    }
    Ok(selected)
}
