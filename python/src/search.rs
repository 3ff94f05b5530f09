//! Searching: a thread that searches, and rows that are had from it one batch after the other.
//!
//! ```text
//!   search ── bounded queue ──► next_batch ──► Python        a queue that is full stops the search
//! ```

use std::{
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
    kernels::{
        self, Candidate, PatternOptions, SearchColumns, SearchItem, SearchSummary, SearchTable,
        SearchTableOptions, TextOptions, WalkOptions, dataset_name, stored_sources, walk,
    },
    neardata::{self, Next, Source},
    store,
    tables::TableWriter,
};
use pyo3::{prelude::*, types::PyCapsule};

use crate::{
    answer::{Batch, file, schema_capsule},
    error::{bad_option, kernel_to_python, to_python, whole},
    job::{Job, Received, TICK, receive, to_json},
};

/// A search that runs, whose rows can be had once.
#[pyclass(frozen, module = "inshore._native", name = "Search")]
pub(crate) struct Searching {
    job: store::Execution,
    schema: SchemaRef,
    state: Mutex<State>,
}

struct State {
    /// `None` after the last row, after an error, once closed, and while another thread waits for rows.
    running: Option<Running>,
    /// What was done, as JSON.
    summary: String,
}

struct Running {
    messages: Receiver<Message>,
    worker: JoinHandle<()>,
}

enum Message {
    Rows(RecordBatch),
    Skipped(String),
    End(kernels::Result<SearchSummary>),
}

/// What Python is given.
#[derive(IntoPyObject)]
pub(crate) enum Piece {
    Rows(Batch),
    /// Of a file that could not be read, and was passed over.
    Skipped(String),
}

/// The options, as a dictionary.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(crate) struct Options<'py> {
    columns: String,
    spans: bool,
    max_count: Option<Bound<'py, PyAny>>,
    include_zero: bool,
    as_bytes: bool,
    text: bool,
    fixed: bool,
    ignore_case: bool,
    smart_case: bool,
    words: bool,
    lines: bool,
    invert: bool,
    crlf: bool,
    globs: Vec<String>,
    types: Vec<String>,
    types_not: Vec<String>,
    hidden: bool,
    no_ignore: bool,
    follow: bool,
    max_depth: Option<Bound<'py, PyAny>>,
    unpack: bool,
    skip: bool,
}

impl Options<'_> {
    /// Whether files that cannot be read are passed over.
    #[cfg(feature = "nodes")]
    pub(crate) fn skip(&self) -> bool {
        self.skip
    }

    pub(crate) fn patterns(&self) -> PatternOptions {
        let Options { fixed, ignore_case, smart_case, words, lines, invert, crlf, .. } = *self;
        PatternOptions { fixed, ignore_case, smart_case, words, lines, invert, crlf }
    }

    pub(crate) fn table(&self) -> PyResult<SearchTableOptions> {
        let columns = match (&*self.columns, self.spans) {
            ("line_counts", _) => SearchColumns::LineCounts,
            ("match_counts", _) => SearchColumns::MatchCounts,
            (_, true) => SearchColumns::LinesWithSpans,
            (_, false) => SearchColumns::Lines,
        };
        let max_count = match &self.max_count {
            Some(count) => match whole("max_count", count)? {
                0 => return Err(bad_option("max_count", count, "at least 1")),
                count => count,
            },
            None => u64::MAX,
        };
        let Options { include_zero, as_bytes, text, .. } = *self;
        Ok(SearchTableOptions { columns, max_count, include_zero, as_bytes, text })
    }

    fn walk(&self) -> PyResult<WalkOptions> {
        let depth = |depth| whole::<u32>("max_depth", depth);
        Ok(WalkOptions {
            globs: self.globs.clone(),
            types: self.types.clone(),
            types_not: self.types_not.clone(),
            hidden: self.hidden,
            no_ignore: self.no_ignore,
            follow: self.follow,
            max_depth: self.max_depth.as_ref().map(depth).transpose()?.map(|depth| depth as usize),
        })
    }
}

/// Starts a search below `paths`, without any of them below the current folder.
#[pyfunction]
pub(crate) fn search(
    py: Python<'_>,
    job: &Job,
    patterns: Vec<String>,
    paths: Vec<PathBuf>,
    options: Options<'_>,
) -> PyResult<Searching> {
    let job = job.execution()?;
    let table = SearchTable::new(&patterns, &options.patterns(), options.table()?, job.budget())
        .map_err(kernel_to_python)?;
    let (walking, skip) = (options.walk()?, options.skip);
    let text = TextOptions { unpack: options.unpack, ..TextOptions::default() };
    let own = job.clone();
    let files = py.detach(move || files(own.job(), paths, &walking, text)).map_err(kernel_to_python)?;
    start(job, table, skip, move |table, job, each| table.run(job, files, each))
}

/// Takes what a search finds, and says whether it goes on.
pub(crate) type Each<'a> = &'a mut (dyn FnMut(SearchItem) -> kernels::Result<Next> + Send);

