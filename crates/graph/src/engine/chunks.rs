//! The edge phase of a superstep, which turns active vertices into messages.
//!
//! One [`Source`] walks over the active vertices, their states and their index entries in order, and divides the edges
//! to be read into chunks. A chunk is either one large range (window) of the edge file with rows close together, or a
//! batch of small, distant windows that are read concurrently. Workers take chunks from the source. A worker has reads
//! of several chunks in flight while it sends the messages of another chunk. If all vertices are active and their
//! states are in memory, every worker has its own source, over ranges of vertices.

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use inshore_store::{CheckedFile, Job, PendingRead, taken_bytes};

use super::{
    Frontier,
    frontier::{FrontierReader, VertexRanges},
    pools::{ALONE_VERTICES, CHUNKS, Pool, Pools},
    state::{State, StatePeek, VertexArray},
};
use crate::{
    Result,
    csr::{self, BLOCK_BYTES, Csr, IndexCursor, Span, UNPACKER_BYTES, Unpacker},
};

const WINDOW_BYTES_MIN: usize = 64 << 10;
const WINDOW_BYTES_MAX: usize = 1 << 20;
/// The largest number of blocks of the edge file in a small window.
const SMALL_BLOCKS: u64 = 2;
const SMALL_BYTES: usize = SMALL_BLOCKS as usize * BLOCK_BYTES;
/// The largest number of unneeded blocks between two rows of one window: reading these blocks takes less time than
/// another request.
const GAP_BLOCKS: u64 = 1;
/// The number of rows in a chunk is at most the size of a window divided by this number of bytes. Rows of average
/// length are longer, so they fill the window before this limit is reached.
const BYTES_PER_ROW: usize = 32;
/// The largest number of unneeded edges between two rows that are unpacked together, and the largest number of edges
/// that are unpacked at once.
const UNPACKED_GAP: u64 = 128;
const UNPACKED_MAX: u64 = UNPACKER_BYTES / 4;

/// The interface of an algorithm to the edge phase.
pub(crate) trait Sender: Sync {
    /// The state of a vertex.
    type State: State;
    /// The message that a vertex sends along its edges.
    type Sent: Copy + Send;
    /// The destination of a worker's messages.
    type Sink: Send;

    /// Tells whether weights are read in addition to edges.
    const READS_WEIGHTS: bool = false;

    /// Returns the message of an active vertex along each of its edges; `None` sends nothing.
    fn send(&self, vertex: u32, state: &Self::State, degree: u32) -> Option<Self::Sent>;

    /// Returns the number that an active vertex adds to [`EdgePhaseResult::aggregate`].
    fn aggregate(&self, _vertex: u32, _state: &Self::State, _degree: u32) -> u64 {
        0
    }

    /// Tells whether [`Sender::look`] is called.
    const LOOKS: bool = false;

    /// Gets consecutive rows of a window together, before each of these rows is passed to [`Sender::push`].
    fn look(&self, _sink: &mut Self::Sink, _window: &[u32], _rows: Range<usize>) {}

    /// Sends along the edges `row` of a window, which all belong to one vertex. `weights` is as long as the window, or
    /// empty if weights are not read.
    fn push(
        &self,
        sink: &mut Self::Sink,
        window: &[u32],
        row: Range<usize>,
        weights: &[f64],
        sent: Self::Sent,
    ) -> Result<()>;
}

/// Each worker has its own source if the free memory is at least this multiple of the memory of all sources.
const SPARE_SHARE: u64 = 16;
/// Returns the memory of all windows of a worker, as a multiple of the size of a large window of edges. Each chunk has
/// a large window and a batch of small ones. With weights, each chunk also has a large window and a batch of small ones
/// of twice the size.
const fn window_share(weighted: bool) -> usize {
    2 * CHUNKS * if weighted { 3 } else { 1 }
}

/// Returns the number of workers and the size of their windows, which take at most an eighth of the free memory.
pub(super) fn workers(threads: usize, free_bytes: u64, weighted: bool) -> (usize, usize) {
    let each = |window_bytes: usize| (window_share(weighted) * window_bytes) as u64;
    let workers = threads.min((free_bytes / 8 / each(WINDOW_BYTES_MIN)) as usize).max(1);
    let mut window_bytes = WINDOW_BYTES_MIN;
    while window_bytes < WINDOW_BYTES_MAX && workers as u64 * each(window_bytes * 2) <= free_bytes / 8 {
        window_bytes *= 2;
    }
    (workers, window_bytes)
}

