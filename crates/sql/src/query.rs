//! A query from its text to its rows: parsing, planning, execution, and new attempts.

use std::{
    collections::BTreeMap,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use arrow::{
    datatypes::SchemaRef,
    record_batch::{RecordBatch, RecordBatchOptions},
};
use datafusion::{
    catalog::TableProvider,
    common::{TableReference, config::ConfigNonZeroUsize},
    error::DataFusionError,
    execution::{
        SendableRecordBatchStream, SessionStateBuilder, disk_manager::DiskManagerBuilder,
        runtime_env::RuntimeEnvBuilder,
    },
    logical_expr::LogicalPlan,
    physical_optimizer::PhysicalOptimizerRule,
    physical_plan::{ExecutionPlan, execute_stream},
    prelude::{SQLOptions, SessionConfig, SessionContext},
    sql::{parser::Statement, sqlparser::ast::Statement as Asked},
};
use futures::StreamExt;
use inshore_store::{Budget, Job, release_code};
use serde::Serialize;
use tokio::runtime::Runtime;

use crate::{
    BATCH_ROWS, Error, Feed, Fragment, Result, Tables,
    doing::{StageGuard, traced},
    memory::Memory,
    operators::{Limits, Ran, ReplaceOperators, Shared},
    remote::{Planning, PushDownFragments, RemoteTables},
    rules::{
        aggregates::functions,
        column_names::result_schema,
        corrections::{check_subqueries, correct_plan, correct_statement},
        distinct::distinct_as_groups,
        floats::EqualFloats,
        literals,
        nullif::nullif,
        overflow::CheckedNumbers,
        plan_size::{check_plan, check_statement, has_wildcard},
        scalar_functions::{CheckedLiterals, Corrections, restore_library_functions},
    },
    scan::{Needed, Scan},
    spills,
};

/// The interval at which a waiting query looks for a cancellation.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The number of polls, [`POLL_INTERVAL`] apart, after which a query without progress is ended: one minute.
const IDLE_POLLS_MAX: u32 = 600;
/// The stack of a thread of a query. Deep plans use it up, and DataFusion makes many on its way; only used pages take
/// memory.
const STACK_BYTES: usize = 64 << 20;
/// The stack of the thread that plans a query.
const PLANNER_STACK_BYTES: usize = 256 << 20;

/// DataFusion's message for texts or lists of a batch with more bytes or elements than 31 bits count.
const OVERFLOW: &str = "offset overflow";

/// Returns the smallest budget that a query works in, in bytes.
pub fn smallest_memory_bytes() -> u64 {
    24 << 20
}

/// Returns the address space of the stacks of a query with so many threads, in bytes; only used pages take memory.
pub fn stack_bytes(threads: usize) -> u64 {
    (PLANNER_STACK_BYTES + threads * STACK_BYTES) as u64
}

/// The counters of a query.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// The number of rows that were returned.
    pub rows: u64,
    /// The counters of each operator of ours, in the order of the plan from below.
    pub operators: Vec<Ran>,
}

/// A running query: an iterator of record batches, which ends after the first error.
pub struct Query {
    job: Job,
    text: String,
    tables: Tables,
    limits: Limits,
    /// `None` between two runs, and after a failed attempt to begin again.
    running: Option<Running>,
    schema: SchemaRef,
    /// The first answer, where it was computed in advance.
    first: Option<Result<Option<RecordBatch>>>,
    rows: u64,
    ended: bool,
    mode: PlanMode,
    /// The number of new attempts after a node was lost.
    restarts: usize,
}

/// How a query is planned. A query that runs out of memory before its first row is planned again in the next mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PlanMode {
    /// All threads get small sides of joins whole.
    BroadcastSmallSides,
    /// Both sides of every join are partitioned.
    PartitionAll,
    /// The plan has one partition, regardless of the threads: operators have all the memory that many partitions would
    /// divide, and success does not depend on the order of threads.
    OnePartition,
}

