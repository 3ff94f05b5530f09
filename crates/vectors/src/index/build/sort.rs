//! The sorts of a build: rows of vectors behind the number of a list or a group, and a second number.

use inshore_sortreduce::rows::{FixedRows, KeepAll, RowConfig, RowSort, SortedRows};
use zerocopy::IntoBytes;

use super::Build;
use crate::{Result, index::Clustered};

/// Bytes before the elements in a row of a sort: a number of 4 bytes, and one of 8.
pub(super) const KEY_BYTES: usize = 12;

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
pub(super) fn add_elements<T: Clustered>(out: &mut Vec<T>, bytes: &[u8]) {
    let elements = bytes.chunks_exact(size_of::<T>());
    out.extend(elements.map(|bytes| T::read_from_bytes(bytes).expect("the bytes of one")));
}

/// Appends a row of a sort.
pub(super) fn push_row<T: Clustered>(out: &mut Vec<u8>, number: u32, place: u64, elements: &[T]) {
    out.extend_from_slice(&number.to_be_bytes());
    out.extend_from_slice(&place.to_be_bytes());
    out.extend_from_slice(elements.as_bytes());
}

/// Returns the two numbers of a row of a sort.
pub(super) fn key_of(row: &[u8]) -> (u32, u64) {
    let number = u32::from_be_bytes(row[..4].try_into().expect("four bytes"));
    (number, u64::from_be_bytes(row[4..KEY_BYTES].try_into().expect("eight bytes")))
}
