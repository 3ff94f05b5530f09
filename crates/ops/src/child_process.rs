//! Runs a kind of work in a child process of the node, for work whose memory and duration cannot be
//! predicted.
//!
//! ```text
//!   node                                               child process
//!     order: store, memory, arguments, pieces ────────►  opens the store, begins a job
//!     Sources ◄── request for a piece ───────────────── Work
//!        └─────── a piece, or none ───────────────────►  │
//!     Reply   ◄── batches ──────────────────────────────┘
//!     job     ◄── counters so far, with each message
//! ```
//!
//! The node kills the process when the process exceeds its memory, when its task is cancelled, or when the
//! node ends. Then only the task fails; all other work goes on. All memory of the process lies within the
//! memory of the task, which lies within the memory of the node. The memory is split into three parts:
//!
//! - [`own_bytes`] for the program itself and for memory that no budget counts;
//! - an eighth, at least [`ANSWER_BYTES_MIN`], for batches in flight to the node;
//! - the rest for the job.
//!
//! A message to the node has a header and a payload. The header holds the kind (u8), then as little-endian
//! u64: length of the payload, bytes read, bytes written, repaired pieces, and processor time in
//! microseconds, each counted since the start of the process. A batch is a section of one stream in Arrow's
//! IPC format and lies in the shared memory; all other payloads go over the socket. Columns that are
//! announced before the first row are a stream without batches.
//!
//! Messages to the process: the order in JSON; for each request for a piece a byte, a length (u32) and a
//! description of the next piece in JSON; and for each batch a byte that frees the shared memory for the next
//! batch. On either side a separate thread waits for pieces, so that rows, counters and failures pass
//! meanwhile.
//!
//! Paper: tasks in place, under an operating system that ends them: 2019 thesis 3.2.2.

