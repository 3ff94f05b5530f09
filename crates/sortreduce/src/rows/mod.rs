//! Rows: byte strings of any length, sorted by the bytes of their keys, in little memory.
//!
//! Where a record (see [`crate::SortReduce`]) is a number and a value of fixed width, a row is a line, a fixed number of bytes,
//! or an encoded row of a table. Nouns of the module:
//!
//! - [`RowShape`]: finds the end of a row and the bytes of its key: [`Lines`], [`FixedRows`], [`FramedRows`].
//! - [`RowOperation`]: handles rows with equal keys: [`KeepAll`], [`KeepFirst`], or a user's operation that combines them.
//! - [`RowSort`]: takes bytes of whole rows by [`RowSink`]; returns [`SortedRows`].
//!
//! ```text
//!   RowSink ── arena full ──► worker: find rows, sort words, ──► run on flash ──► tree of losers ──► SortedRows
//!   (reads the next)                 gather, combine                 (or the arena itself, if all fits)
//! ```
//!
//! If no rows are combined, the last merge can be split into parts, for as many threads (`parts.rs`).
//!
//! An arena is the unit of work: bytes arrive in it directly from the input, and one of the workers sorts it while the next one
//! fills. The workers sort words of 64 bits: the next few bytes of the key above the number of the row (`order.rs`), so that a
//! comparison touches no row; ties are decided by the bytes after. Runs hold unchanged rows, and a run keeps its number, so equal
//! keys are returned in the order of the input (the sort is stable).
//!
//! The obvious alternative, sorting pointers by comparing rows, misses the cache twice for each comparison: GNU sort does that.
//!
//! # Cost
//!
//! Sketch, for rows of 100 bytes: 4 times the bytes over the drive (in, run, run, out), and for each row 3 ns to find it, 15 ns
//! to sort its word, 15 ns to gather it, 40 ns to take it out of a tree of 50 runs and copy it: less than one core's time while
//! the drive moves 400 bytes.

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
