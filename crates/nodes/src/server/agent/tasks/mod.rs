//! The tasks of an agent, from the request to the last answer.
//!
//! ```text
//!   DoGet ─► validation ─► start: queue, job ─► run: worker thread ─► reply ─► client_channel ─► client
//!                            │                   ▲
//!                            └─► active          └── shard_queue ◄── "hand-out" of the client
//! ```
//!
//! - `validation`: parses and checks the request of a task.
//! - `start`: queues a task, creates its job and starts the worker thread.
//! - `run`: runs the handler of a task to its end.
//! - `reply`: encodes and compresses the answers.
//! - `client_channel`: sends messages to a client that may be slow.
//! - `active`: the entry of a running task, for the status and for further requests of its client.
//! - `shard_queue`: queues the shards that clients hand to running tasks.

pub(super) mod active;
mod client_channel;
mod reply;
mod run;
mod shard_queue;
mod start;
mod validation;
