//! Rows: byte strings of any length, sorted by the bytes of their keys, many times larger than memory.
//!
//! Where a record (see [`crate::SortReduce`]) is a number and a value of fixed width, a row is whatever lies between two
//! line ends, a fixed number of bytes, or an encoded row of a table. The nouns:
//!
//! - [`RowShape`]: where a row ends and which of its bytes are the key: [`Lines`], [`FixedRows`], [`FramedRows`].
//! - [`RowOperation`]: what becomes of rows with equal keys: [`KeepAll`], [`KeepFirst`], or one of the user's that
//!   combines them.
//! - [`RowSort`]: takes bytes of whole rows in, by [`RowSink`]; gives [`SortedRows`].
//!
//! ```text
//!   RowSink ── arena full ──► worker: find rows, sort words, ──► run on flash ──► tree of losers ──► SortedRows
//!   (reads the next)                 gather, combine                 (or the arena itself, if all fits)
//! ```
//!
//! Where no rows are combined, the last merge can be had in parts, for as many threads (`parts.rs`).
//!
//! An arena is the unit of work: its bytes arrive straight from the input, and one of the workers sorts it while the
//! next one fills. What is sorted are words of 64 bits: the next few bytes of the key above the number of the row
//! (`order.rs`), so that a comparison touches no row; ties go to the bytes after. Runs hold rows as they were, and a run
//! keeps its number, so equal keys come out in the order in which they went in (the sort is stable).
//!
//! The obvious other way, sorting pointers by comparing rows, misses the cache twice for each comparison: GNU sort
//! does that.
//!
//! # Cost
//!
//! Sketch, for rows of 100 bytes: 4 times the bytes over the drive (in, run, run, out), and for each row 3 ns to find
//! it, 15 ns to sort its word, 15 ns to gather it, 40 ns to take it out of a tree of 50 runs and copy it: below what one
//! core can do while the drive moves 400 bytes.

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

pub use merge::{RowStats, SortedPart, SortedRows};
pub use plan::{RowConfig, smallest_row_memory_bytes, smallest_row_memory_bytes_for};
pub use shape::{FixedRows, FramedRows, KeepAll, KeepFirst, Lines, RowOperation, RowShape, frame};
pub use sort::{RowSink, RowSort};
