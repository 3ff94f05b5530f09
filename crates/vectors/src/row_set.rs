//! Sets of rows of a dataset.

use std::ops::Range;

use inshore_store::{Budget, Reservation};

use crate::Result;

/// A selection is sparse if it contains less than this fraction of the vectors.
const SPARSE: f64 = 0.01;
const WORD_BITS: u64 = u64::BITS as u64;

/// A set of vectors of a dataset, which are identified by their row numbers. The set is a bitmap with one bit for each
/// row.
///
/// A search with a selection returns only vectors of this set ([`crate::Search::selection`]). The set takes one bit for
/// each row of the dataset. This memory is reserved in a budget until the set is dropped.
///
/// ```
/// # fn main() -> inshore_vectors::Result<()> {
/// use inshore_store::Budget;
/// use inshore_vectors::RowSet;
///
/// let budget = Budget::new(1 << 20, 1);
/// let mut even = RowSet::empty(&budget, 1000)?;
/// (0..1000).step_by(2).for_each(|row| even.insert(row));
/// assert_eq!((even.count(), even.contains(3), even.any_in(3..4)), (500, false, false));
/// assert_eq!(even.rows_in(7..12).collect::<Vec<_>>(), [8, 10]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RowSet {
    /// The bitmap. All bits from bit `len` on are 0.
    words: Vec<u64>,
    len: u64,
    _reservation: Reservation,
}

impl PartialEq for RowSet {
    fn eq(&self, other: &RowSet) -> bool {
        self.len == other.len && self.words == other.words
    }
}

impl RowSet {
    /// Returns the memory, in bytes, of a set of vectors whose row numbers are below `len`.
    pub fn bytes(len: u64) -> u64 {
        len.div_ceil(WORD_BITS) * (WORD_BITS / 8)
    }

    /// Creates an empty set for vectors whose row numbers are below `len`.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if fewer than [`RowSet::bytes`] bytes are free in the budget.
    pub fn empty(budget: &Budget, len: u64) -> Result<RowSet> {
        let reservation = budget.reserve(RowSet::bytes(len), "a set of vectors")?;
        Ok(RowSet { words: vec![0; len.div_ceil(WORD_BITS) as usize], len, _reservation: reservation })
    }

    /// Creates the set of all vectors whose row numbers are below `len`.
    ///
    /// # Errors
    /// Returns the errors of [`RowSet::empty`].
    pub fn full(budget: &Budget, len: u64) -> Result<RowSet> {
        let mut set = RowSet::empty(budget, len)?;
        set.insert_all();
        Ok(set)
    }

    /// Returns the number of rows of the dataset, whether they are in the set or not.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns true if no vector is in the set.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// Adds a vector. Its row number must be below [`RowSet::len`].
    pub fn insert(&mut self, row: u64) {
        assert!(row < self.len, "vector {row} of {}", self.len);
        self.words[(row / WORD_BITS) as usize] |= 1 << (row % WORD_BITS);
    }

    /// Removes a vector. Its row number must be below [`RowSet::len`].
    pub fn remove(&mut self, row: u64) {
        assert!(row < self.len, "vector {row} of {}", self.len);
        self.words[(row / WORD_BITS) as usize] &= !(1 << (row % WORD_BITS));
    }

    /// Adds all vectors.
    pub(crate) fn insert_all(&mut self) {
        self.words.fill(u64::MAX);
        if let (Some(last), rest @ 1..) = (self.words.last_mut(), self.len % WORD_BITS) {
            *last = mask(rest);
        }
    }

    /// Removes all vectors.
    pub(crate) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Returns the first vector of the set whose number is `row` or larger.
    pub(crate) fn first_from(&self, row: u64) -> Option<u64> {
        let (number, word) = self.words_in(row..self.len).find(|(_, word)| *word != 0)?;
        Some(number * WORD_BITS + u64::from(word.trailing_zeros()))
    }

    /// Returns true if the set contains the vector with the number `row`. The set contains no number beyond its length.
    pub fn contains(&self, row: u64) -> bool {
        row < self.len && self.words[(row / WORD_BITS) as usize] >> (row % WORD_BITS) & 1 == 1
    }

