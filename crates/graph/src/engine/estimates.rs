//! The numbers that decisions read, and the layout that is part of a decision: data alone, which `choose.rs`, `layout.rs` and
//! `columns/plan.rs` work on.

use inshore_sortreduce::Operation;

use super::state::{self, State};
use crate::Tuning;

/// Everything that a decision reads.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Estimates {
    pub tuning: Tuning,
    pub needs: Needs,
    pub vertices: u64,
    /// In one direction.
    pub edges: u64,
    /// Of all rows that the algorithm walks along.
    pub rows_edges: u64,
    pub rows_bytes: u64,
    /// Whether there are in-edges to pull along.
    pub has_in_edges: bool,
    /// Supersteps of all vertices, where there will be any; `None` too where the drive has no room for blocks.
    pub dense: Option<Dense>,

    pub budget_bytes: u64,
    pub free_bytes: u64,
    /// Memory that the algorithm itself keeps.
    pub kept_bytes: u64,
    pub threads: usize,

    /// `None` before the first superstep: then it is chosen.
    pub layout: Option<Layout>,
    pub superstep: u32,
    /// Whether the buffers of the edge phase are there already.
    pub has_windows: bool,
    /// Whether rows lie in memory; `None` before that was decided.
    pub are_rows_cached: Option<bool>,
    /// Edges in the rows that an earlier pull left in memory.
    pub cached_edges: Option<u64>,
    /// Edges that were walked along in all supersteps before, and those that had something to carry in the last.
    pub edges_walked: u64,
    pub edges_sent: Option<u64>,

    /// Whether the superstep walks along in-edges, back to where a search came from.
    pub is_backwards: bool,
    /// Active vertices; `None`: all.
    pub active: Option<u64>,
    /// Whether the waiting vertices are known.
    pub has_waiting: bool,
    /// Edges out of vertices that were active before, in the same search.
    pub edges_before: u64,
    /// Edges of active vertices and of those that wait, where they were counted.
    pub active_edges: Option<u64>,
    pub waiting_edges: Option<u64>,
    /// Whether the next frontier is to be listed once few edges carry something.
    pub lists_when_few: bool,
}

/// The messages that a waiting vertex needs of the active vertices in its row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Pull {
    /// Messages must be sent.
    #[default]
    Never,
    /// The message of the first one: looking ends there.
    First,
    /// The messages of all, reduced.
    All,
}

/// An algorithm's declarations: numbers that stay the same over a job.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Needs {
    pub pull: Pull,
    /// Whether weights are read beside edges.
    pub weighted: bool,
    /// Whether the same rows may be walked along again and again, so that a copy in memory may pay.
    pub rereads: bool,
    /// Vertex state in memory, and on flash.
    pub state_bytes: u64,
    pub flash_bytes: u64,
    /// A message; a record of sort-reduce with its key.
    pub message_bytes: u64,
    pub record_bytes: u64,
    /// Whether messages fit in cells: one for each vertex, of a word.
    pub has_cells: bool,
}

impl Needs {
    /// Of an algorithm with states `S` whose messages are reduced by `O`, for so many vertices, that does nothing but exchange.
    pub fn of<S: State, O: Operation>(vertices: u64) -> Needs {
        Needs {
            state_bytes: state::memory_bytes::<S>(vertices),
            flash_bytes: state::flash_memory_bytes::<S>(vertices),
            message_bytes: size_of::<O::Value>() as u64,
            record_bytes: (size_of::<O::Key>() + size_of::<O::Value>()) as u64,
            ..Needs::default()
        }
    }
}

/// An algorithm's supersteps of all vertices.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dense {
    /// Vertices with edges, at most.
    pub senders: u64,
    /// Supersteps of all vertices that are to come.
    pub supersteps: u32,
    /// Whether supersteps of some vertices come too.
    pub has_sparse: bool,
    pub drive: Drive,
}

/// The drive's rates, bytes a second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drive {
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
    /// Whether updates go into cells.
    pub is_direct: bool,
    /// Vertices of a frontier that are kept in memory.
    pub frontier_keys: usize,
    /// Memory of sort-reduce, where updates go through it; with blocks, as if these took nothing.
    pub sort_bytes: u64,
    /// Whether there is a bit for each active vertex, so that others can pull.
    pub has_marks: bool,
    /// How edges are cut into blocks first, if they are.
    pub blocks: Option<Plan>,
}

/// How columns are cut and what lies where.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Plan {
    pub workers: usize,
    /// Vertices in a column.
    pub width: u64,
    /// What packed edges are written and read in.
    pub chunk_bytes: usize,
    /// Edges of so many bytes stay in memory.
    pub held_bytes: u64,
    pub messages_in_memory: bool,
    /// All threads work on one column and share its cells.
    pub is_shared: bool,
    pub all_message_bytes: u64,
    pub state_in_memory: bool,
    /// Windows of edges that a worker has while edges are cut.
    pub windows: usize,
    /// Supersteps that go through sort-reduce are to follow.
    pub has_sparse: bool,
}
