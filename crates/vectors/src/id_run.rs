//! Runs of ids on flash. A run is a sequence of consecutive rows with consecutive ids.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned, little_endian::U64};

/// The largest id of a vector.
pub(crate) const ID_MAX: u64 = (1 << 62) - 1;

/// A run, as it is stored on flash and in memory. It consists of the number of its first row, and of the id of this
/// row. The run ends before the next run begins.
#[derive(Clone, Copy, Debug, PartialEq, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub(crate) struct IdRun {
    pub row: U64,
    pub id: U64,
}

impl IdRun {
    pub const BYTES: u64 = size_of::<IdRun>() as u64;

    pub fn new(row: u64, id: u64) -> IdRun {
        IdRun { row: row.into(), id: id.into() }
    }
}
