//! Implements the client's side of an exact search for neighbours.

use arrow_array::RecordBatch;
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use inshore_nodes::GatherReport;
use inshore_store::Execution;
use inshore_vectors::{Element, MergedAnswer, QueryReader, Search, VectorFile, VectorsInfo, check_search};
use serde::Serialize;

use super::{
    Arguments, KIND, VectorsOnNodes,
    merge::{Expected, NodeSearched, Request},
    selection::{Collected, SearchForm, SelectedOnNodes, add_neighbour},
};
use crate::error::{Error, Result};

/// The largest size of the queries of a request, in bytes. The size of these queries in base64 is well below the
/// largest request of 16 MiB.
const QUERIES_BYTES_MAX: u64 = 2 << 20;
/// The largest memory of a node for the neighbours of the queries of a request, in bytes. A request with one query may
/// need more.
const NEIGHBOURS_BYTES_MAX: u64 = 16 << 20;
/// The memory of a node for one neighbour, in bytes.
const NEIGHBOUR_BYTES: u64 = 16;
/// The memory of a node for one query without its elements, in bytes.
const QUERY_BYTES: u64 = 200;

/// The statistics of a search on nodes.
#[derive(Clone, Debug, Serialize)]
pub struct SearchedOnNodes {
    /// The number of queries.
    pub queries: u64,
    /// The number of vectors with which each query was compared.
    pub vectors: u64,
    /// The number of dimensions of a vector.
    pub dimensions: usize,
    /// The element type of the vectors.
    pub element: Element,
    /// The number of rows of the answer.
    pub rows: u64,
    /// The number of requests to each node. Each request is one pass over the vectors.
    pub passes: u64,
    /// The number of pairs whose exact distances were computed, on all nodes.
    pub measured: u64,
    /// The number of vectors that satisfy the predicate. `None` if there is no predicate.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub selected: Option<u64>,
    /// True if so few vectors are selected that the answer is exact.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub is_sparse: bool,
    /// The number of queries whose lists had too few selected vectors. They were compared with all selected vectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exhaustive: Option<u64>,
    /// The statistics of the probed lists. `None` for an exact search.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub approximate: Option<ProbedLists>,
    /// The work of each node.
    pub by_node: Vec<NodeSearched>,
}

/// The lists of an index that a search probed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ProbedLists {
    /// The number of lists that each query probes. A query probes more lists if these contain fewer than k vectors.
    pub probes: u64,
    /// The number of lists of the index.
    pub lists: u64,
    /// The recall that the table of recall of the index states for the number of probes. `None` if the table has no
    /// entry for so few probes.
    pub recall_estimate: Option<f32>,
    /// The number of neighbours for which the table of recall was measured.
    pub recall_k: u32,
}

impl SearchedOnNodes {
    /// Begins the statistics of a search.
    pub(super) fn new(vectors: &VectorsInfo, queries: u64, passes: u64) -> SearchedOnNodes {
        SearchedOnNodes {
            queries,
            vectors: vectors.vectors,
            dimensions: vectors.dimensions,
            element: vectors.element,
            rows: 0,
            passes,
            measured: 0,
            selected: None,
            is_sparse: false,
            exhaustive: None,
            approximate: None,
            by_node: Vec::new(),
        }
    }

    /// Passes the last rows of an answer to the receiver, and adds the counts of the answer to the statistics.
    pub(super) fn finish(&mut self, answer: MergedAnswer<'_>) -> Result<()> {
        self.rows = answer.finish().map_err(Error::of_search)?;
        self.measured = self.by_node.iter().map(|node| node.measured).fold(0, u64::saturating_add);
        Ok(())
    }
}

