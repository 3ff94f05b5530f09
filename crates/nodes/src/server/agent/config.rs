//! The configuration of an agent.

use std::time::Duration;

use crate::NodeCredentials;

/// The configuration of an agent. All limits have safe defaults.
#[derive(Debug)]
pub struct AgentConfig {
    /// The name of the node in messages.
    pub name: String,
    /// The memory budget of all tasks together, in bytes.
    pub memory_bytes: u64,
    /// The memory budget of a task whose request names none, in bytes.
    pub task_memory_bytes: u64,
    /// The number of threads of each task.
    pub threads: usize,
    /// The number of tasks that run at once. More slots make tasks share drives and cores; fewer slots make tasks wait
    /// longer.
    pub slots: usize,
    /// The number of tasks that may wait in the queue; any further task is refused.
    pub queue: usize,
    /// The longest run time of a task. A client's request can only shorten this limit.
    pub deadline: Duration,
    /// The number of connections at once, from all clients together.
    pub connections: usize,
    /// The number of connections at once from one address.
    pub connections_per_address: usize,
    /// The time from accepting a connection, TLS handshake included, to its first request with a valid token;
    /// afterwards the connection is closed.
    pub first_request: Duration,
    /// The time in which the body of a request has to arrive. Loads are exempt: the body of a load may last
    /// as long as the client sends data.
    pub request: Duration,
    /// The time that running tasks have to end after a request to stop the agent.
    pub drain: Duration,
    /// The node's credentials. Without credentials the agent serves only this machine, unencrypted, and gives every
    /// local user all rights.
    pub credentials: Option<NodeCredentials>,
}

impl AgentConfig {
    /// Creates the configuration of a node with this name, memory and number of threads. The defaults are two tasks at
    /// once with two fifths of the memory each, a queue of 64 tasks, a deadline of one hour, 256 connections of which
    /// 64 from one address, ten seconds to the first request, and half a minute each for a request's body and for
    /// draining.
    pub fn new(name: impl Into<String>, memory_bytes: u64, threads: usize) -> AgentConfig {
        AgentConfig {
            name: name.into(),
            memory_bytes,
            task_memory_bytes: memory_bytes * 2 / 5,
            threads,
            slots: 2,
            queue: 64,
            deadline: Duration::from_secs(3600),
            connections: 256,
            connections_per_address: 64,
            first_request: Duration::from_secs(10),
            request: Duration::from_secs(30),
            drain: Duration::from_secs(30),
            credentials: None,
        }
    }
}
