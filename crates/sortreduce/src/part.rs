//! Divides a result into parts. A part is a range of keys that one thread can stream, and the ranges ascend.
//!
//! ```text
//!   runs     0 [ block | block | block | block ]       The first key of each block is in memory, so a range of keys
//!            1 [ block | block ]                       is a range of blocks in each run. A split key is found by
//!   parts       ── part 0 ──┼── part 1 ──              bisection, here until half of all blocks are below it.
//! ```
//!
//! A part only describes its input until its first block is requested. A finished result can therefore still be
//! divided, and parts take no read buffers before they are read. Parts share their input and divide the memory.

use std::sync::Arc;

use inshore_store::Job;

use crate::{
    Block, Operation, Result,
    forming::sort::{Sorter, slab_records_in, sorter_bytes},
    keys::keyrange::KeyRange,
    plan::{MergePlan, MergeSizes},
    runs::merge::{ChunkReader, Merge, SortedChunk, Source, read_buffers},
    runs::{Run, RunReader},
    strategies::bins::{BinReader, BinsPart},
    strategies::dense::{DensePart, Scan},
};

/// The minimum number of records in a slab (the records of one sort) for a part in memory.
const SLAB_RECORDS_MIN: usize = 256;
/// The minimum ratio of blocks that one part reads to blocks that two parts read, if the caller does not fix the
/// number of parts.
const WHOLE_PER_CUT: u64 = 8;

fn sorter_of<O: Operation>(slab_records: usize) -> usize {
    sorter_bytes(slab_records, size_of::<O::Key>(), size_of::<O::Value>())
}

/// A part of a result, by the kind of its input.
pub(crate) enum Part<O: Operation> {
    Dense(DensePart<O>),
    Chunks(ChunksPart<O>),
    Runs(RunsPart<O>),
    Bins(BinsPart<O>),
}

impl<O: Operation> Part<O> {
    /// Returns the number of parts, at most `readers`, for which the memory suffices if they are read at the same
    /// time.
    pub fn readers(&self, readers: usize) -> usize {
        let fits = |&readers: &usize| match self {
            Part::Dense(dense) => dense.scan_records(readers) > 0,
            Part::Chunks(chunks) => chunks.fits(readers),
            Part::Runs(runs) => runs.fits(readers),
            Part::Bins(bins) => readers <= bins.readers_max,
        };
        (2..=readers).rev().find(fits).unwrap_or(1)
    }

    /// Divides the input into `parts` parts. Up to `readers` parts are read at the same time and divide the memory.
    pub fn split(self, parts: usize, readers: usize) -> Vec<Part<O>> {
        match self {
            Part::Dense(dense) => dense.split(parts, readers).into_iter().map(Part::Dense).collect(),
            Part::Chunks(chunks) => chunks.split(parts, readers).into_iter().map(Part::Chunks).collect(),
            Part::Runs(runs) => runs.split(parts, readers).into_iter().map(Part::Runs).collect(),
            Part::Bins(bins) => bins.split(parts, readers).into_iter().map(Part::Bins).collect(),
        }
    }

    /// Returns the largest number of parts for which only a few blocks are read twice.
    pub fn parts_max(&self) -> usize {
        match self {
            Part::Runs(runs) => runs.parts_max(),
            Part::Dense(_) | Part::Chunks(_) | Part::Bins(_) => usize::MAX,
        }
    }

    /// Returns an upper bound on the bytes of memory that reading takes.
    pub fn reading_bytes(&self) -> usize {
        match self {
            Part::Dense(dense) => dense.reading_bytes(),
            Part::Chunks(chunks) => sorter_of::<O>(chunks.slab_records(1)),
            Part::Runs(runs) => runs.reading_bytes(),
            Part::Bins(bins) => bins.reading_bytes(),
        }
    }

    /// Reserves the memory for reading and starts to read.
    ///
    /// # Errors
    /// Returns an error if a run cannot be read, or if the budget has too little memory.
    pub fn begin(self, job: &Job) -> Result<Records<O>> {
        match self {
            Part::Dense(dense) => dense.begin(job.budget()).map(Records::Dense),
            Part::Chunks(chunks) => chunks.begin(job).map(|merge| Records::Merge(Box::new(merge))),
            Part::Runs(runs) => runs.begin(job).map(|merge| Records::Merge(Box::new(merge))),
            Part::Bins(bins) => bins.begin(job).map(|reader| Records::Bins(Box::new(reader))),
        }
    }
}

/// A stream of records, by the kind of its input.
pub(crate) enum Records<O: Operation> {
    Dense(Scan<O>),
    Merge(Box<Merge<O>>),
    Bins(Box<BinReader<O>>),
}

impl<O: Operation> Records<O> {
    pub fn next_block(&mut self) -> Result<Option<Block<'_, O::Key, O::Value>>> {
        match self {
            Records::Dense(scan) => Ok(scan.next_block()),
            Records::Merge(merge) => merge.next_block(),
            Records::Bins(reader) => reader.next_block(),
        }
    }

    pub fn records_in(&self) -> u64 {
        match self {
            Records::Dense(_) => 0,
            Records::Merge(merge) => merge.records_in,
            Records::Bins(reader) => reader.records_in,
        }
    }
}

