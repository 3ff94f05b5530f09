//! This module is the child's side of the connection: it runs the task, and sends rows, counters and the summary
//! to the node.

use std::{
    ffi::OsString,
    io::{self, BufReader, Read, Write},
    os::unix::{ffi::OsStringExt, net::UnixStream},
    panic::{self, AssertUnwindSafe},
    path::PathBuf,
    process,
    sync::{Arc, Condvar, Mutex, MutexGuard},
    thread,
};

use arrow_array::RecordBatch;
use arrow_ipc::writer::StreamWriter;
use arrow_schema::SchemaRef;
use inshore_kernel::{
    Failure, FinalFailure, OpenedSource, Reply, Source, SourceOffset, Sources, Task, TaskHandler, TaskSource,
};
use inshore_nodes::{compact, open_pieces};
use inshore_sandbox::ChildMemory;
use inshore_sql::current_operator;
use inshore_store::{Budget, Cancel, FileWriter, Job, Store, format_bytes};
use serde::Deserialize;
use serde_json::Value;

use super::{
    MIB,
    protocol::{
        BEGUN, BLOCK, COUNTS, DONE, FAILED, FAILED_FINALLY, HEADER_BYTES, MessageHeader, NEXT, NextPiece,
        NextSource, PIECE_BYTES_MAX, READ, ROWS, SentSource, TAKEN, TICK, TaskOrder, shortened,
    },
};
use crate::queries::{Queries, QueryStages};

/// The encoding buffer is reduced to this capacity in bytes after each batch.
const ROOM_BYTES: usize = 1 << 20;
/// The sizes of a checksum block and of a write buffer of a source that is stored before it is read, in bytes.
const STORED_BLOCK_BYTES: usize = 64 << 10;
const STORED_BUFFER_BYTES: usize = 256 << 10;

/// Returns the name of the query operator that is running now; empty if no query is running.
pub(crate) fn at_work() -> String {
    current_operator().unwrap_or_default()
}

/// Runs the task for which a node started this program: a fragment of a query, or a task of one of the handlers
/// `works`. The last items of `arguments` are those that the node passed on the command line. This function is for
/// a helper program that does not use [`crate::child_main_if_asked`].
pub fn child_main(arguments: &[OsString], works: &[&dyn TaskHandler]) -> ! {
    let queries: [&dyn TaskHandler; 2] = [&Queries, &QueryStages];
    let works: Vec<&dyn TaskHandler> = works.iter().copied().chain(queries).collect();
    inshore_sandbox::apart_main(arguments, at_work, |socket, memory| run_child(socket, memory, &works))
}

/// Runs a task of a node with the matching handler in `works`. The process ends afterwards.
pub(crate) fn run_child(socket: UnixStream, memory: ChildMemory, works: &[&dyn TaskHandler]) {
    let Some((order, bytes)) = ordered(&socket) else { return };
    let Ok(hears) = socket.try_clone() else { return };
    let channel = ParentChannel { socket, memory };
    let out = ParentConnection {
        channel: Arc::new(Mutex::new(channel)),
        job: Arc::default(),
        asking: Arc::default(),
        heard: Arc::default(),
    };
    let hearing = out.clone();
    let hearing = thread::Builder::new().name("hears".to_string()).spawn(move || hearing.hear(hears));
    let Ok(_) = hearing else { return };
    // If the task panics, the node gets this error, or notices the end of the process.
    let worked = panic::catch_unwind(AssertUnwindSafe(|| obey(order, bytes, works, &out)));
    let worked = worked.unwrap_or_else(|_| Err("the task panicked: this is a bug in Inshore".into()));
    let said = match worked {
        Ok(summary) => out.say(DONE, &serde_json::to_vec(&summary).expect("plain data")),
        Err(failure) => {
            let kind = if failure.is::<FinalFailure>() { FAILED_FINALLY } else { FAILED };
            out.say(kind, shortened(&failure.to_string()).as_bytes())
        }
    };
    // Dropping the last reference to the job frees the job's space on disk, even if the node no longer reads the
    // answer.
    drop((said, out.job().take()));
}

/// Reads the first message, and returns the task with the length of its JSON text. The node sends nothing more
/// before the first request for a shard.
fn ordered(socket: &UnixStream) -> Option<(TaskOrder, u64)> {
    let mut counted = CountingReader { from: socket, bytes: 0 };
    let order =
        TaskOrder::deserialize(&mut serde_json::Deserializer::from_reader(BufReader::new(&mut counted)));
    Some((order.ok()?, counted.bytes))
}

