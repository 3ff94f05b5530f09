//! Measures the recall of an index on nodes, and stores the measured table of recall.
//!
//! ```text
//!   queries ─┬─► exact search on nodes ──────────────────────────────► neighbours ─┐
//!            └─► 1, 2, 3, 4, 6, ... lists of each query ─► nodes ────► neighbours ─┴─► recall for each number of lists
//! ```
//!
//! The build of an index measures recall on held-out vectors, and writes the table with the description of the index.
//! [`measure_recall_on_nodes`] measures recall on the user's queries, and replaces the table.

use inshore_nodes::RunOptions;
use inshore_store::Execution;
use inshore_vectors::{
    Error as VectorError, MeasuredOn, Prober, QueryReader, RecallPoint, RecallTable, Search, VectorFile,
    check_measurement,
};

use super::{
    VectorsOnNodes,
    lists::{IndexOnNodes, lists_request},
    parts::replace_table,
    query::{exact_request, queries_at_once, request_bytes},
    selection::SearchForm,
};
use crate::{error::Result, target::OnNodes};

/// The recall at which the measurement ends. Larger numbers of probes are not measured.
const ENOUGH: f32 = 0.9995;
/// The largest number of probes for which recall is measured. The limit keeps requests small.
const PROBES_MAX: u64 = 512;
/// The number of queries that are read at once to take a sample from them.
const READ_QUERIES: u64 = 1024;
/// The memory, in bytes, for one neighbour of a query: its id among the exact and among the approximate neighbours.
const NEIGHBOUR_BYTES: u64 = 32;
/// The memory, in bytes, for the neighbours of a query beside their ids.
const QUERY_BYTES: u64 = 48;
/// Measures the recall of the index of `vectors` on a sample of the queries of a file, and replaces the table of recall
/// on all nodes. The table is replaced completely or not at all. Returns the new table.
///
/// The sample is the same as in one store. Each number of probes is a search of the sample on the nodes.
///
/// # Errors
/// - Returns [`VectorError::NoIndex`] if the vectors have no index.
/// - Returns [`VectorError::BadOption`] if `sample` or `k` is out of range.
/// - Returns the errors of [`super::search_on_nodes`] and [`super::search_lists_on_nodes`].
/// - Returns an error that names a node if the node does not answer. All nodes must answer.
///
/// After an error, the index has its earlier table, unless the message states that the new table remains.
pub(crate) fn measure_recall_on_nodes(
    vectors: &VectorsOnNodes,
    job: &Execution,
    queries: &VectorFile,
    (sample, k): (u64, u64),
) -> Result<RecallTable> {
    check_measurement(sample, k)?;
    let options = RunOptions { partial: false, ..vectors.on.options.clone() };
    let on = OnNodes { nodes: vectors.on.nodes.clone(), options };
    let vectors = &VectorsOnNodes { on, ..vectors.clone() };
    let Some(found) = IndexOnNodes::find(vectors, job)? else {
        return Err(VectorError::NoIndex { name: vectors.info.name.clone() }.into());
    };
    // All nodes must answer before the measurement, since its table is written to all of them.
    vectors.on.nodes.status().into_iter().try_for_each(|node| node.status.map(drop))?;
    let sample = sample.min(queries.count());
    let bytes = sample * vectors.layout.query_bytes() as u64;
    job.budget().need(bytes, || format!("measuring recall with {sample} queries"))?;
    let _memory = job.budget().reserve(bytes, "queries")?;
    let rows = sampled(vectors, job, queries, sample)?;
    let measurement = Measurement { vectors, found: &found, job, rows: &rows, own: &[], k };
    let table = measurement.table(MeasuredOn::Queries)?;
    replace_table(&vectors.on, job, (&vectors.info.name, &found.index_id), &table)?;
    Ok(table)
}

/// Reads a sample of the queries of a file, at equal intervals.
fn sampled(vectors: &VectorsOnNodes, job: &Execution, queries: &VectorFile, sample: u64) -> Result<Vec<u8>> {
    let mut reader = QueryReader::new(job, queries, &vectors.info)?;
    let query_bytes = reader.query_bytes();
    let _memory = job.budget().reserve(READ_QUERIES * query_bytes as u64, "queries")?;
    let mut rows = Vec::with_capacity(sample as usize * query_bytes);
    let (mut some, mut first) = (Vec::new(), 0);
    for number in (0..sample).map(|number| number * queries.count() / sample) {
        while number >= first + (some.len() / query_bytes) as u64 {
            first += (some.len() / query_bytes) as u64;
            some = reader.next(READ_QUERIES)?;
        }
        rows.extend_from_slice(&some[(number - first) as usize * query_bytes..][..query_bytes]);
    }
    Ok(rows)
}

