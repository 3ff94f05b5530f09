//! The operations `nearest index` and `nearest recall`.

use std::path::{Path, PathBuf};

use inshore_store::Execution;
use inshore_vectors::{self as vectors, Built, Index, Metric, RecallTable, VectorIndex, Vectors};
use serde::{Deserialize, Serialize};

use super::{default_k, no_inputs, queries::Queries};
use crate::{
    error::{Error, Result},
    operation::{Attachments, NormalForm, Operation, RequestContext, StoreUse},
    target::Response,
    target_kind::TargetKind,
};

/// Builds the index of a dataset of vectors, or builds it again; see [`vectors::build_index`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexVectors {
    /// The dataset of vectors.
    pub dataset: String,
    /// The metric of the searches.
    #[serde(default)]
    pub metric: Metric,
    /// The number of lists.
    #[serde(default)]
    pub lists: Option<u64>,
    /// The number from which samples follow.
    #[serde(default)]
    pub seed: u64,
    /// The largest list with copies, as a number of average lists: for a second file of lists that the single strategy reads.
    #[serde(default)]
    pub copies: Option<u64>,
}

/// Measures the recall of an index on the queries of a file, and keeps the table in the index; see
/// [`vectors::measure_recall`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasureRecall {
    /// The dataset of vectors.
    pub dataset: String,
    /// The number of neighbours of each query.
    #[serde(default = "default_k")]
    pub k: u64,
    /// The number of queries that are drawn from the file.
    #[serde(default = "default_sample")]
    pub sample: u64,
    /// Each line of the one input is a query, for a dataset of documents.
    #[serde(default)]
    pub lines: bool,
}

fn default_sample() -> u64 {
    200
}

/// The properties of a new index.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum BuiltIndex {
    /// An index in the store.
    Local(Built),
    /// An index on nodes.
    #[cfg(feature = "nodes")]
    OnNodes {
        /// The properties.
        index: vectors::SpreadIndexInfo,
    },
}

impl Operation for IndexVectors {
    const NAME: &'static str = "nearest index";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Common;
    type Plan = ();
    type Answer = BuiltIndex;

    fn check(&self, _inputs: &[PathBuf], _output: Option<&Path>, place: TargetKind) -> Result<()> {
        match place {
            TargetKind::Nodes if self.copies.is_some() => Err(Error::UnsupportedOption {
                operation: Self::NAME,
                option: "copies",
                place,
                why: "lists of vectors on nodes have no copies of vectors of other lists",
            }),
            _ => Ok(()),
        }
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<()> {
        no_inputs(Self::NAME, context.inputs)
    }

    fn run(
        &self,
        (): (),
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<BuiltIndex>> {
        #[cfg(feature = "nodes")]
        if let crate::Target::Nodes(on) = context.target {
            let IndexVectors { metric, lists, seed, .. } = *self;
            let options = Index { metric, lists, seed, copies: None };
            let index = crate::nearest::index_on_nodes(on, job, &self.dataset, &options)?;
            return Ok(Response::local(BuiltIndex::OnNodes { index }));
        }
        let job = context.stored(job)?;
        let store = job.store();
        let vectors = Vectors::open(&store, &self.dataset)?;
        let IndexVectors { metric, lists, seed, copies, .. } = *self;
        let index = Index { metric, lists, seed, copies };
        Ok(Response::local(BuiltIndex::Local(vectors::build_index(&store, job, &vectors, &index)?)))
    }
}

impl Operation for MeasureRecall {
    const NAME: &'static str = "nearest recall";
    const PLACES: &'static [TargetKind] = &[TargetKind::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Answer;
    type Plan = Queries;
    type Answer = RecallTable;

    fn plan(&self, context: &RequestContext<'_>) -> Result<Queries> {
        Queries::plan(Self::NAME, context.inputs)
    }

    fn run(
        &self,
        queries: Queries,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<RecallTable>> {
        let job = context.stored(job)?;
        let store = job.store();
        let vectors = Vectors::open(&store, &self.dataset)?;
        let Some(mut index) = VectorIndex::open(&store, &vectors)? else {
            return Err(vectors::Error::NoIndex { name: self.dataset.clone() }.into());
        };
        let queries = queries.open(Self::NAME, job, &vectors, self.lines)?;
        let (sample, k) = (self.sample, self.k);
        Ok(Response::local(vectors::measure_recall(&store, job, &vectors, &mut index, &queries, sample, k)?))
    }
}
