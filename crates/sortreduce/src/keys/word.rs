//! The types of words. A word is an unsigned integer that can represent the difference of two keys.

use std::{
    fmt::Debug,
    ops::{Add, Shr, Sub},
};

/// An unsigned integer that can represent every difference of two keys: `u128` for keys of 128 bits, and `u64` for
/// narrower keys. The support of wide keys therefore does not make narrow keys slower.
pub trait Word:
    Copy
    + Ord
    + Debug
    + Send
    + Sync
    + From<u64>
    + Add<Output = Self>
    + Sub<Output = Self>
    + Shr<u32, Output = Self>
    + 'static
{
    /// The number of bits in a word.
    const BITS: u32;
    /// The largest word.
    const MAX: Self;
    /// Returns the lowest 64 bits.
    fn low(self) -> u64;
    /// Folds the word to 64 bits. Equal words have equal results.
    fn fold(self) -> u64;
    /// Returns the number of significant bits.
    fn bits(self) -> u32;
    /// Returns the sum, or [`Word::MAX`] on overflow.
    fn saturating_add(self, other: Self) -> Self;
    /// Returns the difference, or 0 if `other` is greater.
    fn saturating_sub(self, other: Self) -> Self;
}

macro_rules! impl_word {
    ($word:ty) => {
        impl Word for $word {
            const BITS: u32 = <$word>::BITS;
            const MAX: $word = <$word>::MAX;
            #[inline(always)]
            fn low(self) -> u64 {
                self as u64
            }
            #[inline(always)]
            fn fold(self) -> u64 {
                self as u64 ^ u128::from(self).wrapping_shr(64) as u64
            }
            #[inline(always)]
            fn bits(self) -> u32 {
                <$word>::BITS - self.leading_zeros()
            }
            #[inline(always)]
            fn saturating_add(self, other: $word) -> $word {
                <$word>::saturating_add(self, other)
            }
            #[inline(always)]
            fn saturating_sub(self, other: $word) -> $word {
                <$word>::saturating_sub(self, other)
            }
        }
    };
}

impl_word!(u64);
impl_word!(u128);
