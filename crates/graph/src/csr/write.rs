//! Writes compressed sparse rows, by several threads if the edges come from a sort-reduce.
//!
//! ```text
//!   sorted edges   [ part 0 | part 1 | part 2 | ... ]
//!   thread 0         merge, stage ─► append            merge, stage ─► append
//!   thread 1                  merge, stage ─────► append
//! ```
//!
//! Each thread merges a part into rows in memory; the rows are appended to the files in the order of parts. Merging,
//! which is most of the work, therefore runs in parallel, and appending only copies.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use inshore_sortreduce::Sorted;
use inshore_store::{FileWriter, Job};
use zerocopy::IntoBytes;

use super::{BLOCK_BYTES, EdgeOperation, PAGE_VERTICES, checksum_bytes_max, packed::Packer};
use crate::{Error, Result, sequencer::Sequencer};

/// The number of bytes per write: the first constant is for small budgets, the second for large ones.
const WRITE_BYTES: usize = 256 << 10;
const WRITE_BYTES_MAX: usize = 1 << 20;
/// The smallest budget with which the larger number of bytes is written at once.
const LARGE_BUDGET_BYTES: u64 = 128 << 20;

/// The number of edges that are staged at once.
pub(crate) const STEP: usize = 4 << 10;
/// Memory of the staged rows of [`STEP`] edges with weights, in the worst case of an undirected graph of self-loops.
const STEP_BYTES: u64 = 2 * STEP as u64 * (ENTRY_BYTES + WEIGHT_BYTES);
/// Bytes of an entry in the worst case: 4 for its destination, and half of the 8 bytes of a source that has two
/// destinations.
const ENTRY_BYTES: u64 = 8;
const WEIGHT_BYTES: u64 = 8;
/// The largest staging memory of a thread, if several threads write. More memory does not make writing faster. With
/// less memory, threads wait for each other.
const STAGING_BYTES_MAX: u64 = 24 << 20;
const STAGING_BYTES_MIN: u64 = 256 << 10;
/// The bytes of memory that are left free for allocations that are not reserved.
const SLACK_BYTES: u64 = 128 << 10;

fn entry_bytes<E: EdgeOperation>() -> u64 {
    ENTRY_BYTES + if E::WEIGHTED { WEIGHT_BYTES } else { 0 }
}

fn write_bytes(job: &Job) -> usize {
    if job.budget().memory_bytes() < LARGE_BUDGET_BYTES { WRITE_BYTES } else { WRITE_BYTES_MAX }
}

/// Returns the memory of a [`CsrWriter`] and of the rows that one thread stages.
pub(crate) fn writer_bytes(job: &Job) -> u64 {
    let (files, blocks) = (3 * 2 * write_bytes(job), 3 * BLOCK_BYTES);
    (files + blocks) as u64 + STEP_BYTES
}

/// Counters of a [`CsrWriter`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct CsrStats {
    pub entries: u64,
    pub self_loops: u64,
    /// The number of entries whose source is at most their destination. In an undirected graph this is the number of
    /// edges.
    pub upward: u64,
    pub sinks: u64,
    pub degree_max: u64,
}

/// Writes rows in order.
pub(crate) struct CsrWriter {
    index: FileWriter,
    packer: Packer,
    edges: BlockWriter,
    weights: Option<FileWriter>,
    vertices: u64,
    /// Tells whether a self-loop is written as two entries, as in the rows of an undirected graph.
    double_loops: bool,
    page: Vec<u32>,
    /// The number of the page's first entry, and the number of a block that begins at or before that entry.
    page_entry: u64,
    page_block: u32,
    /// The vertex whose row is being written.
    source: u64,
    degree: u64,
    stats: CsrStats,
}

/// The files that a [`CsrWriter`] wrote. They can be added to a dataset or used as scratch.
pub(crate) struct CsrFiles {
    pub index: FileWriter,
    pub edges: FileWriter,
    pub blocks: FileWriter,
    pub weights: Option<FileWriter>,
    pub stats: CsrStats,
}

