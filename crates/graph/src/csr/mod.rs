//! Compressed sparse rows on flash: scanning and looking up. Layout: `docs/format.md`, "Graph".
//!
//! ```text
//!   index page (4 KiB):  u64 entry   number of the first edge of the page's first vertex
//!                        u32 block   in which that edge lies, or one before
//!                        u32 degree  x 1021
//!
//!   index ──► number of an edge ──► blocks: first frames ──► block of packed edges
//! ```
//!
//! A degree per vertex and an edge number per page take 4 bytes per vertex, where an array of edge numbers takes 8. The first
//! edge of a vertex is the page's edge number plus the degrees before: at most 1020 additions in cache, and one if vertices are
//! looked up in order. Edges are packed (`packed.rs`); a file of 4 bytes per block (`blocks.rs`), of which a window is in memory,
//! tells the block of an edge.

mod blocks;
mod packed;
mod write;

use std::{
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use inshore_sortreduce::{Config, Operation, SortReduce, Sorted};
use inshore_store::{Buffer, CheckedFile, FileReader, FileWriter, Job, PendingRead};

use self::blocks::BlockCursor;
pub(crate) use self::packed::{UNPACKER_BYTES, Unpacker};
pub(crate) use self::write::{
    CsrFiles, CsrStats, CsrWriter, Numbered, Numbering, STEP, Staged, write_rows, writer_bytes,
};
use crate::{Error, Result};

/// Vertices in an index page.
pub(crate) const PAGE_VERTICES: u64 = 1021;
const PAGE_BYTES: u64 = 4096;
/// Bytes before the degrees of a page.
const PAGE_HEADER_BYTES: usize = 12;
/// The unit of checksums of index and edge files: small, since sparse supersteps read blocks at random.
pub(crate) const BLOCK_BYTES: usize = 16 << 10;
/// Window of a scan, and the largest window of a cursor.
pub(crate) const WINDOW_BYTES: usize = 256 << 10;
const BLOCK_PAGES: u64 = BLOCK_BYTES as u64 / PAGE_BYTES;
const WINDOW_PAGES: u64 = WINDOW_BYTES as u64 / PAGE_BYTES;

/// Memory of the checksums of files with as many edges: 4 bytes per block.
pub(crate) fn checksum_bytes(csr: &Csr) -> u64 {
    checksum_bytes_max(csr.vertices, csr.entries, false)
}

/// Returns the same for so many vertices and entries that are not written yet.
fn checksum_bytes_max(vertices: u64, entries: u64, weighted: bool) -> u64 {
    let edges = packed::blocks_bytes_max(entries) + if weighted { entries * 8 } else { 0 };
    // The file of blocks has one block for 4096 blocks of edges.
    4 * ((edges + index_bytes(vertices)).div_ceil(BLOCK_BYTES as u64) + edges.div_ceil(64 << 20))
}

/// Bytes of the index of `vertices` vertices.
pub(crate) fn index_bytes(vertices: u64) -> u64 {
    vertices.div_ceil(PAGE_VERTICES) * PAGE_BYTES
}

/// The edges of a graph in one direction.
#[derive(Clone, Debug)]
pub(crate) struct Csr {
    pub vertices: u64,
    pub entries: u64,
    /// Upper limit of entries: the number of vertices, except in rows that an algorithm made for itself.
    pub entry_range: u64,
    pub index: CheckedFile,
    pub edges: CheckedFile,
    /// The first frame of each block of edges.
    pub blocks: CheckedFile,
    pub weights: Option<CheckedFile>,
}

impl Csr {
    fn files(&self) -> impl Iterator<Item = &CheckedFile> {
        [Some(&self.index), Some(&self.edges), Some(&self.blocks), self.weights.as_ref()]
            .into_iter()
            .flatten()
    }

    fn bad_index(&self, found: String, expected: String) -> Error {
        Error::BadGraph { name: self.index.name().to_string(), what: "degrees", found, expected }
    }

    /// Refuses numbers that are no vertices: checksums prove that bytes are as written, and not that a graph wrote them.
    pub fn check_targets(&self, targets: &[u32]) -> Result<()> {
        let max = targets.iter().copied().max().unwrap_or(0);
        if u64::from(max) < self.entry_range {
            return Ok(());
        }
        Err(Error::BadGraph {
            name: self.edges.name().to_string(),
            what: "an edge",
            found: format!("to vertex number {max}"),
            expected: format!("numbers below {}", self.entry_range),
        })
    }

    /// Creates the error of rows whose edges are not where the index says.
    pub fn misplaced(&self, first: u64) -> Error {
        self.bad_index(format!("edge {first} behind its block"), "edges in their blocks".to_string())
    }

    /// Returns the memory that [`Self::hold`] takes.
    pub fn held_bytes(&self) -> u64 {
        self.files().map(|file| CheckedFile::held_bytes(file.len())).sum()
    }

    /// Reads all files into memory.
    pub fn hold(&self, job: &Job) -> Result<Csr> {
        let bytes = self.files().map(CheckedFile::len).sum();
        job.start_phase("reading edges into memory", "bytes", bytes);
        let hold = |file: &CheckedFile| file.hold(job, |bytes| job.progress().add(bytes));
        let (index, edges, blocks) = (hold(&self.index)?, hold(&self.edges)?, hold(&self.blocks)?);
        let weights = self.weights.as_ref().map(hold).transpose()?;
        Ok(Csr { index, edges, blocks, weights, ..self.clone() })
    }

    /// Returns the same rows for readers that skip weights.
    pub fn unweighted(&self) -> Csr {
        Csr { weights: None, ..self.clone() }
    }
}

/// Defines how edges are sorted: the key is source and destination, the value a weight or nothing. Duplicates merge: the smallest
/// weight wins, so the result does not depend on the order of the input.
pub(crate) trait EdgeOperation: Operation<Key = u64> + Default {
    const WEIGHTED: bool;
    fn value(weight: f64) -> Self::Value;
    fn weight(value: Self::Value) -> f64;
}

#[derive(Clone, Default)]
pub(crate) struct Unweighted;

impl Operation for Unweighted {
    type Key = u64;
    type Value = ();
    fn combine(&self, _: (), _: ()) {}
}

impl EdgeOperation for Unweighted {
    const WEIGHTED: bool = false;
    fn value(_: f64) {}
    fn weight(_: ()) -> f64 {
        1.0
    }
}

#[derive(Clone, Default)]
pub(crate) struct SmallestWeight;

impl Operation for SmallestWeight {
    type Key = u64;
    type Value = f64;
    fn combine(&self, a: f64, b: f64) -> f64 {
        a.min(b)
    }
}

impl EdgeOperation for SmallestWeight {
    const WEIGHTED: bool = true;
    fn value(weight: f64) -> f64 {
        weight
    }
    fn weight(value: f64) -> f64 {
        value
    }
}

/// Returns the key of an edge.
pub(crate) fn edge_key(source: u32, destination: u32) -> u64 {
    (source as u64) << 32 | destination as u64
}

/// Sorts the edges of `csr` by their destination.
pub(crate) fn transposed<E: EdgeOperation>(job: &Job, csr: &Csr) -> Result<Sorted<E>> {
    job.start_phase("transposing edges", "edges", csr.entries);
    let threads = scan_threads(job);
    let scans = threads as u64 * SCAN_BYTES * if E::WEIGHTED { 2 } else { 1 };
    let writing = writer_bytes(job) + checksum_bytes(csr);
    let memory_bytes = job.budget().free_bytes().saturating_sub(scans + writing + 64 * 1024);
    let config = Config { memory_bytes, sinks: threads, name: "transpose", ..Config::default() };
    let sorter = SortReduce::new(job, E::default(), &config)?;
    let mut sinks = Vec::with_capacity(threads);
    for _ in 0..threads {
        sinks.push(sorter.sink()?);
    }
    let sinks = parallel_ranges(csr.vertices, sinks, |sink, range| {
        let mut rows = RowReader::new(job, csr, range.clone())?;
        for vertex in range {
            let source = vertex as u32;
            rows.start(source)?;
            while let Some(part) = rows.part()? {
                for (place, &destination) in part.row.iter().enumerate() {
                    let weight = part.weights.map_or(1.0, |weights| weights[place]);
                    sink.push(edge_key(destination, source), E::value(weight))?;
                }
                job.progress().add(part.row.len() as u64);
            }
        }
        Ok(())
    })?;
    for sink in sinks {
        sink.finish()?;
    }
    job.start_phase("writing in-edges", "edges", csr.entries);
    Ok(sorter.finish()?)
}

/// Transposes the edges, without weights, into the job's scratch.
pub(crate) fn transpose_to_scratch(job: &Job, csr: &Csr) -> Result<Csr> {
    let csr = &csr.unweighted();
    let sorted = transposed::<Unweighted>(job, csr)?;
    let create = |name: &str, block_bytes, buffer_bytes| {
        Ok(FileWriter::create(job, &format!("in.{name}"), block_bytes, buffer_bytes)?)
    };
    let writer = CsrWriter::new(job, create, csr.vertices, false, false)?;
    let files = write_rows(job, sorted, writer, &Numbered)?;
    let (index, edges, blocks) = (files.index.finish()?, files.edges.finish()?, files.blocks.finish()?);
    let entries = files.stats.entries;
    Ok(Csr { entries, index, edges, blocks, ..csr.clone() })
}

/// Looks up rows in ascending order of vertices, reading ahead where lookups are close together.
pub(crate) struct IndexCursor {
    job: Job,
    csr: Csr,
    /// Pages in memory: number of the first, count, and offset in the buffer.
    window: Option<(u64, u64, Buffer, usize)>,
    ahead: Option<(u64, u64, PendingRead)>,
    spare: Vec<Buffer>,
    /// Pages of the next window: doubled when windows follow each other.
    grown: u64,
    page: u64,
    slot: usize,
    entry: u64,
    blocks: BlockCursor,
}

/// Memory of an [`IndexCursor`].
pub(crate) const CURSOR_BYTES: u64 = 2 * WINDOW_BYTES as u64 + blocks::CURSOR_BYTES;

/// Consecutive entries, and their blocks.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    pub entries: Range<u64>,
    pub blocks: Range<u64>,
}

