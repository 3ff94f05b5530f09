//! Queues a valid task, and starts the task once the queue gives it a slot and memory.
//!
//! ```text
//!   ValidTask ─► queue ─► permit ─► job ─► entry among the running tasks ─► worker thread
//!                  │         │        └── refused: the store gives no job
//!                  │         └── refused: the deadline is over, or the node shuts down
//!                  └── refused: the queue is full, or the memory is not free
//! ```

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use futures::{FutureExt, Stream, future::BoxFuture};
use inshore_kernel::RequiredRight;
use inshore_store::{Budget, Cancel, Job};
use tokio::{sync::mpsc, task::JoinHandle};
use tonic::Status as Refusal;

use super::{
    super::{Agent, AnswerResult, visits},
    active::ActiveTask,
    run::AdmittedTask,
    shard_queue::ShardQueue,
    validation::ValidTask,
};
use crate::{
    protocol::{READ_BESIDE_BYTES, compression::CompressionSelector},
    server::{heartbeat::Heartbeat, queue::Permit},
};

/// A task that waits in the queue for a slot and memory.
struct QueuedTask {
    agent: Agent,
    task: ValidTask,
    resources: TaskResources,
    arrived: Instant,
    /// The cancellation flag of the task's job.
    cancel: Cancel,
    answers: mpsc::Sender<AnswerResult>,
    heartbeat: Option<Heartbeat>,
}

/// The resources of a task.
struct TaskResources {
    memory_bytes: u64,
    threads: usize,
    deadline: Duration,
    /// The compression state of a read that accompanies a running task of the same client.
    compression_beside: Option<Arc<Mutex<CompressionSelector>>>,
}

/// Cancels a task when dropped. The stream of the task's answers holds this guard, and is dropped when the
/// client disconnects.
struct CancelOnDrop(Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl Agent {
    /// Queues a task and returns the stream of its answers. The task stops when the stream is dropped.
    ///
    /// # Errors
    /// Returns the refusal of the task if the queue is full.
    pub(crate) fn start_task(
        &self,
        task: ValidTask,
    ) -> Result<impl Stream<Item = AnswerResult> + Send + use<>, Refusal> {
        let resources = self.resources(&task);
        let place = self.enter_queue(&task, &resources).map_err(|refusal| self.refuse(refusal))?;
        let (arrived, cancel) = (Instant::now(), Cancel::default());
        let (out, mut answers) = mpsc::channel::<AnswerResult>(2);
        let heartbeat = task.request.alive_ms.map(|interval| {
            let (agent, interval) = (self.clone(), Duration::from_millis(interval));
            Heartbeat::begin(move |number| agent.task_progress(number), out.clone(), interval)
        });
        let guard = CancelOnDrop(cancel.clone());
        let agent = self.clone();
        let queued = QueuedTask { agent, task, resources, arrived, cancel, answers: out, heartbeat };
        tokio::spawn(queued.run(place));
        Ok(futures::stream::poll_fn(move |context| {
            let _guard = &guard;
            answers.poll_recv(context)
        }))
    }

    /// Determines the resources of a task, and reserves a read that accompanies a running task if the request
    /// names such a task.
    fn resources(&self, task: &ValidTask) -> TaskResources {
        let ValidTask { request, handler, .. } = task;
        let config = &self.0.config;
        let default_bytes = if task.is_traversal() { visits::MEMORY_BYTES } else { config.task_memory_bytes };
        let default_bytes = default_bytes.max(handler.smallest_memory_bytes());
        let memory_bytes = request.memory_bytes.unwrap_or(default_bytes);
        // The client processes some shards of the running task itself. A read for such a shard must not wait for the
        // slot that the running task occupies.
        let beside = request
            .beside
            .filter(|_| handler.needs() == RequiredRight::Data && memory_bytes <= READ_BESIDE_BYTES);
        let deadline = request.deadline_ms.map_or(config.deadline, Duration::from_millis);
        TaskResources {
            memory_bytes,
            threads: if beside.is_some() { 1 } else { config.threads },
            deadline: deadline.min(config.deadline),
            compression_beside: beside.and_then(|key| self.reserve_read_beside(&task.caller.name, key)),
        }
    }

    /// Enters a task into the queue. For a task that needs no slot, reserves memory immediately instead.
    fn enter_queue(
        &self,
        task: &ValidTask,
        resources: &TaskResources,
    ) -> Result<BoxFuture<'static, Permit>, Refusal> {
        let (queue, memory_bytes) = (&self.0.queue, resources.memory_bytes);
        if !task.handler.takes_slot() || resources.compression_beside.is_some() {
            let permit = queue.reserve_without_slot(memory_bytes).map_err(Refusal::resource_exhausted)?;
            return Ok(futures::future::ready(permit).boxed());
        }
        queue.enter(&task.caller.name, memory_bytes).map(FutureExt::boxed)
    }
}

