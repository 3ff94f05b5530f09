//! The input of decisions, and the layout as a part of a decision: plain data for `choose.rs`, `layout.rs` and
//! `columns/plan.rs`.

use inshore_sortreduce::Operation;

use super::state::{self, State};
use crate::Tuning;

/// The inputs of a decision.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimates {
    pub tuning: Tuning,
    pub needs: StepNeeds,
    pub vertices: u64,
    /// Edges in one direction.
    pub edges: u64,
    /// Edges of all rows that the algorithm reads.
    pub rows_edges: u64,
    pub rows_bytes: u64,
    /// Tells whether there are in-edges to pull along.
    pub has_in_edges: bool,
    /// Supersteps of all vertices, if any will come; `None` also if the drive has no room for blocks.
    pub dense: Option<Dense>,

    pub budget_bytes: u64,
    pub free_bytes: u64,
    /// Memory that the algorithm itself keeps.
    pub kept_bytes: u64,
    pub threads: usize,

    /// The layout; `None` before the first superstep, which chooses one.
    pub layout: Option<Layout>,
    pub superstep: u32,
    /// Tells whether the buffers of the edge phase were allocated.
    pub has_windows: bool,
    /// Tells whether rows are in memory; `None` before that was decided.
    pub are_rows_cached: Option<bool>,
    /// Edges in the rows that an earlier pull left in memory.
    pub cached_edges: Option<u64>,
    /// Edges that were read in all supersteps before, and edges that carried a message in the last one.
    pub edges_walked: u64,
    pub edges_sent: Option<u64>,

    /// Tells whether the superstep follows in-edges, on the reverse pass of a search.
    pub is_backwards: bool,
    /// Number of active vertices; `None` for all.
    pub active: Option<u64>,
    /// Tells whether the waiting vertices are known.
    pub has_waiting: bool,
    /// Edges out of vertices that were active earlier in the same search.
    pub edges_before: u64,
    /// Edges of active and of waiting vertices, if they were counted.
    pub active_edges: Option<u64>,
    pub waiting_edges: Option<u64>,
    /// True if the next frontiers are to be kept as lists of vertices once few edges carry messages.
    pub lists_when_few: bool,
}

/// Messages that a waiting vertex needs from the active vertices in its row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pull {
    /// The program cannot pull.
    #[default]
    Never,
    /// The message of the first active vertex, at which the scan ends.
    First,
    /// The messages of all active vertices, reduced.
    All,
}

/// Declarations of an algorithm: numbers that are constant during a job.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StepNeeds {
    pub pull: Pull,
    /// Tells whether weights are read beside edges.
    pub weighted: bool,
    /// True if the same rows may be read repeatedly, so that a copy in memory may be faster.
    pub rereads: bool,
    /// Bytes of vertex state in memory, and on flash.
    pub state_bytes: u64,
    pub flash_bytes: u64,
    /// Bytes of a message, and of a record of sort-reduce with its key.
    pub message_bytes: u64,
    pub record_bytes: u64,
    /// Tells whether messages fit in accumulators: one per vertex, of a word.
    pub has_accumulators: bool,
}

impl StepNeeds {
    /// Returns the needs of an algorithm that only exchanges messages, with states `S`, messages that `O` reduces,
    /// and this number of vertices.
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

/// An algorithm's supersteps of all vertices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense {
    /// Upper bound on the number of vertices with edges.
    pub senders: u64,
    /// Supersteps of all vertices that are to come.
    pub supersteps: u32,
    /// True if supersteps of some vertices will follow too.
    pub has_sparse: bool,
    pub drive: DriveRates,
}

/// Rates of the drive, in bytes per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DriveRates {
    pub read: f64,
    pub written: f64,
}

/// The place of state, updates and edges in the budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Layout {
    pub workers: usize,
    /// The unit in which edges are read.
    pub window_bytes: usize,
    pub state_in_memory: bool,
    /// Tells whether updates go into accumulators.
    pub is_direct: bool,
    /// Vertices of a frontier that are kept in memory.
    pub frontier_keys: usize,
    /// Memory of sort-reduce, if updates go through it; with blocks, as if blocks took none.
    pub sort_bytes: u64,
    /// Tells whether there is a bit for each active vertex, so that other vertices can pull.
    pub has_active_bits: bool,
    /// Plan by which edges are first cut into blocks, if they are.
    pub blocks: Option<BlockingPlan>,
}

/// The way in which columns are cut, and the place of each array.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BlockingPlan {
    pub workers: usize,
    /// Vertices per column.
    pub width: u64,
    /// The unit in which packed edges are written and read.
    pub chunk_bytes: usize,
    /// Bytes of edges that stay in memory.
    pub held_bytes: u64,
    pub messages_in_memory: bool,
    /// Tells whether all threads work on one column and share its accumulators.
    pub is_shared: bool,
    pub all_message_bytes: u64,
    pub state_in_memory: bool,
    /// Windows of edges per worker during cutting.
    pub windows: usize,
    /// Tells whether supersteps through sort-reduce are to follow.
    pub has_sparse: bool,
}