/// Returns the memory of the edge phase: windows, their rows, and the index cursor.
pub(super) fn memory_bytes(workers: usize, window_bytes: usize, weighted: bool) -> u64 {
    let pools = |large_bytes: usize| 2 * taken_bytes(CHUNKS * workers * large_bytes);
    let buffers = pools(window_bytes) + if weighted { pools(2 * window_bytes) } else { 0 };
    buffers as u64 + rows_bytes(workers, window_bytes) + workers as u64 * UNPACKER_BYTES + csr::CURSOR_BYTES
}

/// Returns the memory of the lists of rows in all chunks.
fn rows_bytes(workers: usize, window_bytes: usize) -> u64 {
    (workers * CHUNKS * (window_bytes / BYTES_PER_ROW) * 32) as u64
}

/// A part of a vertex's row, and the message that the vertex sends along this part.
struct Row<M> {
    first: u64,
    count: u32,
    sent: M,
}

impl<M> Row<M> {
    fn edges(&self) -> Range<u64> {
        self.first..self.first + u64::from(self.count)
    }
}

/// Rows that lie in one range of the edge file.
struct RowWindow {
    span: Span,
    rows: Range<usize>,
}

struct Chunk<M> {
    rows: Vec<Row<M>>,
    small: Vec<RowWindow>,
    large: Option<RowWindow>,
}

/// Walks over the active vertices and makes chunks.
struct Source<'a, S: Sender> {
    job: &'a Job,
    sender: &'a S,
    csr: &'a Csr,
    active: FrontierReader,
    state: StatePeek<'a, S::State>,
    index: IndexCursor,
    /// Rows (or parts of a row) that did not fit in the last window or chunk, the next one last.
    left: Vec<Row<S::Sent>>,
    /// Limits of a window: its number of blocks, and its number of edges if weights are read too.
    window_blocks: u64,
    window_edges: u64,
    small_max: usize,
    rows_max: usize,
    /// Initial capacity of a chunk, in rows.
    rows_usual: usize,
    aggregate: u64,
    edges: u64,
}

impl<S: Sender> Source<'_, S> {
    /// Returns the next chunk, or `None` when no active vertex is left.
    fn next_chunk(&mut self) -> Result<Option<Chunk<S::Sent>>> {
        self.job.check_cancelled()?;
        let mut chunk = Chunk { rows: Vec::with_capacity(self.rows_usual), small: Vec::new(), large: None };
        let mut open: Option<RowWindow> = None;
        while chunk.rows.len() < self.rows_max {
            let Some((row, span)) = self.next_row()? else { break };
            let at = chunk.rows.len();
            match &mut open {
                Some(window) if self.joins(window, &span) => {
                    window.span.entries.end = span.entries.end;
                    window.span.blocks.end = span.blocks.end;
                    window.rows.end = at + 1;
                }
                _ => {
                    if let Some(window) = open.take()
                        && self.close(&mut chunk, window)
                    {
                        self.left.push(row);
                        return Ok(Some(self.counted(chunk)));
                    }
                    open = Some(RowWindow { span, rows: at..at + 1 });
                }
            }
            chunk.rows.push(row);
        }
        if let Some(window) = open {
            self.close(&mut chunk, window);
        }
        Ok((!chunk.rows.is_empty()).then(|| self.counted(chunk)))
    }

    fn counted(&mut self, chunk: Chunk<S::Sent>) -> Chunk<S::Sent> {
        self.edges += chunk.rows.iter().map(|row| row.count as u64).sum::<u64>();
        chunk
    }

    /// Tells whether a row goes into the open window.
    fn joins(&self, window: &RowWindow, row: &Span) -> bool {
        // In a corrupt index, a row may begin before the end of the row that precedes it.
        row.entries.start >= window.span.entries.end
            && (window.span.blocks.end - 1..=window.span.blocks.end + GAP_BLOCKS).contains(&row.blocks.start)
            && row.blocks.end - window.span.blocks.start <= self.window_blocks
            && row.entries.end - window.span.entries.start <= self.window_edges
    }

    /// Adds a window to the chunk; returns whether the chunk is full.
    fn close(&self, chunk: &mut Chunk<S::Sent>, window: RowWindow) -> bool {
        let blocks = window.span.blocks.end - window.span.blocks.start;
        if blocks <= SMALL_BLOCKS && self.weight_bytes(&window.span) <= 2 * SMALL_BYTES {
            chunk.small.push(window);
            chunk.small.len() == self.small_max
        } else {
            chunk.large = Some(window);
            true
        }
    }

    /// Returns the bytes that are read for weights.
    fn weight_bytes(&self, span: &Span) -> usize {
        match &self.csr.weights {
            Some(weights) if S::READS_WEIGHTS => weights.read_bytes(&weights_of(span)),
            _ => 0,
        }
    }

    /// Returns the next row, or the part of it that fits in a window.
    fn next_row(&mut self) -> Result<Option<(Row<S::Sent>, Span)>> {
        let row = match self.left.pop() {
            Some(row) => row,
            None => match self.next_vertex()? {
                Some(row) => row,
                None => return Ok(None),
            },
        };
        let mut wanted = row.edges();
        wanted.end = wanted.end.min(wanted.start.saturating_add(self.window_edges));
        let span = self.index.span(wanted, self.window_blocks)?;
        let count = (span.entries.end - span.entries.start) as u32;
        if count < row.count {
            self.left.push(Row { first: span.entries.end, count: row.count - count, sent: row.sent });
        }
        Ok(Some((Row { count, ..row }, span)))
    }

    /// Returns the row of the next active vertex that has edges and sends a message.
    fn next_vertex(&mut self) -> Result<Option<Row<S::Sent>>> {
        while let Some(vertex) = self.active.next()? {
            let (first, degree) = self.index.find(vertex)?;
            let state = self.state.get(vertex)?;
            self.aggregate = self.aggregate.wrapping_add(self.sender.aggregate(vertex, state, degree));
            if degree > 0
                && let Some(sent) = self.sender.send(vertex, state, degree)
            {
                return Ok(Some(Row { first, count: degree, sent }));
            }
        }
        Ok(None)
    }
}

