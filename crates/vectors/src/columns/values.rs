//! Finds the rows of vectors by the values of the column of ids.

use inshore_store::Job;
use inshore_tables::TableReader;

use super::{
    columns_input,
    import::BATCH_ROWS,
    unique::{read_type, write_key},
};
use crate::{Error, Result, RowSet, Vectors};

/// The row of a value of the column of ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RowOfValue {
    /// The vector with this id has the row.
    Live(u64),
    /// A vector with this id was removed, and its row is still there.
    Removed,
    /// No row has the value.
    Unknown,
}

/// Finds the row of each value in `wanted`, which must be in ascending order. `id` names the column of ids. The function
/// reads this column once.
///
/// # Errors
/// - Returns [`Error::BadDataset`] if the vectors have no columns.
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
///   memory, or the job was cancelled.
pub(crate) fn rows_of_values(
    job: &Job,
    vectors: &Vectors,
    id: &str,
    wanted: &[&str],
    live: Option<&RowSet>,
) -> Result<Vec<RowOfValue>> {
    let input = columns_input(job, vectors)?;
    let described = TableReader::describe(&input, &[], job.budget())?.schema;
    let Ok(field) = described.field_with_name(id) else {
        return Err(Error::BadDataset {
            name: vectors.info().name.clone(),
            what: "column of ids",
            found: format!("no column '{id}'"),
            expected: "a column of `columns.parquet`".to_string(),
        });
    };
    let kind = read_type(field.data_type());
    let mut reader = TableReader::open(&input, &[(id, kind)], BATCH_ROWS, job.budget())?;
    job.start_phase("finding ids", "ids", vectors.info().vectors);
    let (mut found, mut key, mut row) = (vec![RowOfValue::Unknown; wanted.len()], Vec::new(), 0u64);
    while let Some(batch) = reader.next_batch()? {
        job.check_cancelled()?;
        for place in 0..batch.num_rows() {
            write_key(&batch, place, &mut key);
            if let Ok(number) = wanted.binary_search_by(|wanted| wanted.as_bytes().cmp(&key)) {
                match live.is_none_or(|live| live.contains(row)) {
                    true => found[number] = RowOfValue::Live(row),
                    false if found[number] == RowOfValue::Unknown => found[number] = RowOfValue::Removed,
                    false => {}
                }
            }
            row += 1;
        }
        job.progress().add(batch.num_rows() as u64);
    }
    Ok(found)
}
