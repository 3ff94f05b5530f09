//! The form of the codes of an index, from which the sizes and the places of codes follow.

use std::ops::Range;

use super::rotation::{MULTIPLE, Rotation};
use crate::index::directory::Directory;

/// The numbers of bits that a code may have for each dimension.
pub const CODE_BITS: [u32; 3] = [1, 2, 4];
/// The size, in bytes, of the beginning of a list, which holds the squared norm of the centroid.
pub(super) const HEAD_BYTES: u64 = 8;
/// The size, in bytes, of the factors of a vector.
pub(super) const FACTOR_BYTES: usize = 12;

/// The form of the codes of an index.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Shape {
    pub bits: u32,
    pub dimensions: usize,
    /// The size of a row number in bytes.
    pub id_bytes: usize,
}

impl Shape {
    /// Returns the number of dimensions after padding.
    pub(super) fn padded(&self) -> usize {
        self.dimensions.next_multiple_of(MULTIPLE)
    }

    pub(super) fn code_bytes(&self) -> usize {
        self.padded() * self.bits as usize / 8
    }

    /// Returns the size, in bytes, of a code with its factors and its row number.
    pub fn entry_bytes(&self) -> u64 {
        (self.code_bytes() + FACTOR_BYTES + self.id_bytes) as u64
    }

    /// Returns the number that is subtracted from a value, so that values are symmetric around zero.
    pub(super) fn half(&self) -> f64 {
        f64::from((1u32 << self.bits) - 1) / 2.0
    }

    /// Returns the size of the file of codes in bytes.
    pub fn file_bytes(&self, vectors: u64, lists: u64) -> u64 {
        vectors * self.entry_bytes() + lists * HEAD_BYTES
    }

    /// Returns the size, in bytes, of a list of `vectors` vectors.
    pub fn list_bytes(&self, vectors: u64) -> u64 {
        HEAD_BYTES + vectors * self.entry_bytes()
    }

    /// Returns the byte range of adjacent lists in the file.
    pub(super) fn range_of(&self, lists: Range<u32>, directory: &Directory) -> Range<u64> {
        let start = |list: u32, place: u64| place * self.entry_bytes() + u64::from(list) * HEAD_BYTES;
        let (first, last) = (directory.places_of(lists.start), directory.places_of(lists.end - 1));
        start(lists.start, first.start)..start(lists.end, last.end)
    }

    /// Returns the memory, in bytes, of [`Codes`] without the file.
    pub fn fixed_bytes(&self) -> u64 {
        Rotation::bytes(self.dimensions) + self.dimensions as u64 * 8
    }
}
