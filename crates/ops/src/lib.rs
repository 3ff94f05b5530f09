//! This crate defines the operations, such as `sort`. An operation is a request that runs on a target: the local
//! machine, or nodes (machines that store data and run tasks on the data).
//!
//! The main types:
//!
//! - [`Operation`]: the trait of each operation. The fields of an implementing type are the fields of the JSON
//!   request. [`verbs`] defines the operations, and [`OPERATIONS`] lists all of them.
//! - [`Request`]: an operation with the names of its inputs and its output. A request can be written as JSON, with
//!   a version number.
//! - [`Target`]: the local machine, or nodes that hold the data.
//! - [`Response`]: the typed answer (counts and names), with the cost report of the nodes. Rows go to the output,
//!   not to the answer.
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
//! - [`works`] returns the task handlers of a node. The modules [`queries`], [`sorting`], [`kmers`], [`nearest`],
//!   [`commands`] and [`wasm`] define such handlers. [`child_process`] runs a task in a child process. [`query_process`] sets
//!   the memory limit of a process that runs a query.
//! - [`split_points`] finds the offsets at which a file can be divided into shards. A shard is a part of a file on
//!   nodes; the code calls a shard a piece.
#![warn(missing_docs)]

#[cfg(all(feature = "nodes", feature = "sql"))]
pub mod child_process;
#[cfg(feature = "nodes")]
pub mod commands;
mod error;
#[cfg(feature = "nodes")]
mod files;
#[cfg(all(feature = "nodes", feature = "graph"))]
pub mod graph_stages;
#[cfg(feature = "nodes")]
mod job_memory;
#[cfg(feature = "nodes")]
pub mod kmers;
#[cfg(feature = "text")]
mod matches;
#[cfg(all(feature = "nodes", feature = "vectors"))]
pub mod nearest;
#[cfg(feature = "nodes")]
mod on_nodes;
mod operation;
#[cfg(all(feature = "nodes", feature = "sql"))]
pub mod queries;
#[cfg(feature = "sql")]
pub mod query_process;
mod registry;
#[cfg(all(feature = "sql", feature = "vectors"))]
mod row_selection;
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
#[cfg(feature = "nodes")]
pub use inshore_stages::{JobReport, NodeReport, StageReport};
pub use operation::{
    Attachments, DatasetOperation, NormalForm, Operation, Plan, Planned, Request, RequestContext,
    ResolvedInputs, RowReceiver, StoreUse, handed_over,
};
pub use registry::{Entry, Names, OPERATIONS, named};
#[cfg(feature = "nodes")]
pub use target::{NodesWork, OnNodes, wholes, with_nodes};
pub use target::{Response, Target};
pub use target_kind::TargetKind;

/// Returns the task handlers of a node, one for each kind of task that this build supports. Some handlers start
/// the current program again as a child process. Therefore the program must call [`child_main_if_asked`] first.
#[cfg(feature = "nodes")]
pub fn works() -> inshore_kernel::TaskHandlers {
    let works = works_here();
    #[cfg(feature = "sql")]
    let works = works.with(child_process::ChildProcessWork::new(queries::Queries, inshore_sql::stack_bytes));
    #[cfg(feature = "wasm")]
    let works = works.with(wasm::WebAssembly);
    works
}

/// Returns the task handlers for a host program that cannot be started again as a child process. `helper` names a
/// separate program, which runs queries by calling [`child_process::child_main`]. The list has no handler for
/// WebAssembly.
#[cfg(all(feature = "nodes", feature = "sql"))]
pub fn works_with_helper(helper: inshore_sandbox::Helper) -> inshore_kernel::TaskHandlers {
    works_here().with(
        child_process::ChildProcessWork::new(queries::Queries, inshore_sql::stack_bytes).with_helper(helper),
    )
}

/// Returns the task handlers that need no child process.
#[cfg(feature = "nodes")]
pub fn works_here() -> inshore_kernel::TaskHandlers {
    let works = inshore_kernel::TaskHandlers::default()
        .with(inshore_kernel::Parts::<inshore_kernel::Contents>::default())
        .with(inshore_kernel::Parts::<inshore_kernels::Search>::default())
        .with(inshore_kernels::CountsWords)
        .with(inshore_kernel::Parts::<inshore_kernels::LanguageOfText>::default())
        .with(inshore_kernels::CountsGrams)
        .with(inshore_kernels::Packs)
        .with(kmers::CountsKmers)
        .with(sorting::Sorts);
    #[cfg(feature = "vectors")]
    let works = works
        .with(nearest::SearchesVectors)
        .with(nearest::SamplesVectors)
        .with(nearest::WritesLists)
        .with(nearest::SearchesLists);
    works
}

/// Adds the handlers of jobs in stages to those of a node. `credentials` are those with which the node connects to other
/// nodes of a cluster. As for [`works`], the program must call [`child_main_if_asked`] first.
#[cfg(feature = "nodes")]
pub fn with_stages(
    works: inshore_kernel::TaskHandlers,
    credentials: Option<inshore_nodes::NodeCredentials>,
) -> inshore_kernel::TaskHandlers {
    #[cfg(feature = "sql")]
    let queries = queries::QueryStages::in_child_process();
    stages_with(
        works,
        credentials,
        #[cfg(feature = "sql")]
        queries,
    )
}

/// Adds the handlers of jobs in stages to those of a node whose program is not [`works`]' child process: `helper` is, as
/// for [`works_with_helper`].
#[cfg(all(feature = "nodes", feature = "sql"))]
pub fn with_stages_and_helper(
    works: inshore_kernel::TaskHandlers,
    credentials: Option<inshore_nodes::NodeCredentials>,
    helper: inshore_sandbox::Helper,
) -> inshore_kernel::TaskHandlers {
    let queries = queries::QueryStages::in_child_process();
    stages_with(works, credentials, queries.with_helper(helper))
}

#[cfg(feature = "nodes")]
fn stages_with(
    works: inshore_kernel::TaskHandlers,
    credentials: Option<inshore_nodes::NodeCredentials>,
    #[cfg(feature = "sql")] queries: impl inshore_kernel::TaskHandler + 'static,
) -> inshore_kernel::TaskHandlers {
    let works_in_stages: Vec<std::sync::Arc<dyn inshore_stages::StageWork>> = vec![
        std::sync::Arc::new(sorting::StageSort),
        #[cfg(feature = "graph")]
        std::sync::Arc::new(graph_stages::StageGraphs),
        #[cfg(feature = "sql")]
        std::sync::Arc::new(queries::StageQueries(queries)),
    ];
    inshore_stages::with_stages(works, works_in_stages, credentials)
}

/// Returns true if a node accepts jobs in stages: it has the handlers of [`with_stages`], and it is not draining.
#[cfg(feature = "nodes")]
pub fn can_run_stages(status: &inshore_nodes::protocol::Status) -> bool {
    let needed = with_stages(inshore_kernel::TaskHandlers::default(), None);
    !status.draining && needed.kinds().all(|kind| status.kinds.iter().any(|known| known == kind))
}

/// Runs the child's task and never returns, if this process was started as a child process. Otherwise the function
/// does nothing. Call this function first in `main`.
pub fn child_main_if_asked() {
    #[cfg(any(feature = "nodes", feature = "wasm"))]
    inshore_sandbox::child_main_if_asked();
    #[cfg(all(feature = "nodes", feature = "sql"))]
    inshore_sandbox::apart_main_if_asked(child_process::at_work, |socket, memory| {
        child_process::run_child(socket, memory, &[&queries::Queries, &queries::QueryStages]);
    });
}
