//! The operations `store put`, `store get`, `store ls` and `store rm`, and functions that find the datasets and
//! files in a request.

mod get;
mod list;
mod put;

use std::{
    ops::Range,
    path::{Path, PathBuf},
};

#[cfg(feature = "nodes")]
use inshore_nodes::DistributedFile;
use inshore_store::{CheckedFile, Dataset, Store};

#[cfg(any(feature = "graph", feature = "wasm"))]
pub(super) use self::list::remove_dataset;
#[cfg(any(feature = "graph", feature = "vectors", feature = "wasm"))]
pub(super) use self::list::remove_each;
pub use self::{
    get::{GetAnswer, GetDataset, GetPlan},
    list::{ListAnswer, ListDatasets, Listed, ListedHere, ListedSpread, RemoveAnswer, RemoveDatasets},
    put::{PutAnswer, PutDataset},
};
use crate::error::{Error, Result};
#[cfg(feature = "nodes")]
use crate::target::{OnNodes, wholes};

/// The size of read and write requests in bytes; larger requests are not faster.
const BUFFER_BYTES: usize = 1 << 20;

/// Returns the input of an operation that takes exactly one input.
pub(super) fn only<'a>(operation: &'static str, inputs: &'a [PathBuf]) -> Result<&'a PathBuf> {
    match inputs {
        [input] => Ok(input),
        inputs => {
            let what = format!("inputs: expected one, got {}", inputs.len());
            Err(Error::Request { operation, what })
        }
    }
}

/// Returns the name of a dataset or its file, `NAME` or `NAME/FILE`, without the prefix `store:`.
pub(super) fn dataset_of(path: &Path) -> Result<&str> {
    let named = path.to_str().ok_or_else(|| Error::BadName { path: path.to_path_buf() })?;
    Ok(named.strip_prefix("store:").unwrap_or(named))
}

/// Returns the only file of a dataset on nodes, or the named file.
///
/// # Errors
/// - Returns [`Error::SeveralFiles`] if the dataset has several files and none was named.
/// - Returns the errors of [`wholes`].
#[cfg(feature = "nodes")]
pub(super) fn only_file_on_nodes(on: &OnNodes, path: &PathBuf) -> Result<DistributedFile> {
    let mut found = wholes(&on.nodes, std::slice::from_ref(path))?;
    match (found.pop(), &found[..]) {
        (Some(whole), []) => Ok(whole),
        (last, _) => {
            let files = found.into_iter().chain(last).map(|whole| whole.title).collect();
            Err(Error::SeveralFiles { name: dataset_of(path)?.to_string(), files })
        }
    }
}

/// Returns the named file of a dataset, or its only file.
///
/// # Errors
/// - Returns [`Error::SeveralFiles`] if the dataset has several files and none was named.
/// - Returns [`Error::NoFile`] if the dataset does not have the named file.
pub fn dataset_file(dataset: &Dataset, name: Option<&str>) -> Result<CheckedFile> {
    let files = || dataset.file_names().map(str::to_string).collect::<Vec<_>>();
    let found = match name {
        Some(name) => name.to_string(),
        None => match &files()[..] {
            [name] => name.clone(),
            files => {
                return Err(Error::SeveralFiles { name: dataset.name().to_string(), files: files.to_vec() });
            }
        },
    };
    let missing = || Error::NoFile { name: dataset.name().to_string(), file: found.clone(), files: files() };
    dataset.file(&found).ok_or_else(missing)
}

/// Returns a range within a file of this length in bytes.
///
/// # Errors
/// Returns [`Error::BeyondEnd`] if the range is beyond the end of the file.
pub fn dataset_range((file, bytes): (&str, u64), offset: u64, length: Option<u64>) -> Result<Range<u64>> {
    if offset > bytes {
        return Err(Error::BeyondEnd { file: file.to_string(), offset, bytes });
    }
    Ok(offset..length.map_or(bytes, |length| offset.saturating_add(length).min(bytes)))
}

/// Refuses an output file in a folder of the store.
///
/// # Errors
/// Returns [`Error::InStore`] if a path names a dataset of the store.
pub fn check_is_outside(store: &Store, output: &Path) -> Result<()> {
    let path = output.canonicalize().ok().or_else(|| {
        let parent = output.parent().filter(|parent| !parent.as_os_str().is_empty());
        Some(parent.unwrap_or(Path::new(".")).canonicalize().ok()?.join(output.file_name()?))
    });
    let Some(path) = path.filter(|_| output != Path::new("-")) else { return Ok(()) };
    for device in store.device_paths()?.into_values() {
        if path != device && path.starts_with(&device) {
            return Err(Error::InStore { output: output.to_path_buf(), device });
        }
    }
    Ok(())
}
