//! Exposes open vectors to Python. The Python class `VectorSearcher` uses them for many searches.

use std::{
    sync::{Arc, mpsc::sync_channel},
    thread,
    time::Duration,
};

use inshore::{
    store::{self, Cancel},
    vectors::{SearcherOptions, VectorFile},
};
use inshore_ops::verbs::{Neighbours, OpenOptions, OpenVectors, SearchVectors};
use pyo3::{exceptions::PyValueError, prelude::*};

use crate::{
    error::{PendingException, to_python},
    job::{ThreadMessage, budget, receive, to_json},
    run::{Batch, Columns},
    store::Store,
};

/// The name of the queries in error messages.
const QUERIES: &str = "queries";

/// Vectors that stay open for many searches. Each call runs on its own thread. The GIL is released meanwhile, and
/// Ctrl-C cancels the call.
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Searcher(Arc<OpenVectors>);

#[pymethods]
impl Searcher {
    /// Opens the vectors `name` of a store.
    #[new]
    #[pyo3(signature = (store, name, *, in_memory, calls, memory=None, threads=None))]
    fn new(
        py: Python<'_>,
        store: &Store,
        name: &str,
        in_memory: bool,
        calls: Option<usize>,
        memory: Option<&Bound<'_, PyAny>>,
        threads: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<Searcher> {
        let budget = budget(memory, threads)?;
        let options = OpenOptions {
            memory_bytes: budget.memory_bytes(),
            threads: budget.threads(),
            searcher: SearcherOptions { in_memory, calls },
        };
        let (store, name) = (store.get(), name.to_string());
        let opened = on_thread(py, move |cancel| OpenVectors::open(&store, &name, options, cancel))?;
        Ok(Searcher(Arc::new(opened)))
    }

    /// Finds the neighbours of queries. `queries` contains the bytes of a `.npy` file. Returns the columns, the rows,
    /// and the statistics as JSON.
    fn search(
        &self,
        py: Python<'_>,
        request: &str,
        queries: &[u8],
    ) -> PyResult<(Columns, Vec<Batch>, String)> {
        let request: SearchVectors =
            serde_json::from_str(request).map_err(|error| PyValueError::new_err(error.to_string()))?;
        let (open, queries) = (self.0.clone(), queries.to_vec());
        let Neighbours { found, schema, rows } = on_thread(py, move |cancel| {
            open.search(&request, VectorFile::in_memory(QUERIES, queries)?, cancel)
        })?;
        Ok((Columns::of(schema), rows.into_iter().map(Batch::of).collect(), to_json(&found)?))
    }

    /// Returns the properties of the vectors as JSON.
    fn info(&self, py: Python<'_>) -> PyResult<String> {
        let open = self.0.clone();
        to_json(&on_thread(py, move |cancel| open.info(cancel))?)
    }

    /// Opens the vectors again if the vectors or their index have changed. Returns true if they have changed.
    fn refresh(&self, py: Python<'_>) -> PyResult<bool> {
        let open = self.0.clone();
        on_thread(py, move |cancel| open.refresh(cancel))
    }

    /// Closes the vectors.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.0.close());
    }
}

/// Runs `work` on a new thread. Meanwhile this thread waits for the result and for signals, with the GIL released.
fn on_thread<R: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Cancel) -> inshore_ops::Result<R> + Send + 'static,
) -> PyResult<R> {
    let (sender, mut receiver) = sync_channel(1);
    let cancel = Cancel::default();
    let own = cancel.clone();
    let spawned = thread::Builder::new().name("inshore-search".into()).spawn(move || {
        // The send cannot fail, since the receiver waits for the message.
        let _ = sender.send(work(&own).map_err(|error| PendingException::of(&error)));
    });
    let worker = spawned.map_err(|error| to_python(store::Error::io("start a thread", "search", error)))?;
    let mut signal = None;
    let message = receive(py, &cancel, &mut receiver, &mut signal, Duration::MAX);
    match (message, signal) {
        (_, Some(raised)) => Err(raised),
        (ThreadMessage::Message(done), None) => done.map_err(PendingException::raise),
        (ThreadMessage::Ended | ThreadMessage::GivenUp, None) => {
            // A thread that panics ends without a message. The panic is resumed here.
            py.detach(|| worker.join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            unreachable!("a thread that ends has sent")
        }
    }
}