impl Span {
    /// Returns the bytes of the blocks in the file of edges.
    pub fn bytes(&self) -> Range<u64> {
        self.blocks.start * BLOCK_BYTES as u64..self.blocks.end * BLOCK_BYTES as u64
    }
}

impl IndexCursor {
    pub fn new(job: &Job, csr: &Csr) -> Result<IndexCursor> {
        let buffers = Buffer::zeroed(job.budget(), 2 * WINDOW_BYTES, "an index cursor")?;
        Ok(IndexCursor {
            job: job.clone(),
            csr: csr.clone(),
            window: None,
            ahead: None,
            spare: buffers.split(WINDOW_BYTES),
            grown: BLOCK_PAGES,
            page: u64::MAX,
            slot: 0,
            entry: 0,
            blocks: BlockCursor::new(job, csr)?,
        })
    }

    /// Tells whether the cursor reads the files of `csr`.
    pub fn is_of(&self, csr: &Csr) -> bool {
        self.csr.index.name() == csr.index.name()
    }

    /// Returns the blocks of the first entries, at most `blocks_max` blocks. There is at least one entry, and none before the row
    /// of the vertex that was found last.
    pub fn span(&mut self, entries: Range<u64>, blocks_max: u64) -> Result<Span> {
        let (_, hint, _) = self.present();
        let first = self.blocks.find(entries.start, hint)?;
        if entries.end <= self.blocks.entries().end {
            return Ok(Span { entries, blocks: first..first + 1 });
        }
        let end = entries.end.min(self.blocks.first_entry(first + blocks_max)?);
        if end <= entries.start {
            return Err(self.blocks.bad(format!(
                "block {} before edge {}",
                first + blocks_max,
                entries.start
            )));
        }
        let last = self.blocks.find(end - 1, first)?;
        if last - first >= blocks_max {
            return Err(self
                .blocks
                .bad(format!("edges {}..{end} in blocks {first} to {last}", entries.start)));
        }
        Ok(Span { entries: entries.start..end, blocks: first..last + 1 })
    }

