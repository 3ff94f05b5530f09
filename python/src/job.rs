//! Starts jobs, and waits for jobs in Python.

use std::{
    num::NonZero,
    path::PathBuf,
    sync::{
        Mutex,
        mpsc::{Receiver, RecvTimeoutError},
    },
    thread,
    time::{Duration, Instant},
};

use inshore::store::{self, Budget, Cancel, Context, Execution, default_memory_bytes, parse_bytes};
use pyo3::{exceptions::PyTypeError, prelude::*, types::PyString};

use crate::error::{bad_option, to_python, whole};

/// The interval at which signals are checked.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// A job of one command, with its budget and scratch folder. The end of Python's `with` block ends the job.
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Job(Mutex<Option<Execution>>);

impl Job {
    /// Starts a job. `memory` is a size as text or a number of bytes.
    pub(crate) fn start(
        store: &store::Store,
        memory: Option<&Bound<'_, PyAny>>,
        threads: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Job> {
        let job = store.job(budget(memory, threads)?, Cancel::default()).map_err(to_python)?;
        Ok(Job(Mutex::new(Some(Execution::Stored(job)))))
    }

    /// Returns the job, with a store or without one, unless the job has ended.
    pub(crate) fn execution(&self) -> PyResult<Execution> {
        let job = self.0.lock().expect("no panic under this lock");
        job.clone().ok_or_else(|| to_python(store::Error::Cancelled))
    }

    /// Returns the job on a store.
    pub(crate) fn get(&self) -> PyResult<store::Job> {
        let job = self.execution()?.job().cloned();
        job.ok_or_else(|| PyTypeError::new_err("the job has no store: expected a job that a store started"))
    }
}

#[pymethods]
impl Job {
    /// Starts a job without a store and without a scratch folder.
    #[staticmethod]
    #[pyo3(signature = (memory=None, threads=None))]
    fn plain(memory: Option<&Bound<'_, PyAny>>, threads: Option<&Bound<'_, PyAny>>) -> PyResult<Job> {
        let context = Context::new(budget(memory, threads)?, Cancel::default());
        Ok(Job(Mutex::new(Some(Execution::Plain(context)))))
    }

    /// Returns the path of the scratch file `name`, which is removed at any end of the job.
    fn scratch_path(&self, name: &str) -> PyResult<PathBuf> {
        Ok(self.get()?.scratch_path(name))
    }

    /// Returns the counters so far, as JSON.
    fn report(&self) -> PyResult<String> {
        to_json(&self.execution()?.report())
    }

    /// Returns the phase, its unit, the units done, and the units in all: 0 if unknown. The phase is empty before the
    /// first one, and during a query, which runs in another process.
    fn progress(&self) -> PyResult<(String, &'static str, u64, u64)> {
        let state = self.execution()?.progress().state();
        Ok((state.phase, state.unit, state.done, state.total))
    }

    fn __enter__(slf: Py<Self>) -> Py<Self> {
        slf
    }

    /// Releases the job's memory and scratch space. If rows are still being read, both stay in use until the last row
    /// was read.
    #[pyo3(signature = (*_exception))]
    fn __exit__(&self, py: Python<'_>, _exception: &Bound<'_, PyAny>) {
        let job = self.0.lock().expect("no panic under this lock").take();
        py.detach(|| drop(job));
    }
}

/// Makes a budget from two optional arguments.
pub(crate) fn budget(
    memory: Option<&Bound<'_, PyAny>>,
    threads: Option<&Bound<'_, PyAny>>,
) -> PyResult<Budget> {
    let memory_bytes = memory.map(size).transpose()?.unwrap_or_else(default_memory_bytes);
    let threads = match threads {
        Some(threads) => match whole::<u32>("threads", threads)? {
            0 => return Err(bad_option("threads", threads, "at least 1")),
            threads => threads as usize,
        },
        None => thread::available_parallelism().map_or(1, NonZero::get),
    };
    Ok(Budget::new(memory_bytes, threads))
}

/// Returns a number of bytes; `value` is a size as text or a number.
#[pyfunction]
pub(crate) fn size(value: &Bound<'_, PyAny>) -> PyResult<u64> {
    match value.cast::<PyString>() {
        Ok(text) => parse_bytes(text.to_str()?).map_err(|error| to_python(store::Error::from(error))),
        Err(_) if value.is_instance_of::<pyo3::types::PyFloat>() => {
            Err(PyTypeError::new_err("memory: expected a size such as \"64MiB\" or a whole number of bytes"))
        }
        Err(_) => whole("memory", value),
    }
}

/// Formats facts as JSON.
pub(crate) fn to_json(facts: &impl serde::Serialize) -> PyResult<String> {
    // Plain structs of numbers and text are always valid JSON.
    Ok(serde_json::to_string(facts).expect("plain facts"))
}

/// The outcome of the wait for a message of a thread.
pub(crate) enum ThreadMessage<T> {
    /// A message of the thread.
    Message(T),
    /// The thread has ended.
    Ended,
    /// Two signals came, or the thread did not end within the allowed time after one signal.
    GivenUp,
}

/// Waits for a message of a thread with the GIL released. A signal whose handler raises cancels the job and
/// is stored in `signal`; then the wait for the thread's end is limited to `patience`.
pub(crate) fn receive<T: Send>(
    py: Python<'_>,
    cancel: &Cancel,
    receiver: &mut Receiver<T>,
    signal: &mut Option<PyErr>,
    patience: Duration,
) -> ThreadMessage<T> {
    let mut stopping: Option<Instant> = None;
    loop {
        // Signals are checked before each wait, since a thread may send without a pause.
        if let Err(raised) = py.check_signals() {
            cancel.cancel();
            if signal.replace(raised).is_some() {
                return ThreadMessage::GivenUp;
            }
            stopping = Some(Instant::now());
        }
        if stopping.is_some_and(|since| since.elapsed() > patience) {
            return ThreadMessage::GivenUp;
        }
        let receiver = &mut *receiver;
        match py.detach(move || receiver.recv_timeout(TICK)) {
            Ok(message) => return ThreadMessage::Message(message),
            Err(RecvTimeoutError::Disconnected) => return ThreadMessage::Ended,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
}
