//! Errors that end a job.

use std::time::Duration;

use crate::ids::{NodeId, PartitionId};

/// The result of a job or of a check of a plan.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors that end a job. An error message names the lost, failed or unfinished part of the job.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The plan breaks a rule of [`Plan::new`](crate::Plan::new).
    #[error("invalid plan: stage {stage}: {why}")]
    InvalidPlan {
        /// The number of the stage.
        stage: u32,
        /// The rule and the value found.
        why: String,
    },
    /// No remaining node holds a replica of some input partitions, and their outputs are needed.
    #[error(
        "input lost: no remaining node holds a replica of {count} partitions, among them {}; lost nodes: {}",
        list(partitions),
        list(nodes)
    )]
    InputLost {
        /// The first lost partitions, at most [`NAMED`].
        partitions: Vec<PartitionId>,
        /// The number of all lost partitions.
        count: usize,
        /// The lost nodes that held their replicas, at most [`NAMED`].
        nodes: Vec<NodeId>,
    },
    /// An attempt failed for a reason that another attempt cannot avoid, for example malformed input.
    #[error("{partition} failed on {node}: {why}")]
    Failed {
        /// The partition.
        partition: PartitionId,
        /// The node of the attempt.
        node: NodeId,
        /// The reason that the node reported.
        why: String,
    },
    /// A partition failed as often as [`Options::max_failures`](crate::Options) allows.
    #[error("{partition} failed {} times: {}", failures.len(), reasons(failures))]
    RetriesExhausted {
        /// The partition.
        partition: PartitionId,
        /// The node and the reason of each failure, in order.
        failures: Vec<(NodeId, String)>,
    },
    /// No node remains that takes attempts.
    #[error("no node remains that can run {partition}: {}", reasons(nodes))]
    NoNodes {
        /// The first unfinished partition.
        partition: PartitionId,
        /// The nodes, at most [`NAMED`], each with the reason why it takes no attempts.
        nodes: Vec<(NodeId, String)>,
    },
    /// A node can never give the memory that the attempts of a stage need.
    #[error(
        "{node} lacks memory: the job needs {needed_bytes} bytes there, and the limit is {limit_bytes} bytes"
    )]
    Memory {
        /// The node.
        node: NodeId,
        /// The memory of all slots of the node, in bytes.
        needed_bytes: u64,
        /// The largest memory that the node gives to a job, in bytes.
        limit_bytes: u64,
    },
    /// The deadline passed before the job ended.
    #[error("the deadline of {deadline:?} passed: {}", unfinished_stages(unfinished))]
    Deadline {
        /// The deadline, since the start of the job.
        deadline: Duration,
        /// The stages with unfinished partitions: the number of the stage, of its unfinished and of all its
        /// partitions.
        unfinished: Vec<(u32, u32, u32)>,
    },
    /// The user cancelled the job.
    #[error("cancelled")]
    Cancelled,
}

/// Errors of a job that a driver runs on nodes.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriverError {
    /// The job failed. The message names nodes by their addresses.
    #[error("{}{}", with_addresses(error, nodes), causes(losses))]
    Stages {
        /// The error of the scheduler.
        error: Error,
        /// The address of each node, by its number.
        nodes: Vec<String>,
        /// If the job failed since nodes were lost: the errors that ended their part in the job.
        losses: Vec<String>,
    },
    /// The function that decides the next stages of a job that grows ended the job.
    #[error("{0}")]
    Stopped(#[source] inshore_kernel::Failure),
    /// No node that takes part in the job holds some of the input.
    #[error("no node of the job holds a part of the input{}", causes(why))]
    NoReplica {
        /// For each node that holds the part, the reason for which the node takes no part in the job.
        why: Vec<String>,
    },
    /// An error of a request to a node.
    #[error(transparent)]
    Nodes(#[from] inshore_nodes::Error),
    /// An error of this machine: the job was cancelled, or a result cannot be written.
    #[error(transparent)]
    Store(#[from] inshore_store::Error),
    /// All nodes shut down.
    #[error("no node takes jobs: all nodes shut down")]
    NoNodes,
    /// Two addresses lead to one store.
    #[error("{one} and {other} serve the same store: name each node once")]
    SameStore {
        /// The first address.
        one: String,
        /// The second address.
        other: String,
    },
    /// An output of the result is gone after the end of the job.
    #[error("node {node}: {partition} of the result is lost: run the job again")]
    OutputLost {
        /// The address of the node.
        node: String,
        /// The result partition.
        partition: PartitionId,
    },
    /// A dataset that only some nodes have committed.
    #[error("{name}: {what} (remove it with store rm, and run the job again)")]
    Incomplete {
        /// The dataset.
        name: String,
        /// A description of the failed commit.
        what: String,
    },
}

impl From<Error> for DriverError {
    fn from(error: Error) -> DriverError {
        DriverError::Stages { error, nodes: Vec::new(), losses: Vec::new() }
    }
}

/// Returns the message of an error, with addresses instead of the numbers of nodes.
fn with_addresses(error: &Error, nodes: &[String]) -> String {
    let (text, mut named) = (error.to_string(), String::new());
    let mut rest = text.as_str();
    while let Some(at) = rest.find("node ") {
        let (before, after) = rest.split_at(at + "node ".len());
        named.push_str(before);
        let digits = after.len() - after.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let address = after[..digits].parse::<usize>().ok().and_then(|number| nodes.get(number));
        named.push_str(address.map_or(&after[..digits], String::as_str));
        rest = &after[digits..];
    }
    named + rest
}

/// The number of partitions or nodes that an error names at most.
pub const NAMED: usize = 8;

fn list<T: std::fmt::Display>(of: &[T]) -> String {
    of.iter().map(T::to_string).collect::<Vec<_>>().join(", ")
}

fn reasons(of: &[(NodeId, String)]) -> String {
    of.iter().map(|(node, why)| format!("{node}: {why}")).collect::<Vec<_>>().join("; ")
}

fn causes(of: &[String]) -> String {
    if of.is_empty() { String::new() } else { format!(" ({})", of.join("; ")) }
}

fn unfinished_stages(of: &[(u32, u32, u32)]) -> String {
    let stage = |&(stage, open, all): &(u32, u32, u32)| {
        format!("{open} of {all} partitions of stage {stage} are unfinished")
    };
    of.iter().map(stage).collect::<Vec<_>>().join(", ")
}
