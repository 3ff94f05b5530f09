//! A query from its text to its rows.

use std::{sync::Arc, time::Duration};

use arrow::{datatypes::SchemaRef, record_batch::RecordBatch};
use datafusion::{
    common::TableReference,
    execution::{
        SendableRecordBatchStream, SessionStateBuilder,
        disk_manager::{DiskManagerBuilder, DiskManagerMode},
        runtime_env::RuntimeEnvBuilder,
    },
    physical_plan::{ExecutionPlan, execute_stream},
    prelude::{SQLOptions, SessionConfig, SessionContext},
    sql::{parser::Statement, sqlparser::ast::Statement as Asked},
};
use futures::StreamExt;
use inshore_store::{Budget, Job, release_code};
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::{
    Error, Result, Tables,
    files::BATCH_ROWS,
    functions::functions,
    memory::Memory,
    operator::{Limits, Ran, Replace, Shared},
    scan::Scan,
};

/// How long a stop may go unnoticed.
const PATIENCE: Duration = Duration::from_millis(100);
/// Stacks are used up by plans that are deep, of which the library makes many on its way.
const STACK_BYTES: usize = 8 << 20;

/// The smallest budget that a query works in.
pub fn smallest_memory_bytes() -> u64 {
    24 << 20
}

/// What a query did.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Rows that were given out.
    pub rows: u64,
    /// What each operator of ours did, in the order of the plan from below.
    pub operators: Vec<Ran>,
}

/// A query that runs: an iterator of record batches, which ends after the first error.
pub struct Query {
    job: Job,
    text: String,
    tables: Tables,
    limits: Limits,
    running: Running,
    schema: SchemaRef,
    rows: u64,
    ended: bool,
    /// Whether small sides of joins are given to all threads as they are.
    is_bold: bool,
}

struct Running {
    // The stream ends before what it runs on.
    stream: SendableRecordBatchStream,
    shared: Shared,
    runtime: Runtime,
}

impl Query {
    /// Parses and plans `text` and begins to run it, in the memory and with the threads of the job's budget. Nothing is
    /// read before the first batch is asked for but what tables say of themselves: footers, the first rows of CSV.
    ///
    /// # Errors
    /// [`Error::Query`] for what is not one SELECT, EXPLAIN or VALUES, or names what is not there; [`Error::Table`] for
    /// files that cannot be read; [`Error::Store`] for a budget below [`smallest_memory_bytes`].
    pub fn start(job: &Job, text: &str, tables: Tables) -> Result<Query> {
        Query::start_within(job, text, tables, Limits::default())
    }

    pub(crate) fn start_within(job: &Job, text: &str, tables: Tables, limits: Limits) -> Result<Query> {
        check_budget(job.budget())?;
        let running = Running::start(job, text, &tables, limits, true)?;
        let schema = running.stream.schema();
        let (job, text) = (job.clone(), text.to_string());
        Ok(Query { job, text, tables, limits, running, schema, rows: 0, ended: false, is_bold: true })
    }

