//! Plans and runs a query, from its text to its result rows.
//!
//! - [`Query`] runs a query. The query restarts if a plan ran out of memory, inferred types were wrong, or a node was
//!   lost.
//! - [`planning`] parses the text, corrects the plan and lets DataFusion optimize it.
//! - [`running`] executes the plan on its own threads, and stops a plan that makes no progress.
//! - [`run_fragment`] runs a fragment (a part of another machine's query) on a node.
//! - [`table_names`] finds the names of the tables that a query reads.

mod fragment;
mod names;
mod planning;
mod running;

use std::{
    thread,
    time::{Duration, Instant},
};

use arrow::{
    datatypes::SchemaRef,
    record_batch::{RecordBatch, RecordBatchOptions},
};
use datafusion::error::DataFusionError;
use inshore_store::{Budget, Job};
use serde::Serialize;

use self::{
    planning::PlanMode,
    running::{PLANNER_STACK_BYTES, Running, STACK_BYTES, catch_panics},
};
use crate::{
    Error, Result, Tables,
    operators::{Limits, OperatorStats},
};

pub use fragment::{run_fragment, run_stage};
pub use names::table_names;

/// Returns the minimum memory budget of a query, in bytes.
pub fn smallest_memory_bytes() -> u64 {
    24 << 20
}

/// Returns the address space of a query's thread stacks, in bytes. Only the stack pages that are used take memory.
pub fn stack_bytes(threads: usize) -> u64 {
    (PLANNER_STACK_BYTES + threads * STACK_BYTES) as u64
}

/// The counters of a query.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The number of rows that were returned.
    pub rows: u64,
    /// The counters of each operator of this crate in the plan, from the scans to the root.
    pub operators: Vec<OperatorStats>,
}

/// A running query: an iterator of record batches, which ends after the first error.
pub struct Query {
    job: Job,
    text: String,
    tables: Tables,
    limits: Limits,
    /// The running plan. It is `None` between two runs, and after a failed restart.
    running: Option<Running>,
    schema: SchemaRef,
    /// The first batch of the result, if it was computed in advance.
    first: Option<Result<Option<RecordBatch>>>,
    rows: u64,
    ended: bool,
    mode: PlanMode,
    /// The number of restarts after a node was lost.
    restarts: usize,
}

/// The maximum number of restarts after a node was lost.
const RESTARTS_MAX: usize = 3;

/// The maximum time that a restart waits for requests to nodes to end.
const REMOTE_END_WAIT: Duration = Duration::from_secs(10);

impl Query {
    /// Parses and plans `text`, and starts the query with the memory and threads of the job's budget. Until the first
    /// batch is requested, the query reads only file footers, and the first rows of CSV and JSON Lines files.
    ///
    /// Column types of CSV and JSON Lines files are inferred from the first rows. For such tables, this function also
    /// computes the first batch. If a row contradicts the inferred types, the query restarts with types that fit all
    /// rows. The columns of the result may then change. A query also restarts if it refers to a column that is
    /// missing in the first rows of a JSON Lines file. The new run reads all rows to find the column.
    ///
    /// # Errors
    /// Returns [`Error::Query`] if `text` is not a single SELECT, EXPLAIN or VALUES, or refers to something that does
    /// not exist. Returns [`Error::NoColumn`] for a column that no table has, and [`Error::Table`] for a file that
    /// cannot be read. Returns [`Error::Store`] if the budget is below [`smallest_memory_bytes`].
    pub fn start(job: &Job, text: &str, tables: Tables) -> Result<Query> {
        Query::start_within(job, text, tables, Limits::default())
    }

    pub(crate) fn start_within(job: &Job, text: &str, mut tables: Tables, limits: Limits) -> Result<Query> {
        check_budget(job.budget())?;
        let running = match Running::start(job, text, &tables, limits, PlanMode::BroadcastSmallSides) {
            // The types inferred from the first rows of two files contradict each other.
            Err(Error::Table(error)) if error.is_contradiction() && tables.are_guessed() => {
                tables.look_at_all_rows();
                Running::start(job, text, &tables, limits, PlanMode::BroadcastSmallSides)?
            }
            // The column occurs only in later rows, or does not exist.
            Err(Error::NoColumn(_)) if tables.may_have_more_columns() => {
                tables.look_at_all_rows();
                Running::start(job, text, &tables, limits, PlanMode::BroadcastSmallSides)?
            }
            started => started?,
        };
        let schema = running.schema();
        let (job, text) = (job.clone(), text.to_string());
        let running = Some(running);
        let mut query = Query {
            job,
            text,
            tables,
            limits,
            running,
            schema,
            first: None,
            rows: 0,
            ended: false,
            mode: PlanMode::BroadcastSmallSides,
            restarts: 0,
        };
        query.make_first_batch();
        Ok(query)
    }

