//! The operation `nearest query`.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow_array::RecordBatch;
use inshore_store::{Execution, Job};
use inshore_tables::TableWriter;
use inshore_vectors::{
    self as vectors, AnswerColumns, Approximate, ApproximateSearched, Call, FoundInIndex, LshSearched,
    Metric, RowSet, Search, SearchIndex, Searched, Searcher, Source, Strategy, Vectors, is_sparse,
};
use serde::{Deserialize, Serialize};

use super::{
    default_k,
    queries::{LINES_ON_NODES, Queries, for_elements},
};
#[cfg(feature = "nodes")]
use crate::nearest::{
    ColumnsOfAnswer, IndexOnNodes, SearchForm, SearchedOnNodes, SelectedOnNodes, VectorsOnNodes,
    search_lists_on_nodes, search_on_nodes, select_on_nodes,
};
use crate::{
    error::{Error, Result},
    operation::{Attachments, NormalForm, Operation, Plan, RequestContext, RowOutput, StoreUse},
    target::Response,
    target_kind::TargetKind,
};

/// Finds the nearest vectors of a dataset for each query. The search is exact ([`vectors::search()`]), unless `recall`
/// or `probes` is given. The search then uses the dataset's index, which consists of inverted lists or of hash tables.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SearchVectors {
    /// The dataset of vectors.
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
    /// The number of lists or buckets of the index that each query probes. If the number is given, `recall` is ignored.
    #[serde(default)]
    pub probes: Option<u64>,
    /// The strategy by which lists are read. The default is the strategy with the smaller estimated time.
    #[serde(default)]
    pub strategy: Option<Strategy>,
    /// An SQL expression over the columns of the dataset. Only vectors for which the expression is true are answers.
    #[serde(default, rename = "where")]
    pub predicate: Option<String>,
    /// The columns of the dataset that are added to the answer.
    #[serde(default)]
    pub select: Vec<String>,
    /// True if each line of the only input is a query, for a dataset of documents.
    #[serde(default)]
    pub lines: bool,
}

/// The statistics of an exact or an approximate search.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub enum Found {
    /// The statistics of a search that compared all vectors with all queries.
    Exact(Searched),
    /// The statistics of a search that probed lists of an index.
    Approximate(ApproximateSearched),
    /// The statistics of a search that probed buckets of hash tables.
    Hashed(LshSearched),
    /// The statistics of a search on nodes, which is exact or probed lists of an index.
    #[cfg(feature = "nodes")]
    OnNodes(SearchedOnNodes),
}

impl From<FoundInIndex> for Found {
    fn from(found: FoundInIndex) -> Found {
        match found {
            FoundInIndex::Lists(searched) => Found::Approximate(searched),
            FoundInIndex::Tables(searched) => Found::Hashed(searched),
        }
    }
}

impl Found {
    /// Returns the number of rows of the answer.
    pub fn rows(&self) -> u64 {
        match self {
            Found::Exact(searched) => searched.rows,
            Found::Approximate(searched) => searched.rows,
            Found::Hashed(searched) => searched.rows,
            #[cfg(feature = "nodes")]
            Found::OnNodes(searched) => searched.rows,
        }
    }
}

impl SearchVectors {
    pub(super) fn options(&self) -> Search {
        let SearchVectors { k, metric, radius, .. } = *self;
        Search { k, metric, radius, ..Search::default() }
    }

    /// Returns the vectors that satisfy the predicate, or `None` if the request has no predicate.
    #[cfg(feature = "sql")]
    pub(super) fn selection(&self, job: &Job, vectors: &Vectors) -> Result<Option<RowSet>> {
        self.predicate.as_ref().map(|predicate| super::predicate::select(job, vectors, predicate)).transpose()
    }

    #[cfg(not(feature = "sql"))]
    pub(super) fn selection(&self, _job: &Job, _vectors: &Vectors) -> Result<Option<RowSet>> {
        match self.predicate {
            None => Ok(None),
            Some(_) => {
                let what = "where: found a predicate, which needs a build with the feature `sql`".to_string();
                Err(Error::Request { operation: Self::NAME, what })
            }
        }
    }

    /// Returns the index that `open` returns, and the options of the search in the index. Returns `None` for an exact
    /// search.
    pub(super) fn approximate_in<I>(
        &self,
        open: impl FnOnce() -> Result<Option<I>>,
        selection: Option<&RowSet>,
    ) -> Result<Option<(I, Approximate)>> {
        let Some(approximate) = self.approximate() else { return Ok(None) };
        let index = open()?;
        if index.is_none() && approximate.probes.is_some() {
            return Err(vectors::Error::NoIndex { name: self.dataset.clone() }.into());
        }
        // If few vectors are selected, an exact search is cheaper.
        let is_exact = approximate.probes.is_none() && selection.is_some_and(is_sparse);
        Ok(index.filter(|_| !is_exact).map(|index| (index, approximate)))
    }

    /// Returns the options of an approximate search. Returns `None` if the request asks for an exact search.
    pub(super) fn approximate(&self) -> Option<Approximate> {
        let SearchVectors { recall, probes, strategy, .. } = *self;
        let is_asked = recall.is_some() || probes.is_some();
        let recall = recall.unwrap_or(Approximate::default().recall);
        is_asked.then_some(Approximate { recall, probes, strategy })
    }