impl CsrWriter {
    /// Creates a writer. `create(name, block_bytes, buffer_bytes)` begins each file. With `double_loops` a self-loop is
    /// written as two entries.
    pub fn new(
        job: &Job,
        mut create: impl FnMut(&str, usize, usize) -> Result<FileWriter>,
        vertices: u64,
        weighted: bool,
        double_loops: bool,
    ) -> Result<CsrWriter> {
        let write_bytes = write_bytes(job);
        Ok(CsrWriter {
            index: create("index", BLOCK_BYTES, write_bytes)?,
            packer: Packer::new(),
            edges: BlockWriter {
                edges: create("edges", BLOCK_BYTES, write_bytes)?,
                blocks: create("blocks", BLOCK_BYTES, BLOCK_BYTES)?,
                count: 0,
            },
            weights: if weighted { Some(create("weights", BLOCK_BYTES, write_bytes)?) } else { None },
            vertices,
            double_loops,
            page: Vec::with_capacity(PAGE_VERTICES as usize),
            page_entry: 0,
            page_block: 0,
            source: 0,
            degree: 0,
            stats: CsrStats::default(),
        })
    }

    /// Allocates room for the rows of [`STEP`] edges.
    pub fn stage<E: EdgeOperation>(&self) -> StagedRows {
        StagedRows::new::<E>(self, STEP_BYTES)
    }

    /// Appends staged rows to the files, and empties them. Rows must be sorted by source and destination over all
    /// calls.
    pub fn append(&mut self, staged: &mut StagedRows) -> Result<()> {
        let (mut destinations, mut closed) = (staged.destinations.as_slice(), 0);
        for &(source, entries) in &staged.rows {
            while self.source < u64::from(source) {
                if self.page.len() as u64 + 1 == PAGE_VERTICES {
                    // All entries up to this page are packed first, so that the block in which the next page begins is
                    // known.
                    let (before, behind) = destinations.split_at(std::mem::take(&mut closed));
                    self.pack(before)?;
                    destinations = behind;
                }
                self.close_row()?;
            }
            self.degree += u64::from(entries);
            closed += entries as usize;
        }
        self.stats.self_loops += staged.self_loops;
        self.stats.upward += staged.upward;
        self.pack(destinations)?;
        if let Some(weights) = &mut self.weights {
            weights.write(staged.weights.as_bytes())?;
        }
        staged.clear();
        Ok(())
    }

    fn pack(&mut self, destinations: &[u32]) -> Result<()> {
        self.packer.push(destinations, |first, block| self.edges.write(first, block))
    }

    fn close_row(&mut self) -> Result<()> {
        self.stats.degree_max = self.stats.degree_max.max(self.degree);
        self.stats.sinks += (self.degree == 0) as u64;
        self.stats.entries += self.degree;
        self.page.push(self.degree as u32);
        self.degree = 0;
        self.source += 1;
        if self.page.len() as u64 == PAGE_VERTICES {
            self.close_page()?;
        }
        Ok(())
    }

    fn close_page(&mut self) -> Result<()> {
        self.page.resize(PAGE_VERTICES as usize, 0);
        self.index.write(&self.page_entry.to_le_bytes())?;
        self.index.write(&self.page_block.to_le_bytes())?;
        self.index.write(self.page.as_bytes())?;
        self.page.clear();
        self.page_entry = self.stats.entries;
        self.page_block = self.edges.count;
        Ok(())
    }

    /// Closes the rows of all vertices.
    pub fn finish(mut self) -> Result<CsrFiles> {
        while self.source < self.vertices {
            self.close_row()?;
        }
        if !self.page.is_empty() {
            self.close_page()?;
        }
        self.packer.finish(|first, block| self.edges.write(first, block))?;
        let BlockWriter { edges, blocks, .. } = self.edges;
        Ok(CsrFiles { index: self.index, edges, blocks, weights: self.weights, stats: self.stats })
    }
}

/// Writes blocks of edges, and the file of the blocks' first frames.
struct BlockWriter {
    edges: FileWriter,
    blocks: FileWriter,
    /// The number of blocks that were written.
    count: u32,
}