impl QueuedTask {
    /// Waits until the task may start, runs the task and sends its last messages.
    async fn run(self, place: BoxFuture<'static, Permit>) {
        let permit = match self.wait_for(place).await {
            Ok(Some(permit)) => permit,
            Ok(None) => return,
            Err(refusal) => {
                let _ = self.answers.send(Err(self.agent.refuse(refusal))).await;
                return;
            }
        };
        let queue_time = self.arrived.elapsed();
        let job = match self.create_job().await {
            Ok(job) => job,
            Err(refusal) => {
                let _ = self.answers.send(Err(refusal)).await;
                return;
            }
        };
        let QueuedTask { agent, task, resources, cancel, answers, heartbeat, .. } = self;
        // The memory of the request and the heartbeat last until the last message is sent.
        let ValidTask { request, caller, handler, memory: _memory } = task;
        let number = agent.0.numbers.fetch_add(1, Ordering::Relaxed);
        let shards = Arc::<ShardQueue>::default();
        let entry = ActiveTask::new(caller, &request, job.clone(), shards.clone());
        agent.0.tasks().insert(number, entry);
        if let Some(heartbeat) = &heartbeat {
            heartbeat.runs(number);
        }
        let deadline_is_over = Arc::new(AtomicBool::new(false));
        let rest = resources.deadline.saturating_sub(queue_time);
        let timer = cancel_after(rest, cancel, deadline_is_over.clone());
        let compression = resources
            .compression_beside
            .unwrap_or_else(|| Arc::new(Mutex::new(CompressionSelector::new(Instant::now()))));
        let admitted =
            AdmittedTask { request, job, queue_time, permit, deadline_is_over, number, shards, compression };
        let out = answers.clone();
        let worked = tokio::task::spawn_blocking(move || agent.run_task(&*handler, admitted, &out)).await;
        timer.abort();
        for message in worked.unwrap_or_default() {
            if answers.send(message).await.is_err() {
                break;
            }
        }
    }

    /// Waits until the queue admits the task. If the client disconnects during the wait, the task leaves the queue and
    /// the result is `None`.
    async fn wait_for(&self, place: BoxFuture<'static, Permit>) -> Result<Option<Permit>, Refusal> {
        let permit = tokio::select! {
            permit = place => permit,
            () = self.answers.closed() => return Ok(None),
            () = tokio::time::sleep(self.resources.deadline) => {
                let what = "the task waited in the queue until its deadline";
                return Err(Refusal::deadline_exceeded(what));
            }
        };
        if self.agent.0.draining.load(Ordering::Relaxed) {
            let what = "this node is shutting down and accepts no more tasks";
            return Err(Refusal::unavailable(what));
        }
        Ok(Some(permit))
    }

    /// Creates the task's job in a thread that may block: a hanging drive delays only this task.
    async fn create_job(&self) -> Result<Job, Refusal> {
        let budget = Budget::new(self.resources.memory_bytes, self.resources.threads);
        let (agent, cancel) = (self.agent.clone(), self.cancel.clone());
        let created = tokio::task::spawn_blocking(move || agent.0.store.job(budget, cancel)).await;
        let created = created.map_err(|panicked| Refusal::internal(panicked.to_string()))?;
        created.map_err(|error| Refusal::internal(error.to_string()))
    }
}

/// Cancels a task after `duration`, and records that the deadline was the reason.
fn cancel_after(duration: Duration, cancel: Cancel, deadline_is_over: Arc<AtomicBool>) -> JoinHandle<()> {
    tokio::spawn(async move {
        tokio::time::sleep(duration).await;
        deadline_is_over.store(true, Ordering::Relaxed);
        cancel.cancel();
    })
}