    /// Returns the number of the first edge of `vertex`, and its degree.
    pub fn find(&mut self, vertex: u32) -> Result<(u64, u32)> {
        let (page, slot) = (vertex as u64 / PAGE_VERTICES, (vertex as u64 % PAGE_VERTICES) as usize);
        if page != self.page {
            self.load(page)?;
        } else if slot < self.slot {
            self.rewind();
        }
        let (_, _, degrees) = self.present();
        let (degree, passed) = (degrees[slot], &degrees[self.slot..slot]);
        self.entry += passed.iter().map(|&degree| degree as u64).sum::<u64>();
        self.slot = slot;
        if self.entry + u64::from(degree) > self.csr.entries {
            let (entries, end) = (self.csr.entries, self.entry + u64::from(degree));
            return Err(self.csr.bad_index(format!("{end} edges"), format!("{entries} at most")));
        }
        Ok((self.entry, degree))
    }

    /// Returns the degrees of a page's vertices, without those past the last vertex.
    fn degrees(&mut self, page: u64) -> Result<&[u32]> {
        if page != self.page {
            self.load(page)?;
        }
        Ok(self.present().2)
    }

    /// Returns the number of the page's first edge, a block not after that edge, and the degrees.
    fn present(&self) -> (u64, u64, &[u32]) {
        let (first, _, buffer, start) = self.window.as_ref().expect("loaded");
        let at = start + ((self.page - first) * PAGE_BYTES) as usize;
        let entry = u64::from_le_bytes(buffer[at..at + 8].try_into().expect("8 bytes"));
        let block = u32::from_le_bytes(buffer[at + 8..at + PAGE_HEADER_BYTES].try_into().expect("4 bytes"));
        (entry, block.into(), typed(&buffer[at + PAGE_HEADER_BYTES..at + PAGE_BYTES as usize]))
    }

