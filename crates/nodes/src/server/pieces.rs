//! Converts between the pieces in requests and the sources of a task, also for tasks that run in another
//! process.

use std::collections::{BTreeMap, btree_map::Entry};

use inshore_kernel::{Failure, Source, SourceOffset, StoredSource, TaskSource};
use inshore_store::{Dataset, Job};

use crate::protocol::PieceRequest;

/// Opens the pieces of a request on the store of `job`.
///
/// # Errors
/// Returns an error if a dataset is missing, was replaced by another dataset of the same name, or does not have the
/// requested bytes.
pub fn open_pieces(job: &Job, pieces: Vec<PieceRequest>) -> Result<Vec<TaskSource>, Failure> {
    let mut opened: BTreeMap<(String, u64), Dataset> = BTreeMap::new();
    let store = job.store();
    let mut sources = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let PieceRequest { number, whole, dataset, id, file, from, to, offset, lines } = piece;
        let found = match opened.entry((dataset.clone(), id)) {
            Entry::Occupied(entry) => entry.into_mut(),
            Entry::Vacant(entry) => entry.insert(store.dataset(&dataset)?),
        };
        if found.id() != id {
            return Err(format!(
                "{dataset} was replaced since the client looked it up: run the command again"
            )
            .into());
        }
        let bytes = found.file(&file).ok_or_else(|| format!("{dataset} has no file {file}"))?;
        if from > to || to > bytes.len() {
            return Err(format!("{dataset}/{file} has no bytes {from} to {to}, only {}", bytes.len()).into());
        }
        // A piece cannot have more lines than bytes, since each byte ends at most one line.
        if offset.checked_add(to).is_none() || lines.checked_add(to).is_none() {
            return Err(format!("the offset of {dataset}/{file} exceeds 64 bits").into());
        }
        let source = Source::dataset_part(job, bytes, from..to).behind(SourceOffset { offset, lines });
        sources.push(TaskSource { number, whole, source, stored: Some(StoredSource { dataset, id, file }) });
    }
    Ok(sources)
}

impl PieceRequest {
    /// Returns the request with which [`open_pieces`] opens `source` again, or `None` if the source is not part of a
    /// dataset.
    pub fn of_source(source: &TaskSource) -> Option<PieceRequest> {
        let (StoredSource { dataset, id, file }, (_, range)) =
            (source.stored.clone()?, source.source.part()?);
        let SourceOffset { offset, lines } = source.source.base();
        let (number, whole, from, to) = (source.number, source.whole, range.start, range.end);
        Some(PieceRequest { number, whole, dataset, id, file, from, to, offset, lines })
    }
}
