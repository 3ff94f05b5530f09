//! This module runs SQL queries on nodes. A client plans a query. The part of the plan that processes the rows of
//! one table is called a fragment. A fragment runs on the nodes that hold the table
//! ([`inshore_sql::RemoteExecutor`]).
//!
//! The nodes store a table's files in shards (parts of a file). A task contains the metadata that a node needs to
//! read its shards: see `files.rs`.
//!
//! The client can also fetch shards and run the fragment over these shards itself, if this makes the query faster.
//!
//! If a node is lost before the client has received any rows from this node, another node with replicas of the
//! same shards repeats the task. If the client has already received rows from the lost node, the whole query is
//! repeated. This is possible only until the query has returned rows to its caller.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Condvar, Mutex, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use arrow_array::RecordBatch;
use inshore_kernel::{Failure, Reply, Sources, Task, TaskHandler, TaskSource};
use inshore_nodes::{
    Catalog, Error as NodesError, GatherReport, HelpOptions, HelpPieces, Nodes, RunOptions, Streams,
    batch_bytes, compact, stream_with_help,
};
use inshore_sql::{
    Error, Feed, Fragment, FragmentRows, FragmentScan, RemoteExecutor, Result, TableMetadata, run_fragment,
};
use inshore_stages::JobReport;
use inshore_store::Job;
use inshore_tables::{Error as TableError, Header};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::files::{Asker, FileText, Files, hold_pieces, of_nodes, piece_of, taken, text_of};

#[cfg(test)]
mod stage_tests;
mod stages;
#[cfg(test)]
mod tests;

pub use self::stages::{QueryStages, StageQueries};

const KIND: &str = "sql";
/// The approximate size of a message with rows, in bytes.
const MESSAGE_BYTES: usize = 512 << 10;
/// The minimum memory in bytes with which the client runs a fragment itself.
const HELP_BYTES_MIN: u64 = 96 << 20;
const HELP_BYTES_MAX: u64 = 1 << 30;

#[derive(Serialize, Deserialize)]
struct Arguments {
    fragment: Fragment,
    /// The files of the table. Each shard in the request refers to its file by the index in this list.
    files: Vec<FileText>,
}

/// The task handler that runs fragments of queries on a node.
#[derive(Debug)]
pub struct Queries;

