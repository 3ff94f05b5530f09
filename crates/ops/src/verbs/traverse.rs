//! The operation `node traverse`.

use std::{
    path::{Path, PathBuf},
    slice,
};

use inshore_nodes::{
    DistributedFile, Error as NodesError, Pointers, TraversalSide, TraverseOptions, Traversed,
};
use inshore_store::Execution;
use serde::{Deserialize, Serialize};

use super::stores::{only, only_file_on_nodes};
use crate::{
    error::{Error, Result},
    operation::{Attachments, NormalForm, Operation, Plan, RequestContext, StoreUse, explain_files},
    target::{OnNodes, Response},
    target_kind::TargetKind,
};

/// Follows pointers from page to page through a file on nodes; see [`inshore_nodes::Nodes::traverse`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Traverse {
    /// The numbers of the pages at which the chains of pointers start.
    pub starts: Vec<u64>,
    /// The maximum number of pointers to follow in each chain.
    pub steps: u64,
    /// The size of a page in bytes.
    pub page_bytes: u64,
    /// The offset within a page at which the number of the next page is stored.
    pub at: u64,
    /// The side that follows the pointers: the nodes or the client.
    pub by: TraversalSide,
    /// The memory in bytes for cached pages, if the client follows the pointers.
    pub keep_bytes: u64,
}

impl Default for Traverse {
    /// Returns the options of [`TraverseOptions::default`], and one chain from page 0.
    fn default() -> Self {
        let TraverseOptions { pointers, steps, by, keep_bytes, .. } = TraverseOptions::default();
        let Pointers { page_bytes, at } = pointers;
        Traverse { starts: vec![0], steps, page_bytes, at, by, keep_bytes }
    }
}

/// The ends of all chains of pointers, and the counters of the nodes.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TraverseAnswer {
    /// The result of the traversal.
    #[serde(flatten)]
    pub traversed: Traversed,
    /// The name of the file.
    pub name: String,
    /// The side that followed the pointers.
    pub by: TraversalSide,
    /// The number of steps of all chains.
    pub steps: u64,
    /// The number of bytes sent between nodes and the client.
    pub bytes_moved: u64,
}

/// The file on nodes whose pointers are followed.
#[derive(Debug)]
pub struct TraversePlan {
    on: OnNodes,
    whole: DistributedFile,
}

impl Plan for TraversePlan {
    fn explain(&self) -> Option<String> {
        explain_files(&self.on, slice::from_ref(&self.whole))
    }
}

impl Operation for Traverse {
    const NAME: &'static str = "node traverse";
    const PLACES: &'static [TargetKind] = &TargetKind::ON_NODES;
    const STORE: StoreUse = StoreUse::Never;
    const FORM: NormalForm = NormalForm::Answer;
    type Plan = TraversePlan;
    type Answer = TraverseAnswer;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, _place: TargetKind) -> Result<()> {
        only(Self::NAME, inputs).map(drop)
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<TraversePlan> {
        let Some(on) = context.target.on_nodes() else {
            return Err(Error::Unsupported { operation: Self::NAME, place: context.target.place() });
        };
        match only_file_on_nodes(on, only(Self::NAME, context.inputs)?) {
            Ok(whole) => Ok(TraversePlan { on: on.clone(), whole }),
            Err(Error::SeveralFiles { name, files }) => {
                let what =
                    format!("the dataset has several files: {}; give store:NAME/FILE", files.join(", "));
                Err(NodesError::Pages { name, what }.into())
            }
            Err(error) => Err(error),
        }
    }

    fn run(
        &self,
        TraversePlan { on, whole }: TraversePlan,
        _asked: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<TraverseAnswer>> {
        let options = TraverseOptions {
            pointers: Pointers { page_bytes: self.page_bytes, at: self.at },
            steps: self.steps,
            by: self.by,
            keep_bytes: self.keep_bytes,
            node_memory_bytes: on.options.node_memory_bytes,
        };
        let traversed = on.nodes.traverse(job, &whole, &self.starts, &options)?;
        let steps = traversed.chains.iter().map(|chain| chain.walked.steps).sum();
        let bytes_moved = on.nodes.bytes_in() + on.nodes.bytes_out();
        Ok(Response::local(TraverseAnswer { traversed, name: whole.title, by: self.by, steps, bytes_moved }))
    }
}
