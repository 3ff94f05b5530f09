//! The filter decides for which pairs of a query and a vector the exact distance must be computed.
//!
//! For a query q and each vector x of a block, a tile computes in f32:
//!
//! ```text
//!   score = <q*, x> * scale(x) - shift(x)
//!
//!   metric   q*               scale   shift         the pair may be in the answer only if the exact score is at least
//!   l2       q - c            1       |x - c|²/2    θ = <q*, c> + |q*|²/2 - T/2
//!   ip       q                1       0             θ = -T
//!   cosine   q / |q|          1/|x|   0             θ = -T              (integers: q* = q, θ = -T |q|)
//! ```
//!
//! T is the key of the k-th best neighbour so far ([`metric`](crate::metric)), and c is the center of the data (0 for
//! integers). For l2, the scores follow from the equation
//!
//! ```text
//!   |q* - (x - c)|² = |q*|² + |x - c|² - 2 <q*, x> + 2 <q*, c>
//! ```
//!
//! The exact distance of a pair is computed unless the score of the pair is below the *limit* θ - E, where E bounds all
//! errors of the score. The filter therefore loses no pair of the answer. If E is larger than necessary, more exact
//! distances than necessary are computed.
//!
//! # The bound
//!
//! Let u = 2^-24 be the unit roundoff of f32, and γ(n) = n u / (1 - n u). Let Q be |q*|, X the largest |x| of the
//! block, H the largest shift of the block, and C = |c|. (Higham, Accuracy and Stability of Numerical Algorithms,
//! section 3.1.)
//!
//! 1. The product: a sum of d products in chunks of [`CHUNK`] dimensions has at most n = min(d, CHUNK) + d / CHUNK + 2
//!    roundings on any path, so its error is at most γ(n) Σ|q*_i x_i| ≤ γ(n) Q X, with and without fused operations. The
//!    integer product is exact, and its conversion to f32 has an error of u Q X.
//! 2. The shift: a sum of d squares in 16 lanes has at most m = d / 16 + 24 roundings on any path, so its error is at
//!    most γ(m) H. For integers, the error is at most u H.
//! 3. The last operations of the score add an error of at most 2 u (Q X + H).
//! 4. For l2, q* is rounded: |q* - (q - c)| ≤ 1.01 u Q. By the triangle inequality, a pair with |q - x|² ≤ T has |q* -
//!    (x - c)| ≤ √T + 1.01 u Q, so θ is computed with (√T + 1.01 u Q)² instead of T. For the inner product, q* is
//!    exact. For the cosine, the relative error of rounding q*, 1/|x| and the scaling is at most 8 u, and that of |x|
//!    is at most γ(m).
//! 5. θ is computed in f64 with up to d roundings of 2^-53 each. A relative error of 2^-40 of all its terms covers
//!    them.
//! 6. A product that underflows loses at most 2^-149. A total of 2^-90 covers these losses, including their scaling.
//!
//! A few queries are compared by sums over the dimensions of each row instead of tiles (`tiles::RowSum`). For l2, the
//! score is then -Σ(q_i - x_i)², whose terms all have the same sign. The relative error of this score is at most γ(m) +
//! 2u, and θ = -T. For the other metrics, the error of the product is at most γ(max(n, m)) Q X.
//!
//! Overflow would invalidate the bounds 1 to 3. The filter is therefore not used for a block with norms above 2^60.
//! Under the cosine, the filter is not used for a block with a vector shorter than 2^-40, either. For these blocks, the
//! exact distances of all pairs are computed.
//!
//! # Data far from zero
//!
//! Let the data have the mean 1,000 and the standard deviation 1. The plain expansion |q|² + |x|² - 2 <q, x> then
//! suffers from cancellation, so that E is larger than all distances. With q* = q - c, the product has an error of at
//! most γ(n)
//! |q - c| |x|. This error is small relative to the squared distance, unless the ratio of mean and deviation, times n
//! u, is near 1. The vectors themselves are not shifted, because this would cost a copy of each block. If the ratio is
//! so large that f32 barely represents the differences, exact distances are computed for most pairs. The search is then
//! slow, but its answer is right. The inner product cannot be centered. For such data its scores differ by little, and
//! the exact products of all pairs within E are computed.

use crate::metric::{COUNTED, Metric};

/// After this number of dimensions, a tile adds its sums to a second set of sums. This bounds the rounding error for
/// vectors with many dimensions.
pub(crate) const CHUNK: usize = 512;

