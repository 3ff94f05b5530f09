//! Runs a part of a job on the client's own cores, which pull shards as nodes do.
//!
//! ```text
//!   node A:   pulls 0 2 4 ...     one answer, or answers in order   ─┐
//!   node B:   pulls 1 3 5 ...                                       ─┼─► consumer of the answers
//!   client:   pulls 6, reads 6 from A, and processes 6              ─┘
//! ```
//!
//! One decision, made from the measurements of the job (`help.rs`), determines whether a thread pulls. If answers are
//! taken in the order of shards, each thread is a separate attempt ([`LocalThreads`]). If each node gives one answer,
//! this machine gives one more answer ([`Help`]).
//!
//! A failure on this machine does not fail the job: the shards of this machine return to the queue, and this machine
//! stops pulling.
//!
//! Section 4.2 of the 2019 thesis (see docs/from-the-papers.md) describes how the host and the devices work together.

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
use inshore_kernel::{
    Failure, OpenedSource, Portable, Reply, Source, SourceOffset, Sources, TaskSource, answer_parts,
    failure_told,
};
use inshore_store::{Budget, Context, Job, Store};
use serde_json::Value;
use tokio::sync::mpsc;

use super::{
    fetch::Fetch,
    gather_report::{ANSWER_BYTES, GatherReport, HereCost, NodeCost},
    help::{Decision, decide, unneeded},
    run::Run,
};
use crate::{
    Error, Result,
    client::pump::AttemptReport,
    protocol::{READS_BESIDE, TaskDone},
};

/// The maximum number of threads on this machine: the number of reads that a node permits in addition to a task.
const LANES_MAX: u64 = READS_BESIDE as u64;
/// The minimum and maximum memory of a thread, in bytes.
const LANE_BYTES: Range<u64> = 12 << 20..512 << 20;
/// The memory of a thread in addition to its kernel, in bytes: a block, answers, and data that is being received.
const READING_BYTES: u64 = 6 << 20;
/// The minimum free memory with which this machine helps. Smaller amounts are reserved for merging and
/// writing.
const FREE_BYTES_MIN: u64 = 64 << 20;
/// The bounds of the read-ahead for a fetched shard. The read-ahead is a 32nd of the free memory. If that is less
/// than the lower bound, nothing is read ahead.
const AHEAD_BYTES: Range<u64> = 8 << 20..64 << 20;
/// The memory for reading a shard, in bytes, in addition to the data that is being received.
const BLOCK_BYTES: u64 = 1 << 20;
/// The number of batches of an answer that may wait in the queue.
const BATCHES: usize = 2;
/// The maximum size of a batch of an answer, in bytes.
const BATCH_BYTES: u64 = 512 << 10;
/// The interval at which an idle thread tries to pull.
const LOOK: Duration = Duration::from_millis(5);
/// The reason why this machine stopped after a panic.
pub(crate) const PANICKED: &str = "the task panicked on this machine: this is a bug in Inshore";

/// Options for the help of this machine in a job in which each node gives one answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HelpOptions {
    /// True if each thread reads a separate piece; false if one thread reads, and all threads process the
    /// data.
    pub by_threads: bool,
    /// True if the help may use all free memory of the job; false if the help may use half of this memory.
    pub takes_all_memory: bool,
}

/// The state of the help of this machine.
#[derive(Debug)]
pub(crate) struct HelpState {
    after: Duration,
    state: Mutex<State>,
    has_given_up: AtomicBool,
}

#[derive(Debug, Default)]
struct State {
    threads: usize,
    cost: HereCost,
    /// The bytes that each node read from its devices for this machine.
    read: BTreeMap<usize, u64>,
}