/// Finds the nearest vectors of each query on nodes. Passes the rows of the answer to `each`, as
/// [`inshore_vectors::search()`] does.
///
/// The memory of the client consists of a copy of the queries of a request for each node, and of a batch of each node's
/// answer.
///
/// # Errors
/// - Returns the errors of [`inshore_vectors::search()`].
/// - Returns the errors of [`inshore_nodes::run_on_nodes`]. If the connection to a node is lost during its answer and
///   no other node stores its shards, the search fails even if partial answers are allowed.
pub(crate) fn search_on_nodes(
    vectors: &VectorsOnNodes,
    job: &Execution,
    queries: &VectorFile,
    (search, form): (&Search, &SearchForm<'_>),
    each: &mut dyn FnMut(RecordBatch) -> inshore_vectors::Result<()>,
) -> Result<(SearchedOnNodes, GatherReport)> {
    let VectorsOnNodes { info, file, .. } = vectors;
    check_search(info, queries, search)?;
    let k = search.k.min(info.vectors);
    let mut reader = QueryReader::new(job, queries, info)?;
    let holders = file.nodes(&vectors.on.nodes).len().max(1) as u64;
    let collected = form.collected_bytes(k);
    let free = job.budget().free_bytes().saturating_sub(request_text_bytes(form, holders));
    let at_once =
        queries_at_once(free, reader.query_bytes() as u64, k, holders).min(form.queries_at_once(free, k));
    let mut searched = SearchedOnNodes::new(info, queries.count(), queries.count().div_ceil(at_once));
    let passes = searched.passes;
    job.progress().tell(|| format!("{passes} requests to each node, of {at_once} queries at most"));
    job.start_phase("searching", "queries", queries.count());
    let mut answer = MergedAnswer::new(search.metric, k, each);
    let mut gathered = GatherReport::default();
    let mut first = 0;
    while first < queries.count() {
        let count = at_once.min(queries.count() - first);
        let bytes = request_bytes(count * reader.query_bytes() as u64, holders);
        let bytes = bytes + request_text_bytes(form, holders);
        let requests = job.budget().reserve(bytes, "requests with queries")?;
        let _collected = job.budget().reserve(count * collected, "neighbours of queries")?;
        let some = reader.next(count)?;
        let request = exact_request(vectors, job, (&Search { k, ..search.clone() }, form), &some);
        let mut near = form.collects().then(|| Collected::new(count, k));
        let ran = request.run(&mut searched.by_node, |query, key, id| {
            add_neighbour(&mut near, (first, &mut answer), (query, key, id))
        })?;
        gathered.add(ran.gathered);
        // The receiver of rows needs memory of its own.
        drop(requests);
        near.map_or(Ok(()), |near| near.pass_to(first, &mut answer))?;
        first += count;
        job.progress().add(count);
    }
    searched.selected = form.selection.map(|selection| selection.count);
    searched.is_sparse = form.selection.is_some_and(SelectedOnNodes::is_sparse);
    searched.finish(answer)?;
    Ok((searched, gathered))
}

/// Returns the memory, in bytes, of the selected vectors in a request to `nodes` nodes.
pub(super) fn request_text_bytes(form: &SearchForm<'_>, nodes: u64) -> u64 {
    form.text_bytes() * (2 + 2 * nodes)
}

/// Returns the request for the exact neighbours of `queries`.
pub(super) fn exact_request<'a>(
    vectors: &'a VectorsOnNodes,
    job: &'a Execution,
    (search, form): (&Search, &SearchForm<'_>),
    queries: &[u8],
) -> Request<'a> {
    let VectorsOnNodes { on, file, layout, info, .. } = vectors;
    let arguments = Arguments {
        layout: *layout,
        queries: BASE64.encode(queries),
        k: search.k,
        metric: search.metric,
        radius_bits: search.radius.map(f64::to_bits),
        selection: form.text(),
    };
    let arguments = serde_json::to_value(arguments).expect("plain data");
    let queries = (queries.len() / layout.query_bytes()) as u64;
    let expected = Expected { queries, vectors: info.vectors };
    Request { on, job, file, kind: KIND, arguments, expected }
}

/// Returns the memory, in bytes, of a request with `bytes` bytes of queries. The memory consists of these bytes, of
/// their text in base64, and for each node of a copy of the text and of the message.
pub(super) fn request_bytes(bytes: u64, nodes: u64) -> u64 {
    bytes + bytes.div_ceil(3) * 4 * (2 + 2 * nodes)
}

/// Returns the number of queries of a request, which is at least 1. The answer of a search does not depend on this
/// number.
pub(super) fn queries_at_once(free_bytes: u64, query_bytes: u64, k: u64, nodes: u64) -> u64 {
    let of_client = free_bytes / 4 / request_bytes(query_bytes, nodes);
    let of_request = QUERIES_BYTES_MAX / query_bytes;
    let of_node = NEIGHBOURS_BYTES_MAX / (k.saturating_mul(NEIGHBOUR_BYTES).saturating_add(QUERY_BYTES));
    of_client.min(of_request).min(of_node).max(1)
}
