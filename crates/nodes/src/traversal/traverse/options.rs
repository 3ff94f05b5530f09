//! The options and the result of a traversal.

use serde::{Deserialize, Serialize};

use super::super::hop::{ChainPosition, Pointers, TraversalSummary};

/// The side that follows the pointers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraversalSide {
    /// The nodes: each node follows a chain through its own pages and hands the chain to the node with the next
    /// page.
    #[default]
    Nodes,
    /// The nodes, by way of the client: each node returns the chain to the client, and the client hands the
    /// chain to the next node.
    Turns,
    /// The client: every page is sent to the client.
    Client,
}

/// Options of a traversal: the format of the pages, limits and memory.
#[derive(Clone, Debug)]
pub struct TraverseOptions {
    /// The size of a page, and the position of the pointer to the next page within a page.
    pub pointers: Pointers,
    /// The maximum number of pointers to follow in each chain, at most [`STEPS_MAX`](super::super::hop::STEPS_MAX).
    pub steps: u64,
    /// The side that follows the pointers.
    pub by: TraversalSide,
    /// The memory in bytes for pages that the client caches if the client follows the pointers. The first
    /// pages that arrive stay in the cache.
    pub keep_bytes: u64,
    /// The memory in bytes on each node; `None` stands for the default of the node (8 MiB).
    pub node_memory_bytes: Option<u64>,
}

impl Default for TraverseOptions {
    /// Returns options for pages of 8 KiB that begin with the number of the next page, a thousand steps, and
    /// [`TraversalSide::Nodes`].
    fn default() -> Self {
        TraverseOptions {
            pointers: Pointers::default(),
            steps: 1000,
            by: TraversalSide::default(),
            keep_bytes: 0,
            node_memory_bytes: None,
        }
    }
}

/// The result for one chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ChainResult {
    /// The number of the first page.
    pub start: u64,
    /// The number of steps taken and the last page reached.
    #[serde(flatten)]
    pub walked: ChainPosition,
    /// True if the last page is marked as the end of the chain.
    pub ended: bool,
}

/// The result of a traversal.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Traversed {
    /// The chains, in the order of the requested start pages.
    pub chains: Vec<ChainResult>,
    /// The counts and times of each node since the last loss of a node.
    pub nodes: Vec<NodeVisits>,
    /// The time in seconds from the moment when all nodes were ready to the end of the last chain.
    pub seconds: f64,
    /// The number of pages that were sent to the client.
    pub pages_moved: u64,
    /// The number of pages that the client read from its cache.
    pub pages_kept: u64,
}

/// The counts and times of one node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeVisits {
    /// The address of the node.
    pub node: String,
    /// The page counts and times of the node.
    #[serde(flatten)]
    pub visited: TraversalSummary,
    /// The bytes that the node read from its devices, in complete checksum units.
    pub bytes_read: u64,
    /// The reason why the node was given up, if the node was given up.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}
