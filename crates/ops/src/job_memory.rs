//! This module plans the memory of jobs in stages: the memory of each node, and the size of a slot.

use inshore_nodes::{NodeStatus, Nodes, RunOptions};

/// The largest number of attempts that run on a node at the same time.
const SLOTS_MAX: u32 = 2;
/// The number of map partitions, and of ranges, for each slot of the cluster. With more of them, the last attempts of a
/// stage end at more equal times, and a lost attempt costs less.
const PARTITIONS_PER_SLOT: u64 = 4;
/// The largest number of ranges. Each range of each map output takes an entry in the directory of the output.
const RANGES_MAX: u64 = 4096;
/// The size of a range in bytes from which on the work on it outweighs the planning of a query.
const RANGE_BYTES_MIN: u64 = 64 << 20;
/// The part of a node's memory that a job takes.
const MEMORY_PART: u64 = 2;

/// The memory that nodes give to a job.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JobMemory {
    pub nodes: u64,
    /// The memory of each node.
    pub memory_bytes: u64,
    pub slots: u32,
    pub slot_bytes: u64,
}

impl JobMemory {
    /// Asks the nodes for their memory. A job takes the same memory on each node: half of the smallest, or
    /// `--node-memory`. If a node cannot hold several slots of `smallest_bytes` bytes, it has one.
    pub fn of(nodes: &Nodes, options: &RunOptions, smallest_bytes: u64) -> inshore_nodes::Result<JobMemory> {
        let (mut memory, mut failed) = (Vec::new(), None);
        for NodeStatus { status, .. } in nodes.status() {
            match status {
                Ok(status) => memory.push(status.memory_bytes),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        let count = memory.len() as u64;
        let memory_bytes = match (memory.into_iter().min(), failed) {
            (None, Some(error)) => return Err(error),
            (bytes, _) => bytes.unwrap_or(0),
        };
        let memory_bytes = options.node_memory_bytes.unwrap_or(memory_bytes / MEMORY_PART);
        let fits = |slots: &u32| inshore_stages::slot_bytes(memory_bytes, *slots) >= smallest_bytes;
        let slots = (1..=SLOTS_MAX).rev().find(fits).unwrap_or(1);
        let slot_bytes = inshore_stages::slot_bytes(memory_bytes, slots);
        Ok(JobMemory { nodes: count, memory_bytes, slots, slot_bytes })
    }

    /// Returns the number of map partitions of an input.
    pub fn partitions(&self) -> u64 {
        self.nodes.max(1) * u64::from(self.slots) * PARTITIONS_PER_SLOT
    }

    /// Returns the number of ranges of an exchange, also if it has few bytes: a range for each slot suffices then. The
    /// number is a multiple of the number of slots, so that the last attempts of a stage use all slots.
    pub fn ranges_of_any(&self, bytes: u64) -> u64 {
        let slots = self.nodes.max(1) * u64::from(self.slots);
        self.ranges(bytes).min((bytes / RANGE_BYTES_MIN).max(1)).next_multiple_of(slots)
    }

    /// Returns the number of ranges of an exchange of `bytes` bytes. A range takes about a quarter of a slot, so that
    /// its bytes stay in memory.
    pub fn ranges(&self, bytes: u64) -> u64 {
        (bytes / (self.slot_bytes / 4).max(1)).max(self.partitions()).min(RANGES_MAX)
    }
}