/// The result of the edge phase.
pub(super) struct EdgePhaseResult<K> {
    pub sinks: Vec<K>,
    pub aggregate: u64,
    pub edges: u64,
}

/// Sends the messages of all active vertices along their rows in `csr`, with one worker per sink.
pub(super) fn send<S: Sender>(
    job: &Job,
    sender: &S,
    csr: &Csr,
    active: &Frontier,
    state: &mut VertexArray<S::State>,
    pools: &mut Pools,
    mut sinks: Vec<S::Sink>,
) -> Result<EdgePhaseResult<S::Sink>> {
    let window_bytes = pools.window_bytes;
    let small_max = window_bytes / SMALL_BYTES;
    // If few vertices are active, starting another thread costs more than sending all messages in the calling thread.
    let is_short = active.is_shorter_than(ALONE_VERTICES);
    let busy = if is_short { 1 } else { sinks.len() };
    let cursors = SPARE_SHARE * busy as u64 * csr::CURSOR_BYTES + rows_bytes(busy, window_bytes);
    let has_ranges =
        active.is_all() && state.in_memory().is_some() && job.budget().free_bytes() >= cursors && busy > 1;
    let ranges = has_ranges.then(|| VertexRanges::new(csr.vertices, csr::range_vertices(csr.vertices, busy)));
    let mut kept = Some(pools.cursor(job, csr)?);
    let mut source = |state| -> Result<_> {
        Ok(Mutex::new(Source {
            job,
            sender,
            csr,
            active: match &ranges {
                Some(ranges) => ranges.reader(),
                None => active.reader(job, csr.vertices)?,
            },
            state,
            index: match kept.take() {
                Some(index) => index,
                None => IndexCursor::new(job, csr)?,
            },
            left: Vec::new(),
            window_blocks: (window_bytes / BLOCK_BYTES) as u64,
            // One block of the buffer is left free, since a window may begin and end inside a block of the file of
            // weights.
            window_edges: match S::READS_WEIGHTS && csr.weights.is_some() {
                true => 2 * (window_bytes - BLOCK_BYTES) as u64 / 8,
                false => u64::MAX,
            },
            small_max,
            rows_max: window_bytes / BYTES_PER_ROW,
            rows_usual: if is_short { 0 } else { window_bytes / BYTES_PER_ROW },
            aggregate: 0,
            edges: 0,
        }))
    };
    let sources = match state.peek() {
        StatePeek::Memory(states) if has_ranges => {
            (0..busy).map(|_| source(StatePeek::Memory(states))).collect::<Result<Vec<_>>>()?
        }
        state => vec![source(state)?],
    };
    let weights = csr.weights.as_ref().filter(|_| S::READS_WEIGHTS);
    if pools.edges.is_empty() {
        pools.edges = Pool::new(job, sinks.len(), window_bytes, SMALL_BYTES)?;
    }
    if weights.is_some() && pools.weights.is_empty() {
        pools.weights = Pool::new(job, sinks.len(), 2 * window_bytes, 2 * SMALL_BYTES)?;
    }
    let idle = sinks.split_off(busy);
    let failed = AtomicBool::new(false);
    let mut workers = Vec::with_capacity(busy);
    for (number, sink) in sinks.into_iter().enumerate() {
        let edges = pools.edges.pop().expect("a pool for each worker");
        let weights = weights.map(|file| (file, pools.weights.pop().expect("a pool for each worker")));
        let (source, failed, unpacker) = (&sources[number % sources.len()], &failed, Unpacker::new());
        workers.push(Worker { job, csr, sender, source, failed, sink, unpacker, edges, weights });
    }
    let done = run_all(workers)?;
    let mut sinks = idle;
    for worker in done {
        sinks.push(worker.sink);
        pools.edges.push(worker.edges);
        pools.weights.extend(worker.weights.map(|(_, pool)| pool));
    }
    Ok(add_up(sources, sinks, pools))
}

