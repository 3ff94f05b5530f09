//! The algorithms, each in one file (PageRank in two). A file has the vertex program, names its source, and has an
//! independent verifier that does not use supersteps.

pub mod betweenness;
pub mod bfs;
pub mod clustering;
pub mod communities;
pub mod components;
pub mod pagerank;
pub mod sssp;

/// Represents a missing vertex number or level.
pub(crate) const NONE: u32 = u32::MAX;