    fn rewind(&mut self) {
        self.entry = self.present().0;
        self.slot = 0;
    }

    /// Returns the edge at which the page after the present one begins, by the degrees of this one.
    fn page_end(&self) -> u64 {
        let (entry, _, degrees) = self.present();
        entry + degrees.iter().map(|&degree| u64::from(degree)).sum::<u64>()
    }

    fn load(&mut self, page: u64) -> Result<()> {
        let follows_page = self.window.is_some() && page == self.page.wrapping_add(1);
        let expected = follows_page.then(|| self.page_end());
        let inside = |first: u64, pages: u64| (first..first + pages).contains(&page);
        if !self.window.as_ref().is_some_and(|&(first, pages, ..)| inside(first, pages)) {
            let before = self.window.take().map(|(first, pages, buffer, _)| {
                self.spare.push(buffer);
                first + pages
            });
            let follows = before.is_some_and(|end| (end..end + self.grown).contains(&page));
            self.grown = if follows { (self.grown * 2).min(WINDOW_PAGES) } else { BLOCK_PAGES };
            if !self.ahead.as_ref().is_some_and(|&(first, pages, _)| inside(first, pages)) {
                if let Some((_, _, pending)) = self.ahead.take() {
                    self.spare.push(pending.wait()?.0);
                }
                self.ahead = self.submit(page / BLOCK_PAGES * BLOCK_PAGES)?;
            }
            let (first, pages, pending) = self.ahead.take().expect("pages of the index");
            let (buffer, range) = pending.wait()?;
            self.window = Some((first, pages, buffer, range.start));
            if follows {
                self.ahead = self.submit(first + pages)?;
            }
        }
        self.page = page;
        self.rewind();
        match expected {
            Some(expected) if expected != self.entry => {
                let found = format!("edge {} at the beginning of page {page}", self.entry);
                Err(self.csr.bad_index(found, format!("edge {expected}")))
            }
            _ => Ok(()),
        }
    }

    /// Starts to read the window that begins at page `first`; `None` after the last page.
    fn submit(&mut self, first: u64) -> Result<Option<(u64, u64, PendingRead)>> {
        let total = self.csr.index.len() / PAGE_BYTES;
        let pages = self.grown.min(total.saturating_sub(first));
        if pages == 0 {
            return Ok(None);
        }
        let buffer = self.spare.pop().expect("two buffers: the window's and the one ahead");
        let range = first * PAGE_BYTES..(first + pages) * PAGE_BYTES;
        Ok(Some((first, pages, self.csr.index.submit_read(&self.job, range, buffer)?)))
    }
}

