//! The operation `checksum`.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use inshore_kernels::{self as kernels, checksum_files, listed_checksums};
use inshore_store::Execution;
use inshore_tables::Input;
use serde::{Deserialize, Serialize};

use crate::{
    error::{Error, Result},
    operation::{Asked, Beside, NormalForm, Operation, StoreUse},
    place::Place,
    target::Done,
};

/// Computes checksums of files, or checks those in lists; see [`checksum_files`].
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

impl Operation for Checksum {
    const NAME: &'static str = "checksum";
    const PLACES: &'static [Place] = &[Place::Local];
    const STORE: StoreUse = StoreUse::Never;
    const FORM: NormalForm = NormalForm::Answer;
    type Plan = Vec<(PathBuf, Option<String>)>;
    type Answer = ChecksumAnswer;

    fn plan(&self, asked: &Asked<'_>) -> Result<Self::Plan> {
        self.wanted(asked.inputs)
    }

    fn run(
        &self,
        wanted: Self::Plan,
        _asked: &Asked<'_>,
        job: &Execution,
        beside: Beside<'_>,
    ) -> Result<Done<ChecksumAnswer>> {
        let inputs: Vec<Input> = wanted.iter().map(|(path, _)| Input::new(path)).collect();
        let sizes = inputs.iter().filter_map(Input::compressed_bytes).sum();
        job.start_phase(Self::NAME, "bytes", sizes);
        let found = checksum_files(job, self.algorithm, &inputs);
        job.check_cancelled()?;
        let of = |((path, expected), found): ((PathBuf, Option<String>), kernels::Result<String>)| {
            let checksum = found.map_err(|error| beside.fail(&error.into())).ok();
            let is_right = expected.map(|expected| checksum.as_ref() == Some(&expected));
            FileChecksum { name: path.display().to_string(), checksum, is_right }
        };
        Ok(Done::here(ChecksumAnswer { files: wanted.into_iter().zip(found).map(of).collect() }))
    }
}
