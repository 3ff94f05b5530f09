//! Tasks that run where the data lies: the request to a node, and the answers.
//!
//! - [`TaskHandler`]: a kind of task, under the name that requests use. A node knows a fixed set of kinds, [`TaskHandlers`].
//! - [`Task`]: a job within the node's budget, arguments, and the parts of files to read.
//! - [`Reply`]: the sink for record batches, one after the other, as far as the client takes them.
//!
//! A kernel whose parts can be serialized is [`Portable`], and [`Parts`] makes a [`TaskHandler`] of the kernel. The parts of
//! the blocks are sent in order, each with the position in its source up to which the answers reach, so that another
//! node can continue from this position.
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

use crate::{Block, Border, Error, Event, Kernel, Next, ResumePosition, Source, runner::run_or_leave};

/// The error of a failed task, as reported to the client.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The input of a task on a node.
#[derive(Debug)]
pub struct Task {
    /// The job of the task: memory, threads, store, cancellation.
    pub job: Job,
    /// The arguments, in the form that the kind of work defines.
    pub arguments: Value,
    /// The sources to read, in order.
    pub sources: Sources,
}

/// The sources of a task, one after the other: either a known list, or shards that the task receives while it works.
/// The next source is requested only when the one before was read completely, since each request tells the sender so.
pub struct Sources {
    next: Box<dyn Iterator<Item = Result<TaskSource, Failure>> + Send>,
    bytes: u64,
    count_max: usize,
    leave: Box<dyn Fn() + Send + Sync>,
}

impl Sources {
    /// Creates sources from a known list.
    pub fn of(sources: Vec<TaskSource>) -> Sources {
        let bytes = sources.iter().map(|source| source.source.part_bytes()).sum();
        let count_max = sources.len();
        Sources::pulled(sources.into_iter().map(Ok), bytes, count_max)
    }

    /// Creates sources from an iterator that may block: about `bytes` bytes together, and at most `count_max` sources.
    pub fn pulled(
        next: impl Iterator<Item = Result<TaskSource, Failure>> + Send + 'static,
        bytes: u64,
        count_max: usize,
    ) -> Sources {
        Sources { next: Box::new(next), bytes, count_max, leave: Box::new(|| {}) }
    }

    /// Sets the function that ends a blocking wait for the next source.
    #[must_use]
    pub fn left_by(mut self, leave: impl Fn() + Send + Sync + 'static) -> Sources {
        self.leave = Box::new(leave);
        self
    }

    /// Splits the sources into the iterator, and the function that ends a blocking wait for the next source.
    pub fn into_parts(
        self,
    ) -> (impl Iterator<Item = Result<TaskSource, Failure>> + Send + 'static, Box<dyn Fn() + Send + Sync>)
    {
        (self.next, self.leave)
    }

    /// Returns the number of bytes of all sources together; an estimate if the sources are handed out while the task
    /// works.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns the upper bound of the number of sources.
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

/// The location of a source in a node's store, in a form that another process can resolve.
#[derive(Clone, Debug)]
pub struct StoredSource {
    /// The name of the dataset.
    pub dataset: String,
    /// The number of the dataset: see [`inshore_store::Dataset::id`].
    pub id: u64,
    /// The name of the file in the dataset.
    pub file: String,
}

/// A source that a task reads.
#[derive(Debug)]
pub struct TaskSource {
    /// The number of the source in answers, as chosen by the client.
    pub number: u64,
    /// The number of the whole of which the source is a part, as chosen by the client.
    pub whole: u64,
    /// The bytes to read.
    pub source: Source,
    /// The location of the bytes, if the source is in the node's store.
    pub stored: Option<StoredSource>,
}

/// The sink for a task's answers.
pub trait Reply: Send {
    /// Announces the columns before the first batch. Only clients in this process or its parent process receive this,
    /// since nodes send nothing before the first batch.
    ///
    /// # Errors
    /// The errors are those of [`Reply::batch`].
    fn begun(&mut self, _columns: &SchemaRef) -> Result<(), Failure> {
        Ok(())
    }

    /// Sends a batch; all batches of a task have the same columns. Blocks while the client is slow.
    ///
    /// # Errors
    /// [`inshore_store::Error::Cancelled`] if the client has disconnected.
    fn batch(&mut self, batch: RecordBatch) -> Result<(), Failure>;
}

/// The right that a client needs for a kind of task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequiredRight {
    /// The right to read.
    Data,
    /// The right to run built-in kinds.
    BuiltIn,
    /// The right to run WebAssembly that the client sends.
    WebAssembly,
    /// The right to run commands that the operator allows.
    Commands,
}

/// A kind of task.
pub trait TaskHandler: Send + Sync {
    /// Returns the name of the kind in requests.
    fn kind(&self) -> &'static str;

