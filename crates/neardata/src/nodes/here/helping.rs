//! One answer of this machine beside those of nodes, where each gives one of all its pieces in the order of a key.
//!
//! ```text
//!   node A:  0 2 . . │ "take-back"      one answer, in order  ─┐
//!   node B:  1 3 . . │     │            one answer, in order  ─┼─► Merged
//!   here:            └──► 6 7 5 4 ────► one answer, in order  ─┘
//! ```
//!
//! Pieces come one after the other while nodes have some that they have not begun ([`HelpPieces`]); then the answer is given
//! ([`HelpAnswers`]). Where this machine is so fast that it would be done with several of them before a node is with its own, it takes these
//! at once: the node would begin them while this machine is busy with the first. The next one is on its way while one is worked on, so that the
//! wire has something to do while this machine sorts what it has. Where anything fails, nodes are asked for what was taken, as if this machine
//! were a node that was lost.

use std::{
    collections::VecDeque,
    io::{self, Read},
    ops::Range,
    panic::{self, AssertUnwindSafe},
    sync::{Arc, Mutex, atomic::Ordering},
    time::{Duration, Instant},
};

use arrow_array::RecordBatch;
use inshore_store::{Budget, Context, Job, Store};
use serde_json::Value;
use tokio::sync::mpsc;

use super::{
    super::{Error, Piece as HeldPiece, Result, Whole, gather::ANSWER_BYTES, protocol::TaskDone, pump::Told},
    Choice, Chosen, Held, HelpKind, HelpWith, Here, HerePiece, LANES_MAX, PANICKED, PieceReader,
};
use crate::{Failure, Reply};

/// Batches of the answer that may wait.
const BATCHES: usize = 2;
/// Less free memory is left to what merges and writes.
const FREE_BYTES_MIN: u64 = 64 << 20;
/// So long without a piece counts for none.
const IDLE: Duration = Duration::from_millis(20);
/// Of a piece that is worked on, and of the next one, so much may wait here: a 32nd of the memory that is free, where that is no less than this.
const AHEAD_BYTES: Range<u64> = 8 << 20..64 << 20;
/// What a piece is read with, beside what is on its way from each node that has it.
const BLOCK_BYTES: u64 = 1 << 20;

/// A part of a job on nodes that this machine does.
pub struct Help {
    budget: Budget,
    pieces: HelpPieces,
    answers: HelpAnswers,
}

/// Takes pieces of nodes, one after the other. As many may be read at once as [`HelpWith`](super::HelpWith) says.
pub struct HelpPieces {
    here: Arc<Here>,
    reading: Context,
    /// Taken, and not worked on.
    ahead: VecDeque<Ahead>,
    /// Of each that is read so much may wait; of one more than are worked on, where that is not nothing.
    ahead_bytes: u64,
    /// Which bytes of a file are read, of those of a piece.
    only: Option<Box<Only>>,
    /// When the last piece was done: what is worked on between that and the next piece, of which some is here by then, counts for the next.
    ended: Arc<Mutex<Option<Instant>>>,
}

/// Those bytes of a file, by its number, that are read of a part of it.
type Only = dyn Fn(u64, Range<u64>) -> Vec<Range<u64>> + Send;

/// A piece that was taken, and is read once nothing before it is.
struct Ahead {
    number: usize,
    chosen: Chosen,
    reader: Option<(Vec<Range<u64>>, Result<PieceReader>)>,
}

/// A piece that this machine does; reading it gives its bytes, or [those that are wanted](HelpPieces::only), as they come from a node that
/// has it.
pub struct HelpPiece {
    /// Its number, as a task on a node would have it.
    pub number: u64,
    /// The number of its file.
    pub whole: u64,
    /// The file.
    pub title: String,
    /// Where in the file it begins.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
    /// Which bytes of the file come, one behind the other.
    pub ranges: Vec<Range<u64>>,
    here: Arc<Here>,
    reader: PieceReader,
    /// When this machine had nothing before it to do.
    began: Instant,
    ended: Arc<Mutex<Option<Instant>>>,
}

impl Read for HelpPiece {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.reader.read(out).inspect_err(|error| self.here.give_up(error.to_string()))
    }
}

impl HelpPiece {
    /// Whose speed it tells of.
    fn lane(&self) -> usize {
        self.number as usize % self.here.state().speeds.len()
    }
}

