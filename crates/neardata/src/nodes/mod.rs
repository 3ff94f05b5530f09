//! Nodes: machines that run tasks near their data, and clients that send requests to them.
//!
//! The main types:
//!
//! - [`Agent`]: the server on a node, with a store, a memory budget for all tasks together, and a set of
//!   [works](crate::Works).
//! - [`Nodes`]: the client's view of a group of agents, with the [catalog](Catalog) of their datasets.
//! - [`Whole`]: a file on nodes, in [pieces](Piece) that end with a line (a record, a row group), each on one
//!   node or several.
//! - [`Page`]: an HTTP status page of a node, for people and for Prometheus.
//! - [`Authority`], [`NodeCredentials`], [`ClientCredentials`]: authentication and rights.
//!
//! ```text
//!   client                                      node A, B, C: an agent each
//!     catalog ◄──────────── "catalog" ───────────  datasets, maps of spread files
//!     run: a task for each node ─► ticket ───────► queue ─► Work ─► store
//!          merged in order ◄──────── batches ────────────────┘
//! ```
//!
//! The wire protocol is Arrow Flight: a task is a ticket, and its answer is a stream of record batches whose
//! last message has the cost of the task. Loading is a stream in the other direction, and small requests are
//! actions. Messages other than record batches are JSON ([`protocol`]).
//!
//! If each read depends on the result of the previous read, separate requests would cost a round trip for each
//! read. A traversal (`traverse.rs`, `agent/visits.rs`) therefore follows such chains on the nodes, from one
//! node to the next.
//!
//! Each part of an answer counts once: an answer contains its position in the piece, and if a node is lost,
//! another node with a copy continues after that position. Data that no node has leads to an error that names
//! the data; if the client allows a partial answer, the data is reported as missing.
//!
//! Papers: 2014 thesis chapter 5; 2016 article section 7; 2018 thesis 5.3; minions, 2019 thesis 3.2.2.

mod agent;
mod alive;
mod catalog;
mod client;
mod connection;
mod credentials;
mod csv;
mod error;
mod fetch;
mod gather;
mod gathered;
mod generations;
mod help;
mod here;
mod hop;
mod lengths;
mod load;
mod marks;
mod merged;
mod page;
mod pieces;
pub mod protocol;
mod pump;
mod queue;
mod run;
mod scheduler;
mod squeeze;
mod traverse;
mod trials;
mod wire;

pub use agent::{Agent, AgentConfig, Serving};
pub use catalog::{Catalog, Piece, Whole};
pub use client::{ClientConfig, NodeStatus, Nodes, PORT};
pub use credentials::{
    Authority, Claims, ClientCredentials, NodeCredentials, Right, is_loopback, read as read_credentials,
    time_text, write as write_credentials,
};
pub use csv::CsvRecord;
pub use error::{Error, Result};
pub use gather::{
    Streams, read_from_nodes, run_on_nodes, stream_from_each, stream_from_nodes, stream_with_help,
};
pub use gathered::{Gathered, HereCost, Missing, NodeCost, RunOptions};
pub use generations::Repaired;
pub use here::{Help, HelpEnd, HelpPiece, HelpPieces, HelpWith};
pub use hop::{CHAINS_MAX, LAST_PAGE, PAGE_BYTES_MAX, Pointers, STEPS_MAX, Visited, Walked};
pub use load::{LoadOptions, Loaded};
pub use merged::{InOrder, Merged};
pub use page::{Page, PageConfig};
pub use pieces::open_pieces;
pub use protocol::SpreadId;
pub use traverse::{By, Chain, NodeVisits, TraverseOptions, Traversed};
pub use wire::{batch_bytes, compact};
