//! The client's own cores, which pull shards as nodes do.
//!
//! ```text
//!   node A:  pulls 0 2 4 ...      one answer, or answers in order   ─┐
//!   node B:  pulls 1 3 5 ...                                        ─┼─► whoever takes answers
//!   here:    pulls 6, fetched from A beside its task, worked on here ─┘
//! ```
//!
//! One decision of what the job has observed (`help.rs`) says whether a thread pulls. Where answers are taken in the order of shards, each
//! thread is an attempt of its own ([`Lanes`]); where each node gives one answer, this machine gives one more ([`Help`]).
//!
//! A failure here is no error of the job: the shards go back to the queue, and this machine pulls no more.
//!
//! Papers: host and devices working together, 2019 thesis 4.2.

use std::{
    collections::BTreeMap,
    io::{self, Read},
    ops::Range,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use arrow_array::RecordBatch;
use inshore_store::{Budget, Context, Job, Store};
use serde_json::Value;
use tokio::sync::mpsc;

use super::{
    Error, Result,
    fetch::Fetch,
    gathered::{ANSWER_BYTES, Gathered, HereCost, NodeCost},
    help::{Decision, decide, unneeded},
    protocol::{READS_BESIDE, TaskDone},
    pump::Told,
    run::Run,
};
use crate::{
    Base, Failure, Opened, Portable, Reply, Source, Sources, TaskSource, answer_parts, task::failure_told,
};

/// Threads here: as many as a node lets read beside a task.
const LANES_MAX: u64 = READS_BESIDE as u64;
/// Memory of each of them, and the least with which one works.
const LANE_BYTES: Range<u64> = 12 << 20..512 << 20;
/// What a thread wants beside its kernel: a block, answers, and what it reads on its way.
const READING_BYTES: u64 = 6 << 20;
/// Less free memory is left to what merges and writes.
const FREE_BYTES_MIN: u64 = 64 << 20;
/// So much of a shard that is fetched may wait here: a 32nd of the memory that is free, where that is no less than this.
const AHEAD_BYTES: Range<u64> = 8 << 20..64 << 20;
/// Memory to read a shard with, beside the bytes on their way.
const BLOCK_BYTES: u64 = 1 << 20;
/// Batches of an answer that may wait, and what one takes at most.
const BATCHES: usize = 2;
const BATCH_BYTES: u64 = 512 << 10;
/// An idle thread looks so often whether there is something to pull.
const LOOK: Duration = Duration::from_millis(5);
/// Why no more is done here, where this program is at fault.
pub(super) const PANICKED: &str = "the work here panicked: this is a fault of this program";

/// How this machine helps with work of which each node gives one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HelpWith {
    /// Each thread reads a piece of its own; else one reads, and all work on what it gives them.
    pub by_threads: bool,
    /// The job has nothing else to do with its memory.
    pub takes_all_memory: bool,
}

/// The work of the threads here, and whether they go on.
#[derive(Debug)]
pub(super) struct Helps {
    after: Duration,
    state: Mutex<State>,
    has_given_up: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    threads: usize,
    cost: HereCost,
    /// Bytes that nodes read for this machine.
    read: BTreeMap<usize, u64>,
}

