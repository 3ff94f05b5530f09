//! Operations: each operation, such as `sort`, is defined once, as a request that runs at a target: on the local
//! machine or on nodes.
//!
//! The nouns:
//!
//! - [`Operation`]: a verb, as data. Its fields are the fields of the JSON request; [`verbs`] defines all
//!   operations, and [`OPERATIONS`] lists them.
//! - [`Request`]: an operation with the names of its inputs and its output, in JSON with a version.
//! - [`Target`]: the local machine, or nodes that hold the data.
//! - [`Response`]: the typed answer, which holds counts and names, and the work of nodes. Rows go to the output.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use inshore_ops::{Attachments, Target, named};
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
//! let answer = named(&request)?.run(&request, &Target::Local, &job, Attachments::default())?;
//! assert_eq!(answer["rows"], 2);
//! assert_eq!(std::fs::read_to_string(&sorted)?, "a\nb\n");
//! # }
//! # Ok(())
//! # }
//! ```
//!
//! The crate also has the building blocks of operations on nodes:
//!
//! - [`works`] lists the kinds of work of a node; [`queries`], [`sorting`], [`kmers`], [`commands`] and
//!   [`wasm`] are works that combine two libraries, [`child_process`] runs a work in a child process, and
//!   [`query_process`] has the limit of a process that runs a query.
//! - [`split_points`] finds the offsets at which files for nodes can be cut.
#![warn(missing_docs)]

#[cfg(all(feature = "nodes", feature = "sql"))]
pub mod child_process;
#[cfg(feature = "nodes")]
pub mod commands;
mod error;
#[cfg(feature = "nodes")]
mod files;
#[cfg(feature = "nodes")]
pub mod kmers;
#[cfg(feature = "text")]
mod matches;
#[cfg(feature = "nodes")]
mod on_nodes;
mod operation;
#[cfg(all(feature = "nodes", feature = "sql"))]
pub mod queries;
#[cfg(feature = "sql")]
pub mod query_process;
mod registry;
#[cfg(feature = "nodes")]
pub mod sorting;
#[cfg(feature = "nodes")]
pub mod split_points;
mod target;
mod target_kind;
#[cfg(all(test, feature = "nodes"))]
mod testing;
pub mod verbs;
#[cfg(feature = "wasm")]
pub mod wasm;

pub use error::{Error, Result};
#[cfg(feature = "nodes")]
pub use files::Error as FileError;
pub use operation::{
    Attachments, DatasetOperation, NormalForm, Operation, Plan, Planned, Request, RequestContext,
    ResolvedInputs, RowReceiver, StoreUse, handed_over,
};
pub use registry::{Entry, Names, OPERATIONS, named};
#[cfg(feature = "nodes")]
pub use target::{NodesWork, OnNodes, wholes, with_nodes};
pub use target::{Response, Target};
pub use target_kind::TargetKind;

/// Lists the kinds of work of a node in this build, which combine the kernels with the runtime of nodes. Some
/// of them start the current program again, which therefore has to begin with [`child_main_if_asked`].
#[cfg(feature = "nodes")]
pub fn works() -> inshore_kernel::TaskHandlers {
    let works = works_here();
    #[cfg(feature = "sql")]
    let works = works.with(child_process::ChildProcessWork::new(queries::Queries, inshore_sql::stack_bytes));
    #[cfg(feature = "wasm")]
    let works = works.with(wasm::WebAssembly);
    works
}

/// Lists the same kinds of work, for a host program that cannot be started again: `helper` names the program
/// that runs queries by [`child_process::child_main`].
#[cfg(all(feature = "nodes", feature = "sql"))]
pub fn works_with_helper(helper: inshore_sandbox::Helper) -> inshore_kernel::TaskHandlers {
    works_here().with(
        child_process::ChildProcessWork::new(queries::Queries, inshore_sql::stack_bytes).with_helper(helper),
    )
}

/// Lists the kinds of work that need no child process.
#[cfg(feature = "nodes")]
pub fn works_here() -> inshore_kernel::TaskHandlers {
    inshore_kernel::TaskHandlers::default()
        .with(inshore_kernel::Parts::<inshore_kernel::Contents>::default())
        .with(inshore_kernel::Parts::<inshore_kernels::Search>::default())
        .with(inshore_kernels::CountsWords)
        .with(inshore_kernel::Parts::<inshore_kernels::LanguageOfText>::default())
        .with(inshore_kernels::CountsGrams)
        .with(inshore_kernels::Packs)
        .with(kmers::CountsKmers)
        .with(sorting::Sorts)
}

/// Runs the child process's work if this process is a child, and never returns then. Call this function first
/// in `main`.
pub fn child_main_if_asked() {
    #[cfg(any(feature = "nodes", feature = "wasm"))]
    inshore_sandbox::child_main_if_asked();
    #[cfg(all(feature = "nodes", feature = "sql"))]
    inshore_sandbox::apart_main_if_asked(child_process::at_work, |socket, memory| {
        child_process::run_child(socket, memory, &[&queries::Queries]);
    });
}
