//! Estimates the distances of the vectors of a list from a query.

use std::ops::Range;

use super::{
    Codes, FACTOR_BYTES, HEAD_BYTES, Shape,
    encode::{Factors, point_of, rotate},
    kernel::{planes, products},
};
use crate::{Metric, index::Clustered, tiles::Instructions};

/// The distance of a vector is within this many standard deviations of its estimate. A larger number means that more
/// vectors are measured exactly. With this number, a vector is wrongly excluded with a probability of 3 % if its
/// distance is just the k-th smallest one, and with a smaller probability otherwise.
const DEVIATIONS: f64 = 1.9;
/// The largest element of a quantized query.
const LARGEST: f32 = 127.0;
/// A bound on the relative rounding errors of the terms of an estimate.
const ROUNDING: f64 = 1e-6;

/// A query in the form that estimates need.
#[derive(Debug)]
pub(super) struct CodeQuery {
    metric: Metric,
    bits: u32,
    planes: Vec<i8>,
    /// Half of the sum of the quantized elements, times the largest value of a code.
    shift: f64,
    /// A product of integers times this number is a product with the rotated difference of the query and the center.
    scale: f64,
    /// The standard deviation of such a product, since the query is quantized.
    deviation: f64,
    /// The squared norm of the query.
    square: f64,
}

impl CodeQuery {
    /// Returns the memory of a query and of its scratch memory in bytes.
    pub fn bytes(shape: &Shape) -> u64 {
        (shape.padded() * (4 + 1 + 1 + 16) + 1024) as u64
    }

    pub fn new<T: Clustered>(codes: &Codes, row: &[T]) -> CodeQuery {
        let Codes { shape, metric, rotation, center, .. } = codes;
        let mut point = Vec::with_capacity(shape.dimensions);
        let square = point_of(*metric, row, &mut point);
        point.iter_mut().zip(center).for_each(|(q, g)| *q -= g);
        let mut rotated = Vec::with_capacity(shape.padded());
        let norm = rotate(rotation, &point, &mut rotated);
        let most = rotated.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let step = if most > 0.0 { most / LARGEST } else { 1.0 };
        let elements: Vec<i8> = rotated.iter().map(|x| (x / step).round() as i8).collect();
        let errors = rotated.iter().zip(&elements).map(|(&x, &q)| f64::from(x) - f64::from(step) * f64::from(q));
        let error = errors.map(|error| error * error).sum::<f64>().sqrt();
        let sum: i32 = elements.iter().map(|&q| i32::from(q)).sum();
        CodeQuery {
            metric: *metric,
            bits: shape.bits,
            planes: planes(shape.bits, &elements),
            shift: shape.half() * f64::from(sum),
            scale: norm * f64::from(step),
            // The rounding errors have no direction in common with a code. No value of a code is above `half`.
            deviation: norm * error * shape.half(),
            square,
        }
    }

    /// Estimates the keys of the vectors of a list. `key` is the key of its centroid. The arguments of `each` are the
    /// position in the list, the estimate and the largest error.
    pub fn estimate(
        &self,
        instructions: Instructions,
        list: &CodeList<'_>,
        key: f64,
        scratch: &mut Vec<i32>,
        mut each: impl FnMut(usize, f64, f64),
    ) {
        let square = match self.metric {
            Metric::L2 => key,
            // The squared distance of the query from the centroid follows from the product of the two.
            _ => self.square + list.centroid_square() + 2.0 * key,
        };
        let distance = square.max(0.0).sqrt();
        scratch.clear();
        products(instructions, self.bits, &self.planes, (list.codes(), list.code_bytes), scratch);
        for (place, &product) in scratch.iter().enumerate() {
            let Factors { add, rescale, error } = list.factors(place);
            let (add, rescale) = (f64::from(add), f64::from(rescale));
            let turned = rescale * self.scale * (f64::from(product) - self.shift);
            let rounding = ROUNDING * (key.abs() + add.abs() + turned.abs());
            let deviation = f64::from(error) * distance + rescale.abs() * self.deviation;
            each(place, key + add + turned, DEVIATIONS * deviation + rounding);
        }
    }
}

/// The bytes of a list of codes.
pub(super) struct CodeList<'a> {
    bytes: &'a [u8],
    count: usize,
    code_bytes: usize,
    id_bytes: usize,
}

impl<'a> CodeList<'a> {
    /// Returns the list of `count` vectors whose bytes are `bytes`.
    pub fn new(shape: &Shape, bytes: &'a [u8], count: usize) -> CodeList<'a> {
        assert_eq!(bytes.len() as u64, shape.list_bytes(count as u64), "the bytes of a list of codes");
        CodeList { bytes, count, code_bytes: shape.code_bytes(), id_bytes: shape.id_bytes }
    }

    fn centroid_square(&self) -> f64 {
        f64::from_le_bytes(self.bytes[..HEAD_BYTES as usize].try_into().expect("eight bytes"))
    }

    fn codes(&self) -> &'a [u8] {
        &self.bytes[HEAD_BYTES as usize..][..self.count * self.code_bytes]
    }

    fn factors(&self, place: usize) -> Factors {
        let start = HEAD_BYTES as usize + self.count * self.code_bytes + place * FACTOR_BYTES;
        let bytes: &[u8; FACTOR_BYTES] = self.bytes[start..start + FACTOR_BYTES].try_into().expect("12 bytes");
        let number = |at: usize| f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Factors { add: number(0), rescale: number(4), error: number(8) }
    }

    /// Returns the row number of the vector at position `place` of the list.
    pub fn row(&self, place: usize) -> u64 {
        let start = HEAD_BYTES as usize + self.count * (self.code_bytes + FACTOR_BYTES) + place * self.id_bytes;
        let mut bytes = [0; 8];
        bytes[..self.id_bytes].copy_from_slice(&self.bytes[start..start + self.id_bytes]);
        u64::from_le_bytes(bytes)
    }

    pub fn places(&self) -> Range<usize> {
        0..self.count
    }
}
