//! Vectors in registers of 256 bits on x86-64 (AVX2).

use std::arch::x86_64::*;

use super::vector::Vector;

/// A vector of four `u64`. Comparisons flip the highest bit, since AVX2 only compares signed numbers.
#[derive(Clone, Copy)]
pub(super) struct Avx2U64(__m256i);

/// Permutations of 32-bit halves, one for each mask of four bits. The permutation moves the lanes whose mask bit is 0
/// to the front, and the lanes whose bit is 1 to the back.
static SPLIT_U64: [[u32; 8]; 16] = {
    let mut table = [[0; 8]; 16];
    let mut bits = 0;
    while bits < 16 {
        let (mut place, mut pass) = (0, 0);
        while pass < 2 {
            let mut lane = 0;
            while lane < 4 {
                if bits >> lane & 1 == pass {
                    table[bits][place] = 2 * lane;
                    table[bits][place + 1] = 2 * lane + 1;
                    place += 2;
                }
                lane += 1;
            }
            pass += 1;
        }
        bits += 1;
    }
    table
};

// SAFETY, for all blocks on values: a value exists only if the processor has AVX2 (see `Vector`).
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for Avx2U64 {
    type Word = u64;
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn load(from: *const u64) -> Self {
        // SAFETY: the caller meets the function's safety conditions.
        Avx2U64(unsafe { _mm256_loadu_si256(from.cast()) })
    }

    #[inline(always)]
    unsafe fn splat(word: u64) -> Self {
        // SAFETY: the caller meets the function's safety conditions.
        Avx2U64(unsafe { _mm256_set1_epi64x(word as i64) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u64) {
        // SAFETY: the caller meets the function's safety conditions.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) }
    }

    #[inline(always)]
    unsafe fn store_first(self, to: *mut u64, count: usize) {
        // SAFETY: the caller meets the function's safety conditions; lanes from `count` on are not written.
        unsafe {
            let lanes = _mm256_setr_epi64x(0, 1, 2, 3);
            let mask = _mm256_cmpgt_epi64(_mm256_set1_epi64x(count as i64), lanes);
            _mm256_maskstore_epi64(to.cast(), mask, self.0);
        }
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        Avx2U64(unsafe { _mm256_or_si256(self.0, other.0) })
    }

    #[inline(always)]
    fn flip(self) -> Self {
        Avx2U64(unsafe { _mm256_xor_si256(self.0, _mm256_set1_epi64x(i64::MIN)) })
    }

    #[inline(always)]
    fn min_max(self, other: Self) -> (Self, Self) {
        unsafe {
            let greater = _mm256_castsi256_pd(_mm256_cmpgt_epi64(self.0, other.0));
            let (a, b) = (_mm256_castsi256_pd(self.0), _mm256_castsi256_pd(other.0));
            (
                Avx2U64(_mm256_castpd_si256(_mm256_blendv_pd(a, b, greater))),
                Avx2U64(_mm256_castpd_si256(_mm256_blendv_pd(b, a, greater))),
            )
        }
    }

    #[inline(always)]
    fn above(self, limit: Self) -> usize {
        unsafe { _mm256_movemask_pd(_mm256_castsi256_pd(_mm256_cmpgt_epi64(self.0, limit.0))) as usize }
    }

    #[inline(always)]
    fn split(self, bits: usize) -> Self {
        let lanes = &SPLIT_U64[bits % 16];
        Avx2U64(unsafe { _mm256_permutevar8x32_epi32(self.0, _mm256_loadu_si256(lanes.as_ptr().cast())) })
    }

    #[inline(always)]
    fn exchange<const DISTANCE: usize>(self, other: Self) -> (Self, Self) {
        let (a, b) = (self.0, other.0);
        let (low, high) = unsafe {
            match DISTANCE {
                1 => (_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b)),
                2 => (_mm256_permute2x128_si256::<0x20>(a, b), _mm256_permute2x128_si256::<0x31>(a, b)),
                _ => unreachable!("lanes are at most 2 apart"),
            }
        };
        (Avx2U64(low), Avx2U64(high))
    }

    #[inline(always)]
    fn reverse<const GROUP: usize>(self) -> Self {
        Avx2U64(unsafe {
            match GROUP {
                2 => _mm256_shuffle_epi32::<0b01_00_11_10>(self.0),
                4 => _mm256_permute4x64_epi64::<0b00_01_10_11>(self.0),
                _ => unreachable!("there are 4 lanes"),
            }
        })
    }

    #[inline(always)]
    fn choose<const DISTANCE: usize>(self, other: Self) -> Self {
        Avx2U64(unsafe {
            match DISTANCE {
                1 => _mm256_blend_epi32::<0b1100_1100>(self.0, other.0),
                2 => _mm256_blend_epi32::<0b1111_0000>(self.0, other.0),
                _ => unreachable!("lanes are at most 2 apart"),
            }
        })
    }
}
