//! This module finds nearest neighbours on the nodes that store the vectors.
//!
//! ```text
//!   node A:  shards 0, 3 ─► k nearest of each query ─┐
//!   node B:  shards 1, 4 ─► k nearest of each query ─┼─► Merged ─► k nearest of all
//!   node C:  shards 2, 5 ─► k nearest of each query ─┘
//! ```
//!
//! The vectors are a spread file whose shards end with vectors. The map of the file describes the vectors
//! ([`VectorLayout`]), and the id of a vector is the number of its row in the whole file. A request has the elements
//! of some queries. Each node compares its shards with them, and returns its k nearest vectors with exact keys. The
//! client merges the answers by query, key and id. The result therefore equals that of one dataset bit for bit, for
//! any number of nodes and shards.
//!
//! If a node is lost in the middle of its answer, other nodes search its shards again, and the merge skips the rows
//! up to the last row that it has taken. The new answers may have additional rows among these, which are farther
//! than the k nearest vectors of the lost answer: they are no neighbours.
//!
//! Cost: each node reads its shards once for each request. Queries that do not fit in one request need several.
//! Only queries and neighbours are sent over the network.

mod import;
mod index;
mod list_node;
mod lists;
mod merge;
mod node;
mod query;
#[cfg(test)]
mod tests;

use inshore_nodes::{DistributedFile, Error as NodesError};
use inshore_vectors::{Metric, VectorLayout, VectorsInfo};
use serde::{Deserialize, Serialize};

pub(crate) use self::{
    import::import_on_nodes,
    index::index_on_nodes,
    lists::{IndexOnNodes, search_lists_on_nodes},
    query::search_on_nodes,
};
pub use self::{
    list_node::{SamplesVectors, SearchesLists, WritesLists},
    merge::NodeSearched,
    node::SearchesVectors,
    query::{ProbedLists, SearchedOnNodes},
};
use crate::{
    error::Result,
    target::{OnNodes, wholes},
};

const KIND: &str = "nearest";

/// The arguments of a request to find neighbours.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    layout: VectorLayout,
    /// The elements of the queries in base 64: f32 for vectors of floating-point numbers, otherwise those of the
    /// vectors.
    queries: String,
    k: u64,
    metric: Metric,
    /// The bits of the radius, an f64. A number in JSON might lose its last bit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    radius_bits: Option<u64>,
}

/// Vectors on nodes.
#[derive(Debug)]
pub(crate) struct VectorsOnNodes {
    pub on: OnNodes,
    pub file: DistributedFile,
    pub layout: VectorLayout,
    pub info: VectorsInfo,
}

impl VectorsOnNodes {
    /// Finds the vectors `name` on nodes.
    ///
    /// # Errors
    /// The errors of [`wholes`]; [`NodesError::Unfit`] for a dataset that has no vectors, or an invalid map.
    pub fn find(on: &OnNodes, name: &str) -> Result<VectorsOnNodes> {
        let found = wholes(&on.nodes, &[name.into()])?;
        let file = found.into_iter().next().expect("the catalog finds a file, or returns an error");
        let unfit = |what: String| NodesError::Unfit { name: file.title.clone(), what };
        let Some(description) = &file.description else {
            let what = "the dataset has no vectors: `nearest import --node` imports vectors".to_string();
            return Err(unfit(what).into());
        };
        let layout: VectorLayout = serde_json::from_value(description.clone())
            .map_err(|error| unfit(format!("its description is not one of vectors: {error}")))?;
        let info = layout.info(&file.dataset, file.bytes())?;
        let row_bytes = layout.row_bytes() as u64;
        match file.pieces.iter().find(|piece| piece.bytes % row_bytes != 0) {
            Some(piece) => {
                let what = format!("a piece of {} bytes does not end with a vector", piece.bytes);
                Err(unfit(what).into())
            }
            None => Ok(VectorsOnNodes { on: on.clone(), layout, info, file }),
        }
    }
}
