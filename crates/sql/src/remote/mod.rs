//! Remote table scans: fragments of a query run on the nodes that hold a table.
//!
//! ```text
//!   client: plan ─► fragments: parts of the plan over one table ─► rows of fragments ─► rest of the plan
//!                     │ text of the query, descriptions of tables,      ▲
//!                     ▼ number of the fragment                          │
//!   node:   plan ─► the same fragment, over the node's files ───────────┘
//! ```
//!
//! A fragment is a filter, a projection, the partial half of a GROUP BY (states of groups, which the client merges), or
//! the first rows of an ORDER BY with a LIMIT, directly over one table. Plans are not sent: client and node plan the
//! same text with the same parameters, and the node compares the text of the fragment before a run. So plans need no
//! serialized form, and partial states of any aggregate function can be merged.
//!
//! Expressions whose value differs between machines stay out of fragments: random() and results of subqueries. A node
//! refuses a query whose plan differs (two versions of the program, now() in a filter).
//!
//! Paper: in-store processing, 2014 thesis chapter 5; host and drives together, 2019 thesis 4.2.

mod local_plan;
mod pushdown;
mod scan;
mod table;

use std::{
    collections::BTreeMap,
    fmt::Debug,
    sync::{Arc, OnceLock},
    time::Duration,
};

use arrow::{datatypes::SchemaRef, record_batch::RecordBatch};
use inshore_store::{Job, Reservation};
use inshore_tables::TableMetadata;
use serde::{Deserialize, Serialize};

pub(crate) use self::{pushdown::PushDownFragments, table::RemoteTable};
use crate::Error;

/// The parameters of planning, beside the text and the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Planning {
    /// The number of partitions that rows are divided into.
    pub partitions: usize,
    /// The memory that the plan is made for.
    pub memory_bytes: u64,
    /// Small sides of joins are broadcast to all threads.
    pub is_bold: bool,
}

/// A part of a query over one table, which nodes run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fragment {
    /// The table's name in the query.
    table: String,
    sql: String,
    tables: BTreeMap<String, TableMetadata>,
    planning: Planning,
    /// The index of the fragment among those of the plan, from the root down.
    number: usize,
    /// The fragment's plan as text.
    plan: String,
}

/// Tables on other machines, and a way to run fragments there.
pub trait RemoteExecutor: Debug + Send + Sync {
    /// Describes the table that a query calls `name`, with the columns in `as_text` as text; `None` for a name that is
    /// no remote table. The calling thread may block.
    ///
    /// # Errors
    /// The implementation returns an error for a table that exists and cannot be read.
    fn describe(&self, job: &Job, name: &str, as_text: &[String]) -> crate::Result<Option<TableMetadata>>;

    /// Returns the memory for the answers of a fragment in flight, in bytes.
    fn answer_bytes(&self) -> u64;

    /// Returns the memory that the client uses for its own share of a fragment, at most `_may_be_taken`; 0 for none.
    fn help_bytes(&self, _may_be_taken: u64) -> u64 {
        0
    }

    /// Begins to run a fragment, in a job with [`Self::answer_bytes`] and the memory of [`Self::help_bytes`]. The
    /// calling thread may block.
    ///
    /// # Errors
    /// The implementation returns an error where the fragment cannot begin.
    fn run(&self, job: &Job, fragment: Fragment) -> crate::Result<Box<dyn FragmentRows>>;
}

/// The rows of a fragment.
pub trait FragmentRows: Send {
    /// Returns the next rows if they come within `wait`: `None` after `wait` without rows, `Some(None)` at the end.
    ///
    /// # Errors
    /// [`Error::Interrupted`] means that the fragment can be run again from the start.
    fn next_within(&mut self, wait: Duration) -> crate::Result<Option<Option<RecordBatch>>>;
}

/// The state that the fragments of a query share.
#[derive(Debug)]
pub(crate) struct RemoteTables {
    pub job: Job,
    pub elsewhere: Arc<dyn RemoteExecutor>,
    pub sql: String,
    pub planning: Planning,
    /// All tables of the query, set once they are known.
    pub tables: OnceLock<BTreeMap<String, TableMetadata>>,
    /// The memory for the answers of all fragments and the client's own share, and the bytes of each fragment. The
    /// memory is reserved while planning, since operators take all free memory when they begin.
    pub answers: OnceLock<(Reservation, u64)>,
}

/// The limits of a fragment that a node plans: bytes of the query's text, and partitions.
const SQL_BYTES_MAX: usize = 256 << 10;
const PARTITIONS_MAX: usize = 4096;

impl Fragment {
    /// Refuses fragments beyond the limits of text and partitions.
    pub(crate) fn check(&self) -> crate::Result<()> {
        let (bytes, partitions) = (self.sql.len(), self.planning.partitions);
        if bytes > SQL_BYTES_MAX || !(1..=PARTITIONS_MAX).contains(&partitions) {
            return Err(Error::Query(format!(
                "nodes take queries of up to {SQL_BYTES_MAX} bytes in up to {PARTITIONS_MAX} parts, got {bytes} and {partitions}"
            )));
        }
        Ok(())
    }

    pub(crate) fn sql(&self) -> &str {
        &self.sql
    }

    pub(crate) fn planning(&self) -> Planning {
        self.planning
    }

    /// Returns the table that the query calls `name`, as the fragment describes it.
    pub(crate) fn table_of(&self, name: &str) -> Option<RemoteTable> {
        let known = self.tables.get(name)?;
        Some(RemoteTable::new(name, known.clone(), self.planning.partitions))
    }

    /// Returns the path that [`RemoteExecutor::describe`] gave the fragment's table.
    pub fn path(&self) -> &str {
        self.tables.get(&self.table).map_or("", |known| &known.path)
    }

    /// Returns the columns of the fragment's table, and its row count if known.
    pub fn known(&self) -> Option<&TableMetadata> {
        self.tables.get(&self.table)
    }

    /// Returns the columns of the fragment's table.
    pub fn schema(&self) -> Option<&SchemaRef> {
        self.known().map(|known| &known.schema)
    }
}
