//! Receives a load on a node: writes the received data, and makes the dataset visible once the data is
//! complete.
//!
//! `client/load.rs` contains the client's part, and describes how a file is spread.

use std::time::{Duration, Instant};

use arrow_flight::{FlightData, PutResult};
use futures::{Stream, StreamExt};
use inshore_store::{Budget, Cancel, DatasetBuilder, FileWriter, Job};
use tokio::sync::mpsc;
use tonic::{Status as Refusal, Streaming};

use super::{
    ANSWER_TIMEOUT, Agent,
    audit::Audit,
    loads::{LoadPermit, RECEIVE_MEMORY_BYTES},
    requests::short,
};
use crate::{
    protocol::{
        DATA_BYTES, LoadAnswer, LoadStep, MAP_BYTES_MAX, PIECE, SpreadId, VERSION, piece_name, wire::json,
    },
    spread,
};

/// The size of a write buffer, in bytes.
const BUFFER_BYTES: usize = 1 << 20;
/// The time without data after which a load is ended, even if its connection is open.
const IDLE: Duration = Duration::from_secs(600);
/// The interval at which a load checks for cancellation.
const LOOK: Duration = Duration::from_secs(1);
/// The limit of piece numbers. The number of pieces is limited, since each piece takes space in the map, whose size is
/// limited.
const PIECES_MAX: usize = MAP_BYTES_MAX / 32;

type AnswerResult = std::result::Result<FlightData, Refusal>;

/// The channel for the answers to a load. Each send has a time limit, since a client that takes no answers
/// would otherwise occupy a thread of the node.
struct Answers {
    out: mpsc::Sender<std::result::Result<PutResult, Refusal>>,
    runtime: tokio::runtime::Handle,
}

impl Answers {
    fn send(&self, answer: std::result::Result<PutResult, Refusal>) -> std::result::Result<(), Refusal> {
        let sent = self
            .runtime
            .block_on(async { tokio::time::timeout(ANSWER_TIMEOUT, self.out.send(answer)).await });
        // The receiver may have been dropped. The next step of the load detects this.
        sent.map(drop).map_err(|_| {
            Refusal::deadline_exceeded(format!(
                "the client did not read answers for {} s",
                ANSWER_TIMEOUT.as_secs()
            ))
        })
    }
}

fn bad(what: &str) -> Refusal {
    Refusal::invalid_argument(format!("invalid upload: {what}"))
}

/// Receives a load in a separate thread, and returns the stream of answers.
pub(super) fn receive(
    agent: Agent,
    place: LoadPermit,
    stop: Cancel,
    who: String,
    mut messages: Streaming<FlightData>,
) -> impl Stream<Item = std::result::Result<PutResult, Refusal>> + Send {
    let (out, mut answers) = mpsc::channel(4);
    let (steps, mut taken) = mpsc::channel::<AnswerResult>(2);
    let is_stopped = stop.clone();
    tokio::spawn(async move {
        let mut brought = Instant::now();
        loop {
            let taken = match tokio::time::timeout(LOOK, messages.next()).await {
                _ if is_stopped.is_cancelled() => {
                    Err(Refusal::unavailable("the upload was stopped: the node is shutting down"))
                }
                _ if brought.elapsed() > IDLE => {
                    let what = format!("no data received for {} s", IDLE.as_secs());
                    Err(Refusal::deadline_exceeded(what))
                }
                Err(_) => continue,
                Ok(Some(Ok(message))) if message.data_body.len() > 4 * DATA_BYTES => {
                    Err(bad("a message has more data than the limit"))
                }
                Ok(Some(Ok(message))) => Ok(message),
                // The client has disconnected.
                Ok(_) => return,
            };
            if taken.as_ref().is_ok_and(|message| !message.data_body.is_empty()) {
                brought = Instant::now();
            }
            // A closed channel means that the load has failed.
            if steps.send(taken).await.is_err() {
                return;
            }
        }
    });
    let runtime = tokio::runtime::Handle::current();
    tokio::task::spawn_blocking(move || {
        let _place = place;
        let out = Answers { out, runtime };
        let mut receiving = LoadReceiver::new(&agent, stop);
        let (came, mut failed) = (Instant::now(), None);
        while let Some(message) = taken.blocking_recv() {
            if let Err(refusal) = message.and_then(|message| receiving.step(message, &out)) {
                failed = Some(refusal);
                break;
            }
        }
        let LoadReceiver { name, bytes, is_committed, begun, .. } = receiving;
        // The space on the drives is released before the client is informed that the load has failed.
        drop(begun);
        let went = (!is_committed && !name.is_empty())
            .then_some("the client disconnected before the end of the upload");
        let why = failed.as_ref().map(Refusal::message).or(went);
        if is_committed || why.is_some() {
            agent.audit(&Audit {
                action: "put",
                who: &who,
                dataset: &name,
                bytes,
                seconds: came.elapsed().as_secs_f64(),
                failed: why,
                trace: None,
            });
        }
        if let Some(refusal) = failed {
            let _ = out.send(Err(refusal));
        }
    });
    futures::stream::poll_fn(move |context| answers.poll_recv(context))
}

