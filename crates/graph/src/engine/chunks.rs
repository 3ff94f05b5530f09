//! The edge phase of a superstep: from active vertices to messages.
//!
//! One [`Source`] walks forwards over the active vertices, their states and their index entries, and cuts the
//! edges to be read into chunks: either one large window of the edge file, in which rows lie close together, or a
//! batch of small windows far apart, which are read at once. Workers take chunks in turn: each has one chunk on
//! its way from the drive while it sends the messages of the one before.

use std::{
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use inshore_sortreduce::Sink;
use inshore_store::{Buffer, Job, PendingRead};

use super::{
    Frontier, Reduce, VertexProgram,
    frontier::FrontierReader,
    state::{StateCursor, VertexArray},
};
use crate::{
    Result,
    csr::{self, BLOCK_BYTES, Csr, IndexCursor},
};

const WINDOW_BYTES_MIN: usize = 64 << 10;
const WINDOW_BYTES_MAX: usize = 1 << 20;
/// A small window: rows in at most two blocks of the edge file.
const SMALL_BYTES: usize = 2 * BLOCK_BYTES;
/// Rows this far apart are read as one window: 16 KiB take a drive less time than another request.
const GAP_BYTES: u64 = BLOCK_BYTES as u64;
const ROWS_MAX: usize = 4096;

/// How many workers, and the size of their windows, in at most an eighth of the free memory.
pub(super) fn workers(threads: usize, free_bytes: u64) -> (usize, usize) {
    let each = |window_bytes: usize| 4 * window_bytes as u64;
    let workers = threads.min((free_bytes / 8 / each(WINDOW_BYTES_MIN)) as usize).max(1);
    let mut window_bytes = WINDOW_BYTES_MIN;
    while window_bytes < WINDOW_BYTES_MAX && workers as u64 * each(window_bytes * 2) <= free_bytes / 8 {
        window_bytes *= 2;
    }
    (workers, window_bytes)
}

/// Memory that the edge phase takes: two large windows and two batches of small ones a worker, their rows, and the
/// index cursor.
pub(super) fn memory_bytes(workers: usize, window_bytes: usize) -> u64 {
    let buffers = (4 * window_bytes * workers).next_multiple_of(2 << 20);
    (buffers + 2 * ROWS_MAX * 32 * workers) as u64 + csr::CURSOR_BYTES
}

/// A part of a vertex's row, and what to send along it.
struct Row<M> {
    first: u64,
    count: u32,
    message: M,
}

/// Rows that lie in one range of the edge file.
struct Window {
    edges: Range<u64>,
    rows: Range<usize>,
}

struct Chunk<M> {
    rows: Vec<Row<M>>,
    small: Vec<Window>,
    large: Option<Window>,
}

/// Walks over the active vertices and makes chunks.
struct Source<'a, P: VertexProgram> {
    job: &'a Job,
    program: &'a P,
    csr: &'a Csr,
    active: FrontierReader,
    state: StateCursor<'a, P::State>,
    index: IndexCursor,
    /// Rows (or parts of one) that did not fit in the window or chunk before; the next one last.
    left: Vec<Row<P::Message>>,
    window_edges: u64,
    small_max: usize,
    gathered: u64,
    edges: u64,
}

impl<P: VertexProgram> Source<'_, P> {
    /// The next chunk, or `None` where no active vertex is left.
    fn next_chunk(&mut self) -> Result<Option<Chunk<P::Message>>> {
        self.job.check_cancelled()?;
        let mut chunk = Chunk { rows: Vec::with_capacity(ROWS_MAX), small: Vec::new(), large: None };
        let mut open: Option<Window> = None;
        while chunk.rows.len() < ROWS_MAX {
            let Some(row) = self.next_row()? else { break };
            let end = row.first + row.count as u64;
            let at = chunk.rows.len();
            match &mut open {
                Some(window) if self.joins(window, row.first, end) => {
                    window.edges.end = end;
                    window.rows.end = at + 1;
                }
                _ => {
                    if let Some(window) = open.take()
                        && self.close(&mut chunk, window)
                    {
                        self.left.push(row);
                        return Ok(Some(self.counted(chunk)));
                    }
                    open = Some(Window { edges: row.first..end, rows: at..at + 1 });
                }
            }
            chunk.rows.push(row);
        }
        if let Some(window) = open {
            self.close(&mut chunk, window);
        }
        Ok((!chunk.rows.is_empty()).then(|| self.counted(chunk)))
    }

    fn counted(&mut self, chunk: Chunk<P::Message>) -> Chunk<P::Message> {
        self.edges += chunk.rows.iter().map(|row| row.count as u64).sum::<u64>();
        chunk
    }

    /// Whether a row goes into a window that is open.
    fn joins(&self, window: &Window, first: u64, end: u64) -> bool {
        first - window.edges.end <= GAP_BYTES / 4 && end - window.edges.start <= self.window_edges
    }

    /// Puts a window into the chunk; whether the chunk is full.
    fn close(&self, chunk: &mut Chunk<P::Message>, window: Window) -> bool {
        let bytes = window.edges.start * 4..window.edges.end * 4;
        if self.csr.edges.read_bytes(&bytes) <= SMALL_BYTES {
            chunk.small.push(window);
            chunk.small.len() == self.small_max
        } else {
            chunk.large = Some(window);
            true
        }
    }

    /// The next row, or as much of it as fits in a window.
    fn next_row(&mut self) -> Result<Option<Row<P::Message>>> {
        let row = match self.left.pop() {
            Some(row) => row,
            None => match self.next_vertex()? {
                Some(row) => row,
                None => return Ok(None),
            },
        };
        let count = row.count.min(self.window_edges as u32);
        if count < row.count {
            let (first, left) = (row.first + count as u64, row.count - count);
            self.left.push(Row { first, count: left, message: row.message });
        }
        Ok(Some(Row { count, ..row }))
    }

    /// The row of the next active vertex that has edges and something to say.
    fn next_vertex(&mut self) -> Result<Option<Row<P::Message>>> {
        while let Some(vertex) = self.active.next()? {
            let (first, degree) = self.index.find(vertex)?;
            let state = self.state.get(vertex)?;
            self.gathered += self.program.gather(state, degree);
            if degree > 0
                && let Some(message) = self.program.edge_program(vertex, state, degree)
            {
                return Ok(Some(Row { first, count: degree, message }));
            }
        }
        Ok(None)
    }
}

