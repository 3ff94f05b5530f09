//! Removes vectors by their ids, which are numbers or the values of a column.

use inshore_store::{Job, Store};

use super::{APPEND_BYTES, Change, Changed, check_ids, retried};
use crate::{
    Error, Result, VectorsInfo,
    columns::{RowOfValue, id_column, rows_of_values},
    live::{RowsOfIds, live_bytes, live_rows},
};

/// Removes the vectors with the ids `ids` from the dataset `name`. Searches that have the dataset open still find these
/// vectors. The rows keep their space until the dataset is compacted. An id whose vector was already removed is not an
/// error, so a caller can repeat a call whose result was lost.
///
/// # Errors
/// - Returns [`Error::BadOption`] if no vector has ever had one of the ids, or if an id occurs twice.
/// - Returns [`Error::BadDataset`] if the dataset cannot be changed, or if the values of a column are its ids: see
///   [`remove_values`].
/// - Returns [`inshore_store::Error::Changed`] if other jobs changed the dataset during each attempt.
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
///   memory, or the job was cancelled.
pub fn remove_vectors(store: &Store, job: &Job, name: &str, ids: &[u64]) -> Result<Changed> {
    let bytes = size_of_val(ids) as u64 * 5;
    let _memory = job.budget().reserve(bytes, "ids of vectors that are removed")?;
    let mut ids = ids.to_vec();
    ids.sort_unstable();
    check_ids(&ids)?;
    retried(job, || remove_once(store, job, name, &ids))
}

fn remove_once(store: &Store, job: &Job, name: &str, ids: &[u64]) -> Result<Changed> {
    let change = Change::begin(store, job, name)?;
    let info = change.info().clone();
    // If the dataset has a column of ids, the user's ids are values of this column.
    if change.vectors.id_column.is_some() {
        return Err(Error::BadDataset {
            name: name.to_string(),
            what: "ids",
            found: "the values of a column".to_string(),
            expected: "the numbers of vectors".to_string(),
        });
    }
    if let Some(id) = ids.iter().find(|id| **id >= info.next_id) {
        return Err(Error::BadOption {
            option: "ids",
            found: id.to_string(),
            expected: format!("ids of vectors of {name}, which are below {}", info.next_id),
        });
    }
    job.budget().need(RowsOfIds::bytes(&info) + APPEND_BYTES, || format!("removing vectors of {name}"))?;
    let mut rows: Vec<u64> = RowsOfIds::read(job, &change.vectors)?.find(ids).into_iter().flatten().collect();
    rows.sort_unstable();
    let absent = (ids.len() - rows.len()) as u64;
    remove_rows(change, &rows, absent)
}

/// Removes the vectors whose values in the column of ids are `values`. The dataset must have been imported with a
/// column of ids. A value of a vector that was already removed is not an error, until a compaction frees its row.
///
/// The function reads the column of ids once. The memory is 64 bytes for each value, and one bit for each row.
///
/// # Errors
/// - Returns [`Error::BadOption`] if no row has one of the values, or if a value occurs twice.
/// - Returns [`Error::BadDataset`] if the dataset has no column of ids.
/// - Returns the errors of [`remove_vectors`].
pub fn remove_values(store: &Store, job: &Job, name: &str, values: &[String]) -> Result<Changed> {
    let _memory = job.budget().reserve(values.len() as u64 * 64, "ids of vectors that are removed")?;
    let mut values: Vec<&str> = values.iter().map(String::as_str).collect();
    values.sort_unstable();
    let bad = |found: String, expected: String| Err(Error::BadOption { option: "ids", found, expected });
    if let Some(pair) = values.windows(2).find(|pair| pair[0] == pair[1]) {
        return bad(format!("{:?} twice", pair[0]), "different ids".to_string());
    }
    if values.is_empty() {
        return bad("none".to_string(), "at least one".to_string());
    }
    retried(job, || {
        let change = Change::begin(store, job, name)?;
        let info = change.info();
        let Some(id) = id_column(job, &change.vectors)? else {
            return Err(Error::BadDataset {
                name: name.to_string(),
                what: "column of ids",
                found: "none".to_string(),
                expected: "one, to remove vectors by its values".to_string(),
            });
        };
        job.budget().need(live_bytes(info) + APPEND_BYTES, || format!("removing vectors of {name}"))?;
        let found = {
            let live = live_rows(job, &change.vectors)?;
            rows_of_values(job, &change.vectors, &id, &values, live.as_ref())?
        };
        if let Some(place) = found.iter().position(|row| *row == RowOfValue::Unknown) {
            return bad(format!("{:?}", values[place]), format!("values of the column '{id}' of {name}"));
        }
        let live = |row: &RowOfValue| match row {
            RowOfValue::Live(row) => Some(*row),
            RowOfValue::Removed | RowOfValue::Unknown => None,
        };
        let mut rows: Vec<u64> = found.iter().filter_map(live).collect();
        rows.sort_unstable();
        let absent = (values.len() - rows.len()) as u64;
        remove_rows(change, &rows, absent)
    })
}

/// Marks live rows as removed, and publishes the change. `absent` ids belong to vectors that had been removed before.
fn remove_rows(mut change: Change<'_>, rows: &[u64], absent: u64) -> Result<Changed> {
    let (info, taken) = (change.info().clone(), rows.len() as u64);
    if taken == 0 {
        return Ok(Changed { absent, ..Changed::of(info) });
    }
    change.append_removed(rows)?;
    let info = change.commit(VectorsInfo { removed: info.removed + taken, ..info })?;
    Ok(Changed { taken, absent, ..Changed::of(info) })
}
