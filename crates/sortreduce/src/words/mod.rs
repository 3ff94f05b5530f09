//! Sorts words in place: most of the time of run formation and merging.
//!
//! - a word: a `u64`, such as a packed key and number.
//! - a vector: a register of words, see [`vector::Vector`]. Each instruction set has one; the processor's is selected at run
//!   time.
//!
//! [`quick`] splits words at pivots, whole vectors at a time, until 64 (AVX2) or 128 (AVX-512) are left, and [`network`] sorts
//! those in registers. After bad pivots the standard library's sort takes over, which bounds the time to O(n log n);
//! frequent words are removed in one step, so that few distinct words are sorted in few steps. The methods are those
//! of Bramas, "A Novel Hybrid
//! Quicksort Algorithm Vectorized using AVX-512" (2017), and of Blacher et al., "Vectorized and performance-portable Quicksort"
//! (2022).
//!
//! Sketch for n words: log2(n / 40) steps of 1 cycle per word, and a network of 3 to 5 cycles per word.
//!
//! Measured on one busy core of Zen 3 (AVX2), random words, nanoseconds of CPU time per word, medians of alternating runs:
//!
//! | words | this | vqsort (Highway, 2026-08) | standard library |
//! |---|---|---|---|
//! | 8 Ki | 9.7 | 10.9 | 16.1 |
//! | 64 Ki | 12.7 | 14.7 | 19.4 |
//! | 1 Mi | 12.5 | 13.4 | 17.7 |
//! | 16 Mi | 18.5 | 18.4 | 25.6 |
//!
//! AVX-512, on another machine: 9.0 ns at 64 Ki, where AVX2 takes 16.5 there and vqsort (by AVX-512) 7.9; 18.0, 27.6 and 14.4 at
//! 16 Mi. All tests check NEON under QEMU; it was not timed, for lack of such a machine.
//!
//! Quicksort, and not radix sort, needs no second array and does not depend on the distribution of keys. For slabs of evenly
//! spread keys one scatter comes first: see [`spread`].

mod network;
mod quick;
mod spread;
mod unique;
mod vector;

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(test)]
mod emulated;
#[cfg(target_arch = "aarch64")]
mod neon;
#[cfg(test)]
mod tests;

pub(crate) use spread::{ranges, sort_spread};
pub(crate) use unique::unique;

/// The instruction set for sorting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instructions {
    /// Instructions of every processor: the standard library's sort.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Instructions {
    /// All instruction sets for this architecture, the best last.
    const ALL: &[Instructions] = &[
        Instructions::Portable,
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2,
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512,
        #[cfg(target_arch = "aarch64")]
        Instructions::Neon,
    ];

    /// Tells whether this processor has the instructions; a few loads after the first call.
    #[inline]
    fn are_here(self) -> bool {
        match self {
            Instructions::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("bmi1")
                    && is_x86_feature_detected!("bmi2")
                    && is_x86_feature_detected!("popcnt")
            }
            #[cfg(target_arch = "x86_64")]
            Instructions::Avx512 => Instructions::Avx2.are_here() && is_x86_feature_detected!("avx512f"),
            #[cfg(target_arch = "aarch64")]
            Instructions::Neon => std::arch::is_aarch64_feature_detected!("neon"),
        }
    }

    /// Returns the best instruction set of this processor.
    #[inline]
    pub fn best() -> Instructions {
        let mut from_best = Self::ALL.iter().rev().copied();
        from_best.find(|instructions| instructions.are_here()).unwrap_or(Instructions::Portable)
    }
}

/// Returns the smallest and the largest of at least one word.
pub(crate) fn min_max(words: &[u64]) -> (u64, u64) {
    match Instructions::best() {
        // SAFETY: this processor has the instructions.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => unsafe { min_max_avx512(words) },
        // SAFETY: this processor has the instructions.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => unsafe { min_max_avx2(words) },
        _ => min_max_with(words),
    }
}

#[inline(always)]
fn min_max_with(words: &[u64]) -> (u64, u64) {
    words.iter().fold((u64::MAX, 0), |(min, max), &word| (min.min(word), max.max(word)))
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn min_max_avx2(words: &[u64]) -> (u64, u64) {
    min_max_with(words)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn min_max_avx512(words: &[u64]) -> (u64, u64) {
    min_max_with(words)
}

/// Sorts in ascending order, in O(n log n).
pub(crate) fn sort(words: &mut [u64]) {
    let end = u32::try_from(words.len()).expect("slabs have far fewer words");
    sort_parts(Instructions::best(), words, &[end]);
}

/// Sorts each part of `words`; `ends` are the places after the parts, in ascending order.
///
/// # Panics
/// If the processor does not have the instructions.
pub(crate) fn sort_parts(instructions: Instructions, words: &mut [u64], ends: &[u32]) {
    assert!(instructions.are_here(), "this processor has no {instructions:?}");
    match instructions {
        Instructions::Portable => parts(words, ends).for_each(<[u64]>::sort_unstable),
        // SAFETY: this processor has the instructions.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => unsafe { sort_parts_avx2(words, ends) },
        // SAFETY: this processor has the instructions.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => unsafe { sort_parts_avx512(words, ends) },
        // SAFETY: this processor has the instructions.
        #[cfg(target_arch = "aarch64")]
        Instructions::Neon => unsafe { sort_parts_neon(words, ends) },
    }
}

/// Iterates over the parts of `words` between `ends`.
#[inline(always)]
fn parts<'a>(mut words: &'a mut [u64], ends: &'a [u32]) -> impl Iterator<Item = &'a mut [u64]> {
    let mut start = 0;
    ends.iter().map(move |&end| {
        let part = words.split_off_mut(..(end - start) as usize).expect("ends ascend and are within");
        start = end;
        part
    })
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,bmi1,bmi2,popcnt")]
fn sort_parts_avx2(words: &mut [u64], ends: &[u32]) {
    for part in parts(words, ends) {
        // SAFETY: this function has the instructions.
        unsafe { quick::sort::<avx2::Avx2U64>(part) }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,bmi1,bmi2,popcnt")]
fn sort_parts_avx512(words: &mut [u64], ends: &[u32]) {
    for part in parts(words, ends) {
        // SAFETY: this function has the instructions.
        unsafe { quick::sort::<avx512::Avx512U64>(part) }
    }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn sort_parts_neon(words: &mut [u64], ends: &[u32]) {
    for part in parts(words, ends) {
        // SAFETY: this function has the instructions.
        unsafe { quick::sort::<neon::NeonU64>(part) }
    }
}