/// Adds up the counts of the sources, and keeps a cursor for the next superstep.
fn add_up<S: Sender>(
    sources: Vec<Mutex<Source<'_, S>>>,
    sinks: Vec<S::Sink>,
    pools: &mut Pools,
) -> EdgePhaseResult<S::Sink> {
    let mut sent = EdgePhaseResult { sinks, aggregate: 0, edges: 0 };
    for source in sources {
        let source = source.into_inner().expect("no panic under this lock");
        sent.aggregate = sent.aggregate.wrapping_add(source.aggregate);
        sent.edges += source.edges;
        pools.index = Some(source.index);
    }
    sent
}

/// Runs all workers in parallel. One worker runs in the calling thread.
fn run_all<'a, 's, S: Sender>(mut workers: Vec<Worker<'a, 's, S>>) -> Result<Vec<Worker<'a, 's, S>>> {
    let first = workers.pop().expect("at least one sink");
    std::thread::scope(|scope| {
        let threads: Vec<_> = workers.into_iter().map(|worker| scope.spawn(move || worker.run())).collect();
        let first = first.run();
        let mut done: Vec<_> =
            threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect();
        done.push(first);
        done.into_iter().collect()
    })
}

struct Worker<'a, 's, S: Sender> {
    job: &'a Job,
    csr: &'a Csr,
    sender: &'a S,
    source: &'a Mutex<Source<'s, S>>,
    failed: &'a AtomicBool,
    sink: S::Sink,
    unpacker: Unpacker,
    edges: Pool,
    weights: Option<(&'a CheckedFile, Pool)>,
}

/// A chunk whose windows are being read.
struct ChunkInFlight<M> {
    rows: Vec<Row<M>>,
    windows: Vec<(RowWindow, PendingRead, Option<PendingRead>)>,
}

impl<S: Sender> Worker<'_, '_, S> {
    fn run(mut self) -> Result<Self> {
        let result = self.work();
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result.map(|()| self)
    }

    fn work(&mut self) -> Result<()> {
        let (mut in_flight, mut is_last) = (VecDeque::with_capacity(CHUNKS), false);
        while !self.failed.load(Ordering::Relaxed) {
            while !is_last && in_flight.len() < CHUNKS {
                match self.next_chunk()? {
                    Some(chunk) => in_flight.push_back(self.submit(chunk)?),
                    None => is_last = true,
                }
            }
            let Some(next) = in_flight.pop_front() else { break };
            self.process(next)?;
        }
        Ok(())
    }

    /// Returns the next chunk; `None` at the end, or if another worker failed, since a source must not be called again
    /// after a failure.
    fn next_chunk(&self) -> Result<Option<Chunk<S::Sent>>> {
        let mut source = self.source.lock().expect("no panic under this lock");
        if self.failed.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let chunk = source.next_chunk();
        if chunk.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        chunk
    }

