//! Merges the neighbours that several nodes found.

use std::cmp::Ordering;

use arrow_array::{
    Array, Float64Array, RecordBatch, UInt64Array,
    cast::AsArray,
    types::{Float64Type, UInt64Type},
};
use inshore_nodes::{DistributedFile, GatherReport, Merged, OrderedRow, stream_from_nodes};
use inshore_store::Execution;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{error::Result, target::OnNodes};

/// The statistics that a node returns at the end of a task.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Summary {
    /// The number of vectors with which each query was compared. The number is 0 for a search in lists.
    pub vectors: u64,
    /// The number of parts of lists that were read.
    pub lists: u64,
    /// The number of pairs of a query and a vector.
    pub compared: u64,
    /// The number of pairs whose exact distances were computed.
    pub measured: u64,
    /// For each query the number of selected vectors in its lists. It is empty for a search without a selection.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub selected: Vec<u64>,
}

/// The result of a request.
pub(super) struct Ran {
    pub gathered: GatherReport,
    /// For each query the number of selected vectors in its lists on all nodes.
    pub selected: Vec<u64>,
}

/// The work of one node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct NodeSearched {
    /// The address of the node.
    pub node: String,
    /// The number of vectors that were read, summed over all passes. The number is 0 for a search in lists.
    pub vectors: u64,
    /// The number of parts of lists that were read, summed over all requests.
    pub lists: u64,
    /// The number of pairs of a query and a vector.
    pub compared: u64,
    /// The number of pairs whose exact distances were computed.
    pub measured: u64,
}

/// A request to the nodes that hold shards of a file.
pub(super) struct Request<'a> {
    pub on: &'a OnNodes,
    pub job: &'a Execution,
    pub file: &'a DistributedFile,
    pub kind: &'static str,
    pub arguments: Value,
    pub expected: Expected,
}

impl Request<'_> {
    /// Sends the request to the nodes. Passes the query, the key and the id of each neighbour to `each`, sorted by
    /// these three values. A query may have more than k neighbours, since each node returns k. Adds the work of the
    /// nodes to `nodes`.
    pub fn run(
        self,
        nodes: &mut Vec<NodeSearched>,
        mut each: impl FnMut(u64, f64, u64) -> Result<()>,
    ) -> Result<Ran> {
        let Request { on, job, file, kind, arguments, expected } = self;
        let files = std::slice::from_ref(file);
        let streams = stream_from_nodes(&on.nodes, job, (kind, false), arguments, files, &on.options)?;
        let mut merged = Merged::<Neighbours>::new(streams, expected)?;
        while let Some((found, rows)) = merged.next()? {
            job.check_cancelled()?;
            for row in rows {
                let (query, key, id) = found.row(row);
                each(query, key, id)?;
            }
        }
        let mut selected = vec![0u64; expected.queries as usize];
        for (node, summary) in merged.summaries_by_node() {
            let summary: Summary = serde_json::from_value(summary.clone()).unwrap_or_default();
            selected
                .iter_mut()
                .zip(&summary.selected)
                .for_each(|(all, some)| *all = all.saturating_add(*some));
            add(nodes, node, &summary);
        }
        Ok(Ran { gathered: merged.finish(), selected })
    }
}

fn add(nodes: &mut Vec<NodeSearched>, node: &str, summary: &Summary) {
    let place = nodes.iter().position(|known| known.node == node).unwrap_or_else(|| {
        nodes.push(NodeSearched { node: node.to_string(), ..NodeSearched::default() });
        nodes.len() - 1
    });
    let known = &mut nodes[place];
    // A faulty node may return wrong numbers, so the sums saturate and do not overflow.
    known.vectors = known.vectors.saturating_add(summary.vectors);
    known.lists = known.lists.saturating_add(summary.lists);
    known.compared = known.compared.saturating_add(summary.compared);
    known.measured = known.measured.saturating_add(summary.measured);
}

/// The limits for valid numbers in an answer of a node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub queries: u64,
    pub vectors: u64,
}

/// A batch of neighbours, in the order of queries, keys and ids.
struct Neighbours {
    queries: UInt64Array,
    keys: Float64Array,
    ids: UInt64Array,
}

impl Neighbours {
    fn row(&self, row: usize) -> (u64, f64, u64) {
        (self.queries.value(row), self.keys.value(row), self.ids.value(row))
    }
}

impl OrderedRow for Neighbours {
    const ADDS_UP: bool = false;
    type How = Expected;

    fn of_batch(batch: &RecordBatch, expected: &Expected) -> Option<Neighbours> {
        let [queries, keys, ids] = batch.columns() else { return None };
        let found = Neighbours {
            queries: queries.as_primitive_opt::<UInt64Type>()?.clone(),
            keys: keys.as_primitive_opt::<Float64Type>()?.clone(),
            ids: ids.as_primitive_opt::<UInt64Type>()?.clone(),
        };
        let is_full = batch.columns().iter().all(|column| column.null_count() == 0);
        let is_valid = |row| {
            let (query, key, id) = found.row(row);
            query < expected.queries && id < expected.vectors && !key.is_nan()
        };
        let are_in_order = || (1..found.rows()).all(|row| found.compare(row - 1, &found, row).is_lt());
        (is_full && (0..found.rows()).all(is_valid) && are_in_order()).then_some(found)
    }

    fn rows(&self) -> usize {
        self.queries.len()
    }

    fn compare(&self, row: usize, other: &Neighbours, other_row: usize) -> Ordering {
        let ((query, key, id), (other_query, other_key, other_id)) = (self.row(row), other.row(other_row));
        query.cmp(&other_query).then(key.total_cmp(&other_key)).then(id.cmp(&other_id))
    }

    fn alone(&self, row: usize) -> Neighbours {
        let (query, key, id) = self.row(row);
        Neighbours { queries: vec![query].into(), keys: vec![key].into(), ids: vec![id].into() }
    }
}

/// Returns true if the client accepts `rows` as an answer for the given numbers of queries and vectors.
#[cfg(test)]
pub(super) fn rows_are_accepted(rows: &[(u64, f64, u64)], queries: u64, vectors: u64) -> bool {
    use std::sync::Arc;

    let columns: Vec<arrow_array::ArrayRef> = vec![
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.0))),
        Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.1))),
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.2))),
    ];
    let batch = RecordBatch::try_new(inshore_vectors::shard_schema(), columns).expect("three columns");
    Neighbours::of_batch(&batch, &Expected { queries, vectors }).is_some()
}