/// A measurement of recall on some queries.
pub(super) struct Measurement<'a> {
    pub vectors: &'a VectorsOnNodes,
    pub found: &'a IndexOnNodes,
    pub job: &'a Execution,
    /// The elements of the queries.
    pub rows: &'a [u8],
    /// The ids of the queries if they are vectors of the dataset. Otherwise the slice is empty. A vector is not its own
    /// neighbour.
    pub own: &'a [u64],
    /// The number of neighbours of each query.
    pub k: u64,
}

impl Measurement<'_> {
    /// Measures recall for several numbers of probes. Returns the table of recall.
    pub fn table(&self, measured_on: MeasuredOn) -> Result<RecallTable> {
        let index = &self.found.index;
        let count = self.rows.len() / self.vectors.layout.query_bytes();
        let k = self.k.min(index.info.vectors);
        let table = |points| RecallTable::new(k, count, measured_on, points);
        let all = RecallPoint { probes: index.info.lists, recall: 1.0 };
        if count == 0 {
            return Ok(table(vec![all]));
        }
        let bytes = count as u64 * (k * NEIGHBOUR_BYTES + QUERY_BYTES);
        self.job.budget().need(bytes, || format!("the neighbours of {count} queries"))?;
        let _memory = self.job.budget().reserve(bytes, "neighbours of queries")?;
        self.job.start_phase("measuring recall", "queries", 0);
        let exact = self.neighbours(k, None)?;
        let mut points = Vec::new();
        let mut probes = 1;
        loop {
            let recall = self.neighbours(k, Some(probes))?.share_of(&exact);
            points.push(RecallPoint { probes, recall });
            if recall >= ENOUGH || probes >= index.info.lists {
                return Ok(table(points));
            }
            if probes >= PROBES_MAX {
                points.push(all);
                return Ok(table(points));
            }
            // The sequence of the numbers of probes is 1, 2, 3, 4, 6, 8, 12, 16, ...
            let next = if probes < 4 {
                probes + 1
            } else if probes.is_power_of_two() {
                probes / 2 * 3
            } else {
                probes / 3 * 4
            };
            probes = next.min(index.info.lists);
        }
    }

    /// Finds the neighbours of all queries: the exact ones, or those in the `probes` nearest lists of each query.
    fn neighbours(&self, k: u64, probes: Option<u64>) -> Result<Neighbours<'_>> {
        let Measurement { vectors, found, job, rows, own, .. } = *self;
        let query_bytes = vectors.layout.query_bytes();
        // A vector of the dataset is the nearest one to itself, or one of several at the distance 0.
        let asked = k + u64::from(!own.is_empty());
        let search = Search { k: asked, metric: found.index.info.metric, ..Search::default() };
        let lists_max = probes.map_or(0, |probes| found.index.info.lists.min(probes + asked));
        let holders = vectors.on.nodes.addresses().count() as u64;
        let each = query_bytes as u64 + 4 * (lists_max + 1);
        let at_once = queries_at_once(job.budget().free_bytes(), each, asked, holders);
        let mut near = Neighbours { own, k: k as usize, ids: vec![Vec::new(); rows.len() / query_bytes] };
        let mut first = 0;
        for some in rows.chunks(at_once as usize * query_bytes) {
            let count = (some.len() / query_bytes) as u64;
            let _memory =
                job.budget().reserve(request_bytes(count * each, holders), "requests with queries")?;
            let request = match probes {
                None => exact_request(vectors, job, (&search, &SearchForm::default()), some),
                Some(probes) => {
                    let lists = Prober::new(&found.index, probes, asked).lists(job, some)?;
                    lists_request(vectors, found, job, (&search, &SearchForm::default()), (some, &lists))
                }
            };
            request.run(&mut Vec::new(), |query, _, id| {
                near.add(first + query as usize, id);
                Ok(())
            })?;
            first += count as usize;
        }
        Ok(near)
    }
}

/// The neighbours of queries. A query that is a vector of the dataset is not its own neighbour.
struct Neighbours<'a> {
    own: &'a [u64],
    k: usize,
    ids: Vec<Vec<u64>>,
}

impl Neighbours<'_> {
    fn add(&mut self, query: usize, id: u64) {
        if self.own.get(query) != Some(&id) && self.ids[query].len() < self.k {
            self.ids[query].push(id);
        }
    }

    /// Returns the fraction of the neighbours `exact` that `self` also contains.
    fn share_of(&self, exact: &Neighbours<'_>) -> f32 {
        let pairs = || self.ids.iter().zip(&exact.ids);
        let found: usize =
            pairs().map(|(ids, exact)| exact.iter().filter(|id| ids.contains(id)).count()).sum();
        let all: usize = exact.ids.iter().map(Vec::len).sum();
        if all == 0 { 1.0 } else { found as f32 / all as f32 }
    }
}
