//! Writes the pieces of a spread file on a node, and makes them visible with the map of the file.

use inshore_store::{DatasetBuilder, Job, Result};

pub use crate::client::now_ms;
use crate::{
    protocol::{FileMap, Generation, MAP, SPREAD, wire::json},
    server::tombstones,
};

/// The size of the checksum blocks of a map, and of its write buffers, in bytes.
const BLOCK_BYTES: usize = 64 << 10;

/// Checks that a dataset can get a name.
///
/// # Errors
/// - Returns [`inshore_store::Error::BadName`] if the name is not valid for a dataset.
/// - Returns [`inshore_store::Error::NameExists`] if there is a dataset of this name.
pub fn check(job: &Job, name: &str) -> Result<()> {
    job.store().create_dataset(job, name, SPREAD).map(drop)
}

/// Begins a dataset for pieces on the store of `job`. Also returns the highest generation among the removed datasets of
/// this name, or 0.
///
/// # Errors
/// - Returns [`inshore_store::Error::NameExists`] if there is a dataset of this name.
/// - Returns the error of a failed read of the store.
pub fn begin(job: &Job, name: &str) -> Result<(DatasetBuilder, u64)> {
    let store = job.store();
    let builder = store.create_dataset(job, name, SPREAD)?;
    let generation = tombstones::marked(&store, name)?;
    Ok((builder, generation))
}

/// Adds the map of the file. The dataset then has all of its space, so a commit does not fail on a full device.
///
/// # Errors
/// Returns the error of a failed write.
pub fn add_map(builder: &mut DatasetBuilder, map: &FileMap) -> Result<()> {
    let mut writer = builder.file(MAP, BLOCK_BYTES, BLOCK_BYTES)?;
    writer.write(&json(map))?;
    builder.add(writer)
}

/// Makes the dataset visible.
///
/// # Errors
/// Returns the errors of [`DatasetBuilder::commit`].
pub fn commit(builder: DatasetBuilder, generation: &Generation) -> Result<()> {
    builder.commit(&generation.attributes())
}
