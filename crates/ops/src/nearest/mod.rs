//! Finds nearest neighbours on the nodes that store the vectors.
//!
//! ```text
//!   node A:  shards 0, 3 ─► k nearest of each query ─┐
//!   node B:  shards 1, 4 ─► k nearest of each query ─┼─► Merged ─► k nearest of all
//!   node C:  shards 2, 5 ─► k nearest of each query ─┘
//! ```
//!
//! The vectors are a *spread file*: the file consists of *shards*, which are distributed over the nodes. No vector is
//! split between two shards. The map of the file describes the vectors ([`VectorLayout`]). The id of a vector is its
//! row number in the whole file. A request contains the elements of some queries. Each node compares its shards with
//! these queries, and returns its k nearest vectors with exact keys. A *key* is the number by which a search orders
//! neighbours. The client merges the answers by query, key and id. So the result is bit-identical to that of a search
//! in one dataset, for any number of nodes and shards.
//!
//! If the connection to a node is lost during its answer, other nodes search the shards of this node again. The merge
//! skips the rows up to the last row that it has already taken from the lost node. The new answers may contain
//! additional rows in the skipped range. These rows are farther than the k nearest vectors of the lost answer, so they
//! are not neighbours.
//!
//! Each node reads its shards once for each request. Queries that do not fit into one request need several requests.
//! Only queries and neighbours are sent over the network.

#[cfg(feature = "sql")]
mod column_queries;
mod columns;
mod datasets;
mod import;
mod index;
mod list_node;
mod lists;
mod merge;
mod node;
mod parts;
mod query;
mod recall;
mod selection;
#[cfg(all(test, feature = "sql"))]
mod table_tests;
#[cfg(test)]
mod tests;
#[cfg(not(feature = "sql"))]
mod without_queries;

use inshore_nodes::{DistributedFile, Error as NodesError};
use inshore_vectors::{Metric, VectorLayout, VectorsInfo};
use serde::{Deserialize, Serialize};

#[cfg(feature = "sql")]
pub(crate) use self::column_queries::{ColumnsOfAnswer, select_on_nodes};
use self::columns::ColumnsOnNodes;
#[cfg(not(feature = "sql"))]
pub(crate) use self::without_queries::{ColumnsOfAnswer, select_on_nodes};
pub use self::{
    datasets::SpreadDescription,
    list_node::{SamplesVectors, SearchesLists, WritesLists},
    merge::NodeSearched,
    node::SearchesVectors,
    query::{ProbedLists, SearchedOnNodes},
};
pub(crate) use self::{
    datasets::{describe_on_nodes, list_on_nodes, remove_index_on_nodes, remove_on_nodes},
    import::{import_on_nodes, import_table_on_nodes},
    index::index_on_nodes,
    lists::{IndexOnNodes, search_lists_on_nodes},
    query::search_on_nodes,
    recall::measure_recall_on_nodes,
    selection::{SearchForm, SelectedOnNodes},
};
use crate::{
    error::Result,
    target::{OnNodes, wholes},
};

const KIND: &str = "nearest";
/// The kind of the bytes of the lists of an index, which the description of the dataset states.
const LISTS_KIND: &str = "vector-lists";

/// The arguments of a request to find neighbours.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Arguments {
    layout: VectorLayout,
    /// The elements of the queries in base64. Their type is `f32` if the vectors have a floating-point type. Otherwise
    /// it is the element type of the vectors.
    queries: String,
    k: u64,
    metric: Metric,
    /// The bits of the radius, which is an `f64`. The radius is not a JSON number, since this could change its last
    /// bit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    radius_bits: Option<u64>,
    /// The bitmap of the selected vectors in base64. `None` selects all vectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    selection: Option<String>,
}

/// A spread file of vectors on nodes.
#[derive(Clone, Debug)]
pub(crate) struct VectorsOnNodes {
    pub on: OnNodes,
    pub file: DistributedFile,
    pub layout: VectorLayout,
    pub info: VectorsInfo,
    /// The columns of the table from which the vectors were imported.
    pub columns: Option<ColumnsOnNodes>,
}

impl VectorsOnNodes {
    /// Finds the vectors `name` on nodes.
    ///
    /// # Errors
    /// - Returns the errors of [`wholes`].
    /// - Returns [`NodesError::Unfit`] if the dataset does not contain vectors or its map is invalid.
    pub fn find(on: &OnNodes, name: &str) -> Result<VectorsOnNodes> {
        let found = wholes(&on.nodes, &[name.into()])?;
        let file = found.into_iter().next().expect("the catalog finds a file, or returns an error");
        VectorsOnNodes::of_file(on, file)
    }

    /// Checks the map of a spread file of vectors.
    fn of_file(on: &OnNodes, file: DistributedFile) -> Result<VectorsOnNodes> {
        let unfit = |what: String| NodesError::Unfit { name: file.title.clone(), what };
        let Some(description) = &file.description else {
            let what = "the dataset has no vectors: `nearest import --node` imports vectors".to_string();
            return Err(unfit(what).into());
        };
        let (layout, columns) = columns::parts_of(description)
            .map_err(|error| unfit(format!("its description is not one of vectors: {error}")))?;
        let info = layout.info(&file.dataset, file.bytes())?;
        let row_bytes = layout.row_bytes() as u64;
        match file.pieces.iter().find(|piece| piece.bytes % row_bytes != 0) {
            Some(piece) => {
                let what = format!("a piece of {} bytes does not end with a vector", piece.bytes);
                Err(unfit(what).into())
            }
            None => Ok(VectorsOnNodes { on: on.clone(), layout, info, columns, file }),
        }
    }
}