impl PlanMode {
    fn more(self) -> Option<PlanMode> {
        match self {
            PlanMode::BroadcastSmallSides => Some(PlanMode::PartitionAll),
            PlanMode::PartitionAll => Some(PlanMode::OnePartition),
            PlanMode::OnePartition => None,
        }
    }
}

/// Partitions with less memory than this would not get the floor of a sort.
const PART_BYTES_MIN: u64 = 8 << 20;

/// The greatest number of new attempts after a node was lost.
const RESTARTS_MAX: usize = 3;

/// The time that a new attempt waits for requests to nodes to end.
const REMOTE_END_WAIT: Duration = Duration::from_secs(10);

struct Running {
    // The stream is dropped before its runtime. It is `None` after an error.
    stream: Option<SendableRecordBatchStream>,
    shared: Shared,
    runtime: Runtime,
    parks: Arc<ParkCounts>,
    idle_polls_max: u32,
}

/// Counters of how often threads of a query became idle and were woken.
#[derive(Default)]
struct ParkCounts {
    parked: AtomicU64,
    woken: AtomicU64,
}

impl ParkCounts {
    /// Returns the number of parkings so far, if all `threads` are parked: while the number stays, no thread did
    /// anything.
    fn all_parked(&self, threads: usize) -> Option<u64> {
        let (woken, parked) = (self.woken.load(Ordering::SeqCst), self.parked.load(Ordering::SeqCst));
        (parked - woken == threads as u64).then_some(parked)
    }
}

impl Query {
    /// Parses and plans `text` and begins to run the query, with the memory and threads of the job's budget. Before the
    /// first batch is asked for, only footers and the first rows of CSV and JSON lines are read.
    ///
    /// Columns of CSV and JSON lines are guessed from the first rows. With such tables the first batch is made at once:
    /// if a row contradicts the guess, the query begins again with columns that fit all rows, which may change the
    /// columns of the result. A query that names a column which the first rows of JSON lines do not have begins again
    /// too: all rows are read to look for the column.
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
            // Only later rows have this member, or no row has it.
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

    /// Computes the first batch in advance where it may show that columns were guessed wrong.
    fn make_first_batch(&mut self) {
        if self.tables.are_guessed() {
            self.first = Some(self.advance());
        }
    }

    /// Begins again after [a contradiction](inshore_tables::Error::is_contradiction), for callers that can take back
    /// the rows they were given.
    ///
    /// The new run has columns that fit all rows, so the columns of the result may change. Returns false where the
    /// columns were not guessed.
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
            // No row was returned yet, so none can come twice.
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

    /// Gives the columns of a batch the names of the result.
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

