//! The operation `checksum`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    slice,
};

use inshore_kernels::{self as kernels, checksum_files, listed_checksums, table_inputs};
#[cfg(feature = "nodes")]
use inshore_nodes::{Gathered, Whole};
use inshore_store::Execution;
use inshore_tables::Input;
use serde::{Deserialize, Serialize};

#[cfg(feature = "nodes")]
use super::whole::read_whole;
#[cfg(feature = "nodes")]
use crate::target::{OnNodes, Target, wholes};
use crate::{
    error::{Error, Result},
    operation::{Asked, Beside, NormalForm, Operation, StoreUse},
    place::Place,
    target::Done,
};

/// Computes checksums of files, or checks files against lists of checksums; see [`checksum_files`]. The bytes
/// of a file on nodes are fetched, since a checksum needs all bytes in their order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Checksum {
    /// The checksum algorithm.
    pub algorithm: kernels::Checksum,
    /// True if the inputs are lists of checksums and names in the format of `sha256sum`, and the listed files
    /// are to be checked.
    pub check: bool,
}

impl Default for Checksum {
    /// Returns SHA-256 of the inputs.
    fn default() -> Self {
        Checksum { algorithm: kernels::Checksum::Sha256, check: false }
    }
}

/// The checksums of all files, in their order.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChecksumAnswer {
    /// The files.
    pub files: Vec<FileChecksum>,
}

/// The checksum of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileChecksum {
    /// The name; `-` for standard input, as in lists of checksums.
    pub name: String,
    /// The checksum; `None` if the file cannot be read.
    pub checksum: Option<String>,
    /// True if the checksum equals that of the list; `None` without a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_right: Option<bool>,
}

impl Checksum {
    /// Returns the names of files, with the checksums of lists.
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

/// A file with its checksum in a list.
type Wanted<F> = (F, Option<String>);

/// A file on nodes; a name of a list that no node has is an error for that name only.
#[cfg(feature = "nodes")]
type FoundWhole = std::result::Result<Whole, (PathBuf, Error)>;

/// The files whose checksums are computed.
#[derive(Debug)]
pub enum ChecksumFiles {
    /// Local files and datasets.
    Here(Vec<Wanted<PathBuf>>),
    /// Files on nodes, and names of a list that no node has.
    #[cfg(feature = "nodes")]
    Nodes(OnNodes, Vec<Wanted<FoundWhole>>),
}

impl Operation for Checksum {
    const NAME: &'static str = "checksum";
    const PLACES: &'static [Place] = &Place::ALL;
    const STORE: StoreUse = StoreUse::Datasets;
    const FORM: NormalForm = NormalForm::Answer;
    type Plan = ChecksumFiles;
    type Answer = ChecksumAnswer;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, place: Place) -> Result<()> {
        match place {
            Place::Nodes if inputs.is_empty() => Err(Error::NoInput { operation: Self::NAME }),
            _ => Ok(()),
        }
    }

    fn plan(&self, asked: &Asked<'_>) -> Result<ChecksumFiles> {
        let wanted = self.wanted(asked.inputs)?;
        #[cfg(feature = "nodes")]
        if let Target::Nodes(on) = asked.target {
            return Ok(ChecksumFiles::Nodes(on.clone(), self.on_nodes(on, wanted)?));
        }
        Ok(ChecksumFiles::Here(wanted))
    }

    fn run(
        &self,
        files: ChecksumFiles,
        _asked: &Asked<'_>,
        job: &Execution,
        beside: Beside<'_>,
    ) -> Result<Done<ChecksumAnswer>> {
        let done = match files {
            ChecksumFiles::Here(wanted) => Done::here(self.here(wanted, job, &beside)?),
            #[cfg(feature = "nodes")]
            ChecksumFiles::Nodes(on, wanted) => {
                let (answer, gathered) = self.each_whole(&on, wanted, job, &beside)?;
                Done::on_nodes(answer, &on, gathered)
            }
        };
        Ok(done)
    }
}

/// Returns the checksum of a file; reports an error and compares with the list.
fn found(
    name: String,
    expected: Option<String>,
    checksum: Result<String>,
    beside: &Beside<'_>,
) -> FileChecksum {
    let checksum = checksum.map_err(|error| beside.fail(&error)).ok();
    let is_right = expected.map(|expected| checksum.as_ref() == Some(&expected));
    FileChecksum { name, checksum, is_right }
}

impl Checksum {
    fn here(
        &self,
        wanted: Vec<Wanted<PathBuf>>,
        job: &Execution,
        beside: &Beside<'_>,
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
            files: files.map(|((name, expected), sum)| found(name, expected, sum, beside)).collect(),
        })
    }
}

#[cfg(feature = "nodes")]
impl Checksum {
    /// Looks up files on nodes.
    fn on_nodes(&self, on: &OnNodes, wanted: Vec<Wanted<PathBuf>>) -> Result<Vec<Wanted<FoundWhole>>> {
        let mut all = Vec::new();
        for (path, expected) in wanted {
            match wholes(&on.nodes, slice::from_ref(&path)) {
                Ok(found) => all.extend(found.into_iter().map(|whole| (Ok(whole), expected.clone()))),
                Err(error) if self.check => all.push((Err((path, error)), expected)),
                Err(error) => return Err(error),
            }
        }
        Ok(all)
    }

    fn each_whole(
        &self,
        on: &OnNodes,
        wanted: Vec<Wanted<FoundWhole>>,
        job: &Execution,
        beside: &Beside<'_>,
    ) -> Result<(ChecksumAnswer, Gathered)> {
        let sizes = wanted.iter().filter_map(|(file, _)| Some(file.as_ref().ok()?.bytes())).sum();
        job.start_phase(Self::NAME, "bytes", sizes);
        let (mut answer, mut all) = (ChecksumAnswer::default(), Gathered::default());
        for (file, expected) in wanted {
            let (name, sum) = match file {
                Ok(whole) => {
                    let sum = read_whole(on, job, &whole, 0..whole.bytes(), |bytes| {
                        Ok(self.algorithm.of(job, &whole.title, bytes)?)
                    });
                    job.check_cancelled()?;
                    let sum = sum.map(|(sum, gathered)| {
                        all.add(gathered);
                        sum
                    });
                    (whole.title, sum)
                }
                Err((path, error)) => (path.display().to_string(), Err(error)),
            };
            answer.files.push(found(name, expected, sum, beside));
        }
        Ok((answer, all))
    }
}
