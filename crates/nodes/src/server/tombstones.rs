//! Reads and writes the tombstones of removed datasets in a node's store. `client/generations.rs` explains
//! their purpose.

use inshore_store::{Budget, Cancel, Dataset, Error, Result, Store};

use crate::protocol::{MAP_VERSION, REMOVED, RemoveRequest, SpreadId, Tombstone, wire::json};

/// The memory of a job that writes a tombstone, which contains no files.
const MARK_MEMORY_BYTES: u64 = 1 << 20;

pub(crate) fn mark_name(id: SpreadId) -> String {
    format!("removed-{id}")
}

/// Reads the tombstone from a dataset of the kind [`REMOVED`].
pub(crate) fn read_mark(store: &Store, dataset: &Dataset) -> Result<Tombstone> {
    serde_json::from_slice(dataset.attributes()).map_err(|error| Error::BadFormat {
        path: store.path().join(dataset.name()),
        what: "record of a removed dataset",
        found: error.to_string(),
        expected: format!("JSON of version {MAP_VERSION}"),
    })
}

/// Returns the highest number of a removed generation of this name; 0 if the node has no tombstone of the
/// name.
pub(crate) fn marked(store: &Store, name: &str) -> Result<u64> {
    let mut highest = 0;
    for dataset in store.datasets()?.iter().filter(|dataset| dataset.kind() == REMOVED) {
        let mark = read_mark(store, dataset)?;
        if mark.name == name {
            highest = highest.max(mark.generation.number);
        }
    }
    Ok(highest)
}

/// Executes a removal on a node and returns the number of removed data bytes. A new tombstone is written
/// before the shards are removed, and an old tombstone is removed after them: a node that crashes in between
/// still has both the tombstone and the shards.
pub(crate) fn remove(store: &Store, asked: &RemoveRequest) -> Result<u64> {
    let keeps = asked.mark.as_ref().is_some_and(|mark| !mark.absent.is_empty());
    if let Some(mark) = asked.mark.as_ref().filter(|_| keeps) {
        put_mark(store, mark)?;
    }
    let mut bytes = 0;
    if let Some(id) = asked.id {
        let found = store.dataset(&asked.name);
        match store.remove_exactly(&asked.name, id) {
            // Another client removed the dataset first.
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

/// Writes a tombstone, and replaces an earlier tombstone of the same generation.
fn put_mark(store: &Store, mark: &Tombstone) -> Result<()> {
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
