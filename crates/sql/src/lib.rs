//! SQL queries over files and datasets. Operators that run out of memory spill to flash and sort there (sort-reduce).
//!
//! DataFusion parses, plans and executes queries. This crate supplies the tables, whose files are read within a
//! memory budget. The crate also supplies a memory pool over the budget of the job, and operators that spill to
//! flash. The main types are:
//!
//! - [`Tables`]: resolves the table names in a query to files, datasets or record batches.
//! - [`Query`]: a running query; an iterator of record batches.
//! - [`RemoteExecutor`]: describes tables on other machines, and runs [fragments](Fragment) of a query there. A node
//!   runs a fragment with [`run_fragment`].
//! - [`OperatorStats`]: the counters of one operator, such as the number of rows sorted and the bytes written to
//!   flash.
//!
//! ```text
//!   GROUP BY, DISTINCT   a hash table in memory; if it is full, its states are sorted and merged    (group)
//!   ORDER BY             a sort of encoded rows, or of integers if rows consist of numbers          (order.rs)
//!   equi-join            a hash table of one side; if it is full, both sides are sorted and merged  (join.rs)
//! ```
//!
//! Each operator decides at run time whether to use memory or flash, from its input rows and the free memory. Planner
//! estimates can be wrong by a factor of a thousand, but a wrong estimate does not make a query fail.
//!
//! The whole query runs in the process of the caller. Operators count their memory against the budget. The budget
//! does not count memory that DataFusion's functions allocate during a call. A cancellation takes effect only after
//! the current call. Programs that run untrusted queries or need a hard limit therefore run the whole query in a
//! child process with a memory limit. The command line, the Python package and the nodes do so (docs/decisions/0031,
//! 0033, 0034). In such a process, [`current_operator()`] returns the operator that was running when the limit was
//! reached.
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
pub use query::{Query, Report, run_fragment, run_stage, smallest_memory_bytes, stack_bytes, table_names};
pub use remote::{
    ExchangeRows, Fragment, FragmentInput, FragmentRows, FragmentStage, RemoteExecutor, StageRows,
};
pub use scan::{Feed, FragmentScan};
pub use tables::Tables;

/// The number of rows of a batch.
const BATCH_ROWS: usize = 8 << 10;
