//! The operations `nearest index` and `nearest recall`.

use std::path::{Path, PathBuf};

use inshore_store::Execution;
use inshore_vectors::{
    self as vectors, Built, Index, Lsh, LshBuilt, Metric, RecallTable, SearchIndex, Vectors,
};
use serde::{Deserialize, Serialize};

use super::{
    default_k, no_inputs,
    queries::{LINES_ON_NODES, Queries},
};
#[cfg(feature = "nodes")]
use crate::nearest::{VectorsOnNodes, index_on_nodes, measure_recall_on_nodes};
use crate::{
    error::{Error, Result},
    operation::{Attachments, NormalForm, Operation, RequestContext, StoreUse},
    target::Response,
    target_kind::TargetKind,
};

/// Builds or replaces the index of a dataset of vectors, as [`vectors::build_index`] or [`vectors::build_lsh`] does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IndexVectors {
    /// The dataset of vectors.
    pub dataset: String,
    /// The metric of the searches that will use the index.
    #[serde(default)]
    pub metric: Metric,
    /// The number of lists. `None` chooses it by the size of the vectors.
    #[serde(default)]
    pub lists: Option<u64>,
    /// The seed that determines which vectors are sampled.
    #[serde(default)]
    pub seed: u64,
    /// The size of the largest list with copies, as a multiple of an average list. If it is given, the index has a
    /// second file of lists with copies, which the single strategy reads.
    #[serde(default)]
    pub copies: Option<u64>,
    /// The number of bits of the codes for each dimension: 1, 2 or 4. If it is given, the index has a second file with a
    /// code of each vector, which the single strategy reads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub codes: Option<u32>,
    /// Keeps the finished work of the build if the build is interrupted. A later build of the same vectors with the
    /// same options resumes from the kept work.
    #[serde(default)]
    pub resume: bool,
    /// The options of hash tables. If they are given, the build creates hash tables and no inverted lists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lsh: Option<HashTables>,
}

/// The options of hash tables. The documentation of [`vectors::Lsh`] states their ranges and defaults.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct HashTables {
    /// The number of tables.
    pub tables: Option<u64>,
    /// The number of hash functions of a table.
    pub bits: Option<u64>,
    /// The number of buckets of a table.
    pub buckets: Option<u64>,
    /// The width of a cell of a projection, in the unit of the vectors. Only hash tables for Euclidean distances use
    /// it.
    pub width: Option<f64>,
}

impl IndexVectors {
    /// Refuses options of inverted lists if the request asks for hash tables.
    fn check_kind(&self) -> Result<()> {
        if self.resume && self.lsh.is_some() {
            let what =
                "resume: found true beside lsh, expected false: hash tables are built anew".to_string();
            return Err(Error::Request { operation: Self::NAME, what });
        }
        let given = [("lists", self.lists), ("copies", self.copies), ("codes", self.codes.map(u64::from))];
        match given.into_iter().find_map(|(option, found)| Some((option, found?))) {
            Some((option, found)) if self.lsh.is_some() => {
                let what =
                    format!("{option}: found {found} beside lsh, expected none: hash tables have no lists");
                Err(Error::Request { operation: Self::NAME, what })
            }
            _ => Ok(()),
        }
    }
}

/// Measures the recall of an index on the queries of a file, and stores the table of recall in the index. See
/// [`vectors::measure_recall`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasureRecall {
    /// The dataset of vectors.
    pub dataset: String,
    /// The number of neighbours of each query.
    #[serde(default = "default_k")]
    pub k: u64,
    /// The number of queries that are sampled from the file.
    #[serde(default = "default_sample")]
    pub sample: u64,
    /// True if each line of the only input is a query, for a dataset of documents.
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
    /// The index consists of inverted lists in the store.
    Lists(Built),
    /// The index consists of hash tables in the store.
    Tables(LshBuilt),
    /// The index consists of inverted lists on nodes.
    #[cfg(feature = "nodes")]
    OnNodes {
        /// The properties of the index.
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
        let options = [
            (
                "copies",
                self.copies.is_some(),
                "lists of vectors on nodes have no copies of vectors of other lists",
            ),
            ("codes", self.codes.is_some(), "lists of vectors on nodes have no codes"),
            ("lsh", self.lsh.is_some(), "an index of vectors on nodes has inverted lists"),
            ("resume", self.resume, "a build on nodes keeps no work of an interrupted build"),
        ];
        match options.into_iter().find(|(_, is_given, _)| *is_given) {
            Some((option, _, why)) if place.is_on_nodes() => {
                Err(Error::UnsupportedOption { operation: Self::NAME, option, place, why })
            }
            _ => Ok(()),
        }
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<()> {
        self.check_kind()?;
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
        if let Some(on) = context.target.on_nodes() {
            let IndexVectors { metric, lists, seed, .. } = *self;
            let options = Index { metric, lists, seed, copies: None, codes: None };
            let index = index_on_nodes(on, job, &self.dataset, &options)?;
            return Ok(Response::local(BuiltIndex::OnNodes { index }));
        }
        let job = context.stored(job)?;
        let store = job.store();
        let vectors = Vectors::open(&store, &self.dataset)?;
        let IndexVectors { metric, lists, seed, copies, codes, resume, .. } = *self;
        let built = match &self.lsh {
            None => {
                let index = Index { metric, lists, seed, copies, codes };
                let build = if resume { vectors::resume_index } else { vectors::build_index };
                BuiltIndex::Lists(build(&store, job, &vectors, &index)?)
            }
            Some(hashed) => {
                let HashTables { tables, bits, buckets, width } = *hashed;
                let lsh = Lsh { metric, tables, bits, buckets, width, seed };
                BuiltIndex::Tables(vectors::build_lsh(&store, job, &vectors, &lsh)?)
            }
        };
        Ok(Response::local(built))
    }
}

impl Operation for MeasureRecall {
    const NAME: &'static str = "nearest recall";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Common;
    type Plan = Queries;
    type Answer = RecallTable;

    fn check(&self, _inputs: &[PathBuf], _output: Option<&Path>, place: TargetKind) -> Result<()> {
        if self.lines && place.is_on_nodes() {
            let (operation, option, why) = (Self::NAME, "lines", LINES_ON_NODES);
            return Err(Error::UnsupportedOption { operation, option, place, why });
        }
        Ok(())
    }

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
        #[cfg(feature = "nodes")]
        if let Some(on) = context.target.on_nodes() {
            let vectors = VectorsOnNodes::find(on, &self.dataset)?;
            let queries = queries.into_file(Self::NAME, vectors.layout.element)?;
            let table = measure_recall_on_nodes(&vectors, job, &queries, (self.sample, self.k))?;
            return Ok(Response::local(table));
        }
        let job = context.stored(job)?;
        let store = job.store();
        let vectors = Vectors::open(&store, &self.dataset)?;
        let Some(mut index) = SearchIndex::open(&store, &vectors)? else {
            return Err(vectors::Error::NoIndex { name: self.dataset.clone() }.into());
        };
        let queries = queries.open(Self::NAME, job, &vectors, self.lines)?;
        let table = index.measure_recall(&store, job, &vectors, &queries, (self.sample, self.k))?;
        Ok(Response::local(table))
    }
}
