//! One door to the libraries of Inshore: analytics on flash, within a memory budget that the caller sets.
//!
//! - [`graph`]: graphs larger than memory and the algorithms on them. Start here.
//! - [`tables`]: files of records in and out: Parquet, CSV, Arrow, text, compressed.
//! - [`sortreduce`]: sorts and combines streams of records larger than memory.
//! - [`store`]: bytes on flash, memory budgets and jobs, which everything above is made of.
//! - [`works`]: what nodes can do; [`queries`], [`sorting`], [`kmers`], [`commands`] and [`wasm`] are the works in which two of the
//!   libraries meet, [`apart`] does one in a process of its own, and [`contained`] has the limit of one that runs a query.
//!
//! Features decide what is built: `graph`, `records`, `text`, `sql`, `wasm` and `nodes`; `full`, the default, is all of them.
//! [`FEATURES`] lists those of this build. The store, sort-reduce and tables are in every build.
//!
//! ```text
//!   inshore ── graph ── tables ── sortreduce ── store        each uses those to its right
//! ```
//!
//! A graph from an edge list to a ranked table, in 16 MiB:
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

#[cfg(all(feature = "nodes", feature = "sql"))]
pub mod apart;
#[cfg(feature = "nodes")]
pub mod commands;
#[cfg(feature = "sql")]
pub mod contained;
#[cfg(feature = "nodes")]
mod files;
#[cfg(feature = "nodes")]
pub mod kmers;
#[cfg(all(feature = "nodes", feature = "sql"))]
pub mod queries;
#[cfg(feature = "nodes")]
pub mod sorting;
#[cfg(feature = "nodes")]
pub mod spreading;
#[cfg(all(test, feature = "nodes"))]
mod testing;
#[cfg(feature = "wasm")]
pub mod wasm;

#[cfg(feature = "graph")]
#[doc(inline)]
pub use inshore_graph as graph;
#[cfg(feature = "text")]
#[doc(inline)]
pub use inshore_kernels as kernels;
#[cfg(feature = "text")]
#[doc(inline)]
pub use inshore_neardata as neardata;
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

/// Names each feature of the library and tells whether this build has it.
pub const FEATURES: [(&str, bool); 6] = [
    ("graph", cfg!(feature = "graph")),
    ("records", cfg!(feature = "records")),
    ("text", cfg!(feature = "text")),
    ("sql", cfg!(feature = "sql")),
    ("wasm", cfg!(feature = "wasm")),
    ("nodes", cfg!(feature = "nodes")),
];

/// Lists the kinds of work that a node of this build can do: where the kernels and the runtime of nodes meet. Some of them start
/// this program once more, which has to begin with [`child_main_if_asked`].
#[cfg(feature = "nodes")]
pub fn works() -> neardata::Works {
    let works = works_here();
    #[cfg(feature = "sql")]
    let works = works.with(apart::WorkApart::new(queries::Queries, sql::stack_bytes));
    #[cfg(feature = "wasm")]
    let works = works.with(wasm::WebAssembly);
    works
}

/// Lists those of a program that is not ours, and that `helper` starts once more for queries: it then calls [`apart::apart_main`].
#[cfg(all(feature = "nodes", feature = "sql"))]
pub fn works_by(helper: sandbox::Helper) -> neardata::Works {
    works_here().with(apart::WorkApart::new(queries::Queries, sql::stack_bytes).with_helper(helper))
}

/// Lists those that need no process of their own.
#[cfg(feature = "nodes")]
pub fn works_here() -> neardata::Works {
    neardata::Works::default()
        .with(neardata::Parts::<neardata::Contents>::default())
        .with(neardata::Parts::<kernels::Search>::default())
        .with(kernels::CountsWords)
        .with(neardata::Parts::<kernels::LanguageOfText>::default())
        .with(kernels::Packs)
        .with(kmers::CountsKmers)
        .with(sorting::Sorts)
}

/// Does what this program was started once more for, if it was, and never returns then: to be called first thing in `main`.
pub fn child_main_if_asked() {
    #[cfg(any(feature = "nodes", feature = "wasm"))]
    sandbox::child_main_if_asked();
    #[cfg(all(feature = "nodes", feature = "sql"))]
    sandbox::apart_main_if_asked(apart::at_work, |socket, memory| {
        apart::work_apart(socket, memory, &[&queries::Queries]);
    });
}
