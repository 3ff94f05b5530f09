//! The operations `nearest add`, `nearest upsert` and `nearest remove`.

use std::path::{Path, PathBuf};

use inshore_store::{Execution, Job};
use inshore_vectors::{self as vectors, Changed, IdList, VectorFile};
use serde::{Deserialize, Serialize};

use super::only_file;
use crate::{
    error::{Error, Result},
    operation::{Attachments, NormalForm, Operation, RequestContext, StoreUse},
    target::Response,
    target_kind::TargetKind,
};

/// Adds the vectors of a file to a dataset; see [`vectors::add_vectors`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AddVectors {
    /// The dataset of vectors.
    pub dataset: String,
    /// Each byte of the file is eight dimensions of one bit.
    #[serde(default)]
    pub bits: bool,
}

/// Replaces vectors of a dataset, or adds them, by their ids; see [`vectors::upsert_vectors`]. The inputs are the file of
/// vectors and, without `ids`, a text file of their ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpsertVectors {
    /// The dataset of vectors.
    pub dataset: String,
    /// The id of each vector.
    #[serde(default)]
    pub ids: Option<Vec<u64>>,
    /// Each byte of the file is eight dimensions of one bit.
    #[serde(default)]
    pub bits: bool,
}

/// Removes vectors of a dataset by their ids; see [`vectors::remove_vectors`]. Without `ids`, the input is a text file of
/// ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RemoveFromVectors {
    /// The dataset of vectors.
    pub dataset: String,
    /// The ids of the vectors.
    #[serde(default)]
    pub ids: Option<Vec<u64>>,
}

fn with_bits(file: VectorFile, bits: bool) -> Result<VectorFile> {
    if bits { Ok(file.as_bits()?) } else { Ok(file) }
}

/// Checks that a request has the inputs `what`, and ids in one place: the last input, or `ids`.
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

/// Returns the ids of the request, or those of the last input.
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
