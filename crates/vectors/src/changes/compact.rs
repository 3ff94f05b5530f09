//! Compaction frees the rows of removed vectors, and merges the layers of an index into its lists.

use inshore_store::{CheckedFile, DatasetBuilder, FileReader, FileWriter, Job, Store};
use serde::Serialize;
use zerocopy::IntoBytes;

use super::CHECK_BYTES as SMALL_CHECK_BYTES;
use crate::{
    Error, Result, RowSet, SearchIndex, Vectors, VectorsInfo,
    columns::{copy_columns, copy_columns_bytes},
    dataset::{CENTER, CHECK_BYTES, CONTENT, ID_COLUMN, ID_RUNS, KIND, VECTORS},
    id_run::IdRun,
    ids::Ids,
    import::{BUFFER_BYTES, BUFFERS},
    index::remove_unused_layers,
    index_kinds::Rewritten,
    live::{live_bytes, live_rows},
};

/// The size in bytes of the buffers of small files.
const SMALL_BUFFER_BYTES: usize = 64 << 10;
/// The memory, in bytes, for copying the live rows. It does not include the set of live rows and the ids. A row is live
/// if its vector was not removed.
const COPY_BYTES: u64 =
    (2 * BUFFER_BYTES + BUFFERS * BUFFER_BYTES + 2 * CHECK_BYTES + 8 * SMALL_BUFFER_BYTES) as u64;

/// The result of a compaction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compacted {
    /// The dataset after the compaction.
    #[serde(flatten)]
    pub info: VectorsInfo,
    /// The number of rows that were freed.
    pub freed: u64,
    /// The number of lists of the rewritten index. The value is `None` if no index was rewritten.
    pub lists: Option<u64>,
    /// The number of lists that were split, since they had more than twice the planned number of vectors. The value is
    /// `None` if no lists were rewritten.
    pub split: Option<u64>,
}

/// Writes the vectors `name` and their columns again without the rows of removed vectors, and writes the lists of their
/// index again with all live vectors. The ids of the vectors stay the same. Lists with more than twice the planned
/// number of vectors are split, and recall is measured again. If no list is split, the centroids of the index and its
/// table of recall stay the same.
///
/// One commit replaces the vectors and the index. A job that is killed before the commit changes nothing, and searches
/// that have the old files open continue to read these files. If another job changes the vectors during the compaction,
/// the compaction fails with [`inshore_store::Error::Changed`] and changes nothing.
///
/// If vectors were removed, the function reads and writes all vectors and their columns once. If the index is
/// rewritten, the function also does the last two steps of a build ([`crate::build_index`]). If lists are split, the
/// assignment is done twice.
///
/// # Errors
/// - Returns [`Error::BadDataset`] if all vectors were removed.
/// - Returns the errors of [`crate::build_index`].
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
///   memory, or the job was cancelled.
pub fn compact_vectors(store: &Store, job: &Job, name: &str) -> Result<Compacted> {
    let is_sealed = store.dataset(name)?.summary().sealed;
    let vectors = Vectors::open(store, name)?;
    let info = vectors.info();
    if info.live() == 0 {
        return Err(Error::BadDataset {
            name: name.to_string(),
            what: "vectors",
            found: "none that was not removed".to_string(),
            expected: format!("at least one: `nearest rm {name}` removes the dataset"),
        });
    }
    let index = match SearchIndex::open(store, &vectors) {
        Err(Error::BadDataset { .. }) => None,
        index => index?,
    };
    let is_whole = |index: &SearchIndex| index.rows_built() == info.vectors;
    if info.removed == 0 && !is_sealed {
        let Some(index) = index.filter(|index| !is_whole(index)) else {
            remove_unused_layers(store, name)?;
            return Ok(Compacted { info: info.clone(), freed: 0, lists: None, split: None });
        };
        let Rewritten { builder, attributes, lists, split } = index.rewrite(store, job, &vectors)?;
        builder.commit(&attributes)?;
        remove_unused_layers(store, name)?;
        return Ok(Compacted { info: info.clone(), freed: 0, lists, split });
    }
    let (builder, compacted) = write_live(store, job, name)?;
    let freed = info.vectors - compacted.info().vectors;
    let mut changes = vec![(builder, compacted.info().to_attributes())];
    let (mut lists, mut split) = (None, None);
    if let Some(index) = index {
        let written = index.rewrite(store, job, &compacted)?;
        (lists, split) = (written.lists, written.split);
        changes.push((written.builder, written.attributes));
    }
    DatasetBuilder::commit_all(changes)?;
    remove_unused_layers(store, name)?;
    Ok(Compacted { info: compacted.info().clone(), freed, lists, split })
}