/// Counts the bytes that pass through a reader.
struct CountingReader<R> {
    from: R,
    bytes: u64,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

fn obey(
    order: TaskOrder,
    order_bytes: u64,
    works: &[&dyn TaskHandler],
    out: &ParentConnection,
) -> Result<Value, Failure> {
    let TaskOrder {
        kind,
        store,
        memory_bytes,
        is_within,
        threads,
        batch_bytes_max,
        arguments,
        bytes,
        count_max,
    } = order;
    let work = works.iter().find(|work| work.kind() == kind);
    let work = work.ok_or_else(|| format!("tasks of the kind '{kind}' do not run in child processes"))?;
    let folders: Vec<PathBuf> = store.into_iter().map(|path| OsString::from_vec(path).into()).collect();
    let store = Store::open_folders(&folders)?;
    // The text of a long order and the values parsed from the text also take memory.
    let order_bytes = if is_within { 2 * order_bytes.saturating_sub(MIB) } else { 0 };
    let memory_bytes = memory_bytes.saturating_sub(order_bytes);
    let job = store.job(Budget::new(memory_bytes, threads), Cancel::default())?;
    *out.job() = Some(job.clone());
    let (asks, leaves, tells, of_job) = (out.clone(), out.clone(), out.clone(), job.clone());
    let next = std::iter::from_fn(move || asks.next_source().map(|next| asks.opened(&of_job, next?)));
    let sources = Sources::pulled(next, bytes, count_max).left_by(move || leaves.leave());
    thread::Builder::new().name("counts".to_string()).spawn(move || {
        loop {
            listened(tells.say(COUNTS, &[]));
            thread::sleep(TICK);
        }
    })?;
    let mut reply = BatchSender { out, writer: None, batch_bytes_max };
    let summary = work.work(Task { job, arguments, sources }, &mut reply)?;
    reply.end()?;
    Ok(summary)
}

/// Ends this process if the node has closed the connection, since the node then no longer needs the result.
fn listened<T>(said: io::Result<T>) -> T {
    said.unwrap_or_else(|_| process::exit(1))
}

/// The child process's end of the connection to the node.
#[derive(Clone)]
struct ParentConnection {
    channel: Arc<Mutex<ParentChannel>>,
    /// The job whose counters each message reports to the node.
    job: Arc<Mutex<Option<Job>>>,
    /// Held while a request waits for its reply.
    asking: Arc<Mutex<()>>,
    heard: Arc<(Mutex<ParentState>, Condvar)>,
}

/// The state that the node's messages change.
#[derive(Default)]
struct ParentState {
    /// True while the shared memory holds a batch that the node has not taken.
    is_full: bool,
    reply: Option<Vec<u8>>,
    /// True if the task has failed and reads no more shards.
    is_left: bool,
}

impl ParentConnection {
    fn job(&self) -> MutexGuard<'_, Option<Job>> {
        self.job.lock().expect("no panic under this lock")
    }

    fn channel(&self) -> MutexGuard<'_, ParentChannel> {
        self.channel.lock().expect("no panic under this lock")
    }

    fn header(&self, kind: u8, length: usize) -> [u8; HEADER_BYTES] {
        let counts = self.job().as_ref().map(|job| job.counts()).unwrap_or_default();
        MessageHeader { kind, length: length as u64, counts }.to_bytes()
    }

    fn say(&self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        // Counters are read under the lock, so that a later message never holds older counters.
        let mut channel = self.channel();
        let message = [&self.header(kind, bytes.len()), bytes].concat();
        channel.socket.write_all(&message)
    }

    /// Sends a batch after the node has taken the previous batch.
    fn rows(&self, bytes: &[u8]) -> io::Result<()> {
        self.wait(|heard| !heard.is_full).is_full = true;
        let mut channel = self.channel();
        channel.memory.put(bytes)?;
        channel.socket.write_all(&self.header(ROWS, bytes.len()))
    }

    /// Sends a request, and returns the reply. Only one request is open at a time.
    fn ask(&self, kind: u8, bytes: &[u8]) -> Result<Vec<u8>, String> {
        let _asking = self.asking.lock().expect("no panic under this lock");
        listened(self.say(kind, bytes));
        let mut heard = self.wait(|heard| heard.reply.is_some() || heard.is_left);
        heard.reply.take().ok_or_else(|| "the task has failed".to_string())
    }

    /// Requests the next source from the node.
    fn next_source(&self) -> Option<Result<NextSource, Failure>> {
        let invalid = |error| Err(format!("an invalid description of a source: {error}"));
        let parsed = |words: Vec<u8>| serde_json::from_slice(&words).unwrap_or_else(invalid);
        let next: NextPiece = self.ask(NEXT, &[]).and_then(parsed);
        next.map_err(Failure::from).transpose()
    }

    fn opened(&self, job: &Job, next: NextSource) -> Result<TaskSource, Failure> {
        let sent = match next {
            NextSource::Shard(piece) => {
                let mut opened = open_pieces(job, vec![piece])?;
                return Ok(opened.pop().expect("one of one"));
            }
            NextSource::Stream(sent) => sent,
        };
        let SentSource { stream, name, number, whole, offset, lines, is_stored } = sent;
        let mut bytes = SentStream { from: self.clone(), stream, block: Vec::new(), used: 0 };
        let source = if is_stored {
            let mut writer = FileWriter::create(
                job,
                &job.scratch_name("source"),
                STORED_BLOCK_BYTES,
                STORED_BUFFER_BYTES,
            )?;
            while let block = bytes.next_block()?
                && !block.is_empty()
            {
                writer.write(block)?;
            }
            Source::dataset(job, writer.finish()?).called(name)
        } else {
            Source::new(name, move |_| Ok(OpenedSource::Stream(Box::new(bytes))))
        };
        Ok(TaskSource { number, whole, source: source.behind(SourceOffset { offset, lines }), stored: None })
    }

    /// Ends the wait for a shard, after the task has failed.
    fn leave(&self) {
        self.change(|heard| heard.is_left = true);
    }

    fn wait(&self, is_over: impl Fn(&ParentState) -> bool) -> MutexGuard<'_, ParentState> {
        let (heard, changed) = &*self.heard;
        let heard = heard.lock().expect("no panic under this lock");
        changed.wait_while(heard, |heard| !is_over(heard)).expect("no panic under this lock")
    }

    fn change(&self, change: impl FnOnce(&mut ParentState)) {
        change(&mut self.heard.0.lock().expect("no panic under this lock"));
        self.heard.1.notify_all();
    }

    /// Receives messages of the node until the connection closes.
    fn hear(&self, mut socket: UnixStream) {
        loop {
            let mut said = [0];
            listened(socket.read_exact(&mut said));
            if said == [TAKEN] {
                self.change(|heard| heard.is_full = false);
                continue;
            }
            let mut length = [0; 4];
            listened(socket.read_exact(&mut length));
            let mut words = Vec::new();
            let length = u64::from(u32::from_le_bytes(length));
            listened((&socket).take(length.min(PIECE_BYTES_MAX)).read_to_end(&mut words));
            self.change(|heard| heard.reply = Some(words));
        }
    }
}