    /// Runs the query from the start, once the run before holds no memory.
    fn begin_again(&mut self) -> Result<()> {
        let remote = self.running.take().and_then(|running| running.shared.remote.get().cloned());
        // Requests to nodes end soon after their receiver is gone.
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

impl Running {
    fn start(job: &Job, text: &str, tables: &Tables, limits: Limits, mode: PlanMode) -> Result<Running> {
        catch_panics(|| {
            on_large_stack(|| {
                Running::of(job, limits, async |shared: &Shared| plan(job, text, tables, shared, mode).await)
            })
        })
    }

    /// Returns the columns of the result, before the first row is asked for.
    fn schema(&self) -> SchemaRef {
        result_schema(&self.stream.as_ref().expect("it was just begun").schema())
    }

    /// Runs the plan that `plan` makes.
    fn of(
        job: &Job,
        limits: Limits,
        plan: impl AsyncFnOnce(&Shared) -> Result<SendableRecordBatchStream>,
    ) -> Result<Running> {
        let threads = job.budget().threads();
        let parks = Arc::new(ParkCounts::default());
        let (parking, waking) = (parks.clone(), parks.clone());
        let count = |number: &AtomicU64| {
            number.fetch_add(1, Ordering::SeqCst);
        };
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_name("query")
            .thread_stack_size(STACK_BYTES)
            .on_thread_park(move || count(&parking.parked))
            .on_thread_unpark(move || count(&waking.woken))
            .enable_time()
            .build()
            .map_err(|error| Error::Internal(format!("cannot start threads: {error}")))?;
        let memory = Arc::new(Memory::new(job.budget())?);
        let shared = Shared::new(job, memory.clone(), limits);
        let planning = StageGuard::begin("planning".into());
        let stream = runtime.block_on(plan(&shared))?;
        drop(planning);
        Ok(Running { stream: Some(stream), shared, runtime, parks, idle_polls_max: IDLE_POLLS_MAX })
    }

    fn next(&mut self, job: &Job) -> Result<Option<RecordBatch>> {
        let Some(mut stream) = self.stream.take() else { return Ok(None) };
        // The task runs on a thread with a stack for deep expressions.
        let asked = self.runtime.spawn(async move {
            let batch = stream.next().await;
            (stream, batch)
        });
        // The channel's timeout is used, since a timer of the runtime would wake threads that should sleep.
        let (answer, answered) = mpsc::sync_channel(1);
        self.runtime.spawn(async move { answer.send(asked.await) });
        let mut idle = None;
        let waited = loop {
            job.check_cancelled()?;
            match answered.recv_timeout(POLL_INTERVAL) {
                Ok(waited) => break waited,
                Err(RecvTimeoutError::Timeout) => self.check_progress(&mut idle)?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Internal("the threads of the query have ended".to_string()));
                }
            }
        };
        match waited {
            Ok((stream, batch)) => {
                self.stream = Some(stream);
                Ok(batch.transpose()?)
            }
            Err(panicked) => panic::resume_unwind(panicked.into_panic()),
        }
    }

    /// Ends a query that makes no progress. `idle` is the result of the last poll: the number of parkings, and for how
    /// many polls that number has stayed.
    ///
    /// A thread that computes, or waits for a drive, is not parked. When all threads are parked, only one of their
    /// tasks, a read of a spill file or a node could wake one: nodes have deadlines of their own, and reads take less
    /// than a minute.
    fn check_progress(&self, idle: &mut Option<(u64, u32)>) -> Result<()> {
        self.shared.spills.check()?;
        let threads = self.shared.job.budget().threads();
        let is_elsewhere = self.shared.remote.get().is_some_and(|remote| remote.strong_count() > 0);
        let parked = self.parks.all_parked(threads).filter(|_| !is_elsewhere);
        *idle = parked.map(|parked| match *idle {
            Some((before, looks)) if before == parked => (parked, looks + 1),
            _ => (parked, 1),
        });
        match idle {
            Some((_, looks)) if *looks > self.idle_polls_max => Err(Error::Internal(
                "all its threads wait for each other, a fault of DataFusion 55.2; with --threads 1 \
                 the query does not wait"
                    .to_string(),
            )),
            _ => Ok(()),
        }
    }
}

/// Turns a panic into an error. DataFusion asserts some of its inputs, among them the partial aggregates that nodes
/// send; then the query fails, and the process goes on.
fn catch_panics<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let text = match panic::catch_unwind(AssertUnwindSafe(work)) {
        // Another thread panicked.
        Ok(Err(Error::Internal(text))) if text.contains(OVERFLOW) => text,
        Ok(done) => return done,
        Err(panicked) => {
            let text = panicked.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panicked.downcast_ref::<&str>().map(|text| text.to_string()));
            text.unwrap_or_else(|| "the panic has no text".to_string())
        }
    };
    tracing::error!(text, "DataFusion panicked");
    Err(match text.contains(OVERFLOW) {
        true => Error::Query(
            "one batch of the query's rows has more than 2 GiB of text or 2^31 list elements, the limit of a batch".to_string(),
        ),
        false => Error::Internal(
            "DataFusion met a state that it does not expect; write the query in another way".to_string(),
        ),
    })
}

