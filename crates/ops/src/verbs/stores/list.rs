//! The operations `store ls` and `store rm`.

#[cfg(feature = "nodes")]
use inshore_nodes::DistributedFile;
use inshore_store::{DatasetSummary, Execution};
use serde::{Deserialize, Serialize};

use super::dataset_of;
#[cfg(feature = "nodes")]
use crate::target::OnNodes;
use crate::{
    error::Result,
    operation::{Attachments, DatasetOperation, NormalForm, RequestContext},
    target::Response,
    target_kind::TargetKind,
};

/// Lists the datasets of the local store, or the files of nodes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListDatasets {}

/// The listed datasets.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ListAnswer {
    /// Local datasets, or files on nodes.
    pub datasets: Vec<Listed>,
    /// Descriptions of damaged datasets, and the errors of nodes that did not answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A local dataset, or a file on nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Listed {
    /// The name of the dataset or file.
    pub name: String,
    /// The kind of the data, such as a graph or plain bytes.
    pub kind: String,
    /// The size of all its files in bytes.
    pub bytes: u64,
    /// Properties of a local dataset.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub here: Option<ListedHere>,
    /// Properties of a file on nodes.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub spread: Option<ListedSpread>,
    /// The name of the dataset to which a file on nodes belongs.
    #[serde(skip)]
    pub dataset: String,
}

/// The properties of a local dataset.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ListedHere {
    /// The number of bytes that the dataset takes on the devices.
    pub stored_bytes: u64,
    /// The number of files.
    pub files: usize,
    /// True if the dataset cannot be appended to.
    pub sealed: bool,
    /// The redundancy (copies or parity), as text.
    pub redundancy: String,
}

/// The properties of a file on nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct ListedSpread {
    /// The number of shards.
    pub pieces: usize,
    /// The number of nodes that hold each shard.
    pub copies: usize,
    /// The nodes that hold shards.
    pub nodes: Vec<String>,
}

/// Creates a list entry from the store's summary of a dataset.
impl From<DatasetSummary> for Listed {
    fn from(summary: DatasetSummary) -> Listed {
        let DatasetSummary { name, kind, bytes, stored_bytes, files, sealed, redundancy, .. } = summary;
        let here = Some(ListedHere { stored_bytes, files, sealed, redundancy: redundancy.to_string() });
        Listed { dataset: name.clone(), name, kind, bytes, here, spread: None }
    }
}

impl DatasetOperation for ListDatasets {
    const VERB: &'static str = "store ls";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const FORM: NormalForm = NormalForm::Common;
    type Answer = ListAnswer;

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<ListAnswer>> {
        #[cfg(feature = "nodes")]
        if let Some(on) = context.target.on_nodes() {
            return Ok(Response::local(list_on_nodes(on)?));
        }
        let datasets = context.stored(job)?.store().list()?.into_iter().map(Listed::from).collect();
        Ok(Response::local(ListAnswer { datasets, notes: Vec::new() }))
    }
}

/// Lists the files of nodes.
#[cfg(feature = "nodes")]
fn list_on_nodes(on: &OnNodes) -> Result<ListAnswer> {
    let catalog = on.nodes.catalog()?;
    let wholes = catalog.wholes()?;
    let fault = |whole: &DistributedFile| Some(format!("{}: {}", whole.title, whole.fault.as_ref()?));
    let lost = catalog.lost().iter().map(|(_, why)| why.to_string());
    let notes = wholes.iter().filter_map(fault).chain(lost).collect();
    let listed = |whole: &DistributedFile| Listed {
        name: whole.title.clone(),
        kind: whole.kind.clone(),
        bytes: whole.bytes(),
        here: None,
        spread: Some(ListedSpread {
            pieces: whole.pieces.len(),
            copies: whole.copies(),
            nodes: whole.nodes(&on.nodes).into_iter().map(str::to_string).collect(),
        }),
        dataset: whole.dataset.clone(),
    };
    Ok(ListAnswer { datasets: wholes.iter().map(listed).collect(), notes })
}

/// Removes the datasets of the inputs. If a dataset cannot be removed, the error is reported, and the other
/// datasets are removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RemoveDatasets {}

/// The removed datasets, graphs, vectors or kernels.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RemoveAnswer {
    /// The names, as in the request.
    pub removed: Vec<String>,
    /// For each name, the number of nodes from which it was removed; empty for the local store.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<usize>,
}

impl DatasetOperation for RemoveDatasets {
    const VERB: &'static str = "store rm";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const FORM: NormalForm = NormalForm::Common;
    type Answer = RemoveAnswer;

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<RemoveAnswer>> {
        remove_each(context, &attachments, |name| remove_dataset(context, job, name))
    }
}

/// Removes each input by its name. If an input cannot be removed, the error is reported, and the other inputs are
/// removed.
pub(in crate::verbs) fn remove_each(
    context: &RequestContext<'_>,
    attachments: &Attachments<'_>,
    remove: impl Fn(&str) -> Result<Option<usize>>,
) -> Result<Response<RemoveAnswer>> {
    let mut answer = RemoveAnswer::default();
    for path in context.inputs {
        let name = dataset_of(path)?;
        match remove(name) {
            Ok(holders) => {
                answer.removed.push(name.to_string());
                answer.holders.extend(holders);
            }
            Err(error) => attachments.fail(&error),
        }
    }
    Ok(Response::local(answer))
}

/// Removes a dataset at the target. If the target is nodes, returns the number of nodes that stored the dataset.
pub(in crate::verbs) fn remove_dataset(
    context: &RequestContext<'_>,
    job: &Execution,
    name: &str,
) -> Result<Option<usize>> {
    #[cfg(feature = "nodes")]
    if let Some(on) = context.target.on_nodes() {
        return Ok(Some(on.nodes.remove(name)?));
    }
    context.stored(job)?.store().remove(name)?;
    Ok(None)
}
