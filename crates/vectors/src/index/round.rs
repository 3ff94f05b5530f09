//! A round is a group of queries of an index search that are answered together.

use std::sync::atomic::AtomicU64;

use inshore_store::Job;

use super::{
    Clustered,
    centroids::Centroids,
    codes::Codes,
    compare::{Packed, Space},
    dataset::VectorIndex,
    parts::Part,
    plan::StrategyPlan,
};
use crate::{RowSet, Vectors, heaps::SharedHeaps, ids::Ids, topk::TopK};

/// A group of packed queries that are answered together, and the data of the index that the search has loaded.
pub(super) struct Round<'a, T: Clustered> {
    pub job: &'a Job,
    pub vectors: &'a Vectors,
    pub index: &'a VectorIndex,
    /// The lists that the build wrote, then those of each layer.
    pub parts: &'a [Part],
    pub centroids: &'a Centroids<T>,
    /// The codes by which the first part is searched. `None` if all its vectors are compared.
    pub codes: Option<&'a Codes>,
    pub space: &'a Space<T>,
    pub coarse: &'a Space<T>,
    pub plan: &'a StrategyPlan,
    pub probes: u64,
    /// The number of lists that a query probes in layers, which have no copies.
    pub layer_probes: u64,
    /// The number of vectors that the probed lists of a query must have.
    pub k: u64,
    /// The number of nearest vectors among which the neighbours of a query are.
    pub needed: usize,
    pub packed: &'a Packed<T>,
    pub tops: &'a [TopK],
    /// The receiver of near vectors. It is `tops`, or a sort of pairs.
    pub heaps: SharedHeaps<'a>,
    pub selected: Option<Selected<'a>>,
    pub ids: &'a Ids,
    pub compared: AtomicU64,
    pub measured: AtomicU64,
}

/// The selected vectors, and counts of the vectors in the probed lists of each query of a round.
pub(super) struct Selected<'a> {
    pub(super) rows: &'a RowSet,
    pub(super) count: u64,
    pub(super) met: Vec<Met>,
}

/// The lists that a query probes, by ascending distance.
pub(super) struct Near<'a> {
    pub lists: &'a [u32],
    /// The keys of the centroids of the lists.
    pub keys: &'a [f64],
    /// How many of the lists are probed in the first part of the index. In layers, all lists are probed.
    pub in_first: usize,
}

/// Counts for one query: the number of vectors and the number of selected vectors in the lists that the query probed.
#[derive(Default)]
pub(super) struct Met {
    pub vectors: AtomicU64,
    pub selected: AtomicU64,
}
