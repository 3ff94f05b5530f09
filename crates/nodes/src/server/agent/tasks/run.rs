//! Runs the handler of a task to its end.

use std::{
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use inshore_kernel::{Failure, Sources, Task, TaskHandler};
use inshore_store::Job;
use serde_json::Value;
use tokio::sync::mpsc;
use tonic::Status as Refusal;

use super::{
    super::{Agent, AnswerResult, audit::Audit},
    active::ActiveTask,
    client_channel::ClientChannel,
    reply::TaskReply,
    shard_queue::{PulledShards, ShardQueue},
};
use crate::{
    protocol::{TaskDone, TaskRequest, compression::CompressionSelector},
    server::{pieces::open_pieces, queue::Permit},
};

/// A task that was admitted from the queue.
pub(super) struct AdmittedTask {
    pub request: TaskRequest,
    pub job: Job,
    /// The time that the task waited in the queue.
    pub queue_time: Duration,
    pub permit: Permit,
    pub deadline_is_over: Arc<AtomicBool>,
    pub number: u64,
    pub shards: Arc<ShardQueue>,
    pub compression: Arc<Mutex<CompressionSelector>>,
}

impl Agent {
    /// Runs a task to its end in a thread that may block, and returns the task's last messages. The caller
    /// sends these messages, since sending here would occupy the thread while the client does not read.
    pub(super) fn run_task(
        &self,
        handler: &dyn TaskHandler,
        task: AdmittedTask,
        out: &mpsc::Sender<AnswerResult>,
    ) -> Vec<AnswerResult> {
        let AdmittedTask { request, job, queue_time, permit, deadline_is_over, number, shards, compression } =
            task;
        let began = Instant::now();
        let cpu_seconds_before = job.report().cpu_seconds;
        let client = ClientChannel {
            agent: self.clone(),
            job: job.clone(),
            out: out.clone(),
            runtime: tokio::runtime::Handle::current(),
            number,
            is_set_aside: Arc::default(),
        };
        let progress_interval = request.alive_ms.map(Duration::from_millis);
        let mut reply = TaskReply::new(client.clone(), compression, progress_interval);
        // A panic in a handler ends only that task.
        let result = panic::catch_unwind(AssertUnwindSafe(|| {
            run_handler(handler, request, &job, &shards, &client, &mut reply)
        }));
        let result =
            result.unwrap_or_else(|_| Err("the task panicked: this is a bug in the node's program".into()));
        let report = job.report();
        let entry = self.remove_task(number, report.bytes_read);
        let seconds = began.elapsed().as_secs_f64();
        self.audit_task(&entry, report.bytes_read, seconds, result.as_ref().err());
        let counters = &self.0.counters;
        let last = match result {
            Ok(summary) => {
                let done = TaskDone {
                    summary,
                    bytes_read: report.bytes_read,
                    bytes_written: report.bytes_written,
                    seconds,
                    queued_seconds: queue_time.as_secs_f64(),
                    cpu_seconds: report.cpu_seconds - cpu_seconds_before,
                    shards: shards.taken(),
                };
                counters.done.fetch_add(1, Ordering::Relaxed);
                reply.encoder.done(&done).map_err(|error| Refusal::internal(error.to_string()))
            }
            Err(failure) => {
                counters.failed.fetch_add(1, Ordering::Relaxed);
                Err(refusal(&failure, &client, &deadline_is_over))
            }
        };
        // The memory is released before the client is informed that the task has ended.
        drop((entry, job, permit));
        match last {
            Ok(messages) => messages.into_iter().map(Ok).collect(),
            Err(refusal) => vec![Err(refusal)],
        }
    }

    /// Removes a finished task from the running tasks. The lock of the running tasks also protects the sum of the bytes
    /// read, so that the status counts no byte twice.
    fn remove_task(&self, number: u64, bytes_read: u64) -> ActiveTask {
        let mut tasks = self.0.tasks();
        self.0.counters.bytes_read.fetch_add(bytes_read, Ordering::Relaxed);
        tasks.remove(&number).expect("it was there")
    }

    fn audit_task(&self, task: &ActiveTask, bytes_read: u64, seconds: f64, failure: Option<&Failure>) {
        self.audit(&Audit {
            action: &task.kind,
            who: &task.who,
            dataset: &task.datasets.join(", "),
            bytes: bytes_read,
            seconds,
            failed: failure.map(ToString::to_string).as_deref(),
            trace: task.trace.as_deref(),
        });
    }
}

/// Runs the handler on the pieces of the request, or on the shards that the client hands out.
fn run_handler(
    handler: &dyn TaskHandler,
    request: TaskRequest,
    job: &Job,
    shards: &Arc<ShardQueue>,
    client: &ClientChannel,
    reply: &mut TaskReply,
) -> Result<Value, Failure> {
    let (job, arguments) = (job.clone(), request.arguments);
    let Some(pulls) = request.pulls else {
        let sources = Sources::of(open_pieces(&job, request.pieces)?);
        return handler.work(Task { job, arguments, sources }, reply);
    };
    let pulled = PulledShards::new(shards.clone(), client.clone());
    let count_max = usize::try_from(pulls.shards).unwrap_or(usize::MAX);
    let sources = Sources::pulled(pulled, pulls.bytes, count_max);
    let left = shards.clone();
    let sources = sources.left_by(move || left.leave());
    let summary = handler.work(Task { job, arguments, sources }, reply)?;
    PulledShards::new(shards.clone(), client.clone()).pass_over()?;
    Ok(summary)
}

/// Returns the refusal for a failed task. The status code of the refusal determines whether the client tries
/// again.
fn refusal(failure: &Failure, client: &ClientChannel, deadline_is_over: &AtomicBool) -> Refusal {
    if client.is_set_aside.load(Ordering::Relaxed) {
        Refusal::aborted("the task was stopped for a slow client")
    } else if deadline_is_over.load(Ordering::Relaxed) {
        Refusal::deadline_exceeded("the task was stopped at its deadline")
    } else if client.job.cancel().is_cancelled() {
        Refusal::unavailable("the task was stopped: the node is shutting down")
    } else {
        Refusal::failed_precondition(failure.to_string())
    }
}
