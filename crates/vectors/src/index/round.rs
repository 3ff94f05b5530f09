//! The queries of an index search that are answered together.

use std::sync::atomic::AtomicU64;

use inshore_store::Job;

use super::{
    Clustered,
    centroids::Centroids,
    compare::{Packed, Space},
    dataset::VectorIndex,
    parts::Part,
    plan::StrategyPlan,
};
use crate::{RowSet, Vectors, heaps::SharedHeaps, ids::Ids, topk::TopK};

/// A group of packed queries that are answered together, with the parts of the index that are in memory.
pub(super) struct Round<'a, T: Clustered> {
    pub job: &'a Job,
    pub vectors: &'a Vectors,
    pub index: &'a VectorIndex,
    /// The lists of the index, and those of its layers.
    pub parts: &'a [Part],
    pub centroids: &'a Centroids<T>,
    pub space: &'a Space<T>,
    pub coarse: &'a Space<T>,
    pub plan: &'a StrategyPlan,
    pub probes: u64,
    /// The lists that a query probes in layers, which have no copies.
    pub layer_probes: u64,
    /// Vectors that the probed lists of a query need.
    pub k: u64,
    pub packed: &'a Packed<T>,
    pub tops: &'a [TopK],
    /// The place where near vectors go: `tops`, or a sort of pairs.
    pub heaps: SharedHeaps<'a>,
    pub selected: Option<Selected<'a>>,
    pub ids: &'a Ids,
    pub compared: AtomicU64,
    pub measured: AtomicU64,
}

/// The selected vectors, and how many of them were in the lists of each query of a round.
pub(super) struct Selected<'a> {
    pub(super) rows: &'a RowSet,
    pub(super) count: u64,
    pub(super) met: Vec<Met>,
}

/// The numbers of vectors, and of selected vectors, in the lists that a query probed.
#[derive(Default)]
pub(super) struct Met {
    pub vectors: AtomicU64,
    pub selected: AtomicU64,
}
