//! Removes vectors by their ids.

use inshore_store::{Job, Store};

use super::{APPEND_BYTES, Change, Changed, RowsOfIds, check_ids, retried};
use crate::{Error, Result, VectorsInfo};

/// Removes the vectors with the ids `ids` from the dataset `name`. Searches that have the dataset open still find these
/// vectors. The rows keep their space until the dataset is compacted. An id whose vector was already removed is not an
/// error, so a caller can repeat a call whose result was lost.
///
/// # Errors
/// - Returns [`Error::BadOption`] if no vector has ever had one of the ids, or if an id occurs twice.
/// - Returns [`Error::BadDataset`] if the dataset cannot be changed.
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
    let mut change = Change::begin(store, job, name)?;
    let info = change.info().clone();
    // If the dataset has a column of ids, the user's ids are values of this column. This function finds rows only by
    // their internal ids.
    if change.vectors.id_column.is_some() {
        return Err(Error::BadDataset {
            name: name.to_string(),
            what: "ids",
            found: "the values of a column".to_string(),
            expected: "the numbers of vectors, to remove vectors: import the table again".to_string(),
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
    let (taken, absent) = (rows.len() as u64, (ids.len() - rows.len()) as u64);
    if taken == 0 {
        return Ok(Changed { absent, ..Changed::of(info) });
    }
    change.append_removed(&rows)?;
    let info = change.commit(VectorsInfo { removed: info.removed + taken, ..info })?;
    Ok(Changed { taken, absent, ..Changed::of(info) })
}
