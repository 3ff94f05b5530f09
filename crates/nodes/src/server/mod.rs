//! The server on a node: an agent that accepts connections, queues tasks and runs them.

mod agent;
mod alive;
pub(crate) mod connection;
pub(crate) mod marks;
mod pieces;
mod queue;

pub use agent::{Agent, AgentConfig, RunningAgent};
pub use pieces::open_pieces;
