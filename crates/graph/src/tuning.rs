//! Overrides of the engine's choices, for tests and comparisons.

use inshore_sortreduce::Strategy;
use serde::{Deserialize, Serialize};

/// Overrides the engine's choices, for tests and comparisons. By default the engine chooses.
///
/// A request in JSON has only the strategy and the regime; the other fields are for tests.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Tuning {
    /// The strategy that combines updates.
    pub strategy: Option<Strategy>,
    /// The size in bytes of the buffers in which updates are sorted.
    #[serde(skip)]
    pub chunk_bytes: Option<usize>,
    /// The number of vertices per column of edges, for algorithms that support columns.
    #[serde(skip)]
    pub column_vertices: Option<u64>,
    /// Selects the place of state and updates: memory or flash.
    pub regime: Option<Regime>,
    /// The step of each superstep, if the superstep allows it.
    #[serde(skip)]
    pub step: Option<Step>,
    /// The seed of random choices: the job draws its memory layout, and each superstep draws its step, from all
    /// possible ones.
    #[serde(skip)]
    pub draw: Option<u64>,
}

/// Selects the parts of a graph that are in memory while a job runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Regime {
    /// States of vertices and their updates are in memory, and for shortest paths and betweenness also edges. Edges in
    /// columns, and rows that BFS caches, are in memory as far as they fit.
    Memory,
    /// States of vertices and their updates are in memory, and edges are on flash.
    SemiExternal,
    /// No part of the graph must be in memory: states are on flash, and updates are combined one part at a time or by
    /// sort-reduce.
    External,
}

/// Selects the step by which a superstep sends messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Active vertices send along their edges (top-down).
    Push,
    /// Active vertices send along rows that an earlier pull cached in memory.
    PushCached,
    /// Waiting vertices scan their edges for active ones (bottom-up).
    Pull,
    /// Waiting vertices scan rows that an earlier pull cached in memory.
    PullCached,
    /// All vertices send messages, and edges are processed in destination blocks.
    Blocks,
}

impl Step {
    /// All steps.
    pub const ALL: [Step; 5] = [Step::Push, Step::PushCached, Step::Pull, Step::PullCached, Step::Blocks];
}

impl Tuning {
    /// Tells whether arrays with an element for each vertex may be in memory, if they fit.
    pub(crate) fn allows_dense(&self) -> bool {
        self.strategy.is_none_or(|strategy| strategy == Strategy::Dense)
            && self.regime != Some(Regime::External)
    }
}
