//! A register of words, with the operations that sorting needs.

use std::ops::BitOr;

/// The most lanes that a [`Vector`] has.
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

/// For each set of eight bits, the numbers of lanes with a clear bit in ascending order, then of those with a set one: a byte
/// each, the lowest first. A cache holds the 2 KiB of this table, but not one of whole vectors.
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

/// A number that is sorted: `u32` or `u64`.
pub(crate) trait Word: Copy + Ord + Default + BitOr<Output = Self> + 'static {
    /// Words of all ones (the largest), then of all zeros: a load that starts `n` words before the zeros has `n` lanes to fill.
    const EDGE: [Self; 2 * LANES_MAX];
    /// Returns the number below; `None` below zero.
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

/// [`Vector::LANES`] words in a register.
///
/// A value proves that the processor has the instructions of its type: the caller of [`Vector::load`] or [`Vector::splat`]
/// vouches for that, so all operations on values are safe.
///
/// If the processor only compares signed numbers, words are compared in another form: [`Vector::flip`] converts to this form and
/// back.
pub(crate) trait Vector: Copy {
    type Word: Word;
    /// Words in a register: a power of two of 2 or more.
    const LANES: usize;

    /// Loads the words from `from` on.
    ///
    /// # Safety
    /// The processor has the instructions, and `LANES` words can be read, aligned as words are.
    unsafe fn load(from: *const Self::Word) -> Self;

    /// Returns the same word in every lane.
    ///
    /// # Safety
    /// The processor has the instructions.
    unsafe fn splat(word: Self::Word) -> Self;

    /// Writes all words.
    ///
    /// # Safety
    /// `LANES` words can be written, aligned as words are.
    unsafe fn store(self, to: *mut Self::Word);

    /// Writes the first `count` words.
    ///
    /// # Safety
    /// `count` words, at most `LANES`, can be written, aligned as words are.
    #[inline(always)]
    unsafe fn store_first(self, to: *mut Self::Word, count: usize) {
        let mut words = [Self::Word::default(); LANES_MAX];
        // SAFETY: no vector has more lanes than the array words, and `count` of them can be written.
        unsafe {
            self.store(words.as_mut_ptr());
            to.copy_from_nonoverlapping(words.as_ptr(), count);
        }
    }

    /// Combines the bits of both.
    fn or(self, other: Self) -> Self;

    /// Converts words to the form in which they are compared, and back.
    fn flip(self) -> Self;

    /// Returns the smaller and the larger word of each lane, all in the form for comparing.
    fn min_max(self, other: Self) -> (Self, Self);

    /// Returns a bit for each lane that is greater than the one of `limit`, both in the form for comparing.
    fn above(self, limit: Self) -> usize;

    /// Returns the lanes whose bit is clear, then those whose bit is set, in order.
    fn split(self, bits: usize) -> Self;

    /// Swaps the lanes of `self` that have the bit `DISTANCE` in their number with the lanes of `other` that are `DISTANCE`
    /// lower. A second call undoes the first.
    fn exchange<const DISTANCE: usize>(self, other: Self) -> (Self, Self);

    /// Reverses each group of `GROUP` lanes.
    fn reverse<const GROUP: usize>(self) -> Self;

    /// Returns the lanes of `other` where the bit `DISTANCE` is in the lane's number, those of `self` elsewhere.
    fn choose<const DISTANCE: usize>(self, other: Self) -> Self;
}
