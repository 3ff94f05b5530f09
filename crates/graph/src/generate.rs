//! Synthetic graphs: the Kronecker generator of the Graph500 benchmark.

use std::sync::atomic::{AtomicU64, Ordering};

use inshore_sortreduce::{Config, SortReduce};
use inshore_store::{Job, Store};
use serde::{Deserialize, Serialize};

use crate::{
    Error, GraphInfo, Result,
    csr::{IdentityNumbering, Unweighted, edge_key, writer_bytes},
    graph::{self, check_budget},
    import::{Draft, write_graph},
};

/// Describes a Graph500 Kronecker graph (specification 2.1: A = 0.57, B = C = 0.19). The graph is directed and has
/// 2^scale vertices. `edge_factor` x 2^scale edges are drawn, and duplicates are merged. Vertex numbers are permuted.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kronecker {
    /// The graph has 2^scale vertices. The scale is 1 to 31.
    pub scale: u32,
    /// The number of edges that are drawn per vertex; 16 in Graph500.
    pub edge_factor: u64,
    /// The seed of the random numbers. The same seed gives the same graph.
    pub seed: u64,
}

/// The thresholds by which a random number of 16 bits selects one of the quadrants A, B and C.
const A: u16 = (0.57 * 65536.0) as u16;
const AB: u16 = (0.76 * 65536.0) as u16;
const ABC: u16 = (0.95 * 65536.0) as u16;
/// The number of edges that a worker draws before it takes the next range of edges.
const STEP: u64 = 1 << 16;

/// Returns the number with index `counter` of a random stream: the finalizer of SplitMix64 (Steele, Lea and Flood 2014)
/// applied to a mix of seed and counter. A number does not depend on the numbers before it, so threads share no state.
pub(crate) fn random_u64(seed: u64, counter: u64) -> u64 {
    let mut bits =
        mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15)) ^ counter.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    bits = mix(bits);
    bits
}

fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

impl Kronecker {
    fn edge(&self, number: u64) -> (u32, u32) {
        let words = self.scale.div_ceil(4) as u64;
        let (mut source, mut destination) = (0u32, 0u32);
        for word in 0..words {
            let mut draws = random_u64(self.seed, number * words + word);
            let levels = (self.scale - 4 * word as u32).min(4);
            for _ in 0..levels {
                let draw = draws as u16;
                draws >>= 16;
                // Quadrants in order: A (0, 0), B (0, 1), C (1, 0), D (1, 1).
                let down = (draw >= AB) as u32;
                let right = ((A..AB).contains(&draw) || draw >= ABC) as u32;
                source = source << 1 | down;
                destination = destination << 1 | right;
            }
        }
        (self.shuffle(source), self.shuffle(destination))
    }

    /// Permutes the numbers of `scale` bits by shifts and by multiplications by odd numbers. Each of these steps can be
    /// undone, so no two vertices get the same number.
    fn shuffle(&self, vertex: u32) -> u32 {
        let mask = ((1u64 << self.scale) - 1) as u32;
        let half = self.scale.div_ceil(2);
        let mut vertex = vertex;
        for round in 0..3 {
            let factor = random_u64(!self.seed, round) as u32 | 1;
            vertex = vertex.wrapping_mul(factor) & mask;
            vertex ^= vertex >> half;
        }
        vertex
    }
}

/// Generates a graph and stores it as `name`, with in-edges if `reverse`.
///
/// # Errors
/// - Returns [`Error::BadOption`] if the scale is outside of 1 to 31, or the graph would have no edges.
/// - Returns [`inshore_store::Error::NameExists`] if the store already has a dataset with this name.
/// - Returns [`inshore_store::Error::BudgetTooSmall`] if the memory budget is too small.
///
/// The function also fails if an I/O operation fails, or if the job was cancelled.
pub fn generate(
    store: &Store,
    job: &Job,
    name: &str,
    kronecker: &Kronecker,
    reverse: bool,
) -> Result<GraphInfo> {
    check_budget(job, "generating a graph")?;
    check(kronecker)?;
    let builder = store.create_dataset(job, name, graph::KIND)?;
    let edges = kronecker.edge_factor << kronecker.scale;
    job.start_phase("generating edges", "edges", edges);
    let threads = job.budget().threads();
    let memory_bytes = job.budget().free_bytes().saturating_sub(writer_bytes(job) + 128 * 1024);
    let config = Config { memory_bytes, sinks: threads, name: "edges", ..Config::default() };
    let sorter = SortReduce::new(job, Unweighted, &config)?;
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| -> Result<()> {
        let mut workers = Vec::with_capacity(threads);
        for _ in 0..threads {
            let mut sink = sorter.sink()?;
            let next = &next;
            workers.push(scope.spawn(move || -> Result<()> {
                loop {
                    let first = next.fetch_add(STEP, Ordering::Relaxed);
                    if first >= edges {
                        return Ok(sink.finish()?);
                    }
                    let end = (first + STEP).min(edges);
                    for number in first..end {
                        let (source, destination) = kronecker.edge(number);
                        sink.push(edge_key(source, destination), ())?;
                    }
                    job.check_cancelled()?;
                    job.progress().add(end - first);
                }
            }));
        }
        workers.into_iter().try_for_each(|worker| worker.join().expect("a generator does not panic"))
    })?;
    let vertices = 1u64 << kronecker.scale;
    let draft = Draft { vertices, directed: true, dense_ids: true, id_min: 0, id_max: vertices - 1, reverse };
    write_graph::<Unweighted>(job, builder, name, sorter.finish()?, draft, &IdentityNumbering)
}

fn check(kronecker: &Kronecker) -> Result<()> {
    let bad = |option, found: String, expected: &str| {
        Err(Error::BadOption { option, found, expected: expected.to_string() })
    };
    if !(1..=31).contains(&kronecker.scale) {
        return bad("scale", kronecker.scale.to_string(), "1 to 31");
    }
    if !(1..=1 << 20).contains(&kronecker.edge_factor) {
        return bad("edge factor", kronecker.edge_factor.to_string(), "1 to 1048576");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shuffle_is_a_permutation_at_every_scale() {
        for scale in 1..=14 {
            let kronecker = Kronecker { scale, edge_factor: 1, seed: 5 };
            let mut seen = vec![false; 1 << scale];
            for vertex in 0..1 << scale {
                let place = &mut seen[kronecker.shuffle(vertex) as usize];
                assert!(!std::mem::replace(place, true), "scale {scale}, vertex {vertex}");
            }
        }
    }

    #[test]
    fn quadrants_are_drawn_with_the_probabilities_of_graph500() {
        let kronecker = Kronecker { scale: 1, edge_factor: 1, seed: 3 };
        let mut counts = [0u32; 4];
        // At scale 1 the shuffle is the identity.
        assert_eq!((kronecker.shuffle(0), kronecker.shuffle(1)), (0, 1));
        for number in 0..100_000 {
            let (source, destination) = kronecker.edge(number);
            counts[(source * 2 + destination) as usize] += 1;
        }
        for (count, share) in counts.iter().zip([0.57, 0.19, 0.19, 0.05]) {
            assert!((*count as f64 / 100_000.0 - share).abs() < 0.01, "{counts:?}");
        }
    }
}
