//! SQL on nodes: a client plans a query, and what can be done to the rows of one table runs where they lie
//! ([`inshore_sql::Elsewhere`]).
//!
//! What a node needs beside its pieces travels with the task: see `files.rs`.
//!
//! Where that is faster, this machine pulls pieces, too: it fetches them, and the fragment runs over them here.
//!
//! Where a node is lost before anything of its answer was taken, another that has copies of its pieces does its work. After
//! that the whole query is begun again, as long as it has given out no rows.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Condvar, Mutex, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use arrow_array::RecordBatch;
use inshore_neardata::{
    Failure, Reply, Task, TaskSource, Work,
    nodes::{
        Catalog, Error as NodesError, Gathered, HelpPieces, HelpWith, Nodes, RunOptions, Streams,
        batch_bytes, compact, stream_with_help,
    },
};
use inshore_sql::{Elsewhere, Error, Feed, Fragment, FragmentRows, Known, Needed, Result, run_fragment};
use inshore_store::Job;
use inshore_tables::{Error as TableError, Header};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::files::{Asker, FileText, Files, hold_pieces, of_nodes, piece_of, taken, text_of};

#[cfg(test)]
mod tests;

const KIND: &str = "sql";
/// Bytes of rows that are sent at once, about.
const MESSAGE_BYTES: usize = 512 << 10;
/// Memory for what is done here of a fragment.
const HELP_BYTES_MIN: u64 = 96 << 20;
const HELP_BYTES_MAX: u64 = 1 << 30;

#[derive(Serialize, Deserialize)]
struct Arguments {
    fragment: Fragment,
    /// The files, as the request numbers them.
    files: Vec<FileText>,
}

/// The work of running fragments of queries, for a node.
#[derive(Debug)]
pub struct Queries;

