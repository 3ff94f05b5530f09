//! The graph algorithms, each in a file or a folder of its own. Each algorithm names its source, and has an independent
//! verifier that does not use supersteps.

pub mod betweenness;
pub mod bfs;
pub mod clustering;
pub mod communities;
pub mod components;
pub mod pagerank;
pub mod sssp;

/// Stands for a vertex number or a level that does not exist.
pub(crate) const NONE: u32 = u32::MAX;