/// Reads degrees of vertices in order.
pub(crate) struct Degrees {
    cursor: IndexCursor,
    /// The vertices of the present page.
    page: Range<u64>,
    degrees: Vec<u32>,
}

impl Degrees {
    pub fn new(job: &Job, csr: &Csr) -> Result<Degrees> {
        Ok(Degrees::after(IndexCursor::new(job, csr)?))
    }

    fn after(cursor: IndexCursor) -> Degrees {
        Degrees { cursor, page: 0..0, degrees: Vec::with_capacity(PAGE_VERTICES as usize) }
    }

    #[inline(always)]
    pub fn of(&mut self, vertex: u32) -> Result<u32> {
        if !self.page.contains(&vertex.into()) {
            self.load(vertex)?;
        }
        Ok(self.degrees[(u64::from(vertex) - self.page.start) as usize])
    }

    /// Returns the degrees from `vertex` to the end of its page.
    pub fn from(&mut self, vertex: u32) -> Result<&[u32]> {
        if !self.page.contains(&vertex.into()) {
            self.load(vertex)?;
        }
        Ok(&self.degrees[(u64::from(vertex) - self.page.start) as usize..])
    }

    #[inline(never)]
    fn load(&mut self, vertex: u32) -> Result<()> {
        let number = u64::from(vertex) / PAGE_VERTICES;
        self.degrees.clear();
        self.degrees.extend_from_slice(self.cursor.degrees(number)?);
        self.page = number * PAGE_VERTICES..(number + 1) * PAGE_VERTICES;
        Ok(())
    }
}

/// Memory of a scan without weights.
pub(crate) const SCAN_BYTES: u64 = CURSOR_BYTES + 2 * WINDOW_BYTES as u64 + UNPACKER_BYTES;

/// Returns the number of parallel scans that a budget allows: one per thread, in at most a quarter of the free memory.
pub(crate) fn scan_threads(job: &Job) -> usize {
    let fit = (job.budget().free_bytes() / 4 / SCAN_BYTES) as usize;
    job.budget().threads().min(fit).max(1)
}

/// Reads rows of a range of vertices, one vertex after the other.
pub(crate) struct RowReader {
    csr: Csr,
    degrees: Degrees,
    edges: FileReader,
    unpacker: Unpacker,
    weights: Option<FileReader>,
    /// Entries of the range that were not returned yet, and how many of them belong to the present vertex.
    entries: Range<u64>,
    left: u32,
    /// Entries of the present piece whose weights were returned.
    used: usize,
}

impl RowReader {
    pub fn new(job: &Job, csr: &Csr, vertices: Range<u64>) -> Result<RowReader> {
        Self::deep(job, csr, vertices, 2)
    }

    /// Creates a reader with so many windows of edges (and of weights), of which all but one can be in flight.
    pub fn deep(job: &Job, csr: &Csr, vertices: Range<u64>, buffers: usize) -> Result<RowReader> {
        let mut cursor = IndexCursor::new(job, csr)?;
        let (mut entries, mut blocks) = (0..0, 0..0);
        if !vertices.is_empty() {
            let (last, degree) = cursor.find((vertices.end - 1) as u32)?;
            let (first, _) = cursor.find(vertices.start as u32)?;
            entries = first..last + degree as u64;
            if vertices.end == csr.vertices && entries.end != csr.entries {
                let found = format!("{} edges", entries.end);
                return Err(csr.bad_index(found, csr.entries.to_string()));
            }
            if !entries.is_empty() {
                let span = cursor.span(entries.clone(), u64::from(u32::MAX))?;
                blocks = span.bytes();
            }
        }
        let edges = FileReader::deep(job, &csr.edges, blocks, WINDOW_BYTES, buffers)?;
        let weights = match &csr.weights {
            Some(file) => {
                let range = entries.start * 8..entries.end * 8;
                Some(FileReader::deep(job, file, range, WINDOW_BYTES, buffers)?)
            }
            None => None,
        };
        let (csr, degrees, unpacker) = (csr.clone(), Degrees::after(cursor), Unpacker::new());
        Ok(RowReader { csr, degrees, edges, unpacker, weights, entries, left: 0, used: 0 })
    }