    /// Returns the number of vectors in the set.
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Returns true if any vector with a row number in `range` is in the set.
    pub fn any_in(&self, range: Range<u64>) -> bool {
        self.words_in(range).any(|(_, word)| word != 0)
    }

    /// Returns how many vectors of the set have row numbers in `range`.
    pub fn count_in(&self, range: Range<u64>) -> u64 {
        self.words_in(range).map(|(_, word)| u64::from(word.count_ones())).sum()
    }

    /// Considers only the vectors of the set whose row numbers are in `range`. Returns the smallest range that contains
    /// all these row numbers. Returns `None` if there are no such vectors.
    pub fn bounds_in(&self, range: Range<u64>) -> Option<Range<u64>> {
        let mut words = self.words_in(range).filter(|(_, word)| *word != 0);
        let (number, word) = words.next()?;
        let first = number * WORD_BITS + u64::from(word.trailing_zeros());
        let (number, word) = words.last().unwrap_or((number, word));
        Some(first..(number + 1) * WORD_BITS - u64::from(word.leading_zeros()))
    }

    /// Returns a copy of the set, whose memory is reserved in `budget`.
    ///
    /// # Errors
    /// Returns the errors of [`RowSet::empty`].
    pub fn copied(&self, budget: &Budget) -> Result<RowSet> {
        let mut copy = RowSet::empty(budget, self.len)?;
        copy.words.copy_from_slice(&self.words);
        Ok(copy)
    }

    /// Returns the bitmap as bytes. The vector with the row number r is the bit r % 8 of the byte r / 8.
    pub fn to_bytes(&self) -> Vec<u8> {
        let bytes = self.words.iter().flat_map(|word| word.to_le_bytes());
        bytes.take(self.len.div_ceil(8) as usize).collect()
    }

    /// Returns a part of the set whose bitmap is `bytes`. The part has the `len` vectors from the row number `first`
    /// on. Rows that the bitmap does not have are not in the part.
    ///
    /// # Errors
    /// Returns the errors of [`RowSet::empty`].
    pub fn part_of_bytes(budget: &Budget, bytes: &[u8], first: u64, len: u64) -> Result<RowSet> {
        let mut part = RowSet::empty(budget, len)?;
        (0..len).filter(|row| has_bit(bytes, first.saturating_add(*row))).for_each(|row| part.insert(row));
        Ok(part)
    }

    /// Removes all vectors that `other` does not contain. `other` must be a set of the same dataset.
    pub fn intersect(&mut self, other: &RowSet) {
        assert_eq!(self.len, other.len, "sets of one dataset");
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= other);
    }

    /// Returns the row numbers of the vectors in the set, in ascending order.
    pub fn rows(&self) -> impl Iterator<Item = u64> + '_ {
        self.rows_in(0..self.len)
    }

    /// Returns, in ascending order, those row numbers in `range` whose vectors are in the set.
    pub fn rows_in(&self, range: Range<u64>) -> impl Iterator<Item = u64> + '_ {
        self.words_in(range).flat_map(|(number, word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = u64::from(left.trailing_zeros());
                left &= left.wrapping_sub(1);
                (bit < WORD_BITS).then(|| number * WORD_BITS + bit)
            })
        })
    }

    /// Returns the words of the bitmap that contain the bits of `range`, each with its position. In the result, bits
    /// outside `range` are 0.
    fn words_in(&self, range: Range<u64>) -> impl Iterator<Item = (u64, u64)> + '_ {
        let (start, end) = (range.start, range.end.min(self.len));
        let words = if start < end { start / WORD_BITS..end.div_ceil(WORD_BITS) } else { 0..0 };
        words.map(move |number| {
            let first = number * WORD_BITS;
            let below = mask(end.saturating_sub(first).min(WORD_BITS));
            let from = !mask(start.saturating_sub(first).min(WORD_BITS));
            (number, self.words[number as usize] & below & from)
        })
    }
}

/// Returns a word whose lowest `bits` bits are set. `bits` is at most 64.
fn mask(bits: u64) -> u64 {
    if bits == WORD_BITS { u64::MAX } else { (1 << bits) - 1 }
}