const U: f64 = 1.0 / (1u64 << 24) as f64;
const NORM_MAX: f64 = (1u64 << 60) as f64;
const COSINE_NORM_MIN: f64 = 1.0 / (1u64 << 40) as f64;
/// If the k-th best key is at most this number, a pair whose sum of squared differences overflows is certainly not
/// among the best k pairs.
const DIFFERENCES_MAX: f64 = NORM_MAX * NORM_MAX;
/// The bound on the relative error of the terms that are computed in f64.
const DOUBLE: f64 = 1.0 / (1u64 << 40) as f64;
/// The bound on the total loss by underflow, which is 2^-90.
const UNDERFLOW: f64 = 8.1e-28;

fn gamma(roundings: usize) -> f64 {
    let error = roundings as f64 * U;
    error / (1.0 - error)
}

/// The constants of the filter during a search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Filter {
    pub metric: Metric,
    /// The bound on the relative error of a product.
    product: f64,
    /// The bound on the relative error of a sum of squares.
    squares: f64,
    /// The norm of the center.
    center: f64,
    is_integer: bool,
    is_of_row_sums: bool,
}

/// The facts about a query that the filter needs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QueryFacts {
    /// The norm of the query.
    pub norm: f64,
    /// The norm of q*.
    pub star: f64,
    /// The term of θ that does not depend on T. For l2, it is <q*, c> + |q*|²/2.
    pub base: f64,
}

/// The facts about a block of vectors that the filter needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BlockFacts {
    /// The largest norm of a vector in the block.
    pub norm: f64,
    /// The smallest norm of a vector in the block, without norms of 0.
    pub norm_min: f64,
    /// The largest shift of a vector in the block.
    pub shift: f64,
}

impl Filter {
    pub fn new(metric: Metric, dimensions: usize, center: f64, is_integer: bool) -> Filter {
        let product = gamma(dimensions.min(CHUNK) + dimensions / CHUNK + 2);
        let squares = gamma(dimensions / 16 + 24);
        match is_integer {
            true => Filter { metric, product: U, squares: U, center, is_integer, is_of_row_sums: false },
            false => Filter { metric, product, squares, center, is_integer, is_of_row_sums: false },
        }
    }

    /// Returns the filter for scores that are sums over the dimensions of each row ([`RowSum`](crate::tiles::RowSum)).
    pub fn of_row_sums(self) -> Filter {
        Filter { product: self.product.max(self.squares), is_of_row_sums: true, ..self }
    }

    /// Returns the norm of the center.
    pub fn center(&self) -> f64 {
        self.center
    }

    /// Returns the limit for the scores of a query in a block. `bound` must be at least the k-th best key. A pair whose
    /// computed score is below the limit is then not in the answer.
    pub fn limit(&self, query: &QueryFacts, block: &BlockFacts, bound: f64) -> f32 {
        let BlockFacts { norm: x, shift, .. } = *block;
        let q = query.star;
        if self.is_of_row_sums && self.metric == Metric::L2 {
            return self.limit_of_differences(bound);
        }
        let is_safe = q <= NORM_MAX && x <= NORM_MAX && self.center <= NORM_MAX;
        let is_long = self.metric != Metric::Cosine || block.norm_min >= COSINE_NORM_MIN;
        let can_exclude = bound < f64::INFINITY && is_safe && is_long;
        if !can_exclude {
            return f32::NEG_INFINITY;
        }
        let (theta, error, size) = match self.metric {
            Metric::L2 => {
                let moved = if self.is_integer { 0.0 } else { 1.01 * U * q };
                let reached = bound.max(0.0).sqrt() + moved;
                let half = reached * reached / 2.0;
                let error = (self.product + 2.0 * U) * q * x + (self.squares + 2.0 * U) * shift;
                (query.base - half, error, q * (x + self.center + q) + shift + half)
            }
            Metric::Ip => (-bound, (self.product + 2.0 * U) * q * x, q * x + bound.abs()),
            Metric::Cosine => {
                let theta = -bound * if self.is_integer { query.norm } else { 1.0 };
                (theta, (self.product + self.squares + 8.0 * U) * q, q + theta.abs())
            }
            Metric::Hamming | Metric::Jaccard => unreachable!("{COUNTED}"),
        };
        ((theta - 1.01 * error - DOUBLE * size - UNDERFLOW) as f32).next_down()
    }

    /// Returns the limit for negated sums of squared differences. `bound` must be at least the k-th best key. The error
    /// of such a sum is relative to the sum itself, so the limit needs no norms, and there is no cancellation.
    fn limit_of_differences(&self, bound: f64) -> f32 {
        // A sum that overflows has an exact value far above the bound.
        if bound >= DIFFERENCES_MAX {
            return f32::NEG_INFINITY;
        }
        let relative = 1.01 * (self.squares + 2.0 * U) + DOUBLE;
        let limit = bound.max(0.0) * (1.0 + relative) + UNDERFLOW;
        (-limit as f32).next_down()
    }
}
