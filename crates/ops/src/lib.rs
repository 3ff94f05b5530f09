//! Operations: each verb is written once, as a request that says what, for a target that says where.
//!
//! The nouns:
//!
//! - [`Operation`]: a verb, as data. Its fields are those of its request in JSON; [`verbs`] has them all, and [`OPERATIONS`] lists
//!   them.
//! - [`Request`]: an operation with the names of its inputs and its output, in JSON with a version.
//! - [`Target`]: this machine, or nodes that have the data.
//! - [`Done`]: the typed answer, counts and names, and what nodes did for it. Rows go to the output.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use inshore_ops::{Beside, Target, named};
//! use inshore_store::{Budget, Cancel, Execution, Store};
//! use serde_json::json;
//!
//! # #[cfg(feature = "records")] {
//! # let folder = tempfile::tempdir()?;
//! # let (lines, sorted) = (folder.path().join("lines.txt"), folder.path().join("sorted.txt"));
//! std::fs::write(&lines, "b\na\nb\n")?;
//! let request =
//!     json!({ "operation": "sort", "version": 1, "inputs": [lines], "output": sorted, "unique": true });
//! let store = Store::open(folder.path().join("store"))?;
//! let job = Execution::Stored(store.job(Budget::new(16 << 20, 2), Cancel::default())?);
//! let answer = named(&request)?.run(&request, &Target::Local, &job, Beside::default())?;
//! assert_eq!(answer["rows"], 2);
//! assert_eq!(std::fs::read_to_string(&sorted)?, "a\nb\n");
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! The crate also has the parts that operations consist of on nodes:
//!
//! - [`works`] lists what nodes can do; [`queries`], [`sorting`], [`kmers`], [`commands`] and [`wasm`] are the works in which two
//!   libraries meet, [`apart`] does one in a child process, and [`contained`] has the limit of
//!   one that runs a query.
//! - [`spreading`] finds where a file can be cut that is spread over nodes.
#![warn(missing_docs)]

#[cfg(all(feature = "nodes", feature = "sql"))]
pub mod apart;
#[cfg(feature = "nodes")]
pub mod commands;
#[cfg(feature = "sql")]
pub mod contained;
mod error;
#[cfg(feature = "nodes")]
mod files;
#[cfg(feature = "nodes")]
pub mod kmers;
#[cfg(feature = "text")]
mod matches;
mod operation;
mod place;
#[cfg(all(feature = "nodes", feature = "sql"))]
pub mod queries;
mod registry;
#[cfg(feature = "nodes")]
pub mod sorting;
#[cfg(feature = "nodes")]
pub mod spreading;
mod target;
#[cfg(all(test, feature = "nodes"))]
mod testing;
pub mod verbs;
#[cfg(feature = "wasm")]
pub mod wasm;

pub use error::{Error, Result};
pub use operation::{Asked, Beside, NormalForm, Operation, Planned, Request, Rows, Sources, StoreUse};
pub use place::Place;
pub use registry::{Entry, OPERATIONS, named};
pub use target::{Done, Target};
#[cfg(feature = "nodes")]
pub use target::{NodesDone, OnNodes, wholes, with_nodes};

/// Lists the kinds of work that a node of this build can do: where the kernels and the runtime of nodes meet. Some of them start
/// this program once more, which has to begin with [`child_main_if_asked`].
#[cfg(feature = "nodes")]
pub fn works() -> inshore_neardata::Works {
    let works = works_here();
    #[cfg(feature = "sql")]
    let works = works.with(apart::WorkApart::new(queries::Queries, inshore_sql::stack_bytes));
    #[cfg(feature = "wasm")]
    let works = works.with(wasm::WebAssembly);
    works
}

/// Lists those of a program that is not ours, and that `helper` starts once more for queries: it then calls [`apart::apart_main`].
#[cfg(all(feature = "nodes", feature = "sql"))]
pub fn works_by(helper: inshore_sandbox::Helper) -> inshore_neardata::Works {
    works_here().with(apart::WorkApart::new(queries::Queries, inshore_sql::stack_bytes).with_helper(helper))
}

/// Lists those that need no process of their own.
#[cfg(feature = "nodes")]
pub fn works_here() -> inshore_neardata::Works {
    inshore_neardata::Works::default()
        .with(inshore_neardata::Parts::<inshore_neardata::Contents>::default())
        .with(inshore_neardata::Parts::<inshore_kernels::Search>::default())
        .with(inshore_kernels::CountsWords)
        .with(inshore_neardata::Parts::<inshore_kernels::LanguageOfText>::default())
        .with(inshore_kernels::CountsGrams)
        .with(inshore_kernels::Packs)
        .with(kmers::CountsKmers)
        .with(sorting::Sorts)
}

/// Does what this program was started once more for, if it was, and never returns then: to be called first thing in `main`.
pub fn child_main_if_asked() {
    #[cfg(any(feature = "nodes", feature = "wasm"))]
    inshore_sandbox::child_main_if_asked();
    #[cfg(all(feature = "nodes", feature = "sql"))]
    inshore_sandbox::apart_main_if_asked(apart::at_work, |socket, memory| {
        apart::work_apart(socket, memory, &[&queries::Queries]);
    });
}
