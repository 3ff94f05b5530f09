//! A forest of disjoint sets of all vertices in memory (Tarjan 1975). All workers join trees concurrently. A
//! compare-and-swap attaches a root to a smaller root (as in Jayanti and Tarjan, "Concurrent disjoint set union",
//! 2021). Lookups of a root halve the path to it.
//!
//! Most rows of the largest component bypass the forest. As in [`super::absorb`], their vertices join a set, which
//! takes a bit per vertex. The set fits in a cache that is too small for the forest. (This halves the processor time
//! for a Kronecker graph of scale 25.)

use std::sync::atomic::{AtomicU32, Ordering};

use inshore_sortreduce::prefetch;
use inshore_store::Job;
use zerocopy::{FromBytes, IntoBytes};

use super::{absorb::of_highest_degree, edges_once, sets::VertexSet};
use crate::{
    Graph, Result, Summary, Tuning,
    csr::{self, scan_parallel},
    engine::{StateStream, VertexArray, memory_bytes},
    graph::too_small,
};

/// Memory that the forest leaves free for scans of edges, and later for translating and writing labels. A sixteenth of
/// the free memory is left free in addition.
const BESIDE_BYTES: u64 = 4 << 20;

/// Tells whether to use the forest: true if the forest fits, and the tuning forces no other algorithm.
///
/// # Errors
/// Returns [`inshore_store::Error::BudgetTooSmall`] if the tuning forces the forest and it does not fit.
pub(super) fn is_right(job: &Job, vertices: u64, tuning: &Tuning) -> Result<bool> {
    let forest_bytes = memory_bytes::<u32>(vertices) + VertexSet::bytes(vertices);
    let fits = |free: u64| forest_bytes + BESIDE_BYTES + free / 16 <= free;
    let is_possible = tuning.allows_dense() && fits(job.budget().free_bytes());
    let is_forced = tuning.allows_dense() && (tuning.strategy.is_some() || tuning.regime.is_some());
    if is_forced && !is_possible {
        return Err(too_small(job, "a forest of all vertices in memory".to_string(), fits));
    }
    Ok(is_possible)
}

/// Joins trees of a forest in memory along all edges.
pub(super) fn join(graph: &Graph, job: &Job) -> Result<(Summary, StateStream<u32>)> {
    let out = graph.out().unweighted();
    job.progress().tell(|| "a forest of all vertices in memory, edges are read once from flash".to_string());
    let mut labels = VertexArray::new(job, graph.vertices(), true, |vertex| vertex)?;
    let mut set = VertexSet::new(job, graph.vertices())?;
    set.share().add(of_highest_degree(job, &out)?);
    job.start_phase("joining trees", "edges", out.entries);
    let parents = labels.in_memory().expect("made in memory");
    let forest = Forest(
        <[AtomicU32]>::mut_from_bytes(parents.as_mut_bytes()).expect("a cell is as large as its number"),
    );
    let directed = graph.info().directed;
    let absorbing = set.share();
    scan_parallel(job, &out, vec![(); csr::scan_threads(job)], |(), vertex, row, _| {
        job.progress().add(row.len() as u64);
        if !absorbing.absorb(vertex, row) {
            forest.join_all(vertex, edges_once(directed, vertex, row));
        }
        Ok(())
    })?;
    // The set becomes one tree. This tree is joined with the trees to which members of the set belong.
    let mut root = set.first().expect("a vertex that it began with");
    for vertex in set.members() {
        root = forest.attach(vertex, root);
    }
    // A parent is never larger than its child, so one ascending pass finds every root.
    for vertex in 0..parents.len() {
        parents[vertex] = parents[parents[vertex] as usize];
    }
    let summary = Summary {
        supersteps: 1,
        edges_traversed: out.entries,
        state: "memory",
        strategy: "union-find".to_string(),
        ..Summary::default()
    };
    Ok((summary, StateStream::new(graph.vertices(), labels)?))
}

/// The parent of each vertex; a root is its own parent.
struct Forest<'a>(&'a [AtomicU32]);

/// Parents are prefetched this number of neighbours ahead.
const AHEAD: usize = 16;

impl Forest<'_> {
    fn join_all(&self, vertex: u32, row: &[u32]) {
        let mut root = self.root(vertex);
        for (place, &to) in row.iter().enumerate() {
            if let Some(&ahead) = row.get(place + AHEAD) {
                prefetch(&self.0[ahead as usize]);
            }
            if self.parent(to) != root {
                root = self.join(root, to);
            }
        }
    }

    #[inline(always)]
    fn parent(&self, vertex: u32) -> u32 {
        self.0[vertex as usize].load(Ordering::Relaxed)
    }

    fn root(&self, mut vertex: u32) -> u32 {
        loop {
            let parent = self.parent(vertex);
            let above = self.parent(parent);
            if above == parent {
                return parent;
            }
            // The exchange may fail, since another thread may have halved the path further.
            let cell = &self.0[vertex as usize];
            _ = cell.compare_exchange_weak(parent, above, Ordering::Relaxed, Ordering::Relaxed);
            vertex = above;
        }
    }

    /// Joins the trees of `vertex` and of `root`, and returns the root of the result. No other thread may change the
    /// forest meanwhile.
    fn attach(&self, vertex: u32, root: u32) -> u32 {
        if root < vertex && self.parent(vertex) == vertex {
            // The vertex is a root. Most members of the set are the only vertex of their tree.
            self.0[vertex as usize].store(root, Ordering::Relaxed);
            return root;
        }
        self.join(root, vertex)
    }

    /// Joins two trees and returns the root.
    fn join(&self, a: u32, b: u32) -> u32 {
        let (mut a, mut b) = (self.root(a), self.root(b));
        while a != b {
            let (low, high) = (a.min(b), a.max(b));
            let cell = &self.0[high as usize];
            match cell.compare_exchange(high, low, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return low,
                // Another thread attached this root to another root.
                Err(_) => (a, b) = (self.root(low), self.root(high)),
            }
        }
        a
    }
}
