//! This module merges sorted batches of rows by a heap.

use std::ops::Range;

use arrow_array::RecordBatch;
use inshore_kernel::Failure;
use inshore_nodes::OrderedRow;

/// An input with its current batch.
struct Head<R, I> {
    rows: R,
    next: usize,
    rest: I,
    /// The position of the input in the order of inputs. Equal rows are returned in this order.
    place: usize,
}

/// Merges inputs whose rows are in order, and passes runs of rows of one batch to `each`. The cost is one comparison
/// for each row and level of a binary heap of the inputs.
///
/// # Errors
/// - Returns an error if a batch has unexpected columns, or rows out of order.
/// - Returns the errors of the inputs and of `each`.
pub(super) fn merge_rows<R: OrderedRow>(
    inputs: impl IntoIterator<Item = impl Iterator<Item = Result<RecordBatch, Failure>>>,
    how: &R::How,
    mut each: impl FnMut(&R, Range<usize>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut heap = Vec::new();
    for (place, mut rest) in inputs.into_iter().enumerate() {
        if let Some(rows) = next_rows::<R>(&mut rest, how)? {
            heap.push(Head { rows, next: 0, rest, place });
        }
    }
    for at in (0..heap.len() / 2).rev() {
        sift_down(&mut heap, at);
    }
    while let Some(first) = heap.first() {
        let second =
            (1..heap.len().min(3)).reduce(|one, other| if precedes(&heap, other, one) { other } else { one });
        let mut end = first.next + 1;
        match second.map(|second| &heap[second]) {
            None => end = first.rows.rows(),
            Some(second) => {
                let is_first = |row: usize| {
                    let order = first.rows.compare(row, &second.rows, second.next);
                    order.then(first.place.cmp(&second.place)).is_lt()
                };
                while end < first.rows.rows() && is_first(end) {
                    end += 1;
                }
            }
        }
        each(&first.rows, first.next..end)?;
        let first = &mut heap[0];
        first.next = end;
        if end == first.rows.rows() {
            match next_rows::<R>(&mut first.rest, how)? {
                Some(rows) => (first.rows, first.next) = (rows, 0),
                None => drop(heap.swap_remove(0)),
            }
        }
        if !heap.is_empty() {
            sift_down(&mut heap, 0);
        }
    }
    Ok(())
}

/// Returns the next batch that has rows.
fn next_rows<R: OrderedRow>(
    rest: &mut impl Iterator<Item = Result<RecordBatch, Failure>>,
    how: &R::How,
) -> Result<Option<R>, Failure> {
    while let Some(batch) = rest.next().transpose()? {
        if batch.num_rows() > 0 {
            let rows = R::of_batch(&batch, how).ok_or("invalid rows, or rows out of order")?;
            return Ok(Some(rows));
        }
    }
    Ok(None)
}

/// Returns true if the next row of one head comes before that of another one.
fn precedes<R: OrderedRow, I>(heap: &[Head<R, I>], one: usize, other: usize) -> bool {
    let (one, other) = (&heap[one], &heap[other]);
    let order = one.rows.compare(one.next, &other.rows, other.next);
    order.then(one.place.cmp(&other.place)).is_lt()
}

/// Moves a head down until no head below comes before it.
fn sift_down<R: OrderedRow, I>(heap: &mut [Head<R, I>], mut at: usize) {
    loop {
        let below = [2 * at + 1, 2 * at + 2].into_iter().filter(|&below| below < heap.len());
        let least = below.reduce(|one, other| if precedes(heap, other, one) { other } else { one });
        match least.filter(|&least| precedes(heap, least, at)) {
            Some(least) => heap.swap(at, least),
            None => return,
        }
        at = least.expect("a head comes before the one above");
    }
}

#[cfg(test)]
mod tests {
    use std::{cmp::Ordering, sync::Arc};

    use arrow_array::{UInt64Array, cast::AsArray, types::UInt64Type};
    use proptest::prelude::*;

    use super::*;

    /// Rows of numbers, of which only the upper half is the key.
    struct Numbers(UInt64Array);

    impl OrderedRow for Numbers {
        const ADDS_UP: bool = false;
        type How = ();

        fn of_batch(batch: &RecordBatch, (): &()) -> Option<Numbers> {
            let rows = Numbers(batch.column(0).as_primitive_opt::<UInt64Type>()?.clone());
            (1..rows.rows()).all(|row| rows.compare(row - 1, &rows, row).is_le()).then_some(rows)
        }

        fn rows(&self) -> usize {
            self.0.values().len()
        }

        fn compare(&self, row: usize, other: &Numbers, other_row: usize) -> Ordering {
            (self.0.value(row) >> 32).cmp(&(other.0.value(other_row) >> 32))
        }

        fn alone(&self, row: usize) -> Numbers {
            Numbers(vec![self.0.value(row)].into())
        }
    }

    fn merged(inputs: &[Vec<Vec<u64>>]) -> Result<Vec<u64>, Failure> {
        let batch = |rows: Vec<u64>| -> Result<RecordBatch, Failure> {
            Ok(RecordBatch::try_from_iter([("row", Arc::new(UInt64Array::from(rows)) as _)])?)
        };
        let mut all = Vec::new();
        let inputs = inputs.iter().map(|batches| batches.clone().into_iter().map(batch));
        merge_rows::<Numbers>(inputs, &(), |rows, run| {
            all.extend_from_slice(&rows.0.values()[run]);
            Ok(())
        })?;
        Ok(all)
    }

    proptest! {
        /// A merge equals a stable sort of the inputs, one after the other.
        #[test]
        fn a_merge_is_a_stable_sort(inputs in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(0u64..6, 0..5), 0..4), 0..7)) {
            let mut number = 0;
            let mut all = Vec::new();
            let inputs: Vec<Vec<Vec<u64>>> = inputs
                .into_iter()
                .map(|batches| {
                    let mut keys: Vec<u64> = batches.concat();
                    keys.sort_unstable();
                    let mut rows = keys.into_iter().map(|key| {
                        number += 1;
                        all.push(key << 32 | number);
                        key << 32 | number
                    });
                    batches.iter().map(|batch| rows.by_ref().take(batch.len()).collect()).collect()
                })
                .collect();
            all.sort_by_key(|row| row >> 32);
            prop_assert_eq!(merged(&inputs).unwrap(), all);
        }
    }

    #[test]
    fn rows_out_of_order_are_an_error() {
        let error = merged(&[vec![vec![1 << 32], vec![3 << 32, 2 << 32]]]).unwrap_err();
        assert!(error.to_string().contains("out of order"), "{error}");
    }
}
