//! Remote table scans: fragments of a query run on the nodes (machines) that store a table.
//!
//! ```text
//!   client: plan ─► fragments (parts of the plan over one table) ─► rows of fragments ─► rest of the plan
//!                     │ text of the query, descriptions of tables,      ▲
//!                     ▼ number of the fragment                          │
//!   node:   plan ─► the same fragment, over the node's files ───────────┘
//! ```
//!
//! A fragment is a filter, a projection, a partial aggregate (its states are merged by the client), or an ORDER BY
//! with a LIMIT, directly over one table. Plans are not sent. Client and node plan the same text with the same
//! parameters. Before a run, the node compares the text of its fragment with the client's text. Plans therefore need
//! no serialized form, and partial states of any aggregate function can be merged.
//!
//! If the nodes can exchange rows with each other, a fragment may also contain joins, aggregates and windows over
//! several tables. It then has several stages: see [`stages`].
//!
//! Fragments exclude expressions whose values differ between machines, such as random(). The values of subqueries that run
//! before a fragment are sent with it (see [`subqueries`]). A node refuses a query if its plan differs from the client's plan. The plans differ, for example, between two
//! versions of the program, or if a filter contains now().
//!
//! In-store processing is described in chapter 5 of the 2014 thesis, and the cooperation of host and drives in section
//! 4.2 of the 2019 thesis (see docs/from-the-papers.md).

mod conditions;
mod exchange;
mod local_plan;
mod pushdown;
mod scan;
mod stages;
mod subqueries;
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

pub(crate) use self::{
    exchange::{Exchange, check_ranges},
    local_plan::LocalStage,
    pushdown::PushDownFragments,
    stages::{BROADCAST_ROWS_MAX, PartitionJoins},
    table::RemoteTable,
};
pub use self::{
    local_plan::{ExchangeRows, StageRows},
    stages::{FragmentInput, FragmentStage},
};
use crate::Error;

/// The parameters of planning, in addition to the query's text and tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Planning {
    /// The number of partitions of the plan.
    pub partitions: usize,
    /// The memory for which the plan is made.
    pub memory_bytes: u64,
    /// True if small join sides are broadcast: to all threads, and with exchanges to all nodes.
    pub is_bold: bool,
    /// True if fragments may have several stages, with exchanges of rows between nodes.
    pub with_exchanges: bool,
}

/// A part of a query that runs on nodes. It reads one table, or has several stages.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fragment {
    /// The table's name in the query. Empty if the fragment has stages.
    table: String,
    /// The stages, each after those that it reads. Empty if the fragment reads one table.
    stages: Vec<FragmentStage>,
    sql: String,
    tables: BTreeMap<String, TableMetadata>,
    planning: Planning,
    /// The index of the fragment among all fragments of the plan, from the root downwards.
    number: usize,
    /// The fragment's plan as text.
    plan: String,
    /// The values of the subqueries that the fragment uses, encoded. Empty if it uses none.
    values: Vec<u8>,
}

/// Access to tables on other machines: describes the tables, and runs fragments on those machines.
pub trait RemoteExecutor: Debug + Send + Sync {
    /// Describes the table that a query calls `name`. The columns in `as_text` are read as text. Returns `None` if no
    /// remote table has this name. The calling thread may block.
    ///
    /// # Errors
    /// Returns an error for a table that exists but cannot be read.
    fn describe(&self, job: &Job, name: &str, as_text: &[String]) -> crate::Result<Option<TableMetadata>>;

    /// Returns the memory for received rows of one running fragment, in bytes.
    fn answer_bytes(&self) -> u64;

    /// Returns the memory in bytes with which the client runs a share of a fragment itself, at most `_may_be_taken`.
    /// Returns 0 if the client runs no share.
    fn help_bytes(&self, _may_be_taken: u64) -> u64 {
        0
    }

    /// Returns true if the machines can exchange rows with each other, so that fragments may have several stages.
    fn has_exchanges(&self) -> bool {
        false
    }

