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
    /// The maximum number of tasks that run at the same time. With more slots, more tasks share drives and cores. With
    /// fewer slots, tasks wait longer in the queue.
    pub slots: usize,
    /// The maximum number of tasks that wait in the queue. Any further task is refused.
    pub queue: usize,
    /// The longest run time of a task. A client's request can only shorten this limit.
    pub deadline: Duration,
    /// The maximum number of simultaneous connections of all clients together.
    pub connections: usize,
    /// The maximum number of simultaneous connections from one address.
    pub connections_per_address: usize,
    /// The time limit from accepting a connection to its first request with a valid token, including the TLS handshake.
    /// After this time, the connection is closed.
    pub first_request: Duration,
    /// The time in which the body of a request has to arrive. Loads are exempt: the body of a load may last
    /// as long as the client sends data.
    pub request: Duration,
    /// The time in which running tasks have to end when the agent is stopped. After this time, the tasks are cancelled.
    pub drain: Duration,
    /// The node's credentials. Without credentials the agent serves only this machine, unencrypted, and gives every
    /// local user all rights.
    pub credentials: Option<NodeCredentials>,
}

impl AgentConfig {
    /// Creates the configuration of a node with this name, memory and number of threads. By default, two tasks run at
    /// once, with two fifths of the memory each. The queue has 64 tasks, and the deadline is one hour. There are at
    /// most 256 connections, of which at most 64 are from one address. A connection has ten seconds to its first
    /// request. The time limits for the body of a request and for draining are half a minute each.
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