    /// Returns the right that a client needs.
    fn needs(&self) -> RequiredRight {
        RequiredRight::BuiltIn
    }

    /// Returns the smallest default memory in bytes, for tasks whose request names none.
    fn smallest_memory_bytes(&self) -> u64 {
        0
    }

    /// Runs the task. The returned value is sent to the client at the end, beside the cost of the job.
    ///
    /// # Errors
    /// Any error that prevents the task from completing.
    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure>;
}

/// The kinds of tasks that a node can run.
#[derive(Clone, Default)]
pub struct TaskHandlers(Vec<Arc<dyn TaskHandler>>);

impl TaskHandlers {
    /// Returns the set with one more kind.
    #[must_use]
    pub fn with(mut self, work: impl TaskHandler + 'static) -> TaskHandlers {
        self.0.push(Arc::new(work));
        self
    }

    /// Returns the set without the kind of this name.
    #[must_use]
    pub fn without(mut self, kind: &str) -> TaskHandlers {
        self.0.retain(|work| work.kind() != kind);
        self
    }

    /// Returns the kind of this name.
    pub fn get(&self, kind: &str) -> Option<&Arc<dyn TaskHandler>> {
        self.0.iter().find(|work| work.kind() == kind)
    }

    /// Returns the names of all kinds.
    pub fn kinds(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.0.iter().map(|work| work.kind())
    }
}

impl std::fmt::Debug for TaskHandlers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.kinds()).finish()
    }
}

/// A kernel that can be sent to the node of the data, and whose parts can be sent back.
pub trait Portable: Kernel + Sized {
    /// The [`TaskHandler::kind`] of tasks that run the kernel.
    const KIND: &'static str;
    /// The right that a client needs.
    const NEEDS: RequiredRight = RequiredRight::BuiltIn;

    /// Returns all arguments that another machine needs to create the same kernel.
    fn arguments(&self) -> Value;

    /// Creates the kernel from [`Self::arguments`].
    ///
    /// # Errors
    /// An error of the kernel if the arguments are invalid.
    fn of_arguments(arguments: &Value) -> Result<Self, Self::Error>;

    /// Creates the kernel like [`Self::of_arguments`], for a kernel that reserves its own memory from this budget.
    ///
    /// # Errors
    /// As [`Self::of_arguments`], and if the budget is too small.
    fn within(arguments: &Value, _budget: &Budget) -> Result<Self, Self::Error> {
        Self::of_arguments(arguments)
    }

    /// Serializes a part to `out`. Writes nothing if the part is empty.
    fn encode(part: &Self::Part, out: &mut Vec<u8>);

    /// Deserializes a part; returns `None` if the bytes are invalid.
    fn decode(bytes: &[u8]) -> Option<Self::Part>;

    /// Returns true if this part makes all later parts of its whole superfluous.
    fn suffices(&self, _part: &Self::Part) -> bool {
        false
    }

    /// True if a client may run shards of a job itself, by reading the nodes' data as streams, with the same parts as
    /// result.
    const CAN_HELP: bool = false;

    /// Creates the kernel for a client that runs shards itself.
    ///
    /// # Errors
    /// The errors are those of [`Self::of_arguments`].
    fn for_client(arguments: &Value) -> Result<Self, Self::Error> {
        Self::of_arguments(arguments)
    }
}

/// The content of a row that [`Parts`] sends for a source.
#[derive(Debug)]
pub enum Answer {
    /// The beginning of a part that is larger than a batch; the rest follows in the next rows.
    Beginning(Vec<u8>),
    /// The serialized part of a block, or the last piece of a large part.
    Part(Vec<u8>),
    /// The end of the source: the source was read completely, or so far that the rest makes no difference.
    End,
    /// The error message of a source that could not be read.
    Failed(String),
}

