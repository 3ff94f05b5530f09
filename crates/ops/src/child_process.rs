//! This module runs a task in a child process of the node. This is for tasks whose memory and duration cannot be
//! predicted, such as queries.
//!
//! ```text
//!   node                                               child process
//!     order: store, memory, arguments, shards ────────►  opens the store, begins a job
//!     Sources ◄── request for a shard ───────────────── TaskHandler
//!        └─────── a shard, or none ───────────────────►  │
//!     Reply   ◄── batches ──────────────────────────────┘
//!     job     ◄── counters so far, with each message
//! ```
//!
//! The node kills the process when the process exceeds its memory, when its task is cancelled, or when the node
//! ends. Then only this task fails, and all other tasks continue. The memory of the process is a part of the
//! task's memory, which is a part of the node's memory. The task's memory is divided into three parts:
//!
//! - [`own_bytes`] for the program itself, and for memory that is not reserved in a budget;
//! - an eighth, at least [`ANSWER_BYTES_MIN`], for batches in flight to the node;
//! - the rest for the memory budget of the task's job.
//!
//! A message to the node has a header and a payload. The header holds the kind (u8), the length of the payload,
//! and four counters since the start of the process: bytes read, bytes written, damaged blocks that were repaired,
//! and processor time in microseconds. The length and the counters are little-endian u64. Batches are messages of
//! one stream in Arrow's IPC format, and are passed in the shared memory. All other payloads are sent over the
//! socket. If the columns are announced before the first row, they are sent as a separate stream without batches.
//!
//! The node sends three kinds of messages to the process. The first message is the order (the task, in JSON). The
//! reply to each request for a source is a byte, a length (u32) and a description of the next source in JSON. The
//! process opens shards of the store itself. It cannot open the scratch space of the node, so the node sends such sources,
//! and streams, in blocks: the reply to each request for a block has the same form. After each batch, a single byte frees the shared memory for the next batch. On both sides, a separate thread waits
//! for shards, so that rows, counters and failures are sent meanwhile.
//!
//! Section 3.2.2 of the 2019 thesis (see docs/from-the-papers.md) describes tasks that run where the data is stored,
//! under an operating system that can end the tasks.

mod child;
mod parent;
mod protocol;

use std::{
    os::unix::ffi::OsStringExt,
    path::{self, PathBuf},
};

use inshore_kernel::{Failure, Reply, RequiredRight, Sources, Task, TaskHandler};
use inshore_sandbox::{ChildLimits, Helper};
use inshore_store::Job;
use serde_json::Value;

pub use self::child::child_main;
pub(crate) use self::child::{at_work, run_child};
use self::{parent::ask, protocol::TaskOrder};

const MIB: u64 = 1 << 20;
/// Returns the memory of the process in addition to the memory of its job, in bytes: the program, plans, free
/// memory in the allocator, and memory that threads touch before the limit takes effect. In a measurement, queries
/// with two threads took 23 MiB.
pub fn own_bytes(threads: usize) -> u64 {
    (28 + 2 * threads as u64) * MIB
}

/// Returns the largest number of threads for which [`own_bytes`] is at most a quarter of this memory; at least
/// [`THREADS_MIN`].
fn threads_within(bytes: u64) -> usize {
    ((bytes / 4).saturating_sub(own_bytes(0)) / (2 * MIB)).max(THREADS_MIN as u64) as usize
}

const THREADS_MIN: usize = 2;

/// The minimum memory in bytes for batches in flight to the client.
pub const ANSWER_BYTES_MIN: u64 = 4 * MIB;
const ANSWER_PART: u64 = 8;
const ANSWER_BYTES_MAX: u64 = 320 * MIB;
/// The number of copies of a batch in the memory of the node: one received batch, one message that is being sent,
/// two messages in the queue, and one copy in the network stack.
const COPIES: u64 = 5;
/// The address space in bytes for the stacks of all threads other than the task's threads.
const STACK_BYTES: u64 = 128 * MIB;

/// A task handler that runs another task handler in a child process.
#[derive(Debug)]
pub struct ChildProcessWork<W> {
    work: W,
    stack_bytes: fn(usize) -> u64,
    helper: Helper,
    /// The memory of the node for sources that it sends to the process, in bytes.
    sent_bytes: u64,
}

