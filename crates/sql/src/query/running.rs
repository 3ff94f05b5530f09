//! Runs a plan on its own threads, while the caller waits for batches and checks for cancellation.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use arrow::{datatypes::SchemaRef, record_batch::RecordBatch};
use datafusion::execution::SendableRecordBatchStream;
use futures::StreamExt;
use inshore_store::Job;
use tokio::runtime::Runtime;

use super::planning::{PlanMode, plan};
use crate::{
    Error, Result, Tables,
    current_operator::StageGuard,
    memory::Memory,
    operators::{Limits, Shared},
    rules::column_names::result_schema,
};

/// The interval at which a waiting query checks for cancellation.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// The number of polls after which a query without progress is stopped. At [`POLL_INTERVAL`], this number of polls
/// takes one minute.
const IDLE_POLLS_MAX: u32 = 600;
/// The stack size of a thread of a query. DataFusion visits plans recursively, and plans can be deep. Only the stack
/// pages that are used take memory.
pub(super) const STACK_BYTES: usize = 64 << 20;
/// The stack size of the thread that plans a query.
pub(super) const PLANNER_STACK_BYTES: usize = 256 << 20;

/// DataFusion's message for a batch in which the bytes of a text column, or the elements of a list column, exceed 31
/// bits.
const OVERFLOW: &str = "offset overflow";

/// A plan that runs on its own threads.
pub(super) struct Running {
    // The stream is the first field, since it must be dropped before its runtime. It is `None` after an error.
    stream: Option<SendableRecordBatchStream>,
    pub shared: Shared,
    runtime: Runtime,
    parks: Arc<ParkCounts>,
    idle_polls_max: u32,
}

/// Counts how often threads of a query became idle (parked), and how often they were woken.
#[derive(Default)]
struct ParkCounts {
    parked: AtomicU64,
    woken: AtomicU64,
}

impl ParkCounts {
    /// Returns the total number of parkings if all `threads` are parked now; otherwise `None`. While that number is
    /// constant, no thread has run.
    fn all_parked(&self, threads: usize) -> Option<u64> {
        let (woken, parked) = (self.woken.load(Ordering::SeqCst), self.parked.load(Ordering::SeqCst));
        (parked - woken == threads as u64).then_some(parked)
    }
}

impl Running {
    /// Plans a query and begins to run it.
    pub fn start(job: &Job, text: &str, tables: &Tables, limits: Limits, mode: PlanMode) -> Result<Running> {
        catch_panics(|| {
            on_large_stack(|| {
                Running::of(job, limits, async |shared: &Shared| plan(job, text, tables, shared, mode).await)
            })
        })
    }

    /// Returns the columns of the result. The call must precede the first call of [`Self::next`].
    pub fn schema(&self) -> SchemaRef {
        result_schema(&self.stream.as_ref().expect("it was just begun").schema())
    }

    /// Starts the plan that `plan` creates.
    pub fn of(
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

    /// Returns the next batch, which may have no rows. Returns `None` at the end.
    pub fn next(&mut self, job: &Job) -> Result<Option<RecordBatch>> {
        let Some(mut stream) = self.stream.take() else { return Ok(None) };
        // The task runs on a thread of the runtime, whose stack is large enough for deep expressions.
        let asked = self.runtime.spawn(async move {
            let batch = stream.next().await;
            (stream, batch)
        });
        // The wait uses the channel's timeout, since a timer of the runtime would wake threads that should sleep.
        let (answer, answered) = mpsc::sync_channel(1);
        self.runtime.spawn(async move { answer.send(asked.await) });
        let mut idle = None;
        let waited = loop {
            job.check_cancelled()?;
            match answered.recv_timeout(POLL_INTERVAL) {
                Ok(waited) => break waited,
                Err(RecvTimeoutError::Timeout) => self.check_progress(&mut idle)?,
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(Error::Internal("the threads of the query ended early".to_string()));
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

    /// Stops a query that makes no progress. `idle` contains the total number of parkings at the last poll, and the
    /// number of polls for which that total has been constant.
    ///
    /// A thread that computes, or waits for a drive, is not parked. If all threads are parked, only another task, a
    /// read of a spill file, or a node's answer can wake a thread. Requests to nodes have their own deadlines, and
    /// reads take less than a minute.
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

/// Converts a panic to an error. DataFusion asserts properties of some inputs, such as the partial aggregates of
/// nodes. A failed assertion ends only the query, not the process.
pub(super) fn catch_panics<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    let text = match panic::catch_unwind(AssertUnwindSafe(work)) {
        // Another thread panicked, and the panic was already converted to an error.
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

/// Runs a function on a thread with a large stack. The plan of a query with many terms is a deep tree, which is
/// visited and dropped recursively.
pub(super) fn on_large_stack<T: Send>(work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
    thread::scope(|scope| {
        let builder = thread::Builder::new().name("planner".to_string()).stack_size(PLANNER_STACK_BYTES);
        let planning = builder.spawn_scoped(scope, work);
        let planning =
            planning.map_err(|error| Error::Internal(format!("cannot start a thread: {error}")))?;
        planning.join().unwrap_or_else(|panic| panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use arrow::{
        array::Int64Array,
        datatypes::{DataType, Field, Schema},
    };
    use datafusion::{
        catalog::TableProvider,
        datasource::MemTable,
        error::Result as LibraryResult,
        physical_expr::expressions::Column,
        physical_plan::{
            Partitioning, coalesce_partitions::CoalescePartitionsExec, execute_stream,
            repartition::RepartitionExec, stream::RecordBatchStreamAdapter,
        },
    };
    use futures::stream;
    use inshore_store::{Budget, Cancel, Store};

    use super::*;
    use crate::{query::planning::context, remote::Planning};

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

    /// A query waits for a thread that computes, however long the computation takes.
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

    /// Each batch is written to a spill file, since no memory is available. Several inputs write concurrently, and
    /// readers wait for them. The variable INSHORE_SPILLING sets the number of repetitions.
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
            let planning =
                Planning { partitions: parts, memory_bytes: 24 << 20, is_bold: false, with_exchanges: false };
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
