//! Removes vectors by their ids.

use inshore_store::{Job, Store};

use super::{APPEND_BYTES, Change, Changed, RowsOfIds, check_ids, retried};
use crate::{Error, Result, VectorsInfo};

/// Removes the vectors with the ids `ids` from the dataset `name`. Searches that are open go on with them. The rows keep
/// their space until the dataset is compacted. A vector that was removed before is no error, so that a call whose end was
/// not seen can be made again.
///
/// # Errors
/// [`Error::BadOption`] for an id that no vector has had, or that stands there twice; [`Error::BadDataset`] for a dataset
/// that cannot be changed; [`inshore_store::Error::Changed`] if other jobs changed it again and again; I/O and damage; too
/// little memory; cancellation.
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