use std::{
    ffi::OsString,
    io::{self, BufReader, BufWriter, Read, Write},
    os::unix::{ffi::OsStringExt, net::UnixStream},
    panic::{self, AssertUnwindSafe},
    path::{self, PathBuf},
    process,
    sync::{
        Arc, Condvar, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use arrow_array::RecordBatch;
use arrow_buffer::Buffer;
use arrow_ipc::{reader::StreamDecoder, writer::StreamWriter};
use arrow_schema::SchemaRef;
use inshore_kernel::{Failure, Needs, Reply, Sources, Task, TaskSource, Work};
use inshore_nodes::{compact, open_pieces, protocol::PieceRequest};
use inshore_sandbox::{Apart, ApartLimits, ApartMemory, Helper};
use inshore_sql::doing;
use inshore_store::{Budget, Cancel, Job, ProcessCounts, Store, format_bytes};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::queries::Queries;

const MIB: u64 = 1 << 20;
/// Returns the memory of the process beside the memory of its job, in bytes: the program, plans, free memory
/// in the allocator, and memory that threads touch before the limit takes effect. Measured for queries with
/// two threads: 23 MiB.
pub fn own_bytes(threads: usize) -> u64 {
    (28 + 2 * threads as u64) * MIB
}

/// Returns the number of threads whose memory fits a quarter of this memory; at least [`THREADS_MIN`].
fn threads_within(bytes: u64) -> usize {
    ((bytes / 4).saturating_sub(own_bytes(0)) / (2 * MIB)).max(THREADS_MIN as u64) as usize
}

const THREADS_MIN: usize = 2;

/// The least memory for batches in flight to the client.
pub const ANSWER_BYTES_MIN: u64 = 4 * MIB;
const ANSWER_PART: u64 = 8;
const ANSWER_BYTES_MAX: u64 = 320 * MIB;
/// The number of copies of a batch in the memory of the node: as received, as the message to send, two
/// waiting, and one in the network stack.
const COPIES: u64 = 5;
/// The maximal length of a summary or an error message, in bytes.
const WORDS_BYTES_MAX: usize = 4 << 10;
/// The capacity of the encoding buffer that is kept between batches, in bytes.
const ROOM_BYTES: usize = 1 << 20;
/// The address space for stacks of threads that do not belong to the work.
const STACK_BYTES: u64 = 128 * MIB;
/// The interval at which cancellation is checked, and at which a silent process reports its counters.
const TICK: Duration = Duration::from_millis(50);

/// The longest wait until the store has reclaimed the space of a killed process.
const GIVE_BACK: Duration = Duration::from_secs(1);

const COUNTS: u8 = 0;
const NEXT: u8 = 1;
const ROWS: u8 = 2;
const DONE: u8 = 3;
const FAILED: u8 = 4;
const BEGUN: u8 = 5;
/// The kinds of messages from the node: a batch was taken, and the description of the next piece.
const TAKEN: u8 = 2;
const PIECE: u8 = 3;
/// The maximal length of the description of a piece.
const PIECE_BYTES_MAX: u64 = 64 << 10;

/// A kind of work that runs in a child process.
#[derive(Debug)]
pub struct WorkApart<W> {
    work: W,
    stack_bytes: fn(usize) -> u64,
    helper: Helper,
}

impl<W: Work> WorkApart<W> {
    /// Returns a work that runs in a child process of the current program, which has to begin with
    /// [`crate::child_main_if_asked`]: without that call, tasks fail within 10 s. `stack_bytes` returns the
    /// bytes of stacks that the work needs with a number of threads.
    pub fn new(work: W, stack_bytes: fn(usize) -> u64) -> WorkApart<W> {
        WorkApart { work, stack_bytes, helper: Helper::own() }
    }

    /// Returns the same work, run by another program.
    #[must_use]
    pub fn with_helper(self, helper: Helper) -> WorkApart<W> {
        WorkApart { helper, ..self }
    }
}

#[derive(Serialize, Deserialize)]
struct Order {
    kind: String,
    /// The paths of the store's folders, one for each device, as raw bytes.
    store: Vec<Vec<u8>>,
    memory_bytes: u64,
    /// True if `memory_bytes` also covers the order itself.
    is_within: bool,
    threads: usize,
    batch_bytes_max: u64,
    arguments: Value,
    /// The expected bytes of all pieces.
    bytes: u64,
    count_max: usize,
}

/// The next piece: `None` after the last, or the reason why a piece is missing.
type NextPiece = Result<Option<PieceRequest>, String>;

/// The header of a message to the node.
#[derive(Debug, PartialEq, Eq)]
struct Header {
    kind: u8,
    length: u64,
    counts: ProcessCounts,
}

const HEADER_BYTES: usize = 1 + 5 * 8;

impl Header {
    fn to_bytes(&self) -> [u8; HEADER_BYTES] {
        let ProcessCounts { bytes_read, bytes_written, repairs, cpu_us } = self.counts;
        let mut bytes = [self.kind; HEADER_BYTES];
        let numbers = [self.length, bytes_read, bytes_written, repairs, cpu_us];
        for (place, number) in bytes[1..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        bytes
    }

    fn parse(bytes: &[u8; HEADER_BYTES]) -> Header {
        let number =
            |place: usize| u64::from_le_bytes(bytes[1 + 8 * place..][..8].try_into().expect("8 bytes"));
        let (bytes_read, bytes_written, repairs, cpu_us) = (number(1), number(2), number(3), number(4));
        let counts = ProcessCounts { bytes_read, bytes_written, repairs, cpu_us };
        Header { kind: bytes[0], length: number(0), counts }
    }

    /// Returns the maximal length of a message of this kind, in bytes.
    fn length_max(kind: u8, batch_bytes_max: u64) -> u64 {
        match kind {
            ROWS | DONE | FAILED | BEGUN => batch_bytes_max,
            _ => 0,
        }
    }
}

/// Returns the differences of two readings of a process's counters.
fn since(now: ProcessCounts, before: ProcessCounts) -> ProcessCounts {
    ProcessCounts {
        bytes_read: now.bytes_read.saturating_sub(before.bytes_read),
        bytes_written: now.bytes_written.saturating_sub(before.bytes_written),
        repairs: now.repairs.saturating_sub(before.repairs),
        cpu_us: now.cpu_us.saturating_sub(before.cpu_us),
    }
}

impl<W: Work> Work for WorkApart<W> {
    fn kind(&self) -> &'static str {
        self.work.kind()
    }

    fn needs(&self) -> Needs {
        self.work.needs()
    }

    fn smallest_memory_bytes(&self) -> u64 {
        own_bytes(THREADS_MIN) + ANSWER_BYTES_MIN + self.work.smallest_memory_bytes()
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let Task { job, arguments, sources } = task;
        let all = job.budget().free_bytes();
        let _memory = job.budget().reserve(all, "a child process")?;
        let (given, smallest) = (all, self.smallest_memory_bytes());
        if given < smallest {
            let what = format!("'{}' on a node", self.kind());
            return Err(inshore_store::Error::BudgetTooSmall { what, given, smallest }.into());
        }
        let threads = job.budget().threads().min(threads_within(given));
        let most = given - own_bytes(threads) - self.work.smallest_memory_bytes();
        let answer_bytes = (given / ANSWER_PART).min(ANSWER_BYTES_MAX).min(most).max(ANSWER_BYTES_MIN);
        let order = Order {
            kind: self.kind().to_string(),
            store: folders(&job)?,
            memory_bytes: given - own_bytes(threads) - answer_bytes,
            is_within: true,
            threads,
            batch_bytes_max: answer_bytes / COPIES,
            arguments,
            bytes: sources.bytes(),
            count_max: sources.count_max(),
        };
        let limits = ApartLimits {
            memory_bytes: given - answer_bytes,
            stack_bytes: STACK_BYTES + (self.stack_bytes)(threads),
            threads,
        };
        ask(&self.helper, limits, order, &job, sources, reply)
    }
}

/// Runs a work without pieces in a child process, with the budget of `job` and the rest of `limits` for the
/// process itself. An answer may have any length that fits into the memory of the process. `helper` is a
/// program that begins with [`apart_main`] and knows the work `kind`. The process ends with the thread that
/// calls this function.
///
/// # Errors
/// [`inshore_sandbox::ApartEnd`] if the process ended abnormally, [`inshore_store::Error::Cancelled`], and
/// the failure of the work, as text.
pub fn run_apart(
    helper: &Helper,
    limits: ApartLimits,
    job: &Job,
    kind: &str,
    arguments: Value,
    reply: &mut dyn Reply,
) -> Result<Value, Failure> {
    let order = Order {
        kind: kind.to_string(),
        store: folders(job)?,
        memory_bytes: job.budget().memory_bytes(),
        is_within: false,
        threads: job.budget().threads(),
        batch_bytes_max: limits.memory_bytes,
        arguments,
        bytes: 0,
        count_max: 0,
    };
    ask(helper, limits, order, job, Sources::of(Vec::new()), reply)
}

/// Returns the absolute paths of the folders of a job's store.
fn folders(job: &Job) -> Result<Vec<Vec<u8>>, Failure> {
    let folder = |path: PathBuf| Ok(path::absolute(path)?.into_os_string().into_vec());
    job.store().folders().into_iter().map(folder).collect()
}

/// Starts a process, sends the order, and takes the answer.
fn ask(
    helper: &Helper,
    limits: ApartLimits,
    order: Order,
    job: &Job,
    sources: Sources,
    reply: &mut dyn Reply,
) -> Result<Value, Failure> {
    let mut apart = Apart::start(helper, limits)?;
    let says = Mutex::new(apart.socket().try_clone()?);
    let mut way = Way { apart: &mut apart, job, says: &says };
    let answered = way.give(&order).and_then(|()| {
        let most = order.batch_bytes_max;
        drop(order);
        way.take(most, sources, reply)
    });
    let (done, is_killed) = match answered {
        // The process itself frees its space in the store.
        Ok(Answered::Done(summary)) => (Ok(summary), apart.ended().is_some()),
        Ok(Answered::Failed(text)) => (Err(text.into()), apart.ended().is_some()),
        Ok(Answered::Ended) => {
            let why =
                apart.ended().map_or_else(|| "the process of the task ended early".into(), Failure::from);
            (Err(why), true)
        }
        Err(failure) => {
            drop(apart);
            (Err(failure), true)
        }
    };
    if is_killed {
        give_back(&job.store());
    }
    done
}

/// Reclaims the space of a killed process in the store before the task ends. If this takes long, for example
/// on a drive that hangs, the next job reclaims the space.
fn give_back(store: &Store) {
    static GIVES_BACK: AtomicBool = AtomicBool::new(false);
    if GIVES_BACK.swap(true, Ordering::Relaxed) {
        return;
    }
    let (store, (tell, told)) = (store.clone(), mpsc::channel());
    let given = thread::Builder::new().name("give back".to_string()).spawn(move || {
        // If this fails, the next job tries again and reports the error.
        let _ = store.give_back_of_dead();
        GIVES_BACK.store(false, Ordering::Relaxed);
        let _ = tell.send(());
    });
    match given {
        Ok(_) => drop(told.recv_timeout(GIVE_BACK)),
        Err(_) => GIVES_BACK.store(false, Ordering::Relaxed),
    }
}

enum Answered {
    Done(Value),
    Failed(String),
    /// The process ended without a last message.
    Ended,
}

/// The node's side of the connection to the process.
struct Way<'a> {
    apart: &'a mut Apart,
    job: &'a Job,
    /// Messages to the process are sent one after the other.
    says: &'a Mutex<UnixStream>,
}

impl Way<'_> {
    /// Sends the order. If the process has ended meanwhile, the next read notices this.
    fn give(&mut self, order: &Order) -> Result<(), Failure> {
        let socket = self.apart.socket();
        socket.set_read_timeout(Some(TICK))?;
        socket.set_write_timeout(Some(TICK))?;
        let mut out = BufWriter::new(Patient { socket, job: self.job });
        let written = serde_json::to_writer(&mut out, order);
        let given = written.and_then(|()| out.flush().map_err(serde_json::Error::io));
        self.job.check_cancelled()?;
        match given {
            // The process would wait for the rest of the order, and the node for the process.
            Err(error) if !error.is_io() => Err(error.into()),
            // If the process has ended, the next read notices this.
            _ => Ok(()),
        }
    }

    /// Takes all messages of the process up to its last, and sends pieces meanwhile.
    fn take(
        &mut self,
        batch_bytes_max: u64,
        sources: Sources,
        reply: &mut dyn Reply,
    ) -> Result<Answered, Failure> {
        let (mut sources, leave) = sources.into_parts();
        let (ask, asked) = mpsc::channel();
        let (says, job) = (self.says, self.job);
        thread::scope(|scope| {
            let pieces = thread::Builder::new().name("pieces".to_string());
            pieces.spawn_scoped(scope, move || {
                for () in asked {
                    say(says, job, &piece_told(sources.next()));
                }
            })?;
            let answered = self.hear(batch_bytes_max, &ask, reply);
            drop(ask);
            // A completed work does not need the piece that is on its way, which counts as read. In all other
            // cases nothing waits for the piece.
            if !matches!(answered, Ok(Answered::Done(_))) {
                leave();
            }
            answered
        })
    }

    fn hear(
        &mut self,
        batch_bytes_max: u64,
        ask: &mpsc::Sender<()>,
        reply: &mut dyn Reply,
    ) -> Result<Answered, Failure> {
        let mut decoder = StreamDecoder::new();
        let mut counted = ProcessCounts::default();
        loop {
            let mut header = Vec::with_capacity(HEADER_BYTES);
            self.add(&mut header, HEADER_BYTES as u64)?;
            let Some(header) = header.first_chunk() else { return Ok(Answered::Ended) };
            let Header { kind, length, counts } = Header::parse(header);
            self.job.counters().add_of_process(since(counts, counted));
            counted = counts;
            if length > Header::length_max(kind, batch_bytes_max) {
                return Err(format!(
                    "protocol error: the process of the task sent {} of kind {kind}",
                    format_bytes(length)
                )
                .into());
            }
            let mut bytes = Vec::with_capacity(length as usize);
            if kind == ROWS {
                self.apart.take(length as usize, &mut bytes)?;
                say(self.says, self.job, &[TAKEN]);
            } else if !self.add(&mut bytes, length)? {
                return Ok(Answered::Ended);
            }
            match kind {
                COUNTS => self.job.check_cancelled()?,
                // The thread for pieces lives as long as this loop.
                NEXT => drop(ask.send(())),
                ROWS => {
                    let mut buffer = Buffer::from(bytes);
                    while let Some(batch) = decoder.decode(&mut buffer)? {
                        reply.batch(batch)?;
                    }
                }
                BEGUN => {
                    let mut columns = StreamDecoder::new();
                    columns.decode(&mut Buffer::from(bytes))?;
                    reply.begun(
                        &columns.schema().ok_or("protocol error: the process of the task sent no columns")?,
                    )?;
                }
                DONE => {
                    decoder.finish()?;
                    return Ok(Answered::Done(serde_json::from_slice(&bytes)?));
                }
                FAILED => return Ok(Answered::Failed(String::from_utf8_lossy(&bytes).into_owned())),
                other => {
                    return Err(format!(
                        "protocol error: the process of the task sent a message of unknown kind {other}"
                    )
                    .into());
                }
            }
        }
    }

    /// Reads this many bytes; returns false if the process ends before.
    fn add(&mut self, bytes: &mut Vec<u8>, length: u64) -> Result<bool, Failure> {
        let mut rest = self.apart.socket().take(length);
        loop {
            match rest.read_to_end(bytes) {
                Ok(_) => return Ok(bytes.len() as u64 == length),
                Err(error) if is_pause(&error) => self.job.check_cancelled()?,
                Err(_) => return Ok(false),
            }
        }
    }
}

