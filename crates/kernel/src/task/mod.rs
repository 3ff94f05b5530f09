//! Defines tasks, which a node runs on the data in its store, and their replies to the client.
//!
//! - [`TaskHandler`] runs one kind of task. A request names the kind of task. A node has a fixed set of
//!   [`TaskHandlers`].
//! - [`Task`] contains the job within the node's memory budget, the arguments, and the sources to read.
//! - [`Reply`] is the sink through which a task sends record batches. A send blocks while the client is slow.
//!
//! A compute kernel is [`Portable`] if its parts (results of blocks) can be serialized. [`Parts`] makes a
//! [`TaskHandler`] from such a compute kernel. The task sends the parts of the blocks in order. With each part, the
//! task sends the end position of the part in its source, so that another node can continue from this position.
//!
//! The design follows the minions, responses and queries of the 2019 thesis, section 3.2.2 (title in
//! `docs/from-the-papers.md`).

mod contents;
mod metrics;
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
    metrics::{Metric, MetricKind},
    part_rows::{Answer, PartRow, failure_told, part_rows, part_schema},
    parts::{Parts, answer_parts},
    portable::Portable,
    sources::Sources,
};
use crate::Source;

/// The error of a failed task, as the client receives it.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The failure of a task that would fail in the same way each time, for example because a value of its input is
/// malformed. The text is that of the error.
#[derive(Debug)]
pub struct FinalFailure(pub String);

impl std::fmt::Display for FinalFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FinalFailure {}

/// The input of a task on a node.
#[derive(Debug)]
pub struct Task {
    /// The job of the task, which has the memory budget, the threads, the store and the cancellation flag.
    pub job: Job,
    /// The arguments of the task. The kind of task defines their form.
    pub arguments: Value,
    /// The sources to read, in order.
    pub sources: Sources,
}

/// The location of a source in a node's store. Another process on the node can open the source by this location.
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
    /// The number by which replies identify the source. The client chooses this number.
    pub number: u64,
    /// The number of the complete file to which the source belongs. The client chooses this number.
    pub whole: u64,
    /// The bytes to read.
    pub source: Source,
    /// The location of the source in the node's store. The value is `None` if the source is not in the store.
    pub stored: Option<StoredSource>,
}

/// The sink through which a task sends its result to the client.
pub trait Reply: Send {
    /// Announces the columns before the first batch. Only clients in this process or in its parent process receive the
    /// announcement, since nodes send nothing before the first batch.
    ///
    /// # Errors
    /// Returns the errors of [`Reply::batch`].
    fn begun(&mut self, _columns: &SchemaRef) -> Result<(), Failure> {
        Ok(())
    }

    /// Sends a batch. All batches of a task have the same columns. The call blocks while the client is slow.
    ///
    /// # Errors
    /// Returns [`inshore_store::Error::Cancelled`] if the client has disconnected.
    fn batch(&mut self, batch: RecordBatch) -> Result<(), Failure>;
}

/// The right that a client needs for a kind of task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredRight {
    /// The right to read data.
    Data,
    /// The right to run built-in kinds of tasks.
    BuiltIn,
    /// The right to run built-in kinds of tasks, or the right of a node that works for such a client: the request names
    /// a running job by a secret number.
    Relay,
    /// The right to put datasets: the task writes one.
    Store,
    /// The right to run WebAssembly code that the client sends.
    WebAssembly,
    /// The right to run commands that the operator allows.
    Commands,
}

/// Runs one kind of task.
pub trait TaskHandler: Send + Sync {
    /// Returns the name by which requests select this kind of task.
    fn kind(&self) -> &'static str;

    /// Returns the right that a client needs for this kind of task.
    fn needs(&self) -> RequiredRight {
        RequiredRight::BuiltIn
    }

    /// Returns a lower bound of the default memory, in bytes. A task whose request sets no memory gets at least this
    /// much.
    fn smallest_memory_bytes(&self) -> u64 {
        0
    }

    /// Returns true if the task waits for one of the slots of the node. A task without a slot starts at once if its
    /// memory is free, and is refused otherwise: it computes little, or works in the memory of a task with a slot.
    fn takes_slot(&self) -> bool {
        true
    }

    /// Returns what the handler has counted since the node began, for the node's metrics. By default, nothing.
    fn metrics(&self) -> Vec<Metric> {
        Vec::new()
    }

    /// Runs the task. After the last batch, the client receives the returned value and the cost of the job.
    ///
    /// # Errors
    /// Returns the error that prevents the task from completing.
    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure>;
}

/// The kinds of tasks that a node can run.
#[derive(Clone, Default)]
pub struct TaskHandlers(Vec<Arc<dyn TaskHandler>>);

impl TaskHandlers {
    /// Adds a handler for one more kind of task.
    #[must_use]
    pub fn with(mut self, work: impl TaskHandler + 'static) -> TaskHandlers {
        self.0.push(Arc::new(work));
        self
    }

    /// Removes the handler for the kind of task that has this name.
    #[must_use]
    pub fn without(mut self, kind: &str) -> TaskHandlers {
        self.0.retain(|work| work.kind() != kind);
        self
    }

    /// Returns the handler of the kind of task that has this name.
    pub fn get(&self, kind: &str) -> Option<&Arc<dyn TaskHandler>> {
        self.0.iter().find(|work| work.kind() == kind)
    }

    /// Returns the metrics of all handlers.
    pub fn metrics(&self) -> Vec<Metric> {
        self.0.iter().flat_map(|work| work.metrics()).collect()
    }

    /// Returns the names of all kinds of tasks.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.iter().map(|work| work.kind())
    }
}

impl std::fmt::Debug for TaskHandlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.kinds()).finish()
    }
}
