//! The types of records: keys, values, and the operation that combines two values of one key.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::keys::word::Word;

/// A key of records: `u32`, `u64` or `u128`. Keys of 128 bits are, for example, k-mers of up to 63 bases, pairs of
/// ids, and addresses.
pub trait Key:
    Copy + Ord + Default + Send + Sync + 'static + FromBytes + IntoBytes + Immutable + KnownLayout
{
    /// The unsigned integer type of the difference of two keys.
    type Word: Word;
    /// The number of bits in a key.
    const BITS: u32;
    /// Converts the key to a number. Numbers have the same order as keys.
    fn to_word(self) -> Self::Word;
    /// Converts a result of [`Key::to_word`] back to the key. Higher bits than the key has are dropped.
    fn from_word(number: Self::Word) -> Self;
    /// Converts the key to a 64-bit number. Keys that do not fit 64 bits are converted to `u64::MAX`.
    fn to_u64(self) -> u64;
    /// Converts a 64-bit number to a key. Higher bits than the key has are dropped.
    fn from_u64(number: u64) -> Self;
}

macro_rules! impl_key {
    ($key:ty, $word:ty) => {
        impl Key for $key {
            type Word = $word;
            const BITS: u32 = <$key>::BITS;
            #[inline(always)]
            fn to_word(self) -> $word {
                <$word>::from(self)
            }
            #[inline(always)]
            fn from_word(number: $word) -> $key {
                number as $key
            }
            #[inline]
            fn to_u64(self) -> u64 {
                u64::try_from(self).unwrap_or(u64::MAX)
            }
            #[inline]
            fn from_u64(number: u64) -> $key {
                number as $key
            }
        }
    };
}

impl_key!(u32, u64);
impl_key!(u64, u64);
impl_key!(u128, u128);

/// Returns the largest key as a word.
pub(crate) fn key_max<K: Key>() -> K::Word {
    K::Word::MAX >> (K::Word::BITS - K::BITS)
}

/// A value of records: any plain bytes without padding, such as `u32`, `f64`, an array, or a struct with zerocopy's
/// derives. With the value `()`, the result is a set of keys.
pub trait Value:
    Copy + Default + Send + Sync + 'static + FromBytes + IntoBytes + Immutable + KnownLayout
{
}

impl<T> Value for T where
    T: Copy + Default + Send + Sync + 'static + FromBytes + IntoBytes + Immutable + KnownLayout
{
}

/// An associative and commutative operation that combines the values of a key.
///
/// The order and grouping in which a key's values are combined depend on the strategy, the budget and the number of
/// threads. Integer sums, minima, maxima and bit operations have the same result in any order. A sum of n
/// floating-point numbers may differ by a relative `n * f64::EPSILON` of the sum of their magnitudes.
pub trait Operation: Clone + Send + Sync + 'static {
    /// The type of the key by which records are sorted.
    type Key: Key;
    /// The type of the value that is combined.
    type Value: Value;
    /// Combines two values of one key.
    fn combine(&self, a: Self::Value, b: Self::Value) -> Self::Value;
    /// Combines two values of the key `_key`. Sort-reduce calls only this function. Override it if the operation
    /// reports errors with the key.
    #[inline(always)]
    fn combine_at(&self, _key: Self::Key, a: Self::Value, b: Self::Value) -> Self::Value {
        self.combine(a, b)
    }
    /// Returns whether all calls of the operation have succeeded, for example whether no sum overflowed. After a
    /// failure, no more runs are saved for a resumed sort-reduce.
    fn is_sound(&self) -> bool {
        true
    }
    /// Returns the neutral value, if there is one: `combine(neutral, value)` is `value`. A table that is filled with
    /// neutral values needs no test whether a value is present.
    fn neutral(&self) -> Option<Self::Value> {
        None
    }
    /// Returns the number of bits that suffices for each pushed value, if this number is small. Combined values may
    /// need more bits. The partition strategy stores a short value and the low bits of its key in one 32-bit word, if
    /// they fit, until values are combined. The word takes fewer bytes than a wide value.
    fn short_bits(&self) -> Option<u32> {
        None
    }
    /// Encodes a pushed value in the number of bits that [`Operation::short_bits`] returns. The function is called
    /// only if [`Operation::short_bits`] returns a number.
    fn shorten(&self, _value: Self::Value) -> u32 {
        0
    }
    /// Decodes a result of [`Operation::shorten`].
    fn lengthen(&self, _short: u32) -> Self::Value {
        Self::Value::default()
    }
}

/// A block of records in key order. The value of `keys[i]` is `values[i]`. Keys ascend strictly within a block and
/// from block to block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block<'a, K, V> {
    /// The keys of the records.
    pub keys: &'a [K],
    /// The values of the records, one for each key.
    pub values: &'a [V],
}

/// Returns the number of bytes of a record on flash and in a chunk.
pub(crate) const fn record_bytes<K, V>() -> usize {
    size_of::<K>() + size_of::<V>()
}

/// The layout of keys and values in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordLayout {
    pub key_bytes: usize,
    pub value_bytes: usize,
    pub value_align: usize,
    /// The result of [`crate::Operation::short_bits`].
    pub short_bits: Option<u32>,
}
