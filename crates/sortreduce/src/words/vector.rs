//! A register of words, with the operations that sorting needs.

use std::ops::BitOr;

/// The largest number of lanes of any [`Vector`].
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

/// For each set of eight bits, a permutation of the lanes: the numbers of the lanes with a clear bit in ascending
/// order, followed by those with a set bit. Each number is a byte, the first in the lowest byte. A cache holds the 2
/// KiB of this table, but would not hold a table of complete vectors.
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

/// A number that can be sorted: `u32` or `u64`.
pub(crate) trait Word: Copy + Ord + Default + BitOr<Output = Self> + 'static {
    /// Words of all ones (the largest word), followed by words of zeros. A load that starts `n` words before the first
    /// zero has `n` lanes of all ones.
    const EDGE: [Self; 2 * LANES_MAX];
    /// Returns the next smaller number, or `None` for zero.
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

/// A register that holds [`Vector::LANES`] words.
///
/// A value proves that the processor has the instructions of its type. The caller of [`Vector::load`] or
/// [`Vector::splat`] guarantees this, so all operations on values are safe.
///
/// If the processor only compares signed numbers, words are converted before they are compared: [`Vector::flip`]
/// converts them and converts them back.
pub(crate) trait Vector: Copy {
    type Word: Word;
    /// The number of words in a register: a power of two, at least 2.
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

    /// Writes all words.
    ///
    /// # Safety
    /// `LANES` words can be written to `to`, which is aligned for words.
    unsafe fn store(self, to: *mut Self::Word);

    /// Writes the first `count` words.
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

    /// Returns the bitwise or of both vectors.
    fn or(self, other: Self) -> Self;

    /// Converts words to the form in which they are compared, or back.
    fn flip(self) -> Self;

    /// Returns the smaller and the larger word of each lane; all words are in the form for comparing.
    fn min_max(self, other: Self) -> (Self, Self);

    /// Returns a mask with a bit for each lane whose word is greater than the word of `limit` there; both vectors are
    /// in the form for comparing.
    fn above(self, limit: Self) -> usize;

    /// Returns the lanes whose bit in `bits` is clear, followed by the lanes whose bit is set; both groups keep their
    /// order.
    fn split(self, bits: usize) -> Self;

    /// Swaps each lane of `self` whose number has the bit `DISTANCE` with the lane of `other` whose number is lower by
    /// `DISTANCE`. A second call undoes the first.
    fn exchange<const DISTANCE: usize>(self, other: Self) -> (Self, Self);

    /// Reverses the lanes in each group of `GROUP` lanes.
    fn reverse<const GROUP: usize>(self) -> Self;

    /// Returns the lane of `other` where the lane's number has the bit `DISTANCE`, and the lane of `self` elsewhere.
    fn choose<const DISTANCE: usize>(self, other: Self) -> Self;
}