impl Helps {
    /// With help once the nodes have so much before them.
    pub fn new(after: Duration) -> Helps {
        let cost = HereCost { why: unneeded(after), ..HereCost::default() };
        let state = Mutex::new(State { cost, ..State::default() });
        Helps { after, state, has_given_up: AtomicBool::new(false) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Pulls no more, for this reason. A failure that follows from that is no other reason.
    pub fn give_up(&self, why: String) {
        let mut state = self.state();
        if !self.has_given_up.swap(true, Ordering::Relaxed) {
            state.cost.why = why;
        }
    }

    /// A shard for an attempt of this machine, if there is one now and it is worth it.
    fn try_pull(&self, run: &Arc<Run>, attempt: usize) -> Option<usize> {
        let observed = run.observed();
        let mut state = self.state();
        if self.has_given_up.load(Ordering::Relaxed) {
            return None;
        }
        state.cost.nodes_bytes_per_second = observed.alone.unwrap_or(0.0);
        state.cost.bytes_per_second = observed.client.map(|(rate, _)| rate);
        match decide(&observed, state.threads, self.after) {
            Decision::Pull => {
                drop(state);
                return run.pull(attempt);
            }
            Decision::Wait(why) => state.cost.why = why,
            Decision::Leave(why) => {
                state.cost.why = why.to_string();
                self.has_given_up.store(true, Ordering::Relaxed);
            }
        }
        None
    }

    /// A shard for an attempt of this machine, once there is one; none where none will come. Where nodes give one answer each, nothing comes behind
    /// the last shard of the queue.
    fn pull(&self, run: &Arc<Run>, attempt: usize, is_one_answer: bool) -> Option<usize> {
        loop {
            if self.has_given_up.load(Ordering::Relaxed) || run.is_over(attempt) {
                return None;
            }
            if let Some(shard) = self.try_pull(run, attempt) {
                return Some(shard);
            }
            if is_one_answer && run.observed().queued_bytes == 0 {
                return None;
            }
            thread::sleep(LOOK);
        }
    }

    /// A shard was done, in so many seconds where these tell how fast this machine is.
    fn did(&self, run: &Run, shard: usize, bytes: u64, seconds: f64) {
        run.client_did(shard, seconds);
        let mut state = self.state();
        state.cost.pieces += 1;
        state.cost.bytes += bytes;
        state.cost.bytes_per_second = run.observed().client.map(|(rate, _)| rate);
    }

    fn did_fetch(&self, fetch: &Fetch) {
        let (node, bytes) = fetch.cost();
        *self.state().read.entry(node).or_default() += bytes;
    }

    /// Adds what was done here, and what reading for it cost the nodes.
    pub fn tell_costs(&self, run: &Run, gathered: &mut Gathered) {
        let state = self.state();
        for (&node, &bytes_read) in &state.read {
            let node = run.nodes.0.nodes[node].address.clone();
            gathered.add(Gathered {
                nodes: vec![NodeCost { node, bytes_read, ..NodeCost::default() }],
                ..Gathered::default()
            });
        }
        gathered.here = Some(state.cost.clone());
    }
}

/// The threads here of a job whose answers are taken in the order of shards.
#[derive(Debug)]
pub(super) struct Lanes {
    run: Arc<Run>,
    helps: Helps,
}

/// A kernel for which there is memory here. A panic is a reason not to help.
fn tried<K>(job: &Context, arguments: &Value) -> std::result::Result<K, String>
where
    K: Portable,
    K::Error: std::error::Error,
{
    let told = |error: K::Error| error.to_string();
    let made = panic::catch_unwind(AssertUnwindSafe(|| {
        let kernel = K::for_client(arguments).map_err(told)?;
        let worker = kernel.worker(job).map_err(told)?;
        let bytes = READING_BYTES + kernel.cached_block_bytes() as u64;
        let reserved = job.budget().reserve(bytes, "what is read from a node");
        drop(worker);
        reserved.map(|_| kernel).map_err(|error| error.to_string())
    }));
    made.unwrap_or_else(|_| Err(PANICKED.to_string()))
}

impl Lanes {
    pub fn new(run: &Arc<Run>, after: Duration) -> Lanes {
        Lanes { run: run.clone(), helps: Helps::new(after) }
    }

    /// Memory for the threads here, as many as the budget has room for.
    pub fn budgets(&self, job: &Context) -> Vec<Budget> {
        let budget = job.budget();
        let threads = (budget.threads() as u64).min(LANES_MAX);
        let each = (budget.free_bytes() / 4 / threads).min(LANE_BYTES.end);
        let (lanes, each) = match each < LANE_BYTES.start {
            true => ((budget.free_bytes() / 4 / LANE_BYTES.start).min(threads), LANE_BYTES.start),
            false => (threads, each),
        };
        let lanes: Vec<Budget> = (0..lanes)
            .filter_map(|_| budget.part(each, 1, "a part of the work of nodes, done here").ok())
            .collect();
        self.helps.state().threads = lanes.len();
        if lanes.is_empty() {
            self.give_up("the memory here has no room for it".to_string());
        }
        lanes
    }

    pub fn give_up(&self, why: String) {
        self.helps.give_up(why);
    }

    pub fn tell_costs(&self, gathered: &mut Gathered) {
        self.helps.tell_costs(&self.run, gathered);
    }

    /// The work of one thread here, until the job is over.
    pub fn work<K>(&self, budget: Budget, arguments: &Value)
    where
        K: Portable,
        K::Error: std::error::Error + Sync + 'static,
    {
        let job = Context::new(budget, self.run.job.cancel().clone());
        let room = job.budget().memory_bytes() / 4;
        let Ok(_room) = job.budget().reserve(room, "answers that wait for their turn") else { return };
        let (out, answers) = mpsc::channel((room / BATCH_BYTES).max(2) as usize);
        let attempt = self.run.begin_client(answers, Arc::default());
        // Made when there is something to do, and tried before anything is pulled for it.
        let mut kernel: Option<K> = None;
        while let Some(shard) = self.helps.pull(&self.run, attempt, false) {
            let made = match kernel.take() {
                Some(kernel) => Ok(kernel),
                None => tried::<K>(&job, arguments),
            };
            let failed = match made {
                Ok(made) => self.do_shard(&job, kernel.insert(made), attempt, shard, &out).err(),
                Err(why) => Some(why),
            };
            if let Some(why) = failed {
                self.give_up(why.clone());
                let name = self.run.shards[shard].title.clone();
                let _ = out.blocking_send(Err(Error::Incomplete { name, what: why }));
                return;
            }
        }
    }

    fn do_shard<K>(
        &self,
        job: &Context,
        kernel: &K,
        attempt: usize,
        shard: usize,
        out: &mpsc::Sender<Result<Option<RecordBatch>>>,
    ) -> std::result::Result<(), String>
    where
        K: Portable,
        K::Error: std::error::Error + Sync + 'static,
    {
        let began = Instant::now();
        let placed = &self.run.shards[shard];
        let from = self.run.state().from[shard];
        let base =
            Base { offset: placed.piece.offset + from.bytes, lines: placed.piece.lines_before + from.lines };
        let range = base.offset..placed.piece.offset + placed.piece.bytes;
        let bytes = range.end - range.start;
        let fetched = Arc::<Mutex<Option<Fetch>>>::default();
        let (run, kept) = (self.run.clone(), fetched.clone());
        let open = move |_: &Context| {
            let fetch = Fetch::begin(&run, attempt, shard, &[range], 0);
            let fetch = fetch.map_err(|error| crate::Error::Stream(Box::new(error)))?;
            Ok(Opened::Stream(Box::new(Kept { fetch: Some(fetch), kept })))
        };
        let source = Source::new(&placed.title, open).behind(base);
        let source = TaskSource { number: shard as u64, whole: placed.whole, source, stored: None };
        let mut reply = Waiting { out, waited: Duration::ZERO, failed: None };
        let done = answer_parts(job, kernel, Sources::of(vec![source]), &mut reply);
        if let Some(mut fetch) = fetched.lock().expect("no panic under this lock").take() {
            fetch.end();
            self.helps.did_fetch(&fetch);
        }
        let seconds = began.elapsed().saturating_sub(reply.waited).as_secs_f64();
        match (reply.failed, done) {
            _ if self.run.is_over(attempt) => Ok(()),
            (Some(why), _) => Err(why),
            (None, Err(failure)) => Err(failure.to_string()),
            (None, Ok(())) => {
                self.helps.did(&self.run, shard, bytes, seconds);
                Ok(())
            }
        }
    }
}

/// Gives what it reads from back when it goes.
struct Kept {
    fetch: Option<Fetch>,
    kept: Arc<Mutex<Option<Fetch>>>,
}

impl Read for Kept {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.fetch.as_mut().expect("it is there until this goes").read(out)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        *self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = self.fetch.take();
    }
}

/// Where the answers of a shard wait for their turn.
struct Waiting<'a> {
    out: &'a mpsc::Sender<Result<Option<RecordBatch>>>,
    waited: Duration,
    /// Why the shard could not be read.
    failed: Option<String>,
}

