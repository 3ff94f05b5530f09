//! Runs tasks on nodes: assigns shards to nodes, and takes their answers in order.

mod fetch;
mod gather;
mod gather_report;
mod help;
mod local;
mod merged;
mod run;
mod scheduler;
mod single;

pub use gather::{
    Streams, read_from_nodes, run_on_nodes, stream_from_each, stream_from_nodes, stream_with_help,
};
pub use gather_report::{GatherReport, HereCost, MissingPart, NodeCost, RunOptions};
pub use local::{Help, HelpEnd, HelpOptions, HelpPiece, HelpPieces};
pub use merged::{Merged, OrderedRow};
pub use single::{SingleTask, TaskEvent, TaskReader, WatchedTask};
