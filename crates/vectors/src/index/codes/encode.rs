//! Computes the codes of vectors. The method is RaBitQ (Gao and Long, SIGMOD 2024), and for more than one bit its
//! extension (Gao et al., SIGMOD 2025).
//!
//! Let o be a vector, c the centroid of its list, and r = o - c. Let u be the direction of r after the random rotation,
//! and let x be the vector of the code: each of its values is v + 1/2 - 2^B / 2 for a value v of B bits. The code is
//! the one whose direction is near that of u. For any vector y, rotated in the same way,
//!
//! ```text
//!   <r, y>  is estimated as  |r| <x, y> / <x, u>
//! ```
//!
//! The estimate has no bias over random rotations. Its standard deviation is |r| |y| sqrt((1 - s²) / (s² (d - 1))),
//! where s is the cosine of the angle between x and u. A vector stores three numbers with its code. They are the terms
//! of the estimate that do not depend on the query ([`Factors`]).

use super::{
    Frame,
    kernel::pack,
    rotation::{MULTIPLE, Rotation},
};
use crate::{Metric, index::Clustered};

/// The scales that are tried for codes of more than one bit, as multiples of the scale that is best for normally
/// distributed elements.
const SCALES: [f64; 7] = [0.7, 0.85, 1.0, 1.15, 1.3, 1.5, 1.8];
/// The number of independent sums over dimensions.
const LANES: usize = 16;

/// The numbers that are stored with a code. The key of a vector is estimated as
///
/// ```text
///   (key of the centroid) + add + rescale <x, P (q - g)>          P is the rotation, g is the center of all centroids
/// ```
///
/// The standard deviation of the estimate is `error` |q - c|.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Factors {
    pub add: f32,
    pub rescale: f32,
    pub error: f32,
}

/// The center of all centroids. Under the cosine metric, centroids are directions of length 1.
pub(super) fn center_of<T: Clustered>(metric: Metric, dimensions: usize, groups: &[T]) -> Vec<f64> {
    let mut center = vec![0.0; dimensions];
    let count = (groups.len() / dimensions).max(1) as f64;
    let mut point = Vec::with_capacity(dimensions);
    for group in groups.chunks_exact(dimensions) {
        point_of(metric, group, &mut point);
        center.iter_mut().zip(&point).for_each(|(sum, x)| *sum += x / count);
    }
    center
}

/// Replaces the content of `out` by the elements of a vector. Under the cosine metric, the vector is divided by its
/// norm, and a zero vector stays zero. Returns the squared norm of the result.
pub(super) fn point_of<T: Clustered>(metric: Metric, row: &[T], out: &mut Vec<f64>) -> f64 {
    let norm = if metric == Metric::Cosine { T::norm(row) } else { 1.0 };
    let scale = if norm > 0.0 { 1.0 / norm } else { 0.0 };
    out.clear();
    out.extend(row.iter().map(|x| x.value() * scale));
    out.iter().map(|x| x * x).sum()
}

/// Rotates the direction of a vector. Returns the norm of the vector. The result is zero if the vector is zero.
pub(super) fn rotate(rotation: &Rotation, vector: &[f64], out: &mut Vec<f32>) -> f64 {
    // The squares of values of f32 fit into f64, and do not vanish there.
    let norm = vector.iter().map(|x| x * x).sum::<f64>().sqrt();
    let scale = if norm > 0.0 { 1.0 / norm } else { 0.0 };
    out.clear();
    out.extend(vector.iter().map(|x| (x * scale) as f32));
    out.resize(vector.len().next_multiple_of(MULTIPLE), 0.0);
    rotation.apply(out);
    norm
}

/// Encodes the vectors of lists, one list after the other.
pub(super) struct Encoder<'a> {
    frame: &'a Frame,
    /// The elements of the centroid of the list, and its rotated difference from the center of all centroids.
    centroid: Vec<f64>,
    offset: Vec<f32>,
    offset_norm: f64,
    /// The squared norm of the centroid.
    pub centroid_square: f64,
    point: Vec<f64>,
    rotated: Vec<f32>,
    values: Vec<u8>,
    best: Vec<u8>,
}