async fn plan(
    job: &Job,
    text: &str,
    tables: &Tables,
    shared: &Shared,
    mode: PlanMode,
) -> Result<SendableRecordBatchStream> {
    let (threads, memory_bytes) = (job.budget().threads(), job.budget().memory_bytes());
    let partitions = match mode {
        PlanMode::OnePartition => 1,
        _ => threads.min((memory_bytes / PART_BYTES_MIN) as usize).max(1),
    };
    // With one partition, DataFusion would make no partial aggregates.
    let partitions = if tables.elsewhere().is_some() { partitions.max(2) } else { partitions };
    let planning = Planning { partitions, memory_bytes, is_bold: mode == PlanMode::BroadcastSmallSides };
    let remote = tables.elsewhere().map(|elsewhere| {
        Arc::new(RemoteTables {
            job: job.clone(),
            elsewhere: elsewhere.clone(),
            sql: text.to_string(),
            planning,
            tables: OnceLock::new(),
            answers: OnceLock::new(),
        })
    });
    if let Some(remote) = &remote {
        shared.remote.set(Arc::downgrade(remote)).expect("set once");
    }
    let mut rules: Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> = Vec::new();
    rules.extend(remote.clone().map(|remote| Arc::new(PushDownFragments(remote)) as _));
    rules.push(Arc::new(ReplaceOperators(shared.clone())));
    let context = context(job, shared, planning, rules)?;
    let mut all_known = BTreeMap::new();
    let find = |name: &str, is_whole: bool| {
        // Table functions such as generate_series are called, not looked up.
        if !tables.has(name) && context.state().table_functions().contains_key(name) {
            return Ok(None);
        }
        let (table, known) = tables.find(job, name, &planning, is_whole)?;
        all_known.extend(known.map(|known| (name.to_string(), known)));
        Ok(Some(table))
    };
    let plan = logical_plan(&context, text, memory_bytes, find).await?;
    if let Some(remote) = remote {
        remote.tables.set(all_known).expect("set once");
    }
    let frame = context.execute_logical_plan(plan).await?;
    let context = Arc::new(frame.task_ctx());
    let (state, plan) = frame.into_parts();
    let plan = state.optimize(&plan)?;
    check_subqueries(&plan)?;
    let plan = state.query_planner().create_physical_plan(&plan, &state).await?;
    job.start_phase("query", "bytes", bytes_read(&plan));
    // Planning touches most of a large library, and execution little of it.
    release_code();
    Ok(execute_stream(traced(plan)?, context)?)
}

/// Returns the memory that plans are made for: at most that of the job, and at most that of the client, whose plan has
/// to be the same.
fn memory_of(job: &Job, planning: &Planning) -> u64 {
    planning.memory_bytes.min(job.budget().memory_bytes())
}

/// Parses a query, finds its tables, and makes a plan that is not too large for `memory_bytes`. `find` also learns
/// whether the query has a wildcard, so that all columns may be needed.
async fn logical_plan(
    context: &SessionContext,
    text: &str,
    memory_bytes: u64,
    mut find: impl FnMut(&str, bool) -> Result<Option<Arc<dyn TableProvider>>>,
) -> Result<LogicalPlan> {
    let state = context.state();
    let dialect = state.config().options().sql_parser.dialect;
    let mut statement = state.sql_to_statement(text, &dialect)?;
    check_is_query(&statement)?;
    check_statement(&statement)?;
    correct_statement(&mut statement)?;
    let is_whole = has_wildcard(&statement);
    for reference in state.resolve_table_references(&statement)? {
        if let TableReference::Bare { table } = &reference
            && let Some(table) = find(table, is_whole)?
        {
            context.register_table(reference.clone(), table)?;
        }
    }
    let plan = context.state().statement_to_plan(statement).await?;
    check_plan(&plan, memory_bytes)?;
    let only_reading =
        SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    only_reading.verify_plan(&plan).map_err(|error| {
        Error::Query(format!(
            "only queries are answered (SELECT, EXPLAIN, VALUES): {}",
            error.strip_backtrace()
        ))
    })?;
    Ok(restore_library_functions(distinct_as_groups(correct_plan(plan)?)?)?)
}