    /// Checks the options of the search and the name of the output file.
    pub(super) fn check_options(&self, operation: &'static str, output: Option<&Path>) -> Result<()> {
        self.options().check()?;
        match (self.approximate(), self.strategy) {
            (Some(approximate), _) => approximate.check()?,
            (None, None) => {}
            (None, Some(_)) => {
                let what = "strategy: found without recall or probes, which ask for an approximate answer"
                    .to_string();
                return Err(Error::Request { operation, what });
            }
        }
        output.map_or(Ok(()), |output| Ok(TableWriter::check_path(output)?))
    }

    /// Finds the neighbours of the queries of a source. If `columns` is given, it adds columns of the dataset to the
    /// answer.
    pub(super) fn find(
        &self,
        (vectors, queries): (&Vectors, Source<'_>),
        (options, mut columns): (&Search, Option<AnswerColumns>),
        context: &RequestContext<'_>,
        execution: &Execution,
        mut attachments: Attachments<'_>,
    ) -> Result<Response<Found>> {
        let job = context.stored(execution)?;
        let open = || Ok(SearchIndex::open(&job.store(), vectors)?);
        let index = self.approximate_in(open, options.selection.as_deref())?;
        // The options are checked before the output file is created.
        match &index {
            Some((index, approximate)) => {
                index.check(vectors.info(), queries, options, approximate)?;
            }
            None => {
                let plan = vectors::plan(job, vectors.info(), queries, options)?;
                job.progress().tell(|| plan.to_string());
            }
        }
        let receiver = attachments.rows.take().filter(|_| context.output.is_none());
        let schema = columns.as_ref().map_or_else(vectors::schema, |columns| columns.schema().clone());
        let mut rows = RowOutput::begin(context.output, receiver, &schema, execution)?;
        let searcher = Searcher::for_one_call(job, vectors, index.as_ref().map(|index| &index.0));
        let approximate = index.as_ref().map(|index| &index.1);
        let mut give = |batch| rows.batch(batch).map_err(|error| vectors::Error::Rows(error.into()));
        let mut call = searcher.begin(job.cancel())?;
        let answer = answer(&mut call, queries, (options, approximate), &mut columns, &mut give)?;
        rows.finish()?;
        Ok(Response::local(answer))
    }
}

/// A function that receives the batches of rows of an answer.
pub(super) type Give<'a> = &'a mut dyn FnMut(RecordBatch) -> vectors::Result<()>;

/// Finds the neighbours of queries. If `approximate` is given, the search uses the index of the searcher. Otherwise the
/// search is exact. If `columns` is given, it adds columns of the dataset to the answer.
pub(super) fn answer(
    call: &mut Call<'_>,
    queries: Source<'_>,
    (options, approximate): (&Search, Option<&Approximate>),
    columns: &mut Option<AnswerColumns>,
    give: Give<'_>,
) -> Result<Found> {
    let mut each = |batch| match columns {
        Some(columns) => columns.add(batch, give),
        None => give(batch),
    };
    let found = match approximate {
        Some(approximate) => call.search_index(queries, options, approximate, &mut each).map(Found::from),
        None => call.search(queries, options, &mut each).map(Found::Exact),
    };
    let found = found.and_then(|found| {
        columns.iter_mut().try_for_each(|columns| columns.finish(give))?;
        Ok(found)
    });
    found.map_err(Error::of_search)
}

/// The plan of a search. It contains the queries, and the vectors if these are on nodes.
#[derive(Debug)]
pub struct QueryPlan {
    queries: Queries,
    /// True if nodes answer with columns of the vectors. Queries over columns need the scratch space of a store.
    needs_store: bool,
    #[cfg(feature = "nodes")]
    on_nodes: Option<VectorsOnNodes>,
}

impl Plan for QueryPlan {
    fn explain(&self) -> Option<String> {
        #[cfg(feature = "nodes")]
        if let Some(VectorsOnNodes { on, file, .. }) = &self.on_nodes {
            return crate::operation::explain_files(on, std::slice::from_ref(file));
        }
        None
    }

    fn needs_store(&self) -> bool {
        self.needs_store
    }
}

impl SearchVectors {
    /// Refuses options that nodes do not support.
    fn check_on_nodes(&self, place: TargetKind) -> Result<()> {
        let single = "nodes read each list once for all queries that probe it, the strategy `batch`";
        let options = [
            ("strategy", self.strategy == Some(Strategy::Single), single),
            ("lines", self.lines, LINES_ON_NODES),
        ];
        match options.into_iter().find(|(_, is_given, _)| *is_given) {
            None => Ok(()),
            Some((option, _, why)) => {
                Err(Error::UnsupportedOption { operation: Self::NAME, option, place, why })
            }
        }
    }

