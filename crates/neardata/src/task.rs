//! Work that travels: what a node is asked to do, and what it answers.
//!
//! - [`Work`]: a kind of task, under the name by which requests call it. A node knows a fixed set of them, [`Works`].
//! - [`Task`]: a job within the node's budget, arguments, and the parts of files that it is about.
//! - [`Reply`]: where record batches go, one after the other, as far as the asker takes them.
//!
//! A kernel whose parts can be written down is [`Portable`], and [`Parts`] makes work of it: what came of its blocks is
//! answered in order, each with how far in its source it reaches, so that another node can go on behind it.
//!
//! Papers: minions, responses and queries, 2019 thesis 3.2.2.

use std::{
    collections::HashSet,
    marker::PhantomData,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use arrow_array::{
    ArrayRef, BinaryArray, RecordBatch, UInt8Array, UInt64Array,
    builder::{BinaryBuilder, UInt8Builder, UInt64Builder},
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use inshore_store::{Budget, Context, Job, Reservation};
use serde_json::{Value, json};

use crate::{Block, Border, Error, Event, Kernel, Next, Reach, Source, runner::run_or_leave};

/// Why a task failed: what the asker is told.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What a node is asked to do.
#[derive(Debug)]
pub struct Task {
    /// The job that it is done in: memory, threads, store, stop flag.
    pub job: Job,
    /// What the kind of work wants to know.
    pub arguments: Value,
    /// What it reads, in order.
    pub sources: Sources,
}

/// The sources of a task, one after the other: those that are known, or such as it is handed while it works. The next one is asked for when all of
/// the one before was read, since asking says so to whoever hands them out.
pub struct Sources {
    next: Box<dyn Iterator<Item = Result<TaskSource, Failure>> + Send>,
    bytes: u64,
    count_max: usize,
    leave: Box<dyn Fn() + Send + Sync>,
}

impl Sources {
    /// Those that are known.
    pub fn of(sources: Vec<TaskSource>) -> Sources {
        let bytes = sources.iter().map(|source| source.source.part_bytes()).sum();
        let count_max = sources.len();
        Sources::pulled(sources.into_iter().map(Ok), bytes, count_max)
    }

    /// Those that `next` gives, which may wait: about so many bytes together, and `count_max` at most.
    pub fn pulled(
        next: impl Iterator<Item = Result<TaskSource, Failure>> + Send + 'static,
        bytes: u64,
        count_max: usize,
    ) -> Sources {
        Sources { next: Box::new(next), bytes, count_max, leave: Box::new(|| {}) }
    }

    /// The same, where `leave` ends the wait for the next one.
    #[must_use]
    pub fn left_by(mut self, leave: impl Fn() + Send + Sync + 'static) -> Sources {
        self.leave = Box::new(leave);
        self
    }

    /// The sources, and what ends the wait for the next one.
    pub fn into_parts(
        self,
    ) -> (impl Iterator<Item = Result<TaskSource, Failure>> + Send + 'static, Box<dyn Fn() + Send + Sync>)
    {
        (self.next, self.leave)
    }

    /// Bytes of all together: about so many where they are handed out.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// How many there are at most.
    pub fn count_max(&self) -> usize {
        self.count_max
    }
}

impl Iterator for Sources {
    type Item = Result<TaskSource, Failure>;

    fn next(&mut self) -> Option<Result<TaskSource, Failure>> {
        self.next.next()
    }
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Sources { bytes, count_max, .. } = self;
        f.debug_struct("Sources").field("bytes", bytes).field("count_max", count_max).finish_non_exhaustive()
    }
}

/// Where in the store of a node a source lies, in words that another process understands.
#[derive(Clone, Debug)]
pub struct Stored {
    /// The dataset.
    pub dataset: String,
    /// Its number: see [`inshore_store::Dataset::id`].
    pub id: u64,
    /// The file in it.
    pub file: String,
}

/// Something that a task reads.
#[derive(Debug)]
pub struct TaskSource {
    /// What the asker calls it in what is answered.
    pub number: u64,
    /// Which whole it is a part of, by a number of the asker's.
    pub whole: u64,
    /// The bytes.
    pub source: Source,
    /// Where they lie, if it is in the node's store.
    pub stored: Option<Stored>,
}

/// Where answers go.
pub trait Reply: Send {
    /// Tells of the columns before there are any rows: for an asker in this process or its parent, since nodes tell nothing before the first
    /// batch.
    ///
    /// # Errors
    /// As [`Reply::batch`].
    fn begun(&mut self, _columns: &SchemaRef) -> Result<(), Failure> {
        Ok(())
    }

    /// Sends a batch; all of a task have the same columns. Waits while the asker is slow.
    ///
    /// # Errors
    /// [`inshore_store::Error::Cancelled`] where the asker has gone.
    fn batch(&mut self, batch: RecordBatch) -> Result<(), Failure>;
}

/// What a client has to be trusted with for a kind of task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// To read.
    Data,
    /// To run what is built in.
    BuiltIn,
    /// To run WebAssembly that it sends.
    WebAssembly,
    /// To run commands that the operator allows.
    Commands,
}

/// A kind of task.
pub trait Work: Send + Sync {
    /// What requests call it.
    fn kind(&self) -> &'static str;

    /// What a client has to be trusted with.
    fn needs(&self) -> Needs {
        Needs::BuiltIn
    }

    /// The memory of a task that does not ask for some is no less.
    fn smallest_memory_bytes(&self) -> u64 {
        0
    }

    /// Does it. What it gives back is told at the end, beside what the job cost.
    ///
    /// # Errors
    /// Whatever keeps it from its end.
    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure>;
}

/// The kinds of tasks that a node can do.
#[derive(Clone, Default)]
pub struct Works(Vec<Arc<dyn Work>>);

impl Works {
    /// These and one more.
    #[must_use]
    pub fn with(mut self, work: impl Work + 'static) -> Works {
        self.0.push(Arc::new(work));
        self
    }

    /// These without the kind of this name.
    #[must_use]
    pub fn without(mut self, kind: &str) -> Works {
        self.0.retain(|work| work.kind() != kind);
        self
    }

    /// The kind of this name.
    pub fn get(&self, kind: &str) -> Option<&Arc<dyn Work>> {
        self.0.iter().find(|work| work.kind() == kind)
    }

    /// The names of all.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.iter().map(|work| work.kind())
    }
}

