//! Tasks that run where the data lies: the request to a node, and the answers.
//!
//! - [`TaskHandler`]: a kind of task, under the name that requests use. A node knows a fixed set of kinds, [`TaskHandlers`].
//! - [`Task`]: a job within the node's budget, arguments, and the parts of files to read.
//! - [`Reply`]: the sink for record batches, one after the other, as far as the client takes them.
//!
//! A kernel whose parts can be serialized is [`Portable`], and [`Parts`] makes a [`TaskHandler`] of the kernel. The parts of
//! the blocks are sent in order, each with the position in its source up to which the answers reach, so that another
//! node can continue from this position.
//!
//! Papers: minions, responses and queries, 2019 thesis 3.2.2.

mod contents;
mod part_rows;
mod parts;
mod portable;
mod sources;

use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use inshore_store::Job;
use serde_json::Value;

pub use self::{
    contents::Contents,
    part_rows::{Answer, PartRow, failure_told, part_rows, part_schema},
    parts::{Parts, answer_parts},
    portable::Portable,
    sources::Sources,
};
use crate::Source;

/// The error of a failed task, as reported to the client.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The input of a task on a node.
#[derive(Debug)]
pub struct Task {
    /// The job of the task: memory, threads, store, cancellation.
    pub job: Job,
    /// The arguments, in the form that the kind of work defines.
    pub arguments: Value,
    /// The sources to read, in order.
    pub sources: Sources,
}

/// The location of a source in a node's store, in a form that another process can resolve.
#[derive(Clone, Debug)]
pub struct StoredSource {
    /// The name of the dataset.
    pub dataset: String,
    /// The number of the dataset: see [`inshore_store::Dataset::id`].
    pub id: u64,
    /// The name of the file in the dataset.
    pub file: String,
}

/// A source that a task reads.
#[derive(Debug)]
pub struct TaskSource {
    /// The number of the source in answers, as chosen by the client.
    pub number: u64,
    /// The number of the whole of which the source is a part, as chosen by the client.
    pub whole: u64,
    /// The bytes to read.
    pub source: Source,
    /// The location of the bytes, if the source is in the node's store.
    pub stored: Option<StoredSource>,
}

/// The sink for a task's answers.
pub trait Reply: Send {
    /// Announces the columns before the first batch. Only clients in this process or its parent process receive this,
    /// since nodes send nothing before the first batch.
    ///
    /// # Errors
    /// The errors are those of [`Reply::batch`].
    fn begun(&mut self, _columns: &SchemaRef) -> Result<(), Failure> {
        Ok(())
    }

    /// Sends a batch; all batches of a task have the same columns. Blocks while the client is slow.
    ///
    /// # Errors
    /// [`inshore_store::Error::Cancelled`] if the client has disconnected.
    fn batch(&mut self, batch: RecordBatch) -> Result<(), Failure>;
}

/// The right that a client needs for a kind of task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredRight {
    /// The right to read.
    Data,
    /// The right to run built-in kinds.
    BuiltIn,
    /// The right to run WebAssembly that the client sends.
    WebAssembly,
    /// The right to run commands that the operator allows.
    Commands,
}

/// A kind of task.
pub trait TaskHandler: Send + Sync {
    /// Returns the name of the kind in requests.
    fn kind(&self) -> &'static str;

    /// Returns the right that a client needs.
    fn needs(&self) -> RequiredRight {
        RequiredRight::BuiltIn
    }

    /// Returns the smallest default memory in bytes, for tasks whose request names none.
    fn smallest_memory_bytes(&self) -> u64 {
        0
    }

    /// Runs the task. The returned value is sent to the client at the end, beside the cost of the job.
    ///
    /// # Errors
    /// Any error that prevents the task from completing.
    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure>;
}

/// The kinds of tasks that a node can run.
#[derive(Clone, Default)]
pub struct TaskHandlers(Vec<Arc<dyn TaskHandler>>);

impl TaskHandlers {
    /// Returns the set with one more kind.
    #[must_use]
    pub fn with(mut self, work: impl TaskHandler + 'static) -> TaskHandlers {
        self.0.push(Arc::new(work));
        self
    }

    /// Returns the set without the kind of this name.
    #[must_use]
    pub fn without(mut self, kind: &str) -> TaskHandlers {
        self.0.retain(|work| work.kind() != kind);
        self
    }

    /// Returns the kind of this name.
    pub fn get(&self, kind: &str) -> Option<&Arc<dyn TaskHandler>> {
        self.0.iter().find(|work| work.kind() == kind)
    }

    /// Returns the names of all kinds.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.iter().map(|work| work.kind())
    }
}

impl std::fmt::Debug for TaskHandlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.kinds()).finish()
    }
}
