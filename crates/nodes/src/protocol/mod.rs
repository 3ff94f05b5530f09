//! What nodes and clients send to each other: messages in JSON ([`TaskRequest`], [`TaskDone`] and others), and record
//! batches in Arrow's format.

pub(crate) mod csv;
pub(crate) mod lengths;
mod messages;
pub(crate) mod squeeze;
mod trials;
pub(crate) mod wire;

pub use messages::*;
