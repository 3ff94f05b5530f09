//! Lets a job continue at the point where an interrupted job ended.

use std::{
    fmt::Debug,
    hash::{DefaultHasher, Hash, Hasher},
    os::unix::fs::MetadataExt,
};

use inshore_store::{Job, Keep};

use crate::{Error, Input, Result};

/// If `is_wanted` is true, opens the store's folder for the finished sorted runs of a job. The folder contains the
/// sorted runs of an interrupted job if that job had the same `what`, the same `question` and the same files. Files are
/// compared by path, inode, length and modification time.
///
/// # Errors
/// - Returns [`Error::Unsupported`] if an input is not a file.
/// - Returns [`Error::Io`] if the metadata of an input cannot be read.
/// - Returns [`inshore_store::Error::InUse`] if a running job uses the same sorted runs.
pub(crate) fn keep(
    is_wanted: bool,
    job: &Job,
    what: &str,
    question: impl Debug,
    inputs: &[Input],
) -> Result<Option<Keep>> {
    if !is_wanted {
        return Ok(None);
    }
    let mut hash = DefaultHasher::new();
    // The format of rows may differ between versions.
    (env!("CARGO_PKG_VERSION"), what, format!("{question:?}")).hash(&mut hash);
    for input in inputs {
        let Some(path) = input.path().filter(|_| input.compressed_bytes().is_some()) else {
            let what = "expected files to resume with: a pipe cannot be read twice";
            return Err(Error::unsupported(input.name(), what.to_string()));
        };
        let fail = |source| Error::io(input.name(), "open it", source);
        let (path, found) = (path.canonicalize().map_err(fail)?, path.metadata().map_err(fail)?);
        (path, found.ino(), found.len(), found.mtime(), found.mtime_nsec()).hash(&mut hash);
    }
    let first = inputs.first().map_or("", Input::name);
    let others = match inputs.len() {
        0 | 1 => String::new(),
        count => format!(" and {} more", count - 1),
    };
    Ok(Some(job.store().keep(job, hash.finish(), &format!("{what} {first}{others}"))?))
}

/// Removes the stored sorted runs at the end of a job.
pub(crate) fn finish(keep: Option<Keep>) -> Result<()> {
    keep.map_or(Ok(()), |keep| Ok(keep.finish()?))
}

/// Returns how many bytes of scratch space the stored sorted runs take.
pub(crate) fn bytes_kept(keep: Option<&Keep>) -> Result<u64> {
    let Some(keep) = keep else { return Ok(0) };
    Ok(keep.pieces()?.iter().map(|piece| piece.dataset.bytes()).sum())
}
