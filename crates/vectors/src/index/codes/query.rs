//! Estimates the distances of the vectors of a list from a query.

use std::ops::Range;

use super::{
    Frame,
    encode::{Factors, point_of, rotate},
    kernel::{planes, products},
    shape::{FACTOR_BYTES, HEAD_BYTES, Shape},
};
use crate::{Metric, index::Clustered, tiles::Instructions};

/// The distance of a vector is within this many standard deviations of its estimate. A larger number means that more
/// vectors are measured exactly. With this number, a vector is wrongly excluded with a probability of 3 % if its
/// distance is just the k-th smallest one, and with a smaller probability otherwise.
const DEVIATIONS: f64 = 1.9;
/// The largest element of a quantized query.
const LARGEST: f32 = 127.0;
/// Bounds on the relative rounding errors of the terms of an estimate. The first is for the key of the centroid, which
/// is computed in f64, and the second for the terms that follow from factors in f32.
const KEY_ROUNDING: f64 = 1e-14;
const ROUNDING: f64 = 2.5e-7;

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

    /// Rotates and quantizes a query.
    pub fn new<T: Clustered>(frame: &Frame, row: &[T]) -> CodeQuery {
        let Frame { shape, metric, rotation, center } = frame;
        let mut point = Vec::with_capacity(shape.dimensions);
        let square = point_of(*metric, row, &mut point);
        point.iter_mut().zip(center).for_each(|(q, g)| *q -= g);
        let mut rotated = Vec::with_capacity(shape.padded());
        let norm = rotate(rotation, &point, &mut rotated);
        let most = rotated.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        let step = if most > 0.0 { most / LARGEST } else { 1.0 };
        let elements: Vec<i8> = rotated.iter().map(|x| (x / step).round() as i8).collect();
        let errors =
            rotated.iter().zip(&elements).map(|(&x, &q)| f64::from(x) - f64::from(step) * f64::from(q));
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
            let rounding = KEY_ROUNDING * key.abs() + ROUNDING * (add.abs() + turned.abs());
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
        let bytes: &[u8; FACTOR_BYTES] =
            self.bytes[start..start + FACTOR_BYTES].try_into().expect("12 bytes");
        let number = |at: usize| f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        Factors { add: number(0), rescale: number(4), error: number(8) }
    }

    /// Returns the row number of the vector at position `place` of the list.
    pub fn row(&self, place: usize) -> u64 {
        let start =
            HEAD_BYTES as usize + self.count * (self.code_bytes + FACTOR_BYTES) + place * self.id_bytes;
        let mut bytes = [0; 8];
        bytes[..self.id_bytes].copy_from_slice(&self.bytes[start..start + self.id_bytes]);
        u64::from_le_bytes(bytes)
    }

    pub fn places(&self) -> Range<usize> {
        0..self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        index::codes::encode::{Encoder, center_of},
        metric::{AT_ONCE, Measured},
        random::normal,
    };

    const VECTORS: usize = 400;
    const QUERIES: usize = 20;

    /// The estimates of many pairs: the exact key, the estimate, and the largest error.
    fn estimates(metric: Metric, bits: u32, dimensions: usize, mean: f32) -> Vec<(f64, f64, f64)> {
        let row = |seed: u64| -> Vec<f32> {
            (0..dimensions).map(|place| normal(seed, place as u64) + mean).collect()
        };
        let (centroid, other) = (vec![mean + 0.25; dimensions], vec![mean - 0.5; dimensions]);
        let center = center_of(metric, dimensions, &[centroid.clone(), other].concat());
        let shape = Shape { bits, dimensions, id_bytes: 4 };
        let frame = Frame::new(shape, metric, 9, center);
        let mut encoder = Encoder::new(&frame, &centroid);
        let (mut codes, mut factors) = (Vec::new(), Vec::new());
        let vectors: Vec<Vec<f32>> = (0..VECTORS as u64).map(|number| row(1000 + number)).collect();
        for vector in &vectors {
            let Factors { add, rescale, error } = encoder.encode(vector, &mut codes);
            factors.extend([add, rescale, error].map(|x| x.to_le_bytes()).concat());
        }
        let head = encoder.centroid_square.to_le_bytes();
        let ids: Vec<u8> = (0..VECTORS as u32).flat_map(|row| row.to_le_bytes()).collect();
        let bytes = [&head[..], &codes, &factors, &ids].concat();
        let list = CodeList::new(&shape, &bytes, VECTORS);
        assert_eq!(list.row(VECTORS - 1), VECTORS as u64 - 1);
        let mut all = Vec::new();
        for number in 0..QUERIES as u64 {
            let query = row(5000 + number);
            let norm = <f32 as Measured>::norm(&query);
            let key = |row: &[f32]| f32::keys(metric, [&*query; AT_ONCE], [row; AT_ONCE], [norm; AT_ONCE])[0];
            let coded = CodeQuery::new(&frame, &query);
            let of = |instructions| {
                let mut found = Vec::new();
                let each =
                    |place: usize, estimate, error| found.push((key(&vectors[place]), estimate, error));
                coded.estimate(instructions, &list, key(&centroid), &mut Vec::new(), each);
                found
            };
            let found = of(Instructions::Portable);
            assert_eq!(found, of(Instructions::best()), "the instruction set does not matter");
            all.extend(found);
        }
        all
    }

    #[test]
    fn estimates_have_no_bias_and_are_within_the_bounds() {
        for metric in [Metric::L2, Metric::Ip, Metric::Cosine] {
            for (dimensions, mean) in [(100, 0.0), (256, 1000.0)] {
                let mut widths = Vec::new();
                for bits in [1, 2, 4] {
                    let all = estimates(metric, bits, dimensions, mean);
                    let count = all.len() as f64;
                    let bias = all.iter().map(|(key, estimate, _)| estimate - key).sum::<f64>() / count;
                    let square = all.iter().map(|(key, estimate, _)| (estimate - key).powi(2)).sum::<f64>();
                    let deviation = (square / count).sqrt();
                    let width = all.iter().map(|(.., error)| error).sum::<f64>() / count;
                    let is_within =
                        |&&(key, estimate, error): &&(f64, f64, f64)| (estimate - key).abs() <= error;
                    let share = all.iter().filter(is_within).count() as f64 / count;
                    let what = format!("{metric:?}, {dimensions} dimensions, {bits} bits");
                    assert!(bias.abs() < 0.2 * deviation, "{what}: bias {bias}, deviation {deviation}");
                    assert!(share > 0.93, "{what}: {share} within");
                    assert!(width < 4.0 * deviation, "{what}: {width} for {deviation}");
                    widths.push(width);
                }
                assert!(widths[1] < 0.7 * widths[0] && widths[2] < 0.5 * widths[1], "{metric:?} {widths:?}");
            }
        }
    }

    #[test]
    fn a_vector_that_is_the_centroid_has_an_exact_estimate() {
        for metric in [Metric::L2, Metric::Ip, Metric::Cosine] {
            for centroid in [vec![3.0f32, -1.0, 0.5], vec![0.0; 3]] {
                let shape = Shape { bits: 1, dimensions: 3, id_bytes: 8 };
                let frame = Frame::new(shape, metric, 1, vec![0.25; 3]);
                let mut codes = Vec::new();
                let mut encoder = Encoder::new(&frame, &centroid);
                let Factors { add, rescale, error } = encoder.encode(&centroid, &mut codes);
                assert_eq!((rescale, error), (0.0, 0.0), "{metric:?}");
                let along: f64 = match metric {
                    Metric::Ip => 0.0,
                    _ => add.into(),
                };
                assert!(along.abs() < 1e-6, "{metric:?}: {add}");
            }
        }
    }
}
