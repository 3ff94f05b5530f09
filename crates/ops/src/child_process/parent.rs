//! This module is the node's side of the connection: it starts the child process, sends the task and its shards,
//! and receives the answer.

use std::{
    io::{self, BufWriter, Read, Write},
    os::unix::net::UnixStream,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use arrow_buffer::Buffer;
use arrow_ipc::reader::StreamDecoder;
use inshore_kernel::{Failure, FinalFailure, Reply, SourceOffset, Sources, TaskSource};
use inshore_nodes::protocol::PieceRequest;
use inshore_sandbox::{ChildLimits, ChildProcess, Helper};
use inshore_store::{Job, ProcessCounts, Store, format_bytes};
use serde_json::Value;

use super::protocol::{
    BEGUN, BLOCK, BLOCK_FAILED, COUNTS, DONE, FAILED, FAILED_FINALLY, HEADER_BYTES, MessageHeader, NEXT,
    NextPiece, NextSource, PIECE, PIECE_BYTES_MAX, READ, ROWS, SentSource, TAKEN, TICK, TaskOrder, shortened,
};

/// The maximum time to wait until the store has reclaimed the space of a killed process.
const GIVE_BACK: Duration = Duration::from_secs(1);

/// Starts a child process, sends the order (the task), and receives the answer. The second job has the memory to read
/// sources that are sent.
pub(super) fn ask(
    helper: &Helper,
    limits: ChildLimits,
    order: TaskOrder,
    (job, sending): (&Job, &Job),
    sources: Sources,
    reply: &mut dyn Reply,
) -> Result<Value, Failure> {
    let mut child = ChildProcess::start(helper, limits)?;
    let says = Mutex::new(child.socket().try_clone()?);
    let mut connection = ChildConnection { child: &mut child, job, sending, says: &says };
    let answered = connection.give(&order).and_then(|()| {
        let most = order.batch_bytes_max;
        drop(order);
        connection.take(most, sources, reply)
    });
    let (done, is_killed) = match answered {
        // A process that ends by itself frees its space in the store.
        Ok(ChildAnswer::Done(summary)) => (Ok(summary), child.ended().is_some()),
        Ok(ChildAnswer::Failed(failure)) => (Err(failure), child.ended().is_some()),
        Ok(ChildAnswer::Ended) => {
            let why =
                child.ended().map_or_else(|| "the process of the task ended early".into(), Failure::from);
            (Err(why), true)
        }
        Err(failure) => {
            drop(child);
            (Err(failure), true)
        }
    };
    if is_killed {
        give_back(&job.store());
    }
    done
}

/// Reclaims the space of a killed process in the store. The task waits for this at most [`GIVE_BACK`], for example
/// if a drive hangs. The space that is left is reclaimed later, at the latest by the next job.
fn give_back(store: &Store) {
    static GIVES_BACK: AtomicBool = AtomicBool::new(false);
    if GIVES_BACK.swap(true, Ordering::Relaxed) {
        return;
    }
    let (store, (tell, told)) = (store.clone(), mpsc::channel());
    let given = thread::Builder::new().name("give back".to_string()).spawn(move || {
        // If reclaiming fails, the next job tries again and reports the error.
        let _ = store.give_back_of_dead();
        GIVES_BACK.store(false, Ordering::Relaxed);
        let _ = tell.send(());
    });
    match given {
        Ok(_) => drop(told.recv_timeout(GIVE_BACK)),
        Err(_) => GIVES_BACK.store(false, Ordering::Relaxed),
    }
}

enum ChildAnswer {
    Done(Value),
    Failed(Failure),
    /// The process ended without sending a summary or an error.
    Ended,
}

/// The node's end of the connection to the child process.
struct ChildConnection<'a> {
    child: &'a mut ChildProcess,
    job: &'a Job,
    sending: &'a Job,
    /// The socket for messages to the process. The lock ensures that the bytes of two messages do not mix.
    says: &'a Mutex<UnixStream>,
}

