//! Marks of removed datasets, as a node keeps them. `generations.rs` says what they are for.

use inshore_store::{Budget, Cancel, Dataset, Error, Result, Store};

use super::{
    protocol::{MAP_VERSION, Mark, REMOVED, Removal, SpreadId},
    wire::json,
};

/// Memory of a job that writes a mark, which has no files.
const MARK_MEMORY_BYTES: u64 = 1 << 20;

pub(super) fn mark_name(id: SpreadId) -> String {
    format!("removed-{id}")
}

/// Reads a mark that a node keeps, from a dataset of the kind [`REMOVED`].
pub(super) fn read_mark(store: &Store, dataset: &Dataset) -> Result<Mark> {
    serde_json::from_slice(dataset.attributes()).map_err(|error| Error::BadFormat {
        path: store.path().join(dataset.name()),
        what: "mark of a removed dataset",
        found: error.to_string(),
        expected: format!("JSON of version {MAP_VERSION}"),
    })
}

/// The highest number of a generation of this name that a node knows to be removed; 0 where it knows none.
pub(super) fn marked(store: &Store, name: &str) -> Result<u64> {
    let mut highest = 0;
    for dataset in store.datasets()?.iter().filter(|dataset| dataset.kind() == REMOVED) {
        let mark = read_mark(store, dataset)?;
        if mark.name == name {
            highest = highest.max(mark.generation.number);
        }
    }
    Ok(highest)
}

/// Does on a node what a removal asks for, and gives the bytes of data that it removed. The mark is there before the shards go, and
/// goes after them: a node that dies between keeps both.
pub(super) fn remove(store: &Store, asked: &Removal) -> Result<u64> {
    let keeps = asked.mark.as_ref().is_some_and(|mark| !mark.absent.is_empty());
    if let Some(mark) = asked.mark.as_ref().filter(|_| keeps) {
        put_mark(store, mark)?;
    }
    let mut bytes = 0;
    if let Some(id) = asked.id {
        let found = store.dataset(&asked.name);
        match store.remove_exactly(&asked.name, id) {
            // Another client was faster.
            Err(Error::NotFound { .. }) if asked.mark.is_some() => {}
            removed => {
                removed?;
                bytes = found.map_or(0, |found| found.bytes());
            }
        }
    }
    if let Some(mark) = asked.mark.as_ref().filter(|_| !keeps) {
        let name = mark_name(mark.generation.id);
        match store.dataset(&name).map(|found| (found.kind() == REMOVED, found.id())) {
            Ok((true, id)) => store.remove_exactly(&name, id)?,
            Ok(_) | Err(Error::NotFound { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

/// Keeps a mark, in the place of one of the same generation.
fn put_mark(store: &Store, mark: &Mark) -> Result<()> {
    let job = store.job(Budget::new(MARK_MEMORY_BYTES, 1), Cancel::default())?;
    let name = mark_name(mark.generation.id);
    let is_there = store.dataset(&name).is_ok_and(|found| found.kind() == REMOVED);
    let builder = match is_there {
        true => store.append_to_dataset(&job, &name)?,
        false => {
            let mut builder = store.create_dataset(&job, &name, REMOVED)?;
            builder.unsealed();
            builder
        }
    };
    builder.commit(&json(mark))
}
