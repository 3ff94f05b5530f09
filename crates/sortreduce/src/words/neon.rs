//! Vectors in registers of 128 bits on aarch64 (NEON).

use std::arch::aarch64::*;

use super::vector::Vector;

/// A vector of two `u64`.
#[derive(Clone, Copy)]
pub(super) struct NeonU64(uint64x2_t);

/// Permutations of bytes, one for each mask of two bits. The permutation moves the lanes whose mask bit is 0 to the
/// front, and the lanes whose bit is 1 to the back.
static SPLIT_2: [[u8; 16]; 4] = {
    let same = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
    let swapped = [8, 9, 10, 11, 12, 13, 14, 15, 0, 1, 2, 3, 4, 5, 6, 7];
    [same, swapped, same, same]
};

// SAFETY, for all blocks on values: a value exists only if the processor has NEON (see `Vector`).
#[allow(clippy::undocumented_unsafe_blocks)]
impl Vector for NeonU64 {
    type Word = u64;
    const LANES: usize = 2;

    #[inline(always)]
    unsafe fn load(from: *const u64) -> Self {
        // SAFETY: the caller meets the function's safety conditions.
        NeonU64(unsafe { vld1q_u64(from) })
    }

    #[inline(always)]
    unsafe fn splat(word: u64) -> Self {
        // SAFETY: the caller meets the function's safety conditions.
        NeonU64(unsafe { vdupq_n_u64(word) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u64) {
        // SAFETY: the caller meets the function's safety conditions.
        unsafe { vst1q_u64(to, self.0) }
    }

    #[inline(always)]
    fn or(self, other: Self) -> Self {
        NeonU64(unsafe { vorrq_u64(self.0, other.0) })
    }

    #[inline(always)]
    fn flip(self) -> Self {
        self
    }

    #[inline(always)]
    fn min_max(self, other: Self) -> (Self, Self) {
        unsafe {
            let greater = vcgtq_u64(self.0, other.0);
            (NeonU64(vbslq_u64(greater, other.0, self.0)), NeonU64(vbslq_u64(greater, self.0, other.0)))
        }
    }

    #[inline(always)]
    fn above(self, limit: Self) -> usize {
        unsafe {
            let above = vcgtq_u64(self.0, limit.0);
            (vgetq_lane_u64::<0>(above) & 1 | vgetq_lane_u64::<1>(above) & 2) as usize
        }
    }

    #[inline(always)]
    fn split(self, bits: usize) -> Self {
        let bytes = &SPLIT_2[bits % 4];
        NeonU64(unsafe {
            vreinterpretq_u64_u8(vqtbl1q_u8(vreinterpretq_u8_u64(self.0), vld1q_u8(bytes.as_ptr())))
        })
    }

    #[inline(always)]
    fn exchange<const DISTANCE: usize>(self, other: Self) -> (Self, Self) {
        assert!(DISTANCE == 1, "there are 2 lanes");
        unsafe { (NeonU64(vtrn1q_u64(self.0, other.0)), NeonU64(vtrn2q_u64(self.0, other.0))) }
    }

    #[inline(always)]
    fn reverse<const GROUP: usize>(self) -> Self {
        assert!(GROUP == 2, "there are 2 lanes");
        NeonU64(unsafe { vextq_u64::<1>(self.0, self.0) })
    }

    #[inline(always)]
    fn choose<const DISTANCE: usize>(self, other: Self) -> Self {
        assert!(DISTANCE == 1, "there are 2 lanes");
        NeonU64(unsafe { vcombine_u64(vget_low_u64(self.0), vget_high_u64(other.0)) })
    }
}
