//! Records: a key, a value, and the operation that combines two values of one key.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::keys::word::Word;

/// A key: `u32`, `u64`, or `u128` (k-mers of up to 63 bases, pairs of ids, addresses).
pub trait Key:
    Copy + Ord + Default + Send + Sync + 'static + FromBytes + IntoBytes + Immutable + KnownLayout
{
    /// What differences of keys are reckoned in.
    type Word: Word;
    /// Bits in a key.
    const BITS: u32;
    /// The key as a number, in the same order.
    fn to_word(self) -> Self::Word;
    /// The key that [`Key::to_word`] made `number` of; higher bits are cut off.
    fn from_word(number: Self::Word) -> Self;
    /// The key as a number, in the same order; `u64::MAX` for all that are larger.
    fn to_u64(self) -> u64;
    /// The key of a number; higher bits are cut off.
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

/// The largest key as a word.
pub(crate) fn key_max<K: Key>() -> K::Word {
    K::Word::MAX >> (K::Word::BITS - K::BITS)
}

/// A value: any plain bytes without padding, such as `u32`, `f64`, an array or a struct with zerocopy's
/// derives. `()` makes a set of keys.
pub trait Value:
    Copy + Default + Send + Sync + 'static + FromBytes + IntoBytes + Immutable + KnownLayout
{
}

impl<T> Value for T where
    T: Copy + Default + Send + Sync + 'static + FromBytes + IntoBytes + Immutable + KnownLayout
{
}

/// An associative and commutative operation on the values of one key.
///
/// In which order and grouping the values of a key are combined depends on strategy, budget and threads.
/// Integer sums, minima, maxima and bit operations give the same result for any order. A sum of n
/// floating-point numbers may differ by a relative `n * f64::EPSILON` of the sum of their magnitudes.
pub trait Operation: Clone + Send + Sync + 'static {
    /// What records are sorted by.
    type Key: Key;
    /// What is combined.
    type Value: Value;
    /// Combines two values of one key.
    fn combine(&self, a: Self::Value, b: Self::Value) -> Self::Value;
    /// Combines two values of this key: what sort-reduce calls. An operation whose errors name the key needs it.
    #[inline(always)]
    fn combine_at(&self, _key: Self::Key, a: Self::Value, b: Self::Value) -> Self::Value {
        self.combine(a, b)
    }
    /// Whether all went well so far, a sum did not overflow for example. If not, nothing is kept any more for a
    /// sort-reduce that goes on with this one.
    fn is_sound(&self) -> bool {
        true
    }
    /// A value that changes nothing: combined with it, on the left, any other stays what it is. Tables that begin with it need not
    /// ask whether there is a value yet.
    fn neutral(&self) -> Option<Self::Value> {
        None
    }
    /// How many bits tell each value that is pushed, where few do: what is combined of them may need more. Where these and the
    /// bits of a key within its bin are no more than 32, the partition strategy keeps both as one word until it combines, which
    /// is a fraction of what it would write of wide values.
    fn short_bits(&self) -> Option<u32> {
        None
    }
    /// A value that is pushed, in so many bits; asked for where [`Operation::short_bits`] says how many.
    fn shorten(&self, _value: Self::Value) -> u32 {
        0
    }
    /// The value of which [`Operation::shorten`] made `short`.
    fn lengthen(&self, _short: u32) -> Self::Value {
        Self::Value::default()
    }
}

/// Some records in order: `keys[i]` belongs to `values[i]`. Keys ascend strictly, also from block to block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block<'a, K, V> {
    /// The keys.
    pub keys: &'a [K],
    /// As many values.
    pub values: &'a [V],
}

/// Bytes of a record on flash and in a chunk.
pub(crate) const fn record_bytes<K, V>() -> usize {
    size_of::<K>() + size_of::<V>()
}

/// How keys and values lie in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    pub key_bytes: usize,
    pub value_bytes: usize,
    pub value_align: usize,
    /// [`crate::Operation::short_bits`].
    pub short_bits: Option<u32>,
}