impl std::fmt::Debug for Works {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.kinds()).finish()
    }
}

/// A kernel that can be sent to where the data lies, and whose parts can be sent back.
pub trait Portable: Kernel + Sized {
    /// The [`Work::kind`] of tasks that run it.
    const KIND: &'static str;
    /// What a client has to be trusted with.
    const NEEDS: Needs = Needs::BuiltIn;

    /// All that another machine needs to know to make the same kernel.
    fn arguments(&self) -> Value;

    /// The kernel that [`Self::arguments`] tells of.
    ///
    /// # Errors
    /// Where they tell of none.
    fn of_arguments(arguments: &Value) -> Result<Self, Self::Error>;

    /// The same for a kernel that takes memory of its own, from this budget.
    ///
    /// # Errors
    /// As [`Self::of_arguments`], and where the budget is too small.
    fn within(arguments: &Value, _budget: &Budget) -> Result<Self, Self::Error> {
        Self::of_arguments(arguments)
    }

    /// Writes a part down. Nothing where the part tells nothing.
    fn encode(part: &Self::Part, out: &mut Vec<u8>);

    /// The part that was written down; `None` where the bytes are no part.
    fn decode(bytes: &[u8]) -> Option<Self::Part>;

    /// Whether a part makes all that follows it in its whole superfluous.
    fn suffices(&self, _part: &Self::Part) -> bool {
        false
    }