/// What the edge phase gives back.
pub(super) struct Sent<P: VertexProgram> {
    pub sinks: Vec<Sink<Reduce<P>>>,
    pub gathered: u64,
    pub edges: u64,
}

/// Sends the messages of all active vertices along their rows in `csr`, by one worker for each sink.
pub(super) fn send<P: VertexProgram>(
    job: &Job,
    program: &P,
    csr: &Csr,
    active: &Frontier,
    state: &mut VertexArray<P::State>,
    window_bytes: usize,
    sinks: Vec<Sink<Reduce<P>>>,
) -> Result<Sent<P>> {
    let small_max = window_bytes / SMALL_BYTES;
    let source = Mutex::new(Source {
        job,
        program,
        csr,
        active: active.reader(job, csr.vertices)?,
        state: state.cursor()?,
        index: IndexCursor::new(job, csr)?,
        left: Vec::new(),
        // A window may begin and end inside a block of the file.
        window_edges: (window_bytes - 2 * BLOCK_BYTES) as u64 / 4,
        small_max,
        gathered: 0,
        edges: 0,
    });
    let workers = sinks.len();
    let large =
        Buffer::zeroed(job.budget(), 2 * workers * window_bytes, "windows of edges")?.split(window_bytes);
    let small = Buffer::zeroed(job.budget(), 2 * workers * small_max * SMALL_BYTES, "windows of edges")?;
    let (mut large, mut small) = (large.into_iter(), small.split(SMALL_BYTES).into_iter());
    let failed = AtomicBool::new(false);
    let sinks = std::thread::scope(|scope| -> Result<Vec<_>> {
        let mut threads = Vec::with_capacity(workers);
        for sink in sinks {
            let worker = Worker {
                job,
                csr,
                source: &source,
                failed: &failed,
                sink,
                large: large.by_ref().take(2).collect(),
                small: small.by_ref().take(2 * small_max).collect(),
            };
            threads.push(scope.spawn(move || worker.run()));
        }
        threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect()
    })?;
    let source = source.into_inner().expect("no panic under this lock");
    source.state.finish()?;
    Ok(Sent { sinks, gathered: source.gathered, edges: source.edges })
}

struct Worker<'a, 's, P: VertexProgram> {
    job: &'a Job,
    csr: &'a Csr,
    source: &'a Mutex<Source<'s, P>>,
    failed: &'a AtomicBool,
    sink: Sink<Reduce<P>>,
    large: Vec<Buffer>,
    small: Vec<Buffer>,
}

/// A chunk whose windows are on their way.
struct Flying<M> {
    rows: Vec<Row<M>>,
    windows: Vec<(Window, PendingRead)>,
}

impl<P: VertexProgram> Worker<'_, '_, P> {
    fn run(mut self) -> Result<Sink<Reduce<P>>> {
        let result = self.work();
        if result.is_err() {
            self.failed.store(true, Ordering::Relaxed);
        }
        result.map(|()| self.sink)
    }

    fn work(&mut self) -> Result<()> {
        let mut flying = None;
        while !self.failed.load(Ordering::Relaxed) {
            let chunk = self.source.lock().expect("no panic under this lock").next_chunk()?;
            let next = match chunk {
                Some(chunk) => Some(self.submit(chunk)?),
                None => None,
            };
            let last = next.is_none();
            if let Some(flying) = std::mem::replace(&mut flying, next) {
                self.process(flying)?;
            }
            if last {
                break;
            }
        }
        Ok(())
    }

    fn submit(&mut self, chunk: Chunk<P::Message>) -> Result<Flying<P::Message>> {
        let mut windows = Vec::with_capacity(chunk.small.len() + 1);
        for window in chunk.small {
            let buffer = self.small.pop().expect("two batches of small windows");
            windows.push(self.read(window, buffer)?);
        }
        if let Some(window) = chunk.large {
            let buffer = self.large.pop().expect("two large windows");
            windows.push(self.read(window, buffer)?);
        }
        Ok(Flying { rows: chunk.rows, windows })
    }

    fn read(&self, window: Window, buffer: Buffer) -> Result<(Window, PendingRead)> {
        let bytes = window.edges.start * 4..window.edges.end * 4;
        let pending = self.csr.edges.submit_read(self.job, bytes, buffer)?;
        Ok((window, pending))
    }

    fn process(&mut self, flying: Flying<P::Message>) -> Result<()> {
        let mut sent = 0;
        for (window, pending) in flying.windows {
            let (buffer, range) = pending.wait()?;
            let edges = &buffer.typed::<u32>()[range.start / 4..range.end / 4];
            for row in &flying.rows[window.rows.clone()] {
                let start = (row.first - window.edges.start) as usize;
                self.sink.push_all(&edges[start..start + row.count as usize], row.message)?;
                sent += row.count as u64;
            }
            match buffer.len() == SMALL_BYTES {
                true => self.small.push(buffer),
                false => self.large.push(buffer),
            }
        }
        self.job.progress().add(sent);
        Ok(())
    }
}