/// A part of a result whose sorted chunks are all in memory.
pub(crate) struct ChunksPart<O: Operation> {
    operation: O,
    chunks: Vec<Arc<SortedChunk<O::Key, O::Value>>>,
    range: KeyRange<O::Key>,
    /// The bytes of memory to sort one slab, which the sorters of the sinks have released.
    sorter_bytes: usize,
    slab_records_max: usize,
}

impl<O: Operation> ChunksPart<O> {
    pub fn new(
        operation: O,
        chunks: Vec<Arc<SortedChunk<O::Key, O::Value>>>,
        slab_records_max: usize,
    ) -> Self {
        let each = sorter_bytes(slab_records_max, size_of::<O::Key>(), size_of::<O::Value>());
        let sorter_bytes = each * chunks.len().max(1);
        ChunksPart { operation, chunks, range: KeyRange::ALL, sorter_bytes, slab_records_max }
    }

    fn slab_records(&self, readers: usize) -> usize {
        slab_records_in::<O::Key, O::Value>(self.sorter_bytes / readers).min(self.slab_records_max)
    }

    fn fits(&self, readers: usize) -> bool {
        self.slab_records(readers) >= SLAB_RECORDS_MIN.max(4 * self.chunks.len())
    }

    fn split(self, parts: usize, readers: usize) -> Vec<ChunksPart<O>> {
        let below = |key| self.chunks.iter().map(|chunk| chunk.halves_below(key)).sum();
        let ranges = self.range.split(parts, below);
        let part = |range| ChunksPart {
            operation: self.operation.clone(),
            chunks: self.chunks.clone(),
            range,
            sorter_bytes: self.sorter_bytes / readers,
            slab_records_max: self.slab_records_max,
        };
        ranges.into_iter().map(part).collect()
    }

    fn begin(self, job: &Job) -> Result<Merge<O>> {
        let sorter = Sorter::new(self.operation.clone(), self.slab_records(1), job.budget())?;
        let source = |chunk| Source::Chunk(ChunkReader::new(chunk, self.range));
        Ok(Merge::new(job, self.chunks.into_iter().map(source).collect(), sorter))
    }
}

/// A part of a result whose runs are on flash.
pub(crate) struct RunsPart<O: Operation> {
    operation: O,
    plan: MergePlan,
    runs: Vec<Run<O::Key>>,
    range: KeyRange<O::Key>,
    /// The number of parts that are read at the same time and divide the memory.
    readers: usize,
}

impl<O: Operation> RunsPart<O> {
    /// Creates a part of all records of `runs`, with the memory share of one of `readers` readers.
    pub fn new(operation: O, plan: MergePlan, runs: Vec<Run<O::Key>>, readers: usize) -> Self {
        RunsPart { operation, plan, runs, range: KeyRange::ALL, readers }
    }

    fn fits(&self, readers: usize) -> bool {
        self.plan.merge::<O::Key, O::Value>(self.readers * readers).fan_in >= self.runs.len()
    }

    /// Returns the largest number of parts for which few blocks are read twice. Up to two blocks of each run in a
    /// part are also read by neighbouring parts.
    fn parts_max(&self) -> usize {
        (self.blocks() / (2 * self.runs.len().max(1) as u64) / WHOLE_PER_CUT).max(1) as usize
    }

    fn blocks(&self) -> u64 {
        self.runs.iter().map(|run| run.blocks_in(&self.range)).sum()
    }

    /// Returns the size in bytes of each of the two read buffers of a run.
    fn unit_bytes(&self, sizes: &MergeSizes) -> usize {
        let runs = self.runs.iter().filter(|run| run.blocks_in(&self.range) > 0).count();
        sizes.unit_bytes(runs.max(1), self.blocks() * self.plan.block_bytes as u64)
    }

    fn reading_bytes(&self) -> usize {
        let sizes = self.plan.merge::<O::Key, O::Value>(self.readers);
        sorter_of::<O>(sizes.slab_records) + sizes.readers_bytes(self.runs.len(), self.unit_bytes(&sizes))
    }

    fn split(self, parts: usize, readers: usize) -> Vec<RunsPart<O>> {
        let below = |key| self.runs.iter().map(|run| run.below(key)).sum();
        let ranges = self.range.split(parts, below);
        let part = |range| RunsPart {
            operation: self.operation.clone(),
            plan: self.plan,
            runs: self.runs.clone(),
            range,
            readers: self.readers * readers,
        };
        ranges.into_iter().map(part).collect()
    }

    /// Starts a merge of the records in the key range of all runs.
    pub fn begin(self, job: &Job) -> Result<Merge<O>> {
        let sizes = self.plan.merge::<O::Key, O::Value>(self.readers);
        let unit_bytes = self.unit_bytes(&sizes);
        let sorter = Sorter::new(self.operation, sizes.slab_records, job.budget())?;
        let mut runs = self.runs;
        runs.retain(|run| run.blocks_in(&self.range) > 0);
        if runs.is_empty() {
            return Ok(Merge::new(job, Vec::new(), sorter));
        }
        let buffers = read_buffers(job, runs.len(), unit_bytes)?;
        let readers = runs.into_iter().zip(buffers);
        let sources =
            readers.map(|(run, buffers)| Ok(Source::Run(RunReader::new(job, run, self.range, buffers)?)));
        Ok(Merge::new(job, sources.collect::<Result<_>>()?, sorter))
    }
}