impl<W: TaskHandler> ChildProcessWork<W> {
    /// Returns a handler that runs `work` in a child process of the current program. The program must call
    /// [`crate::child_main_if_asked`] first. Otherwise tasks fail within 10 s. `stack_bytes` maps a number of
    /// threads to the bytes that their stacks need.
    pub fn new(work: W, stack_bytes: fn(usize) -> u64) -> ChildProcessWork<W> {
        ChildProcessWork { work, stack_bytes, helper: Helper::own(), sent_bytes: 0 }
    }

    /// Returns the same handler, which takes `bytes` bytes of the task's memory to read sources that the process cannot
    /// open itself. Without this memory, such sources fail.
    #[must_use]
    pub fn with_sent_sources(self, bytes: u64) -> ChildProcessWork<W> {
        ChildProcessWork { sent_bytes: bytes, ..self }
    }

    /// Returns the same handler, with `helper` as the program of the child process.
    #[must_use]
    pub fn with_helper(self, helper: Helper) -> ChildProcessWork<W> {
        ChildProcessWork { helper, ..self }
    }
}

impl<W: TaskHandler> TaskHandler for ChildProcessWork<W> {
    fn kind(&self) -> &'static str {
        self.work.kind()
    }

    fn needs(&self) -> RequiredRight {
        self.work.needs()
    }

    fn smallest_memory_bytes(&self) -> u64 {
        own_bytes(THREADS_MIN) + ANSWER_BYTES_MIN + self.sent_bytes + self.work.smallest_memory_bytes()
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let Task { job, arguments, sources } = task;
        let (given, smallest) = (job.budget().free_bytes(), self.smallest_memory_bytes());
        if given < smallest {
            let what = format!("'{}' on a node", self.kind());
            return Err(inshore_store::Error::BudgetTooSmall { what, given, smallest }.into());
        }
        let sending = match self.sent_bytes {
            0 => job.clone(),
            bytes => job.within(job.budget().part(bytes, 1, "sources of a child process")?),
        };
        let given = job.budget().free_bytes();
        let _memory = job.budget().reserve(given, "a child process")?;
        let threads = job.budget().threads().min(threads_within(given));
        let most = given - own_bytes(threads) - self.work.smallest_memory_bytes();
        let answer_bytes = (given / ANSWER_PART).min(ANSWER_BYTES_MAX).min(most).max(ANSWER_BYTES_MIN);
        let order = TaskOrder {
            kind: self.kind().to_string(),
            store: folders(&job)?,
            memory_bytes: given - own_bytes(threads) - answer_bytes,
            is_within: true,
            threads,
            batch_bytes_max: answer_bytes / COPIES,
            arguments,
            bytes: sources.bytes(),
            count_max: sources.count_max(),
        };
        let limits = ChildLimits {
            memory_bytes: given - answer_bytes,
            stack_bytes: STACK_BYTES + (self.stack_bytes)(threads),
            threads,
        };
        ask(&self.helper, limits, order, (&job, &sending), sources, reply)
    }
}

/// Runs a task without shards in a child process. The task gets the memory of `job`'s budget, and the process
/// itself gets the rest of `limits`. A batch of the answer may have any length that fits into the memory of the
/// process. `helper` is a program that calls [`child_main`] with a task handler of this `kind`. The process ends
/// when the thread that calls this function ends.
///
/// # Errors
/// - Returns [`inshore_sandbox::ChildFailure`] if the process ended abnormally.
/// - Returns [`inshore_store::Error::Cancelled`] if the job was cancelled.
/// - Returns the failure of the task as text.
pub fn run_in_child(
    helper: &Helper,
    limits: ChildLimits,
    job: &Job,
    kind: &str,
    arguments: Value,
    reply: &mut dyn Reply,
) -> Result<Value, Failure> {
    let order = TaskOrder {
        kind: kind.to_string(),
        store: folders(job)?,
        memory_bytes: job.budget().memory_bytes(),
        is_within: false,
        threads: job.budget().threads(),
        batch_bytes_max: limits.memory_bytes,
        arguments,
        bytes: 0,
        count_max: 0,
    };
    ask(helper, limits, order, (job, job), Sources::of(Vec::new()), reply)
}

/// Returns the absolute paths of the folders of a job's store.
fn folders(job: &Job) -> Result<Vec<Vec<u8>>, Failure> {
    let folder = |path: PathBuf| Ok(path::absolute(path)?.into_os_string().into_vec());
    job.store().folders().into_iter().map(folder).collect()
}

#[cfg(test)]
mod tests;
