//! How tests and comparisons force a job to work.

use inshore_sortreduce::Strategy;

/// How a job is forced to work, for tests and comparisons; the default lets the engine choose.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tuning {
    /// How updates are combined.
    pub strategy: Option<Strategy>,
    /// The size in bytes of the buffers that updates are sorted in.
    pub chunk_bytes: Option<usize>,
    /// Vertices in a column of edges, for algorithms that can go column by column.
    pub column_vertices: Option<u64>,
    /// What lies where.
    pub regime: Option<Regime>,
    /// The step of each superstep in which it is possible.
    pub step: Option<Step>,
    /// Draws each superstep's choice from all that are possible, and the layout too, with this seed.
    pub draw: Option<u64>,
}

/// What of a graph lies in memory while a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Regime {
    /// What is known of vertices, their updates, and for shortest paths and betweenness edges. Edges in columns, and what BFS looks
    /// at again, as far as they fit.
    Memory,
    /// The states of vertices and their updates lie in memory.
    SemiExternal,
    /// Neither: states lie on flash, and updates are combined a part at a time or by sort-reduce.
    External,
}

/// How a superstep goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Active vertices send along their edges (top-down).
    Push,
    /// Active vertices send along rows that an earlier pull left in memory.
    PushCached,
    /// Vertices that wait look along their edges for active ones (bottom-up).
    Pull,
    /// Vertices that wait look along rows that an earlier pull left in memory.
    PullCached,
    /// All vertices send, and edges go by blocks of destinations.
    Blocks,
}

impl Step {
    /// All of them.
    pub const ALL: [Step; 5] = [Step::Push, Step::PushCached, Step::Pull, Step::PullCached, Step::Blocks];
}

impl Tuning {
    /// Whether what is known of vertices may be kept in an array in memory, if it fits.
    pub(crate) fn allows_dense(&self) -> bool {
        self.strategy.is_none_or(|strategy| strategy == Strategy::Dense)
            && self.regime != Some(Regime::External)
    }
}
