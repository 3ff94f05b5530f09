//! The weights of edges, which only some programs read.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, cast::AsArray, types::Float64Type};
use inshore_kernel::Failure;

/// The weight of an edge: `()` for programs that read none, so that it takes no memory.
///
/// The order is that of numbers. If edges are equal, the smallest weight counts, as in an import.
pub(super) trait Weight: Copy + Ord {
    fn of(weight: f64) -> Self;
    fn get(self) -> f64;
    /// Returns the column of weights, if the edges have one.
    fn column(weights: impl Iterator<Item = Self>) -> Option<ArrayRef>;
    /// Reads the column of weights of `rows` rows.
    fn read(column: Option<&ArrayRef>, rows: usize) -> Result<Vec<Self>, Failure>;
}

impl Weight for () {
    fn of(_weight: f64) {}

    fn get(self) -> f64 {
        1.0
    }

    fn column(_weights: impl Iterator<Item = ()>) -> Option<ArrayRef> {
        None
    }

    fn read(_column: Option<&ArrayRef>, rows: usize) -> Result<Vec<()>, Failure> {
        Ok(vec![(); rows])
    }
}

/// A finite weight as an integer with the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Number(u64);

/// The sign of a 64-bit float.
const SIGN: u64 = 1 << 63;

impl Weight for Number {
    fn of(weight: f64) -> Number {
        let bits = weight.to_bits();
        Number(if bits & SIGN == 0 { bits | SIGN } else { !bits })
    }

    fn get(self) -> f64 {
        f64::from_bits(if self.0 & SIGN == 0 { !self.0 } else { self.0 & !SIGN })
    }

    fn column(weights: impl Iterator<Item = Number>) -> Option<ArrayRef> {
        Some(Arc::new(Float64Array::from_iter_values(weights.map(Weight::get))))
    }

    fn read(column: Option<&ArrayRef>, rows: usize) -> Result<Vec<Number>, Failure> {
        let weights = column.and_then(|column| column.as_primitive_opt::<Float64Type>());
        let weights =
            weights.filter(|weights| weights.len() == rows).ok_or("invalid rows: expected weights")?;
        Ok(weights.values().iter().copied().map(Number::of).collect())
    }
}
