//! Implements the client's side of an approximate search on nodes. The client chooses the lists of each query, and the
//! nodes search their parts of these lists.

use arrow_array::RecordBatch;
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use inshore_nodes::{Catalog, DistributedFile, Error as NodesError, GatherReport, read_from_nodes};
use inshore_store::{Execution, Reservation};
use inshore_vectors::{
    Approximate, Error as VectorError, MergedAnswer, Prober, QueryReader, Search, SpreadIndex,
    SpreadIndexInfo, VectorFile, VectorLayout, check_search, has_enough_selected, probes_among,
    shard_lists_bytes,
};
use serde::{Deserialize, Serialize};

use super::{
    VectorsOnNodes,
    merge::{Expected, Request},
    parts::{dataset_in, id_of, index_names, latest_table},
    query::{
        ProbedLists, SearchedOnNodes, exact_request, queries_at_once, request_bytes, request_text_bytes,
    },
    selection::{Collected, SearchForm, add_neighbour},
};
use crate::error::Result;

pub(super) const KIND: &str = "nearest lists";
/// The largest size of the centroids and counts of an index, in bytes. The client refuses a larger index.
const INDEX_BYTES_MAX: u64 = 64 << 20;

/// The arguments of a request to find neighbours in lists.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Arguments {
    pub layout: VectorLayout,
    /// The elements of the queries in base64.
    pub queries: String,
    /// The lists of all queries, as `u32` numbers in base64.
    pub lists: String,
    /// The number of lists of each query, as `u32` numbers in base64.
    pub counts: String,
    /// The number of lists of the index.
    pub lists_count: u64,
    /// The id of the first vector of each shard.
    pub first_ids: Vec<u64>,
    pub k: u64,
    pub metric: inshore_vectors::Metric,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub radius_bits: Option<u64>,
    /// The bitmap of the selected vectors in base64. `None` selects all vectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<String>,
}

/// An index of vectors on nodes.
#[derive(Debug)]
pub(crate) struct IndexOnNodes {
    pub index: SpreadIndex,
    /// The id of the dataset of centroids, as text. It is empty until the dataset is written.
    pub index_id: String,
    /// The dataset of lists. Each of its pieces belongs to one piece of the vectors.
    pub lists: DistributedFile,
    pub _memory: Reservation,
}

/// The description of an index on nodes, and its datasets.
#[derive(Debug)]
pub(super) struct IndexFiles {
    /// The description, with the table of recall that was measured last.
    pub info: SpreadIndexInfo,
    /// The dataset of centroids and counts.
    pub centroids: DistributedFile,
    /// The dataset of lists.
    pub lists: DistributedFile,
}

impl IndexFiles {
    /// Finds the index of vectors. Returns `None` if the vectors have no index.
    ///
    /// # Errors
    /// - Returns [`NodesError::Unfit`] if the index was built from other vectors, if its lists are missing, or if its
    ///   description is invalid.
    /// - Returns [`NodesError`] if a node does not answer.
    pub fn find(catalog: &Catalog, vectors: &VectorsOnNodes) -> Result<Option<IndexFiles>> {
        let [name, lists_name, _] = index_names(&vectors.info.name);
        let Some(file) = dataset_in(catalog, &name)? else { return Ok(None) };
        let unfit = |what: String| NodesError::Unfit { name: file.title.clone(), what };
        let mut info: SpreadIndexInfo = serde_json::from_value(file.description.clone().unwrap_or_default())
            .map_err(|error| unfit(format!("its description is not one of an index: {error}")))?;
        info.check(&name, file.bytes())?;
        let rebuild = format!("`inshore nearest index {} --node` builds it again", vectors.info.name);
        if info.vectors_id != id_of(&vectors.file) || info.vectors != vectors.info.vectors {
            return Err(unfit(format!("this is an index of other vectors: {rebuild}")).into());
        }
        let Some(lists) = dataset_in(catalog, &lists_name)? else {
            return Err(unfit(format!("its lists, store:{lists_name}, are not there: {rebuild}")).into());
        };
        if info.lists_id != id_of(&lists) || !are_lists_of(vectors, &lists, info.lists) {
            return Err(unfit(format!("store:{lists_name} has the lists of another index: {rebuild}")).into());
        }
        if let Some(latest) = latest_table(catalog, &vectors.info.name, &id_of(&file))? {
            info.recall = latest.recall;
        }
        Ok(Some(IndexFiles { info, centroids: file, lists }))
    }
}