impl TaskHandler for Queries {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn smallest_memory_bytes(&self) -> u64 {
        inshore_sql::smallest_memory_bytes()
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> std::result::Result<Value, Failure> {
        let Task { job, arguments, sources } = task;
        let Arguments { fragment, files } = serde_json::from_value(arguments)?;
        let known = fragment.known().ok_or("the fragment does not describe its table")?.clone();
        let feed = feed_of(&job, files, known, sources)?;
        answer(&job, &fragment, feed, |_| {}, reply)
    }
}

/// Returns the shards of a table as files.
fn feed_of(
    job: &Job,
    files: Vec<FileText>,
    known: TableMetadata,
    sources: Sources,
) -> std::result::Result<Feed, Failure> {
    let along = files.iter().map(FileText::along).collect::<std::result::Result<Vec<_>, _>>()?;
    let (bytes, of_job) = (sources.bytes(), job.clone());
    let input = move |source: std::result::Result<TaskSource, Failure>| {
        let source = source?;
        let file = text_of(&files, source.whole)?;
        let along = along[source.whole as usize].clone();
        let parts = [Some(piece_of(&of_job, &source.source)?), along].into_iter().flatten().collect();
        Ok::<_, Failure>(file.input(parts).with_known(&known))
    };
    let (sources, leave) = sources.into_parts();
    let inputs = sources.map(move |source| input(source).map_err(unfit));
    Ok(Feed::new(inputs, Some(bytes)).left_by(leave))
}

/// Converts the error of a shard that could not be read into an error of the crate `tables`.
fn unfit(failure: Failure) -> TableError {
    TableError::Unsupported { file: "a piece".to_string(), what: failure.to_string() }
}

/// Runs a fragment over files, and sends the resulting rows to `reply`.
fn answer(
    job: &Job,
    fragment: &Fragment,
    feed: Feed,
    needed: impl FnOnce(FragmentScan) + Send,
    reply: &mut dyn Reply,
) -> std::result::Result<Value, Failure> {
    let mut failed = None;
    let ran = run_fragment(job, fragment, feed, needed, |batch| {
        reply_in_parts(reply, &batch).map_err(|failure| {
            failed = Some(failure);
            Error::Store(inshore_store::Error::Cancelled)
        })
    });
    match (failed, ran) {
        (Some(failure), _) => Err(failure),
        (None, ran) => Ok(serde_json::to_value(ran?)?),
    }
}

/// Sends a batch to `reply` in messages of about 512 KiB. Bytes of the batch's buffers that do not belong to the
/// rows of the batch are not sent.
///
/// # Errors
/// Returns the errors of [`Reply::batch`].
pub fn reply_in_parts(reply: &mut dyn Reply, batch: &RecordBatch) -> std::result::Result<(), Failure> {
    let parts = (batch_bytes(batch) as usize).div_ceil(MESSAGE_BYTES).max(1);
    let rows = batch.num_rows().div_ceil(parts).max(1);
    (0..batch.num_rows().max(1))
        .step_by(rows)
        .try_for_each(|start| reply.batch(compact(batch.slice(start, rows.min(batch.num_rows() - start)))))
}

/// Two ranges of a file are read as one range if the gap between them is at most this number of bytes.
const GAP_BYTES: u64 = 64 << 10;

/// Returns the byte ranges that a fragment needs of a part of a file. Ranges with a gap of at most [`GAP_BYTES`]
/// are joined. If the footer cannot be parsed, the result is the whole part, and the reader of the file reports
/// the reason.
fn ranges(files: &Files, needed: &FragmentScan, whole: u64, part: &Range<u64>) -> Vec<Range<u64>> {
    let all = || vec![part.clone()];
    let Ok(text) = text_of(&files.texts, whole) else { return all() };
    let Ok(along) = text.along() else { return all() };
    let footer = text.input(along.into_iter().collect());
    let Ok(mut ranges) = needed.ranges(&footer, part) else { return all() };
    ranges.sort_unstable_by_key(|range| range.start);
    let mut joined: Vec<Range<u64>> = Vec::with_capacity(ranges.len());
    for range in ranges {
        match joined.last_mut().filter(|last| range.start <= last.end + GAP_BYTES) {
            Some(last) => last.end = last.end.max(range.end),
            None => joined.push(range),
        }
    }
    joined
}

/// Runs a fragment on the client, over shards that no node has begun to process.
fn answer_here(
    job: &Job,
    fragment: &Fragment,
    files: &Arc<Files>,
    pieces: HelpPieces,
    reply: &mut dyn Reply,
) -> std::result::Result<Value, Failure> {
    let known = fragment.known().ok_or("the fragment does not describe its table")?.clone();
    // This memory holds one shard for each thread, and one shard that is being fetched.
    let _held = hold_pieces(job, files.wholes.iter(), job.budget().threads() + 1)?;
    // Threads of a query must not wait for nodes. Therefore a separate thread waits.
    let (out, inputs) = mpsc::sync_channel(0);
    let end = pieces.end();
    // The columns that the fragment reads are known only after planning. This channel passes the columns to the
    // thread that fetches shards.
    let (tell, told) = mpsc::sync_channel::<FragmentScan>(1);
    let of_files = files.clone();
    thread::scope(|scope| {
        scope.spawn(move || {
            let Ok(needed) = told.recv() else { return };
            let pieces = pieces.only(move |whole, part| ranges(&of_files, &needed, whole, &part));
            for piece in pieces {
                let piece = piece.map_err(|error| of_nodes("pieces from nodes", error));
                let input = piece.and_then(|piece| taken(&files.texts, piece, true));
                if out.send(input.map(|input| input.with_known(&known))).is_err() {
                    break;
                }
            }
        });
        let tell = move |needed| drop(tell.send(needed));
        let answered = answer(job, fragment, Feed::new(inputs.into_iter(), None), tell, reply);
        drop(end);
        answered
    })
}

/// The tables of a query that are stored on nodes. A query names such a table `store:NAME`.
#[derive(Debug)]
pub struct NodeTables {
    nodes: Nodes,
    options: RunOptions,
    header: Header,
    catalog: Catalog,
    /// True if the nodes exchange rows with each other.
    has_exchanges: bool,
    /// The tables whose metadata was read, and the cost of all fragments so far.
    state: Arc<(Mutex<State>, Condvar)>,
}

/// The maximum time that a finished query waits for the ends of its fragments.
const ENDS: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
struct State {
    /// The number of fragments that are still running.
    open: usize,
    /// The tables by name, each with the columns that are read as text. A repeated query uses these entries, and
    /// does not read the metadata again.
    tables: BTreeMap<String, (Vec<String>, Arc<Files>)>,
    gathered: GatherReport,
    /// True if the client has failed to process shards itself. From then on, only nodes process shards.
    help_has_failed: bool,
    /// True while a job in stages runs, or its rows are read.
    has_job: bool,
    /// The costs of all jobs in stages so far.
    jobs: Vec<JobReport>,
}

impl NodeTables {
    /// Requests the list of datasets from the nodes.
    ///
    /// # Errors
    /// Returns the errors of [`Nodes::catalog`].
    pub fn new(nodes: &Nodes, options: RunOptions) -> inshore_nodes::Result<NodeTables> {
        let (nodes, catalog, header) = (nodes.clone(), nodes.catalog()?, Header::default());
        Ok(NodeTables { nodes, options, header, catalog, has_exchanges: false, state: Arc::default() })
    }

