//! Sorts words in place. Run formation and merging spend most of their time in this sort.
//!
//! - A word is a `u64`, for example a packed key and record number.
//! - A vector is a register of words, see [`vector::Vector`]. Each instruction set has a vector type. The best
//!   instruction set of the processor is selected at run time.
//!
//! [`quick`] is a quicksort that splits words at pivots, one vector at a time. It stops at parts of 64 (AVX2) or 128
//! (AVX-512) words, which [`network`] sorts in registers. After too many bad pivots, the standard library's sort is
//! used, which bounds the time to O(n log n). Words that are equal to a frequent pivot are excluded in one step, so
//! that few distinct words are sorted in few steps. The methods are from Bramas, "A Novel Hybrid Quicksort Algorithm
//! Vectorized using AVX-512" (2017), and from Blacher et al., "Vectorized and performance-portable Quicksort" (2022).
//!
//! A sort of n words takes log2(n / 40) partition steps of 1 cycle per word each, and a network of 3 to 5 cycles per
//! word.
//!
//! The table shows CPU nanoseconds per word for random words on one busy core of Zen 3 (AVX2). The numbers are
//! medians of alternating measurements:
//!
//! | words | this module | vqsort (Highway, 2026-08) | standard library |
//! |---|---|---|---|
//! | 8 Ki | 9.7 | 10.9 | 16.1 |
//! | 64 Ki | 12.7 | 14.7 | 19.4 |
//! | 1 Mi | 12.5 | 13.4 | 17.7 |
//! | 16 Mi | 18.5 | 18.4 | 25.6 |
//!
//! On another machine, the sort of 64 Ki words takes 9.0 ns per word with AVX-512, and 16.5 ns with AVX2; vqsort
//! (with AVX-512) takes 7.9 ns. For 16 Mi words, the times are 18.0, 27.6 and 14.4 ns. NEON passes all tests under
//! QEMU, but was not timed, since no machine with NEON was available.
//!
//! Unlike radix sort, quicksort needs no second array and does not depend on the distribution of keys. If keys are
//! spread evenly, a scatter precedes the sort; see [`spread`].

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

/// An instruction set for which this module has a sort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Instructions {
    /// No special instructions: the standard library's sort is used.
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon,
}

impl Instructions {
    /// All instruction sets for this architecture, from the slowest to the fastest.
    const ALL: &[Instructions] = &[
        Instructions::Portable,
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2,
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512,
        #[cfg(target_arch = "aarch64")]
        Instructions::Neon,
    ];

    /// Returns whether this processor has the instruction set. After the first call, a call takes only a few loads.
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

/// Returns the smallest and the largest word. There must be at least one word.
pub(crate) fn min_max(words: &[u64]) -> (u64, u64) {
    match Instructions::best() {
        // SAFETY: this processor has AVX-512.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => unsafe { min_max_avx512(words) },
        // SAFETY: this processor has AVX2.
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

/// Sorts words in ascending order, in O(n log n) time.
pub(crate) fn sort(words: &mut [u64]) {
    let end = u32::try_from(words.len()).expect("slabs have far fewer words");
    sort_parts(Instructions::best(), words, &[end]);
}

/// Sorts each part of `words`. `ends` contains the end indices of the parts, in ascending order.
///
/// # Panics
/// The function panics if the processor does not have the instruction set.
pub(crate) fn sort_parts(instructions: Instructions, words: &mut [u64], ends: &[u32]) {
    assert!(instructions.are_here(), "this processor has no {instructions:?}");
    match instructions {
        Instructions::Portable => parts(words, ends).for_each(<[u64]>::sort_unstable),
        // SAFETY: this processor has AVX2.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx2 => unsafe { sort_parts_avx2(words, ends) },
        // SAFETY: this processor has AVX-512.
        #[cfg(target_arch = "x86_64")]
        Instructions::Avx512 => unsafe { sort_parts_avx512(words, ends) },
        // SAFETY: this processor has NEON.
        #[cfg(target_arch = "aarch64")]
        Instructions::Neon => unsafe { sort_parts_neon(words, ends) },
    }
}

/// Iterates over the parts of `words`, which end at the indices `ends`.
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
        // SAFETY: `target_feature` guarantees AVX2.
        unsafe { quick::sort::<avx2::Avx2U64>(part) }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx2,bmi1,bmi2,popcnt")]
fn sort_parts_avx512(words: &mut [u64], ends: &[u32]) {
    for part in parts(words, ends) {
        // SAFETY: `target_feature` guarantees AVX-512.
        unsafe { quick::sort::<avx512::Avx512U64>(part) }
    }
}

#[cfg(target_arch = "aarch64")]
#[target_feature(enable = "neon")]
fn sort_parts_neon(words: &mut [u64], ends: &[u32]) {
    for part in parts(words, ends) {
        // SAFETY: `target_feature` guarantees NEON.
        unsafe { quick::sort::<neon::NeonU64>(part) }
    }
}
