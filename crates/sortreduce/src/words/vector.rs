//! Vectors (registers of words), with the operations that a sort needs.

use std::ops::BitOr;

/// The maximum number of lanes of a [`Vector`].
pub(super) const LANES_MAX: usize = 16;

macro_rules! edge {
    ($word:ty) => {{
        let mut edge = [0; 2 * LANES_MAX];
        let mut lane = 0;
        while lane < LANES_MAX {
            edge[lane] = <$word>::MAX;
            lane += 1;
        }
        edge
    }};
}

/// Permutations of eight lanes, one for each mask of eight bits. A permutation lists the numbers of the lanes whose
/// mask bit is 0, and then those of the lanes whose bit is 1. Each lane number is a byte, and the first number is in
/// the lowest byte. The table has 2 KiB and stays in the cache, whereas a table of complete vectors would not.
pub(super) static SPLIT_8: [u64; 256] = {
    let mut table = [0; 256];
    let mut bits = 0;
    while bits < 256 {
        let (mut place, mut pass) = (0, 0);
        while pass < 2 {
            let mut lane = 0;
            while lane < 8 {
                if bits as u64 >> lane & 1 == pass {
                    table[bits] |= lane << (8 * place);
                    place += 1;
                }
                lane += 1;
            }
            pass += 1;
        }
        bits += 1;
    }
    table
};

/// An integer type that can be sorted: `u32` or `u64`.
pub(crate) trait Word: Copy + Ord + Default + BitOr<Output = Self> + 'static {
    /// `LANES_MAX` times the largest word, followed by zeros. A vector that is loaded from `n` words before the first
    /// zero has the largest word in its first `n` lanes.
    const EDGE: [Self; 2 * LANES_MAX];
    /// Returns the number that is smaller by one, or `None` for zero.
    fn below(self) -> Option<Self>;
}

impl Word for u32 {
    const EDGE: [Self; 2 * LANES_MAX] = edge!(Self);
    fn below(self) -> Option<Self> {
        self.checked_sub(1)
    }
}

impl Word for u64 {
    const EDGE: [Self; 2 * LANES_MAX] = edge!(Self);
    fn below(self) -> Option<Self> {
        self.checked_sub(1)
    }
}

/// A register of [`Vector::LANES`] words.
///
/// A value of this type exists only if the processor has the instructions of the type. The callers of
/// [`Vector::load`] and [`Vector::splat`] guarantee this condition, so all operations on values are safe.
///
/// If the processor only compares signed numbers, words must be converted before a comparison. [`Vector::flip`]
/// converts words to this form and back.
pub(crate) trait Vector: Copy {
    type Word: Word;
    /// The number of words in a register. The number is a power of two, and at least 2.
    const LANES: usize;

    /// Loads the `LANES` words that start at `from`.
    ///
    /// # Safety
    /// The processor has the instructions of `Self`. `LANES` words can be read from `from`, which is aligned for words.
    unsafe fn load(from: *const Self::Word) -> Self;

    /// Returns a vector with the same word in every lane.
    ///
    /// # Safety
    /// The processor has the instructions of `Self`.
    unsafe fn splat(word: Self::Word) -> Self;

    /// Writes all words to memory from `to` on.
    ///
    /// # Safety
    /// `LANES` words can be written to `to`, which is aligned for words.
    unsafe fn store(self, to: *mut Self::Word);

    /// Writes the first `count` words to memory from `to` on.
    ///
    /// # Safety
    /// `count` is at most `LANES`, and `count` words can be written to `to`, which is aligned for words.
    #[inline(always)]
    unsafe fn store_first(self, to: *mut Self::Word, count: usize) {
        let mut words = [Self::Word::default(); LANES_MAX];
        // SAFETY: the array has at least as many words as any vector has lanes, and `count` words can be written.
        unsafe {
            self.store(words.as_mut_ptr());
            to.copy_from_nonoverlapping(words.as_ptr(), count);
        }
    }

    /// Returns the bitwise OR of both vectors.
    fn or(self, other: Self) -> Self;

    /// Converts words to the form that comparisons require, or back.
    fn flip(self) -> Self;

    /// Returns the smaller word of each lane, and the larger word of each lane. All words must be in the form that
    /// comparisons require.
    fn min_max(self, other: Self) -> (Self, Self);

    /// Returns a mask with a bit for each lane. The bit is 1 if the lane's word is greater than the same lane's word
    /// in `limit`. Both vectors must be in the form that comparisons require.
    fn above(self, limit: Self) -> usize;

    /// Moves the lanes whose bit in `bits` is 0 to the front, and the lanes whose bit is 1 to the back. Each group of
    /// lanes keeps its order.
    fn split(self, bits: usize) -> Self;

    /// Swaps each lane of `self` whose number has the bit `DISTANCE` with the lane of `other` whose number is lower
    /// by `DISTANCE`. A second call reverses the first call.
    fn exchange<const DISTANCE: usize>(self, other: Self) -> (Self, Self);

    /// Reverses the lanes in each group of `GROUP` lanes.
    fn reverse<const GROUP: usize>(self) -> Self;

    /// Returns the lanes of `other` whose number has the bit `DISTANCE`, and the other lanes of `self`.
    fn choose<const DISTANCE: usize>(self, other: Self) -> Self;
}
