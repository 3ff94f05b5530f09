//! Vertices and values, as programs see them. Values are plain bits of a fixed width.

use crate::engine::{Message, State};

/// Names a vertex of one graph.
///
/// A vertex has two names. Its *original id*, of up to 64 bits, is the id in the imported file. Answers have original
/// ids. Its *dense number* is the index, from 0 on, of the original id among all original ids of the graph in ascending
/// order. Edges on flash consist of dense numbers. A `VertexId` stands for the dense number and hides its width. Two
/// vertices of one graph compare as their original ids do; vertices of different graphs are unrelated.
///
/// [`Graph::vertex_id`](crate::Graph::vertex_id) and [`Graph::original_id`](crate::Graph::original_id) convert from and
/// to original ids. [`VertexId::number`] returns the dense number, which is an index for arrays of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VertexId(u64);

impl VertexId {
    pub(crate) fn of_number(number: u32) -> VertexId {
        VertexId(number.into())
    }

    /// Returns the dense number: less than the number of the graph's vertices.
    pub fn number(self) -> u64 {
        self.0
    }

    /// Returns the dense number as the 32-bit number that rows store, if it is less than `vertices`.
    pub(crate) fn within(self, vertices: u64) -> Option<u32> {
        u32::try_from(self.0).ok().filter(|_| self.0 < vertices)
    }
}

/// Lets the engine store a type as plain bits. The engine copies and compares these bits, writes them to flash and
/// reads them back.
///
/// Every pattern of bits that `to_bits` returns must stand for its value: `from_bits(value.to_bits())` is the same
/// value. The engine checks the bytes that it reads back by checksums, and demands nothing else of the type, so no
/// implementation needs `unsafe`.
///
/// ```
/// use inshore_graph::program::FixedWidth;
///
/// #[derive(Clone, Copy, PartialEq, Debug)]
/// struct Seen { level: u32, is_hub: bool }
///
/// impl FixedWidth for Seen {
///     type Bits = u64;
///     fn to_bits(self) -> u64 {
///         u64::from(self.level) << 1 | u64::from(self.is_hub)
///     }
///     fn from_bits(bits: u64) -> Seen {
///         Seen { level: (bits >> 1) as u32, is_hub: bits & 1 == 1 }
///     }
/// }
///
/// let seen = Seen { level: 3, is_hub: true };
/// assert_eq!(Seen::from_bits(seen.to_bits()), seen);
/// ```
pub trait FixedWidth: Copy + Send + Sync + 'static {
    /// The bits: `u32`, `u64` or `[u64; 2]`.
    type Bits: Bits;

    /// Returns the bits of a value.
    fn to_bits(self) -> Self::Bits;

    /// Returns the value of bits that [`FixedWidth::to_bits`] returned.
    fn from_bits(bits: Self::Bits) -> Self;
}

/// Limits the width of a value to 4, 8 or 16 bytes. (In the 2018 thesis, section 9.5.3, values have 4 to 128 bits.)
pub trait Bits: sealed::Sealed + State + PartialEq {}

/// Limits the width of a message to 4 or 8 bytes, which a processor can exchange atomically.
pub trait MessageBits: Bits + Message {
    #[doc(hidden)]
    const RESERVED: Self;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u32 {}
    impl Sealed for u64 {}
    impl Sealed for [u64; 2] {}
}

impl Bits for u32 {}
impl Bits for u64 {}
impl Bits for [u64; 2] {}

impl MessageBits for u32 {
    const RESERVED: u32 = u32::MAX;
}
impl MessageBits for u64 {
    const RESERVED: u64 = u64::MAX;
}

macro_rules! fixed_width {
    ($type:ty, $bits:ty, $to_bits:expr, $from_bits:expr) => {
        impl FixedWidth for $type {
            type Bits = $bits;

            #[inline]
            fn to_bits(self) -> $bits {
                $to_bits(self)
            }

            #[inline]
            fn from_bits(bits: $bits) -> Self {
                $from_bits(bits)
            }
        }
    };
}

fixed_width!(u32, u32, std::convert::identity, std::convert::identity);
fixed_width!(u64, u64, std::convert::identity, std::convert::identity);
fixed_width!([u64; 2], [u64; 2], std::convert::identity, std::convert::identity);
fixed_width!(f32, u32, f32::to_bits, f32::from_bits);
fixed_width!(f64, u64, f64::to_bits, f64::from_bits);
// The encoding flips the sign bit, so that the greatest number, and not -1, has the reserved pattern in which all bits
// are set.
fixed_width!(i32, u32, |value: i32| value.cast_unsigned() ^ 1 << 31, |bits: u32| (bits ^ 1 << 31)
    .cast_signed());
fixed_width!(i64, u64, |value: i64| value.cast_unsigned() ^ 1 << 63, |bits: u64| (bits ^ 1 << 63)
    .cast_signed());
fixed_width!(VertexId, u64, VertexId::number, VertexId);
fixed_width!(
    Option<VertexId>,
    u64,
    |vertex: Option<VertexId>| vertex.map_or(u64::MAX, VertexId::number),
    |bits: u64| (bits != u64::MAX).then_some(VertexId(bits))
);
fixed_width!((u32, u32), u64, |(a, b): (u32, u32)| u64::from(a) << 32 | u64::from(b), |bits: u64| (
    (bits >> 32) as u32,
    bits as u32
));
fixed_width!((u64, u64), [u64; 2], |(a, b)| [a, b], |[a, b]: [u64; 2]| (a, b));
fixed_width!(
    (u64, Option<VertexId>),
    [u64; 2],
    |(number, vertex): (u64, Option<VertexId>)| [number, vertex.to_bits()],
    |[number, vertex]: [u64; 2]| (number, <Option<VertexId>>::from_bits(vertex))
);

#[cfg(test)]
mod tests {
    use super::*;

    fn comes_back<T: FixedWidth + PartialEq + std::fmt::Debug>(values: &[T]) {
        for &value in values {
            assert_eq!(T::from_bits(value.to_bits()), value);
        }
    }

    #[test]
    fn values_come_back_from_their_bits() {
        comes_back(&[0, 1, u32::MAX]);
        comes_back(&[i32::MIN, -1, 0, i32::MAX]);
        comes_back(&[i64::MIN, -1, 0, i64::MAX]);
        comes_back(&[0.0, -0.0, f64::INFINITY, f64::MIN_POSITIVE]);
        comes_back(&[1.5f32, f32::NEG_INFINITY]);
        comes_back(&[(7, 9), (u32::MAX, 0)]);
        comes_back(&[(7, 9), (u64::MAX, 0u64)]);
        comes_back(&[None, Some(VertexId::of_number(0)), Some(VertexId::of_number(u32::MAX - 1))]);
        comes_back(&[(1, None), (5, Some(VertexId::of_number(3)))]);
        assert_ne!((-1i64).to_bits(), u64::RESERVED);
    }

    #[test]
    fn an_id_of_another_graph_is_not_within() {
        let id = VertexId::of_number(7);
        assert_eq!((id.within(8), id.within(7)), (Some(7), None));
        assert_eq!(VertexId::from_bits(1 << 40).within(u64::MAX), None);
    }
}