impl Drop for HelpPiece {
    /// It was done: the time since it was taken, or since the one before was done, says how fast this machine is. Or it was left in its middle.
    fn drop(&mut self) {
        *self.ended.lock().expect("no panic under this lock") = Some(Instant::now());
        match self.reader.is_done() {
            true => {
                // Of a piece of which nothing is wanted nothing is learned.
                let seconds = (!self.ranges.is_empty()).then(|| self.began.elapsed().as_secs_f64());
                self.here.did(self.lane(), self.number as usize, seconds);
            }
            false => self.here.state().is_closed = true,
        }
    }
}

/// Where this machine's answer goes.
struct HelpAnswers {
    here: Arc<Here>,
    out: mpsc::Sender<Result<Option<Held>>>,
    told: Arc<Mutex<Told>>,
    began: Instant,
}

/// Ends the pieces when it goes.
pub struct HelpEnd(Arc<Here>);

impl Drop for HelpEnd {
    fn drop(&mut self) {
        self.0.state().is_closed = true;
    }
}

impl HelpPieces {
    /// Reads only those bytes of each piece that `ranges` gives of a part of a file, which it is told by its number: parts of that part, in order. All,
    /// where nothing is said.
    #[must_use]
    pub fn only(
        mut self,
        ranges: impl Fn(u64, Range<u64>) -> Vec<Range<u64>> + Send + 'static,
    ) -> HelpPieces {
        self.only = Some(Box::new(ranges));
        self
    }

    fn reader(&self, piece: &Ahead) -> (Vec<Range<u64>>, Result<PieceReader>) {
        let here = &self.here;
        let HerePiece { whole, piece: HeldPiece { offset, from, bytes, .. }, .. } =
            &here.pieces[piece.number];
        let part = offset + from..offset + bytes;
        let ranges = match &self.only {
            Some(only) => only(*whole, part),
            None => vec![part],
        };
        let all = here.read_of(piece.number, |_| true);
        let pieces = ranges.iter().flat_map(|range| all.slice(range.clone()).pieces).collect();
        let read = Whole { pieces, ..all };
        let (reading, beside) = (&self.reading, (piece.chosen.node, piece.chosen.task));
        let reader =
            PieceReader::begin(here.clone(), reading, &read, beside, Arc::default(), self.ahead_bytes);
        (ranges, reader)
    }

    /// What ends the pieces for whoever waits for the next one in another thread.
    pub fn end(&self) -> HelpEnd {
        HelpEnd(self.here.clone())
    }
}

type Begun = (Help, mpsc::Receiver<Result<Option<Held>>>, Arc<Mutex<Told>>);

impl Help {
    /// With half of the memory that is free; none where that is too little.
    pub(in crate::nodes) fn new(here: &Arc<Here>, job: &Context) -> Option<Begun> {
        let (whole, free) = (job.budget(), job.budget().free_bytes());
        let nodes = here.pieces.iter().map(|wanted| wanted.piece.holders.len()).max().unwrap_or(0);
        let HelpKind::OneAnswer(with) = here.kind else { return None };
        let HelpWith { by_threads, takes_all_memory, .. } = with;
        let threads = if by_threads { whole.threads().min(LANES_MAX as usize) } else { whole.threads() };
        let at_once = if by_threads { threads } else { 1 };
        let reader_bytes = nodes as u64 * ANSWER_BYTES + BLOCK_BYTES;
        let ahead_bytes = match free / 32 {
            _ if by_threads => 0,
            little if little < AHEAD_BYTES.start => 0,
            much => much.min(AHEAD_BYTES.end),
        };
        let reading_bytes = match ahead_bytes {
            0 => at_once as u64 * reader_bytes,
            _ => 2 * (reader_bytes + nodes as u64 * ahead_bytes),
        };
        let parts = match (if takes_all_memory { free } else { free / 2 })
            .checked_sub(reading_bytes)
            .filter(|_| free >= FREE_BYTES_MIN)
        {
            None => None,
            Some(bytes) => {
                let what = "a part of the work of nodes, done here";
                whole.part(reading_bytes, 1, what).ok().zip(whole.part(bytes, threads, what).ok())
            }
        };
        let Some((reading, budget)) = parts else {
            here.give_up("the memory here has no room for it".to_string());
            return None;
        };
        here.state().speeds = vec![None; at_once];
        here.room.store(u64::MAX, Ordering::Relaxed);
        let (out, answers) = mpsc::channel(BATCHES);
        let told: Arc<Mutex<Told>> = Arc::default();
        let reading = Context::new(reading, here.stop.clone());
        let help = Help {
            budget,
            pieces: HelpPieces {
                here: here.clone(),
                reading,
                ahead: VecDeque::new(),
                ahead_bytes,
                only: None,
                ended: Arc::default(),
            },
            answers: HelpAnswers { here: here.clone(), out, told: told.clone(), began: Instant::now() },
        };
        Some((help, answers, told))
    }

