//! The arithmetic of PageRank in fixed point, which the engine and the stages of a cluster share.

use super::check_damping;
use crate::Result;

/// 1.0 in fixed point.
pub(super) const ONE: u64 = 1 << 62;

fn times(a: u64, b: u64) -> u64 {
    ((a as u128 * b as u128 + (ONE / 2) as u128) >> 62) as u64
}

/// The steps of an iteration, for ranks with 62 bits behind the point. Sums of ranks and of shares are sums of integers,
/// so they are equal in each order, and on any number of machines.
///
/// ```
/// use inshore_graph::RankArithmetic;
///
/// // Two vertices, and an edge from the first one to the second one, which has no out-edge.
/// let arithmetic = RankArithmetic::new(2, 0.85)?;
/// let ranks = [arithmetic.start(); 2];
/// let base = arithmetic.base(ranks[1]);
/// let ranks = [0, arithmetic.share(ranks[0], 1)].map(|sum| arithmetic.rank(base, sum));
/// assert_eq!(ranks.map(|rank| (RankArithmetic::to_f64(rank) * 1e4).round()), [2875.0, 7125.0]);
/// # Ok::<(), inshore_graph::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct RankArithmetic {
    vertices: u64,
    damping: u64,
}

impl RankArithmetic {
    /// Creates the arithmetic for a graph of `vertices` vertices (1 at least), with a damping from 0 to 1.
    ///
    /// # Errors
    /// Returns [`Error::BadOption`](crate::Error::BadOption) if the damping is outside of 0 to 1.
    pub fn new(vertices: u64, damping: f64) -> Result<RankArithmetic> {
        check_damping(damping)?;
        Ok(RankArithmetic { vertices, damping: (damping * ONE as f64) as u64 })
    }

    /// Returns the rank of each vertex before the first iteration.
    pub fn start(&self) -> u64 {
        ONE / self.vertices
    }

    /// Returns the part of a rank that a vertex with `degree` out-edges (1 at least) sends along each of them.
    pub fn share(&self, rank: u64, degree: u32) -> u64 {
        (rank + u64::from(degree) / 2) / u64::from(degree)
    }

    /// Returns the part of each new rank that does not depend on the edges of the vertex: it comes from random jumps and
    /// from vertices without out-edges, whose ranks sum to `dangling`.
    pub fn base(&self, dangling: u64) -> u64 {
        (ONE - self.damping + times(self.damping, dangling)) / self.vertices
    }

    /// Returns the new rank of a vertex that received shares with this sum.
    pub fn rank(&self, base: u64, sum: u64) -> u64 {
        base + times(self.damping, sum)
    }

    /// Converts a rank, or a sum of changes of ranks, to floating point.
    pub fn to_f64(rank: u64) -> f64 {
        rank as f64 / ONE as f64
    }
}
