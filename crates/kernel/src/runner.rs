//! Runs a compute kernel over sources with all threads of a job.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{Arc, Mutex},
    thread,
    time::Instant,
};

use inshore_store::Context;
use memchr::memchr_iter;

use crate::{
    Block, Border, Error, Kernel, Next, Result, Source, SourceOffset,
    batch::Batch,
    lines::LineCounts,
    order::{Claim, Delivery, Order, SharedSource},
    reading::{Plan, RandomAccessSource, ReadBuffers, ReadInFlight},
};

/// An event that the consumer of a [`run`] receives, in the order of sources and blocks.
#[derive(Debug)]
pub struct Event<'a, K: Kernel> {
    /// The index of the source. The first source has index 0.
    pub source: usize,
    /// The name of the source.
    pub name: &'a str,
    /// The position in the source up to which all parts were delivered, including the part of this event.
    pub reach: ResumePosition,
    /// The part (the result of the compute kernel for a block), or an error. `None` marks the end of the source. After
    /// an error, the only further event of the source is its end.
    pub part: Option<std::result::Result<K::Part, K::Error>>,
}

/// A position in a source at which a later run can start. The later run then reads exactly the rest of the source. If
/// blocks consist of lines, the position is the start of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResumePosition {
    /// The number of bytes from the start of the source up to the position.
    pub bytes: u64,
    /// The number of line feeds up to the position. If the compute kernel does not number lines, the number is 0.
    pub lines: u64,
}

/// Returns the smallest memory budget in bytes with which `threads` workers can read. A compute kernel may need more.
pub fn smallest_memory_bytes(threads: usize) -> u64 {
    // An eighth of the free memory is reserved for parts that wait for delivery. The workers share the other seven
    // eighths.
    threads as u64 * Plan::WORKER_BYTES_MIN * 8 / 7 + 8
}

