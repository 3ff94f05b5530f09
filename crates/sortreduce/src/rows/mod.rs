//! Rows: byte strings of any length, sorted by the bytes of their keys, in little memory.
//!
//! A record (see [`crate::SortReduce`]) is a number and a value of fixed width, whereas a row is a line, a fixed number
//! of bytes, or an encoded row of a table. Nouns of the module:
//!
//! - A [`RowShape`] finds the end of a row and the bytes of its key: [`Lines`], [`FixedRows`], [`FramedRows`].
//! - A [`RowOperation`] handles rows with equal keys: [`KeepAll`], [`KeepFirst`], or a user's operation that combines
//!   rows.
//! - A [`RowSort`] takes bytes of complete rows through a [`RowSink`], and returns [`SortedRows`].
//!
//! ```text
//!   RowSink ── arena full ──► worker: find rows, sort words, ──► run on flash ──► tree of losers ──► SortedRows
//!   (reads the next)                 gather, combine                 (or the arena itself, if all fits)
//! ```
//!
//! If no rows are combined, the last merge can be split into parts, one for each thread (`parts.rs`).
//!
//! An arena is the unit of work. Bytes are read directly from the input into an arena, and a worker sorts the arena
//! while the next one fills. The workers sort words of 64 bits, so that a comparison reads no row. The high bits of a
//! word are a few bytes of the key, and the low bits are the row's number (`order.rs`). Ties are decided by the
//! following bytes of the key. Rows in runs are unchanged, and runs are merged in the order of the input, so the sort
//! is stable: rows with equal keys keep the order of the input.
//!
//! The obvious alternative, which GNU sort uses, sorts pointers by comparing rows and misses the cache twice for each
//! comparison.
//!
//! # Cost
//!
//! The following estimate of costs is for rows of 100 bytes. The drive moves 4 times the input's bytes: reading the
//! input, writing and reading runs, and writing the output. For each row the CPU takes 3 ns to find it, 15 ns to sort
//! its word, 15 ns to gather it, and 40 ns to take it out of a tree of 50 runs and copy it. One core needs less time
//! for a row than the drive needs for 400 bytes.

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
