//! The operation `checksum`.

#[cfg(feature = "nodes")]
mod nodes;

use std::{
    fs, io,
    path::{Path, PathBuf},
    slice,
};

use inshore_kernels::{self as kernels, checksum_files, listed_checksums, table_inputs};
use inshore_store::Execution;
use inshore_tables::Input;
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    operation::{Attachments, NormalForm, Operation, Plan, RequestContext, StoreUse},
    target::Response,
    target_kind::TargetKind,
};

/// Computes checksums of files, or checks files against lists of checksums: see [`checksum_files`]. The client
/// fetches the bytes of a file on nodes, since a checksum needs all bytes in order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Checksum {
    /// The checksum algorithm.
    pub algorithm: kernels::Checksum,
    /// If true, the inputs are lists of checksums and file names in the format of `sha256sum`, and the operation
    /// checks the listed files.
    pub check: bool,
}

impl Default for Checksum {
    /// Returns the operation that computes the SHA-256 of the inputs.
    fn default() -> Self {
        Checksum { algorithm: kernels::Checksum::Sha256, check: false }
    }
}

/// The checksums of all files, in the order of the inputs.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChecksumAnswer {
    /// The checksums, one for each file.
    pub files: Vec<FileChecksum>,
}

/// The checksum of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileChecksum {
    /// The name of the file; `-` for standard input, as in lists of checksums.
    pub name: String,
    /// The checksum. The value is `None` if the file cannot be read.
    pub checksum: Option<String>,
    /// True if the checksum equals the one in the list; `None` without a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_right: Option<bool>,
}

impl Checksum {
    /// Returns the names of the files, with the expected checksums if the inputs are lists.
    fn wanted(&self, inputs: &[PathBuf]) -> Result<Vec<(PathBuf, Option<String>)>> {
        if !self.check {
            return Ok(inputs.iter().map(|path| (path.clone(), None)).collect());
        }
        let mut wanted = Vec::new();
        for list in inputs {
            let text = match list == Path::new("-") {
                true => io::read_to_string(io::stdin()),
                false => fs::read_to_string(list),
            };
            let text = text.map_err(|source| Error::Unreadable { path: list.clone(), source })?;
            let listed = listed_checksums(list, &text, self.algorithm)?;
            wanted.extend(listed.into_iter().map(|(name, sum)| (name, Some(sum))));
        }
        Ok(wanted)
    }
}

/// A file with its expected checksum, if a list has one.
type Wanted<F> = (F, Option<String>);

/// The files whose checksums are computed.
#[derive(Debug)]
pub enum ChecksumFiles {
    /// Local files and datasets.
    Here(Vec<Wanted<PathBuf>>),
    /// Files on nodes, and the names in a list for which no node has a file.
    #[cfg(feature = "nodes")]
    Nodes(nodes::FoundFiles),
}

impl Plan for ChecksumFiles {}

impl Operation for Checksum {
    const NAME: &'static str = "checksum";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const STORE: StoreUse = StoreUse::Datasets;
    const FORM: NormalForm = NormalForm::Answer;
    type Plan = ChecksumFiles;
    type Answer = ChecksumAnswer;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, place: TargetKind) -> Result<()> {
        match place.is_on_nodes() && inputs.is_empty() {
            true => Err(Error::NoInput { operation: Self::NAME }),
            false => Ok(()),
        }
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<ChecksumFiles> {
        let wanted = self.wanted(context.inputs)?;
        #[cfg(feature = "nodes")]
        if let Some(on) = context.target.on_nodes() {
            return Ok(ChecksumFiles::Nodes(self.on_nodes(on, wanted)?));
        }
        Ok(ChecksumFiles::Here(wanted))
    }

    fn run(
        &self,
        files: ChecksumFiles,
        _asked: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<ChecksumAnswer>> {
        let done = match files {
            ChecksumFiles::Here(wanted) => Response::local(self.here(wanted, job, &attachments)?),
            #[cfg(feature = "nodes")]
            ChecksumFiles::Nodes(found) => self.each_whole(found, job, &attachments)?,
        };
        Ok(done)
    }
}

/// Compares the checksum of a file with the expected checksum. If the file could not be read, reports the error.
fn found(
    name: String,
    expected: Option<String>,
    checksum: Result<String>,
    attachments: &Attachments<'_>,
) -> FileChecksum {
    let checksum = checksum.map_err(|error| attachments.fail(&error)).ok();
    let is_right = expected.map(|expected| checksum.as_ref() == Some(&expected));
    FileChecksum { name, checksum, is_right }
}

impl Checksum {
    fn here(
        &self,
        wanted: Vec<Wanted<PathBuf>>,
        job: &Execution,
        attachments: &Attachments<'_>,
    ) -> Result<ChecksumAnswer> {
        let (mut inputs, mut expected) = (Vec::new(), Vec::new());
        for (path, sum) in wanted {
            let files = table_inputs(job.job(), slice::from_ref(&path))?;
            expected.extend(files.iter().map(|_| sum.clone()));
            inputs.extend(files);
        }
        let sizes = inputs.iter().filter_map(Input::compressed_bytes).sum();
        job.start_phase(Self::NAME, "bytes", sizes);
        let sums = checksum_files(job, self.algorithm, &inputs);
        job.check_cancelled()?;
        let names = inputs.iter().map(|input| match input.path() {
            Some(path) => path.display().to_string(),
            None if input.name() == "standard input" => "-".to_string(),
            None => input.name().to_string(),
        });
        let sums = sums.into_iter().map(|sum| sum.map_err(Error::from));
        let files = names.zip(expected).zip(sums);
        Ok(ChecksumAnswer {
            files: files.map(|((name, expected), sum)| found(name, expected, sum, attachments)).collect(),
        })
    }
}
