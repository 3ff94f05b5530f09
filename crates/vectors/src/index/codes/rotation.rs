//! A random rotation that takes about 4 d log d additions for d dimensions.
//!
//! The method is that of the library of RaBitQ: four rounds of random signs and a Hadamard transform. A transform needs
//! a power of two of dimensions. If the number of dimensions is not a power of two, the transforms of the rounds
//! alternate between the first and the last dimensions, and each round ends with a butterfly between the two halves.
//!
//! All steps are additions, subtractions and multiplications of `f32`, in a fixed order. The result is therefore the
//! same on every processor.

use crate::random::mixed;

/// The number of rounds.
const ROUNDS: usize = 4;
/// The number of dimensions is padded with zeros to a multiple of this number.
pub(super) const MULTIPLE: usize = 64;

/// A rotation. It follows from a seed.
#[derive(Debug)]
pub(crate) struct Rotation {
    /// The number of dimensions after padding.
    padded: usize,
    /// The signs of all rounds, 1 or -1.
    signs: Vec<f32>,
}

impl Rotation {
    /// Returns the rotation of `dimensions` dimensions for this seed.
    pub fn new(seed: u64, dimensions: usize) -> Rotation {
        let padded = dimensions.next_multiple_of(MULTIPLE);
        let bit = |place: usize| {
            let word = mixed(mixed(seed ^ 0x726f_7461_7465) ^ (place / 64) as u64);
            word >> (place % 64) & 1 == 1
        };
        let signs = (0..ROUNDS * padded).map(|place| if bit(place) { -1.0 } else { 1.0 }).collect();
        Rotation { padded, signs }
    }

    /// Returns the memory of a rotation in bytes.
    pub fn bytes(dimensions: usize) -> u64 {
        (ROUNDS * dimensions.next_multiple_of(MULTIPLE) * size_of::<f32>()) as u64
    }

    /// Rotates a vector, whose dimensions are padded with zeros. The elements must be at most 1, so that no sum
    /// overflows.
    pub fn apply(&self, vector: &mut [f32]) {
        let padded = self.padded;
        assert_eq!(vector.len(), padded, "the dimensions are padded");
        let power = 1 << padded.ilog2();
        // A transform multiplies the length of its part by the root of the number of dimensions.
        let scale = 1.0 / (power as f32).sqrt();
        for (round, signs) in self.signs.chunks_exact(padded).enumerate() {
            vector.iter_mut().zip(signs).for_each(|(x, sign)| *x *= sign);
            let part = match round % 2 {
                0 => &mut vector[..power],
                _ => &mut vector[padded - power..],
            };
            transform(part);
            part.iter_mut().for_each(|x| *x *= scale);
            if power < padded {
                let (firsts, lasts) = vector.split_at_mut(padded / 2);
                butterfly(firsts, lasts);
            }
        }
        if power < padded {
            // Each of the four butterflies has multiplied the length by the root of 2.
            vector.iter_mut().for_each(|x| *x *= 0.25);
        }
    }
}

/// Replaces each pair of elements by its sum and its difference.
fn butterfly(firsts: &mut [f32], lasts: &mut [f32]) {
    for (x, y) in firsts.iter_mut().zip(lasts) {
        (*x, *y) = (*x + *y, *x - *y);
    }
}

/// Computes the Hadamard transform of a power of two of elements.
fn transform(elements: &mut [f32]) {
    let mut half = elements.len() / 2;
    while half > 0 {
        for part in elements.chunks_exact_mut(2 * half) {
            let (firsts, lasts) = part.split_at_mut(half);
            butterfly(firsts, lasts);
        }
        half /= 2;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::normal;

    #[test]
    fn a_rotation_keeps_lengths_and_products_and_spreads_a_single_element() {
        for dimensions in [1, 64, 100, 128, 200, 768, 1000] {
            let rotation = Rotation::new(3, dimensions);
            let padded = dimensions.next_multiple_of(MULTIPLE);
            let unit = |seed| -> Vec<f32> {
                let mut vector: Vec<f32> = (0..dimensions).map(|place| normal(seed, place as u64)).collect();
                let norm = vector.iter().map(|x| x * x).sum::<f32>().sqrt();
                vector.iter_mut().for_each(|x| *x /= norm);
                vector.resize(padded, 0.0);
                vector
            };
            let product = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f32>();
            let (mut x, mut y) = (unit(1), unit(2));
            let before = product(&x, &y);
            rotation.apply(&mut x);
            rotation.apply(&mut y);
            assert!((product(&x, &x) - 1.0).abs() < 1e-4, "{dimensions}");
            assert!((product(&x, &y) - before).abs() < 1e-4, "{dimensions}");
            let mut spike = vec![0.0; padded];
            spike[0] = 1.0;
            rotation.apply(&mut spike);
            let most = spike.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            assert!(most < 6.0 / (padded as f32).sqrt(), "{dimensions}: {most}");
        }
        let rotated = |seed| {
            let mut vector = vec![0.125; 64];
            Rotation::new(seed, 64).apply(&mut vector);
            vector
        };
        assert_eq!(rotated(1), rotated(1));
        assert_ne!(rotated(1), rotated(2));
    }
}