    /// Sets how the first lines of CSV files are read.
    pub fn with_header(mut self, header: Header) -> NodeTables {
        self.header = header;
        self
    }

    /// Lets the nodes exchange rows with each other, so that they run joins and whole groups.
    pub fn with_exchanges(mut self) -> NodeTables {
        self.has_exchanges = true;
        self
    }

    /// Returns the costs of the jobs in stages so far.
    pub fn jobs(&self) -> Vec<JobReport> {
        self.state.0.lock().expect("no panic under this lock").jobs.clone()
    }

    fn described(&self, path: &str) -> Option<Arc<Files>> {
        let state = self.state.0.lock().expect("no panic under this lock");
        state.tables.get(path).map(|(_, files)| files.clone())
    }

    /// Returns the counters of the nodes for all completed fragments, and the shards that were not read.
    pub fn gathered(&self) -> GatherReport {
        let state = self.state.0.lock().expect("no panic under this lock");
        // Waits until all fragments have ended, at most `ENDS`. A thread that waits for nodes soon notices that
        // its result is no longer needed.
        let waited = self.state.1.wait_timeout_while(state, ENDS, |state| state.open > 0);
        waited.expect("no panic under this lock").0.gathered.clone()
    }
}

fn failed(error: NodesError) -> Error {
    crate::files::Error::from(error).into()
}

impl RemoteExecutor for NodeTables {
    fn describe(&self, job: &Job, name: &str, as_text: &[String]) -> Result<Option<TableMetadata>> {
        let Some(dataset) = name.strip_prefix("store:") else { return Ok(None) };
        {
            let state = self.state.0.lock().expect("no panic under this lock");
            if let Some((_, files)) = state.tables.get(name).filter(|(texts, _)| texts == as_text) {
                return Ok(Some(files.known.clone()));
            }
        }
        let wholes = self.catalog.named(dataset).map_err(failed)?;
        let asker = Asker { nodes: &self.nodes, options: &self.options, context: job };
        let mut files = asker.files(name, wholes, as_text, self.header)?;
        files.known.path = name.to_string();
        let files = Arc::new(files);
        let known = files.known.clone();
        let described = (as_text.to_vec(), files);
        self.state.0.lock().expect("no panic under this lock").tables.insert(name.to_string(), described);
        Ok(Some(known))
    }

    fn answer_bytes(&self) -> u64 {
        self.nodes.answer_bytes()
    }

    fn help_bytes(&self, may_be_taken: u64) -> u64 {
        match self.options.help_from {
            Some(_) if may_be_taken >= HELP_BYTES_MIN => may_be_taken.min(HELP_BYTES_MAX),
            _ => 0,
        }
    }

    fn has_exchanges(&self) -> bool {
        self.has_exchanges
    }

