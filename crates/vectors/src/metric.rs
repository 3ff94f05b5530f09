//! The metrics, and the exact distance of a pair of vectors.
//!
//! The distance of a pair of floating-point vectors is computed in f64, element by element in the order of the
//! dimensions. The distance of a pair of integer vectors is computed in integers. These computations define the answer.
//! All faster code is a filter, which only decides for which pairs the exact distance is computed.
//!
//! Neighbours are ordered by a `key`. A neighbour with a smaller key is nearer.
//!
//! | metric | key                                  | reported distance  |
//! |--------|--------------------------------------|--------------------|
//! | l2     | sum of squared differences           | its square root    |
//! | ip     | the negated inner product            | the inner product  |
//! | cosine | the negated cosine similarity        | 1 - similarity     |
//! | hamming| the number of dimensions that differ | that number        |
//! | jaccard| the negated similarity of sets       | 1 - similarity     |
//!
//! The cosine similarity of a zero vector with any vector is 0.

use serde::{Deserialize, Serialize};

use crate::{Element, Error, Result};

/// The metric of a search.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Metric {
    /// Euclidean distance.
    #[default]
    L2,
    /// Inner product. This is a score, not a distance. A larger score means a nearer neighbour.
    Ip,
    /// Cosine distance, which is one minus the cosine of the angle between two vectors.
    Cosine,
    /// The number of dimensions in which two vectors differ. A dimension is a bit or a byte.
    Hamming,
    /// One minus the Jaccard similarity. The similarity is the number of bits that are set in both vectors, divided by
    /// the number of bits that are set in at least one of them. The distance is 0 if no bit is set in either vector.
    Jaccard,
}

impl Metric {
    /// Returns the metrics that are defined for vectors of this element type.
    pub(crate) fn of(element: Element) -> &'static [Metric] {
        match element {
            Element::F32 | Element::F16 | Element::Bf16 => &[Metric::L2, Metric::Ip, Metric::Cosine],
            Element::U8 | Element::I8 => &[Metric::L2, Metric::Ip, Metric::Cosine, Metric::Hamming],
            Element::Bits => &[Metric::Hamming, Metric::Jaccard],
        }
    }

    /// Checks that the metric is defined for this element type.
    ///
    /// # Errors
    /// Returns [`Error::BadOption`] if an option is out of range.
    pub(crate) fn check(self, element: Element) -> Result<()> {
        let metrics = Metric::of(element);
        if metrics.contains(&self) {
            return Ok(());
        }
        let names: Vec<&str> = metrics.iter().map(|metric| metric.name()).collect();
        let expected = format!("{} for vectors of {element}", names.join(" or "));
        Err(Error::BadOption { option: "metric", found: self.name().to_string(), expected })
    }

    /// Returns the name of the metric, as users write it.
    pub fn name(self) -> &'static str {
        match self {
            Metric::L2 => "l2",
            Metric::Ip => "ip",
            Metric::Cosine => "cosine",
            Metric::Hamming => "hamming",
            Metric::Jaccard => "jaccard",
        }
    }

    /// Returns the distance that is reported for a key.
    pub(crate) fn distance(self, key: f64) -> f64 {
        match self {
            Metric::L2 => key.sqrt(),
            Metric::Ip => -key + 0.0,
            Metric::Cosine | Metric::Jaccard => (1.0 + key).max(0.0),
            Metric::Hamming => key,
        }
    }

    /// Returns true if a key lies within a radius. For the inner product, this means that the product is at least
    /// `radius`. For other metrics, it means that the distance is at most `radius`.
    pub(crate) fn is_within(self, key: f64, radius: f64) -> bool {
        match self {
            Metric::Ip => -key >= radius,
            _ => self.distance(key) <= radius,
        }
    }

    /// Returns a number that no key within the radius exceeds.
    pub(crate) fn key_within(self, radius: f64) -> f64 {
        // The relative margin covers the rounding of the product and of the sum.
        match self {
            Metric::L2 => radius * radius * (1.0 + 1e-12) + f64::MIN_POSITIVE,
            Metric::Ip => -radius,
            Metric::Hamming => radius,
            Metric::Cosine | Metric::Jaccard => radius - 1.0 + 1e-12 * (1.0 + radius),
        }
    }
}

/// The distances of this number of pairs are computed together. Each distance is a chain of dependent additions, and
/// four independent chains keep the adders of the processor busy.
pub(crate) const AT_ONCE: usize = 4;

/// The panic message of code for products if it is called for Hamming or Jaccard distances.
pub(crate) const COUNTED: &str = "Hamming and Jaccard distances are counted";

/// An element type with an exact distance between two rows.
pub(crate) trait Measured: Sized {
    /// Returns the keys of `AT_ONCE` pairs. `norms` are the norms of the queries.
    fn keys(
        metric: Metric,
        queries: [&[Self]; AT_ONCE],
        rows: [&[Self]; AT_ONCE],
        norms: [f64; AT_ONCE],
    ) -> [f64; AT_ONCE];