impl ChildConnection<'_> {
    /// Sends the order (the task). If the process has ended meanwhile, the next read fails.
    fn give(&mut self, order: &TaskOrder) -> Result<(), Failure> {
        let socket = self.child.socket();
        socket.set_read_timeout(Some(TICK))?;
        socket.set_write_timeout(Some(TICK))?;
        let mut out = BufWriter::new(CancellableWriter { socket, job: self.job });
        let written = serde_json::to_writer(&mut out, order);
        let given = written.and_then(|()| out.flush().map_err(serde_json::Error::io));
        self.job.check_cancelled()?;
        match given {
            // This error ends the task. Otherwise the process would wait for the rest of the order, and the node
            // would wait for the process.
            Err(error) if !error.is_io() => Err(error.into()),
            // If the process has ended, the next read fails.
            _ => Ok(()),
        }
    }

    /// Receives the messages of the process up to the last message, and sends shards meanwhile.
    fn take(
        &mut self,
        batch_bytes_max: u64,
        sources: Sources,
        reply: &mut dyn Reply,
    ) -> Result<ChildAnswer, Failure> {
        let (mut sources, leave) = sources.into_parts();
        let (ask, asked) = mpsc::channel();
        let (says, job, sending) = (self.says, self.job, self.sending);
        thread::scope(|scope| {
            let pieces = thread::Builder::new().name("pieces".to_string());
            pieces.spawn_scoped(scope, move || {
                let mut streams = Streams { job: sending, opened: Vec::new() };
                for request in asked {
                    let reply = match request {
                        Request::Source => streams.source_told(sources.next()),
                        Request::Block(stream) => streams.block(stream),
                    };
                    say(says, job, &[&[PIECE], &(reply.len() as u32).to_le_bytes()[..], &reply].concat());
                }
            })?;
            let answered = self.hear(batch_bytes_max, &ask, reply);
            drop(ask);
            // A completed task may have requested a shard that it did not need. This shard counts as read, so the
            // wait for it goes on. In all other cases the wait for a shard ends.
            if !matches!(answered, Ok(ChildAnswer::Done(_))) {
                leave();
            }
            answered
        })
    }

    fn hear(
        &mut self,
        batch_bytes_max: u64,
        ask: &mpsc::Sender<Request>,
        reply: &mut dyn Reply,
    ) -> Result<ChildAnswer, Failure> {
        let mut decoder = StreamDecoder::new();
        let mut counted = ProcessCounts::default();
        loop {
            let mut header = Vec::with_capacity(HEADER_BYTES);
            self.add(&mut header, HEADER_BYTES as u64)?;
            let Some(header) = header.first_chunk() else { return Ok(ChildAnswer::Ended) };
            let MessageHeader { kind, length, counts } = MessageHeader::parse(header);
            self.job.counters().add_of_process(since(counts, counted));
            counted = counts;
            if length > MessageHeader::length_max(kind, batch_bytes_max) {
                return Err(format!(
                    "protocol error: the process of the task sent {} of kind {kind}",
                    format_bytes(length)
                )
                .into());
            }
            let mut bytes = Vec::with_capacity(length as usize);
            if kind == ROWS {
                self.child.take(length as usize, &mut bytes)?;
                say(self.says, self.job, &[TAKEN]);
            } else if !self.add(&mut bytes, length)? {
                return Ok(ChildAnswer::Ended);
            }
            match kind {
                COUNTS => self.job.check_cancelled()?,
                // The thread that sends shards runs until this loop has ended, so the channel is open.
                NEXT => drop(ask.send(Request::Source)),
                READ => {
                    let stream = bytes.first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
                    drop(ask.send(Request::Block(stream.unwrap_or(u32::MAX))));
                }
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
                    return Ok(ChildAnswer::Done(serde_json::from_slice(&bytes)?));
                }
                FAILED | FAILED_FINALLY => {
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    let is_final = kind == FAILED_FINALLY;
                    let failure = if is_final { FinalFailure(text).into() } else { text.into() };
                    return Ok(ChildAnswer::Failed(failure));
                }
                other => {
                    return Err(format!(
                        "protocol error: the process of the task sent a message of unknown kind {other}"
                    )
                    .into());
                }
            }
        }
    }

    /// Reads `length` bytes; returns false if the process ends earlier.
    fn add(&mut self, bytes: &mut Vec<u8>, length: u64) -> Result<bool, Failure> {
        let mut rest = self.child.socket().take(length);
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
    // If the process has ended, the next read fails.
    let _ = CancellableWriter { socket: &socket, job }.write_all(what);
}

