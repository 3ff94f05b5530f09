//! The server on a node: an agent that accepts connections, queues tasks and runs them.

mod agent;
pub(crate) mod connection;
mod heartbeat;
mod pieces;
mod queue;
pub(crate) mod tombstones;

pub use agent::{Agent, AgentConfig, RunningAgent};
pub use pieces::open_pieces;
