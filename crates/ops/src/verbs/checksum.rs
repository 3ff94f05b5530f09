//! The operation `checksum`.

use std::{
    fs, io,
    path::{Path, PathBuf},
    slice,
};

use inshore_kernels::{self as kernels, checksum_files, listed_checksums, table_inputs};
#[cfg(feature = "nodes")]
use inshore_neardata::nodes::{Gathered, Whole};
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

/// Computes checksums of files, or checks those in lists; see [`checksum_files`]. The bytes of a file on nodes come here, since a
/// checksum needs all of them in their order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Checksum {
    /// How bytes become a checksum.
    pub algorithm: kernels::Checksum,
    /// The inputs are lists of checksums and names, as `sha256sum` prints them, and these files are checked.
    pub check: bool,
}

impl Default for Checksum {
    /// SHA-256 of the inputs.
    fn default() -> Self {
        Checksum { algorithm: kernels::Checksum::Sha256, check: false }
    }
}

/// What was found of all files, in their order.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ChecksumAnswer {
    /// The files.
    pub files: Vec<FileChecksum>,
}

/// What was found of a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileChecksum {
    /// Its name; `-` is standard input, as those who read a list expect it.
    pub name: String,
    /// Its checksum; none where it cannot be read.
    pub checksum: Option<String>,
    /// Whether the checksum is that of the list, where a list was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub is_right: Option<bool>,
}

impl Checksum {
    /// Names, and checksums where lists have them.
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

/// A file and the checksum that a list has of it.
type Wanted<F> = (F, Option<String>);

/// A file on nodes; of a list, a name of which there is nothing is an error for that name alone.
#[cfg(feature = "nodes")]
type FoundWhole = std::result::Result<Whole, (PathBuf, Error)>;

/// Files whose checksums are computed.
#[derive(Debug)]
pub enum ChecksumFiles {
    /// Files and datasets here.
    Here(Vec<Wanted<PathBuf>>),
    /// Files on nodes, and names of a list of which there is nothing.
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

/// What was found of a file.
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
