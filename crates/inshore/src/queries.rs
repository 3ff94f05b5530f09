//! SQL on nodes: a client plans a query, and what can be done to the rows of one table runs where they lie
//! ([`inshore_sql::Elsewhere`]).
//!
//! A file keeps its bytes as it is spread; its pieces end with row groups (Parquet) or lines (CSV, JSON lines). What a node needs
//! beside its pieces travels with the task: the footer of Parquet, the line of CSV with the names of columns.
//!
//! Where a node is lost before anything of its answer was taken, another that has copies of its pieces does its work. After
//! that the whole query is begun again, as long as it has given out no rows.

use std::{
    collections::BTreeMap,
    ops::Range,
    sync::{Arc, Condvar, Mutex},
    time::{Duration, Instant},
};

use arrow::record_batch::RecordBatch;
use base64::{Engine, engine::general_purpose::STANDARD as BASE64};
use inshore_neardata::{
    Failure, Reply, Task, Work,
    nodes::{
        Catalog, Error as NodesError, Gathered, Nodes, Piece, RunOptions, Streams, Whole, read_from_nodes,
        stream_from_nodes,
    },
};
use inshore_sql::{Elsewhere, Error, Fragment, FragmentRows, Known, Result, run_fragment};
use inshore_store::Job;
use inshore_tables::{FilePart, Input, PartBytes, TableReader, row_groups};
use serde::{Deserialize, Serialize};
use serde_json::Value;

const KIND: &str = "sql";
/// Bytes of a Parquet file's end that are read at first.
const TAIL_BYTES: u64 = 64 << 10;
/// Bytes of the beginning of a text whose rows are looked at, at first and at most.
const HEAD_BYTES: u64 = 1 << 20;
const HEAD_BYTES_MAX: u64 = 16 << 20;
/// Rows of a text that are looked at.
const HEAD_ROWS: usize = 1_000;
/// The longest footer of Parquet that travels with a task.
const FOOTER_BYTES_MAX: u64 = 8 << 20;

/// Bytes of rows that are sent at once, about.
const MESSAGE_BYTES: usize = 4 << 20;

/// What a node has to know of a file of which it has pieces.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct FileText {
    name: String,
    ending: String,
    bytes: u64,
    /// What goes along: where it is in the file, and the bytes.
    along: Option<(u64, String)>,
}

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

    fn work(&self, task: Task, reply: &mut dyn Reply) -> std::result::Result<Value, Failure> {
        let Arguments { fragment, files } = serde_json::from_value(task.arguments)?;
        let columns = fragment.schema().ok_or("a fragment of no table")?.clone();
        let mut parts: BTreeMap<u64, Vec<FilePart>> = BTreeMap::new();
        for source in &task.sources {
            let (file, range) = source.source.part().ok_or("a source that is no file of a dataset")?;
            let bytes = PartBytes::Stored(file.clone(), range.clone());
            let part = FilePart { at: source.source.base().offset, bytes };
            parts.entry(source.whole).or_default().push(part);
        }
        let input = |(whole, mut parts): (u64, Vec<FilePart>)| {
            let file = usize::try_from(whole).ok().and_then(|whole| files.get(whole));
            let file = file.ok_or("a file that the request does not tell of")?;
            if let Some((at, bytes)) = &file.along {
                parts.push(FilePart { at: *at, bytes: PartBytes::Memory(BASE64.decode(bytes)?.into()) });
            }
            let input = Input::of_parts(&task.job, &file.name, &file.ending, file.bytes, parts);
            Ok::<_, Failure>(input.with_columns(columns.clone()))
        };
        let inputs = parts.into_iter().map(input).collect::<std::result::Result<_, _>>()?;
        let mut failed = None;
        let ran = run_fragment(&task.job, &fragment, inputs, |batch| {
            // No message is larger than it has to be.
            let parts = batch.get_array_memory_size().div_ceil(MESSAGE_BYTES).max(1);
            let rows = batch.num_rows().div_ceil(parts).max(1);
            (0..batch.num_rows().max(1)).step_by(rows).try_for_each(|start| {
                let part = batch.slice(start, rows.min(batch.num_rows() - start));
                reply.batch(part).map_err(|failure| {
                    failed = Some(failure);
                    Error::Store(inshore_store::Error::Cancelled)
                })
            })
        });
        match (failed, ran) {
            (Some(failure), _) => Err(failure),
            (None, ran) => Ok(serde_json::to_value(ran?)?),
        }
    }
}

/// The tables of a query that lie on nodes, under the names `store:NAME`.
#[derive(Debug)]
pub struct NodeTables {
    nodes: Nodes,
    options: RunOptions,
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
    tables: BTreeMap<String, Arc<Files>>,
    gathered: Gathered,
}

