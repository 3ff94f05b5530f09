//! Computes pseudo-random numbers from a seed and a counter. The numbers are the same on every processor.

/// Returns a pseudo-random number. The function is one step of SplitMix64, with `number` as the state.
pub(crate) fn mixed(number: u64) -> u64 {
    let mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ mixed >> 31
}

/// Maps a uniform 64-bit random number to a number below `end`. The result is the high half of the product of `random`
/// and `end`.
pub(crate) fn below(random: u64, end: u64) -> u64 {
    ((u128::from(random) * u128::from(end)) >> 64) as u64
}

/// Returns the element `number` of a sequence of nearly normally distributed numbers. Their mean is 0, and their
/// standard deviation is 1. Each element is a sum of twelve uniform numbers. The Box-Muller transform would need
/// logarithms and cosines, which round differently on different systems.
pub(crate) fn normal(seed: u64, number: u64) -> f32 {
    let words = (0..3).map(|part| mixed(seed ^ mixed(3 * number + part)));
    let sum: u64 = words.flat_map(|word| (0..4).map(move |place| word >> (16 * place) & 0xffff)).sum();
    ((sum as f64 + 6.0) / 65_536.0 - 6.0) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normal_numbers_have_mean_zero_and_deviation_one() {
        let numbers: Vec<f64> = (0..20_000).map(|number| normal(7, number).into()).collect();
        let mean = numbers.iter().sum::<f64>() / numbers.len() as f64;
        let square = numbers.iter().map(|x| x * x).sum::<f64>() / numbers.len() as f64;
        let within = numbers.iter().filter(|x| x.abs() < 1.0).count() as f64 / numbers.len() as f64;
        assert!(mean.abs() < 0.03 && (square - 1.0).abs() < 0.05, "{mean} {square}");
        assert!((within - 0.683).abs() < 0.02, "{within}");
        assert_ne!(normal(7, 1), normal(8, 1));
    }

    #[test]
    fn numbers_below_an_end_are_spread_evenly() {
        let mut counts = [0; 30];
        (0..3000).for_each(|number| counts[below(mixed(number), 30) as usize] += 1);
        assert!(counts.iter().all(|count| (60..140).contains(count)), "{counts:?}");
    }
}
