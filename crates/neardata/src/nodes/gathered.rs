//! How nodes are asked, and the cost of a job on nodes: what its caller says and is told.

use std::{collections::BTreeSet, time::Duration};

use inshore_store::Store;
use serde::Serialize;

use super::client::STREAM_BYTES;

/// Memory here for the answers of a node: the window of its stream, two batches that wait and one that is taken apart.
pub(super) const ANSWER_BYTES: u64 = STREAM_BYTES as u64 + (1 << 20);

/// How nodes are asked.
#[derive(Clone, Debug)]
pub struct RunOptions {
    /// Whether an answer without what lost nodes have will do.
    pub partial: bool,
    /// Memory of the task on each node; the node's habit where it is not said.
    pub node_memory_bytes: Option<u64>,
    /// A node whose task gets on no further for so long is left: pieces that others have go to these. It is waited for where no
    /// other has them.
    pub stall: Duration,
    /// This machine's own cores pull shards, too, where the kernel allows that and it is measured to be faster: once the nodes have so
    /// much before them, of which nobody has pulled all. None: they never do.
    pub help_from: Option<Duration>,
    /// The store here for such a part of the work as may have to be kept on flash (sorting, counting words and k-mers). None: this
    /// machine leaves that to nodes.
    pub help_on: Option<Store>,
}

impl Default for RunOptions {
    /// All or nothing, the nodes' habit of memory, half a minute without progress, with help of this machine where no store is needed.
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

/// The cost of a job on nodes, and the parts that it lacks.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Gathered {
    /// The work of each node.
    pub nodes: Vec<NodeCost>,
    /// Parts that no node has that answers; empty unless a partial answer will do.
    pub missing: Vec<Missing>,
    /// The part of this machine, where it might have done something.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub here: Option<HereCost>,
}

/// The work of a node.
#[derive(Clone, Debug, Default, Serialize)]
pub struct NodeCost {
    /// Its address.
    pub node: String,
    /// Tasks that it was asked to do.
    pub tasks: u64,
    /// Bytes that it read from its devices, near the data.
    pub bytes_read: u64,
    /// Bytes that it sent here.
    pub bytes_moved: u64,
    /// CPU time that it took.
    pub cpu_seconds: f64,
    /// Time that it worked.
    pub seconds: f64,
    /// Time that the task waited on it before.
    pub queued_seconds: f64,
    /// Why it was given up, where it was.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost: Option<String>,
}

/// A part of a file that was not read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Missing {
    /// The file.
    pub title: String,
    /// Where the part begins.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
    /// Which nodes should have it, and what is with them.
    pub why: String,
}

/// The part of a job on nodes that this machine did.
#[derive(Clone, Debug, Default, Serialize)]
pub struct HereCost {
    /// Pieces that it did.
    pub pieces: u64,
    /// Bytes that came here for them.
    pub bytes: u64,
    /// Bytes a second that this machine did; absent where it was not measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bytes_per_second: Option<f64>,
    /// Bytes a second that all nodes did together before this machine pulled anything; 0 where it was not measured.
    pub nodes_bytes_per_second: f64,
    /// Why it did no more, or nothing.
    pub why: String,
}

impl Gathered {
    /// Adds what another job cost.
    pub fn add(&mut self, other: Gathered) {
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
        // A part that was asked for twice is missing once.
        let place = |missing: &Missing| (missing.title.clone(), missing.offset);
        let mut known: BTreeSet<(String, u64)> = self.missing.iter().map(place).collect();
        self.missing.extend(other.missing.into_iter().filter(|missing| known.insert(place(missing))));
        self.here = self.here.take().or(other.here);
    }
}

/// Missing parts in a sentence.
pub(super) fn told(missing: &[Missing]) -> String {
    let bytes = missing.iter().fold(0u64, |sum, missing| sum.saturating_add(missing.bytes));
    let first = &missing[0];
    let Missing { title, offset, bytes: first_bytes, why } = first;
    let others = match missing.len() {
        1 => String::new(),
        parts => format!(" and {} other parts, {} together", parts - 1, inshore_store::format_bytes(bytes)),
    };
    format!("{title}: bytes {offset} to {}{others} were not read: {why}", offset + first_bytes)
}