/// Sends a short message to a process.
fn say(to: &Mutex<UnixStream>, job: &Job, what: &[u8]) {
    let socket = to.lock().expect("no panic under this lock");
    // If the process has ended, the next read notices this.
    let _ = Patient { socket: &socket, job }.write_all(what);
}

/// Encodes the description of the next piece.
fn piece_told(source: Option<Result<TaskSource, Failure>>) -> Vec<u8> {
    let request = |source: Result<TaskSource, Failure>| {
        let source = source.map_err(|failure| shortened(&failure.to_string()))?;
        PieceRequest::of_source(&source).ok_or_else(|| "a source is not a part of a dataset".to_string())
    };
    let next: NextPiece = source.map(request).transpose();
    let words = |next: &NextPiece| serde_json::to_vec(next).expect("plain data");
    let mut told = words(&next);
    if told.len() as u64 > PIECE_BYTES_MAX {
        told = words(&Err("the description of a piece exceeds the limit".to_string()));
    }
    [&[PIECE], &(told.len() as u32).to_le_bytes()[..], &told].concat()
}

/// Repeats a write after each timeout until the job is cancelled.
struct Patient<'a> {
    socket: &'a UnixStream,
    job: &'a Job,
}

impl Write for Patient<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            match self.socket.write(bytes) {
                Err(error) if is_pause(&error) => self.job.check_cancelled().map_err(io::Error::other)?,
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns true for errors after which a read or write is repeated.
fn is_pause(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// Names the current operators of queries; empty without a query.
pub(crate) fn at_work() -> String {
    doing().unwrap_or_default()
}

/// Runs the work for which a helper started this program: fragments of queries for a node, or one of `works`.
/// `arguments` are the last arguments of the command line. For a program that does not use
/// [`crate::child_main_if_asked`].
pub fn apart_main(arguments: &[OsString], works: &[&dyn Work]) -> ! {
    let works: Vec<&dyn Work> = works.iter().copied().chain([&Queries as &dyn Work]).collect();
    inshore_sandbox::apart_main(arguments, at_work, |socket, memory| work_apart(socket, memory, &works))
}

/// Runs the order of a node as one of `works`: the whole life of a child process.
pub(crate) fn work_apart(socket: UnixStream, memory: ApartMemory, works: &[&dyn Work]) {
    let Some((order, bytes)) = ordered(&socket) else { return };
    let Ok(hears) = socket.try_clone() else { return };
    let ways = Ways { socket, memory };
    let out = Out { ways: Arc::new(Mutex::new(ways)), job: Arc::default(), heard: Arc::default() };
    let hearing = out.clone();
    let hearing = thread::Builder::new().name("hears".to_string()).spawn(move || hearing.hear(hears));
    let Ok(_) = hearing else { return };
    // If the work panics, the node notices the end of the process.
    let worked = panic::catch_unwind(AssertUnwindSafe(|| obey(order, bytes, works, &out)));
    let worked = worked.unwrap_or_else(|_| Err("the task panicked: this is a bug in Inshore".into()));
    let said = match worked {
        Ok(summary) => out.say(DONE, &serde_json::to_vec(&summary).expect("plain data")),
        Err(failure) => out.say(FAILED, shortened(&failure.to_string()).as_bytes()),
    };
    // The last owner of the job frees the job's space on disk, with or without a reader of the answer.
    drop((said, out.job().take()));
}

/// Cuts a message to [`WORDS_BYTES_MAX`]: a value in an error message may have millions of characters.
fn shortened(words: &str) -> String {
    match words.len() > WORDS_BYTES_MAX {
        true => format!("{} ...", &words[..words.floor_char_boundary(WORDS_BYTES_MAX)]),
        false => words.to_string(),
    }
}

/// Reads the first message with the task, and returns the length of its text. The node sends nothing more before the
/// first request.
fn ordered(socket: &UnixStream) -> Option<(Order, u64)> {
    let mut counted = Counted { from: socket, bytes: 0 };
    let order = Order::deserialize(&mut serde_json::Deserializer::from_reader(BufReader::new(&mut counted)));
    Some((order.ok()?, counted.bytes))
}

/// Counts the bytes that pass through a reader.
struct Counted<R> {
    from: R,
    bytes: u64,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.from.read(buffer)?;
        self.bytes += read as u64;
        Ok(read)
    }
}

fn obey(order: Order, order_bytes: u64, works: &[&dyn Work], out: &Out) -> Result<Value, Failure> {
    let Order { kind, store, memory_bytes, is_within, threads, batch_bytes_max, arguments, bytes, count_max } =
        order;
    let work = works.iter().find(|work| work.kind() == kind);
    let work = work.ok_or_else(|| format!("tasks of the kind '{kind}' do not run in child processes"))?;
    let folders: Vec<PathBuf> = store.into_iter().map(|path| OsString::from_vec(path).into()).collect();
    let store = Store::open_folders(&folders)?;
    // A long order and the values parsed from the text also take memory.
    let order_bytes = if is_within { 2 * order_bytes.saturating_sub(MIB) } else { 0 };
    let memory_bytes = memory_bytes.saturating_sub(order_bytes);
    let job = store.job(Budget::new(memory_bytes, threads), Cancel::default())?;
    *out.job() = Some(job.clone());
    let (asks, leaves, tells, of_job) = (out.clone(), out.clone(), out.clone(), job.clone());
    let next = std::iter::from_fn(move || {
        asks.next_piece().map(|piece| {
            let mut opened = open_pieces(&of_job, vec![piece?])?;
            Ok(opened.pop().expect("one of one"))
        })
    });
    let sources = Sources::pulled(next, bytes, count_max).left_by(move || leaves.leave());
    thread::Builder::new().name("counts".to_string()).spawn(move || {
        loop {
            listened(tells.say(COUNTS, &[]));
            thread::sleep(TICK);
        }
    })?;
    let mut reply = Rows { out, writer: None, batch_bytes_max };
    let summary = work.work(Task { job, arguments, sources }, &mut reply)?;
    reply.end()?;
    Ok(summary)
}

/// Ends this process if the node has closed the connection: nothing needs the result.
fn listened<T>(said: io::Result<T>) -> T {
    said.unwrap_or_else(|_| process::exit(1))
}

/// The process's side of the connection to the node.
#[derive(Clone)]
struct Out {
    ways: Arc<Mutex<Ways>>,
    /// The job whose counters are reported.
    job: Arc<Mutex<Option<Job>>>,
    heard: Arc<(Mutex<Heard>, Condvar)>,
}

/// The state that messages of the node have set.
#[derive(Default)]
struct Heard {
    /// True while the shared memory holds a batch that the node has not taken.
    is_full: bool,
    next: Option<NextPiece>,
    /// True if the task has failed and takes no more pieces.
    is_left: bool,
}

impl Out {
    fn job(&self) -> MutexGuard<'_, Option<Job>> {
        self.job.lock().expect("no panic under this lock")
    }

