//! Queries on their way to Python, from the process in which each of them runs.

use std::{
    env,
    panic::resume_unwind,
    path::PathBuf,
    sync::{
        Mutex, MutexGuard,
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use inshore::{
    apart::run_apart,
    contained::{limits, told},
    neardata::{Failure, Reply},
    sandbox::{ApartEnd, Helper, WorkerEnd},
    store,
};
use pyo3::{prelude::*, types::PyCapsule};
use serde_json::{Value, json};

use crate::{
    answer::{Batch, file, schema_capsule},
    contained::{self, End, Facts, KIND, Name, helper},
    error::{Raised, to_python},
    job::{Job, Received, receive, to_json},
};

/// Counters of a job that the process of its query tells.
const OF_PROCESS: [&str; 7] = [
    "memory_reserved_bytes_max",
    "memory_resident_bytes_max",
    "direct_io",
    "io",
    "drive_floor",
    "phases",
    "levels",
];
/// How often a thread looks whether another one still waits for rows.
const BUSY_TICK: Duration = Duration::from_millis(1);

/// A query that runs, whose rows can be had once.
#[pyclass(frozen, module = "inshore._native", name = "Query")]
pub(crate) struct Asked {
    columns: SchemaRef,
    facts: Mutex<Facts>,
    rows: Mutex<Slot>,
}

/// The way to the process of a query.
enum Slot {
    Open(Rows),
    /// A thread of Python waits for rows.
    Busy,
    /// The last row was given, the query failed, or it was closed: its process has ended.
    Closed,
}

struct Rows {
    job: store::Job,
    messages: Receiver<Message>,
    /// The thread that started the process, which ends with it.
    worker: JoinHandle<()>,
}

enum Message {
    Begun(SchemaRef),
    Rows(RecordBatch),
    End(End),
}

/// Passes on what comes. The process waits while nobody takes it.
struct Passing(SyncSender<Message>);

impl Passing {
    fn pass(&self, message: Message) -> Result<(), Failure> {
        self.0.send(message).map_err(|_| store::Error::Cancelled.into())
    }
}

impl Reply for Passing {
    fn begun(&mut self, columns: &SchemaRef) -> Result<(), Failure> {
        self.pass(Message::Begun(columns.clone()))
    }

    fn batch(&mut self, batch: RecordBatch) -> Result<(), Failure> {
        self.pass(Message::Rows(batch))
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Starts a query; each table has a name and files, and `text` names columns of CSV and JSON lines that are text. With an `output` the rows
/// are written to that file.
#[pyfunction]
pub(crate) fn query(
    py: Python<'_>,
    job: &Job,
    text: String,
    tables: Vec<(String, Vec<PathBuf>)>,
    as_text: Vec<String>,
    header: Option<bool>,
    output: Option<PathBuf>,
) -> PyResult<Asked> {
    let job = job.get()?;
    let name = |path: PathBuf| Name::of(&file(path));
    let names = |paths: Vec<PathBuf>| paths.into_iter().map(name).collect();
    let folder = env::current_dir();
    let folder =
        folder.map_err(|error| to_python(store::Error::io("find out", "the working folder", error)))?;
    let asked = contained::Asked {
        text,
        tables: tables.into_iter().map(|(table, paths)| (table, names(paths))).collect(),
        as_text,
        header,
        folder: Name::of(&folder),
        output: output.map(name),
    };
    let mut rows = Rows::start(job, helper(py)?, json!(asked))?;
    match rows.next(py) {
        Ok(Message::Begun(columns)) => match Facts::taken(&columns) {
            Some((columns, facts)) => {
                let facts = Mutex::new(rows.with_own(facts));
                Ok(Asked { columns, facts, rows: Mutex::new(Slot::Open(rows)) })
            }
            None => Err(rows.strange(py)),
        },
        Ok(Message::Rows(_)) => Err(rows.strange(py)),
        Ok(Message::End(end)) => {
            rows.join(py);
            match end {
                End::Failed(raised) => Err(raised.raise()),
                End::Done(_) => {
                    Err(Raised::other("the query's process ended before it began".to_string()).raise())
                }
            }
        }
        Err(signal) => {
            rows.stop(py);
            Err(signal)
        }
    }
}

/// Runs a query in a process, and passes on what comes of it.
fn run(job: &store::Job, helper: &Helper, asked: Value, passing: &mut Passing) -> End {
    let limits = limits(job.budget());
    let failed = match run_apart(helper, limits, job, KIND, asked, passing) {
        Ok(end) => match serde_json::from_value(end) {
            Ok(end) => return end,
            Err(error) => {
                Raised::other(format!("the query's process ended with other words than expected: {error}"))
            }
        },
        Err(failure) => raised(failure, job.budget().memory_bytes()),
    };
    End::Failed(failed)
}

fn raised(failure: Failure, budget_bytes: u64) -> Raised {
    let failure = match failure.downcast::<store::Error>() {
        Ok(error) => return Raised::of(*error),
        Err(failure) => failure,
    };
    match failure.downcast::<ApartEnd>() {
        Ok(end) => match end.end() {
            WorkerEnd::TooLarge(doing) => {
                let doing = if doing.is_empty() { "handing over the rows" } else { doing };
                Raised::budget(told(&WorkerEnd::TooLarge(doing.to_string()), budget_bytes))
            }
            WorkerEnd::Exited(_) => Raised::other(format!("the query failed: {end}")),
            other => Raised::other(told(other, budget_bytes)),
        },
        Err(failure) => Raised::other(format!("the query failed: {failure}")),
    }
}

impl Rows {
    fn start(job: store::Job, helper: Helper, asked: Value) -> PyResult<Rows> {
        let (sender, messages) = sync_channel(1);
        let of_worker = job.clone();
        let worker = thread::Builder::new().name("inshore-query".into()).spawn(move || {
            let mut passing = Passing(sender);
            let end = run(&of_worker, &helper, asked, &mut passing);
            // The scratch of the job goes with its last owner.
            drop(of_worker);
            // Where nobody listens any more, nobody wants to know.
            let _ = passing.pass(Message::End(end));
        });
        let worker = worker.map_err(|error| to_python(store::Error::io("start a thread", "query", error)))?;
        Ok(Rows { job, messages, worker })
    }

    /// Waits for the next message with the GIL released. A signal whose handler raises is the error.
    fn next(&mut self, py: Python<'_>) -> PyResult<Message> {
        let mut signal = None;
        match receive(py, self.job.cancel(), &mut self.messages, &mut signal, Duration::MAX) {
            Received::Message(message) => signal.map_or(Ok(message), Err),
            Received::GivenUp => Err(signal.expect("a signal came")),
            Received::Ended => {
                Err(Raised::other("the query ended without a word, which is a fault of inshore".to_string())
                    .raise())
            }
        }
    }

    /// Facts that a process told, with the counters of this one where that told none.
    fn with_own(&self, facts: Facts) -> Facts {
        let mut report = json!(self.job.report());
        for key in OF_PROCESS {
            if let Some(value) = facts.report.get(key) {
                report[key] = value.clone();
            }
        }
        Facts { report, ..facts }
    }

    /// Waits until the thread has let go of the job.
    fn join(self, py: Python<'_>) {
        let Rows { job, messages, worker } = self;
        drop(messages);
        py.detach(|| {
            let joined = worker.join();
            drop(job);
            joined
        })
        .unwrap_or_else(|panic| resume_unwind(panic));
    }

    /// Ends the process, unless it has ended.
    fn stop(self, py: Python<'_>) {
        self.job.cancel().cancel();
        self.join(py);
    }

    fn strange(self, py: Python<'_>) -> PyErr {
        self.stop(py);
        Raised::other("the query's process said something else than expected".to_string()).raise()
    }
}

impl Asked {
    /// The way to the process, unless it is closed: no other thread has it until it is put back.
    fn take(&self, py: Python<'_>) -> Option<Rows> {
        loop {
            let mut slot = lock(&self.rows);
            match std::mem::replace(&mut *slot, Slot::Busy) {
                Slot::Open(rows) => return Some(rows),
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

    fn put(&self, slot: Slot) {
        *lock(&self.rows) = slot;
    }

    /// The next rows; at the end, and after an error, the process has ended.
    fn advance(&self, py: Python<'_>) -> PyResult<Option<RecordBatch>> {
        let Some(mut rows) = self.take(py) else { return Ok(None) };
        let end = match rows.next(py) {
            Ok(Message::Rows(batch)) => {
                self.put(Slot::Open(rows));
                return Ok(Some(batch));
            }
            Ok(Message::End(End::Done(facts))) => {
                *lock(&self.facts) = rows.with_own(facts);
                rows.join(py);
                Ok(None)
            }
            Ok(Message::End(End::Failed(raised))) => {
                rows.join(py);
                Err(raised.raise())
            }
            Ok(Message::Begun(_)) => Err(rows.strange(py)),
            Err(error) => {
                rows.stop(py);
                Err(error)
            }
        };
        self.put(Slot::Closed);
        end
    }
}

#[pymethods]
impl Asked {
    /// Facts about the run, as JSON: from its beginning, until it has ended.
    #[getter]
    fn summary(&self) -> PyResult<String> {
        to_json(&lock(&self.facts).summary)
    }

    /// The counters of the job, as JSON: from its beginning, until it has ended.
    fn report(&self) -> PyResult<String> {
        to_json(&lock(&self.facts).report)
    }

    /// The columns, as Arrow's C schema.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.columns)
    }

    /// The next rows, some thousands at most; `None` at the end.
    fn next_batch(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        Ok(self.advance(py)?.map(Batch::new))
    }

    /// Waits until all rows are in the file that was named at the start, and gives their number.
    fn write(&self, py: Python<'_>) -> PyResult<u64> {
        while self.advance(py)?.is_some() {}
        Ok(lock(&self.facts).written)
    }

    /// Ends its process, and lets go of the rows that were not read.
    fn close(&self, py: Python<'_>) {
        if let Some(rows) = self.take(py) {
            rows.stop(py);
            self.put(Slot::Closed);
        }
    }
}

impl Drop for Asked {
    /// Its thread ends the process soon.
    fn drop(&mut self) {
        if let Slot::Open(rows) = &*lock(&self.rows) {
            rows.job.cancel().cancel();
        }
    }
}