    /// If columns were inferred, computes the first batch in advance, which may show that the columns are wrong.
    fn make_first_batch(&mut self) {
        if self.tables.are_guessed() {
            self.first = Some(self.advance());
        }
    }

    /// Restarts the query after [a contradiction](inshore_tables::Error::is_contradiction). The caller must discard
    /// the rows that were already returned.
    ///
    /// The new run infers columns from all rows, so the columns of the result may change. The function returns false,
    /// and does not restart, if no columns were inferred from the first rows.
    ///
    /// # Errors
    /// Returns the errors of [`Query::start`].
    pub fn begin_exactly(&mut self) -> Result<bool> {
        if !self.tables.are_guessed() {
            return Ok(false);
        }
        self.tables.look_at_all_rows();
        (self.rows, self.ended, self.first) = (0, false, None);
        self.begin_again()?;
        self.make_first_batch();
        Ok(true)
    }

    /// Returns the columns of the result.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the next batch, with at least one row. Returns `None` at the end.
    ///
    /// # Errors
    /// Returns the errors of [`Query::start`]. Returns [`Error::Memory`] if an operator that cannot spill to flash (a
    /// cross join, a window over all rows) needs more memory than the budget has.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        match self.first.take() {
            Some(first) => first,
            None => self.advance(),
        }
    }

    fn advance(&mut self) -> Result<Option<RecordBatch>> {
        if self.ended {
            return Ok(None);
        }
        loop {
            let Some(running) = &mut self.running else { return Ok(None) };
            let batch = catch_panics(|| running.next(&self.job));
            if let Err(error) = &batch
                && error.is_of_memory()
                && let Some(more) = self.mode.more()
                && self.rows == 0
            {
                tracing::info!(%error, ?more, "a query is begun again");
                self.mode = more;
                self.begin_again()?;
                continue;
            }
            if let Err(Error::Table(error)) = &batch
                && error.is_contradiction()
                && self.rows == 0
                && self.tables.are_guessed()
            {
                tracing::info!(%error, "a query is begun again, with columns that fit all rows");
                self.tables.look_at_all_rows();
                self.begin_again()?;
                continue;
            }
            // A restart cannot return a row twice, since no row was returned yet.
            if let Err(Error::Interrupted(why)) = &batch
                && self.rows == 0
                && self.restarts < RESTARTS_MAX
            {
                self.restarts += 1;
                tracing::warn!(why, "a query is begun again");
                self.begin_again()?;
                continue;
            }
            self.ended = !matches!(batch, Ok(Some(_)));
            let batch = batch?;
            self.rows += batch.as_ref().map_or(0, |batch| batch.num_rows() as u64);
            if batch.as_ref().is_some_and(|batch| batch.num_rows() == 0) {
                continue;
            }
            return batch.map(|batch| self.named(batch)).transpose();
        }
    }

    /// Renames the columns of a batch to the column names of the result.
    fn named(&self, batch: RecordBatch) -> Result<RecordBatch> {
        let fields = self.schema.fields().iter().zip(batch.schema_ref().fields());
        if fields.into_iter().all(|(wanted, found)| wanted.name() == found.name()) {
            return Ok(batch);
        }
        let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        let named =
            RecordBatch::try_new_with_options(self.schema.clone(), batch.columns().to_vec(), &options);
        Ok(named.map_err(DataFusionError::from)?)
    }

    /// Runs the query again from the start, after the previous run has released its memory.
    fn begin_again(&mut self) -> Result<()> {
        let remote = self.running.take().and_then(|running| running.shared.remote.get().cloned());
        // Requests to nodes end soon after their receiver is dropped.
        let until = Instant::now() + REMOTE_END_WAIT;
        while remote.as_ref().is_some_and(|remote| remote.strong_count() > 0) && Instant::now() < until {
            self.job.check_cancelled()?;
            thread::sleep(Duration::from_millis(1));
        }
        let running = Running::start(&self.job, &self.text, &self.tables, self.limits, self.mode)?;
        self.schema = running.schema();
        self.running = Some(running);
        Ok(())
    }

    /// Returns the current counters of the query.
    pub fn report(&self) -> Report {
        let operators = self.running.as_ref().map(|running| running.shared.ran()).unwrap_or_default();
        Report { rows: self.rows, operators }
    }
}

impl Iterator for Query {
    type Item = Result<RecordBatch>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_batch().transpose()
    }
}

fn check_budget(budget: &Budget) -> Result<()> {
    let (given, smallest) = (budget.memory_bytes(), smallest_memory_bytes());
    if given < smallest {
        let what = "a query".to_string();
        return Err(Error::Store(inshore_store::Error::BudgetTooSmall { what, given, smallest }));
    }
    Ok(())
}