    /// Whether a client may do a part of a job on nodes itself: reading what it works on as streams, with the same parts.
    const CAN_HELP: bool = false;

    /// The same kernel for such a client.
    ///
    /// # Errors
    /// As [`Self::of_arguments`].
    fn for_client(arguments: &Value) -> Result<Self, Self::Error> {
        Self::of_arguments(arguments)
    }
}

/// What an answer of [`Parts`] says of a source.
#[derive(Debug)]
pub enum Answer {
    /// The beginning of a part that is larger than a batch; what follows comes next.
    Beginning(Vec<u8>),
    /// What came of a block, written down, or the end of it.
    Part(Vec<u8>),
    /// It was read to its end, or so far that the rest makes no difference.
    End,
    /// It could not be read.
    Failed(String),
}

/// A row of what [`Parts`] answers.
#[derive(Debug)]
pub struct PartRow {
    /// The source, as the request numbered it.
    pub number: u64,
    /// How far all that was answered of it reaches.
    pub reach: Reach,
    /// What is said.
    pub answer: Answer,
}

const PART: u8 = 0;
const END: u8 = 1;
const FAILED: u8 = 2;
const BEGINNING: u8 = 3;

/// The columns of what [`Parts`] answers: source, bytes and lines up to where the row reaches, what the row is (0 a part, 1
/// the end, 2 an error, 3 the beginning of a part), and the part or the error's text.
pub fn part_schema() -> SchemaRef {
    let field = |name: &str, kind| Field::new(name, kind, false);
    Arc::new(Schema::new(vec![
        field("source", DataType::UInt64),
        field("bytes", DataType::UInt64),
        field("lines", DataType::UInt64),
        field("what", DataType::UInt8),
        field("part", DataType::Binary),
    ]))
}

/// The rows of a batch of [`part_schema`]; `None` where it is none.
pub fn part_rows(batch: &RecordBatch) -> Option<Vec<PartRow>> {
    let numbers = |column: usize| batch.columns().get(column)?.as_any().downcast_ref::<UInt64Array>();
    let (sources, bytes, lines) = (numbers(0)?, numbers(1)?, numbers(2)?);
    let whats = batch.columns().get(3)?.as_any().downcast_ref::<UInt8Array>()?;
    let parts = batch.columns().get(4)?.as_any().downcast_ref::<BinaryArray>()?;
    (0..batch.num_rows())
        .map(|row| {
            let part = parts.value(row);
            let answer = match whats.value(row) {
                PART => Answer::Part(part.to_vec()),
                END => Answer::End,
                BEGINNING => Answer::Beginning(part.to_vec()),
                FAILED => Answer::Failed(String::from_utf8_lossy(part).into_owned()),
                _ => return None,
            };
            let reach = Reach { bytes: bytes.value(row), lines: lines.value(row) };
            Some(PartRow { number: sources.value(row), reach, answer })
        })
        .collect()
}

/// Why a source of a batch of [`part_schema`] could not be read, if one could not.
#[cfg(feature = "nodes")]
pub(crate) fn failure_told(batch: &RecordBatch) -> Option<String> {
    let whats = batch.columns().get(3)?.as_any().downcast_ref::<UInt8Array>()?;
    let row = whats.values().iter().position(|&what| what == FAILED)?;
    let parts = batch.columns().get(4)?.as_any().downcast_ref::<BinaryArray>()?;
    Some(String::from_utf8_lossy(parts.value(row)).into_owned())
}

/// Bytes of parts that are sent at once.
const BATCH_BYTES: usize = 256 << 10;
/// So often a batch is in memory on its way: as it is written down, as columns, as messages that wait.
const COPIES: u64 = 4;
/// Parts do not wait longer for others, so that whoever looks on sees them come.
const WAIT: Duration = Duration::from_millis(100);

/// The work of running a kernel over sources and answering with its parts.
#[derive(Debug)]
pub struct Parts<K>(PhantomData<fn() -> K>);

