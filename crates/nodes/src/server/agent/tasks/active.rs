//! Manages the running tasks of an agent, for the status and for further requests of their clients.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard},
    time::Instant,
};

use inshore_store::Job;

use super::{
    super::{Agent, Inner, authentication::Caller},
    shard_queue::ShardQueue,
};
use crate::protocol::{
    READS_BESIDE, RunningTask, ShardGrant, TaskKey, TaskRequest, compression::CompressionSelector,
};

/// The number of datasets of a task that the node's status lists.
const DATASETS_MAX: usize = 8;

/// The entry of a running task.
#[derive(Debug)]
pub(crate) struct ActiveTask {
    pub client: String,
    /// The caller's name for the log.
    pub who: String,
    pub kind: String,
    pub trace: Option<String>,
    pub datasets: Vec<String>,
    pub job: Job,
    bytes_requested: u64,
    began: Instant,
    shards: Arc<ShardQueue>,
    key: Option<u64>,
    /// The compression state that is shared by all reads that accompany this task. Each read lasts about a second.
    /// Without the shared state, each read would have to find the best compression level anew. Each read holds a clone
    /// of the `Arc`, so that the reference count shows the number of these reads.
    compression_beside: Arc<Mutex<CompressionSelector>>,
}

impl ActiveTask {
    pub(super) fn new(
        caller: Caller,
        request: &TaskRequest,
        job: Job,
        shards: Arc<ShardQueue>,
    ) -> ActiveTask {
        let mut datasets: Vec<String> = request.pieces.iter().map(|piece| piece.dataset.clone()).collect();
        datasets.sort_unstable();
        datasets.dedup();
        datasets.truncate(DATASETS_MAX);
        let lengths = request.pieces.iter().map(|piece| piece.to.saturating_sub(piece.from));
        ActiveTask {
            who: caller.who(),
            client: caller.name,
            kind: request.kind.clone(),
            trace: request.trace.clone(),
            datasets,
            job,
            bytes_requested: lengths.fold(0, u64::saturating_add),
            began: Instant::now(),
            shards,
            key: request.pulls.map(|pulls| pulls.key),
            compression_beside: Arc::new(Mutex::new(CompressionSelector::new(Instant::now()))),
        }
    }

    /// Returns the entry for this task in the status of the node.
    pub fn status(&self, number: u64) -> RunningTask {
        RunningTask {
            number,
            client: self.client.clone(),
            kind: self.kind.clone(),
            memory_bytes: self.job.budget().memory_bytes(),
            seconds: self.began.elapsed().as_secs_f64(),
            bytes_read: self.job.counters().bytes_read(),
            bytes_asked: self.bytes_requested,
            datasets: self.datasets.clone(),
        }
    }

    fn is_of(&self, client: &str, key: u64) -> bool {
        self.client == client && self.key == Some(key)
    }

    /// Appends shards to the task's queue. Returns false if the queue would become too long.
    fn hand_out(&mut self, grant: ShardGrant) -> bool {
        for shard in &grant.shards {
            self.bytes_requested = self.bytes_requested.saturating_add(shard.to.saturating_sub(shard.from));
            let is_known = self.datasets.contains(&shard.dataset);
            if !is_known && self.datasets.len() < DATASETS_MAX {
                self.datasets.push(shard.dataset.clone());
            }
        }
        self.shards.hand_out(grant)
    }
}

impl Inner {
    pub(crate) fn tasks(&self) -> MutexGuard<'_, BTreeMap<u64, ActiveTask>> {
        self.tasks.lock().expect("no panic under this lock")
    }
}

impl Agent {
    /// Returns the number of bytes that a running task has read and written; 0 if the task has ended.
    pub(super) fn task_progress(&self, number: u64) -> u64 {
        let tasks = self.0.tasks();
        tasks.get(&number).map_or(0, |task| {
            let counters = task.job.counters();
            counters.bytes_read() + counters.bytes_written()
        })
    }

    /// Hands shards out to a client's running task. Returns false if the client has no such task.
    pub(crate) fn hand_out(&self, client: &str, grant: ShardGrant) -> bool {
        let mut tasks = self.0.tasks();
        let TaskKey { task, key } = grant.to;
        let task = tasks.get_mut(&task).filter(|task| task.is_of(client, key));
        task.is_some_and(|task| task.hand_out(grant))
    }

    /// Reserves a read that accompanies a client's running task, until the result is dropped. Returns `None`
    /// if the task has ended or has enough such reads.
    pub(super) fn reserve_read_beside(
        &self,
        client: &str,
        beside: TaskKey,
    ) -> Option<Arc<Mutex<CompressionSelector>>> {
        let tasks = self.0.tasks();
        let task = tasks.get(&beside.task).filter(|task| task.is_of(client, beside.key))?;
        let compression = &task.compression_beside;
        (Arc::strong_count(compression) <= READS_BESIDE).then(|| compression.clone())
    }
}
