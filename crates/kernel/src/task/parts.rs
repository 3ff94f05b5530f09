//! Runs a compute kernel over the sources of a task, and sends its parts (the results of blocks) in batches.

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
    ArrayRef, RecordBatch,
    builder::{BinaryBuilder, UInt8Builder, UInt64Builder},
};
use inshore_store::{Context, Reservation};
use serde_json::{Value, json};

use super::{
    Failure, Reply, RequiredRight, Task, TaskHandler, TaskSource,
    part_rows::{BEGINNING, END, FAILED, PART, part_schema},
    portable::Portable,
    sources::Sources,
};
use crate::{Event, Next, ResumePosition, runner::run_or_leave};

/// The target size of a batch of parts, in bytes.
const BATCH_BYTES: usize = 256 << 10;
/// The number of copies of a batch that may be in memory at the same time: columns, serialized bytes and queued
/// messages.
const COPIES: u64 = 4;
/// A batch that is not full is sent with the next row if this time has passed since the previous batch. An observer
/// therefore sees parts arrive steadily.
const WAIT: Duration = Duration::from_millis(100);

/// The task handler that runs a compute kernel over sources and sends its parts.
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

/// Runs a compute kernel over sources and sends its parts as [`Parts`] does. Here, the caller creates the compute
/// kernel. Before the task requests its next source, it sends all parts in the buffer.
///
/// # Errors
/// Returns an error if the budget is too small, the next source is unavailable, the job was cancelled, or the client
/// has disconnected. If a source cannot be read, the client receives a row with the error, and this function returns no
/// error.
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
    // For each source that was opened: its number and the number of its complete file.
    let names: Mutex<Vec<(u64, u64)>> = Mutex::default();
    // This memory is reserved before the workers divide the free memory among themselves.
    let memory = job.budget().reserve(COPIES * BATCH_BYTES as u64, "buffered answers")?;
    let answers = Mutex::new(PartBatches::new(reply, memory));
    let enough = Mutex::new(HashSet::new());
    // The sender of shards may wait for parts before it sends the next shard. The task therefore sends its buffered
    // parts before it waits for a source. During the wait, it sends them whenever a source ends.
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

/// Collects rows into batches and sends each batch.
struct PartBatches<'a> {
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

impl<'a> PartBatches<'a> {
    fn new(reply: &'a mut dyn Reply, memory: Reservation) -> PartBatches<'a> {
        PartBatches {
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
