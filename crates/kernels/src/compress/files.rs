//! This module compresses and decompresses files. It chooses the name of the result, copies the metadata of the input,
//! and removes the input on request.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use inshore_store::{Context, remove_file};
use inshore_tables::{Input, NewFile};

use super::{Format, PackSummary, compress, decompress};
use crate::{Error, Result};

/// Options for the file that a compression or decompression writes.
#[derive(Clone, Debug, Default)]
pub struct FileOptions {
    /// The path of the file to write. `-` is standard output. The default is the path of the input, to which
    /// compression adds the format's ending, and from which decompression removes the ending.
    pub output: Option<PathBuf>,
    /// Replaces an existing file.
    pub force: bool,
    /// Removes the input once the result is on the drive.
    pub remove: bool,
}

/// Compresses the file `input` into `options.output`, or by default into a file in the same folder with the format's
/// ending added. Returns the output's path. The result has the permissions and the modification time of the input. The
/// file `output` appears only when the result is complete. Without `format`, the ending of the output determines the
/// format. If there is no known ending, the format is zstd.
///
/// # Errors
/// - Returns the errors of [`compress`].
/// - Returns [`Error::BadName`] if the output is the input file, or if no output is given and the input already has the
///   ending of a compression format.
/// - Returns [`Error::Exists`] if the output exists already and must not be replaced.
/// - Returns [`Error::Io`] if the metadata of the input cannot be copied, or the input cannot be removed.
pub fn compress_file(
    job: &Context,
    input: &Input,
    format: Option<Format>,
    level: Option<u32>,
    options: &FileOptions,
) -> Result<(PathBuf, PackSummary)> {
    let named = options.output.as_deref().and_then(Format::of_path);
    let format = format.or(named).unwrap_or(Format::Zstd);
    let beside = |path: &Path| {
        if Format::of_path(path).is_some() {
            let what = "it is compressed already, by its file extension";
            return Err(Error::BadName { path: path.to_path_buf(), what });
        }
        let mut name = path.as_os_str().to_owned();
        name.push(".");
        name.push(format.ending());
        Ok(PathBuf::from(name))
    };
    one(job, input, options, beside, |input, out| {
        compress(job, input.name(), input.open_as_is()?, out.writer()?, format, level)
    })
}

/// Decompresses the file `input` into `options.output`, or by default into a file in the same folder without the
/// ending. Returns the output's path. The result has the permissions and the modification time of the input, as in
/// [`compress_file`].
///
/// # Errors
/// - Returns the errors of [`decompress`].
/// - Returns [`Error::BadName`] if the output is the input file.
/// - Returns [`Error::UnknownEnding`] if no output is given and the input has no known ending.
/// - Returns [`Error::Exists`] if the output exists already and must not be replaced.
/// - Returns [`Error::Io`] if the metadata of the input cannot be copied, or the input cannot be removed.
pub fn decompress_file(
    job: &Context,
    input: &Input,
    options: &FileOptions,
) -> Result<(PathBuf, PackSummary)> {
    let beside = |path: &Path| match Format::of_path(path) {
        Some(_) => Ok(path.with_extension("")),
        None => Err(Error::UnknownEnding { path: path.to_path_buf() }),
    };
    one(job, input, options, beside, |input, out| {
        decompress(job, input.name(), input.open_as_is()?, out.writer()?)
    })
}

fn one(
    job: &Context,
    input: &Input,
    options: &FileOptions,
    beside: impl Fn(&Path) -> Result<PathBuf>,
    work: impl Fn(&Input, &NewFile) -> Result<PackSummary>,
) -> Result<(PathBuf, PackSummary)> {
    let input = input.clone().stopped_by(job.cancel());
    let output = match (&options.output, input.path()) {
        (Some(output), _) => output.clone(),
        (None, Some(path)) => beside(path)?,
        (None, None) => PathBuf::from("-"),
    };
    let is_in_place = NewFile::is_in_place(&output);
    if !is_in_place && !options.force && output.exists() {
        return Err(Error::Exists { path: output });
    }
    // If the paths of input and output name one file, removing the input would remove the new result.
    if let (Some(from), Ok(to)) = (input.path(), fs::canonicalize(&output))
        && !is_in_place
        && fs::canonicalize(from).is_ok_and(|from| from == to)
    {
        return Err(Error::BadName { path: output, what: "the output is the input file" });
    }
    let from = input.path().filter(|_| !is_in_place);
    let out = match from {
        // Only the owner can read the new file at first. A user who may not read the source must never be able to open
        // the result.
        Some(_) => NewFile::create_private(&output)?,
        None => NewFile::create(&output)?,
    };
    let done = work(&input, &out)?;
    if let Some(from) = from {
        keep_facts(from, &out.file()?, &output)?;
    }
    out.publish()?;
    if let Some(from) = from.filter(|_| options.remove) {
        let refused = |source| Error::Io { name: from.display().to_string(), what: "remove it", source };
        remove_file(from).map_err(refused)?;
    }
    Ok((output, done))
}

/// Copies the permissions and the modification time of the source to `file`, a new file without a name.
fn keep_facts(from: &Path, file: &fs::File, to: &Path) -> Result<()> {
    let keep = || -> io::Result<()> {
        let facts = fs::metadata(from)?;
        file.set_permissions(facts.permissions())?;
        file.set_modified(facts.modified()?)
    };
    let what = "copy its permissions and modification time";
    keep().map_err(|source| Error::Io { name: to.display().to_string(), what, source })
}
