//! Records: a key, a value, and the operation that combines two values of one key.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A key: `u32` or `u64`.
pub trait Key:
    Copy + Ord + Default + Send + Sync + 'static + FromBytes + IntoBytes + Immutable + KnownLayout
{
    /// Bits in a key.
    const BITS: u32;
    /// The key as a number, in the same order.
    fn to_u64(self) -> u64;
    /// The key that [`Key::to_u64`] made `number` of; higher bits are cut off.
    fn from_u64(number: u64) -> Self;
}

impl Key for u32 {
    const BITS: u32 = 32;
    #[inline]
    fn to_u64(self) -> u64 {
        self.into()
    }
    #[inline]
    fn from_u64(number: u64) -> Self {
        number as u32
    }
}

impl Key for u64 {
    const BITS: u32 = 64;
    #[inline]
    fn to_u64(self) -> u64 {
        self
    }
    #[inline]
    fn from_u64(number: u64) -> Self {
        number
    }
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
