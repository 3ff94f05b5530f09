//! Sorts files. A file consists of lines of text, of records of a fixed number of bytes, or of the rows of a table.
//!
//! ```text
//!   inputs ── RowSink ── (arenas, runs in the store's scratch) ── SortedRows ── a new file
//! ```
//!
//! Reads and writes of uncompressed files bypass the page cache. The result file appears complete or not at all.

mod bytes;
mod inputs;
mod numbers;
mod space;
mod table;
#[cfg(test)]
mod tests;

pub use bytes::{
    SortOptions, SortSummary, is_packed_by_name, sort_lines, sort_records, sorted_lines, sorted_records,
};
pub use inputs::Inputs;
pub(crate) use numbers::with_nulls;
pub use numbers::{NumberColumn, NumberSink, NumberSort, NumberSortConfig, SortedNumbers};
pub use space::{check_output_space, check_space};
pub(crate) use space::{check_rows, sort_memory};
pub use table::{SortKey, TableLayout, sort_columns, sort_table, sorted_table};
pub(crate) use table::{different, no_column, too_long};