/// Writes the live rows as a dataset that is not published yet. Returns the builder of the dataset and the vectors.
fn write_live(store: &Store, job: &Job, name: &str) -> Result<(DatasetBuilder, Vectors)> {
    let mut builder = store.replace_dataset(job, name, KIND)?;
    builder.unsealed();
    let old = Vectors::of(builder.base().expect("the dataset was opened"))?;
    let info = old.info().clone();
    job.budget().need(
        COPY_BYTES.max(copy_columns_bytes(&old))
            + live_bytes(&info)
            + RowSet::bytes(info.vectors)
            + Ids::bytes(&info),
        || format!("compacting {name}"),
    )?;
    let ids = Ids::read(job, &old)?;
    let live = match live_rows(job, &old)? {
        Some(live) => live,
        None => RowSet::full(job.budget(), info.vectors)?,
    };
    let mut writer = builder.file_with_buffers(VECTORS, CHECK_BYTES, BUFFER_BYTES, BUFFERS)?;
    job.start_phase("compacting", "vectors", info.vectors);
    copy_live(job, &old, &live, &mut writer)?;
    let file = builder.add_and_open(writer)?;
    let mut copy = |name, file: &Option<CheckedFile>| {
        file.as_ref().map(|file| copy_file(job, name, file, &mut builder)).transpose()
    };
    let center = copy(CENTER, &old.center)?;
    copy(ID_COLUMN, &old.id_column)?;
    copy(CONTENT, &old.content)?;
    copy_columns(job, &old, &live, &mut builder)?;
    let (mut runs, mut id_runs) = (0, None);
    if live.rows().zip(0..).any(|(row, number)| ids.id(row) != number) {
        let mut writer = builder.file(ID_RUNS, SMALL_CHECK_BYTES, SMALL_BUFFER_BYTES)?;
        runs = write_runs(&mut writer, live.rows().map(|row| ids.id(row)))?;
        id_runs = Some(builder.add_and_open(writer)?);
    }
    let info =
        VectorsInfo { vectors: live.count(), removed: 0, id_runs: runs, bytes: builder.bytes(), ..info };
    let vectors = Vectors::unpublished(info, builder.id(), file, center, id_runs);
    Ok((builder, vectors))
}

/// Copies a small file to the new dataset.
fn copy_file(job: &Job, name: &str, file: &CheckedFile, builder: &mut DatasetBuilder) -> Result<CheckedFile> {
    let mut writer = builder.file(name, CHECK_BYTES, CHECK_BYTES)?;
    let mut reader = FileReader::new(job, file, 0..file.len(), CHECK_BYTES)?;
    while let Some(piece) = reader.next_piece()? {
        writer.write(piece)?;
    }
    Ok(builder.add_and_open(writer)?)
}

/// Copies the elements of the live rows.
fn copy_live(job: &Job, vectors: &Vectors, live: &RowSet, writer: &mut FileWriter) -> Result<()> {
    let row_bytes = vectors.info().row_bytes() as u64;
    let mut reader = FileReader::new(job, &vectors.file, 0..vectors.file.len(), BUFFER_BYTES)?;
    let mut start = 0;
    while let Some(piece) = reader.next_piece()? {
        let end = start + piece.len() as u64;
        // A piece is the bytes that one read returns. The first and the last row of a piece may lie partly in the piece
        // before or after it.
        for row in start / row_bytes..end.div_ceil(row_bytes) {
            if live.contains(row) {
                let from = (row * row_bytes).max(start) - start;
                let until = ((row + 1) * row_bytes).min(end) - start;
                writer.write(&piece[from as usize..until as usize])?;
            }
        }
        job.progress().add(end / row_bytes - start / row_bytes);
        start = end;
    }
    Ok(())
}

/// Writes the runs of ids of consecutive rows. `ids` has the id of each row, from row 0 on. Returns the number of runs.
fn write_runs(writer: &mut FileWriter, ids: impl Iterator<Item = u64>) -> Result<u64> {
    let (mut count, mut expected) = (0, None);
    for (row, id) in (0..).zip(ids) {
        if expected != Some(id) {
            writer.write(IdRun::new(row, id).as_bytes())?;
            count += 1;
        }
        expected = Some(id + 1);
    }
    Ok(count)
}
