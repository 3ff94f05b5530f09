//! Messages along edges, and the cells of an array that holds one message per vertex.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use inshore_sortreduce::Value;
use zerocopy::{FromBytes, IntoBytes, KnownLayout};

/// A message of 4 or 8 bytes, stored in an atomic cell.
pub trait Message: Value + PartialEq {
    /// The type of an array's element that stores a message.
    type Cell: FromBytes + IntoBytes + KnownLayout + Sync;

    fn load(cell: &Self::Cell) -> Self;

    fn store(self, cell: &Self::Cell);

    /// Stores `self` in the cell if the cell holds `old`. Otherwise returns the message that the cell holds as an
    /// error.
    fn swap(self, cell: &Self::Cell, old: Self) -> std::result::Result<(), Self>;
}

macro_rules! message {
    ($message:ty, $cell:ty, $to_bits:expr, $from_bits:expr) => {
        impl Message for $message {
            type Cell = $cell;

            #[inline(always)]
            fn load(cell: &$cell) -> Self {
                $from_bits(cell.load(Ordering::Relaxed))
            }

            #[inline(always)]
            fn store(self, cell: &$cell) {
                cell.store($to_bits(self), Ordering::Relaxed);
            }

            #[inline(always)]
            fn swap(self, cell: &$cell, old: Self) -> std::result::Result<(), Self> {
                let (old, new) = ($to_bits(old), $to_bits(self));
                let swapped = cell.compare_exchange_weak(old, new, Ordering::Relaxed, Ordering::Relaxed);
                swapped.map(drop).map_err($from_bits)
            }
        }
    };
}

message!(u32, AtomicU32, std::convert::identity, std::convert::identity);
message!(u64, AtomicU64, std::convert::identity, std::convert::identity);
message!(f64, AtomicU64, f64::to_bits, f64::from_bits);