impl BlockWriter {
    fn write(&mut self, first_frame: u64, block: &[u8]) -> Result<()> {
        let first_frame = u32::try_from(first_frame).map_err(|_| Error::BadInput {
            place: "this graph".to_string(),
            found: "more than 2^39 edges in one direction".to_string(),
            expected: "at most 2^39: split the input into several graphs".to_string(),
        })?;
        self.edges.write(block)?;
        self.blocks.write(&first_frame.to_le_bytes())?;
        self.count += 1;
        Ok(())
    }
}

/// Maps ids to vertex numbers. A larger id has a larger number.
pub(crate) trait Numbering: Sync {
    fn number(&self, id: u32) -> u32;

    /// Prefetches the memory that [`Numbering::number`] will read.
    fn prefetch(&self, _id: u32) {}
}

/// Maps ids to themselves.
pub(crate) struct IdentityNumbering;

impl Numbering for IdentityNumbering {
    #[inline(always)]
    fn number(&self, id: u32) -> u32 {
        id
    }
}

/// Memory for numbering is prefetched this number of destinations ahead.
const AHEAD: usize = 24;

/// Consecutive rows, in memory.
#[derive(Debug)]
pub(crate) struct StagedRows {
    /// The sources, and the number of staged entries of each source.
    rows: Vec<(u32, u32)>,
    destinations: Vec<u32>,
    weights: Vec<f64>,
    double_loops: bool,
    self_loops: u64,
    upward: u64,
}

impl StagedRows {
    /// Allocates memory of `bytes` bytes for rows of edges of type `E`.
    pub fn new<E: EdgeOperation>(writer: &CsrWriter, bytes: u64) -> StagedRows {
        let edges = (bytes / entry_bytes::<E>()) as usize;
        StagedRows {
            rows: Vec::with_capacity(edges / 2),
            destinations: Vec::with_capacity(edges),
            weights: Vec::with_capacity(if E::WEIGHTED { edges } else { 0 }),
            double_loops: writer.double_loops,
            self_loops: 0,
            upward: 0,
        }
    }

    /// Tells whether the rows of a number of edges fit.
    fn has_room_for(&self, edges: usize) -> bool {
        self.destinations.capacity() - self.destinations.len() >= 2 * edges
            && self.rows.capacity() - self.rows.len() >= edges
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.destinations.clear();
        self.weights.clear();
        (self.self_loops, self.upward) = (0, 0);
    }

    /// Adds edges, sorted by key. A key consists of two ids.
    pub fn push<E: EdgeOperation>(&mut self, keys: &[u64], values: &[E::Value], numbers: &impl Numbering) {
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
            // SAFETY: the processor has these instructions.
            return unsafe { self.push_avx2::<E>(keys, values, numbers) };
        }
        self.push_with::<E>(keys, values, numbers)
    }

    /// Compiles [`StagedRows::push`] for processors with these instruction set extensions. Numbering (which counts
    /// bits) and the scan of rows then need a third of the instructions.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,popcnt")]
    fn push_avx2<E: EdgeOperation>(&mut self, keys: &[u64], values: &[E::Value], numbers: &impl Numbering) {
        self.push_with::<E>(keys, values, numbers)
    }

    #[inline(always)]
    fn push_with<E: EdgeOperation>(&mut self, keys: &[u64], values: &[E::Value], numbers: &impl Numbering) {
        let (mut loops, mut upward) = (0, 0);
        // Numbering keeps the order of ids, so ids can be compared in place of vertex numbers.
        for key in keys {
            let (source, destination) = ((key >> 32) as u32, *key as u32);
            loops += u32::from(source == destination);
            upward += u32::from(source <= destination);
        }
        self.self_loops += u64::from(loops);
        self.upward += u64::from(upward);
        let mut start = 0;
        while start < keys.len() {
            let id = keys[start] >> 32;
            let len = keys[start..].iter().take_while(|&key| key >> 32 == id).count();
            let source = numbers.number(id as u32);
            let first = self.destinations.len();
            self.destinations.resize(first + len, 0);
            for (at, destination) in (start..).zip(&mut self.destinations[first..]) {
                if let Some(&ahead) = keys.get(at + AHEAD) {
                    numbers.prefetch(ahead as u32);
                }
                *destination = numbers.number(keys[at] as u32);
            }
            if E::WEIGHTED {
                self.weights.extend(values[start..start + len].iter().map(|&value| E::weight(value)));
            }
            let mut entries = len as u32;
            if self.double_loops
                && loops > 0
                && let Ok(place) = self.destinations[first..].binary_search(&source)
            {
                self.destinations.insert(first + place, source);
                if E::WEIGHTED {
                    self.weights.insert(first + place, self.weights[first + place]);
                }
                entries += 1;
            }
            self.rows.push((source, entries));
            start += len;
        }
    }
}

