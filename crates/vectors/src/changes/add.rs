//! Adds the vectors of a file to a dataset, with new ids or with ids that the caller gives.

use inshore_store::{FILE_SOURCE_BYTES, Job, Store};

use super::{APPEND_BYTES, Change, Changed, check_ids, retried};
use crate::{
    Element, Error, Result, VectorFile, VectorsInfo,
    columns::check_no_columns,
    dataset::{CHECK_BYTES, VECTORS},
    id_run::IdRun,
    ids::Ids,
    import::{BUFFER_BYTES, BUFFERS},
    live::RowsOfIds,
};

/// Adds the vectors of `file` to the dataset `name`. The new vectors get consecutive ids, which begin after the largest
/// id that the dataset has used.
///
/// The function reads the file once, writes its vectors once, and copies the last extent of the dataset. It takes the
/// memory of [`crate::import()`], and 16 bytes for each run of ids. A run is a sequence of consecutive rows with
/// consecutive ids.
///
/// # Errors
/// - Returns [`Error::BadFile`] if the file has another number of dimensions or another element type than the dataset,
///   or if it contains a malformed vector or a value that is not finite.
/// - Returns [`Error::BadDataset`] if the dataset cannot be changed.
/// - Returns [`inshore_store::Error::Changed`] if other jobs changed the dataset during each attempt.
/// - Returns [`Error::Store`] if an I/O operation fails, the budget has too little free memory, or the job was
///   cancelled.
///
/// After an error, the dataset is unchanged.
pub fn add_vectors(store: &Store, job: &Job, name: &str, file: &VectorFile) -> Result<Changed> {
    let changed = retried(job, || {
        let mut change = Change::begin(store, job, name)?;
        check_no_columns(&change.vectors, true)?;
        let info = change.info().clone();
        check_alike(file, &info)?;
        let memory = Ids::bytes(&info);
        job.budget().need(memory + append_bytes(file), || format!("adding vectors to {name}"))?;
        let rounded = append_rows(&mut change, file)?;
        change.commit_added(file.count(), 0, rounded)
    })?;
    Ok(changed.listed(store, job))
}

/// Inserts the vectors of `file` into the dataset `name`, or replaces vectors of the dataset with them. `ids` has one
/// id for each vector of the file. If the dataset has a vector with this id, the new vector replaces it. Otherwise the
/// new vector is added. One commit publishes all changes.
///
/// In addition to the work of [`add_vectors`], the function reads the list of removed rows. In addition to the memory
/// of [`add_vectors`], it takes 64 bytes for each id, and one bit for each row of the dataset.
///
/// # Errors
/// - Returns the errors of [`add_vectors`].
/// - Returns [`Error::BadOption`] if an id occurs twice or is too large, or if the number of ids is not the number of
///   vectors.
pub fn upsert_vectors(
    store: &Store,
    job: &Job,
    name: &str,
    file: &VectorFile,
    ids: &[u64],
) -> Result<Changed> {
    if ids.len() as u64 != file.count() {
        return Err(Error::BadOption {
            option: "ids",
            found: format!("{} ids", ids.len()),
            expected: format!("one for each of the {} vectors of {}", file.count(), file.path().display()),
        });
    }
    let memory = job.budget().reserve(ids.len() as u64 * 64, "ids of vectors that are replaced")?;
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    check_ids(&sorted)?;
    let changed = retried(job, || {
        let mut change = Change::begin(store, job, name)?;
        check_no_columns(&change.vectors, false)?;
        let info = change.info().clone();
        check_alike(file, &info)?;
        let memory = RowsOfIds::bytes(&info).max(append_bytes(file));
        job.budget().need(memory, || format!("replacing vectors of {name}"))?;
        let (replaced, runs) = {
            let known = RowsOfIds::read(job, &change.vectors)?;
            let mut rows: Vec<u64> = known.find(&sorted).into_iter().flatten().collect();
            rows.sort_unstable();
            (rows, known.ids.runs_of(info.vectors, ids.iter().copied()))
        };
        let rounded = append_rows(&mut change, file)?;
        change.append_removed(&replaced)?;
        change.append_runs(&runs)?;
        finish(change, &sorted, &replaced, &runs, rounded)
    })?;
    drop((sorted, memory));
    Ok(changed.listed(store, job))
}

/// Publishes the rows of an upsert with the ids `sorted`, which replace the rows `replaced`.
pub(super) fn finish(
    change: Change<'_>,
    sorted: &[u64],
    replaced: &[u64],
    runs: &[IdRun],
    rounded: u64,
) -> Result<Changed> {
    let info = change.info().clone();
    let (count, replaced) = (sorted.len() as u64, replaced.len() as u64);
    let info = change.commit(VectorsInfo {
        vectors: info.vectors + count,
        removed: info.removed + replaced,
        next_id: info.next_id.max(sorted.last().map_or(0, |last| last + 1)),
        id_runs: info.id_runs + runs.len() as u64,
        ..info
    })?;
    Ok(Changed { added: count - replaced, replaced, rounded, ..Changed::of(info) })
}

/// Checks that a file has the same element type and the same number of dimensions as a dataset.
fn check_alike(file: &VectorFile, info: &VectorsInfo) -> Result<()> {
    let bad = |place: &str, found: String, expected: String| {
        let expected = format!("{expected}, as the vectors of {}", info.name);
        Err(Error::BadFile {
            file: file.path().display().to_string(),
            place: place.to_string(),
            found,
            expected,
        })
    };
    if file.element() != info.element {
        let expected = match (info.element, file.element()) {
            (Element::Bits, Element::U8) => "bits (--bits takes each byte as eight of them)".to_string(),
            (element, _) => element.to_string(),
        };
        return bad("the elements", file.element().to_string(), expected);
    }
    if file.dimensions() != info.dimensions {
        return bad("vector 0", format!("{} dimensions", file.dimensions()), info.dimensions.to_string());
    }
    Ok(())
}

/// Returns the memory, in bytes, that is needed to append the vectors of a file.
fn append_bytes(file: &VectorFile) -> u64 {
    let buffers = (BUFFERS * BUFFER_BYTES + 2 * CHECK_BYTES + (64 << 10)) as u64;
    buffers + file.rows_bytes(true).max(FILE_SOURCE_BYTES) + 2 * APPEND_BYTES
}

/// Appends all vectors of a file. Returns how many elements were rounded.
fn append_rows(change: &mut Change<'_>, file: &VectorFile) -> Result<u64> {
    let job = change.job;
    let _work = job.budget().reserve(file.rows_bytes(true) - FILE_SOURCE_BYTES, "vectors that are added")?;
    let mut writer = change.builder.append(VECTORS, CHECK_BYTES, BUFFER_BYTES, BUFFERS)?;
    let mut rows = file.rows(job, 0, true)?;
    let row_bytes = change.info().row_bytes();
    job.start_phase("adding", "vectors", file.count());
    loop {
        let bytes = rows.next(u64::MAX)?;
        if bytes.is_empty() {
            break;
        }
        writer.write(bytes)?;
        job.progress().add((bytes.len() / row_bytes) as u64);
    }
    change.builder.add(writer)?;
    Ok(rows.rounded())
}