/// Runs a [`Fragment`] of a client's query over files of this machine.
///
/// The files have the columns of the fragment's table. `needed` is called with the byte ranges that will be read before
/// the first file is asked for, and `each` with every batch of rows.
///
/// # Errors
/// The errors are those of [`Query::start`] and [`Query::next_batch`], [`Error::Query`] where this machine makes
/// another plan than the client, and the errors of `each`.
pub fn run_fragment(
    job: &Job,
    fragment: &Fragment,
    feed: Feed,
    needed: impl FnOnce(Needed) + Send,
    each: impl FnMut(RecordBatch) -> Result<()> + Send,
) -> Result<Report> {
    check_budget(job.budget())?;
    fragment.check()?;
    catch_panics(|| on_large_stack(|| run_fragment_here(job, fragment, feed, needed, each)))
}

/// Runs a function that walks through plans on a large stack: a query of many terms is a deep tree, which is walked and
/// dropped recursively.
fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("planner".to_string()).stack_size(PLANNER_STACK_BYTES);
        let planning = builder.spawn_scoped(scope, work);
        let planning =
            planning.map_err(|error| Error::Internal(format!("cannot start a thread: {error}")))?;
        planning.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
    })
}

fn run_fragment_here(
    job: &Job,
    fragment: &Fragment,
    feed: Feed,
    needed: impl FnOnce(Needed),
    mut each: impl FnMut(RecordBatch) -> Result<()>,
) -> Result<Report> {
    let mut running = Running::of(job, Limits::default(), async |shared: &Shared| {
        let context = context(job, shared, fragment.planning(), Vec::new())?;
        let memory_bytes = memory_of(job, &fragment.planning());
        let mut has_whole_rows = false;
        let find = |name: &str, is_whole: bool| {
            has_whole_rows |= is_whole;
            Ok(fragment.table_of(name).map(|table| Arc::new(table) as Arc<dyn TableProvider>))
        };
        let plan = logical_plan(&context, fragment.sql(), memory_bytes, find).await?;
        let frame = context.execute_logical_plan(plan).await?;
        let task = Arc::new(frame.task_ctx());
        let plan = frame.create_physical_plan().await?;
        let plan = fragment.of_plan(job, plan, feed, has_whole_rows)?;
        let options = context.state().config().options().clone();
        let plan = ReplaceOperators(shared.clone()).optimize(plan, &options)?;
        job.start_phase("query", "bytes", bytes_read(&plan));
        if let Some(scan) = scan_of(&plan) {
            needed(scan.needed());
        }
        release_code();
        Ok(execute_stream(traced(plan)?, task)?)
    })?;
    let mut rows = 0;
    while let Some(batch) = running.next(job)? {
        rows += batch.num_rows() as u64;
        each(batch)?;
    }
    Ok(Report { rows, operators: running.shared.ran() })
}

/// Refuses statements that would change data.
fn check_is_query(statement: &Statement) -> Result<()> {
    match statement {
        Statement::Statement(inner) if matches!(**inner, Asked::Query(_) | Asked::ExplainTable { .. }) => {
            Ok(())
        }
        Statement::Explain(explain) => check_is_query(&explain.statement),
        other => {
            let text = other.to_string();
            let shown: String = text.chars().take(40).collect();
            Err(Error::Query(format!("only queries are answered (SELECT, EXPLAIN, VALUES), not {shown}")))
        }
    }
}

