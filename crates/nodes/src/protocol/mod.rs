//! The protocol between nodes and clients: messages in JSON ([`TaskRequest`], [`TaskDone`] and others), and record
//! batches in Arrow's format.

pub(crate) mod compression;
pub(crate) mod csv;
pub(crate) mod lengths;
mod messages;
mod trials;
pub(crate) mod wire;

pub use messages::*;