/// A row of the answers of [`Parts`].
#[derive(Debug)]
pub struct PartRow {
    /// The number of the source in the request.
    pub number: u64,
    /// The position in the source up to which the answers so far reach.
    pub reach: ResumePosition,
    /// The content of the row.
    pub answer: Answer,
}

const PART: u8 = 0;
const END: u8 = 1;
const FAILED: u8 = 2;
const BEGINNING: u8 = 3;

/// Returns the columns of the answers of [`Parts`]: the source's number, bytes and lines up to the position that the
/// row reaches, the type of the row (0 a part, 1 the end, 2 an error, 3 the beginning of a part), and the part or the
/// error's text.
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

/// Parses the rows of a batch with the columns of [`part_schema`]; returns `None` if the batch has other columns or
/// types of rows.
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
            let reach = ResumePosition { bytes: bytes.value(row), lines: lines.value(row) };
            Some(PartRow { number: sources.value(row), reach, answer })
        })
        .collect()
}

/// Returns the error message of the first failed source in a batch of [`part_schema`], if any source failed.
pub fn failure_told(batch: &RecordBatch) -> Option<String> {
    let whats = batch.columns().get(3)?.as_any().downcast_ref::<UInt8Array>()?;
    let row = whats.values().iter().position(|&what| what == FAILED)?;
    let parts = batch.columns().get(4)?.as_any().downcast_ref::<BinaryArray>()?;
    Some(String::from_utf8_lossy(parts.value(row)).into_owned())
}

/// The target size of a batch of parts, in bytes.
const BATCH_BYTES: usize = 256 << 10;
/// The number of copies of a batch in memory on its way: serialized, as columns, and as queued messages.
const COPIES: u64 = 4;
/// The longest time that parts wait for a batch to fill, so that an observer sees parts arrive.
const WAIT: Duration = Duration::from_millis(100);

/// The work that runs a kernel over sources and sends its parts.
#[derive(Debug)]
pub struct Parts<K>(PhantomData<fn() -> K>);

impl<K> Default for Parts<K> {
    fn default() -> Self {
        Parts(PhantomData)
    }
}

impl<K> TaskHandler for Parts<K>
where
    K: Portable,
    K::Error: std::error::Error + Sync + 'static,
{
    fn kind(&self) -> &'static str {
        K::KIND
    }

    fn needs(&self) -> RequiredRight {
        K::NEEDS
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let Task { job, arguments, sources } = task;
        let kernel = K::within(&arguments, job.budget())?;
        answer_parts(&job, &kernel, sources, reply)?;
        Ok(json!({}))
    }
}

/// Runs a kernel over sources and sends its parts, as [`Parts`] does, for a kernel that is created in another way.
/// Parts found so far are sent before the next source is requested.
///
/// # Errors
/// The budget is too small, the next source is unavailable, the job was cancelled, or the client takes no answers. An
/// error while reading a source is an answer, not an error.
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
    // The number and the whole of each source that was begun, in this order.
    let names: Mutex<Vec<(u64, u64)>> = Mutex::default();
    // Reserved from the budget before the workers reserve the free rest.
    let memory = job.budget().reserve(COPIES * BATCH_BYTES as u64, "buffered answers")?;
    let answers = Mutex::new(Rows::new(reply, memory));
    let enough = Mutex::new(HashSet::new());
    // The sender of shards may wait for answers, so no answer is held back while the next source is awaited.
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

/// Rows that are collected into batches.
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

    fn part(&mut self, number: u64, reach: ResumePosition, encode: impl FnOnce(&mut Vec<u8>)) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        encode(&mut scratch);
        let in_batches = COPIES * BATCH_BYTES as u64;
        let is_large = scratch.len() > BATCH_BYTES;
        if is_large && self.memory.resize(in_batches + scratch.len() as u64).is_err() {
            let bytes = inshore_store::format_bytes(scratch.len() as u64);
            let what =
                format!("the results before byte {} exceed the memory of the task: {bytes}", reach.bytes);
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
            // A smaller reservation always succeeds.
            let _ = self.memory.resize(in_batches);
        }
        self.scratch = scratch;
    }

    fn add(&mut self, number: u64, reach: ResumePosition, what: u8, part: &[u8]) {
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

/// The kernel that returns the bytes of its sources unchanged: a plain read, for jobs that compute nothing near the
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
    const NEEDS: RequiredRight = RequiredRight::Data;

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