impl HelpState {
    /// Creates a state in which help starts when the remaining time of the nodes exceeds `after`.
    pub fn new(after: Duration) -> HelpState {
        let cost = HereCost { why: unneeded(after), ..HereCost::default() };
        let state = Mutex::new(State { cost, ..State::default() });
        HelpState { after, state, has_given_up: AtomicBool::new(false) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Stops pulling and records the reason. Failures that follow from the stop do not replace the reason.
    pub fn give_up(&self, why: String) {
        let mut state = self.state();
        if !self.has_given_up.swap(true, Ordering::Relaxed) {
            state.cost.why = why;
        }
    }

    /// Pulls a shard for an attempt of this machine, if a shard is available and [`decide`] returns
    /// [`Decision::Pull`].
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

    /// Waits for a shard for an attempt of this machine. Returns `None` if this machine gets no more shards. If each
    /// node gives one answer, an empty queue means that this machine gets no more shards.
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

    /// Records a finished shard. The speed of this machine is computed from `seconds`, the time for the
    /// shard.
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

    /// Adds to the report the cost of the help of this machine, and the bytes that nodes read for this machine.
    pub fn tell_costs(&self, run: &Run, gathered: &mut GatherReport) {
        let state = self.state();
        for (&node, &bytes_read) in &state.read {
            let node = run.nodes.0.nodes[node].address.clone();
            gathered.add(GatherReport {
                nodes: vec![NodeCost { node, bytes_read, ..NodeCost::default() }],
                ..GatherReport::default()
            });
        }
        gathered.here = Some(state.cost.clone());
    }
}

/// The threads on this machine for a job whose answers are taken in the order of shards.
#[derive(Debug)]
pub(crate) struct LocalThreads {
    run: Arc<Run>,
    helps: HelpState,
}

/// Creates a kernel and checks that there is memory to run the kernel. A panic also counts as a failure.
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
        let reserved = job.budget().reserve(bytes, "read buffers of a node");
        drop(worker);
        reserved.map(|_| kernel).map_err(|error| error.to_string())
    }));
    made.unwrap_or_else(|_| Err(PANICKED.to_string()))
}

impl LocalThreads {
    pub fn new(run: &Arc<Run>, after: Duration) -> LocalThreads {
        LocalThreads { run: run.clone(), helps: HelpState::new(after) }
    }

    /// Divides a quarter of the free memory among the threads on this machine. The free memory also limits the number
    /// of threads.
    pub fn budgets(&self, job: &Context) -> Vec<Budget> {
        let budget = job.budget();
        let threads = (budget.threads() as u64).min(LANES_MAX);
        let each = (budget.free_bytes() / 4 / threads).min(LANE_BYTES.end);
        let (lanes, each) = match each < LANE_BYTES.start {
            true => ((budget.free_bytes() / 4 / LANE_BYTES.start).min(threads), LANE_BYTES.start),
            false => (threads, each),
        };
        let lanes: Vec<Budget> = (0..lanes)
            .filter_map(|_| budget.part(each, 1, "a thread that processes shards of nodes").ok())
            .collect();
        self.helps.state().threads = lanes.len();
        if lanes.is_empty() {
            self.give_up("the memory budget here is too small for a shard".to_string());
        }
        lanes
    }

    pub fn give_up(&self, why: String) {
        self.helps.give_up(why);
    }

    pub fn tell_costs(&self, gathered: &mut GatherReport) {
        self.helps.tell_costs(&self.run, gathered);
    }