impl Reply for Waiting<'_> {
    fn batch(&mut self, batch: RecordBatch) -> std::result::Result<(), Failure> {
        self.failed = self.failed.take().or_else(|| failure_told(&batch));
        if self.failed.is_some() {
            // The next puller of the shard answers all of it.
            return Err(inshore_store::Error::Cancelled.into());
        }
        let began = Instant::now();
        let sent = self.out.blocking_send(Ok(Some(batch)));
        self.waited += began.elapsed();
        sent.map_err(|_| inshore_store::Error::Cancelled.into())
    }
}

/// A part of a job on nodes that this machine does.
pub struct Help {
    budget: Budget,
    pieces: HelpPieces,
    out: mpsc::Sender<Result<Option<RecordBatch>>>,
    told: Arc<Mutex<Told>>,
}

/// Pulls pieces, one after the other. As many may be read at once as [`HelpWith`] says.
pub struct HelpPieces {
    run: Arc<Run>,
    helps: Arc<Helps>,
    attempt: usize,
    /// So much may wait of each that is read; the next one is fetched while one is worked on, where that is not nothing.
    ahead_bytes: u64,
    ahead: Option<Result<HelpPiece>>,
    /// Which bytes of a file are read, of those of a piece.
    only: Option<Box<Only>>,
}