    /// Returns the index on nodes, and the options of the approximate search in the index. Returns `None` for an exact
    /// search.
    #[cfg(feature = "nodes")]
    fn index_on_nodes(
        &self,
        vectors: &VectorsOnNodes,
        execution: &Execution,
        selection: Option<&SelectedOnNodes>,
    ) -> Result<Option<(IndexOnNodes, Approximate)>> {
        let open = || IndexOnNodes::find(vectors, execution);
        self.approximate_in(open, selection.map(|selection| &selection.rows))
    }

    /// Returns the vectors on nodes that satisfy the predicate, or `None` if the request has no predicate.
    #[cfg(feature = "nodes")]
    fn selection_on_nodes(
        &self,
        vectors: &VectorsOnNodes,
        context: &RequestContext<'_>,
        execution: &Execution,
    ) -> Result<Option<SelectedOnNodes>> {
        let Some(predicate) = &self.predicate else { return Ok(None) };
        let rows = select_on_nodes(vectors, context.stored(execution)?, predicate)?;
        SelectedOnNodes::new(execution.budget(), rows).map(Some)
    }

    /// Finds the neighbours of the queries among vectors on nodes.
    #[cfg(feature = "nodes")]
    fn find_on_nodes(
        &self,
        vectors: &VectorsOnNodes,
        queries: Queries,
        context: &RequestContext<'_>,
        execution: &Execution,
        mut attachments: Attachments<'_>,
    ) -> Result<Response<Found>> {
        let queries = queries.into_file(Self::NAME, vectors.layout.element)?;
        let options = self.options();
        // The options are checked before the output file is created.
        vectors::check_search(&vectors.info, &queries, &options)?;
        let selection = self.selection_on_nodes(vectors, context, execution)?;
        let mut columns = match vectors.answers_have_columns(&self.select) {
            true => Some(ColumnsOfAnswer::open(vectors, context.stored(execution)?, &self.select)?),
            false => None,
        };
        let index = self.index_on_nodes(vectors, execution, selection.as_ref())?;
        let receiver = attachments.rows.take().filter(|_| context.output.is_none());
        let schema = columns.as_ref().map_or_else(vectors::schema, |columns| columns.schema().clone());
        let mut rows = RowOutput::begin(context.output, receiver, &schema, execution)?;
        let form = SearchForm { selection: selection.as_ref(), asks_nodes: columns.is_some() };
        let mut each = |batch: RecordBatch| {
            let given = match &mut columns {
                Some(columns) => columns.add(batch, &mut |batch| rows.batch(batch)),
                None => rows.batch(batch),
            };
            given.map_err(|error| vectors::Error::Rows(error.into()))
        };
        let (found, gathered) = match &index {
            Some((index, approximate)) => {
                let options = (&options, &form, approximate);
                search_lists_on_nodes(vectors, index, execution, &queries, options, &mut each)?
            }
            None => search_on_nodes(vectors, execution, &queries, (&options, &form), &mut each)?,
        };
        columns.iter_mut().try_for_each(|columns| columns.finish(&mut |batch| rows.batch(batch)))?;
        rows.finish()?;
        Ok(Response::on_nodes(Found::OnNodes(found), &vectors.on, gathered))
    }
}

impl Operation for SearchVectors {
    const NAME: &'static str = "nearest query";
    const PLACES: &'static [TargetKind] = &TargetKind::ALL;
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = QueryPlan;
    type Answer = Found;

    fn check(&self, _inputs: &[PathBuf], output: Option<&Path>, place: TargetKind) -> Result<()> {
        if place.is_on_nodes() {
            self.check_on_nodes(place)?;
        }
        self.check_options(Self::NAME, output)
    }

    fn plan(&self, context: &RequestContext<'_>) -> Result<QueryPlan> {
        let queries = Queries::plan(Self::NAME, context.inputs)?;
        #[cfg(feature = "nodes")]
        let on_nodes =
            context.target.on_nodes().map(|on| VectorsOnNodes::find(on, &self.dataset)).transpose()?;
        #[cfg(feature = "nodes")]
        let needs_store = on_nodes
            .as_ref()
            .is_some_and(|vectors| self.predicate.is_some() || vectors.answers_have_columns(&self.select));
        #[cfg(not(feature = "nodes"))]
        let needs_store = false;
        Ok(QueryPlan {
            queries,
            needs_store,
            #[cfg(feature = "nodes")]
            on_nodes,
        })
    }

    fn run(
        &self,
        plan: QueryPlan,
        context: &RequestContext<'_>,
        execution: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<Found>> {
        #[cfg(feature = "nodes")]
        if let Some(vectors) = &plan.on_nodes {
            return self.find_on_nodes(vectors, plan.queries, context, execution, attachments);
        }
        let queries = plan.queries;
        let job = context.stored(execution)?;
        let vectors = Vectors::open(&job.store(), &self.dataset)?;
        let queries = queries.open(Self::NAME, job, &vectors, self.lines)?;
        let queries = for_elements(queries, vectors.info().element)?;
        let columns = AnswerColumns::open(job, &vectors, &self.select)?;
        let options = Search { selection: self.selection(job, &vectors)?.map(Arc::new), ..self.options() };
        let searched = (&vectors, Source::File(&queries));
        self.find(searched, (&options, columns), context, execution, attachments)
    }
}
