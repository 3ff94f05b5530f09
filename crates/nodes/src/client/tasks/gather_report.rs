//! Options of jobs on nodes, and the cost of a job.

use std::{collections::BTreeSet, time::Duration};

use inshore_store::Store;
use serde::Serialize;

use crate::client::nodes::STREAM_BYTES;

/// The memory on the client for a node's answers: the flow control window of the node's stream, two waiting
/// batches, and one batch in decoding.
pub(crate) const ANSWER_BYTES: u64 = STREAM_BYTES as u64 + (1 << 20);

/// The options of a job on nodes.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// True if a partial result is acceptable when the data of lost nodes is unavailable.
    pub partial: bool,
    /// The memory of the task on each node; `None` uses the node's default.
    pub node_memory_bytes: Option<u64>,
    /// The time without progress after which a node's task is abandoned. Nodes with copies then process its
    /// pieces. Pieces without other copies still wait for the slow node.
    pub stall: Duration,
    /// The cores of this machine also pull shards if the nodes are expected to need at least this time for the
    /// remaining work. This machine pulls only if the kernel permits help and measurements show a gain. With `None`,
    /// this machine never pulls shards.
    pub help_from: Option<Duration>,
    /// The store on this machine for shards whose processing may spill to flash (sorting, counting words and k-mers).
    /// With `None`, only nodes process these shards.
    pub help_on: Option<Store>,
}

impl Default for RunOptions {
    /// Creates the default options. Only complete results are accepted, the nodes use their default memory, and the
    /// stall time is half a minute. This machine helps if no store is needed.
    fn default() -> Self {
        RunOptions {
            partial: false,
            node_memory_bytes: None,
            stall: Duration::from_secs(30),
            help_from: Some(Duration::from_secs(2)),
            help_on: None,
        }
    }
}

/// The cost of a job on nodes, and the missing parts of its result.
#[derive(Clone, Debug, Default, Serialize)]
pub struct GatherReport {
    /// The cost on each node.
    pub nodes: Vec<NodeCost>,
    /// The parts that no responding node holds; empty unless partial results are accepted.
    pub missing: Vec<MissingPart>,
    /// The cost of the help of this machine. The value is `None` if the options or the kernel exclude help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub here: Option<HereCost>,
}

/// The cost of a job on one node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeCost {
    /// The address of the node.
    pub node: String,
    /// The number of tasks sent to the node.
    pub tasks: u64,
    /// The number of bytes read from the node's devices.
    pub bytes_read: u64,
    /// The number of bytes sent from the node to this machine.
    pub bytes_moved: u64,
    /// The CPU time on the node, in seconds.
    pub cpu_seconds: f64,
    /// The run time on the node, in seconds.
    pub seconds: f64,
    /// The time in the node's queue, in seconds.
    pub queued_seconds: f64,
    /// The reason why the node was abandoned, if it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

/// A part of a file that was not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MissingPart {
    /// The name of the file.
    pub title: String,
    /// The offset of the part.
    pub offset: u64,
    /// The length of the part in bytes.
    pub bytes: u64,
    /// The nodes that should have the part, with the problem of each.
    pub why: String,
}

/// The part of a job on nodes that this machine processed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HereCost {
    /// The number of pieces.
    pub pieces: u64,
    /// The number of bytes that were sent to this machine for these pieces.
    pub bytes: u64,
    /// The throughput of this machine in bytes per second. The value is `None` if it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<f64>,
    /// The throughput of all nodes together in bytes per second, before this machine pulled pieces; 0 if it was not
    /// measured.
    pub nodes_bytes_per_second: f64,
    /// The reason why this machine processed no further pieces, or no pieces at all.
    pub why: String,
}

impl GatherReport {
    /// Adds the cost of another job.
    pub fn add(&mut self, other: GatherReport) {
        for cost in other.nodes {
            let Some(own) = self.nodes.iter_mut().find(|own| own.node == cost.node) else {
                self.nodes.push(cost);
                continue;
            };
            own.tasks += cost.tasks;
            own.bytes_read += cost.bytes_read;
            own.bytes_moved += cost.bytes_moved;
            own.cpu_seconds += cost.cpu_seconds;
            own.seconds += cost.seconds;
            own.queued_seconds += cost.queued_seconds;
            own.lost = own.lost.take().or(cost.lost);
        }
        // A part that was requested twice is listed once.
        let place = |missing: &MissingPart| (missing.title.clone(), missing.offset);
        let mut known: BTreeSet<(String, u64)> = self.missing.iter().map(place).collect();
        self.missing.extend(other.missing.into_iter().filter(|missing| known.insert(place(missing))));
        self.here = self.here.take().or(other.here);
    }
}

/// Formats missing parts as a sentence.
pub(crate) fn describe_missing(missing: &[MissingPart]) -> String {
    let bytes = missing.iter().fold(0u64, |sum, missing| sum.saturating_add(missing.bytes));
    let first = &missing[0];
    let MissingPart { title, offset, bytes: first_bytes, why } = first;
    let others = match missing.len() {
        1 => String::new(),
        parts => format!(" and {} other parts, {} together", parts - 1, inshore_store::format_bytes(bytes)),
    };
    format!("{title}: bytes {offset} to {}{others} were not read: {why}", offset + first_bytes)
}