/// Finds the scan of a fragment's table.
fn scan_of(plan: &Arc<dyn ExecutionPlan>) -> Option<&Scan> {
    plan.downcast_ref::<Scan>().or_else(|| plan.children().into_iter().find_map(scan_of))
}

/// Sums the bytes of all files that a plan reads.
fn bytes_read(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    let below: u64 = plan.children().into_iter().map(bytes_read).sum();
    below + plan.downcast_ref::<Scan>().map_or(0, Scan::bytes)
}

fn context(
    job: &Job,
    shared: &Shared,
    planning: Planning,
    rules: Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>>,
) -> Result<SessionContext> {
    let disk = DiskManagerBuilder::default().with_temp_file_factory(shared.spills.clone());
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(shared.memory.clone())
        .with_disk_manager_builder(disk)
        .build_arc()?;
    let mut config = SessionConfig::new()
        .with_target_partitions(planning.partitions)
        .with_batch_size(BATCH_ROWS)
        .with_information_schema(true);
    let options = config.options_mut();
    // A join side that all threads get whole must be small, since no sort takes over there.
    let (bytes, rows) = match planning.is_bold {
        true => ((planning.memory_bytes / 64) as usize, 200_000),
        false => (0, 0),
    };
    options.optimizer.hash_join_single_partition_threshold = bytes;
    options.optimizer.hash_join_single_partition_threshold_rows = rows;
    options.optimizer.enable_topk_dynamic_filter_pushdown = false;
    options.optimizer.enable_join_dynamic_filter_pushdown = false;
    options.optimizer.enable_aggregate_dynamic_filter_pushdown = false;
    options.execution.max_spill_file_size_bytes = ConfigNonZeroUsize::try_new(spills::FILE_BYTES_MAX)?;
    // One stream of a merge may hold this much without asking.
    options.execution.sort_spill_reservation_bytes = (job.budget().memory_bytes() / 64) as usize;
    let mut state =
        SessionStateBuilder::new_with_default_features().with_config(config).with_runtime_env(runtime);
    let corrections = Corrections { memory_bytes: memory_of(job, &planning) };
    state.expr_planners().get_or_insert_default().insert(0, Arc::new(CheckedLiterals(corrections)));
    let equal_floats = Arc::new(EqualFloats::default());
    state = state.with_analyzer_rule(equal_floats.clone()).with_optimizer_rule(equal_floats);
    state = state.with_analyzer_rule(Arc::new(CheckedNumbers));
    for rule in rules {
        state = state.with_physical_optimizer_rule(rule);
    }
    let context = SessionContext::new_with_state(state.build());
    functions().into_iter().for_each(|function| context.register_udaf(function));
    let scalar = context.state().scalar_functions().clone();
    scalar
        .values()
        .filter_map(|function| corrections.corrected(function))
        .for_each(|function| context.register_udf(function));
    context.register_udf(literals::FUNCTION.as_ref().clone());
    if let Some(original) = scalar.get("nullif") {
        context.register_udf(nullif(original.clone()));
    }
    Ok(context)
}

#[cfg(test)]
mod tests {
    use arrow::{
        array::Int64Array,
        datatypes::{DataType, Field, Schema},
    };
    use datafusion::{
        datasource::MemTable,
        error::Result as LibraryResult,
        physical_expr::expressions::Column,
        physical_plan::{
            Partitioning, coalesce_partitions::CoalescePartitionsExec, repartition::RepartitionExec,
            stream::RecordBatchStreamAdapter,
        },
    };
    use futures::stream;
    use inshore_store::{Cancel, Store};

    use super::*;

