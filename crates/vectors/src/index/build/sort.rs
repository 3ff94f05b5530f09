//! The sorts of a build. A row consists of a key and the elements of a vector. The key consists of the number of a list
//! or a group, a number that orders the vectors within it, and a third number that distinguishes rows.

use inshore_sortreduce::rows::{FixedRows, KeepAll, RowConfig, RowSort, SortedRows};
use inshore_store::Keep;
use zerocopy::IntoBytes;

use super::Build;
use crate::{Result, index::Clustered};

/// The size, in bytes, of the key before the elements of a row. The key has two numbers of 4 bytes each, and a number
/// of 8 bytes.
pub(super) const KEY_BYTES: usize = 16;

pub(super) type Sorter = RowSort<FixedRows, KeepAll>;

pub(super) type Sorted = SortedRows<FixedRows, KeepAll>;

impl<T: Clustered> Build<'_, T> {
    /// Starts a sort with the memory that the plan has for it. Its runs go to `keep`, and begin with those that are
    /// there.
    pub(super) fn sorter(&self, name: &'static str, keep: Option<&Keep>) -> Result<Sorter> {
        let shape = FixedRows::new(KEY_BYTES + self.row_bytes(), 0..KEY_BYTES);
        let config = RowConfig {
            memory_bytes: self.plan.sort_bytes,
            threads: self.plan.threads,
            name,
            keep: keep.cloned(),
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

/// Appends a row of a sort. The row consists of a key and the elements of a vector.
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

/// Returns the three numbers of the key of a row.
pub(super) fn key_of(row: &[u8]) -> (u32, u32, u64) {
    let number = |at: usize| u32::from_be_bytes(row[at..at + 4].try_into().expect("four bytes"));
    (number(0), number(4), u64::from_be_bytes(row[8..KEY_BYTES].try_into().expect("eight bytes")))
}

/// Reads the rows of a finished sort, one after the other.
pub(super) struct Entries<'a> {
    sorted: &'a mut Sorted,
    entry_bytes: usize,
    piece: Vec<u8>,
    filled: usize,
    at: usize,
}

impl<'a> Entries<'a> {
    /// The memory of the buffer in bytes.
    pub const BYTES: usize = 1 << 19;

    /// Creates a reader. The elements of a row have `row_bytes` bytes.
    pub fn new(sorted: &'a mut Sorted, row_bytes: usize) -> Entries<'a> {
        let entry_bytes = KEY_BYTES + row_bytes;
        let piece = vec![0; (Entries::BYTES / entry_bytes).max(1) * entry_bytes];
        let (filled, at) = (piece.len(), piece.len());
        Entries { sorted, entry_bytes, piece, filled, at }
    }

    /// Returns the next row, which has a key and the elements of a vector. Returns `None` at the end.
    pub fn peek(&mut self) -> Result<Option<&[u8]>> {
        if self.at == self.filled && self.filled == self.piece.len() {
            (self.filled, self.at) = (self.sorted.fill(&mut self.piece)?, 0);
        }
        let end = self.at + self.entry_bytes;
        Ok((end <= self.filled).then(|| &self.piece[self.at..end]))
    }

    /// Goes to the row behind the one that [`Self::peek`] returned.
    pub fn advance(&mut self) {
        self.at += self.entry_bytes;
    }
}