/// The files of a table.
#[derive(Debug)]
struct Files {
    wholes: Vec<Whole>,
    texts: Vec<FileText>,
    known: Known,
}

impl NodeTables {
    /// Asks the nodes what they have.
    ///
    /// # Errors
    /// As [`Nodes::catalog`].
    pub fn new(nodes: &Nodes, options: RunOptions) -> inshore_neardata::nodes::Result<NodeTables> {
        Ok(NodeTables { nodes: nodes.clone(), options, catalog: nodes.catalog()?, state: Arc::default() })
    }

    /// What the nodes did for queries that are over, and what is missing.
    pub fn gathered(&self) -> Gathered {
        let state = self.state.0.lock().expect("no panic under this lock");
        // Whoever asks nodes notices soon that nobody wants more.
        let waited = self.state.1.wait_timeout_while(state, ENDS, |state| state.open > 0);
        waited.expect("no panic under this lock").0.gathered.clone()
    }

    fn files(&self, job: &Job, name: &str, as_text: &[String]) -> Result<Files> {
        let wholes = self.catalog.named(name).map_err(failed)?;
        let mut texts = Vec::with_capacity(wholes.len());
        let mut known: Option<Known> = None;
        for whole in &wholes {
            let (text, found) = self.file(job, whole, as_text)?;
            texts.push(text);
            known = Some(match known {
                None => found,
                Some(known) if known.schema == found.schema => {
                    Known { rows: known.rows.zip(found.rows).map(|(all, rows)| all + rows), ..known }
                }
                Some(_) => {
                    let what = format!("{}: its columns are not those of the first file", whole.title);
                    return Err(Error::Query(what));
                }
            });
        }
        let along: usize = texts.iter().filter_map(|text| Some(text.along.as_ref()?.1.len())).sum();
        if along as u64 > FOOTER_BYTES_MAX {
            let what = format!(
                "store:{name}: its footers have {along} bytes together, more than can go along with a task"
            );
            return Err(Error::Query(what));
        }
        let known = known.ok_or_else(|| Error::Query(format!("store:{name}: there is no file in it")))?;
        Ok(Files { wholes, texts, known })
    }

    /// What has to be known of a file.
    fn file(&self, job: &Job, whole: &Whole, as_text: &[String]) -> Result<(FileText, Known)> {
        let (name, bytes) = (whole.title.clone(), whole.bytes());
        let called = whole.file.as_deref().filter(|_| ending_of(&whole.dataset).is_empty());
        let ending = ending_of(called.unwrap_or(&whole.dataset));
        let read = |range| {
            read_from_nodes(
                &self.nodes,
                job,
                whole,
                range,
                &RunOptions { partial: false, ..self.options.clone() },
            )
            .map_err(failed)
        };
        let describe = |at: u64, bytes_read: &[u8]| -> Result<(Input, Known)> {
            let part = FilePart { at, bytes: PartBytes::Memory(bytes_read.into()) };
            let input = Input::of_parts(job, &name, &ending, bytes, vec![part]);
            let described = TableReader::describe(&input, as_text, job.budget())?;
            let path = String::new();
            Ok((input, Known { schema: described.schema, rows: described.rows, path }))
        };
        if ending == "parquet" {
            let mut tail = read(bytes.saturating_sub(TAIL_BYTES)..bytes)?;
            let footer_bytes = footer_bytes(&tail).filter(|&footer| footer <= bytes);
            let footer_bytes =
                footer_bytes.ok_or_else(|| Error::Query(format!("{name}: this is no Parquet file")))?;
            if footer_bytes > FOOTER_BYTES_MAX {
                let what = format!(
                    "{name}: its footer has {footer_bytes} bytes, more than can go along with a task"
                );
                return Err(Error::Query(what));
            }
            let start = bytes - footer_bytes;
            let footer = match tail.len().checked_sub(footer_bytes as usize) {
                Some(before) => tail.split_off(before),
                None => read(start..bytes)?,
            };
            let (input, known) = describe(start, &footer)?;
            check_groups(job, whole, &input)?;
            let along = Some((start, BASE64.encode(footer)));
            return Ok((FileText { name, ending, bytes, along }, known));
        }
        if ending == "arrow" {
            return Err(Error::Query(format!("{name}: Arrow files are not read on nodes: Parquet is")));
        }
        if let Some(record_bytes) = whole.record_bytes {
            return Err(failed(NodesError::NoLines { name, record_bytes }));
        }
        let mut head = Vec::new();
        let mut wanted = HEAD_BYTES.min(bytes);
        loop {
            head.extend(read(head.len() as u64..wanted)?);
            let lines = head.iter().filter(|&&byte| byte == b'\n').count();
            if lines > HEAD_ROWS || wanted == bytes || wanted >= HEAD_BYTES_MAX {
                break;
            }
            wanted = (wanted * 4).min(bytes).min(HEAD_BYTES_MAX);
        }
        if head.starts_with(&[0x1f, 0x8b]) || head.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            let what = format!(
                "{name}: it is compressed as a whole, so no node can read its piece: load it decompressed"
            );
            return Err(Error::Query(what));
        }
        if (head.len() as u64) < bytes {
            let end = head.iter().rposition(|&byte| byte == b'\n').map_or(0, |end| end + 1);
            head.truncate(end);
        }
        let (_, known) = describe(0, &head)?;
        let line = first_record(&head);
        let is_csv = ["csv", "tsv"].contains(&&*ending);
        let along = is_csv.then(|| (0, BASE64.encode(&head[..line])));
        Ok((FileText { name, ending, bytes, along }, known))
    }
}

