//! The directory of a file of lists, which states the position of each list. The module also has a type for the bytes
//! of a list.

use std::ops::Range;

use inshore_store::Reservation;

use super::Clustered;
use crate::{Error, Result};

/// The position of each list in a file of lists.
#[derive(Debug)]
pub(crate) struct Directory {
    firsts: Vec<u64>,
    entry_bytes: u64,
    _reservation: Reservation,
}

impl Directory {
    /// Creates a directory. A vector has `entry_bytes` bytes in the file. `firsts` has the number of vectors before
    /// each list, followed by the number of all vectors.
    pub fn new(firsts: Vec<u64>, entry_bytes: u64, reservation: Reservation) -> Directory {
        Directory { firsts, entry_bytes, _reservation: reservation }
    }

    /// Returns how many bytes a vector and its row number take in the file.
    pub fn entry_bytes(&self) -> u64 {
        self.entry_bytes
    }

    /// Returns the positions at which the vectors of a list are stored. Positions count the vectors of all lists.
    pub fn places_of(&self, list: u32) -> Range<u64> {
        self.firsts[list as usize]..self.firsts[list as usize + 1]
    }

    /// Returns the list that holds the vector at a position.
    pub fn list_of(&self, place: u64) -> u32 {
        self.firsts.partition_point(|first| *first <= place) as u32 - 1
    }

    /// Returns the byte range of the lists `lists` in the file. The lists must be adjacent.
    pub fn bytes_of(&self, lists: Range<u32>) -> Range<u64> {
        self.firsts[lists.start as usize] * self.entry_bytes
            ..self.firsts[lists.end as usize] * self.entry_bytes
    }

    /// Returns how many vectors a list has.
    pub fn count(&self, list: u32) -> u64 {
        self.firsts[list as usize + 1] - self.firsts[list as usize]
    }
}

/// Returns the vectors in the `count` entries of `bytes`, and checks that their row numbers are below `rows`. `name`
/// and `list` are the file and the list for an error. `row_bytes` is the size of the elements of a vector, and
/// `entry_bytes` the size of the elements with the row number.
///
/// # Errors
/// Returns [`Error::BadDataset`] if a row number is `rows` or larger.
pub(crate) fn list_of<'a, T: Clustered>(
    (name, list): (&str, u32),
    bytes: &'a [u8],
    count: usize,
    (row_bytes, entry_bytes): (usize, usize),
    rows: u64,
) -> Result<List<'a, T>> {
    let (elements, ids) = bytes.split_at(count * row_bytes);
    let vectors = List { rows: T::rows(elements), ids, id_bytes: entry_bytes - row_bytes };
    match (0..count).map(|place| vectors.row(place)).find(|row| *row >= rows) {
        None => Ok(vectors),
        Some(row) => Err(Error::BadDataset {
            name: name.to_string(),
            what: "vectors",
            found: format!("row {row} in list {list}"),
            expected: format!("rows below {rows}"),
        }),
    }
}

/// The elements and the row numbers of the vectors of a list.
pub(crate) struct List<'a, T> {
    pub rows: &'a [T],
    ids: &'a [u8],
    id_bytes: usize,
}

impl<T> List<'_, T> {
    /// Returns the row number of the vector at position `place` of the list. The row number is that in the dataset of
    /// vectors.
    pub fn row(&self, place: usize) -> u64 {
        let bytes = &self.ids[place * self.id_bytes..][..self.id_bytes];
        match self.id_bytes {
            4 => u32::from_le_bytes(bytes.try_into().expect("four bytes")).into(),
            _ => u64::from_le_bytes(bytes.try_into().expect("eight bytes")),
        }
    }
}
