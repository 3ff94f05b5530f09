//! A piece on its way through this machine: its bytes come in, its answers wait for their turn.

use std::{
    io::{self, Read},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use arrow_array::RecordBatch;
use inshore_store::Context;
use serde_json::json;
use tokio::sync::mpsc;

use super::{
    super::{
        Result, Whole,
        gather::{Gather, Taken},
        protocol::TakeBack,
        pump::{Told, Turn},
    },
    Here,
};
use crate::{Contents, Failure, Portable, Reply, task::failure_told};

/// Batches of the piece whose turn it is that may wait where the memory for others is used up.
const BATCHES: usize = 4;
/// It is looked again so often whether there is memory.
const NAP: Duration = Duration::from_millis(5);

/// A batch of answers that waits for its turn, and counts as memory until it is taken.
#[derive(Debug)]
pub(in crate::nodes) struct Held {
    batch: RecordBatch,
    bytes: u64,
    waiting: Arc<AtomicU64>,
}

impl Held {
    /// One whose memory is counted elsewhere.
    pub fn uncounted(batch: RecordBatch) -> Held {
        Held { batch, bytes: 0, waiting: Arc::default() }
    }

    pub fn into_batch(self) -> RecordBatch {
        self.batch.clone()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.waiting.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Where the answers of a piece wait for their turn.
pub(super) struct Waiting<'a> {
    pub here: &'a Here,
    pub piece: usize,
    pub out: mpsc::Sender<Result<Option<Held>>>,
    pub waited: Duration,
    /// Why the piece could not be read.
    pub failed: Option<String>,
}

impl Reply for Waiting<'_> {
    fn batch(&mut self, batch: RecordBatch) -> std::result::Result<(), Failure> {
        self.failed = self.failed.take().or_else(|| failure_told(&batch));
        let Here { waiting, room, wanted, stop, .. } = self.here;
        let bytes = batch.get_array_memory_size() as u64;
        let began = Instant::now();
        loop {
            let has_room = waiting.load(Ordering::Relaxed) + bytes <= room.load(Ordering::Relaxed);
            // Whose turn it is must get on, whatever else waits.
            let is_wanted = wanted.load(Ordering::Relaxed) == self.piece
                && self.out.max_capacity() - self.out.capacity() < BATCHES;
            if self.out.is_closed() || stop.is_cancelled() {
                return Err(inshore_store::Error::Cancelled.into());
            }
            if has_room || is_wanted {
                break;
            }
            thread::sleep(NAP);
        }
        waiting.fetch_add(bytes, Ordering::Relaxed);
        let held = Held { batch, bytes, waiting: waiting.clone() };
        let sent = self.out.blocking_send(Ok(Some(held)));
        self.waited += began.elapsed();
        sent.map_err(|_| inshore_store::Error::Cancelled.into())
    }
}

/// The bytes of a piece, as they come.
pub(super) struct PieceReader {
    here: Arc<Here>,
    /// None once it has told what it cost.
    gather: Option<Gather>,
    told: Arc<Mutex<Told>>,
    /// Which of its parts is read, of how many.
    part: usize,
    parts: usize,
    bytes: Vec<u8>,
    place: usize,
    left: u64,
}

impl PieceReader {
    /// Begins to read, of which `ahead_bytes` may wait here where there is memory.
    pub fn begin(
        here: Arc<Here>,
        job: &Context,
        whole: &Whole,
        beside: (usize, TakeBack),
        told: Arc<Mutex<Told>>,
        ahead_bytes: u64,
    ) -> Result<PieceReader> {
        let wholes = std::slice::from_ref(whole);
        let mut gather = Gather::new(&here.nodes, job, wholes, Contents::KIND, json!({}), &here.options)?;
        gather.beside = Some(beside);
        gather.turn = Turn::First(here.gate().clone());
        gather.let_wait(ahead_bytes);
        gather.begin_all()?;
        let left = whole.pieces.iter().map(|piece| piece.bytes - piece.from).sum();
        let parts = whole.pieces.len();
        let bytes = Vec::new();
        Ok(PieceReader { here, gather: Some(gather), told, part: 0, parts, bytes, place: 0, left })
    }

    /// Whether all of it was read.
    pub fn is_done(&self) -> bool {
        self.left == 0 && self.place == self.bytes.len()
    }

    /// The next bytes; none at the end.
    fn next(&mut self) -> Result<Vec<u8>> {
        let gather = self.gather.as_mut().expect("it has not ended");
        while self.part < self.parts {
            match gather.next_row(self.part)? {
                Some(Taken::Part(reach, bytes)) => {
                    gather.accept(self.part, reach);
                    return Ok(bytes);
                }
                Some(Taken::Failed(error)) => return Err(error),
                None => self.part += 1,
            }
        }
        Ok(Vec::new())
    }
}

impl Drop for PieceReader {
    /// Tells what reading cost.
    fn drop(&mut self) {
        let Some(mut gather) = self.gather.take() else { return };
        if self.left == 0 {
            // The end of the task, which says so.
            let ends = (self.part..self.parts).try_for_each(|part| gather.next_row(part).map(drop));
            let _ = ends.and_then(|()| gather.wait_for_ends());
        }
        self.here.state().read.add(gather.finish());
    }
}

impl Read for PieceReader {
    /// Fills `out` as far as there are bytes: what is worked on are whole blocks.
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < out.len() {
            if self.place == self.bytes.len() {
                if self.left == 0 {
                    break;
                }
                (self.bytes, self.place) = (self.next().map_err(io::Error::other)?, 0);
                if self.bytes.is_empty() || self.bytes.len() as u64 > self.left {
                    let what = format!("{} bytes came where {} were left", self.bytes.len(), self.left);
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, what));
                }
                self.left -= self.bytes.len() as u64;
                self.here.read.fetch_add(self.bytes.len() as u64, Ordering::Relaxed);
                let progress = Some((self.left, Instant::now()));
                self.told.lock().expect("no panic under this lock").alive = progress;
            }
            let len = (out.len() - filled).min(self.bytes.len() - self.place);
            out[filled..filled + len].copy_from_slice(&self.bytes[self.place..self.place + len]);
            (filled, self.place) = (filled + len, self.place + len);
        }
        Ok(filled)
    }
}
