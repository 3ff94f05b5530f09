//! The vectors that satisfy a predicate over their columns.

use arrow_array::{cast::AsArray, types::UInt64Type};
use inshore_sql::{Query, Tables};
use inshore_store::Job;
use inshore_vectors::{self as vectors, ROW_COLUMN, RowSet, Vectors};

use crate::error::Result;

/// Selects the vectors for which the SQL expression `predicate` over their columns is true.
///
/// The cost is one read of the columns that the predicate names. Memory: that of a query, until it ends, and that of the
/// set, which the job keeps.
///
/// # Errors
/// Vectors without columns; a predicate that is no expression, or names an unknown column; too little memory; I/O and damage;
/// cancellation.
pub(super) fn select(job: &Job, vectors: &Vectors, predicate: &str) -> Result<RowSet> {
    let info = vectors.info();
    let input = vectors::columns_input(job, vectors)?;
    let mut selected = RowSet::empty(job.budget(), info.vectors)?;
    let tables = Tables::default().with_inputs(&info.name, vec![input]);
    let table = info.name.replace('"', "\"\"");
    // A comment at the end of the predicate ends with its line.
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