    /// Returns the Euclidean norm of a row.
    fn norm(row: &[Self]) -> f64;
}

/// Returns, for each of four pairs, the sum of `term` over the dimensions. The terms are added in the order of the
/// dimensions.
fn sums(
    [q0, q1, q2, q3]: [&[f32]; AT_ONCE],
    [x0, x1, x2, x3]: [&[f32]; AT_ONCE],
    term: impl Fn(f64, f64) -> f64,
) -> [f64; AT_ONCE] {
    let mut sums = [0.0; AT_ONCE];
    let firsts = q0.iter().zip(x0).zip(q1.iter().zip(x1));
    let lasts = q2.iter().zip(x2).zip(q3.iter().zip(x3));
    for (((q0, x0), (q1, x1)), ((q2, x2), (q3, x3))) in firsts.zip(lasts) {
        sums[0] += term((*q0).into(), (*x0).into());
        sums[1] += term((*q1).into(), (*x1).into());
        sums[2] += term((*q2).into(), (*x2).into());
        sums[3] += term((*q3).into(), (*x3).into());
    }
    sums
}

/// Returns the key of the cosine distance.
fn cosine_key(product: f64, norms: f64) -> f64 {
    // A zero vector has no direction, so its similarity is 0. The addition of 0 turns -0 into 0.
    if norms > 0.0 { -(product / norms) + 0.0 } else { 0.0 }
}

impl Measured for f32 {
    fn keys(
        metric: Metric,
        queries: [&[f32]; AT_ONCE],
        rows: [&[f32]; AT_ONCE],
        norms: [f64; AT_ONCE],
    ) -> [f64; AT_ONCE] {
        match metric {
            Metric::L2 => sums(queries, rows, |q, x| (q - x) * (q - x)),
            Metric::Ip => sums(queries, rows, |q, x| q * x).map(|sum| -sum + 0.0),
            Metric::Cosine => {
                let products = sums(queries, rows, |q, x| q * x);
                let squares = sums(queries, rows, |_, x| x * x);
                std::array::from_fn(|pair| cosine_key(products[pair], norms[pair] * squares[pair].sqrt()))
            }
            Metric::Hamming | Metric::Jaccard => unreachable!("{COUNTED}"),
        }
    }

    fn norm(row: &[f32]) -> f64 {
        row.iter().map(|&x| f64::from(x) * f64::from(x)).sum::<f64>().sqrt()
    }
}

/// Returns the sum of `term` over the dimensions. The sum fits into 31 bits (see
/// [`DIMENSIONS_MAX`](crate::DIMENSIONS_MAX)).
fn integer_sum<T: Copy + Into<i32>>(query: &[T], row: &[T], term: impl Fn(i32, i32) -> i32) -> f64 {
    query.iter().zip(row).map(|(&q, &x)| term(q.into(), x.into())).sum::<i32>().into()
}

fn integer_keys<T: Copy + Into<i32>>(
    metric: Metric,
    queries: [&[T]; AT_ONCE],
    rows: [&[T]; AT_ONCE],
    norms: [f64; AT_ONCE],
) -> [f64; AT_ONCE] {
    std::array::from_fn(|pair| {
        let (query, row) = (queries[pair], rows[pair]);
        match metric {
            Metric::L2 => integer_sum(query, row, |q, x| (q - x) * (q - x)),
            Metric::Ip => -integer_sum(query, row, |q, x| q * x) + 0.0,
            Metric::Cosine => {
                let product = integer_sum(query, row, |q, x| q * x);
                cosine_key(product, norms[pair] * integer_norm(row))
            }
            Metric::Hamming | Metric::Jaccard => unreachable!("{COUNTED}"),
        }
    })
}

fn integer_norm<T: Copy + Into<i32>>(row: &[T]) -> f64 {
    integer_sum(row, row, |x, y| x * y).sqrt()
}

impl Measured for u8 {
    fn keys(
        metric: Metric,
        queries: [&[u8]; AT_ONCE],
        rows: [&[u8]; AT_ONCE],
        norms: [f64; AT_ONCE],
    ) -> [f64; AT_ONCE] {
        integer_keys(metric, queries, rows, norms)
    }

    fn norm(row: &[u8]) -> f64 {
        integer_norm(row)
    }
}

impl Measured for i8 {
    fn keys(
        metric: Metric,
        queries: [&[i8]; AT_ONCE],
        rows: [&[i8]; AT_ONCE],
        norms: [f64; AT_ONCE],
    ) -> [f64; AT_ONCE] {
        integer_keys(metric, queries, rows, norms)
    }

    fn norm(row: &[i8]) -> f64 {
        integer_norm(row)
    }
}
