//! Vectors in registers of 512 bits on x86-64 (AVX-512).

use std::arch::x86_64::*;

use super::vector::{SPLIT_8, Vector};

/// A vector of eight `u64`.
#[derive(Clone, Copy)]
pub(super) struct Avx512U64(__m512i);

// SAFETY, for all blocks on values: a value exists only if the processor has AVX-512 F (see `Vector`).
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Avx512U64 {
    type Word = u64;
    const LANES: usize = 8;

    #[inline(always)]
    unsafe fn load(from: *const u64) -> Self {
        // SAFETY: the caller meets the function's safety conditions.
        Avx512U64(unsafe { _mm512_loadu_epi64(from.cast()) })
    }

    #[inline(always)]
    unsafe fn splat(word: u64) -> Self {
        // SAFETY: the caller meets the function's safety conditions.
        Avx512U64(unsafe { _mm512_set1_epi64(word as i64) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u64) {
        // SAFETY: the caller meets the function's safety conditions.
        unsafe { _mm512_storeu_epi64(to.cast(), self.0) }
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Avx512U64(unsafe { _mm512_or_si512(self.0, other.0) })
    }

    #[inline(always)]
    fn flip(self) -> Self {
        self
    }

    #[inline(always)]
    fn min_max(self, other: Self) -> (Self, Self) {
        let (a, b) = (self.0, other.0);
        unsafe { (Avx512U64(_mm512_min_epu64(a, b)), Avx512U64(_mm512_max_epu64(a, b))) }
    }

    #[inline(always)]
    fn above(self, limit: Self) -> usize {
        unsafe { _mm512_cmpgt_epu64_mask(self.0, limit.0).into() }
    }

    // The split does not use the instruction `vpcompressq`. It would be needed twice, once for each end, and is slow
    // with memory operands on Zen 4. Lane numbers are loaded as bytes of one word, which each lane shifts so that its
    // number is in the lowest bits. The permutation reads only three bits of each lane. On Intel's processors, an
    // instruction that widens bytes would use the same port as the permutation.
    #[inline(always)]
    fn split(self, bits: usize) -> Self {
        Avx512U64(unsafe {
            let all = _mm512_set1_epi64(SPLIT_8[bits % 256] as i64);
            let lanes = _mm512_srlv_epi64(all, _mm512_setr_epi64(0, 8, 16, 24, 32, 40, 48, 56));
            _mm512_permutexvar_epi64(lanes, self.0)
        })
    }

    #[inline(always)]
    fn exchange<const DISTANCE: usize>(self, other: Self) -> (Self, Self) {
        let (a, b) = (self.0, other.0);
        let (low, high) = unsafe {
            match DISTANCE {
                1 => (_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b)),
                2 => (
                    _mm512_mask_permutex_epi64::<0b01_00_01_00>(a, 0b1100_1100, b),
                    _mm512_mask_permutex_epi64::<0b11_10_11_10>(b, 0b0011_0011, a),
                ),
                4 => {
                    (_mm512_shuffle_i64x2::<0b01_00_01_00>(a, b), _mm512_shuffle_i64x2::<0b11_10_11_10>(a, b))
                }
                _ => unreachable!("lanes are at most 4 apart"),
            }
        };
        (Avx512U64(low), Avx512U64(high))
    }

    #[inline(always)]
    fn reverse<const GROUP: usize>(self) -> Self {
        Avx512U64(unsafe {
            match GROUP {
                2 => _mm512_permutex_epi64::<0b10_11_00_01>(self.0),
                4 => _mm512_permutex_epi64::<0b00_01_10_11>(self.0),
                8 => {
                    let fours = _mm512_permutex_epi64::<0b00_01_10_11>(self.0);
                    _mm512_shuffle_i64x2::<0b01_00_11_10>(fours, fours)
                }
                _ => unreachable!("there are 8 lanes"),
            }
        })
    }

    #[inline(always)]
    fn choose<const DISTANCE: usize>(self, other: Self) -> Self {
        let others = match DISTANCE {
            1 => 0b1010_1010,
            2 => 0b1100_1100,
            4 => 0b1111_0000,
            _ => unreachable!("lanes are at most 4 apart"),
        };
        Avx512U64(unsafe { _mm512_mask_blend_epi64(others, self.0, other.0) })
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut u64, count: usize) {
        // SAFETY: the caller meets the function's safety conditions; lanes from `count` on are not written.
        unsafe { _mm512_mask_storeu_epi64(to.cast(), ((1u32 << count) - 1) as u8, self.0) }
    }
}