impl IndexOnNodes {
    /// Reads the index of vectors from nodes. Returns `None` if the vectors have no index.
    ///
    /// # Errors
    /// - Returns the errors of [`IndexFiles::find`].
    /// - Returns [`NodesError::Unfit`] if the centroids are larger than the limit.
    /// - Returns [`VectorError::BadDataset`] if the centroids or counts are invalid.
    /// - Returns [`inshore_store::Error`] if the budget has too little free memory.
    pub fn find(vectors: &VectorsOnNodes, job: &Execution) -> Result<Option<IndexOnNodes>> {
        let on = &vectors.on;
        let Some(files) = IndexFiles::find(&on.nodes.catalog()?, vectors)? else { return Ok(None) };
        let IndexFiles { info, centroids: file, lists } = files;
        if file.bytes() > INDEX_BYTES_MAX {
            let what = format!("its centroids have {} bytes, more than the limit", file.bytes());
            return Err(NodesError::Unfit { name: file.title, what }.into());
        }
        // The memory is that of the received bytes and of the index.
        job.budget().need(2 * file.bytes(), || format!("reading the index of {}", vectors.info.name))?;
        let mut memory = job.budget().reserve(2 * file.bytes(), "the centroids of an index")?;
        let run = inshore_nodes::RunOptions { partial: false, ..on.options.clone() };
        let bytes = read_from_nodes(&on.nodes, job, &file, 0..file.bytes(), &run)?;
        let index = SpreadIndex::of_bytes(&file.dataset, info, &bytes)?;
        memory.resize(file.bytes())?;
        Ok(Some(IndexOnNodes { index, index_id: id_of(&file), lists, _memory: memory }))
    }
}

/// Returns true if each piece of the lists has the size that the lists of the same piece of the vectors must have.
fn are_lists_of(vectors: &VectorsOnNodes, lists: &DistributedFile, count: u64) -> bool {
    let row_bytes = vectors.layout.row_bytes() as u64;
    let mut pieces = vectors.file.pieces.iter().zip(&lists.pieces);
    let is_part = |(of_vectors, of_lists): (&inshore_nodes::Piece, &inshore_nodes::Piece)| {
        of_lists.bytes == shard_lists_bytes(vectors.layout, of_vectors.bytes / row_bytes, count)
    };
    vectors.file.pieces.len() == lists.pieces.len() && pieces.all(is_part)
}