impl<K> Default for Parts<K> {
    fn default() -> Self {
        Parts(PhantomData)
    }
}

impl<K> Work for Parts<K>
where
    K: Portable,
    K::Error: std::error::Error + Sync + 'static,
{
    fn kind(&self) -> &'static str {
        K::KIND
    }

    fn needs(&self) -> Needs {
        K::NEEDS
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let Task { job, arguments, sources } = task;
        let kernel = K::within(&arguments, job.budget())?;
        answer_parts(&job, &kernel, sources, reply)?;
        Ok(json!({}))
    }
}

/// Runs a kernel over sources and answers with its parts, as [`Parts`] does, for a kernel that is made in another way. What was
/// found is answered before the next source is waited for.
///
/// # Errors
/// Where the budget is too small, a source is none, the job was stopped, or nobody takes the answers. What a source fails with is an
/// answer.
pub fn answer_parts<K>(
    job: &Context,
    kernel: &K,
    sources: Sources,
    reply: &mut dyn Reply,
) -> Result<(), Failure>
where
    K: Portable,
    K::Error: std::error::Error + Sync + 'static,
{
    // Of those that were begun, in this order.
    let names: Mutex<Vec<(u64, u64)>> = Mutex::default();
    // Taken from the budget before the workers take what is free.
    let memory = job.budget().reserve(COPIES * BATCH_BYTES as u64, "what is answered")?;
    let answers = Mutex::new(Rows::new(reply, memory));
    let enough = Mutex::new(HashSet::new());
    // Whoever hands sources out may wait for answers: none waits here while a source is waited for.
    let waits = AtomicBool::new(false);
    let no_source: Mutex<Option<Failure>> = Mutex::default();
    let (mut sources, leave) = sources.into_parts();
    let sources = std::iter::from_fn(|| {
        waits.store(true, Ordering::SeqCst);
        answers.lock().expect("no panic under this lock").send();
        let next = sources.next();
        waits.store(false, Ordering::SeqCst);
        match next? {
            Ok(TaskSource { number, whole, source, .. }) => {
                names.lock().expect("no panic under this lock").push((number, whole));
                Some(source)
            }
            Err(failure) => {
                *no_source.lock().expect("no panic under this lock") = Some(failure);
                None
            }
        }
    });
    run_or_leave(job, kernel, sources, &leave, |event: Event<'_, K>| {
        let (number, whole) = names.lock().expect("no panic under this lock")[event.source];
        let mut rows = answers.lock().expect("no panic under this lock");
        let mut enough = enough.lock().expect("no panic under this lock");
        let mut next = Next::Go;
        match event.part {
            _ if rows.failed.is_some() => return Ok(Next::Stop),
            Some(Ok(_)) if enough.contains(&whole) => next = Next::SkipSource,
            Some(Ok(part)) => {
                rows.part(number, event.reach, |out| K::encode(&part, out));
                if kernel.suffices(&part) {
                    enough.insert(whole);
                    next = Next::SkipSource;
                }
            }
            Some(Err(error)) => {
                let is_stop = job.cancel().is_cancelled();
                if is_stop {
                    return Err(error);
                }
                rows.add(number, event.reach, FAILED, error.to_string().as_bytes());
            }
            None => {
                rows.add(number, event.reach, END, &[]);
                if waits.load(Ordering::SeqCst) {
                    rows.send();
                }
            }
        }
        Ok(if rows.failed.is_some() { Next::Stop } else { next })
    })?;
    if let Some(failure) = no_source.into_inner().expect("no panic under this lock") {
        return Err(failure);
    }
    let mut rows = answers.into_inner().expect("no panic under this lock");
    rows.send();
    match rows.failed {
        Some(failed) => Err(failed),
        None => Ok(()),
    }
}

/// Rows that are gathered into batches.
struct Rows<'a> {
    reply: &'a mut dyn Reply,
    sent: Instant,
    bytes: usize,
    numbers: [UInt64Builder; 3],
    whats: UInt8Builder,
    parts: BinaryBuilder,
    scratch: Vec<u8>,
    memory: Reservation,
    failed: Option<Failure>,
}

