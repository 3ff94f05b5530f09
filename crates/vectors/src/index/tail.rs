//! The tail consists of the last rows of the vectors. They were added after the lists and the last layer were written,
//! so no list holds them. All queries of a round are compared with all rows of the tail, in one pass.

use std::{ops::Range, sync::atomic::Ordering};

use super::{
    Clustered,
    compare::{Comparer, Members},
    ranges::Ranges,
    round::Round,
};
use crate::{Result, dataset::CHECK_BYTES};

/// The size of a block of rows in bytes. A block can hold at least one row with any number of dimensions.
const BLOCK_BYTES: usize = 256 << 10;

/// Compares the rows `tail` with all queries of a round.
///
/// # Errors
/// Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, the job was cancelled, or the
/// budget has too little free memory.
pub(super) fn compare_tail<T: Clustered>(round: &Round<'_, T>, tail: Range<u64>) -> Result<()> {
    let row_bytes = (round.space.dimensions * size_of::<T>()) as u64;
    let block_rows = ((BLOCK_BYTES - 2 * CHECK_BYTES) as u64 / row_bytes).max(1);
    let first_of = |number: u64| tail.start + number * block_rows;
    let range = |number: u64| {
        let first = first_of(number);
        (first < tail.end).then(|| first * row_bytes..tail.end.min(first + block_rows) * row_bytes)
    };
    let ranges = Ranges {
        job: round.job,
        file: &round.vectors.file,
        threads: round.plan.threads,
        buffer_bytes: BLOCK_BYTES,
        range,
    };
    let members: Vec<u32> = (0..round.packed.len() as u32).collect();
    let queries = Members { packed: round.packed, members: &members, heaps: &round.heaps };
    let comparers = ranges.each(
        || Comparer::<T>::new(round.space.dimensions),
        |comparer, number, bytes| {
            let first = first_of(number);
            let is_selected = |row: &u64| round.selected.as_ref().is_none_or(|some| some.rows.contains(*row));
            let id_of =
                |row: usize| Some(first + row as u64).filter(is_selected).map(|row| round.ids.id(row));
            comparer.compare_some(round.space, T::rows(bytes), id_of, &queries);
            Ok(())
        },
    )?;
    round.compared.fetch_add((tail.end - tail.start) * round.packed.len() as u64, Ordering::Relaxed);
    let measured = comparers.iter().map(|comparer| comparer.measured).sum();
    round.measured.fetch_add(measured, Ordering::Relaxed);
    round.heaps.check()
}