    /// Does it: `work` takes pieces, and when there are no more answers with all that comes of them, as a node would. It gets a job of its
    /// own on `store`, for what has to be kept on flash, in a part of the memory; the counters of `context` count it in the end. Where it
    /// fails, nodes do what it took; so they do where there is no store.
    pub fn work(
        self,
        context: &Context,
        store: Option<&Store>,
        work: impl FnOnce(&Job, HelpPieces, &mut dyn Reply) -> std::result::Result<Value, Failure>,
    ) {
        let Help { budget, pieces, mut answers } = self;
        let done = panic::catch_unwind(AssertUnwindSafe(|| {
            let store = store.ok_or("there is no store here for what would have to be kept on flash")?;
            let own = store.job(budget, pieces.here.stop.clone())?;
            let done = work(&own, pieces, &mut answers);
            context.counters().add(own.counters());
            done
        }));
        let panicked = || Err(PANICKED.into());
        answers.finish(done.unwrap_or_else(|_| panicked()));
    }
}

impl Iterator for HelpPieces {
    type Item = Result<HelpPiece>;

    /// Waits for the next piece that a node gives back.
    fn next(&mut self) -> Option<Result<HelpPiece>> {
        let here = &self.here;
        let taken = |chosen: Chosen| {
            let number = here.take(&chosen, None)?;
            Some(Ahead { number, chosen, reader: None })
        };
        let mut ended = self.ended.lock().expect("no panic under this lock").filter(|_| self.ahead_bytes > 0);
        if self.ahead.is_empty() {
            let asked = Instant::now();
            let first = loop {
                if let Some(first) = taken(here.choose(0)?) {
                    break first;
                }
            };
            self.ahead.push_back(first);
            // While there was nothing to take, nothing was done.
            ended = ended.filter(|_| asked.elapsed() < IDLE);
        }
        while let Choice::Piece(chosen) = here.chosen(0, self.ahead.len()) {
            match taken(chosen) {
                Some(more) => self.ahead.push_back(more),
                None => break,
            }
        }
        let begun = if self.ahead_bytes > 0 { 2 } else { 1 };
        for place in 0..begun.min(self.ahead.len()) {
            if self.ahead[place].reader.is_none() {
                self.ahead[place].reader = Some(self.reader(&self.ahead[place]));
            }
        }
        let Ahead { number, reader, .. } = self.ahead.pop_front().expect("there is one");
        let (ranges, reader) = reader.expect("it was begun");
        let began = ended.unwrap_or_else(Instant::now);
        let HerePiece { title, whole, piece, .. } = &here.pieces[number];
        Some(reader.map(|reader| HelpPiece {
            number: number as u64,
            whole: *whole,
            title: title.clone(),
            offset: piece.offset + piece.from,
            bytes: piece.bytes - piece.from,
            ranges,
            here: here.clone(),
            reader,
            began,
            ended: self.ended.clone(),
        }))
    }
}

impl Reply for HelpAnswers {
    fn batch(&mut self, batch: RecordBatch) -> std::result::Result<(), Failure> {
        let held = Held::uncounted(batch);
        let sent = self.out.blocking_send(Ok(Some(held)));
        sent.map_err(|_| inshore_store::Error::Cancelled.into())
    }
}

impl HelpAnswers {
    /// Ends the answer: with what the work says of it, or with why there is none. Nodes are asked for what was taken then.
    fn finish(self, done: std::result::Result<Value, Failure>) {
        let end = match done {
            Ok(summary) => {
                let seconds = self.began.elapsed().as_secs_f64();
                let done = TaskDone {
                    summary,
                    bytes_read: 0,
                    bytes_written: 0,
                    seconds,
                    queued_seconds: 0.0,
                    cpu_seconds: 0.0,
                };
                self.told.lock().expect("no panic under this lock").done = Some(done);
                Ok(None)
            }
            Err(failure) => {
                self.here.give_up(failure.to_string());
                Err(Error::Lost { node: "here".to_string(), what: failure.to_string() })
            }
        };
        // Nobody may listen any more.
        let _ = self.out.blocking_send(end);
    }
}