/// Returns true if the bitmap `bytes` of [`RowSet::to_bytes`] contains the vector with the number `row`.
pub(crate) fn has_bit(bytes: &[u8], row: u64) -> bool {
    let byte = usize::try_from(row / 8).ok().and_then(|place| bytes.get(place));
    byte.is_some_and(|byte| byte >> (row % 8) & 1 == 1)
}

/// Returns true if fewer than one vector in a hundred is selected. An exact search among these vectors is then cheaper
/// than a search in an index.
pub fn is_sparse(selection: &RowSet) -> bool {
    (selection.count() as f64) < SPARSE * selection.len() as f64
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn budget() -> Budget {
        Budget::new(1 << 20, 1)
    }

    #[test]
    fn a_set_equals_a_set_of_numbers() {
        for len in [1u64, 63, 64, 65, 200] {
            let budget = budget();
            let (mut set, mut model) = (RowSet::empty(&budget, len).unwrap(), BTreeSet::new());
            for step in 0..3 * len {
                let row = step * step * 7 % len;
                if step % 3 == 2 {
                    set.remove(row);
                    model.remove(&row);
                } else {
                    set.insert(row);
                    model.insert(row);
                }
            }
            assert!(set.rows().eq(model.iter().copied()), "{len}");
            assert_eq!((set.count(), set.len()), (model.len() as u64, len));
            assert!((0..len + 70).all(|row| set.contains(row) == model.contains(&row)));
            for start in 0..=len {
                for end in start..=len {
                    let some: Vec<u64> = model.range(start..end).copied().collect();
                    assert!(set.rows_in(start..end).eq(some.iter().copied()), "{start}..{end} of {len}");
                    assert_eq!(set.count_in(start..end), some.len() as u64);
                    assert_eq!(set.any_in(start..end), !some.is_empty());
                    let bounds = some.first().zip(some.last()).map(|(first, last)| *first..last + 1);
                    assert_eq!(set.bounds_in(start..end), bounds);
                }
            }
            drop(set);
            assert_eq!(budget.reserved_bytes(), 0);
        }
    }

    #[test]
    fn parts_of_the_bytes_of_a_set_equal_the_set() {
        for len in [1u64, 7, 8, 64, 200] {
            let budget = budget();
            let mut set = RowSet::empty(&budget, len).unwrap();
            (0..len).filter(|row| row * row % 3 == 1).for_each(|row| set.insert(row));
            let bytes = set.to_bytes();
            assert_eq!(bytes.len() as u64, len.div_ceil(8));
            for first in 0..=len {
                let part = RowSet::part_of_bytes(&budget, &bytes, first, len + 9 - first).unwrap();
                assert!(part.rows().eq(set.rows_in(first..len).map(|row| row - first)), "{first} of {len}");
            }
            assert!(RowSet::part_of_bytes(&budget, &bytes, u64::MAX, 3).unwrap().is_empty());
        }
    }

    #[test]
    fn a_full_set_has_all_vectors_and_no_others() {
        for len in [0u64, 1, 64, 100] {
            let budget = budget();
            let mut full = RowSet::full(&budget, len).unwrap();
            assert!(full.rows().eq(0..len));
            assert!(!full.contains(len));
            assert_eq!(full.is_empty(), len == 0);
            let mut third = RowSet::empty(&budget, len).unwrap();
            (0..len).step_by(3).for_each(|row| third.insert(row));
            full.intersect(&third);
            assert_eq!(full, third);
        }
    }

    #[test]
    fn a_set_takes_its_memory_from_the_budget() {
        let budget = Budget::new(128, 1);
        let set = RowSet::empty(&budget, 1000).unwrap();
        assert_eq!((budget.reserved_bytes(), RowSet::bytes(1000)), (128, 128));
        assert!(RowSet::empty(&budget, 1).unwrap_err().to_string().contains("a set of vectors"));
        drop(set);
        assert!(RowSet::full(&budget, 1024).is_ok());
        assert!(RowSet::full(&budget, 1025).is_err());
    }
}