    fn ways(&self) -> MutexGuard<'_, Ways> {
        self.ways.lock().expect("no panic under this lock")
    }

    fn header(&self, kind: u8, length: usize) -> [u8; HEADER_BYTES] {
        let counts = self.job().as_ref().map(|job| job.counts()).unwrap_or_default();
        Header { kind, length: length as u64, counts }.to_bytes()
    }

    fn say(&self, kind: u8, bytes: &[u8]) -> io::Result<()> {
        // Counters are read under the lock, so that a later message never holds older counters.
        let mut ways = self.ways();
        let message = [&self.header(kind, bytes.len()), bytes].concat();
        ways.socket.write_all(&message)
    }

    /// Sends a batch after the node has taken the previous batch.
    fn rows(&self, bytes: &[u8]) -> io::Result<()> {
        self.wait(|heard| !heard.is_full).is_full = true;
        let mut ways = self.ways();
        ways.memory.put(bytes)?;
        ways.socket.write_all(&self.header(ROWS, bytes.len()))
    }

    /// Requests the next piece from the node. Only one request is open at a time.
    fn next_piece(&self) -> Option<Result<PieceRequest, Failure>> {
        listened(self.say(NEXT, &[]));
        let mut heard = self.wait(|heard| heard.next.is_some() || heard.is_left);
        let next = heard.next.take().unwrap_or_else(|| Err("the task has failed".to_string()));
        next.map_err(Failure::from).transpose()
    }

    /// Ends the wait for a piece.
    fn leave(&self) {
        self.change(|heard| heard.is_left = true);
    }

    fn wait(&self, is_over: impl Fn(&Heard) -> bool) -> MutexGuard<'_, Heard> {
        let (heard, changed) = &*self.heard;
        let heard = heard.lock().expect("no panic under this lock");
        changed.wait_while(heard, |heard| !is_over(heard)).expect("no panic under this lock")
    }

    fn change(&self, change: impl FnOnce(&mut Heard)) {
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
            let next = serde_json::from_slice(&words)
                .unwrap_or_else(|error| Err(format!("an invalid description of a piece: {error}")));
            self.change(|heard| heard.next = Some(next));
        }
    }
}

struct Ways {
    socket: UnixStream,
    memory: ApartMemory,
}

/// The encoder of batches for the node.
struct Rows<'a> {
    out: &'a Out,
    writer: Option<StreamWriter<Vec<u8>>>,
    batch_bytes_max: u64,
}

impl Rows<'_> {
    /// Ends the stream. The following message shows that a batch with rows but without bytes is complete.
    fn end(self) -> Result<(), Failure> {
        let Some(mut writer) = self.writer else { return Ok(()) };
        writer.finish()?;
        Ok(self.out.rows(writer.get_ref())?)
    }
}

impl Reply for Rows<'_> {
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
            // Batches have no dictionaries, which the truncation would remove as well.
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

#[cfg(test)]
mod tests;
