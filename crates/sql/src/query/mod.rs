//! A query from its text to its rows.
//!
//! - [`Query`] runs a query, and restarts if a plan ran out of memory, guessed types were wrong, or a node was lost.
//! - [`planning`] parses the text, corrects the plan and lets DataFusion optimize it.
//! - [`running`] executes the plan on threads of its own, and ends a plan that makes no progress.
//! - [`run_fragment`] runs the part of another machine's query on a node.
//! - [`table_names`] finds the names of tables in a text.

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

pub use fragment::run_fragment;
pub use names::table_names;

/// Returns the smallest budget of a query, in bytes.
pub fn smallest_memory_bytes() -> u64 {
    24 << 20
}

/// Returns the address space of the thread stacks of a query, in bytes; only used pages take memory.
pub fn stack_bytes(threads: usize) -> u64 {
    (PLANNER_STACK_BYTES + threads * STACK_BYTES) as u64
}

/// The counters of a query.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The number of rows that were returned.
    pub rows: u64,
    /// The counters of each operator of this crate, in plan order from the scans upwards.
    pub operators: Vec<OperatorStats>,
}

/// A running query: an iterator of record batches, which ends after the first error.
pub struct Query {
    job: Job,
    text: String,
    tables: Tables,
    limits: Limits,
    /// The running plan; `None` between two runs, and after a restart that failed.
    running: Option<Running>,
    schema: SchemaRef,
    /// The first batch, if it was computed in advance.
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
    /// Parses and plans `text` and begins to run the query, with the memory and threads of the job's budget. Until
    /// the first batch is requested, only footers and the first rows of CSV and JSON lines are read.
    ///
    /// Types of CSV and JSON lines are inferred from the first rows. For such tables the first batch is computed at
    /// once: if a row contradicts the inferred types, the query restarts with types that fit all rows, which may
    /// change the columns of the result. A query also restarts if it names a column that is missing in the first rows
    /// of JSON lines: all rows are then read to find the column.
    ///
    /// # Errors
    /// [`Error::Query`] for a text that is not one SELECT, EXPLAIN or VALUES, or names something that does not exist;
    /// [`Error::NoColumn`] for a column that no table has; [`Error::Table`] for files that cannot be read;
    /// [`Error::Store`] for a budget below [`smallest_memory_bytes`].
    pub fn start(job: &Job, text: &str, tables: Tables) -> Result<Query> {
        Query::start_within(job, text, tables, Limits::default())
    }

    pub(crate) fn start_within(job: &Job, text: &str, mut tables: Tables, limits: Limits) -> Result<Query> {
        check_budget(job.budget())?;
        let running = match Running::start(job, text, &tables, limits, PlanMode::BroadcastSmallSides) {
            // The first rows of two files suggest different types.
            Err(Error::Table(error)) if error.is_contradiction() && tables.are_guessed() => {
                tables.look_at_all_rows();
                Running::start(job, text, &tables, limits, PlanMode::BroadcastSmallSides)?
            }
            // The column is a member of later rows only, or does not exist.
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

    /// Computes the first batch in advance if that may show that inferred columns are wrong.
    fn make_first_batch(&mut self) {
        if self.tables.are_guessed() {
            self.first = Some(self.advance());
        }
    }

    /// Restarts after [a contradiction](inshore_tables::Error::is_contradiction), for callers that can discard the
    /// rows so far.
    ///
    /// The new run has columns that fit all rows, so the columns of the result may change. Returns false if the
    /// columns were not inferred.
    ///
    /// # Errors
    /// The errors are those of [`Query::start`].
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

    /// Returns the next rows, at least one; `None` at the end.
    ///
    /// # Errors
    /// The errors are those of [`Query::start`], and [`Error::Memory`] where an operator that cannot continue on flash
    /// needs more memory than there is (a cross join, a window over all rows).
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
            // No row was returned yet, so a restart cannot return a row twice.
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

    /// Renames the columns of a batch to the names of the result.
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

    /// Runs the query from the start, once the previous run holds no memory.
    fn begin_again(&mut self) -> Result<()> {
        let remote = self.running.take().and_then(|running| running.shared.remote.get().cloned());
        // Requests to nodes end soon after their receiver was dropped.
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

    /// Returns the counters so far.
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
