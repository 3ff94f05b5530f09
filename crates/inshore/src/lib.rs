//! Re-exports the libraries of Inshore, which analyse data on flash within a memory budget that the caller sets.
//!
//! - [`graph`]: graphs larger than memory and the algorithms on them. Start here.
//! - [`tables`]: reads and writes files of records: Parquet, CSV, Arrow, text, compressed.
//! - [`sortreduce`]: sorts and combines streams of records that are larger than memory.
//! - [`store`]: the base of all other libraries: bytes on flash, memory budgets and jobs.
//! - [`vectors`]: finds nearest neighbours in sets of vectors on flash.
//! - [`ops`]: the operations of the command line, on this machine or on the nodes that have the data; [`works`] lists
//!   the kinds of tasks that a node can run.
//!
//! Features select parts of the build: `graph`, `records`, `text`, `sql`, `wasm`, `nodes` and `vectors`. The default,
//! `full`, selects all of them. [`FEATURES`] tells which features this build has. The store, sort-reduce and tables are
//! in every build.
//!
//! ```text
//!   inshore ── graph ── tables ── sortreduce ── store        each uses those to its right
//! ```
//!
//! Example: makes a graph from an edge list and writes a table of ranks, in 16 MiB of memory:
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use inshore::{
//!     graph::{Graph, ImportOptions, PageRankOptions, import, pagerank},
//!     store::{Budget, Cancel, Store},
//!     tables::{Input, TableWriter},
//! };
//!
//! # let folder = tempfile::tempdir()?;
//! # let (edges, ranks) = (folder.path().join("edges.txt"), folder.path().join("ranks.csv"));
//! std::fs::write(&edges, "10 20\n20 30\n30 10\n40 10\n")?;
//! let store = Store::open(folder.path().join("store"))?;
//! let budget = || Budget::new(16 << 20, 2);
//!
//! let job = store.job(budget(), Cancel::default())?;
//! import(&store, &job, "links", &[Input::new(&edges)], &ImportOptions::default())?;
//!
//! let job = store.job(budget(), Cancel::default())?;
//! let graph = Graph::open(&store, "links")?;
//! let mut rows = pagerank(&graph, &job, &PageRankOptions::default())?.rows;
//! let mut writer = TableWriter::create(&ranks, rows.schema().clone(), job.budget())?;
//! while let Some(batch) = rows.next_batch()? {
//!     writer.write(&batch)?;
//! }
//! writer.finish()?;
//! let text = std::fs::read_to_string(&ranks)?;
//! assert!(text.starts_with("vertex,rank\n10,0."));
//! # Ok(())
//! # }
//! ```
#![warn(missing_docs)]

#[cfg(feature = "graph")]
#[doc(inline)]
pub use inshore_graph as graph;
#[cfg(feature = "text")]
#[doc(inline)]
pub use inshore_kernel as kernel;
#[cfg(feature = "text")]
#[doc(inline)]
pub use inshore_kernels as kernels;
#[cfg(feature = "nodes")]
#[doc(inline)]
pub use inshore_nodes as nodes;
#[cfg(any(feature = "records", feature = "sql", feature = "text", feature = "vectors"))]
#[doc(inline)]
pub use inshore_ops as ops;
#[cfg(feature = "sql")]
#[doc(inline)]
pub use inshore_ops::query_process;
#[cfg(feature = "wasm")]
#[doc(inline)]
pub use inshore_ops::wasm;
#[cfg(feature = "nodes")]
#[doc(inline)]
pub use inshore_ops::{
    can_run_stages, commands, kmers, sorting, split_points, with_stages, works, works_here,
};
#[cfg(all(feature = "nodes", feature = "sql"))]
#[doc(inline)]
pub use inshore_ops::{child_process, queries, with_stages_and_helper, works_with_helper};
#[cfg(any(feature = "nodes", feature = "sql", feature = "wasm"))]
#[doc(inline)]
pub use inshore_sandbox as sandbox;
#[doc(inline)]
pub use inshore_sortreduce as sortreduce;
#[cfg(feature = "sql")]
#[doc(inline)]
pub use inshore_sql as sql;
#[doc(inline)]
pub use inshore_store as store;
#[doc(inline)]
pub use inshore_tables as tables;
#[cfg(feature = "vectors")]
#[doc(inline)]
pub use inshore_vectors as vectors;

/// Names each feature of the library and tells whether this build has it.
pub const FEATURES: [(&str, bool); 7] = [
    ("graph", cfg!(feature = "graph")),
    ("records", cfg!(feature = "records")),
    ("text", cfg!(feature = "text")),
    ("sql", cfg!(feature = "sql")),
    ("wasm", cfg!(feature = "wasm")),
    ("nodes", cfg!(feature = "nodes")),
    ("vectors", cfg!(feature = "vectors")),
];

/// If this process was started as a child, runs the work of the child process and never returns; otherwise returns at
/// once. Programs call this function first in `main`.
pub fn child_main_if_asked() {
    #[cfg(any(feature = "records", feature = "sql", feature = "text", feature = "vectors"))]
    inshore_ops::child_main_if_asked();
}
