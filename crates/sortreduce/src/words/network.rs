//! Sorting networks, which sort few words in registers.
//!
//! ```text
//!              lane 0  1  2  3
//!     row 0         .  .  .  .     1. Each column is sorted by a network over complete rows. No word changes
//!     row 1         .  .  .  .        its lane.
//!     ...                          2. Columns are merged: 1 with 1, 2 with 2, ... (bitonic: only the first
//!     row 15        .  .  .  .        steps of a merge compare words of different lanes).
//!                                  3. Rows and columns are transposed, so that the order is that of memory.
//! ```
//!
//! Sixteen rows fill 16 registers, and intermediate values are in the first-level cache.

use super::vector::{LANES_MAX, Vector, Word};

/// The number of rows in the largest network.
pub(super) const ROWS: usize = 16;

/// Sorts the words of each pair of rows `$a` and `$b`, lane by lane.
macro_rules! network {
    ($rows:ident, $(($a:literal, $b:literal))*) => {{
        $(sort_rows($rows, $a, $b);)*
    }};
}

/// Sorts each column. The networks for 4, 8 and 16 rows have the fewest comparisons that are known (Knuth, The Art of
/// Computer Programming, volume 3, section 5.3.4). The network for 16 rows is by Green. Its comparisons are in the
/// order of Dobbelaere's list, with ten parallel steps.
#[inline(always)]
pub(super) fn sort_columns<V: Vector, const ROWS: usize>(rows: &mut [V; ROWS]) {
    match ROWS {
        1 => {}
        2 => network!(rows, (0, 1)),
        4 => network!(rows, (0, 2)(1, 3)(0, 1)(2, 3)(1, 2)),
        8 => network!(
            rows,
            (0, 2)(1, 3)(4, 6)(5, 7)(0, 4)(1, 5)(2, 6)(3, 7)(0, 1)(2, 3)(4, 5)(6, 7)(2, 4)(3, 5)(1, 4)(3, 6)(
                1, 2
            )(3, 4)(5, 6)
        ),
        16 => network!(
            rows,
            (0, 13)(1, 12)(2, 15)(3, 14)(4, 8)(5, 6)(7, 11)(9, 10)(0, 5)(1, 7)(2, 9)(3, 4)(6, 13)(8, 14)(
                10, 15
            )(11, 12)(0, 1)(2, 3)(4, 5)(6, 8)(7, 9)(10, 11)(12, 13)(14, 15)(0, 2)(1, 3)(4, 10)(
                5, 11
            )(6, 7)(8, 9)(12, 14)(13, 15)(1, 2)(3, 12)(4, 6)(5, 7)(8, 10)(9, 11)(13, 14)(1, 4)(
                2, 6
            )(5, 8)(7, 10)(9, 13)(11, 14)(2, 4)(3, 6)(9, 12)(11, 13)(3, 5)(6, 8)(7, 9)(10, 12)(
                3, 4
            )(5, 6)(7, 8)(9, 10)(11, 12)(6, 7)(8, 9)
        ),
        _ => unreachable!("there are no networks for other numbers of rows"),
    }
}

#[inline(always)]
fn sort_rows<V: Vector, const ROWS: usize>(rows: &mut [V; ROWS], a: usize, b: usize) {
    (rows[a], rows[b]) = rows[a].min_max(rows[b]);
}

/// Merges sorted sequences of `GROUP / 2` columns to sorted sequences of `GROUP` columns. The order of a sequence is
/// column by column.
#[inline(always)]
fn merge_columns<V: Vector, const ROWS: usize, const GROUP: usize, const HALF: usize>(rows: &mut [V; ROWS]) {
    // The first half of each sequence is compared with the reversed second half. The results are two bitonic
    // sequences.
    for row in 0..ROWS / 2 {
        let last = ROWS - 1 - row;
        let (low, high) = rows[row].min_max(rows[last].reverse::<GROUP>());
        rows[row] = low.choose::<HALF>(high);
        rows[last] = high.choose::<HALF>(low).reverse::<GROUP>();
    }
    if GROUP >= 16 {
        clean_lanes::<V, ROWS, 4>(rows);
    }
    if GROUP >= 8 {
        clean_lanes::<V, ROWS, 2>(rows);
    }
    if GROUP >= 4 {
        clean_lanes::<V, ROWS, 1>(rows);
    }
    if ROWS >= 16 {
        clean_rows::<V, ROWS, 8>(rows);
    }
    if ROWS >= 8 {
        clean_rows::<V, ROWS, 4>(rows);
    }
    if ROWS >= 4 {
        clean_rows::<V, ROWS, 2>(rows);
    }
    clean_rows::<V, ROWS, 1>(rows);
}

