//! Sorts rows, which are byte strings of any length, by the bytes of their keys in little memory.
//!
//! A record (see [`crate::SortReduce`]) is a number and a value of fixed width. In contrast, a row is a line, a fixed
//! number of bytes, or an encoded row of a table. The main terms are:
//!
//! - A [`RowShape`] finds the end of a row and the bytes of its key. The shapes are [`Lines`], [`FixedRows`] and
//!   [`FramedRows`].
//! - A [`RowOperation`] defines what happens to rows with equal keys: [`KeepAll`], [`KeepFirst`], or a user's
//!   operation that combines rows.
//! - A [`RowSort`] takes the bytes of rows through a [`RowSink`], and returns [`SortedRows`].
//!
//! ```text
//!   RowSink ── arena full ──► worker: find rows, sort words, ──► run on flash ──► loser tree ──► SortedRows
//!   (fills the next arena)           gather, combine                 (or the arenas, if all rows fit in memory)
//! ```
//!
//! If no rows are combined, the last merge can be split into parts, one for each thread (`parts.rs`).
//!
//! An arena is the memory for the rows that one worker sorts at a time. Input bytes are read directly into an arena,
//! and a worker sorts the arena while the next arena is filled. Workers sort words of 64 bits, so that a comparison
//! reads no row. The high bits of a word are a few bytes of the key, and the low bits are the row's number
//! (`order.rs`). If these bytes are equal, the following bytes of the key are compared. The sort is stable: rows with
//! equal keys keep the order of the input, since runs are merged in that order.
//!
//! The usual alternative, which GNU sort uses, sorts pointers and compares rows. Each comparison then has two cache
//! misses.
//!
//! # Cost
//!
//! The following cost estimate is for rows of 100 bytes. The drive reads the input, writes and reads runs, and writes
//! the output, so it moves 4 times the input's bytes. Per row, the CPU takes 3 ns to find the row, 15 ns to sort its
//! word, 15 ns to gather the row, and 40 ns to merge it from 50 runs and copy it. A core thus needs less time for a
//! row than the drive needs for 400 bytes.

mod arena;
mod cursor;
mod keep;
mod merge;
mod order;
mod parts;
mod plan;
mod shape;
mod sort;
#[cfg(test)]
mod tests;
mod workers;

pub use merge::{RowStats, SortedPart, SortedRows};
pub use plan::{RowConfig, smallest_row_memory_bytes, smallest_row_memory_bytes_for};
pub use shape::{FixedRows, FramedRows, KeepAll, KeepFirst, Lines, RowOperation, RowShape, frame};
pub use sort::{RowSink, RowSort};
