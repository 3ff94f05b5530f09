//! This crate implements nodes, which are machines that run tasks near their data, and clients that send requests to
//! nodes.
//!
//! The main types:
//!
//! - [`Agent`]: the server on a node, with a store, a memory budget for all tasks together, and a set of
//!   [task handlers](inshore_kernel::TaskHandlers).
//! - [`Nodes`]: the client's view of a group of agents, with the [catalog](Catalog) of their datasets.
//! - [`DistributedFile`]: a file on nodes, divided into [pieces](Piece). A piece ends with a line (or a record, or a
//!   row group), and one or more nodes have a copy of the piece. A *shard* is a piece that a job has to process.
//! - [`Page`]: an HTTP status page of a node, for people and for Prometheus.
//! - [`Authority`], [`NodeCredentials`], [`ClientCredentials`]: authentication and rights.
//!
//! ```text
//!   client                                      node A, B, C: an agent each
//!     catalog ◄──────────── "catalog" ───────────  datasets, maps of spread files
//!     run: a task for each node ─► ticket ───────► queue ─► TaskHandler ─► store
//!          merged in order ◄──────── batches ────────────────┘
//! ```
//!
//! The modules: `client` finds data, loads files and runs tasks (`client::tasks`); `server` is the agent;
//! [`protocol`] defines the messages between client and agent; `traversal` follows chains of reads,
//! `credentials` has tokens and certificates, and `page` the status page. A task is a
//! [`TaskHandler`](inshore_kernel::TaskHandler) of the crate [`inshore_kernel`]: this crate sends the task's
//! arguments and its answer, and does not interpret them.
//!
//! The wire protocol is Arrow Flight: a task is a ticket, and its answer is a stream of record batches whose
//! last message has the cost of the task. Loading is a stream in the other direction, and small requests are
//! actions. Messages other than record batches are JSON ([`protocol`]).
//!
//! If each read depends on the result of the previous read, separate requests would cost a round trip for each read. A
//! traversal (`traversal`, `server/agent/visits.rs`) therefore follows such chains on the nodes, from one node to the
//! next. Each part of an answer counts once. An answer contains its position in the piece. If a node is lost, another
//! node with a copy continues after this position. If no node has a part of the data, the job fails with an error that
//! names this part. If the client allows a partial answer, the answer lists the data as missing instead.
//!
//! The design follows chapter 5 of the 2014 thesis, section 7 of the 2016 article, section 5.3 of the 2018 thesis, and
//! the minions in section 3.2.2 of the 2019 thesis (see docs/from-the-papers.md).

#![warn(missing_docs)]

mod client;
mod credentials;
mod error;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod page;
pub mod protocol;
mod server;
pub mod spread;
mod traversal;

pub use client::{
    Catalog, ClientConfig, DistributedFile, GatherReport, GenerationRepair, Help, HelpEnd, HelpOptions,
    HelpPiece, HelpPieces, HereCost, LoadOptions, LoadReport, Merged, MissingPart, NodeCost, NodeStatus,
    Nodes, OrderedRow, PORT, Piece, RunOptions, SingleTask, Streams, TaskEvent, TaskReader, WatchedTask,
    default_piece_bytes, read_from_nodes, run_on_nodes, stream_from_each, stream_from_nodes,
    stream_with_help,
};
pub use credentials::{
    Authority, Claims, ClientCredentials, NodeCredentials, Right, is_loopback, read as read_credentials,
    time_text, write as write_credentials,
};
pub use error::{Error, Result};
pub use page::{Page, PageConfig};
pub use protocol::{
    SpreadId,
    csv::CsvRecord,
    wire::{batch_bytes, compact},
};
pub use server::{Agent, AgentConfig, RunningAgent, open_pieces};
pub use traversal::{
    CHAINS_MAX, ChainPosition, ChainResult, LAST_PAGE, NodeVisits, PAGE_BYTES_MAX, Pointers, STEPS_MAX,
    TraversalSide, TraversalSummary, TraverseOptions, Traversed,
};
