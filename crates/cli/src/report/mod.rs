//! Everything that a command prints: results, tables, progress and errors.

pub mod failure;
pub mod outcome;
pub mod progress;
#[cfg(any(feature = "sql", feature = "vectors"))]
pub mod row_display;
pub mod table;
pub mod terminal;
#[cfg_attr(not(feature = "graph"), expect(dead_code, reason = "only graphs show their best rows"))]
pub mod top;