/// Finds near vectors of each query in the lists of an index on nodes. Passes the rows of the answer to `each`.
///
/// # Errors
/// - Returns the errors of [`super::search_on_nodes`].
/// - Returns [`VectorError::BadOption`] if the index was built for another metric.
pub(crate) fn search_lists_on_nodes(
    vectors: &VectorsOnNodes,
    found: &IndexOnNodes,
    job: &Execution,
    queries: &VectorFile,
    (search, form, approximate): (&Search, &SearchForm<'_>, &Approximate),
    each: &mut dyn FnMut(RecordBatch) -> inshore_vectors::Result<()>,
) -> Result<(SearchedOnNodes, GatherReport)> {
    let (info, index) = (&vectors.info, &found.index);
    check_search(info, queries, search)?;
    approximate.check()?;
    if search.metric != index.info.metric {
        let expected =
            format!("{}, for which the index of {} was built", index.info.metric.name(), info.name);
        let found = search.metric.name().to_string();
        return Err(VectorError::BadOption { option: "metric", found, expected }.into());
    }
    let search = &Search { k: search.k.min(info.vectors), ..search.clone() };
    let lists = index.info.lists;
    let by_recall = || index.info.recall.probes_for(approximate.recall, lists);
    let among_all = approximate.probes.unwrap_or_else(by_recall).min(lists);
    let probes = match (approximate.probes, form.selection) {
        (None, Some(selection)) => probes_among(&selection.rows, among_all, lists),
        _ => among_all,
    };
    let prober = Prober::new(index, probes, search.k);
    let mut reader = QueryReader::new(job, queries, info)?;
    let holders = found.lists.nodes(&vectors.on.nodes).len().max(1) as u64;
    // If the probed lists contain fewer than k vectors, a query needs further lists. Each non-empty list contains at
    // least one vector.
    let query_bytes = reader.query_bytes() as u64 + 4 * (probes + search.k.min(lists) + 1);
    let collected = form.collected_bytes(search.k);
    let free = job.budget().free_bytes().saturating_sub(request_text_bytes(form, holders));
    let at_once =
        queries_at_once(free, query_bytes, search.k, holders).min(form.queries_at_once(free, search.k));
    let mut searched = SearchedOnNodes::new(info, queries.count(), queries.count().div_ceil(at_once));
    searched.approximate = Some(ProbedLists {
        probes,
        lists,
        // A search among selected vectors probes more lists to reach the same recall. The table is therefore read at
        // the number of probes that a search among all vectors would have.
        recall_estimate: if probes == lists { Some(1.0) } else { index.info.recall.recall_of(among_all) },
        recall_k: index.info.recall.k,
    });
    searched.selected = form.selection.map(|selection| selection.count);
    searched.exhaustive = form.selection.map(|_| 0);
    job.start_phase("searching", "queries", queries.count());
    let mut answer = MergedAnswer::new(search.metric, search.k, each);
    let mut gathered = GatherReport::default();
    let mut first = 0;
    while first < queries.count() {
        let count = at_once.min(queries.count() - first);
        let bytes = request_bytes(count * query_bytes, holders) + request_text_bytes(form, holders);
        let requests = job.budget().reserve(bytes, "requests with queries")?;
        let _collected = job.budget().reserve(count * collected, "neighbours of queries")?;
        let some = reader.next(count)?;
        let lists = prober.lists(job, &some)?;
        let request = lists_request(vectors, found, job, (search, form), (&some, &lists));
        let mut near = form.collects().then(|| Collected::new(count, search.k));
        let ran = request.run(&mut searched.by_node, |query, key, id| {
            add_neighbour(&mut near, (first, &mut answer), (query, key, id))
        })?;
        gathered.add(ran.gathered);
        if let Some(mut near) = near {
            let lacking = lacking_queries(index, form, search.k, (&lists, &ran.selected));
            gathered.add(complete(
                vectors,
                job,
                (search, form),
                (&some, &lacking),
                &mut near,
                &mut searched,
            )?);
            // The receiver of rows needs memory of its own.
            drop(requests);
            near.pass_to(first, &mut answer)?;
        }
        first += count;
        job.progress().add(count);
    }
    searched.finish(answer)?;
    Ok((searched, gathered))
}

/// Returns the queries whose lists have too few selected vectors. `selected` has the number of selected vectors in the
/// lists of each query.
fn lacking_queries(
    index: &SpreadIndex,
    form: &SearchForm<'_>,
    k: u64,
    (lists, selected): (&[Vec<u32>], &[u64]),
) -> Vec<usize> {
    let Some(selection) = form.selection else { return Vec::new() };
    let of_all = (index.info.vectors, selection.count);
    let is_lacking = |query: &usize| {
        let vectors = lists[*query].iter().map(|&list| index.counts[list as usize]);
        let vectors = vectors.fold(0, u64::saturating_add);
        !has_enough_selected(k.min(selection.count), (vectors, selected[*query]), of_all)
    };
    (0..lists.len()).filter(is_lacking).collect()
}

/// Compares the queries `lacking` with all selected vectors, and replaces their neighbours.
fn complete(
    vectors: &VectorsOnNodes,
    job: &Execution,
    how: (&Search, &SearchForm<'_>),
    (queries, lacking): (&[u8], &[usize]),
    near: &mut Collected,
    searched: &mut SearchedOnNodes,
) -> Result<GatherReport> {
    if lacking.is_empty() {
        return Ok(GatherReport::default());
    }
    let query_bytes = vectors.layout.query_bytes();
    let some: Vec<u8> =
        lacking.iter().flat_map(|query| &queries[query * query_bytes..][..query_bytes]).copied().collect();
    lacking.iter().for_each(|&query| near.clear(query as u64));
    let request = exact_request(vectors, job, how, &some);
    let ran = request.run(&mut searched.by_node, |query, key, id| {
        near.add(lacking[query as usize] as u64, key, id);
        Ok(())
    })?;
    searched.exhaustive = searched.exhaustive.map(|count| count + lacking.len() as u64);
    Ok(ran.gathered)
}

/// Returns the request for the nearest vectors of `queries` in `lists`, the lists of each query.
pub(super) fn lists_request<'a>(
    vectors: &'a VectorsOnNodes,
    found: &'a IndexOnNodes,
    job: &'a Execution,
    (search, form): (&Search, &SearchForm<'_>),
    (queries, lists): (&[u8], &[Vec<u32>]),
) -> Request<'a> {
    let VectorsOnNodes { on, file, layout, info, .. } = vectors;
    let row_bytes = layout.row_bytes() as u64;
    let text = |numbers: &mut dyn Iterator<Item = u32>| {
        BASE64.encode(numbers.flat_map(u32::to_le_bytes).collect::<Vec<u8>>())
    };
    let arguments = Arguments {
        layout: *layout,
        queries: BASE64.encode(queries),
        lists: text(&mut lists.iter().flatten().copied()),
        counts: text(&mut lists.iter().map(|lists| lists.len() as u32)),
        lists_count: found.index.info.lists,
        first_ids: file.pieces.iter().map(|piece| piece.offset / row_bytes).collect(),
        k: search.k,
        metric: search.metric,
        radius_bits: search.radius.map(f64::to_bits),
        selection: form.text(),
    };
    let arguments = serde_json::to_value(arguments).expect("plain data");
    let expected = Expected { queries: lists.len() as u64, vectors: info.vectors };
    Request { on, job, file: &found.lists, kind: KIND, arguments, expected }
}
