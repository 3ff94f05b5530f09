//! The operations `nearest join` and `nearest graph`.

use std::path::{Path, PathBuf};

use inshore_store::Execution;
use inshore_vectors::{Metric, Search, Strategy, Vectors};
use serde::{Deserialize, Serialize};

use super::{
    default_k, no_inputs,
    query::{Found, SearchVectors},
};
use crate::{
    error::Result,
    operation::{Attachments, NormalForm, Operation, RequestContext, StoreUse},
    target::Response,
    target_kind::TargetKind,
};

/// Finds the nearest vectors of a dataset for each vector of another dataset. The search is exact, unless `recall` or
/// `probes` is given; it then uses the lists of the dataset's index. [`SearchVectors`] is the same search with the
/// queries of a file. The columns `query` and `id` have row numbers, even if a dataset has a column of ids.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinVectors {
    /// The dataset whose vectors are the queries.
    pub queries: String,
    /// The dataset in which neighbours are found.
    pub dataset: String,
    /// The number of neighbours of each query.
    #[serde(default = "default_k")]
    pub k: u64,
    /// The metric.
    #[serde(default)]
    pub metric: Metric,
    /// The largest distance of a neighbour, or for `ip` its smallest inner product.
    #[serde(default)]
    pub radius: Option<f64>,
    /// The recall that an approximate answer is expected to reach. If the dataset has no index, the answer is exact.
    #[serde(default)]
    pub recall: Option<f64>,
    /// The number of lists of the index that each query probes. It replaces `recall`.
    #[serde(default)]
    pub probes: Option<u64>,
    /// The strategy by which lists are read. The default is the cheaper one.
    #[serde(default)]
    pub strategy: Option<Strategy>,
}

/// Finds the nearest other vectors of each vector of a dataset: the k-nearest-neighbour graph. A vector is not its own
/// neighbour, but another vector with equal elements is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NeighbourGraph {
    /// The dataset of vectors.
    pub dataset: String,
    /// The number of neighbours of each vector.
    #[serde(default = "default_k")]
    pub k: u64,
    /// The metric.
    #[serde(default)]
    pub metric: Metric,
    /// The largest distance of a neighbour, or for `ip` its smallest inner product.
    #[serde(default)]
    pub radius: Option<f64>,
    /// The recall that an approximate answer is expected to reach. If the dataset has no index, the answer is exact.
    #[serde(default)]
    pub recall: Option<f64>,
    /// The number of lists of the index that each vector probes. It replaces `recall`.
    #[serde(default)]
    pub probes: Option<u64>,
    /// The strategy by which lists are read. The default is the cheaper one.
    #[serde(default)]
    pub strategy: Option<Strategy>,
}

impl JoinVectors {
    fn search(&self) -> SearchVectors {
        let JoinVectors { k, metric, radius, recall, probes, strategy, .. } = *self;
        let (dataset, predicate, select) = (self.dataset.clone(), None, Vec::new());
        SearchVectors {
            dataset,
            k,
            metric,
            radius,
            recall,
            probes,
            strategy,
            predicate,
            select,
            lines: false,
        }
    }
}

impl NeighbourGraph {
    fn search(&self) -> SearchVectors {
        let NeighbourGraph { k, metric, radius, recall, probes, strategy, .. } = *self;
        let (dataset, predicate, select) = (self.dataset.clone(), None, Vec::new());
        SearchVectors {
            dataset,
            k,
            metric,
            radius,
            recall,
            probes,
            strategy,
            predicate,
            select,
            lines: false,
        }
    }
}

impl Operation for JoinVectors {
    const NAME: &'static str = "nearest join";
    const PLACES: &'static [TargetKind] = &[TargetKind::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = ();
    type Answer = Found;

    fn check(&self, _inputs: &[PathBuf], output: Option<&Path>, _place: TargetKind) -> Result<()> {
        self.search().check_options(Self::NAME, output)
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<()> {
        no_inputs(Self::NAME, context.inputs)
    }

    fn run(
        &self,
        (): (),
        context: &RequestContext<'_>,
        execution: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<Found>> {
        let store = context.stored(execution)?.store();
        let (queries, vectors) =
            (Vectors::open(&store, &self.queries)?, Vectors::open(&store, &self.dataset)?);
        let search = self.search();
        search.find((&vectors, (&queries).into()), (&search.options(), None), context, execution, attachments)
    }
}

impl Operation for NeighbourGraph {
    const NAME: &'static str = "nearest graph";
    const PLACES: &'static [TargetKind] = &[TargetKind::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = ();
    type Answer = Found;

    fn check(&self, _inputs: &[PathBuf], output: Option<&Path>, _place: TargetKind) -> Result<()> {
        self.search().check_options(Self::NAME, output)
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<()> {
        no_inputs(Self::NAME, context.inputs)
    }

    fn run(
        &self,
        (): (),
        context: &RequestContext<'_>,
        execution: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<Found>> {
        let vectors = Vectors::open(&context.stored(execution)?.store(), &self.dataset)?;
        let search = self.search();
        let options = Search { excludes_itself: true, ..search.options() };
        search.find((&vectors, (&vectors).into()), (&options, None), context, execution, attachments)
    }
}