    /// Moves to `vertex`, the next one of the range, and returns the length of its row. The row before was read to its end.
    pub fn start(&mut self, vertex: u32) -> Result<u32> {
        debug_assert_eq!(self.left, 0, "the row before was read whole");
        self.left = self.degrees.of(vertex)?;
        Ok(self.left)
    }

    fn too_long(&self) -> Error {
        self.csr.bad_index(format!("{} edges more", self.left), "no more in this range".to_string())
    }

    /// Returns the next part of the present row, with its weights where there are any; `None` at the end of the row.
    pub fn part(&mut self) -> Result<Option<RowPart<'_>>> {
        if self.left == 0 {
            return Ok(None);
        }
        let start = self.entries.start;
        if self.entries.is_empty() || !self.unpacker.entries().contains(&start) {
            self.unpack()?;
        }
        let mut len = u64::from(self.left).min(self.unpacker.entries().end.min(self.entries.end) - start);
        let mut of_weights = 0..0;
        if let Some(weights) = &mut self.weights {
            if self.used * 8 == weights.piece().len() {
                weights.next_piece()?.expect("a weight for each edge");
                self.used = 0;
            }
            len = len.min((weights.piece().len() / 8 - self.used) as u64);
            of_weights = self.used..self.used + len as usize;
            self.used = of_weights.end;
        }
        self.entries.start += len;
        self.left -= len as u32;
        let row = self.unpacker.get(start..start + len);
        let weights = self.weights.as_ref().map(|weights| &typed::<f64>(weights.piece())[of_weights]);
        Ok(Some(RowPart { row, weights }))
    }

    fn unpack(&mut self) -> Result<()> {
        if self.entries.is_empty() {
            return Err(self.too_long());
        }
        while !self.unpacker.unpack(&self.csr, self.edges.piece(), self.entries.clone())? {
            if self.edges.next_piece()?.is_none() {
                return Err(self.too_long());
            }
            self.unpacker.restart();
        }
        Ok(())
    }
}

/// A part of a row.
pub(crate) struct RowPart<'a> {
    pub row: &'a [u32],
    /// Weights, as many as destinations, if the graph has weights.
    pub weights: Option<&'a [f64]>,
}

fn typed<T: zerocopy::FromBytes + zerocopy::Immutable + zerocopy::KnownLayout>(bytes: &[u8]) -> &[T] {
    <[T] as zerocopy::FromBytes>::ref_from_bytes(bytes).expect("pieces are aligned and hold whole entries")
}

/// Calls `each(source, destinations, weights)` with the rows of `vertices`, in order. A long row comes in parts; vertices without
/// edges are skipped.
pub(crate) fn scan(
    job: &Job,
    csr: &Csr,
    vertices: Range<u64>,
    mut each: impl FnMut(u32, &[u32], Option<&[f64]>) -> Result<()>,
) -> Result<()> {
    let mut rows = RowReader::new(job, csr, vertices.clone())?;
    for vertex in vertices {
        rows.start(vertex as u32)?;
        while let Some(part) = rows.part()? {
            each(vertex as u32, part.row, part.weights)?;
        }
    }
    Ok(())
}

/// Scans all vertices by as many threads as there are `states`; each thread has one of them. The order of rows is not defined.
pub(crate) fn scan_parallel<S: Send>(
    job: &Job,
    csr: &Csr,
    states: Vec<S>,
    each: impl Fn(&mut S, u32, &[u32], Option<&[f64]>) -> Result<()> + Sync,
) -> Result<Vec<S>> {
    let work = |state: &mut S, vertices: Range<u64>| {
        scan(job, csr, vertices, |source, row, weights| each(state, source, row, weights))
    };
    parallel_ranges(csr.vertices, states, work)
}

/// Ranges of [`parallel_ranges`] begin at multiples of this number: an index window.
pub(crate) const RANGE_UNIT: u64 = WINDOW_PAGES * PAGE_VERTICES;

/// Returns the vertices per range of [`parallel_ranges`]: whole index windows, about 16 ranges per thread, so that a few long
/// rows do not keep a single thread busy.
pub(crate) fn range_vertices(vertices: u64, threads: usize) -> u64 {
    (vertices / (16 * threads as u64)).max(1).next_multiple_of(RANGE_UNIT)
}

