//! Implements the client's side: the catalog of a group of nodes, loading and removing files, and running
//! tasks.

mod catalog;
mod generations;
mod load;
mod nodes;
pub(crate) mod pump;
mod tasks;

pub use catalog::{Catalog, DistributedFile, Piece};
pub use generations::{GenerationRepair, now_ms};
pub use load::{LoadOptions, LoadReport, default_piece_bytes};
pub use nodes::{ClientConfig, NodeStatus, Nodes, PORT};
pub(crate) use nodes::{Node, parsed};
pub use tasks::{
    GatherReport, Help, HelpEnd, HelpOptions, HelpPiece, HelpPieces, HereCost, Merged, MissingPart, NodeCost,
    OrderedRow, RunOptions, SingleTask, Streams, TaskEvent, TaskReader, WatchedTask, read_from_nodes,
    run_on_nodes, stream_from_each, stream_from_nodes, stream_with_help,
};
