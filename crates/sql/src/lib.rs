//! SQL over files and datasets, which continues with sort-reduce if memory is short.
//!
//! DataFusion parses, plans and computes; this crate gives DataFusion tables whose files are read within a budget, a
//! memory pool that is the job's budget, and operators that spill to flash when memory is used up. The nouns:
//!
//! - [`Tables`]: the meaning of names in a query: files by their paths, and names that were given.
//! - [`Query`]: a running query; an iterator of record batches.
//! - [`RemoteExecutor`]: tables on other machines, where [fragments](Fragment) of a query run ([`run_fragment`]).
//! - [`OperatorStats`]: the counters of an operator: how rows were grouped, sorted or joined, and how much was written to flash.
//!
//! ```text
//!   GROUP BY, DISTINCT   a table in memory; full, its states go to a sort of rows and meet again there   (group)
//!   ORDER BY             a sort of rows; of numbers that fit 64 bits together, sort-reduce              (order.rs)
//!   equi-join            a table of one side; where it does not fit, both sides are sorted and merged    (join.rs)
//! ```
//!
//! An operator decides between memory and flash while it runs, by the input rows and the free memory: an estimate of
//! the planner may be wrong by a factor of a thousand, and a wrong estimate does not make a query fail.
//!
//! The whole query runs in the process of the caller. Operators count their memory against the budget; the memory
//! that functions of DataFusion take during a call is not counted, and a cancellation is not noticed within a call. A
//! program that runs queries of others, or needs a hard limit, therefore runs the whole query in a child process with
//! its own limit, as the command, Python and nodes do (docs/decisions/0031, 0033, 0034).
//! [`current_operator()`] tells such a process which operator ran when the limit was reached.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use inshore_sql::{Query, Tables};
//! use inshore_store::{Budget, Cancel, Store};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("sales.csv");
//! std::fs::write(&path, "town,amount\nUlm,3\nKiel,4\nUlm,5\n")?;
//! let store = Store::open(folder.path().join("store"))?;
//! let job = store.job(Budget::new(64 << 20, 2), Cancel::default())?;
//! let tables = Tables::default().with_files("sales", &[path]);
//! let text = "SELECT town, sum(amount) AS amount FROM sales GROUP BY town ORDER BY town";
//! let mut query = Query::start(&job, text, tables)?;
//! let mut rows = 0;
//! while let Some(batch) = query.next_batch()? {
//!     rows += batch.num_rows();
//! }
//! assert_eq!(rows, 2);
//! # Ok(())
//! # }
//! ```
#![warn(missing_docs)]

mod current_operator;
mod error;
mod memory;
mod operators;
mod query;
mod remote;
mod rules;
mod scan;
mod spills;
mod tables;
#[cfg(test)]
mod tests;

pub use current_operator::current_operator;
pub use error::{Error, Result};
pub use inshore_tables::TableMetadata;
pub use operators::OperatorStats;
pub use query::{Query, Report, run_fragment, smallest_memory_bytes, stack_bytes, table_names};
pub use remote::{Fragment, FragmentRows, RemoteExecutor};
pub use scan::{Feed, FragmentScan};
pub use tables::Tables;

/// The number of rows of a batch.
const BATCH_ROWS: usize = 8 << 10;
