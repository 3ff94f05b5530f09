//! Defines the states of stages, partitions, attempts and nodes.

use std::{collections::BTreeSet, time::Duration};

use crate::ids::{AttemptToken, NodeId, PartitionId};

/// The state of a stage.
#[derive(Debug)]
pub(super) struct StageState {
    /// The length of the longest chain of producers. The stages of a level run at the same time.
    pub level: u32,
    pub consumers: Vec<u32>,
    pub partitions: Vec<Partition>,
    /// The number of partitions without an output.
    pub missing: u32,
    /// The number of attempts that run or wait.
    pub live: u32,
    /// The partitions that have neither an output nor an attempt.
    pub queue: BTreeSet<u32>,
    /// The partitions that have an output on a slow or draining node, and no attempt.
    pub moving: BTreeSet<u32>,
    /// The partitions whose output changed, in the order of the changes.
    pub changes: Vec<u32>,
    /// The number of finished attempts and the sum of their times.
    pub finished: (u32, Duration),
}

/// The state of a partition. A partition needs at most one output; an output on a slow or draining node stays in use
/// until another attempt has replaced it.
#[derive(Clone, Debug, Default)]
pub(super) struct Partition {
    pub output: Option<AttemptToken>,
    /// The attempts that run or wait, the older one first.
    pub live: [Option<AttemptToken>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptState {
    Runs,
    /// An attempt without a slot, until the ranges that it misses are there.
    Waits,
    /// The attempt has an output.
    Finished,
    /// The attempt failed or was cancelled or lost, or its output was lost.
    Over,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Map { read_from: NodeId },
    Merge,
    Copy { from: NodeId },
}

#[derive(Debug)]
pub(super) struct Attempt {
    pub partition: PartitionId,
    pub node: NodeId,
    pub state: AttemptState,
    pub kind: Kind,
    pub started: Duration,
    pub bytes: u64,
    pub checksum: u64,
}

impl Attempt {
    /// Returns true if the attempt itself reads from a node. A merge attempt is resumed instead.
    pub fn reads_from(&self, node: NodeId) -> bool {
        matches!(self.kind, Kind::Map { read_from: from } | Kind::Copy { from } if from == node)
    }
}

/// The ranges that a waiting attempt misses.
#[derive(Debug)]
pub(super) struct Missing {
    /// The producer partitions, each with the attempt whose range was not fetched.
    pub ranges: Vec<(PartitionId, AttemptToken)>,
    /// The time after which the same outputs are tried again, if they are still the current ones.
    pub retry_at: Option<Duration>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NodeState {
    /// The node gets attempts.
    Usable,
    /// Consumers wait for ranges of this node. Its outputs are replaced where that is possible.
    Slow,
    /// The node has no space. Its outputs stay in use.
    Full,
    /// The node will go. Its outputs are moved.
    Draining,
    /// The node is gone for the job, with all that it stored.
    Lost,
}

/// The state of the memory that a node reserves for the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    None,
    /// The node was asked, and has not replied.
    Asked,
    Held,
    /// The node refused, and is asked again at this time.
    RetryAt(Duration),
}

#[derive(Debug)]
pub(super) struct Node {
    pub state: NodeState,
    /// The reason for a state other than `Usable`.
    pub why: &'static str,
    pub slots: u32,
    /// The number of free slots for which the node has asked.
    pub asks: u32,
    pub memory: Memory,
    /// The time of the last message from the node.
    pub heard: Duration,
    /// The time of the last renewal that was sent to the node.
    pub renewed: Duration,
    pub losses: u32,
    /// The attempts that run or wait on the node.
    pub live: BTreeSet<AttemptToken>,
    /// The attempts of `live` that wait.
    pub waiting: BTreeSet<AttemptToken>,
    /// The queued map partitions whose input the node holds. Empty for a lost node.
    pub queue: BTreeSet<PartitionId>,
    /// For each stage, the number of partitions whose output the node stores.
    pub outputs: Vec<u32>,
}

impl Node {
    /// Returns the number of attempts that have a slot.
    pub fn running(&self) -> u32 {
        (self.live.len() - self.waiting.len()) as u32
    }

    pub fn is_lost(&self) -> bool {
        self.state == NodeState::Lost
    }
}

/// The failed fetches between a node that fetches and a node that serves.
#[derive(Debug)]
pub(super) struct Strike {
    /// The number of failed fetches, counted once after each message from the serving node.
    pub count: u32,
    /// The time of the last counted fetch.
    pub at: Duration,
}

/// The phase of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The level waits for memory. `Some` is the node that was asked; `None` waits until the time to ask the first node
    /// again.
    Reserving(Option<NodeId>),
    /// Attempts start.
    Open,
    /// The job has ended.
    Ended,
}
