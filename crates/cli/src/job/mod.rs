//! The job of a command: its store and memory budget, its operation, its worker process, and the signals that stop it.

pub mod operations;
pub mod session;
pub mod signals;
#[cfg(feature = "sql")]
pub mod worker;