    /// Runs one local worker thread until the job is over.
    pub fn work<K>(&self, budget: Budget, arguments: &Value)
    where
        K: Portable,
        K::Error: std::error::Error + Sync + 'static,
    {
        let job = Context::new(budget, self.run.job.cancel().clone());
        let room = job.budget().memory_bytes() / 4;
        let Ok(_room) = job.budget().reserve(room, "buffered answers") else { return };
        let (out, answers) = mpsc::channel((room / BATCH_BYTES).max(2) as usize);
        let attempt = self.run.begin_client(answers, Arc::default());
        // The kernel is created on the first shard and tested before the shard is read.
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
        let base = SourceOffset {
            offset: placed.piece.offset + from.bytes,
            lines: placed.piece.lines_before + from.lines,
        };
        let range = base.offset..placed.piece.offset + placed.piece.bytes;
        let bytes = range.end - range.start;
        let fetched = Arc::<Mutex<Option<Fetch>>>::default();
        let (run, kept) = (self.run.clone(), fetched.clone());
        let open = move |_: &Context| {
            let fetch = Fetch::begin(&run, attempt, shard, &[range], 0);
            let fetch = fetch.map_err(|error| inshore_kernel::Error::Stream(Box::new(error)))?;
            Ok(OpenedSource::Stream(Box::new(PooledReader { fetch: Some(fetch), kept })))
        };
        let source = Source::new(&placed.title, open).behind(base);
        let source = TaskSource { number: shard as u64, whole: placed.whole, source, stored: None };
        let mut reply = QueuedReply { out, waited: Duration::ZERO, failed: None };
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

/// A reader that stores its fetch in `kept` on drop, so that the cost of the fetch can be recorded.
struct PooledReader {
    fetch: Option<Fetch>,
    kept: Arc<Mutex<Option<Fetch>>>,
}

impl Read for PooledReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.fetch.as_mut().expect("it is there until this goes").read(out)
    }
}

impl Drop for PooledReader {
    fn drop(&mut self) {
        *self.kept.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = self.fetch.take();
    }
}

/// Puts the answers of a shard into a queue, from which the consumer takes them in the order of shards.
struct QueuedReply<'a> {
    out: &'a mpsc::Sender<Result<Option<RecordBatch>>>,
    waited: Duration,
    /// The reason why the shard could not be read.
    failed: Option<String>,
}

impl Reply for QueuedReply<'_> {
    fn batch(&mut self, batch: RecordBatch) -> std::result::Result<(), Failure> {
        self.failed = self.failed.take().or_else(|| failure_told(&batch));
        if self.failed.is_some() {
            // Another puller will answer the complete shard.
            return Err(inshore_store::Error::Cancelled.into());
        }
        let began = Instant::now();
        let sent = self.out.blocking_send(Ok(Some(batch)));
        self.waited += began.elapsed();
        sent.map_err(|_| inshore_store::Error::Cancelled.into())
    }
}

/// The part of a job on nodes that this machine processes.
pub struct Help {
    budget: Budget,
    pieces: HelpPieces,
    out: mpsc::Sender<Result<Option<RecordBatch>>>,
    told: Arc<Mutex<AttemptReport>>,
}

/// An iterator that pulls pieces. [`HelpOptions`] determines how many pieces may be read in parallel.
pub struct HelpPieces {
    run: Arc<Run>,
    helps: Arc<HelpState>,
    attempt: usize,
    /// The bytes of read-ahead for each piece. If the number is above 0, the next piece is fetched while the current
    /// piece is processed.
    ahead_bytes: u64,
    ahead: Option<Result<HelpPiece>>,
    /// The function that selects the byte ranges to read of a piece; `None` reads complete pieces.
    only: Option<Box<RangeFilter>>,
}

/// A function from the number of a file and a part of that file to the ranges to read.
type RangeFilter = dyn Fn(u64, Range<u64>) -> Vec<Range<u64>> + Send;

/// A piece that this machine processes. Reading the piece returns its bytes, or [the selected
/// ranges](HelpPieces::only), as they arrive from a node with a copy.
pub struct HelpPiece {
    /// The number of the piece, as in a task on a node.
    pub number: u64,
    /// The number of the file.
    pub whole: u64,
    /// The name of the file.
    pub title: String,
    /// The offset of the piece in the file.
    pub offset: u64,
    /// The length of the piece in bytes.
    pub bytes: u64,
    /// The byte ranges of the file that are read, one after the other.
    pub ranges: Vec<Range<u64>>,
    run: Arc<Run>,
    helps: Arc<HelpState>,
    fetch: Fetch,
    /// The time at which this machine began to process the piece.
    began: Instant,
}

