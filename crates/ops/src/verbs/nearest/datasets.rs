//! The operations `nearest ls`, `nearest info` and `nearest rm`.

use std::path::{Path, PathBuf};

use inshore_store::Execution;
use inshore_vectors::{self as vectors, Description};
use serde::{Deserialize, Serialize};

#[cfg(feature = "nodes")]
use crate::nearest::{
    SpreadDescription, describe_on_nodes, list_on_nodes, remove_index_on_nodes, remove_on_nodes,
};
use crate::{
    error::Result,
    operation::{Attachments, DatasetOperation, NormalForm, RequestContext},
    target::Response,
    target_kind::TargetKind,
    verbs::stores::{RemoveAnswer, dataset_of, only, remove_each},
};

/// Lists the vectors of the store or of nodes. See [`vectors::list`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListVectors {}

/// The listed vectors.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct VectorsAnswer {
    /// The properties of each dataset of vectors, in the order of their names.
    pub datasets: Vec<DescribedVectors>,
    /// Descriptions of vectors on nodes that cannot be used, and the errors of nodes that did not answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// The properties of vectors and of their index.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum DescribedVectors {
    /// The vectors are in the local store.
    Local(Box<Description>),
    /// The vectors are on nodes.
    #[cfg(feature = "nodes")]
    OnNodes(Box<SpreadDescription>),
}

impl std::fmt::Display for DescribedVectors {
    /// Writes the properties as text lines.
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DescribedVectors::Local(description) => description.fmt(out),
            #[cfg(feature = "nodes")]
            DescribedVectors::OnNodes(description) => description.fmt(out),
        }
    }
}

impl DatasetOperation for ListVectors {
    const VERB: &'static str = "nearest ls";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const FORM: NormalForm = NormalForm::Common;
    type Answer = VectorsAnswer;

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<VectorsAnswer>> {
        #[cfg(feature = "nodes")]
        if let Some(on) = context.target.on_nodes() {
            let (listed, notes) = list_on_nodes(on)?;
            let datasets = listed.into_iter().map(|one| DescribedVectors::OnNodes(one.into())).collect();
            return Ok(Response::local(VectorsAnswer { datasets, notes }));
        }
        let listed = vectors::list(&context.stored(job)?.store())?;
        let datasets = listed.into_iter().map(|one| DescribedVectors::Local(one.into())).collect();
        Ok(Response::local(VectorsAnswer { datasets, notes: Vec::new() }))
    }
}

/// Returns the properties of vectors and of their index, without reading vectors. See [`vectors::describe_lists`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DescribeVectors {}

impl DatasetOperation for DescribeVectors {
    const VERB: &'static str = "nearest info";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const FORM: NormalForm = NormalForm::Common;
    type Answer = DescribedVectors;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, _place: TargetKind) -> Result<()> {
        only(Self::VERB, inputs).map(drop)
    }

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<DescribedVectors>> {
        let name = dataset_of(only(Self::VERB, context.inputs)?)?;
        #[cfg(feature = "nodes")]
        if let Some(on) = context.target.on_nodes() {
            return Ok(Response::local(DescribedVectors::OnNodes(describe_on_nodes(on, name)?.into())));
        }
        let job = context.stored(job)?;
        let described = vectors::describe_lists(&job.store(), job, name)?;
        Ok(Response::local(DescribedVectors::Local(described.into())))
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
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const FORM: NormalForm = NormalForm::Common;
    type Answer = RemoveAnswer;

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<RemoveAnswer>> {
        #[cfg(feature = "nodes")]
        if let Some(on) = context.target.on_nodes() {
            let remove = if self.index { remove_index_on_nodes } else { remove_on_nodes };
            return remove_each(context, &attachments, |name| remove(on, name).map(Some));
        }
        let store = context.stored(job)?.store();
        let remove = if self.index { vectors::remove_index } else { vectors::remove };
        remove_each(context, &attachments, |name| {
            remove(&store, name)?;
            Ok(None)
        })
    }
}