impl<'a> Rows<'a> {
    fn new(reply: &'a mut dyn Reply, memory: Reservation) -> Rows<'a> {
        Rows {
            reply,
            sent: Instant::now(),
            bytes: 0,
            numbers: Default::default(),
            whats: UInt8Builder::new(),
            parts: BinaryBuilder::new(),
            scratch: Vec::new(),
            memory,
            failed: None,
        }
    }

    fn part(&mut self, number: u64, reach: Reach, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        encode(&mut scratch);
        let in_batches = COPIES * BATCH_BYTES as u64;
        let is_large = scratch.len() > BATCH_BYTES;
        if is_large && self.memory.resize(in_batches + scratch.len() as u64).is_err() {
            let bytes = inshore_store::format_bytes(scratch.len() as u64);
            let what =
                format!("what was found before byte {} exceeds the memory of the task: {bytes}", reach.bytes);
            self.add(number, reach, FAILED, what.as_bytes());
            scratch = Vec::new();
        }
        let mut rest = &scratch[..];
        while rest.len() > BATCH_BYTES {
            let (first, more) = rest.split_at(BATCH_BYTES);
            self.add(number, reach, BEGINNING, first);
            rest = more;
        }
        if !rest.is_empty() {
            self.add(number, reach, PART, rest);
        }
        if is_large {
            scratch = Vec::new();
            // Less than before can always be had.
            let _ = self.memory.resize(in_batches);
        }
        self.scratch = scratch;
    }

    fn add(&mut self, number: u64, reach: Reach, what: u8, part: &[u8]) {
        for (column, value) in self.numbers.iter_mut().zip([number, reach.bytes, reach.lines]) {
            column.append_value(value);
        }
        self.whats.append_value(what);
        self.parts.append_value(part);
        self.bytes += part.len() + 32;
        if self.bytes >= BATCH_BYTES || self.sent.elapsed() >= WAIT {
            self.send();
        }
    }

    fn send(&mut self) {
        self.sent = Instant::now();
        if self.bytes == 0 || self.failed.is_some() {
            return;
        }
        self.bytes = 0;
        let [sources, bytes, lines] = &mut self.numbers;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(sources.finish()),
            Arc::new(bytes.finish()),
            Arc::new(lines.finish()),
            Arc::new(self.whats.finish()),
            Arc::new(self.parts.finish()),
        ];
        let batch = RecordBatch::try_new(part_schema(), columns).expect("columns of one length");
        self.failed = self.reply.batch(batch).err();
    }
}

/// The kernel that gives the bytes of its sources as they are: what remains to be done where nothing is computed near the
/// data.
#[derive(Clone, Copy, Debug)]
pub struct Contents;

impl Kernel for Contents {
    type Error = Error;
    type Worker = ();
    type Part = Vec<u8>;

    fn border(&self) -> Border {
        Border::Byte
    }

    fn worker(&self, _: &Context) -> Result<(), Error> {
        Ok(())
    }

    fn block(&self, _: &mut (), block: &Block<'_>) -> Result<Vec<u8>, Error> {
        Ok(block.bytes.to_vec())
    }

    fn part_bytes(&self, part: &Vec<u8>) -> u64 {
        part.len() as u64
    }
}

impl Portable for Contents {
    const KIND: &'static str = "read";
    const NEEDS: Needs = Needs::Data;

    fn arguments(&self) -> Value {
        json!({})
    }

    fn of_arguments(_: &Value) -> Result<Self, Error> {
        Ok(Contents)
    }

    fn encode(part: &Vec<u8>, out: &mut Vec<u8>) {
        out.extend_from_slice(part);
    }

    fn decode(bytes: &[u8]) -> Option<Vec<u8>> {
        Some(bytes.to_vec())
    }
}
