//! Nodes: machines that run tasks where their data lies, and clients that ask them.
//!
//! The nouns:
//!
//! - [`Agent`]: the server on a node. It has a store, a budget for all tasks together, and a set of
//!   [works](crate::Works).
//! - [`Nodes`]: the client's end: some agents as one, and the [catalog](Catalog) of what lies where.
//! - [`Whole`]: a file as it lies on nodes, in [pieces](Piece) that end with a line (a record, a row group), each on one node or several.
//! - [`Page`]: what a node does, over HTTP, for people and for Prometheus.
//! - [`Authority`], [`NodeCredentials`], [`ClientCredentials`]: who may do what.
//!
//! ```text
//!   client                                      node A, B, C: an agent each
//!     catalog ◄──────────── "catalog" ───────────  datasets, maps of spread files
//!     run: a task for each node ─► ticket ───────► queue ─► Work ─► store
//!          merged in order ◄──────── batches ────────────────┘
//! ```
//!
//! The wire is Arrow Flight: a task is a ticket, its answer a stream of record batches, of which the last one tells what the
//! task cost; loading is a stream the other way; small questions are actions. Messages that are no record batches are JSON
//! ([`protocol`]).
//!
//! Where what is read next depends on what was read before, asking costs a way there and back for each read: a traversal
//! (`traverse.rs`, `agent/visits.rs`) follows such chains on the nodes, from one to the next.
//!
//! What a node has answered counts once: an answer says how far in its piece it reaches, and where a node is lost, another
//! that has a copy goes on behind that place. What no node has is an error that names it, or told as missing where the
//! client said that a partial answer will do.
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
