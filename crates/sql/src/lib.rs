//! SQL over files and datasets, finished by sort-reduce where memory is short.
//!
//! DataFusion parses, plans and computes; this crate gives it three things that it has not: tables that are read within a
//! budget (their files), a memory pool that is the job's budget, and operators that go on where memory ends. The nouns:
//!
//! - [`Tables`]: what names in a query mean: files by their paths, and names that were given.
//! - [`Query`]: a query that runs; an iterator of record batches.
//! - [`Elsewhere`]: tables on other machines, where [fragments](Fragment) of a query run ([`run_fragment`]).
//! - [`Ran`]: what an operator did: how it grouped, sorted or joined, and what it wrote to flash.
//!
//! ```text
//!   GROUP BY, DISTINCT   a table in memory; full, its states go to a sort of rows and meet again there   (group.rs)
//!   ORDER BY             a sort of rows; of numbers that fit 64 bits together, sort-reduce              (order.rs)
//!   equi-join            a table of one side; where it does not fit, both sides are sorted and merged    (join.rs)
//! ```
//!
//! Which way an operator goes is decided while it runs, by what comes in and what is free: an estimate of the planner may
//! be wrong by a factor of a thousand, and nothing fails because of it.
//!
//! All of it runs in the process of the caller. Operators count what they hold against the budget; the memory that functions of the library take
//! while they compute is neither counted nor foreseen, and no stop is heard within one call. So whoever runs queries of others, or wants a limit
//! that holds whatever is asked, runs the whole query in a process with a limit of its own, as the command, Python and nodes do
//! (docs/decisions/0031, 0033, 0034). [`doing()`] tells such a process what it was at when it reached the limit.
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

mod checked;
mod distinct;
mod doing;
mod elsewhere;
mod error;
mod faults;
mod feed;
mod files;
mod floats;
mod functions;
mod group;
mod join;
mod literals;
mod memory;
mod mended;
mod names;
mod nullif;
mod number_order;
mod numbers;
mod once;
mod operator;
mod order;
mod plan_size;
mod query;
mod scan;
mod spills;
mod tables;
#[cfg(test)]
mod tests;

pub use doing::doing;
pub use elsewhere::{Elsewhere, Fragment, FragmentRows};
pub use error::{Error, Result};
pub use feed::Feed;
pub use inshore_tables::Known;
pub use operator::Ran;
pub use query::{Query, Report, run_fragment, smallest_memory_bytes, stack_bytes};
pub use scan::Needed;
pub use tables::Tables;