    /// Starts a fragment. The budget of `job` is the sum of [`Self::answer_bytes`] and the reserved part of
    /// [`Self::help_bytes`]. The calling thread may block.
    ///
    /// # Errors
    /// Returns an error if the fragment cannot start.
    fn run(&self, job: &Job, fragment: Fragment) -> crate::Result<Box<dyn FragmentRows>>;
}

/// The result rows of a running fragment.
pub trait FragmentRows: Send {
    /// Returns the next rows if they arrive within `wait`. Returns `None` if no rows arrived, and `Some(None)` at the
    /// end.
    ///
    /// # Errors
    /// Returns [`Error::Interrupted`] if the fragment failed but can run again from the start.
    fn next_within(&mut self, wait: Duration) -> crate::Result<Option<Option<RecordBatch>>>;
}

/// The state that all fragments of a query share.
#[derive(Debug)]
pub(crate) struct RemoteTables {
    pub job: Job,
    pub elsewhere: Arc<dyn RemoteExecutor>,
    pub sql: String,
    pub planning: Planning,
    /// All tables of the query. The field is set when planning has found the tables.
    pub tables: OnceLock<BTreeMap<String, TableMetadata>>,
    /// The reservation for all fragments, and the bytes of each fragment. The reservation covers received rows and
    /// the client's share of the fragments. It is made during planning, since operators take all free memory when
    /// they begin.
    pub answers: OnceLock<(Reservation, u64)>,
}

/// The limits of a fragment that a node accepts: the bytes of the query's text, and the number of partitions.
const SQL_BYTES_MAX: usize = 256 << 10;
const PARTITIONS_MAX: usize = 4096;

impl Fragment {
    /// Returns an error if the fragment exceeds the limits of text bytes, partitions and values.
    pub(crate) fn check(&self) -> crate::Result<()> {
        let (bytes, partitions) = (self.sql.len(), self.planning.partitions);
        if bytes > SQL_BYTES_MAX || !(1..=PARTITIONS_MAX).contains(&partitions) {
            return Err(Error::Query(format!(
                "nodes take queries of up to {SQL_BYTES_MAX} bytes in up to {PARTITIONS_MAX} parts, got {bytes} and {partitions}"
            )));
        }
        if self.values.len() > subqueries::VALUES_BYTES_MAX {
            return Err(Error::Query("the values of subqueries exceed the limit of a request".to_string()));
        }
        Ok(())
    }

    pub(crate) fn sql(&self) -> &str {
        &self.sql
    }

    pub(crate) fn planning(&self) -> Planning {
        self.planning
    }

    /// Returns the table that the query calls `name`, with the columns that the fragment describes.
    pub(crate) fn table_of(&self, name: &str) -> Option<RemoteTable> {
        let known = self.tables.get(name)?;
        Some(RemoteTable::new(name, known.clone(), self.planning.partitions))
    }

    /// Returns the path that [`RemoteExecutor::describe`] returned for the fragment's table.
    pub fn path(&self) -> &str {
        self.tables.get(&self.table).map_or("", |known| &known.path)
    }

    /// Returns the stages, each after those that it reads. A fragment that reads one table has none.
    pub fn stages(&self) -> &[FragmentStage] {
        &self.stages
    }

    /// Returns the path that [`RemoteExecutor::describe`] returned for the table of a stage. Returns `None` if the
    /// stage reads exchanges.
    pub fn path_of(&self, stage: usize) -> Option<&str> {
        let FragmentInput::Table(table) = &self.stages.get(stage)?.input else { return None };
        Some(&self.tables.get(table)?.path)
    }

    /// Returns the metadata of the table that a stage reads.
    pub fn known_of(&self, stage: usize) -> Option<&TableMetadata> {
        let FragmentInput::Table(table) = &self.stages.get(stage)?.input else { return None };
        self.tables.get(table)
    }

    /// Returns the metadata of the fragment's table: its columns, and its row count if known.
    pub fn known(&self) -> Option<&TableMetadata> {
        self.tables.get(&self.table)
    }

    /// Returns the columns of the fragment's table.
    pub fn schema(&self) -> Option<&SchemaRef> {
        self.known().map(|known| &known.schema)
    }
}