struct LoadReceiver<'a> {
    agent: &'a Agent,
    stop: Cancel,
    begun: Option<OpenLoad>,
    name: String,
    bytes: u64,
    is_committed: bool,
}

/// A dataset in the process of being written.
struct OpenLoad {
    // The writer is dropped before the job.
    writer: Option<FileWriter>,
    builder: DatasetBuilder,
    _job: Job,
    id: SpreadId,
    block_bytes: usize,
    /// The smallest permitted number of the next piece, since pieces arrive in ascending order.
    next_piece: usize,
}

impl<'a> LoadReceiver<'a> {
    fn new(agent: &'a Agent, stop: Cancel) -> LoadReceiver<'a> {
        LoadReceiver { agent, stop, begun: None, name: String::new(), bytes: 0, is_committed: false }
    }

    fn step(&mut self, message: FlightData, out: &Answers) -> std::result::Result<(), Refusal> {
        let failed = |error: inshore_store::Error| Refusal::failed_precondition(error.to_string());
        let step: LoadStep =
            serde_json::from_slice(&message.app_metadata).map_err(|error| bad(&error.to_string()))?;
        let tell = |answer: LoadAnswer| out.send(Ok(PutResult { app_metadata: json(&answer) }));
        if let LoadStep::Begin { version, name, id, block_bytes } = step {
            self.name.clone_from(&name);
            if version != VERSION {
                let what =
                    format!("this node does not support version {version} of uploads, expected {VERSION}");
                return Err(Refusal::unimplemented(what));
            }
            if self.begun.is_some() {
                return Err(bad("it has two begin messages"));
            }
            if !block_bytes.is_power_of_two() || !(4096..=65536).contains(&block_bytes) {
                return Err(bad("the block size is not a power of two from 4 to 64 KiB"));
            }
            let store = self.agent.store();
            let job = store.job(Budget::new(RECEIVE_MEMORY_BYTES, 1), self.stop.clone());
            let job = job.map_err(failed)?;
            let (builder, generation) = spread::begin(&job, &name).map_err(failed)?;
            let (writer, block_bytes, next_piece) = (None, block_bytes as usize, 0);
            self.begun = Some(OpenLoad { writer, builder, _job: job, id, block_bytes, next_piece });
            return tell(LoadAnswer::Begun { generation });
        }
        let begun = self.begun.as_mut().ok_or_else(|| bad("the begin message is missing"))?;
        match step {
            LoadStep::Begin { .. } => unreachable!("done above"),
            LoadStep::File { name } => {
                // The names of all pieces stay in memory until the load ends, so their number is limited.
                let number = name.strip_prefix(PIECE).and_then(|number| number.parse::<usize>().ok());
                let is_next = |number: &usize| (begun.next_piece..PIECES_MAX).contains(number);
                match number.filter(is_next).filter(|&number| piece_name(number) == name) {
                    Some(number) => begun.next_piece = number + 1,
                    None => return Err(bad(&format!("'{}' is not the next file", short(&name)))),
                }
                begun.end_file().map_err(failed)?;
                begun.begin_file(&name).map_err(failed)?;
            }
            LoadStep::Data => {
                if message.data_body.is_empty() {
                    return Err(bad("a data message is empty"));
                }
                let writer = begun.writer.as_mut().ok_or_else(|| bad("data before the first file"))?;
                writer.write(&message.data_body).map_err(failed)?;
                self.bytes += message.data_body.len() as u64;
                self.agent.count_loaded(message.data_body.len() as u64);
            }
            LoadStep::Received => {
                begun.end_file().map_err(failed)?;
                tell(LoadAnswer::Received { bytes: self.bytes })?;
            }
            LoadStep::Commit { map } => {
                if !map.is_sound() || map.generation.id != begun.id || json(&map).len() > MAP_BYTES_MAX {
                    return Err(bad("its map of pieces is invalid"));
                }
                let mut begun = self.begun.take().expect("looked at above");
                begun.end_file().map_err(failed)?;
                let mut builder = begun.builder;
                spread::add_map(&mut builder, &map).map_err(failed)?;
                spread::commit(builder, &map.generation).map_err(failed)?;
                self.is_committed = true;
                tell(LoadAnswer::Committed)?;
            }
        }
        Ok(())
    }
}

impl OpenLoad {
    fn begin_file(&mut self, name: &str) -> inshore_store::Result<()> {
        let buffer_bytes = BUFFER_BYTES.max(self.block_bytes);
        self.writer = Some(self.builder.file_with_buffers(name, self.block_bytes, buffer_bytes, 4)?);
        Ok(())
    }

    fn end_file(&mut self) -> inshore_store::Result<()> {
        match self.writer.take() {
            Some(writer) => self.builder.add(writer),
            None => Ok(()),
        }
    }
}