impl<'a> Encoder<'a> {
    /// Returns an encoder for the list with this centroid.
    pub fn new<T: Clustered>(frame: &'a Frame, centroid: &[T]) -> Encoder<'a> {
        let Frame { shape, metric, rotation, center } = frame;
        let mut elements = Vec::with_capacity(shape.dimensions);
        let centroid_square = point_of(*metric, centroid, &mut elements);
        let difference: Vec<f64> = elements.iter().zip(center).map(|(c, g)| c - g).collect();
        let mut offset = Vec::with_capacity(shape.padded());
        let offset_norm = rotate(rotation, &difference, &mut offset);
        Encoder {
            frame,
            centroid: elements,
            offset,
            offset_norm,
            centroid_square,
            point: Vec::new(),
            rotated: Vec::new(),
            values: Vec::new(),
            best: Vec::new(),
        }
    }

    /// Appends the code of a vector, and returns its factors.
    pub fn encode<T: Clustered>(&mut self, row: &[T], codes: &mut Vec<u8>) -> Factors {
        let Frame { shape, metric, rotation, .. } = self.frame;
        point_of(*metric, row, &mut self.point);
        self.point.iter_mut().zip(&self.centroid).for_each(|(o, c)| *o -= c);
        let along: f64 = self.point.iter().zip(&self.centroid).map(|(r, c)| r * c).sum();
        let norm = rotate(rotation, &self.point, &mut self.rotated);
        let (product, square) = self.quantize();
        pack(shape.bits, &self.best, codes);
        let is_zero = norm == 0.0 || product <= 0.0;
        let scale = if is_zero { 0.0 } else { norm / product };
        let half = shape.half();
        let of_offset = sums(&self.best, &self.offset, |v, y| (f64::from(v) - half) * f64::from(y));
        let of_centroid = scale * of_offset * self.offset_norm;
        let cosine = (product / square.sqrt()).min(1.0);
        let deviation = match is_zero {
            true => 0.0,
            false => {
                let spread = (1.0 - cosine * cosine) / (cosine * cosine * (shape.padded() - 1) as f64);
                norm * spread.sqrt()
            }
        };
        match metric {
            Metric::L2 => Factors {
                add: (norm * norm + 2.0 * of_centroid) as f32,
                rescale: (-2.0 * scale) as f32,
                error: (2.0 * deviation) as f32,
            },
            _ => {
                Factors { add: (of_centroid - along) as f32, rescale: -scale as f32, error: deviation as f32 }
            }
        }
    }

    /// Finds the code for the rotated direction. Returns the product of its vector and the direction, and the square of
    /// its vector.
    fn quantize(&mut self) -> (f64, f64) {
        let shape = &self.frame.shape;
        let (half, most) = (shape.half(), (1u32 << shape.bits) as f32 - 1.0);
        if shape.bits == 1 {
            self.best.clear();
            self.best.extend(self.rotated.iter().map(|&u| u8::from(u >= 0.0)));
            return self.measure_best(half);
        }
        // The best step of a uniform quantizer for normally distributed elements is 0.996 with 2 bits, and 0.335 with 4
        // bits (Max 1960).
        let usual = (shape.padded() as f64).sqrt() / if shape.bits == 2 { 0.996 } else { 0.335 };
        let (mut best, mut found) = (f64::NEG_INFINITY, (0.0, 1.0));
        for times in SCALES {
            let scale = (usual * times) as f32;
            let shift = (half + 0.5) as f32;
            self.values.clear();
            self.values.extend(self.rotated.iter().map(|&u| (u * scale + shift).clamp(0.0, most) as u8));
            std::mem::swap(&mut self.values, &mut self.best);
            let (product, square) = self.measure_best(half);
            if product / square.sqrt() > best {
                (best, found) = (product / square.sqrt(), (product, square));
            } else {
                std::mem::swap(&mut self.values, &mut self.best);
            }
        }
        found
    }

    fn measure_best(&self, half: f64) -> (f64, f64) {
        let value = |v: u8| f64::from(v) - half;
        let product = sums(&self.best, &self.rotated, |v, u| value(v) * f64::from(u));
        (product, sums(&self.best, &self.rotated, |v, _| value(v) * value(v)))
    }
}

/// Adds a term for each dimension, in a fixed order.
fn sums(values: &[u8], elements: &[f32], term: impl Fn(u8, f32) -> f64) -> f64 {
    let mut lanes = [0.0f64; LANES];
    for (values, elements) in values.chunks_exact(LANES).zip(elements.chunks_exact(LANES)) {
        for lane in 0..LANES {
            lanes[lane] += term(values[lane], elements[lane]);
        }
    }
    lanes.iter().sum()
}