impl Read for HelpPiece {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.fetch.read(out).inspect_err(|error| self.helps.give_up(error.to_string()))
    }
}

impl Drop for HelpPiece {
    /// Records that a piece was processed. The speed of this machine is computed from the elapsed time. If the piece
    /// was not read completely, this machine stops helping.
    fn drop(&mut self) {
        if !self.fetch.is_done() {
            return self.helps.give_up("a shard was not read to its end".to_string());
        }
        self.fetch.end();
        self.helps.did_fetch(&self.fetch);
        let bytes = self.ranges.iter().map(|range| range.end - range.start).sum();
        self.helps.did(&self.run, self.number as usize, bytes, self.began.elapsed().as_secs_f64());
    }
}

/// A guard. When the guard is dropped, this machine pulls no more pieces.
pub struct HelpEnd(Arc<HelpState>);

impl Drop for HelpEnd {
    fn drop(&mut self) {
        self.0.give_up("its share of the work is done".to_string());
    }
}

impl HelpPieces {
    /// Restricts reading to the byte ranges that `ranges` returns for the number of a file and a part of the
    /// file. The ranges have to lie in that part, in order. Without a restriction the complete piece is read.
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

    /// Returns a guard. When the guard is dropped, the iterator ends, also for a thread that waits for the
    /// next piece.
    pub fn end(&self) -> HelpEnd {
        HelpEnd(self.helps.clone())
    }
}

impl Iterator for HelpPieces {
    type Item = Result<HelpPiece>;

    /// Waits for the next piece that this machine may process.
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
    /// Creates the local worker of a job with half of the free memory (all of it with `takes_all_memory`). Returns
    /// `None` if the memory is too small.
    pub(crate) fn new(
        run: &Arc<Run>,
        helps: &Arc<HelpState>,
        job: &Context,
        with: HelpOptions,
    ) -> Option<Help> {
        let (whole, free) = (job.budget(), job.budget().free_bytes());
        let HelpOptions { by_threads, takes_all_memory } = with;
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
        let what = "a thread that processes shards of nodes";
        let part = |bytes: u64| whole.part(bytes, threads, what).ok();
        let budget = bytes.filter(|_| free >= FREE_BYTES_MIN).and_then(|bytes| part(bytes + reading_bytes));
        let Some(budget) = budget else {
            helps.give_up("the memory budget here is too small for a shard".to_string());
            return None;
        };
        helps.state().threads = at_once;
        let (out, answers) = mpsc::channel(BATCHES);
        let told: Arc<Mutex<AttemptReport>> = Arc::default();
        let attempt = run.begin_client(answers, told.clone());
        let (run, helps) = (run.clone(), helps.clone());
        let pieces = HelpPieces { run, helps, attempt, ahead_bytes, ahead: None, only: None };
        Some(Help { budget, pieces, out, told })
    }

    /// Runs `work`, which takes pieces and then answers with the results of all pieces, as a node would. `work`
    /// receives a separate job on `store` for data on flash, with a part of the memory. The counters of this job are
    /// added to `context` at the end. If `work` fails or there is no store, nodes process these pieces.
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
            let store = store.ok_or("there is no store here for intermediate data")?;
            let own = store.job(budget, run.job.cancel().clone())?;
            let _reading = own.budget().reserve(reading, "read buffers of nodes")?;
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
        // The receiver may have been dropped already.
        let _ = answers.out.blocking_send(end);
    }
}

/// The sender of this machine's answer.
struct HelpAnswers {
    out: mpsc::Sender<Result<Option<RecordBatch>>>,
}

impl Reply for HelpAnswers {
    fn batch(&mut self, batch: RecordBatch) -> std::result::Result<(), Failure> {
        let sent = self.out.blocking_send(Ok(Some(batch)));
        sent.map_err(|_| inshore_store::Error::Cancelled.into())
    }
}