/// Writes a sorted stream of edges as rows. `numbers` maps each half of a key to a vertex number, and keeps the order.
pub(crate) fn write_rows<E: EdgeOperation>(
    job: &Job,
    edges: Sorted<E>,
    writer: CsrWriter,
    numbers: &impl Numbering,
) -> Result<CsrFiles> {
    let threads = job.budget().threads();
    let edges_in = edges.stats().records_in;
    let wanted = edges_in.div_ceil(STAGING_BYTES_MAX / entry_bytes::<E>());
    let (parts, readers) = edges.split_in_turns(wanted as usize, threads)?;
    let reading = parts.iter().map(Sorted::reading_bytes).max().unwrap_or(0);
    // The memory that the checksums and the lists of extents of the files take by the end of writing.
    let growing = checksum_bytes_max(writer.vertices, edges_in, E::WEIGHTED) + SLACK_BYTES;
    let free = job.budget().free_bytes().saturating_sub(growing);
    let fits = |&readers: &usize| {
        free.saturating_sub(readers as u64 * reading) / readers as u64 >= STAGING_BYTES_MIN
    };
    let readers = (2..=readers).rev().find(fits).unwrap_or(1);
    // A single thread appends its rows directly, and needs little memory for staging.
    let staging = match readers {
        1 => STEP_BYTES,
        _ => ((free - readers as u64 * reading) / readers as u64).min(STAGING_BYTES_MAX),
    };
    let _memory = match readers {
        // `writer_bytes` includes this memory.
        1 => None,
        _ => Some(job.budget().reserve(readers as u64 * staging, "rows to be written")?),
    };
    let staged: Vec<_> = (0..readers).map(|_| StagedRows::new::<E>(&writer, staging)).collect();
    let parts: Vec<_> = parts.into_iter().map(|part| Mutex::new(Some(part))).collect();
    let sequencer = Sequencer::new(writer);
    let next = AtomicUsize::new(0);
    let work = |staged: &mut StagedRows| -> Result<()> {
        loop {
            let number_of_part = next.fetch_add(1, Ordering::Relaxed);
            let Some(part) = parts.get(number_of_part) else { break };
            let part = part.lock().expect("no panic under this lock").take().expect("each part comes once");
            if !write_part(job, part, number_of_part, staged, &sequencer, numbers)? {
                break;
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| -> Result<()> {
        let spawn = |mut staged: StagedRows| {
            let (sequencer, work) = (&sequencer, &work);
            scope.spawn(move || sequencer.guard(|| work(&mut staged)))
        };
        let threads: Vec<_> = staged.into_iter().map(spawn).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("a merge does not panic"))
    })?;
    sequencer.into_value().finish()
}

/// Merges the edges of a part, stages their rows, and appends the staged rows after the rows of all earlier parts.
/// Returns `false` if another thread failed.
fn write_part<E: EdgeOperation>(
    job: &Job,
    mut part: Sorted<E>,
    number_of_part: usize,
    staged: &mut StagedRows,
    sequencer: &Sequencer<CsrWriter>,
    numbers: &impl Numbering,
) -> Result<bool> {
    while let Some(block) = part.next_block()? {
        for (keys, values) in block.keys.chunks(STEP).zip(block.values.chunks(STEP)) {
            if !staged.has_room_for(keys.len()) {
                let Some(mut turn) = sequencer.wait(number_of_part) else { return Ok(false) };
                turn.value.append(staged)?;
            }
            staged.push::<E>(keys, values, numbers);
        }
        job.progress().add(block.keys.len() as u64);
    }
    let Some(mut turn) = sequencer.wait(number_of_part) else { return Ok(false) };
    turn.value.append(staged)?;
    sequencer.next(turn);
    Ok(true)
}
