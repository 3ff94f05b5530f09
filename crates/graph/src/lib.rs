//! Graphs larger than memory and the algorithms on them.
//!
//! The main terms of the crate:
//!
//! - [`Graph`]: a graph on flash, opened from a store. A graph has compressed sparse rows of its out-edges (and of its
//!   in-edges on request), degrees, weights, and the user's vertex ids. Layout: `docs/format.md`.
//! - [`import()`] and [`generate`] make graphs, [`export`] writes one to a file.
//! - A *vertex program* is an algorithm that is expressed as functions of one vertex. The superstep engine runs vertex
//!   programs: it streams edges from flash, and sorts and reduces updates. The module [`program`] runs vertex programs
//!   of users: [`VertexProgram`] and [`SearchProgram`].
//! - [`Answer`]: the result of an algorithm. It has rows, which are streamed to a file or a reader, and a summary.
//!
//! The engine follows the 2018 thesis, section 9.4, algorithm 3. In this crate, "2018 thesis" stands for S.-W. Jun,
//! "Big Data Analytics Made Affordable Using Hardware-Accelerated Flash Storage", PhD thesis, MIT, 2018.
//!
//! ```text
//!   user's edges ─ import ─► Graph ─ superstep ─► Answer ─ rows ─► Parquet, Arrow, CSV
//!                   │                  │  ▲
//!                   └── sort-reduce ◄──┘  └── vertex state: in memory or on flash
//! ```
//!
//! Start with [`algorithms`]: each algorithm is a file or a folder of its own. The module `engine` has the superstep
//! engine that runs the algorithms.
#![warn(missing_docs)]

pub mod algorithms;
mod answer;
pub mod check;
mod checkpoint;
mod csr;
mod engine;
mod error;
mod export;
mod generate;
mod graph;
mod idfile;
mod ids;
mod import;
mod in_memory;
pub mod program;
mod sequencer;
#[cfg(test)]
mod testing;
mod tuning;

pub use algorithms::{
    betweenness::{BetweennessOptions, betweenness},
    bfs::{BfsOptions, bfs},
    clustering::{ClusteringOptions, clustering},
    communities::{CommunitiesOptions, communities},
    components::{ComponentsOptions, components},
    pagerank::{PageRankOptions, RankArithmetic, check_options, pagerank},
    sssp::{SsspOptions, sssp},
};
pub use answer::{Answer, Rows, Summary};
pub use error::{Error, Result};
pub use export::export;
pub use generate::{Kronecker, generate};
pub use graph::{Graph, GraphInfo, SMALLEST_BUDGET_BYTES, VERTICES_MAX, list};
pub use import::{
    EdgeFormat, ImportOptions, check_edge_text, edges_of_lines, import, weighted_edges_of_lines,
};
pub use program::{SearchProgram, VertexId, VertexProgram};
pub use tuning::{Regime, Step, Tuning};