/// Those bytes of a file, by its number, that are read of a part of it.
type Only = dyn Fn(u64, Range<u64>) -> Vec<Range<u64>> + Send;

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
    run: Arc<Run>,
    helps: Arc<Helps>,
    fetch: Fetch,
    /// When it was given to whoever works on it.
    began: Instant,
}

impl Read for HelpPiece {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.fetch.read(out).inspect_err(|error| self.helps.give_up(error.to_string()))
    }
}

impl Drop for HelpPiece {
    /// It was done: the time since it was given says how fast this machine is. Or it was left in its middle.
    fn drop(&mut self) {
        if !self.fetch.is_done() {
            return self.helps.give_up("a piece was left in its middle".to_string());
        }
        self.fetch.end();
        self.helps.did_fetch(&self.fetch);
        let bytes = self.ranges.iter().map(|range| range.end - range.start).sum();
        self.helps.did(&self.run, self.number as usize, bytes, self.began.elapsed().as_secs_f64());
    }
}

/// Ends the pieces when it goes.
pub struct HelpEnd(Arc<Helps>);

impl Drop for HelpEnd {
    fn drop(&mut self) {
        self.0.give_up("its part of the work is done".to_string());
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

    fn piece(&self, shard: usize) -> Result<HelpPiece> {
        let placed = &self.run.shards[shard];
        let offset = placed.piece.offset + placed.piece.from;
        let part = offset..placed.piece.offset + placed.piece.bytes;
        let bytes = part.end - part.start;
        let ranges = match &self.only {
            Some(only) => only(placed.whole, part),
            None => vec![part],
        };
        let fetch = Fetch::begin(&self.run, self.attempt, shard, &ranges, self.ahead_bytes)?;
        Ok(HelpPiece {
            number: shard as u64,
            whole: placed.whole,
            title: placed.title.clone(),
            offset,
            bytes,
            ranges,
            run: self.run.clone(),
            helps: self.helps.clone(),
            fetch,
            began: Instant::now(),
        })
    }

    /// Gives what ends the pieces for another thread that waits for the next one.
    pub fn end(&self) -> HelpEnd {
        HelpEnd(self.helps.clone())
    }
}

impl Iterator for HelpPieces {
    type Item = Result<HelpPiece>;

