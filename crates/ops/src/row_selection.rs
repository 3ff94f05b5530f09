//! Selects rows of a table by an SQL expression, as a set of vectors.

use arrow_array::{cast::AsArray, types::UInt64Type};
use inshore_sql::{Query, Tables};
use inshore_store::Job;
use inshore_vectors::{self as vectors, ROW_COLUMN, RowSet, VectorsInfo};

use crate::error::Result;

/// Returns a name in quotes, as SQL needs it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Selects the vectors `info` for which the SQL expression `predicate` is true. The table of their columns is the one
/// of `tables` that has the name of the vectors.
///
/// The cost is one read of the columns in the predicate. The memory of the query is freed when it ends. The memory of
/// the set stays reserved until the set is dropped.
///
/// # Errors
/// - Returns an error if the predicate is not an SQL expression, or has an unknown column.
/// - Returns an error if a read fails, stored bytes are damaged, the budget has too little free memory, or the job was
///   cancelled.
pub(crate) fn select_rows(job: &Job, info: &VectorsInfo, predicate: &str, tables: Tables) -> Result<RowSet> {
    let mut selected = RowSet::empty(job.budget(), info.vectors)?;
    // The line feeds end a comment at the end of the predicate.
    let (row, table) = (quoted(ROW_COLUMN), quoted(&info.name));
    let text = format!("SELECT {row} FROM {table} WHERE (\n{predicate}\n)");
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
