//! Records: a key, a value, and the operation that combines two values of one key.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::keys::word::Word;

/// Defines a key: `u32`, `u64`, or `u128` (k-mers of up to 63 bases, pairs of ids, addresses).
pub trait Key:
    Copy + Ord + Default + Send + Sync + 'static + FromBytes + IntoBytes + Immutable + KnownLayout
{
    /// The type that holds the difference of two keys.
    type Word: Word;
    /// The number of bits in a key.
    const BITS: u32;
    /// Returns the key as a number; numbers have the same order as keys.
    fn to_word(self) -> Self::Word;
    /// Returns the key from which [`Key::to_word`] made `number`; drops higher bits.
    fn from_word(number: Self::Word) -> Self;
    /// Returns the key as a number in the same order, or `u64::MAX` for all larger keys.
    fn to_u64(self) -> u64;
    /// Returns the key of a number; drops higher bits.
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

/// Defines a value: any plain bytes without padding, such as `u32`, `f64`, an array or a struct with zerocopy's
/// derives. `()` makes a set of keys.
pub trait Value:
    Copy + Default + Send + Sync + 'static + FromBytes + IntoBytes + Immutable + KnownLayout
{
}

impl<T> Value for T where
    T: Copy + Default + Send + Sync + 'static + FromBytes + IntoBytes + Immutable + KnownLayout
{
}

/// Defines an associative and commutative operation on the values of one key.
///
/// The order and grouping in which the values of a key are combined depend on strategy, budget and threads. Integer sums, minima,
/// maxima and bit operations give the same result for any order. A sum of n floating-point numbers may differ by a relative `n *
/// f64::EPSILON` of the sum of their magnitudes.
pub trait Operation: Clone + Send + Sync + 'static {
    /// The type of the key by which records are sorted.
    type Key: Key;
    /// The type of the value that is combined.
    type Value: Value;
    /// Combines two values of one key.
    fn combine(&self, a: Self::Value, b: Self::Value) -> Self::Value;
    /// Combines two values of the key `_key`; sort-reduce calls this function. Override this function if errors of the
    /// operation name the key.
    #[inline(always)]
    fn combine_at(&self, _key: Self::Key, a: Self::Value, b: Self::Value) -> Self::Value {
        self.combine(a, b)
    }
    /// Tells whether the operation has succeeded so far, for example whether no sum overflowed. After a failure, no
    /// more runs are kept for a resumed sort-reduce.
    fn is_sound(&self) -> bool {
        true
    }
    /// Returns a neutral value, if there is one: `combine(neutral, value)` is `value`. A table that is filled with
    /// neutral values needs no test whether a value is present.
    fn neutral(&self) -> Option<Self::Value> {
        None
    }
    /// Returns a number of bits that suffices for each pushed value, if the number is small; combined values may need
    /// more bits. If the short value and a key within its bin have at most 32 bits together, the partition strategy
    /// keeps both as one 32-bit word until values are combined. The 32-bit word takes a fraction of the bytes of a wide
    /// value.
    fn short_bits(&self) -> Option<u32> {
        None
    }
    /// Returns a pushed value in the number of bits that [`Operation::short_bits`] returns; the function is called only
    /// if [`Operation::short_bits`] returns a number.
    fn shorten(&self, _value: Self::Value) -> u32 {
        0
    }
    /// Returns the value from which [`Operation::shorten`] made `short`.
    fn lengthen(&self, _short: u32) -> Self::Value {
        Self::Value::default()
    }
}

/// Records in key order: `keys[i]` belongs to `values[i]`. Keys ascend strictly within a block and from block to block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block<'a, K, V> {
    /// Keys of the records.
    pub keys: &'a [K],
    /// Values of the records, as many as keys.
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
    /// The number of bits that suffices for a pushed value; see [`crate::Operation::short_bits`].
    pub short_bits: Option<u32>,
}
