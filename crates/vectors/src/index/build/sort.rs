//! The sorts of a build: rows of vectors behind the number of a list or a group, an order in it, and another number.

use inshore_sortreduce::rows::{FixedRows, KeepAll, RowConfig, RowSort, SortedRows};
use zerocopy::IntoBytes;

use super::Build;
use crate::{Result, index::Clustered};

/// Bytes before the elements in a row of a sort: a number and an order of 4 bytes each, and a number of 8.
pub(super) const KEY_BYTES: usize = 16;

pub(super) type Sorter = RowSort<FixedRows, KeepAll>;

pub(super) type Sorted = SortedRows<FixedRows, KeepAll>;

impl<T: Clustered> Build<'_, T> {
    /// Starts a sort with the memory that the plan has for it.
    pub(super) fn sorter(&self, name: &'static str) -> Result<Sorter> {
        let shape = FixedRows::new(KEY_BYTES + self.row_bytes(), 0..KEY_BYTES);
        let config = RowConfig {
            memory_bytes: self.plan.sort_bytes,
            threads: self.plan.threads,
            name,
            ..RowConfig::default()
        };
        Ok(RowSort::new(self.job, shape, KeepAll, &config)?)
    }
}

/// Appends elements whose bytes may lie at any address.
pub(crate) fn add_elements<T: Clustered>(out: &mut Vec<T>, bytes: &[u8]) {
    let elements = bytes.chunks_exact(size_of::<T>());
    out.extend(elements.map(|bytes| T::read_from_bytes(bytes).expect("the bytes of one")));
}

/// Appends a row of a sort.
pub(super) fn push_row<T: Clustered>(
    out: &mut Vec<u8>,
    (number, order): (u32, u32),
    place: u64,
    elements: &[T],
) {
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&order.to_be_bytes());
    out.extend_from_slice(&place.to_be_bytes());
    out.extend_from_slice(elements.as_bytes());
}

/// Returns the numbers of a row of a sort: the list or group, the order in it, and the place.
pub(super) fn key_of(row: &[u8]) -> (u32, u32, u64) {
    let number = |at: usize| u32::from_be_bytes(row[at..at + 4].try_into().expect("four bytes"));
    (number(0), number(4), u64::from_be_bytes(row[8..KEY_BYTES].try_into().expect("eight bytes")))
}