    fn job(memory_bytes: u64, threads: usize) -> (tempfile::TempDir, Job) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("store")).unwrap();
        let job = store.job(Budget::new(memory_bytes, threads), Cancel::default()).unwrap();
        (folder, job)
    }

    #[test]
    fn a_query_whose_threads_all_wait_ends_with_an_error() {
        for threads in [1, 3] {
            let (_folder, job) = job(24 << 20, threads);
            let schema = Arc::new(Schema::new(vec![Field::new("k", DataType::Int64, true)]));
            let pending =
                Box::pin(RecordBatchStreamAdapter::new(schema, stream::pending::<LibraryResult<_>>()));
            let mut running = Running::of(&job, Limits::default(), async |_| Ok(pending as _)).unwrap();
            running.idle_polls_max = 2;
            let error = running.next(&job).unwrap_err().to_string();
            assert!(error.contains("all its threads wait for each other"), "{error}");
        }
    }

    /// A thread that works is waited for, however long it takes.
    #[test]
    fn a_query_that_computes_for_long_goes_on() {
        let (_folder, job) = job(24 << 20, 2);
        let schema = Arc::new(Schema::new(vec![Field::new("k", DataType::Int64, true)]));
        let batch = RecordBatch::new_empty(schema.clone());
        let slow = stream::once(async move {
            thread::sleep(POLL_INTERVAL * 6);
            LibraryResult::Ok(batch)
        });
        let slow = Box::pin(RecordBatchStreamAdapter::new(schema, slow));
        let mut running = Running::of(&job, Limits::default(), async |_| Ok(slow as _)).unwrap();
        running.idle_polls_max = 2;
        assert!(running.next(&job).unwrap().is_some());
    }

    /// Each batch goes through a file, since there is no memory for any: several inputs write at once, and readers wait
    /// for them. INSHORE_SPILLING sets the number of rounds.
    #[test]
    fn an_exchange_whose_batches_all_go_to_flash_ends() {
        let rounds: usize = std::env::var("INSHORE_SPILLING").map_or(6, |rounds| rounds.parse().unwrap());
        for round in 0..rounds {
            let parts = 2 + round % 7;
            let (folder, job) = job(24 << 20, parts);
            let rest =
                job.budget().reserve(job.budget().free_bytes() - (1 << 20), "what others have").unwrap();
            let column: Vec<i64> = (0..100_000).collect();
            let schema = Arc::new(Schema::new(vec![Field::new("k", DataType::Int64, true)]));
            let batch =
                RecordBatch::try_new(schema.clone(), vec![Arc::new(Int64Array::from(column))]).unwrap();
            let input: Vec<RecordBatch> = (0..20).map(|piece| batch.slice(piece * 5000, 5000)).collect();
            let table = MemTable::try_new(schema, vec![input; parts]).unwrap();
            let planning = Planning { partitions: parts, memory_bytes: 24 << 20, is_bold: false };
            let plan = async |shared: &Shared| {
                let context = context(&job, shared, planning, Vec::new())?;
                let scan = table.scan(&context.state(), None, &[], None).await?;
                let by = Partitioning::Hash(vec![Arc::new(Column::new("k", 0)) as _], parts);
                let exchange = Arc::new(RepartitionExec::try_new(scan, by)?);
                let all = Arc::new(CoalescePartitionsExec::new(exchange));
                Ok(execute_stream(all, context.task_ctx())?)
            };
            let mut running = Running::of(&job, Limits::default(), plan).unwrap();
            let mut rows = 0;
            while let Some(batch) =
                running.next(&job).unwrap_or_else(|error| panic!("{parts} parts: {error}"))
            {
                rows += batch.num_rows();
            }
            assert_eq!(rows, parts * 100_000);
            drop(running);
            let left = std::fs::read_dir(folder.path().join("store/scratch")).unwrap();
            let files = left.flatten().filter_map(|owner| std::fs::read_dir(owner.path().join("sql-0")).ok());
            assert_eq!(
                files.map(|files| files.count()).collect::<Vec<_>>(),
                [0],
                "batches were spilled, and removed"
            );
            drop(rest);
            assert_eq!(job.budget().reserved_bytes(), 0);
        }
    }
}