    /// The columns of the result.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The next rows, at least one; `None` at the end.
    ///
    /// # Errors
    /// As [`Query::start`], and [`Error::Memory`] where an operator that cannot go on elsewhere needs more than there is
    /// (a cross join, a window over everything).
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        if self.ended {
            return Ok(None);
        }
        loop {
            let batch = self.running.next(&self.job);
            // A side of a join that was thought to be small was not. It is done again without such thoughts.
            if let Err(Error::Memory(_)) = &batch
                && self.is_bold
                && self.rows == 0
            {
                self.is_bold = false;
                self.running = Running::start(&self.job, &self.text, &self.tables, self.limits, false)?;
                continue;
            }
            self.ended = !matches!(batch, Ok(Some(_)));
            let batch = batch?;
            self.rows += batch.as_ref().map_or(0, |batch| batch.num_rows() as u64);
            if batch.as_ref().is_some_and(|batch| batch.num_rows() == 0) {
                continue;
            }
            return Ok(batch);
        }
    }

    /// What was done so far.
    pub fn report(&self) -> Report {
        Report { rows: self.rows, operators: self.running.shared.ran() }
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

impl Running {
    fn start(job: &Job, text: &str, tables: &Tables, limits: Limits, is_bold: bool) -> Result<Running> {
        let threads = job.budget().threads();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("query")
            .thread_stack_size(STACK_BYTES)
            .enable_time()
            .build()
            .map_err(|error| Error::Internal(format!("cannot start threads: {error}")))?;
        let memory = Arc::new(Memory::new(job.budget())?);
        let shared = Shared::new(job, memory.clone(), limits);
        let stream = runtime.block_on(plan(job, text, tables, &shared, is_bold))?;
        Ok(Running { stream, shared, runtime })
    }

    fn next(&mut self, job: &Job) -> Result<Option<RecordBatch>> {
        let stream = &mut self.stream;
        self.runtime.block_on(async {
            loop {
                job.check_cancelled()?;
                match tokio::time::timeout(PATIENCE, stream.next()).await {
                    Ok(batch) => return Ok(batch.transpose()?),
                    Err(_) => continue,
                }
            }
        })
    }
}

async fn plan(
    job: &Job,
    text: &str,
    tables: &Tables,
    shared: &Shared,
    is_bold: bool,
) -> Result<SendableRecordBatchStream> {
    let context = context(job, shared, is_bold)?;
    let state = context.state();
    let dialect = state.config().options().sql_parser.dialect;
    let statement = state.sql_to_statement(text, &dialect)?;
    check_asks(&statement)?;
    for reference in state.resolve_table_references(&statement)? {
        // generate_series and others like it are called, not found.
        let is_function = |table: &str| !tables.has(table) && state.table_functions().contains_key(table);
        if let TableReference::Bare { table } = &reference
            && !is_function(table)
        {
            context.register_table(reference.clone(), tables.find(job, table)?)?;
        }
    }
    let plan = context.state().statement_to_plan(statement).await?;
    let only_reading =
        SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    only_reading.verify_plan(&plan).map_err(|error| {
        Error::Query(format!(
            "only questions are answered (SELECT, EXPLAIN, VALUES): {}",
            error.strip_backtrace()
        ))
    })?;
    let frame = context.execute_logical_plan(plan).await?;
    let context = Arc::new(frame.task_ctx());
    let plan = frame.create_physical_plan().await?;
    job.start_phase("query", "bytes", bytes_read(&plan));
    // Planning runs through most of a large library, and what follows through little of it.
    release_code();
    Ok(execute_stream(plan, context)?)
}

/// Refuses what changes something.
fn check_asks(statement: &Statement) -> Result<()> {
    match statement {
        Statement::Statement(inner) if matches!(**inner, Asked::Query(_) | Asked::ExplainTable { .. }) => {
            Ok(())
        }
        Statement::Explain(explain) => check_asks(&explain.statement),
        other => {
            let text = other.to_string();
            let shown: String = text.chars().take(40).collect();
            Err(Error::Query(format!("only questions are answered (SELECT, EXPLAIN, VALUES), not {shown}")))
        }
    }
}

/// Bytes of all files that a plan reads.
fn bytes_read(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    let below: u64 = plan.children().into_iter().map(bytes_read).sum();
    below + plan.downcast_ref::<Scan>().map_or(0, Scan::bytes)
}

fn context(job: &Job, shared: &Shared, is_bold: bool) -> Result<SessionContext> {
    let scratch = job.scratch_path("sql");
    std::fs::create_dir_all(&scratch)
        .map_err(|error| Error::Internal(format!("{}: cannot make it: {error}", scratch.display())))?;
    let disk = DiskManagerBuilder::default().with_mode(DiskManagerMode::Directories(vec![scratch]));
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(shared.memory.clone())
        .with_disk_manager_builder(disk)
        .build_arc()?;
    let mut config = SessionConfig::new()
        .with_target_partitions(job.budget().threads())
        .with_batch_size(BATCH_ROWS)
        .with_information_schema(true);
    let options = config.options_mut();
    // Rows that are given to all threads at once must be few, since no sort takes over there.
    let (bytes, rows) = match is_bold {
        true => ((job.budget().memory_bytes() / 64) as usize, 200_000),
        false => (0, 0),
    };
    options.optimizer.hash_join_single_partition_threshold = bytes;
    options.optimizer.hash_join_single_partition_threshold_rows = rows;
    options.optimizer.enable_dynamic_filter_pushdown = false;
    // One stream of a merge may hold so much without asking.
    options.execution.sort_spill_reservation_bytes = (job.budget().memory_bytes() / 64) as usize;
    let state = SessionStateBuilder::new_with_default_features()
        .with_config(config)
        .with_runtime_env(runtime)
        .with_physical_optimizer_rule(Arc::new(Replace(shared.clone())))
        .build();
    let context = SessionContext::new_with_state(state);
    functions().into_iter().for_each(|function| context.register_udaf(function));
    Ok(context)
}
