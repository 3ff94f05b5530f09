//! The events that a driver reports to the scheduler, and the actions that the scheduler requests from the driver.

use crate::{
    error::Error,
    ids::{AttemptToken, NodeId, PartitionId},
};

/// The finished output of an attempt on the scratch of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Output {
    /// The partition.
    pub partition: PartitionId,
    /// The attempt that wrote the output.
    pub token: AttemptToken,
    /// The node that stores the output.
    pub node: NodeId,
    /// The size of all ranges, in bytes.
    pub bytes: u64,
    /// The checksum of the output's directory of ranges. The directory holds offset, size and checksum of each range,
    /// so a reader checks the directory by this number, and each range by the directory. The driver therefore holds 8
    /// bytes for each output instead of a checksum for each pair of producer and consumer.
    pub checksum: u64,
}

/// The kind of a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum FailureKind {
    /// Another attempt may succeed.
    Retryable,
    /// Each attempt would fail.
    Fatal,
    /// The node has no space for outputs. The node gets no more attempts, and the failure does not count as one of the
    /// partition.
    DiskFull,
}

/// The cause of a failed fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum FetchFailure {
    /// The node of the outputs answers that it lacks them, or their bytes do not match their checksum.
    Gone,
    /// The node of the outputs does not answer.
    Unreachable,
    /// The attempt has fetched all other ranges, and has waited for these ones for as long again. An attempt reports an
    /// output as slow at most once.
    Slow,
}

/// An event of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A node is available: it is new, or it has returned empty after a loss. From here on the driver drops the
    /// messages of earlier connections to this node.
    Joined {
        /// The node.
        node: NodeId,
        /// The number of attempts that the node runs at the same time.
        slots: u32,
    },
    /// The cluster reports that a node is gone.
    Lost {
        /// The node.
        node: NodeId,
    },
    /// The cluster reports that a node will go. The node stays until the scheduler requests [`Action::Release`] for it,
    /// or until it is lost.
    Draining {
        /// The node.
        node: NodeId,
    },
    /// A node pulls: one of its slots has no attempt, and the node has not asked for this slot before.
    Asked {
        /// The node.
        node: NodeId,
    },
    /// A node has reserved memory.
    Reserved {
        /// The node.
        node: NodeId,
        /// The amount of [`Action::Reserve`], in bytes.
        memory_bytes: u64,
    },
    /// A node cannot reserve memory at present.
    Refused {
        /// The node.
        node: NodeId,
        /// The largest amount that the node gives to a job, in bytes.
        limit_bytes: u64,
    },
    /// A node confirms [`Action::RenewLease`].
    LeaseRenewed {
        /// The node.
        node: NodeId,
    },
    /// A node got no renewal in time. It has ended all attempts of the job and deleted the job's scratch.
    LeaseExpired {
        /// The node.
        node: NodeId,
    },
    /// An attempt has finished, and its output is complete.
    Finished {
        /// The attempt.
        token: AttemptToken,
        /// The size of all ranges, in bytes.
        bytes: u64,
        /// The checksum of the output's directory of ranges.
        checksum: u64,
    },
    /// An attempt has failed. Its node has deleted what the attempt wrote.
    Failed {
        /// The attempt.
        token: AttemptToken,
        /// The kind of the failure.
        kind: FailureKind,
        /// The reason, for the user.
        why: String,
    },
    /// An attempt cannot fetch ranges of some producers. The attempt has fetched all other ranges, keeps them on
    /// its scratch, has freed its slot, and waits for [`Action::Resume`].
    FetchFailed {
        /// The attempt.
        token: AttemptToken,
        /// The attempts whose ranges are missing.
        outputs: Vec<AttemptToken>,
        /// The cause.
        cause: FetchFailure,
    },
    /// Time has passed. The driver sends this event about once a second.
    Tick,
    /// The user cancels the job.
    Cancelled,
}

/// The work of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Read an input partition and write its output.
    Map {
        /// The node whose replica is read. This is the attempt's own node if it holds a replica.
        read_from: NodeId,
    },
    /// Fetch one range from each producer partition, merge the ranges, and write the output. The driver passes the
    /// producers' outputs from [`Scheduler::outputs_since`](crate::Scheduler::outputs_since).
    Merge {
        /// The number of connections that the attempt may have open at the same time.
        fan_in: u32,
    },
    /// Copy the output of an attempt of the same partition from a draining node.
    Copy {
        /// The output.
        output: Output,
    },
}

/// An action that the scheduler requests from its driver.
///
/// A driver sends the actions for a node to it in their order, over a connection that lasts until the node is lost. If
/// the connection breaks, the driver reports [`Event::Lost`]; it does not lose single messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Reserve memory on a node, which replies with [`Event::Reserved`] or [`Event::Refused`].
    Reserve {
        /// The node.
        node: NodeId,
        /// The memory of all slots of the node, in bytes.
        memory_bytes: u64,
    },
    /// Return all memory that a node has reserved for the job.
    Unreserve {
        /// The node.
        node: NodeId,
    },
    /// Start an attempt in a slot for which the node has asked.
    Start {
        /// The attempt.
        token: AttemptToken,
        /// The node.
        node: NodeId,
        /// The partition.
        partition: PartitionId,
        /// The work.
        work: Work,
    },
    /// Resume an attempt after a failed fetch, in a slot for which its node has asked. The driver passes the
    /// producers' outputs again.
    Resume {
        /// The attempt.
        token: AttemptToken,
        /// The node.
        node: NodeId,
        /// The work.
        work: Work,
    },
    /// End an attempt, and delete what it wrote.
    Cancel {
        /// The attempt.
        token: AttemptToken,
        /// The node.
        node: NodeId,
    },
    /// Delete the output of a finished attempt that is damaged or came too late.
    DeleteScratch {
        /// The attempt.
        token: AttemptToken,
        /// The node.
        node: NodeId,
    },
    /// Renew the lease of the job's scratch on a node for [`Options::lease`](crate::Options).
    RenewLease {
        /// The node.
        node: NodeId,
    },
    /// End the job on a node: end its attempts, return its memory, and delete its scratch except for the kept outputs.
    /// The scheduler sends this to all nodes at the end, to a drained node, and to a node that it takes for lost, in
    /// case the node can be reached.
    Release {
        /// The node.
        node: NodeId,
        /// The attempts whose outputs are a part of the result.
        kept: Vec<AttemptToken>,
    },
    /// All partitions of the last stage of an open plan have outputs. The driver decides which stages follow, and calls
    /// [`Scheduler::extend`](crate::Scheduler::extend).
    Extend {
        /// The outputs of the last stage, in the order of partitions.
        outputs: Vec<Output>,
    },
    /// The job has a result: one output for each partition of the last stage, in the order of partitions. No action
    /// follows.
    Finish {
        /// The outputs.
        result: Vec<Output>,
    },
    /// The job has failed. No action follows.
    Fail {
        /// The error.
        error: Error,
    },
}
