//! Traversals: chains of dependent reads that nodes follow, from one node to the next.

pub(crate) mod hop;
mod traverse;

pub use hop::{CHAINS_MAX, ChainPosition, LAST_PAGE, PAGE_BYTES_MAX, Pointers, STEPS_MAX, TraversalSummary};
pub use traverse::{ChainResult, NodeVisits, TraversalSide, TraverseOptions, Traversed};
