//! Runs a kind of work in a child process of the node, for work whose memory and duration cannot be
//! predicted.
//!
//! ```text
//!   node                                               child process
//!     order: store, memory, arguments, pieces ────────►  opens the store, begins a job
//!     Sources ◄── request for a piece ───────────────── TaskHandler
//!        └─────── a piece, or none ───────────────────►  │
//!     Reply   ◄── batches ──────────────────────────────┘
//!     job     ◄── counters so far, with each message
//! ```
//!
//! The node kills the process when the process exceeds its memory, when its task is cancelled, or when the
//! node ends. Then only the task fails; all other work goes on. All memory of the process lies within the
//! memory of the task, which lies within the memory of the node. The memory is split into three parts:
//!
//! - [`own_bytes`] for the program itself and for memory that no budget counts;
//! - an eighth, at least [`ANSWER_BYTES_MIN`], for batches in flight to the node;
//! - the rest for the job.
//!
//! A message to the node has a header and a payload. The header holds the kind (u8), then as little-endian
//! u64: length of the payload, bytes read, bytes written, repaired pieces, and processor time in
//! microseconds, each counted since the start of the process. A batch is a section of one stream in Arrow's
//! IPC format and lies in the shared memory; all other payloads go over the socket. Columns that are
//! announced before the first row are a stream without batches.
//!
//! Messages to the process: the order in JSON; for each request for a piece a byte, a length (u32) and a
//! description of the next piece in JSON; and for each batch a byte that frees the shared memory for the next
//! batch. On either side a separate thread waits for pieces, so that rows, counters and failures pass
//! meanwhile.
//!
//! Paper: tasks in place, under an operating system that ends them: 2019 thesis 3.2.2.

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
/// Returns the memory of the process in addition to the memory of its job, in bytes: the program, plans, free memory
/// in the allocator, and memory that threads touch before the limit takes effect. Queries with two threads took 23
/// MiB in a measurement.
pub fn own_bytes(threads: usize) -> u64 {
    (28 + 2 * threads as u64) * MIB
}

/// Returns the number of threads whose memory fits a quarter of this memory; at least [`THREADS_MIN`].
fn threads_within(bytes: u64) -> usize {
    ((bytes / 4).saturating_sub(own_bytes(0)) / (2 * MIB)).max(THREADS_MIN as u64) as usize
}

const THREADS_MIN: usize = 2;

/// The least memory for batches in flight to the client.
pub const ANSWER_BYTES_MIN: u64 = 4 * MIB;
const ANSWER_PART: u64 = 8;
const ANSWER_BYTES_MAX: u64 = 320 * MIB;
/// The number of copies of a batch in the memory of the node: one received, one in the message to send, two that
/// wait, and one in the network stack.
const COPIES: u64 = 5;
/// The address space for stacks of threads that do not belong to the work.
const STACK_BYTES: u64 = 128 * MIB;

/// A kind of work that runs in a child process.
#[derive(Debug)]
pub struct ChildProcessWork<W> {
    work: W,
    stack_bytes: fn(usize) -> u64,
    helper: Helper,
}

impl<W: TaskHandler> ChildProcessWork<W> {
    /// Returns a work that runs in a child process of the current program. The program has to begin with a call of
    /// [`crate::child_main_if_asked`]: without that call, tasks fail within 10 s. `stack_bytes` returns the bytes of
    /// stacks that the work needs for a number of threads.
    pub fn new(work: W, stack_bytes: fn(usize) -> u64) -> ChildProcessWork<W> {
        ChildProcessWork { work, stack_bytes, helper: Helper::own() }
    }

    /// Returns the same work, run by another program.
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
        own_bytes(THREADS_MIN) + ANSWER_BYTES_MIN + self.work.smallest_memory_bytes()
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let Task { job, arguments, sources } = task;
        let all = job.budget().free_bytes();
        let _memory = job.budget().reserve(all, "a child process")?;
        let (given, smallest) = (all, self.smallest_memory_bytes());
        if given < smallest {
            let what = format!("'{}' on a node", self.kind());
            return Err(inshore_store::Error::BudgetTooSmall { what, given, smallest }.into());
        }
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
        ask(&self.helper, limits, order, &job, sources, reply)
    }
}

/// Runs a work without pieces in a child process, with the budget of `job` and the rest of `limits` for the
/// process itself. An answer may have any length that fits into the memory of the process. `helper` is a
/// program that begins with [`child_main`] and knows the work `kind`. The process ends with the thread that
/// calls this function.
///
/// # Errors
/// [`inshore_sandbox::ChildFailure`] if the process ended abnormally, [`inshore_store::Error::Cancelled`], and
/// the failure of the work, as text.
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
    ask(helper, limits, order, job, Sources::of(Vec::new()), reply)
}

/// Returns the absolute paths of the folders of a job's store.
fn folders(job: &Job) -> Result<Vec<Vec<u8>>, Failure> {
    let folder = |path: PathBuf| Ok(path::absolute(path)?.into_os_string().into_vec());
    job.store().folders().into_iter().map(folder).collect()
}

#[cfg(test)]
mod tests;
