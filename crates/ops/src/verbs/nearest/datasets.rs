//! The operations `nearest ls`, `nearest info` and `nearest rm`.

use std::path::{Path, PathBuf};

use inshore_store::Execution;
use inshore_vectors::{self as vectors, Description};
use serde::{Deserialize, Serialize};

use crate::{
    error::Result,
    operation::{Attachments, DatasetOperation, NormalForm, RequestContext},
    target::Response,
    target_kind::TargetKind,
    verbs::stores::{RemoveAnswer, dataset_of, only, remove_each},
};

/// Lists the vectors of the store. See [`vectors::list`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListVectors {}

/// The vectors of a store.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VectorsAnswer {
    /// The properties of each dataset of vectors, in the order of their names.
    pub datasets: Vec<Description>,
}

impl DatasetOperation for ListVectors {
    const VERB: &'static str = "nearest ls";
    const FORM: NormalForm = NormalForm::Answer;
    type Answer = VectorsAnswer;

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<VectorsAnswer>> {
        Ok(Response::local(VectorsAnswer { datasets: vectors::list(&context.stored(job)?.store())? }))
    }
}

/// Returns the properties of vectors and of their index, without reading vectors. See [`vectors::describe_lists`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DescribeVectors {}

impl DatasetOperation for DescribeVectors {
    const VERB: &'static str = "nearest info";
    const FORM: NormalForm = NormalForm::Answer;
    type Answer = Description;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, _place: TargetKind) -> Result<()> {
        only(Self::VERB, inputs).map(drop)
    }

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<Description>> {
        let name = dataset_of(only(Self::VERB, context.inputs)?)?;
        let job = context.stored(job)?;
        Ok(Response::local(vectors::describe_lists(&job.store(), job, name)?))
    }
}

/// Removes the vectors of the inputs with their indexes, or only the indexes. A dataset of another kind is refused, but
/// damaged vectors are removed. If an input has an error, the error is reported and the other inputs are still removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RemoveVectors {
    /// Removes only the indexes.
    pub index: bool,
}

impl DatasetOperation for RemoveVectors {
    const VERB: &'static str = "nearest rm";
    const FORM: NormalForm = NormalForm::Answer;
    type Answer = RemoveAnswer;

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<RemoveAnswer>> {
        let store = context.stored(job)?.store();
        let remove = if self.index { vectors::remove_index } else { vectors::remove };
        remove_each(context, &attachments, |name| {
            remove(&store, name)?;
            Ok(None)
        })
    }
}