/// Executes one step of a bitonic merge between lanes. Two rows are processed at a time, so that all lanes of a
/// register are used.
#[inline(always)]
fn clean_lanes<V: Vector, const ROWS: usize, const DISTANCE: usize>(rows: &mut [V; ROWS]) {
    for row in 0..ROWS / 2 {
        let (a, b) = rows[2 * row].exchange::<DISTANCE>(rows[2 * row + 1]);
        let (low, high) = a.min_max(b);
        (rows[2 * row], rows[2 * row + 1]) = low.exchange::<DISTANCE>(high);
    }
}

/// Executes one step of a bitonic merge within columns.
#[inline(always)]
fn clean_rows<V: Vector, const ROWS: usize, const DISTANCE: usize>(rows: &mut [V; ROWS]) {
    for pair in 0..ROWS / 2 {
        let row = pair / DISTANCE * 2 * DISTANCE + pair % DISTANCE;
        sort_rows(rows, row, row + DISTANCE);
    }
}

/// Transposes each square of `LANES` rows. After the call, row `s * LANES + l` contains the words from lane `l` of
/// the rows of square `s`.
#[inline(always)]
fn transpose<V: Vector, const ROWS: usize>(rows: &mut [V; ROWS]) {
    if V::LANES >= 16 {
        exchange_rows::<V, ROWS, 8>(rows);
    }
    if V::LANES >= 8 {
        exchange_rows::<V, ROWS, 4>(rows);
    }
    if V::LANES >= 4 {
        exchange_rows::<V, ROWS, 2>(rows);
    }
    exchange_rows::<V, ROWS, 1>(rows);
}

#[inline(always)]
fn exchange_rows<V: Vector, const ROWS: usize, const DISTANCE: usize>(rows: &mut [V; ROWS]) {
    for pair in 0..ROWS / 2 {
        let row = pair / DISTANCE * 2 * DISTANCE + pair % DISTANCE;
        (rows[row], rows[row + DISTANCE]) = rows[row].exchange::<DISTANCE>(rows[row + DISTANCE]);
    }
}

/// Sorts all words of the rows. The order of the result is column by column.
#[inline(always)]
fn sort_all<V: Vector, const ROWS: usize>(rows: &mut [V; ROWS]) {
    sort_columns(rows);
    merge_columns::<V, ROWS, 2, 1>(rows);
    if V::LANES >= 4 {
        merge_columns::<V, ROWS, 4, 2>(rows);
    }
    if V::LANES >= 8 {
        merge_columns::<V, ROWS, 8, 4>(rows);
    }
    if V::LANES >= 16 {
        merge_columns::<V, ROWS, 16, 8>(rows);
    }
}

/// Sorts `count` words. `count` must be at least `LANES` and at most `ROWS * LANES`, and `ROWS` must be at least
/// `LANES`.
///
/// # Safety
/// The processor must have the instructions of `V`. `words` must point to `count` words to which no other reference
/// exists.
#[inline(always)]
pub(super) unsafe fn sort_words<V: Vector, const ROWS: usize>(words: *mut V::Word, count: usize) {
    debug_assert!((V::LANES..=ROWS * V::LANES).contains(&count));
    // SAFETY: every row is loaded from `count - LANES` or an earlier word. The edge has 2 LANES_MAX words, and is read
    // from at most LANES words before its middle.
    let mut rows = unsafe {
        let mut rows = [V::load(words); ROWS];
        for (number, row) in rows.iter_mut().enumerate() {
            let wanted = number * V::LANES;
            let start = wanted.min(count - V::LANES);
            // Lanes whose words are also in another row are filled with the largest word.
            let filled = (wanted - start).min(V::LANES);
            let fill = V::load(V::Word::EDGE.as_ptr().add(LANES_MAX - filled));
            *row = V::load(words.add(start)).or(fill).flip();
        }
        rows
    };
    sort_all(&mut rows);
    transpose(&mut rows);
    for number in 0..ROWS {
        let start = number * V::LANES;
        let (lane, square) = (start / ROWS, start % ROWS / V::LANES);
        let row = rows[square * V::LANES + lane].flip();
        // SAFETY: no more than `count` words are written.
        unsafe {
            if start + V::LANES > count {
                return row.store_first(words.add(start), count.saturating_sub(start));
            }
            row.store(words.add(start));
        }
    }
}

/// Sorts the `ROWS * LANES` words of `rows` into `sample`.
///
/// # Safety
/// The processor has the instructions of `V`.
#[inline(always)]
pub(super) unsafe fn sort_rows_into<V: Vector, const ROWS: usize>(
    mut rows: [V; ROWS],
    sample: &mut [V::Word],
) {
    assert!(sample.len() >= ROWS * V::LANES);
    for row in &mut rows {
        *row = row.flip();
    }
    sort_all(&mut rows);
    for (number, row) in rows.into_iter().enumerate() {
        // SAFETY: the sample has room for the words of all rows.
        unsafe { row.flip().store(sample.as_mut_ptr().add(number * V::LANES)) };
    }
}
