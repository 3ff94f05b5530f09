//! The operations `nearest add`, `nearest upsert`, `nearest remove` and `nearest compact`.

use std::path::{Path, PathBuf};

use inshore_store::{Execution, Job};
use inshore_vectors::{self as vectors, Changed, Compacted, IdList, VectorFile};
use serde::{Deserialize, Serialize};

use super::only_file;
use crate::{
    error::{Error, Result},
    operation::{Attachments, NormalForm, Operation, RequestContext, StoreUse},
    target::Response,
    target_kind::TargetKind,
};

/// Adds the vectors of a file to a dataset. See [`vectors::add_vectors`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddVectors {
    /// The dataset of vectors.
    pub dataset: String,
    /// True if each byte of the file has eight dimensions of one bit.
    #[serde(default)]
    pub bits: bool,
}

/// Inserts vectors into a dataset by their ids, or replaces vectors with the same ids. See [`vectors::upsert_vectors`].
/// The first input is a file of vectors. If `ids` is not given, the second input is a text file of ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpsertVectors {
    /// The dataset of vectors.
    pub dataset: String,
    /// The id of each vector. `None` reads the ids from the second input.
    #[serde(default)]
    pub ids: Option<Vec<u64>>,
    /// True if each byte of the file has eight dimensions of one bit.
    #[serde(default)]
    pub bits: bool,
}

/// Removes vectors of a dataset by their ids. See [`vectors::remove_vectors`]. If `ids` is not given, the input is a
/// text file of ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveFromVectors {
    /// The dataset of vectors.
    pub dataset: String,
    /// The ids of the vectors. `None` reads the ids from the input.
    #[serde(default)]
    pub ids: Option<Vec<u64>>,
}

/// Frees the rows of removed vectors, and writes the lists of the index again. See [`vectors::compact_vectors`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CompactVectors {
    /// The dataset of vectors.
    pub dataset: String,
}

fn with_bits(file: VectorFile, bits: bool) -> Result<VectorFile> {
    if bits { Ok(file.as_bits()?) } else { Ok(file) }
}

/// Checks the number of inputs. A request has `count` files of vectors and, if `ids` is not given, a file of ids.
fn check_inputs(
    operation: &'static str,
    inputs: &[PathBuf],
    count: usize,
    ids: &Option<Vec<u64>>,
) -> Result<()> {
    let expected = count + usize::from(ids.is_none());
    if inputs.len() == expected {
        return Ok(());
    }
    let file = if count == 0 { "" } else { "a file of vectors and " };
    let ids = if ids.is_some() { "no file of ids, since `ids` is given" } else { "a file of ids, or `ids`" };
    let what = format!("inputs: found {}, expected {file}{ids}", inputs.len());
    Err(Error::Request { operation, what })
}

/// Returns the ids of the request. If it has none, returns the ids in the last input.
fn ids_of(job: &Job, ids: &Option<Vec<u64>>, inputs: &[PathBuf]) -> Result<IdList> {
    match (ids, inputs.last()) {
        (Some(ids), _) => Ok(IdList::of(job, ids)?),
        (None, Some(path)) => Ok(IdList::read(job, path)?),
        (None, None) => unreachable!("the inputs were checked"),
    }
}

impl Operation for AddVectors {
    const NAME: &'static str = "nearest add";
    const PLACES: &'static [TargetKind] = &[TargetKind::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Answer;
    type Plan = VectorFile;
    type Answer = Changed;

    fn plan(&self, context: &RequestContext<'_>) -> Result<VectorFile> {
        with_bits(only_file(Self::NAME, context.inputs)?, self.bits)
    }

    fn run(
        &self,
        file: VectorFile,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<Changed>> {
        let job = context.stored(job)?;
        Ok(Response::local(vectors::add_vectors(&job.store(), job, &self.dataset, &file)?))
    }
}

impl Operation for UpsertVectors {
    const NAME: &'static str = "nearest upsert";
    const PLACES: &'static [TargetKind] = &[TargetKind::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Answer;
    type Plan = VectorFile;
    type Answer = Changed;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, _place: TargetKind) -> Result<()> {
        check_inputs(Self::NAME, inputs, 1, &self.ids)
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<VectorFile> {
        with_bits(only_file(Self::NAME, &context.inputs[..1])?, self.bits)
    }

    fn run(
        &self,
        file: VectorFile,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<Changed>> {
        let job = context.stored(job)?;
        let ids = ids_of(job, &self.ids, context.inputs)?;
        Ok(Response::local(vectors::upsert_vectors(&job.store(), job, &self.dataset, &file, &ids)?))
    }
}

impl Operation for RemoveFromVectors {
    const NAME: &'static str = "nearest remove";
    const PLACES: &'static [TargetKind] = &[TargetKind::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Answer;
    type Plan = ();
    type Answer = Changed;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, _place: TargetKind) -> Result<()> {
        check_inputs(Self::NAME, inputs, 0, &self.ids)
    }

    fn plan(&self, _context: &RequestContext<'_>) -> Result<()> {
        Ok(())
    }

    fn run(
        &self,
        (): (),
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<Changed>> {
        let job = context.stored(job)?;
        let ids = ids_of(job, &self.ids, context.inputs)?;
        Ok(Response::local(vectors::remove_vectors(&job.store(), job, &self.dataset, &ids)?))
    }
}

impl Operation for CompactVectors {
    const NAME: &'static str = "nearest compact";
    const PLACES: &'static [TargetKind] = &[TargetKind::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Answer;
    type Plan = ();
    type Answer = Compacted;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, _place: TargetKind) -> Result<()> {
        match inputs {
            [] => Ok(()),
            _ => {
                let what = format!("inputs: found {}, expected none", inputs.len());
                Err(Error::Request { operation: Self::NAME, what })
            }
        }
    }

    fn plan(&self, _context: &RequestContext<'_>) -> Result<()> {
        Ok(())
    }

    fn run(
        &self,
        (): (),
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<Compacted>> {
        let job = context.stored(job)?;
        Ok(Response::local(vectors::compact_vectors(&job.store(), job, &self.dataset)?))
    }
}