    fn submit(&mut self, chunk: Chunk<S::Sent>) -> Result<ChunkInFlight<S::Sent>> {
        let mut windows = Vec::with_capacity(chunk.small.len() + 1);
        for window in chunk.small {
            windows.push(self.read(window, true)?);
        }
        if let Some(window) = chunk.large {
            windows.push(self.read(window, false)?);
        }
        Ok(ChunkInFlight { rows: chunk.rows, windows })
    }

    fn read(
        &mut self,
        window: RowWindow,
        is_small: bool,
    ) -> Result<(RowWindow, PendingRead, Option<PendingRead>)> {
        let edges = self.csr.edges.submit_read(self.job, window.span.bytes(), self.edges.take(is_small))?;
        let weights = match &mut self.weights {
            Some((file, pool)) => {
                Some(file.submit_read(self.job, weights_of(&window.span), pool.take(is_small))?)
            }
            None => None,
        };
        Ok((window, edges, weights))
    }

    fn process(&mut self, in_flight: ChunkInFlight<S::Sent>) -> Result<()> {
        let mut sent = 0;
        for (window, edges, weights) in in_flight.windows {
            let (edges, range) = edges.wait()?;
            let weights = weights.map(PendingRead::wait).transpose()?;
            let all_weights = match &weights {
                Some((weights, range)) => &weights.typed::<f64>()[range.start / 8..range.end / 8],
                None => &[],
            };
            self.unpacker.restart();
            sent += self.send(&window.span, &in_flight.rows[window.rows], &edges[range], all_weights)?;
            self.edges.put(edges);
            if let (Some((buffer, _)), Some((_, pool))) = (weights, &mut self.weights) {
                pool.put(buffer);
            }
        }
        self.job.progress().add(sent);
        Ok(())
    }

    /// Sends along the rows of a window; returns the number of edges.
    fn send(&mut self, span: &Span, rows: &[Row<S::Sent>], blocks: &[u8], weights: &[f64]) -> Result<u64> {
        let (mut sent, mut looked_at) = (0, 0);
        for (at, row) in rows.iter().enumerate() {
            let mut left = row.edges();
            while !left.is_empty() {
                if !self.unpacker.entries().contains(&left.start) {
                    looked_at = left.start;
                    let wanted = left.start..run_end(&rows[at..]);
                    if !self.unpacker.unpack(self.csr, blocks, wanted)? {
                        return Err(self.csr.misplaced(left.start));
                    }
                }
                let entries = self.unpacker.entries();
                let unpacked = entries.start.max(span.entries.start)..entries.end.min(span.entries.end);
                if !unpacked.contains(&left.start) {
                    return Err(self.csr.misplaced(left.start));
                }
                let end = left.end.min(unpacked.end);
                let part = (left.start - unpacked.start) as usize..(end - unpacked.start) as usize;
                let weights = match weights {
                    [] => &[],
                    all => &all[(unpacked.start - span.entries.start) as usize..],
                };
                let window = self.unpacker.get(unpacked.clone());
                if S::LOOKS && left.start >= looked_at {
                    looked_at = unbroken_end(&rows[at..]).min(unpacked.end);
                    let seen = part.start..(looked_at - unpacked.start) as usize;
                    self.sender.look(&mut self.sink, window, seen);
                }
                self.sender.push(&mut self.sink, window, part, weights, row.sent)?;
                left.start = end;
            }
            sent += u64::from(row.count);
        }
        Ok(sent)
    }
}

/// Returns the end of the consecutive edges that begin with the first row.
fn unbroken_end<M>(rows: &[Row<M>]) -> u64 {
    let mut end = rows[0].edges().end;
    for row in &rows[1..] {
        if row.first != end || end > rows[0].first + UNPACKED_MAX {
            break;
        }
        end = row.edges().end;
    }
    end
}

/// Returns the end of the edges that can be unpacked together with the edges of the first row, because the gaps between
/// the rows are small.
fn run_end<M>(rows: &[Row<M>]) -> u64 {
    let mut end = rows[0].edges().end;
    for row in &rows[1..] {
        if row.first > end + UNPACKED_GAP || end > rows[0].first + UNPACKED_MAX {
            break;
        }
        end = row.edges().end;
    }
    end
}

/// Returns the byte range of these edges' weights in the file of weights.
fn weights_of(span: &Span) -> Range<u64> {
    span.entries.start * 8..span.entries.end * 8
}