/// The bytes of a source that the node sends.
struct SentStream {
    from: ParentConnection,
    stream: u32,
    /// The last reply, whose first byte is its kind.
    block: Vec<u8>,
    used: usize,
}

impl SentStream {
    /// Returns the next block. The block after the last one is empty.
    fn next_block(&mut self) -> io::Result<&[u8]> {
        self.block = self.from.ask(READ, &self.stream.to_le_bytes()).map_err(io::Error::other)?;
        match self.block.split_first() {
            Some((&BLOCK, bytes)) => Ok(bytes),
            Some((_, text)) => Err(io::Error::other(String::from_utf8_lossy(text).into_owned())),
            None => Err(io::Error::other("protocol error: a block without its kind")),
        }
    }
}

impl Read for SentStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.used >= self.block.len() {
            self.next_block()?;
            self.used = 1;
        }
        let rest = &self.block[self.used..];
        let len = rest.len().min(out.len());
        out[..len].copy_from_slice(&rest[..len]);
        self.used += len;
        Ok(len)
    }
}

struct ParentChannel {
    socket: UnixStream,
    memory: ChildMemory,
}

/// Encodes the batches of the answer, and sends them to the node.
struct BatchSender<'a> {
    out: &'a ParentConnection,
    writer: Option<StreamWriter<Vec<u8>>>,
    batch_bytes_max: u64,
}

impl BatchSender<'_> {
    /// Ends the stream of batches. If the last batch has rows but no bytes, the node decodes this batch only when
    /// it receives the stream's end.
    fn end(self) -> Result<(), Failure> {
        let Some(mut writer) = self.writer else { return Ok(()) };
        writer.finish()?;
        Ok(self.out.rows(writer.get_ref())?)
    }
}

impl Reply for BatchSender<'_> {
    fn begun(&mut self, columns: &SchemaRef) -> Result<(), Failure> {
        let mut writer = StreamWriter::try_new(Vec::new(), columns)?;
        writer.finish()?;
        Ok(self.out.say(BEGUN, writer.get_ref())?)
    }

    fn batch(&mut self, batch: RecordBatch) -> Result<(), Failure> {
        let writer = match &mut self.writer {
            Some(writer) => writer,
            none => none.insert(StreamWriter::try_new(Vec::new(), &batch.schema())?),
        };
        let begun = writer.get_ref().len();
        writer.write(&batch)?;
        let bytes = writer.get_mut();
        if bytes.len() as u64 > self.batch_bytes_max {
            let length = bytes.len() as u64;
            // Removes the batch that was just written. This loses nothing else, since batches have no
            // dictionaries, which would be written just before.
            bytes.truncate(begun);
            let half = batch.num_rows() / 2;
            if half > 0 {
                self.batch(compact(batch.slice(0, half)))?;
                return self.batch(compact(batch.slice(half, batch.num_rows() - half)));
            }
            return Err(format!(
                "a row of the answer has {}, more than the limit of {} in the memory of the task (a larger --node-memory helps)",
                format_bytes(length),
                format_bytes(self.batch_bytes_max)
            )
            .into());
        }
        self.out.rows(bytes)?;
        bytes.clear();
        bytes.shrink_to(ROOM_BYTES);
        Ok(())
    }
}
