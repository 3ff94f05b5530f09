//! A run is a job on a separate thread, from which Python takes rows one batch after the other.
//!
//! ```text
//!   work ─► RowQueue ── bounded queue ──► Run::next ──► Python        a queue that is full stops the work
//!             └──► a file
//! ```

use std::{
    panic::resume_unwind,
    path::{Path, PathBuf},
    sync::{
        Mutex, MutexGuard,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use arrow_array::{
    Array, RecordBatch, StructArray,
    ffi::{FFI_ArrowSchema, to_ffi},
};
use arrow_schema::{ArrowError, SchemaRef};
use inshore::{
    store::{self, Budget, Cancel, Execution},
    tables::{self, TableWriter},
};
use inshore_ops as ops;
use pyo3::{exceptions::PyValueError, prelude::*, types::PyCapsule};
use serde_json::{Value, json};

use crate::{
    error::{PendingException, to_python},
    job::{TICK, ThreadMessage, receive, to_json},
};

/// The interval at which a thread checks whether another thread still waits for rows.
const BUSY_TICK: Duration = Duration::from_millis(1);

/// A running job whose rows can be read once.
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Run {
    slot: Mutex<Slot>,
    ended: Mutex<RunEnd>,
}

/// The connection to the working thread.
enum Slot {
    Open(Running),
    /// A thread of Python waits for rows.
    Busy,
    /// The last row was returned, the run failed, or the run was closed: the thread has ended.
    Closed,
}

struct Running {
    job: Execution,
    patience: Duration,
    messages: Receiver<Message>,
    worker: JoinHandle<()>,
}

/// Facts about a run at its end.
#[derive(Default)]
struct RunEnd {
    facts: Value,
    written: Vec<PathBuf>,
}

/// The summary and the counters of a run.
pub(crate) struct RunFacts {
    pub summary: Value,
    /// The counters, if they differ from those of the local job.
    pub report: Option<Value>,
}

impl RunFacts {
    pub(crate) fn of(summary: &impl serde::Serialize) -> RunFacts {
        RunFacts { summary: json!(summary), report: None }
    }
}

enum Message {
    Columns(SchemaRef),
    Rows(RecordBatch),
    Skipped(String),
    End(Result<(RunFacts, u64, Vec<PathBuf>), PendingException>),
}

/// An item that Python receives from a run.
#[derive(IntoPyObject)]
pub(crate) enum Piece {
    Columns(Columns),
    Rows(Batch),
    /// The error of an input that was skipped.
    Skipped(String),
}

/// The receiver of a run's rows, for Python or for a file.
pub(crate) struct RowQueue {
    cancel: Cancel,
    sender: SyncSender<Message>,
    path: Option<PathBuf>,
    writer: Option<TableWriter>,
    rows: u64,
    written: Vec<PathBuf>,
}

fn send(sender: &SyncSender<Message>, message: Message) -> Result<(), store::Error> {
    sender.send(message).map_err(|_| store::Error::Cancelled)
}

impl RowQueue {
    /// Receives the columns.
    pub(crate) fn begin(&mut self, schema: &SchemaRef, budget: &Budget) -> tables::Result<()> {
        match &self.path {
            None => send(&self.sender, Message::Columns(schema.clone()))?,
            Some(path) => self.writer = Some(TableWriter::create(path, schema.clone(), budget)?),
        }
        Ok(())
    }

    /// Receives a batch of rows.
    pub(crate) fn batch(&mut self, batch: RecordBatch) -> tables::Result<()> {
        self.check_cancelled()?;
        self.rows += batch.num_rows() as u64;
        match &mut self.writer {
            Some(writer) => writer.write(&batch),
            None => Ok(send(&self.sender, Message::Rows(batch))?),
        }
    }

    /// Receives the end of all rows; a file is published.
    pub(crate) fn end(&mut self) -> tables::Result<()> {
        self.check_cancelled()?;
        self.writer.take().map_or(Ok(()), |writer| writer.finish().map(drop))
    }

    fn check_cancelled(&self) -> Result<(), store::Error> {
        if self.cancel.is_cancelled() { Err(store::Error::Cancelled) } else { Ok(()) }
    }

    /// Returns a function that reports a skipped input.
    pub(crate) fn skips(&self) -> impl Fn(String) -> Result<(), store::Error> + Send + Sync + use<> {
        let sender = self.sender.clone();
        move |what| send(&sender, Message::Skipped(what))
    }
}

impl ops::RowReceiver for RowQueue {
    fn begin(&mut self, schema: &SchemaRef, job: &Execution) -> ops::Result<()> {
        Ok(RowQueue::begin(self, schema, job.budget())?)
    }

    fn batch(&mut self, batch: RecordBatch) -> ops::Result<()> {
        Ok(RowQueue::batch(self, batch)?)
    }

    fn end(&mut self) -> ops::Result<()> {
        Ok(RowQueue::end(self)?)
    }

    fn written(&mut self, path: &Path) {
        self.written.push(path.to_path_buf());
    }
}

/// Starts a job on a separate thread. `output` is the file for the rows that `work` passes to [`RowQueue`]. A job
/// that has not stopped within `patience` after a signal is left to end by itself.
pub(crate) fn start(
    job: Execution,
    output: Option<PathBuf>,
    patience: Duration,
    work: impl FnOnce(&Execution, &mut RowQueue) -> Result<RunFacts, PendingException> + Send + 'static,
) -> PyResult<Run> {
    let path = output.map(file);
    if let Some(path) = &path {
        // An error in the path is reported before the work, not after.
        TableWriter::check_path(path).map_err(to_python)?;
    }
    let (sender, messages) = sync_channel(1);
    let own = job.clone();
    let worker = thread::Builder::new().name("inshore-job".into()).spawn(move || {
        let cancel = own.cancel().clone();
        let mut out = RowQueue { cancel, sender, path, writer: None, rows: 0, written: Vec::new() };
        let worked = work(&own, &mut out);
        // The job's scratch space is removed with its last owner.
        drop(own);
        let RowQueue { sender, writer, rows, written, .. } = out;
        drop(writer);
        // The receiver is gone once the run is closed.
        let _ = sender.send(Message::End(worked.map(|facts| (facts, rows, written))));
    });
    let worker = worker.map_err(|error| to_python(store::Error::io("start a thread", "job", error)))?;
    let running = Running { job, patience, messages, worker };
    Ok(Run { slot: Mutex::new(Slot::Open(running)), ended: Mutex::default() })
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Running {
    /// Waits until the thread has dropped the job.
    fn join(self, py: Python<'_>) {
        let Running { job, messages, worker, .. } = self;
        drop(messages);
        py.detach(|| {
            let joined = worker.join();
            drop(job);
            joined
        })
        .unwrap_or_else(|panic| resume_unwind(panic));
    }

    /// Cancels the job, and waits until the job has ended or a signal comes.
    fn stop(self, py: Python<'_>) -> PyResult<()> {
        self.job.cancel().cancel();
        let Running { job, messages, worker, .. } = self;
        drop((job, messages));
        let mut wait = Duration::from_millis(1);
        while !worker.is_finished() {
            py.detach(|| thread::sleep(wait));
            py.check_signals()?;
            wait = (2 * wait).min(TICK);
        }
        Ok(())
    }
}

impl Run {
    /// Takes the connection to the thread, unless the thread has ended; other threads of Python wait until
    /// the connection is put back.
    fn take(&self, py: Python<'_>) -> Option<Running> {
        loop {
            let mut slot = lock(&self.slot);
            match std::mem::replace(&mut *slot, Slot::Busy) {
                Slot::Open(running) => return Some(running),
                Slot::Closed => {
                    *slot = Slot::Closed;
                    return None;
                }
                Slot::Busy => {}
            }
            drop(slot);
            py.detach(|| thread::sleep(BUSY_TICK));
        }
    }

    fn advance(&self, py: Python<'_>, mut running: Running) -> (Slot, PyResult<Option<Piece>>) {
        let mut signal = None;
        loop {
            let cancel = running.job.cancel().clone();
            let received = receive(py, &cancel, &mut running.messages, &mut signal, running.patience);
            let piece = match received {
                ThreadMessage::Message(Message::End(end)) => {
                    let report = json!(running.job.report());
                    running.join(py);
                    let end = signal.map_or_else(|| end.map_err(PendingException::raise), Err);
                    return (Slot::Closed, end.map(|end| self.end(end, report)));
                }
                // A thread that panics ends without a message: joining the thread resumes the panic.
                ThreadMessage::Ended => {
                    running.join(py);
                    unreachable!("a thread that ends has sent");
                }
                ThreadMessage::GivenUp => return (Slot::Closed, Err(signal.expect("a signal came"))),
                ThreadMessage::Message(_) if signal.is_some() => continue,
                ThreadMessage::Message(Message::Columns(schema)) => Piece::Columns(Columns(schema)),
                ThreadMessage::Message(Message::Rows(rows)) => Piece::Rows(Batch(rows)),
                ThreadMessage::Message(Message::Skipped(what)) => Piece::Skipped(what),
            };
            return (Slot::Open(running), Ok(Some(piece)));
        }
    }

    fn end(&self, (facts, rows, written): (RunFacts, u64, Vec<PathBuf>), own: Value) -> Option<Piece> {
        let report = facts.report.unwrap_or(own);
        let facts = json!({ "summary": facts.summary, "report": report, "rows": rows });
        *lock(&self.ended) = RunEnd { facts, written };
        None
    }
}

#[pymethods]
impl Run {
    /// Returns the columns, then some rows, or the error of a skipped input; `None` at the end.
    fn next(&self, py: Python<'_>) -> PyResult<Option<Piece>> {
        let Some(running) = self.take(py) else { return Ok(None) };
        let (slot, piece) = self.advance(py, running);
        *lock(&self.slot) = slot;
        piece
    }

    /// Returns the summary, the counters and the number of rows of a completed run, as JSON.
    fn facts(&self) -> PyResult<String> {
        to_json(&lock(&self.ended).facts)
    }

    /// Returns the files that a completed run has written and named itself.
    fn written(&self) -> Vec<PathBuf> {
        lock(&self.ended).written.clone()
    }

    /// Cancels the job, and waits until the job has ended.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(running) = self.take(py) else { return Ok(()) };
        let stopped = running.stop(py);
        *lock(&self.slot) = Slot::Closed;
        stopped
    }
}

impl Drop for Run {
    /// Stops a job whose rows can't be read any more.
    fn drop(&mut self) {
        if let Slot::Open(running) = &*lock(&self.slot) {
            running.job.cancel().cancel();
        }
    }
}

/// Columns in the form that `pyarrow.schema` takes.
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Columns(SchemaRef);

impl Columns {
    /// Returns the columns of a schema.
    #[cfg(feature = "vectors")]
    pub(crate) fn of(schema: SchemaRef) -> Columns {
        Columns(schema)
    }
}

#[pymethods]
impl Columns {
    /// Returns the columns as Arrow's C schema.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(self.0.as_ref()).map_err(arrow_error)?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }
}

/// A batch of rows, which `pyarrow.record_batch` and other functions use without a copy.
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Batch(RecordBatch);

impl Batch {
    /// Returns a batch for Python.
    #[cfg(feature = "vectors")]
    pub(crate) fn of(rows: RecordBatch) -> Batch {
        Batch(rows)
    }
}

#[pymethods]
impl Batch {
    /// Returns Arrow's C schema and array. The capsules own their contents, and share the buffers with this
    /// batch.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        // The protocol allows a producer to ignore requested types.
        let _ = requested_schema;
        let (array, schema) = to_ffi(&StructArray::from(self.0.clone()).into_data()).map_err(arrow_error)?;
        Ok((
            PyCapsule::new_with_value(py, schema, c"arrow_schema")?,
            PyCapsule::new_with_value(py, array, c"arrow_array")?,
        ))
    }
}

fn arrow_error(error: ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Converts a path from Python, where `-` is a file of that name, not a standard stream.
pub(crate) fn file(path: PathBuf) -> PathBuf {
    if path == Path::new("-") { PathBuf::from("./-") } else { path }
}