    /// Waits for the next piece.
    fn next(&mut self) -> Option<Result<HelpPiece>> {
        let mut next = match self.ahead.take() {
            Some(ahead) => ahead,
            None => self.piece(self.helps.pull(&self.run, self.attempt, true)?),
        };
        if self.ahead_bytes > 0 {
            let ahead = self.helps.try_pull(&self.run, self.attempt);
            self.ahead = ahead.map(|shard| self.piece(shard));
        }
        if let Ok(piece) = &mut next {
            piece.began = Instant::now();
        }
        Some(next)
    }
}

impl Help {
    /// With half of the memory that is free; none where that is too little.
    pub(in crate::nodes) fn new(
        run: &Arc<Run>,
        helps: &Arc<Helps>,
        job: &Context,
        with: HelpWith,
    ) -> Option<Help> {
        let (whole, free) = (job.budget(), job.budget().free_bytes());
        let HelpWith { by_threads, takes_all_memory } = with;
        let threads = if by_threads { whole.threads().min(LANES_MAX as usize) } else { whole.threads() };
        let at_once = if by_threads { threads } else { 1 };
        let reader_bytes = ANSWER_BYTES + BLOCK_BYTES;
        let ahead_bytes = match free / 32 {
            _ if by_threads => 0,
            little if little < AHEAD_BYTES.start => 0,
            much => much.min(AHEAD_BYTES.end),
        };
        let reading_bytes = match ahead_bytes {
            0 => at_once as u64 * reader_bytes,
            _ => 2 * (reader_bytes + ahead_bytes),
        };
        let bytes = (if takes_all_memory { free } else { free / 2 }).checked_sub(reading_bytes);
        let what = "a part of the work of nodes, done here";
        let part = |bytes: u64| whole.part(bytes, threads, what).ok();
        let budget = bytes.filter(|_| free >= FREE_BYTES_MIN).and_then(|bytes| part(bytes + reading_bytes));
        let Some(budget) = budget else {
            helps.give_up("the memory here has no room for it".to_string());
            return None;
        };
        helps.state().threads = at_once;
        let (out, answers) = mpsc::channel(BATCHES);
        let told: Arc<Mutex<Told>> = Arc::default();
        let attempt = run.begin_client(answers, told.clone());
        let (run, helps) = (run.clone(), helps.clone());
        let pieces = HelpPieces { run, helps, attempt, ahead_bytes, ahead: None, only: None };
        Some(Help { budget, pieces, out, told })
    }

    /// Does it: `work` takes pieces, and when there are no more answers with all that comes of them, as a node would. It gets a job of its
    /// own on `store`, for what has to be kept on flash, in a part of the memory; the counters of `context` count it in the end. Where it
    /// fails, nodes do what it took; nodes do all of it where there is no store.
    pub fn work(
        self,
        context: &Context,
        store: Option<&Store>,
        work: impl FnOnce(&Job, HelpPieces, &mut dyn Reply) -> std::result::Result<Value, Failure>,
    ) {
        let Help { budget, pieces, out, told } = self;
        let began = Instant::now();
        let (run, helps, attempt) = (pieces.run.clone(), pieces.helps.clone(), pieces.attempt);
        let reading = ANSWER_BYTES + BLOCK_BYTES + 2 * pieces.ahead_bytes;
        let mut answers = HelpAnswers { out };
        let done = panic::catch_unwind(AssertUnwindSafe(|| {
            let store = store.ok_or("there is no store here for what would have to be kept on flash")?;
            let own = store.job(budget, run.job.cancel().clone())?;
            let _reading = own.budget().reserve(reading, "what is read from nodes")?;
            let done = work(&own, pieces, &mut answers);
            context.counters().add(own.counters());
            done
        }));
        let done = done.unwrap_or_else(|_| Err(PANICKED.into()));
        let end = match done {
            Ok(summary) => {
                let shards = run.state().scheduler.out(attempt).map(|shard| shard as u64).collect();
                let seconds = began.elapsed().as_secs_f64();
                let done = TaskDone { summary, seconds, shards, ..TaskDone::default() };
                told.lock().expect("no panic under this lock").done = Some(done);
                Ok(None)
            }
            Err(failure) => {
                helps.give_up(failure.to_string());
                Err(Error::Lost { node: "here".to_string(), what: failure.to_string() })
            }
        };
        // Nobody may listen any more.
        let _ = answers.out.blocking_send(end);
    }
}

/// Where this machine's answer goes.
struct HelpAnswers {
    out: mpsc::Sender<Result<Option<RecordBatch>>>,
}

impl Reply for HelpAnswers {
    fn batch(&mut self, batch: RecordBatch) -> std::result::Result<(), Failure> {
        let sent = self.out.blocking_send(Ok(Some(batch)));
        sent.map_err(|_| inshore_store::Error::Cancelled.into())
    }
}