/// Starts a search on a thread of its own, which hands over what `search` finds.
pub(crate) fn start(
    job: store::Execution,
    table: SearchTable,
    skip: bool,
    search: impl FnOnce(&SearchTable, &store::Context, Each<'_>) -> kernels::Result<SearchSummary>
    + Send
    + 'static,
) -> PyResult<Searching> {
    let schema = table.schema().clone();
    let (sender, messages) = sync_channel(1);
    let own = job.clone();
    let work = move || {
        let found = search(&table, &own, &mut |item| pass_on(&sender, item, skip));
        // Nobody listens any more once it is closed.
        let _ = sender.send(Message::End(found));
    };
    let worker = thread::Builder::new().name("inshore-search".into()).spawn(work);
    let worker = worker.map_err(|error| to_python(store::Error::io("start a thread", "search", error)))?;
    let running = Some(Running { messages, worker });
    Ok(Searching { job, schema, state: Mutex::new(State { running, summary: "{}".to_string() }) })
}

/// Files and folders, and then datasets, each with what rows call it.
fn files(
    job: Option<&store::Job>,
    paths: Vec<PathBuf>,
    walking: &WalkOptions,
    text: TextOptions,
) -> kernels::Result<impl Iterator<Item = (Candidate, Source)> + Send + use<>> {
    let is_here = paths.is_empty();
    let (stored, paths): (Vec<PathBuf>, Vec<PathBuf>) =
        paths.into_iter().partition(|path| dataset_name(path).is_some());
    let mut datasets = Vec::new();
    for (path, named) in stored.iter().filter_map(|path| Some((path, dataset_name(path)?))) {
        let job = job.ok_or_else(|| store::Error::NoStore { path: path.clone() })?;
        let whole = |(path, source)| (Candidate { path, is_named: true }, source);
        datasets.extend(stored_sources(job, named, text)?.into_iter().map(whole));
    }
    let paths: Vec<PathBuf> = paths.into_iter().map(file).collect();
    let found = (is_here || !paths.is_empty()).then(|| walk(&paths, walking)).transpose()?;
    let found = found.into_iter().flatten().map(move |found| match found {
        Ok(candidate) => {
            let source = candidate.source(text);
            (candidate, source)
        }
        Err(error) => unreadable(error),
    });
    Ok(found.chain(datasets))
}

/// What the walk could not look at fails in its turn.
fn unreadable(error: neardata::Error) -> (Candidate, Source) {
    let candidate = Candidate { path: PathBuf::new(), is_named: true };
    (candidate, Source::new(error.to_string(), move |_| Err(error)))
}

fn pass_on(sender: &SyncSender<Message>, item: SearchItem, skip: bool) -> kernels::Result<Next> {
    let message = match item {
        SearchItem::Rows(rows) => Message::Rows(rows),
        SearchItem::Failed(error) if skip => Message::Skipped(error.to_string()),
        SearchItem::Failed(error) => return Err(error),
    };
    Ok(if sender.send(message).is_ok() { Next::Go } else { Next::Stop })
}

#[pymethods]
impl Searching {
    /// Facts about the run, as JSON; empty before its end.
    #[getter]
    fn summary(&self) -> String {
        self.state().summary.clone()
    }

    /// The columns, as Arrow's C schema.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.schema)
    }

    /// The next rows, or what is wrong with a file that was passed over; `None` at the end.
    fn next_batch(&self, py: Python<'_>) -> PyResult<Option<Piece>> {
        let Some(mut running) = self.state().running.take() else { return Ok(None) };
        let mut signal = None;
        loop {
            let received = receive(py, self.job.cancel(), &mut running.messages, &mut signal, Duration::MAX);
            let piece = match received {
                Received::Message(Message::Rows(_) | Message::Skipped(_)) if signal.is_some() => continue,
                Received::Message(Message::Rows(rows)) => Piece::Rows(Batch::new(rows)),
                Received::Message(Message::Skipped(what)) => Piece::Skipped(what),
                Received::Message(Message::End(found)) => {
                    py.detach(|| running.worker.join()).unwrap_or_else(|panic| resume_unwind(panic));
                    if let Some(raised) = signal {
                        return Err(raised);
                    }
                    self.state().summary = to_json(&found.map_err(kernel_to_python)?)?;
                    return Ok(None);
                }
                Received::Ended => match py.detach(|| running.worker.join()) {
                    Ok(()) => unreachable!("a thread that ends has sent"),
                    Err(panic) => resume_unwind(panic),
                },
                Received::GivenUp => return Err(signal.expect("two signals came")),
            };
            self.state().running = Some(running);
            return Ok(Some(piece));
        }
    }

    /// Writes all rows to the file `path`, whose ending chooses the format, and gives their number and what is wrong with
    /// files that were passed over.
    fn write(&self, py: Python<'_>, path: PathBuf) -> PyResult<(u64, Vec<String>)> {
        let written = self.write_to(py, file(path));
        if written.is_err() {
            self.close(py)?;
        }
        written
    }

    /// Stops the search, and waits until it has stopped.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let Some(Running { messages, worker }) = self.state().running.take() else { return Ok(()) };
        self.job.cancel().cancel();
        drop(messages);
        let mut wait = Duration::from_millis(1);
        while !worker.is_finished() {
            py.detach(|| thread::sleep(wait));
            py.check_signals()?;
            wait = (2 * wait).min(TICK);
        }
        Ok(())
    }
}

impl Searching {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write_to(&self, py: Python<'_>, path: PathBuf) -> PyResult<(u64, Vec<String>)> {
        let create = || TableWriter::create(&path, self.schema.clone(), self.job.budget());
        let mut writer = py.detach(create).map_err(to_python)?;
        let (mut count, mut skipped) = (0, Vec::new());
        while let Some(piece) = self.next_batch(py)? {
            match piece {
                Piece::Rows(batch) => {
                    count += batch.rows().num_rows() as u64;
                    py.detach(|| writer.write(batch.rows())).map_err(to_python)?;
                }
                Piece::Skipped(what) => skipped.push(what),
            }
        }
        py.detach(|| writer.finish()).map_err(to_python)?;
        Ok((count, skipped))
    }
}

impl Drop for Searching {
    /// Whoever searches for nobody stops.
    fn drop(&mut self) {
        if self.state().running.is_some() {
            self.job.cancel().cancel();
        }
    }
}