    fn run(&self, job: &Job, fragment: Fragment) -> Result<Box<dyn FragmentRows>> {
        if !fragment.stages().is_empty() {
            return self.run_stages(job, fragment);
        }
        let files = self
            .described(fragment.path())
            .ok_or_else(|| Error::Internal(format!("the table {} was not described", fragment.path())))?;
        let arguments = Arguments { fragment: fragment.clone(), files: files.texts.clone() };
        let arguments =
            serde_json::to_value(arguments).map_err(|error| Error::Internal(error.to_string()))?;
        let has_failed = self.state.0.lock().expect("no panic under this lock").help_has_failed;
        let options = match has_failed || job.budget().memory_bytes() <= self.answer_bytes() {
            true => RunOptions { help_from: None, ..self.options.clone() },
            false => self.options.clone(),
        };
        let with = HelpOptions { by_threads: false, takes_all_memory: true };
        let asked =
            stream_with_help(&self.nodes, job, (KIND, false), arguments, &files.wholes, &options, with);
        let (streams, help) = asked.map_err(failed)?;
        let of_job = job.clone();
        let helping = help.map(|help| {
            let help = move || {
                let answer = |job: &Job, pieces, reply: &mut dyn Reply| {
                    answer_here(job, &fragment, &files, pieces, reply)
                };
                help.work(&of_job, Some(&of_job.store()), answer);
            };
            thread::Builder::new().name("help".to_string()).spawn(help)
        });
        let helping = helping.transpose();
        let helping = helping.map_err(|error| Error::Internal(format!("cannot start a thread: {error}")))?;
        let heads = (0..streams.len()).map(|_| Head::default()).collect();
        self.state.0.lock().expect("no panic under this lock").open += 1;
        let state = self.state.clone();
        Ok(Box::new(Rows { streams: Some(streams), helping, heads, turn: 0, refusal: None, state }))
    }
}

/// The state of the stream of batches from one node.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    /// True if the client has taken a batch from the stream.
    was_taken: bool,
    has_ended: bool,
}

/// The rows that all nodes return for a fragment, in the order of their arrival.
struct Rows {
    streams: Option<Streams>,
    /// The thread in which the client processes shards itself.
    helping: Option<JoinHandle<()>>,
    heads: Vec<Head>,
    turn: usize,
    /// The last error that a node reported before its task was repeated on other nodes.
    refusal: Option<NodesError>,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Drop for Rows {
    fn drop(&mut self) {
        let gathered = self.streams.take().map(Streams::finish).unwrap_or_default();
        // The client's own processing of shards ends, because its answers are no longer received.
        let _ = self.helping.take().map(JoinHandle::join);
        let mut state = self.state.0.lock().expect("no panic under this lock");
        state.gathered.add(gathered);
        state.open -= 1;
        self.state.1.notify_all();
    }
}

impl FragmentRows for Rows {
    fn next_within(&mut self, wait: Duration) -> Result<Option<Option<RecordBatch>>> {
        let Some(streams) = &mut self.streams else { return Ok(Some(None)) };
        let until = Instant::now() + wait;
        let mut each = Duration::ZERO;
        while self.heads.len() < streams.len() || self.heads.iter().any(|head| !head.has_ended) {
            self.heads.resize_with(streams.len(), Head::default);
            // The first pass over the streams takes only batches that have arrived already. If no batch has
            // arrived, the next pass waits up to 5 ms for each stream.
            for step in 0..self.heads.len() {
                let stream = (self.turn + step) % self.heads.len();
                if self.heads[stream].has_ended {
                    continue;
                }
                match streams.next_within(stream, each) {
                    Ok(None) => {}
                    Ok(Some(Some(batch))) => {
                        self.heads[stream].was_taken = true;
                        self.turn = stream + 1;
                        return Ok(Some(Some(batch)));
                    }
                    Ok(Some(None)) => self.heads[stream].has_ended = true,
                    Err(error @ (NodesError::Store(_) | NodesError::Deadline { .. })) => {
                        // Repeating tasks on other nodes after an error may exceed the memory budget. The earlier
                        // error of the node is then the cause, and is reported.
                        let refusal = self.refusal.take().filter(|_| !error.is_cancelled());
                        return Err(failed(refusal.unwrap_or(error)));
                    }
                    Err(error) => {
                        if streams.is_here(stream) {
                            self.state.0.lock().expect("no panic under this lock").help_has_failed = true;
                        }
                        // An error that one node reports usually occurs on all nodes, since the query or the
                        // software version causes the error.
                        let is_refused = matches!(error, NodesError::Refused { .. });
                        if self.heads[stream].was_taken {
                            return Err(match is_refused {
                                true => failed(error),
                                false => Error::Interrupted(error.to_string()),
                            });
                        }
                        self.heads[stream].has_ended = true;
                        let missing = streams.missing();
                        match streams.replace(stream, &error) {
                            Ok(_) if is_refused && streams.missing() > missing => return Err(failed(error)),
                            Ok(()) if is_refused => self.refusal = Some(error),
                            Ok(()) => {}
                            Err(_) if is_refused => return Err(failed(error)),
                            Err(missing) => return Err(failed(missing)),
                        }
                    }
                }
            }
            if Instant::now() >= until {
                return Ok(None);
            }
            each = Duration::from_millis(5);
        }
        Ok(Some(None))
    }
}