/// Where the first record of CSV ends: with a line that is not empty, outside of quotes.
fn first_record(head: &[u8]) -> usize {
    let (mut in_quotes, mut has_text) = (false, false);
    for (place, &byte) in head.iter().enumerate() {
        match byte {
            b'"' => (in_quotes, has_text) = (!in_quotes, true),
            b'\n' if has_text && !in_quotes => return place + 1,
            b'\n' | b'\r' => {}
            _ => has_text = true,
        }
    }
    head.len()
}

/// Refuses a file with a row group that no node has whole.
fn check_groups(job: &Job, whole: &Whole, input: &Input) -> Result<()> {
    let is_whole = |group: &Range<u64>| {
        let has = |piece: &Piece| piece.offset <= group.start && group.end <= piece.offset + piece.bytes;
        whole.pieces.iter().any(has)
    };
    match row_groups(input, job.budget())?.iter().all(is_whole) {
        true => Ok(()),
        false => Err(Error::Query(format!(
            "{}: its pieces do not end with row groups: load it again with store put, from a file that ends with .parquet",
            whole.title
        ))),
    }
}

/// The length of a Parquet file's footer, with its frame, by the file's end.
fn footer_bytes(tail: &[u8]) -> Option<u64> {
    let (rest, magic) = tail.split_last_chunk::<4>()?;
    let (_, length) = rest.split_last_chunk::<4>()?;
    (magic == b"PAR1").then(|| u64::from(u32::from_le_bytes(*length)) + 8)
}

fn ending_of(name: &str) -> String {
    Input::new(name).extension()
}

fn failed(error: NodesError) -> Error {
    match error {
        NodesError::Store(error) => Error::Store(error),
        other => Error::Elsewhere(other.to_string()),
    }
}

impl Elsewhere for NodeTables {
    fn describe(&self, job: &Job, name: &str, as_text: &[String]) -> Result<Option<Known>> {
        let Some(dataset) = name.strip_prefix("store:") else { return Ok(None) };
        let mut files = self.files(job, dataset, as_text)?;
        files.known.path = name.to_string();
        let files = Arc::new(files);
        let known = files.known.clone();
        self.state.0.lock().expect("no panic under this lock").tables.insert(name.to_string(), files);
        Ok(Some(known))
    }

    fn answer_bytes(&self) -> u64 {
        self.nodes.answer_bytes()
    }

    fn run(&self, job: &Job, fragment: Fragment) -> Result<Box<dyn FragmentRows>> {
        let files =
            self.state.0.lock().expect("no panic under this lock").tables.get(fragment.path()).cloned();
        let files = files.ok_or_else(|| Error::Internal(format!("{} was not described", fragment.path())))?;
        let arguments = Arguments { fragment, files: files.texts.clone() };
        let arguments =
            serde_json::to_value(arguments).map_err(|error| Error::Internal(error.to_string()))?;
        let streams =
            stream_from_nodes(&self.nodes, job, (KIND, false), arguments, &files.wholes, &self.options);
        let streams = streams.map_err(failed)?;
        let heads = (0..streams.len()).map(|_| Head::default()).collect();
        self.state.0.lock().expect("no panic under this lock").open += 1;
        Ok(Box::new(Rows { streams: Some(streams), heads, turn: 0, state: self.state.clone() }))
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
    heads: Vec<Head>,
    turn: usize,
    state: Arc<(Mutex<State>, Condvar)>,
}

impl Drop for Rows {
    fn drop(&mut self) {
        let gathered = self.streams.take().map(Streams::finish).unwrap_or_default();
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
        while self.heads.iter().any(|head| !head.has_ended) {
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
                        let new = match streams.replace(stream, &error) {
                            Ok(_) if is_refused && streams.missing() > missing => return Err(failed(error)),
                            Ok(new) => new,
                            Err(_) if is_refused => return Err(failed(error)),
                            Err(missing) => return Err(failed(missing)),
                        };
                        self.heads.resize_with(new.end, Head::default);
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
