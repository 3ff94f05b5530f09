//! Plain data types for `choose.rs`, `layout.rs` and `blocking/plan.rs`: the inputs of decisions, and the layout, which
//! is a part of a decision.

use inshore_sortreduce::Operation;

use super::state::{self, State};
use crate::Tuning;

/// The inputs of a decision.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimates {
    pub tuning: Tuning,
    pub needs: StepNeeds,
    pub vertices: u64,
    /// The number of edges in the out-edge rows.
    pub edges: u64,
    /// The number of edges in all rows that the algorithm reads.
    pub rows_edges: u64,
    pub rows_bytes: u64,
    /// Tells whether there are in-edges along which vertices can pull.
    pub has_in_edges: bool,
    /// Describes the further supersteps in which all vertices are active. It is `None` if there are no such supersteps,
    /// or if the drive has no room for destination blocks.
    pub dense: Option<Dense>,

    pub budget_bytes: u64,
    pub free_bytes: u64,
    /// The bytes of memory that the algorithm needs outside of the engine.
    pub kept_bytes: u64,
    pub threads: usize,

    /// The layout that the first decision chose; `None` before the first superstep.
    pub layout: Option<Layout>,
    pub superstep: u32,
    /// Tells whether the buffers of the edge phase were allocated.
    pub has_windows: bool,
    /// Tells whether rows are in memory; `None` before this was decided.
    pub are_rows_cached: Option<bool>,
    /// The number of edges in the rows that an earlier pull left in memory.
    pub cached_edges: Option<u64>,
    /// The number of edges that were read in all earlier supersteps, and the number of edges that carried a message in
    /// the last one.
    pub edges_walked: u64,
    pub edges_sent: Option<u64>,

    /// Tells whether the superstep follows edges backwards, on the reverse pass of a search.
    pub is_backwards: bool,
    /// The number of active vertices. The value is `None` if all are active.
    pub active: Option<u64>,
    /// Tells whether the waiting vertices of the superstep are known.
    pub has_waiting: bool,
    /// The number of edges out of vertices that were active in earlier supersteps of the same search.
    pub edges_before: u64,
    /// The number of edges of active vertices, and the number of edges of waiting vertices, if they were counted.
    pub active_edges: Option<u64>,
    pub waiting_edges: Option<u64>,
    /// True if the next frontiers are to be kept as lists of vertices once few edges carry messages.
    pub lists_when_few: bool,
}

/// Selects the messages that a waiting vertex needs from the active vertices in its row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pull {
    /// The program cannot pull.
    #[default]
    Never,
    /// The message of the first active vertex, at which the scan ends.
    First,
    /// The messages of all active vertices, reduced to one.
    All,
}

/// The needs that an algorithm declares. The needs are constant during a job.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepNeeds {
    pub pull: Pull,
    /// Tells whether weights are read in addition to edges.
    pub weighted: bool,
    /// True if the same rows may be read repeatedly, so that a copy in memory may be faster.
    pub rereads: bool,
    /// The bytes that vertex state takes if it is in memory, and the bytes of memory that it takes if it is on flash.
    pub state_bytes: u64,
    pub flash_bytes: u64,
    /// The bytes of a message, and the bytes of a sort-reduce record, which includes a key.
    pub message_bytes: u64,
    pub record_bytes: u64,
    /// Tells whether messages can be combined in accumulators, one for each vertex.
    pub has_accumulators: bool,
}

impl StepNeeds {
    /// Returns the needs of an algorithm that only exchanges messages, for this number of vertices. `S` is the state of
    /// a vertex, and `O` reduces the messages.
    pub fn of<S: State, O: Operation>(vertices: u64) -> StepNeeds {
        StepNeeds {
            state_bytes: state::memory_bytes::<S>(vertices),
            flash_bytes: state::flash_memory_bytes::<S>(vertices),
            message_bytes: size_of::<O::Value>() as u64,
            record_bytes: (size_of::<O::Key>() + size_of::<O::Value>()) as u64,
            ..StepNeeds::default()
        }
    }
}

/// Describes the supersteps in which all vertices are active.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense {
    /// Upper bound on the number of vertices with edges.
    pub senders: u64,
    /// The number of further supersteps in which all vertices are active.
    pub supersteps: u32,
    /// True if supersteps in which only some vertices are active will follow too.
    pub has_sparse: bool,
    pub drive: DriveRates,
}

/// Rates of the drive, in bytes per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriveRates {
    pub read: f64,
    pub written: f64,
}

/// The division of the memory budget: whether state, updates and edges are in memory or on flash, and how much memory
/// each of them gets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Layout {
    pub workers: usize,
    /// The size of a large read of edges, in bytes.
    pub window_bytes: usize,
    pub state_in_memory: bool,
    /// Tells whether updates are combined in accumulators.
    pub is_direct: bool,
    /// The number of vertices of a frontier that are kept in memory; further vertices are on flash.
    pub frontier_keys: usize,
    /// The bytes of memory of sort-reduce, if updates go through it. If edges are cut into blocks, the memory of these
    /// blocks is included.
    pub sort_bytes: u64,
    /// Tells whether memory has a bit for each vertex, which marks the active vertices. Waiting vertices need these
    /// bits to pull.
    pub has_active_bits: bool,
    /// The plan by which edges are cut into destination blocks. The value is `None` if edges are not cut.
    pub blocks: Option<BlockingPlan>,
}

/// The plan of destination blocks: how edges are cut into columns, and which arrays are in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BlockingPlan {
    pub workers: usize,
    /// The number of vertices per column.
    pub width: u64,
    /// The size of a write or read of packed edges, in bytes.
    pub chunk_bytes: usize,
    /// The number of bytes of edges that stay in memory.
    pub held_bytes: u64,
    pub messages_in_memory: bool,
    /// Tells whether all threads work on one column and share its accumulators.
    pub is_shared: bool,
    pub all_message_bytes: u64,
    pub state_in_memory: bool,
    /// The number of read buffers for edges per worker during cutting.
    pub windows: usize,
    /// Tells whether supersteps that need the edge phase and sort-reduce will follow.
    pub has_sparse: bool,
}