/// A request of the process.
enum Request {
    /// The next source.
    Source,
    /// The next block of the stream with this number.
    Block(u32),
}

/// The sources whose bytes the node sends, since the process cannot open them: parts of files in the scratch space of the
/// node, and streams.
struct Streams<'a> {
    job: &'a Job,
    opened: Vec<Box<dyn Read + Send>>,
}

impl Streams<'_> {
    /// Encodes the description of the next source.
    fn source_told(&mut self, source: Option<Result<TaskSource, Failure>>) -> Vec<u8> {
        let mut next = |source: Result<TaskSource, Failure>| {
            let source = source?;
            Ok::<_, Failure>(match PieceRequest::of_source(&source) {
                Some(piece) => NextSource::Shard(piece),
                None => NextSource::Stream(self.open(source)?),
            })
        };
        let next: NextPiece =
            source.map(&mut next).transpose().map_err(|failure| shortened(&failure.to_string()));
        let words = |next: &NextPiece| serde_json::to_vec(next).expect("plain data");
        let told = words(&next);
        match told.len() as u64 > PIECE_BYTES_MAX {
            true => words(&Err("the description of a source exceeds the limit".to_string())),
            false => told,
        }
    }

    fn open(&mut self, source: TaskSource) -> Result<SentSource, Failure> {
        let TaskSource { number, whole, source, .. } = source;
        let (SourceOffset { offset, lines }, is_stored) = (source.base(), source.part().is_some());
        let (name, opened) = source.open(self.job);
        let opened = opened?.into_stream()?;
        self.opened.push(opened.ok_or("a file of the file system is not sent to a child process")?);
        let stream = u32::try_from(self.opened.len() - 1)?;
        Ok(SentSource { stream, name, number, whole, offset, lines, is_stored })
    }

    /// Reads the next block of a stream. The block after the last one is empty.
    fn block(&mut self, stream: u32) -> Vec<u8> {
        let mut block = vec![BLOCK];
        let read = match self.opened.get_mut(stream as usize) {
            Some(opened) => opened.take(PIECE_BYTES_MAX - 1).read_to_end(&mut block),
            None => Err(io::Error::other("there is no such stream")),
        };
        match read {
            Ok(_) => block,
            Err(error) => [&[BLOCK_FAILED], shortened(&error.to_string()).as_bytes()].concat(),
        }
    }
}

/// A writer that repeats a write after each timeout, until the job is cancelled.
struct CancellableWriter<'a> {
    socket: &'a UnixStream,
    job: &'a Job,
}

impl Write for CancellableWriter<'_> {
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

/// Returns true if a read or write is repeated after this error.
fn is_pause(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

/// Returns the differences between two readings of a process's counters.
fn since(now: ProcessCounts, before: ProcessCounts) -> ProcessCounts {
    ProcessCounts {
        bytes_read: now.bytes_read.saturating_sub(before.bytes_read),
        bytes_written: now.bytes_written.saturating_sub(before.bytes_written),
        repairs: now.repairs.saturating_sub(before.repairs),
        cpu_us: now.cpu_us.saturating_sub(before.cpu_us),
    }
}