/// Calls `work` as [`parallel_ranges`] does, each time with the range's part of `values`, which has an element per vertex.
pub(crate) fn parallel_parts<T: Send, S: Send>(
    values: &mut [T],
    states: Vec<S>,
    work: impl Fn(&mut S, Range<u64>, &mut [T]) -> Result<()> + Sync,
) -> Result<Vec<S>> {
    let vertices = values.len() as u64;
    let step = range_vertices(vertices, states.len()) as usize;
    let parts: Vec<_> = values.chunks_mut(step).map(|part| Mutex::new(Some(part))).collect();
    parallel_ranges(vertices, states, |state, range| {
        let part = parts[range.start as usize / step].lock().expect("no panic under this lock").take();
        work(state, range, part.expect("each range comes once"))
    })
}

/// Calls `work` with ranges of [`range_vertices`], by as many threads as there are `states`; each thread has one of them. The
/// order of ranges is not defined, but those of one thread ascend.
pub(crate) fn parallel_ranges<S: Send>(
    vertices: u64,
    states: Vec<S>,
    work: impl Fn(&mut S, Range<u64>) -> Result<()> + Sync,
) -> Result<Vec<S>> {
    let next = AtomicU64::new(0);
    let step = range_vertices(vertices, states.len());
    let work = |mut state: S| -> Result<S> {
        loop {
            let start = next.fetch_add(step, Ordering::Relaxed);
            if start >= vertices {
                return Ok(state);
            }
            work(&mut state, start..(start + step).min(vertices))?;
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = states.into_iter().map(|state| scope.spawn(|| work(state))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a scan does not panic")).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::test_job;

    /// Writes pages of the index as `(first entry, degrees)`, and edges.
    fn csr(job: &Job, vertices: u64, pages: &[(u64, Vec<u32>)], edges: &[u32]) -> Csr {
        let write = |name: &str, bytes: &[u8]| {
            let mut file = FileWriter::create(job, name, BLOCK_BYTES, BLOCK_BYTES).unwrap();
            file.write(bytes).unwrap();
            file.finish().unwrap()
        };
        let mut index = Vec::new();
        for (first, degrees) in pages {
            index.extend(first.to_le_bytes());
            index.extend([0; 4]);
            let padded = degrees.iter().copied().chain(std::iter::repeat(0)).take(PAGE_VERTICES as usize);
            index.extend(padded.flat_map(u32::to_le_bytes));
        }
        let (mut packed, mut blocks) = (Vec::new(), Vec::new());
        let mut packer = packed::Packer::new();
        let mut put = |first: u64, block: &[u8]| {
            blocks.extend((first as u32).to_le_bytes());
            packed.extend_from_slice(block);
            Ok(())
        };
        packer.push(edges, &mut put).unwrap();
        packer.finish(&mut put).unwrap();
        let entries = edges.len() as u64;
        let (index, edges) = (write("index", &index), write("edges", &packed));
        Csr {
            vertices,
            entries,
            entry_range: vertices,
            index,
            edges,
            blocks: write("blocks", &blocks),
            weights: None,
        }
    }

    /// Copies `csr` with other numbers of first frames.
    fn with_blocks(job: &Job, csr: &Csr, first_frames: &[u32]) -> Csr {
        let mut file = FileWriter::create(job, "other blocks", BLOCK_BYTES, BLOCK_BYTES).unwrap();
        first_frames.iter().for_each(|frame| file.write(&frame.to_le_bytes()).unwrap());
        Csr { blocks: file.finish().unwrap(), ..csr.clone() }
    }

    #[test]
    fn blocks_are_found_from_any_edge_and_lies_about_them_are_refused() {
        let (_folder, job) = test_job(8 << 20);
        let (degrees, edges): (Vec<u32>, Vec<u32>) =
            (vec![50_000, 1], (0..50_001).map(|at| at * 7919 % 50_021).collect());
        let good = Csr { entry_range: 50_021, ..csr(&job, 2, &[(0, degrees)], &edges) };
        let [scanned, _] = read(&job, &good);
        assert!(scanned.unwrap().iter().map(|&key| key as u32).eq(edges.iter().copied()));
        let count = good.blocks.len() / 4;
        assert!(count > 5, "{count} blocks");
        let mut cursor = IndexCursor::new(&job, &good).unwrap();
        cursor.find(0).unwrap();
        for start in [0, 127, 128, 20_000, 49_999, 50_000] {
            for blocks_max in [1, 2, 100] {
                let span = cursor.span(start..50_001, blocks_max).unwrap();
                assert!(span.entries.start == start && span.entries.end > start);
                assert!(span.blocks.end - span.blocks.start <= blocks_max);
                assert!(blocks_max < 100 || (span.entries.end, span.blocks.end) == (50_001, count));
                // The blocks hold these edges, and one block fewer would not.
                let mut bytes = FileReader::new(&job, &good.edges, span.bytes(), BLOCK_BYTES).unwrap();
                let first = bytes.next_piece().unwrap().unwrap();
                let mut unpacker = Unpacker::new();
                assert!(unpacker.unpack(&good, first, span.entries.clone()).unwrap());
                assert_eq!(unpacker.get(start..start + 1), &edges[start as usize..=start as usize]);
            }
        }
        let lies = [
            ("all at the beginning", vec![0; count as usize]),
            ("nothing at the beginning", vec![1; count as usize]),
            ("descending", (0..count as u32).rev().collect()),
            ("a block behind all edges", (0..count as u32).map(|at| at * 1000).collect()),
        ];
        for (lie, first_frames) in lies {
            let [scanned, _] = read(&job, &with_blocks(&job, &good, &first_frames));
            assert!(scanned.is_err(), "{lie}");
        }
    }

    /// Reads all rows in both ways, or returns the errors of both.
    fn read(job: &Job, csr: &Csr) -> [std::result::Result<Vec<u64>, String>; 2] {
        let all = 0..csr.vertices;
        let mut scanned = Vec::new();
        let scan = scan(job, csr, all.clone(), |vertex, row, _| {
            scanned.extend(row.iter().map(|&to| edge_key(vertex, to)));
            Ok(())
        });
        let mut found = Vec::new();
        let find = IndexCursor::new(job, csr).and_then(|mut cursor| {
            all.clone().try_for_each(|vertex| {
                found.push(cursor.find(vertex as u32)?.0);
                Ok(())
            })
        });
        let told = |result: Result<()>, found| result.map(|()| found).map_err(|error| error.to_string());
        [told(scan, scanned), told(find, found)]
    }

    #[test]
    fn rows_are_read_whole_in_both_ways() {
        let (_folder, job) = test_job(8 << 20);
        let mut first = vec![0; PAGE_VERTICES as usize];
        (first[0], first[1020]) = (2, 1);
        let good = csr(&job, 1023, &[(0, first), (3, vec![1, 0])], &[5, 9, 1, 7]);
        let [scan, find] = read(&job, &good);
        let edges = [(0, 5), (0, 9), (1020, 1), (1021, 7)].map(|(from, to)| edge_key(from, to));
        assert_eq!(scan.unwrap(), edges);
        let found = find.unwrap();
        assert_eq!((found[0], found[1], found[1020], found[1021], found[1022]), (0, 2, 2, 3, 4));
    }

    #[test]
    fn an_index_that_lies_and_edges_to_nowhere_are_refused() {
        let (_folder, job) = test_job(8 << 20);
        let mut page = vec![0; PAGE_VERTICES as usize];
        page[3] = 2;
        let cases = [
            ("more edges than there are", csr(&job, 2, &[(0, vec![1, 5])], &[0, 1, 1])),
            ("fewer edges than there are", csr(&job, 2, &[(0, vec![1, 1])], &[0, 1, 1])),
            ("a page too late", csr(&job, 1024, &[(0, page.clone()), (3, vec![1, 0])], &[1, 2, 3, 4])),
            ("a page too early", csr(&job, 1024, &[(0, page), (1, vec![1, 1])], &[1, 2, 3])),
            ("an edge to nowhere", csr(&job, 2, &[(0, vec![1, 1])], &[0, 2])),
        ];
        for (case, csr) in cases {
            let [scan, _] = read(&job, &csr);
            let told = scan.expect_err(case);
            assert!(told.contains("expected"), "{case}: {told}");
        }
    }
}
