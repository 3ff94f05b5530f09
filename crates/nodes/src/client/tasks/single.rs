//! Runs one task on one node, without a scheduler.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use arrow_array::RecordBatch;
use inshore_store::Context;
use serde_json::Value;
use tokio::task::JoinHandle;

use crate::{
    Error, NodeCredentials, Nodes, Result,
    client::{
        parsed,
        pump::{AttemptReport, LATE, NodeMessage, Outlet, pump, queue},
    },
    protocol::{PieceRequest, TaskDone, TaskRequest, VERSION},
};

/// The interval at which a waiting reader checks for cancellation.
const LOOK: Duration = Duration::from_millis(50);

/// A task for one node.
#[derive(Clone, Debug)]
pub struct SingleTask {
    /// The kind of the task.
    pub kind: &'static str,
    /// The arguments of this kind of task.
    pub arguments: Value,
    /// The pieces to read, in order.
    pub pieces: Vec<PieceRequest>,
    /// The memory of the task in bytes. `None` stands for the default of the node.
    pub memory_bytes: Option<u64>,
    /// The trace id of the job to which the task belongs, if it has one: up to 32 hexadecimal digits.
    pub trace: Option<String>,
}

/// A message of a [watched](Nodes::watch_task) task.
#[derive(Debug)]
pub enum TaskEvent {
    /// The next batch of the answer.
    Batch(RecordBatch),
    /// The end of the task. No message follows.
    Ended(Result<TaskDone>),
}

/// A running task that its client watches. The task stops when this value is dropped.
#[derive(Debug)]
pub struct WatchedTask(JoinHandle<()>, JoinHandle<()>);

impl Drop for WatchedTask {
    fn drop(&mut self) {
        self.0.abort();
        self.1.abort();
    }
}

/// The reader of the answer of a task on one node. The task stops when this value is dropped.
#[derive(Debug)]
pub struct TaskReader {
    nodes: Nodes,
    node: usize,
    answers: Outlet,
    report: Arc<Mutex<AttemptReport>>,
    pump: JoinHandle<()>,
}

impl Nodes {
    /// Starts a task on the node with this index, and passes its batches and its end to `on`. `on` runs in a thread that
    /// serves all connections, so it must not block.
    pub fn watch_task(
        &self,
        node: usize,
        task: SingleTask,
        mut on: impl FnMut(TaskEvent) + Send + 'static,
    ) -> WatchedTask {
        let (pump, mut answers, report) = self.start_pump(node, task);
        let address = self.0.nodes[node].address.clone();
        let watch = self.0.runtime.spawn(async move {
            loop {
                match answers.next().await {
                    Some(Ok(Some(batch))) => on(TaskEvent::Batch(batch)),
                    Some(Err(error)) => return on(TaskEvent::Ended(Err(error))),
                    Some(Ok(None)) | None => break,
                }
            }
            let done = report.lock().expect("no panic under this lock").done.take();
            let lost = || Error::Lost { node: address, what: "the answer ended early".to_string() };
            on(TaskEvent::Ended(done.ok_or_else(lost)));
        });
        WatchedTask(pump, watch)
    }

    /// Starts a task on the node with this index, and returns the reader of its answer.
    pub fn read_task(&self, node: usize, task: SingleTask) -> TaskReader {
        let (pump, answers, report) = self.start_pump(node, task);
        TaskReader { nodes: self.clone(), node, answers, report, pump }
    }

    fn start_pump(
        &self,
        node: usize,
        task: SingleTask,
    ) -> (JoinHandle<()>, Outlet, Arc<Mutex<AttemptReport>>) {
        let SingleTask { kind, arguments, pieces, memory_bytes, trace } = task;
        let left = self.0.deadline.map(|deadline| deadline.left());
        let request = TaskRequest {
            version: VERSION,
            kind: kind.to_string(),
            arguments,
            pieces,
            memory_bytes,
            deadline_ms: left.map(|left| (left + LATE).as_millis() as u64),
            alive_ms: None,
            pulls: None,
            beside: None,
            trace,
        };
        let (out, answers) = queue(0);
        let report: Arc<Mutex<AttemptReport>> = Arc::default();
        let hear = |_: NodeMessage<'_>| {};
        let pump = pump(self.0.nodes[node].clone(), request, out, report.clone(), hear);
        (self.0.runtime.spawn(pump), answers, report)
    }

    /// Returns the certificates that some nodes show, in the order of `nodes`. A node without credentials has none. The
    /// result of a node is [`Error::BadAnswer`] if it sends an invalid certificate, and the error of its request if it
    /// does not answer.
    pub fn certificates(&self, nodes: &[usize]) -> Vec<Result<Option<String>>> {
        let questions = nodes.iter().map(|&node| (node, "certificate", bytes::Bytes::new())).collect();
        let answers = self.ask_some(questions).into_iter().zip(nodes);
        answers.map(|(answer, &node)| self.0.nodes[node].certificate(&answer?)).collect()
    }
}

impl NodeCredentials {
    /// Returns an error unless this certificate, signed by the authority, names the host of an address: `HOST` or
    /// `HOST:PORT`. A node connects to an address that a client names only after this check.
    ///
    /// # Errors
    /// - Returns [`Error::Address`] if the address is invalid.
    /// - Returns [`Error::Credentials`] if the certificate is missing, invalid, or names another host.
    pub fn check_peer(&self, address: &str, certificate: Option<&str>) -> Result<()> {
        let (host, _) = parsed(address).ok_or_else(|| Error::Address {
            address: address.to_string(),
            what: "this is not an address of a node: expected HOST or HOST:PORT".to_string(),
        })?;
        self.check_node(&host, certificate.unwrap_or_default())
    }
}

impl TaskReader {
    /// Returns the next batch, or `None` after the last one.
    ///
    /// # Errors
    /// - Returns [`Error::Lost`] if the node is lost.
    /// - Returns [`Error::Refused`] if the node refuses the task, or if the task fails.
    /// - Returns [`Error::BadAnswer`] if the node sends an invalid answer.
    /// - Returns [`Error::Deadline`] if the deadline passes.
    /// - Returns [`Error::Store`] if the job of `context` was cancelled.
    pub fn next(&mut self, context: &Context) -> Result<Option<RecordBatch>> {
        let inner = &self.nodes.0;
        loop {
            context.check_cancelled()?;
            inner.check(|| format!("node {} has not answered", inner.nodes[self.node].address))?;
            let next = async { tokio::time::timeout(LOOK, self.answers.next()).await };
            match inner.runtime.block_on(next) {
                Ok(Some(answer)) => return answer,
                Ok(None) => return Ok(None),
                Err(_) => {}
            }
        }
    }

    /// Returns the summary of the task. The value is `None` before the last batch was read.
    pub fn summary(&self) -> Option<Value> {
        let report = self.report.lock().expect("no panic under this lock");
        report.done.as_ref().map(|done| done.summary.clone())
    }
}

impl Drop for TaskReader {
    fn drop(&mut self) {
        self.pump.abort();
    }
}