impl Work for Queries {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn smallest_memory_bytes(&self) -> u64 {
        inshore_sql::smallest_memory_bytes()
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> std::result::Result<Value, Failure> {
        let Task { job, arguments, sources } = task;
        let Arguments { fragment, files } = serde_json::from_value(arguments)?;
        let known = fragment.known().ok_or("a fragment of no table")?.clone();
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
        let feed = Feed::new(inputs, Some(bytes)).left_by(leave);
        answer(&job, &fragment, feed, |_| {}, reply)
    }
}

/// Why there is no piece, as an error of tables.
fn unfit(failure: Failure) -> TableError {
    TableError::Unsupported { file: "a piece".to_string(), what: failure.to_string() }
}

/// Runs a fragment over files and answers with its rows.
fn answer(
    job: &Job,
    fragment: &Fragment,
    feed: Feed,
    needed: impl FnOnce(Needed) + Send,
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

/// Answers with a batch in messages of some hundred KiB. Bytes of its buffers that belong to no row of it are not sent.
///
/// # Errors
/// Those of [`Reply::batch`].
pub fn reply_in_parts(reply: &mut dyn Reply, batch: &RecordBatch) -> std::result::Result<(), Failure> {
    let parts = (batch_bytes(batch) as usize).div_ceil(MESSAGE_BYTES).max(1);
    let rows = batch.num_rows().div_ceil(parts).max(1);
    (0..batch.num_rows().max(1))
        .step_by(rows)
        .try_for_each(|start| reply.batch(compact(batch.slice(start, rows.min(batch.num_rows() - start)))))
}

/// Ranges of a file that are nearer to each other are read as one.
const GAP_BYTES: u64 = 64 << 10;

/// Those bytes of a part of a file that a fragment needs, as few ranges of it. Where the footer does not say, reading the file tells why.
fn ranges(files: &Files, needed: &Needed, whole: u64, part: &Range<u64>) -> Vec<Range<u64>> {
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

/// Runs a fragment over what nodes have not begun.
fn answer_here(
    job: &Job,
    fragment: &Fragment,
    files: &Arc<Files>,
    pieces: HelpPieces,
    reply: &mut dyn Reply,
) -> std::result::Result<Value, Failure> {
    let known = fragment.known().ok_or("a fragment of no table")?.clone();
    // Each thread may be at work on one while the next one comes.
    let _held = hold_pieces(job, files.wholes.iter(), job.budget().threads() + 1)?;
    // Threads of a query must not wait for nodes: another one does.
    let (out, inputs) = mpsc::sync_channel(0);
    let end = pieces.end();
    // What is needed is known when the plan is made.
    let (tell, told) = mpsc::sync_channel::<Needed>(1);
    let of_files = files.clone();
    thread::scope(|scope| {
        scope.spawn(move || {
            let Ok(needed) = told.recv() else { return };
            let pieces = pieces.only(move |whole, part| ranges(&of_files, &needed, whole, &part));
            for piece in pieces {
                let piece = piece.map_err(|error| of_nodes("pieces of nodes", error));
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

/// The tables of a query that lie on nodes, under the names `store:NAME`.
#[derive(Debug)]
pub struct NodeTables {
    nodes: Nodes,
    options: RunOptions,
    header: Header,
    catalog: Catalog,
    /// Tables that were described, and what it cost so far.
    state: Arc<(Mutex<State>, Condvar)>,
}

/// How long the ends of all fragments are waited for, after a query.
const ENDS: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
struct State {
    /// Fragments that run.
    open: usize,
    /// Each with its columns that are to be read as text. A query that begins again does not ask for them anew.
    tables: BTreeMap<String, (Vec<String>, Arc<Files>)>,
    gathered: Gathered,
    /// What was done here failed, and nodes are left alone from then on.
    help_has_failed: bool,
}

impl NodeTables {
    /// Asks the nodes what they have.
    ///
    /// # Errors
    /// As [`Nodes::catalog`].
    pub fn new(nodes: &Nodes, options: RunOptions) -> inshore_neardata::nodes::Result<NodeTables> {
        let (nodes, catalog, header) = (nodes.clone(), nodes.catalog()?, Header::default());
        Ok(NodeTables { nodes, options, header, catalog, state: Arc::default() })
    }

    /// The same, and what is known of the first lines of CSV.
    pub fn with_header(mut self, header: Header) -> NodeTables {
        self.header = header;
        self
    }

    /// What the nodes did for queries that are over, and what is missing.
    pub fn gathered(&self) -> Gathered {
        let state = self.state.0.lock().expect("no panic under this lock");
        // Whoever asks nodes notices soon that nobody wants more.
        let waited = self.state.1.wait_timeout_while(state, ENDS, |state| state.open > 0);
        waited.expect("no panic under this lock").0.gathered.clone()
    }
}

fn failed(error: NodesError) -> Error {
    crate::files::Error::from(error).into()
}

impl Elsewhere for NodeTables {
    fn describe(&self, job: &Job, name: &str, as_text: &[String]) -> Result<Option<Known>> {
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

    fn run(&self, job: &Job, fragment: Fragment) -> Result<Box<dyn FragmentRows>> {
        let described =
            self.state.0.lock().expect("no panic under this lock").tables.get(fragment.path()).cloned();
        let (_, files) =
            described.ok_or_else(|| Error::Internal(format!("{} was not described", fragment.path())))?;
        let arguments = Arguments { fragment: fragment.clone(), files: files.texts.clone() };
        let arguments =
            serde_json::to_value(arguments).map_err(|error| Error::Internal(error.to_string()))?;
        let has_failed = self.state.0.lock().expect("no panic under this lock").help_has_failed;
        let options = match has_failed || job.budget().memory_bytes() <= self.answer_bytes() {
            true => RunOptions { help_from: None, ..self.options.clone() },
            false => self.options.clone(),
        };
        let with = HelpWith { by_threads: false, takes_all_memory: true };
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
        Ok(Box::new(Rows { streams: Some(streams), helping, heads, turn: 0, state }))
    }
}

/// Where a stream stands.
#[derive(Clone, Copy, Debug, Default)]
struct Head {
    /// Something of it was taken.
    was_taken: bool,
    has_ended: bool,
}

/// The rows that nodes give, as they come.
struct Rows {
    streams: Option<Streams>,
    /// The part of this machine.
    helping: Option<JoinHandle<()>>,
    heads: Vec<Head>,
    turn: usize,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Drop for Rows {
    fn drop(&mut self) {
        let gathered = self.streams.take().map(Streams::finish).unwrap_or_default();
        // Nobody takes its answers any more, which ends it.
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
            // Whoever has something is asked first; when nobody has, each is waited for a little.
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
                        return Err(failed(error));
                    }
                    Err(error) => {
                        if streams.is_here(stream) {
                            self.state.0.lock().expect("no panic under this lock").help_has_failed = true;
                        }
                        // What one node refuses, others mostly do too: it is the query's fault, or a version's.
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