/// Runs `kernel` over all blocks of `sources`. Passes the parts (the results of blocks) to `consume`, one at a time.
/// Parts come in the order of the sources and of their blocks, for any number of threads. Returns the state of each
/// worker thread. The number of worker threads is the number of threads of the job's budget. It is smaller if the free
/// memory has no room for a block per thread.
///
/// If a source cannot be opened or read, the consumer receives an event with the error and decides whether the run
/// continues. The runner adds the bytes of files and datasets to the progress counter. The creator of a stream has to
/// count the bytes of the stream.
///
/// Memory: each worker has a buffer for a block ([`Kernel::cached_block_bytes`], by default 256 KiB). A worker that
/// reads sources outside of the page cache also has three buffers of up to 2 MiB. It has five such buffers if five take
/// at most an eighth of the worker's share of the memory. If these buffers would take more than half of the free
/// memory, they are smaller, but at least 256 KiB. Large files in the page cache may be mapped instead of copied. All
/// workers then share two memory maps of 16 MiB per file. The memory of these maps belongs to the page cache and not to
/// the job. A line may take a quarter of a worker's share of the memory. Parts that wait for delivery take up to an
/// eighth of the free memory. This eighth does not include parts that workers are still computing.
///
/// # Errors
/// - Returns the errors of `consume`.
/// - Returns the errors of [`Kernel::worker`].
/// - Returns [`Error::Store`] if the job was cancelled or the budget is too small.
pub fn run<K: Kernel>(
    context: &Context,
    kernel: &K,
    sources: impl Iterator<Item = Source> + Send,
    consume: impl FnMut(Event<'_, K>) -> std::result::Result<Next, K::Error> + Send,
) -> std::result::Result<Vec<K::Worker>, K::Error> {
    run_or_leave(context, kernel, sources, &|| {}, consume)
}

/// Runs `kernel` as [`run`] does, for sources whose iterator may block. A worker thread that fails or panics calls
/// `leave`. If another thread waits in the iterator, `leave` must end this wait.
pub(crate) fn run_or_leave<K: Kernel>(
    context: &Context,
    kernel: &K,
    sources: impl Iterator<Item = Source> + Send,
    leave: &(dyn Fn() + Sync),
    consume: impl FnMut(Event<'_, K>) -> std::result::Result<Next, K::Error> + Send,
) -> std::result::Result<Vec<K::Worker>, K::Error> {
    let budget = context.budget();
    let waiting = budget.reserve(budget.free_bytes() / 8, "buffered results");
    let waiting = waiting.map_err(Error::from)?;
    // The number of workers is limited to the number of block buffers that fit in memory. All block buffers are
    // allocated before a source is opened, so that a lack of memory leads to the same error in every run.
    let fit = budget.free_bytes() / Plan::block_bytes(kernel.cached_block_bytes()) as u64;
    let threads = budget.threads().min(fit as usize).max(1);
    let plan = Plan::new(budget, threads, kernel.cached_block_bytes(), kernel.takes_windows());
    let by_line = matches!(kernel.border(), Border::Line { .. });
    let mut buffers = (0..threads)
        .map(|_| ReadBuffers::new(context, plan, by_line, kernel.zeros_end_lines()))
        .collect::<Result<Vec<_>>>()?
        .into_iter();
    let run = Run {
        context,
        kernel,
        plan,
        order: Order::new(threads, waiting.bytes()),
        sources: Mutex::new((0, sources.fuse())),
        leave,
        consumer: Mutex::new(Consumer { consume, reach: ResumePosition::default() }),
    };
    let worked = thread::scope(|scope| {
        let run = &run;
        let own = buffers.next().expect("there is at least one worker");
        let others: Vec<_> = buffers.map(|reading| scope.spawn(move || run.work(reading))).collect();
        let mut worked = vec![run.work(own)];
        worked.extend(others.into_iter().map(|other| match other.join() {
            Ok(worked) => worked,
            Err(panic) => std::panic::resume_unwind(panic),
        }));
        worked
    });
    worked.into_iter().collect()
}

struct Run<'a, K: Kernel, S, C> {
    context: &'a Context,
    kernel: &'a K,
    plan: Plan,
    order: Order<BlockResult<K>>,
    sources: Mutex<(usize, std::iter::Fuse<S>)>,
    /// A function that ends a blocking wait for the next source.
    leave: &'a (dyn Fn() + Sync),
    consumer: Mutex<Consumer<C>>,
}

/// The consumer function, and the position in the current source up to which parts were delivered.
struct Consumer<C> {
    consume: C,
    reach: ResumePosition,
}

/// The result of a block: its end position and its part. The result is `None` if no line began in the block.
type BlockResult<K> =
    std::result::Result<Option<(ResumePosition, <K as Kernel>::Part)>, <K as Kernel>::Error>;

/// A block that a worker has claimed. If the source is slow, the read of the block is in flight.
struct Task {
    source: usize,
    number: u64,
    shared: Arc<SharedSource>,
    flying: Option<ReadInFlight>,
}

impl<K, S, C> Run<'_, K, S, C>
where
    K: Kernel,
    S: Iterator<Item = Source> + Send,
    C: FnMut(Event<'_, K>) -> std::result::Result<Next, K::Error> + Send,
{
    /// Runs one worker thread.
    fn work(&self, mut reading: ReadBuffers) -> std::result::Result<K::Worker, K::Error> {
        // If this thread ends early, the guard stops the other threads, which would otherwise wait forever for this
        // thread's parts.
        let alarm = StopOnDrop(&self.order, self.leave);
        let by_line = matches!(self.kernel.border(), Border::Line { .. });
        let mut worker = self.kernel.worker(self.context)?;
        let reads_files = self.kernel.reads_files() && by_line && !self.is_numbered();
        let mut batch = Batch::default();
        let mut ahead: VecDeque<Task> = VecDeque::new();
        loop {
            self.context.check_cancelled().map_err(Error::from)?;
            let mut task = match ahead.pop_front() {
                Some(task) => task,
                None => match self.order.claim(true) {
                    Claim::Block { source, number, shared } => {
                        self.begin(&mut reading, source, number, shared)?
                    }
                    Claim::Source => match self.open(&mut reading, &mut worker)? {
                        Some(task) => task,
                        None => continue,
                    },
                    Claim::Nothing => unreachable!("it waits"),
                    Claim::End => break,
                },
            };
            if reads_files && !task.shared.divided.is_slow() {
                self.do_batch(&mut reading, &mut worker, task, &mut batch)?;
                continue;
            }
            while task.shared.divided.is_slow() && reading.may_begin(ahead.len()) {
                match self.order.claim(false) {
                    Claim::Block { source, number, shared } => {
                        ahead.push_back(self.begin(&mut reading, source, number, shared)?);
                    }
                    _ => break,
                }
            }
            // While a worker processes a block, it may wait until earlier blocks are done. It must therefore process
            // its earliest block first. Claimed blocks may be out of order: if two workers open sources at the same
            // time, the later source may be divided into blocks first.
            let place = |task: &Task| (task.source, task.number);
            if let Some(earliest) = ahead.iter_mut().min_by_key(|task| place(task))
                && place(earliest) < place(&task)
            {
                std::mem::swap(earliest, &mut task);
            }
            self.do_block(&mut reading, &mut worker, task)?;
            self.deliver()?;
        }
        std::mem::forget(alarm);
        Ok(worker)
    }

    fn begin(
        &self,
        reading: &mut ReadBuffers,
        source: usize,
        number: u64,
        shared: Arc<SharedSource>,
    ) -> Result<Task> {
        let slow = shared.divided.is_slow();
        let flying = slow.then(|| reading.begin(&shared.divided, number)).transpose()?;
        Ok(Task { source, number, shared, flying })
    }

    /// Claims and opens the next source, and returns its first block. If the source is a stream, the call processes the
    /// complete stream and returns `None`. The result is also `None` if no source is left, or if the source is empty or
    /// cannot be opened.
    fn open(
        &self,
        reading: &mut ReadBuffers,
        worker: &mut K::Worker,
    ) -> std::result::Result<Option<Task>, K::Error> {
        let (number, source, base) = {
            let mut sources = self.sources.lock().expect("no panic under this lock");
            let Some(source) = sources.1.next() else {
                self.order.no_more_sources();
                return Ok(None);
            };
            let number = sources.0;
            sources.0 += 1;
            let base = source.base();
            self.order.add_source(number, source.name().into());
            (number, source, base)
        };
        let (name, opened) = source.open(self.context);
        let opened = opened.and_then(|opened| RandomAccessSource::of(opened, &self.plan));
        let opened = match opened {
            Ok(opened) => opened,
            Err(error) if error.is_cancelled() => return Err(error.into()),
            Err(error) => {
                self.order.end_of_stream(number, 1);
                self.order.push(number, 0, Err(error.into()), 0);
                return self.deliver().map(|()| None);
            }
        };
        match opened {
            Ok(divided) if divided.len() > 0 => {
                let blocks = divided.len().div_ceil(divided.stride(&self.plan));
                let shared = Arc::new(SharedSource { divided, base, lines: LineCounts::default() });
                self.order.divide(number, blocks, shared.clone());
                Ok(Some(self.begin(reading, number, 0, shared)?))
            }
            Ok(_) => {
                self.do_stream(reading, worker, (number, &name, base), &mut std::io::empty()).map(|()| None)
            }
            Err(mut stream) => {
                self.do_stream(reading, worker, (number, &name, base), &mut stream).map(|()| None)
            }
        }
    }

    fn do_block(
        &self,
        reading: &mut ReadBuffers,
        worker: &mut K::Worker,
        task: Task,
    ) -> std::result::Result<(), K::Error> {
        let Task { source, number, shared, flying } = task;
        let SharedSource { divided, base, lines } = &*shared;
        let numbered = self.is_numbered().then_some(lines);
        let worked = reading.block(divided, number, flying, |offset, bytes, end| {
            self.call(worker, (source, number, *base), offset..end, bytes, numbered)
        });
        let part = match worked {
            Ok(Some(part)) => part.map(Some),
            Ok(None) => Ok(None),
            Err(error) if error.is_cancelled() => return Err(error.into()),
            Err(error) => Err(error.into()),
        };
        if let Some(lines) = numbered {
            // `tell_none` has an effect only if no line began in the block, or if the block could not be read.
            lines.tell_none(number);
            lines.forget(number);
        }
        self.count_progress(divided, number);
        self.push(source, number, part);
        Ok(())
    }

    /// Lets the compute kernel read and process a claimed block and several blocks after this block.
    fn do_batch(
        &self,
        reading: &mut ReadBuffers,
        worker: &mut K::Worker,
        task: Task,
        batch: &mut Batch,
    ) -> std::result::Result<(), K::Error> {
        let (began, Task { source, number, shared, .. }) = (Instant::now(), task);
        let count = 1 + self.order.claim_behind(source, number, batch.blocks() - 1);
        let mut numbers = number..number + count;
        while !numbers.is_empty() {
            self.context.check_cancelled().map_err(Error::from)?;
            let done = self.do_file_blocks(worker, source, &numbers, &shared);
            numbers.start += done;
            if done == 0 {
                let (number, shared) = (numbers.start, shared.clone());
                self.do_block(reading, worker, Task { source, number, shared, flying: None })?;
                numbers.start += 1;
            }
            self.deliver()?;
        }
        batch.took(count, began.elapsed());
        Ok(())
    }

    /// Lets the compute kernel read and process blocks. Returns the number of finished blocks, including a block that
    /// failed.
    fn do_file_blocks(
        &self,
        worker: &mut K::Worker,
        source: usize,
        numbers: &Range<u64>,
        shared: &SharedSource,
    ) -> u64 {
        let (count, base) = (numbers.end - numbers.start, shared.base.offset);
        let Some(blocks) = shared.divided.blocks(&self.plan, numbers.start, count, base) else { return 0 };
        let mut done = Vec::new();
        let failed = self.kernel.file_blocks(worker, &blocks, &mut done).err();
        let reach = |bytes| ResumePosition { bytes, lines: 0 };
        let parts = done.into_iter().map(|made| Ok(made.map(|(end, part)| (reach(end), part))));
        let mut count = 0;
        for (number, part) in numbers.clone().zip(parts.chain(failed.map(Err))) {
            self.count_progress(&shared.divided, number);
            self.push(source, number, part);
            count += 1;
        }
        count
    }

    fn count_progress(&self, divided: &RandomAccessSource, number: u64) {
        let stride = divided.stride(&self.plan);
        self.context.progress().add(stride.min(divided.len() - number * stride));
    }

    fn push(&self, source: usize, block: u64, part: BlockResult<K>) {
        let made = part.as_ref().ok().and_then(|part| part.as_ref());
        let bytes = made.map_or(0, |(_, part)| self.kernel.part_bytes(part));
        self.order.push(source, block, part, bytes);
    }

    fn is_numbered(&self) -> bool {
        matches!(self.kernel.border(), Border::Line { numbered: true })
    }

    fn call(
        &self,
        worker: &mut K::Worker,
        (source, number, base): (usize, u64, SourceOffset),
        place: Range<u64>,
        bytes: &[u8],
        lines: Option<&LineCounts>,
    ) -> std::result::Result<(ResumePosition, K::Part), K::Error> {
        let mut reach = ResumePosition { bytes: place.end, lines: 0 };
        if let Some(lines) = lines {
            reach.lines = memchr_iter(b'\n', bytes).count() as u64;
            lines.tell(number, reach.lines);
        }
        let (offset, lines_before) = (base.offset + place.start, base.lines);
        let block =
            Block { source, offset, bytes, number, lines_before, lines, first_line: Default::default() };
        Ok((reach, self.kernel.block(worker, &block)?))
    }

    fn do_stream(
        &self,
        reading: &mut ReadBuffers,
        worker: &mut K::Worker,
        (source, name, base): (usize, &str, SourceOffset),
        stream: &mut dyn std::io::Read,
    ) -> std::result::Result<(), K::Error> {
        self.order.stream(source);
        let counts = LineCounts::default();
        let lines = self.is_numbered().then_some(&counts);
        let (mut number, mut failed) = (0, None);
        let read = reading.stream(name, stream, |offset, bytes, end| {
            if !self.order.next_of_stream(source) {
                return false;
            }
            let part = self.call(worker, (source, number, base), offset..end, bytes, lines).map(Some);
            let is_good = part.is_ok();
            counts.forget(number);
            self.push(source, number, part);
            number += 1;
            failed = self.deliver().err();
            is_good && failed.is_none()
        });
        if let Some(error) = failed {
            return Err(error);
        }
        if let Err(error) = read {
            if error.is_cancelled() {
                return Err(error.into());
            }
            self.order.push(source, number, Err(error.into()), 0);
            number += 1;
        }
        self.order.end_of_stream(source, number);
        self.deliver()
    }

    /// Passes the parts that are next in order to the consumer.
    fn deliver(&self) -> std::result::Result<(), K::Error> {
        self.order.deliver(|turn| {
            let mut consumer = self.consumer.lock().expect("no panic under this lock");
            let Consumer { consume, reach } = &mut *consumer;
            match turn {
                Delivery::Part { part: Ok(None), .. } => Ok(Next::Go),
                Delivery::Part { source, name, part } => {
                    let is_failed = part.is_err();
                    let part = part.map(|part| {
                        let (end, part) = part.expect("looked at above");
                        *reach = ResumePosition { bytes: end.bytes, lines: reach.lines + end.lines };
                        part
                    });
                    let next = consume(Event { source, name: &name, reach: *reach, part: Some(part) })?;
                    Ok(if is_failed && next == Next::Go { Next::SkipSource } else { next })
                }
                Delivery::End { source, name } => {
                    consume(Event { source, name: &name, reach: std::mem::take(reach), part: None })
                }
            }
        })
    }
}

/// A guard that stops all workers when it is dropped. A worker that ends without an error forgets the guard, so that
/// the guard is never dropped.
struct StopOnDrop<'a, P>(&'a Order<P>, &'a (dyn Fn() + Sync));

impl<P> Drop for StopOnDrop<'_, P> {
    fn drop(&mut self) {
        self.0.stop();
        (self.1)();
    }
}
