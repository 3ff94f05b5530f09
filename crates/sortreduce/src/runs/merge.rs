//! Merges sorted sources and combines equal keys, one slab (the records of one sort) at a time.
//!
//! The window of a source is the maximum number of records that one round takes from the source. A round determines
//! its limit, which is the smallest of the last keys of all windows. The round then copies all records with keys up
//! to the limit to the slab. Rounds repeat until the slab is full. The slab is then sorted, and equal keys are
//! combined, as for any slab (see [`crate::forming::sort`]). The time per record hardly grows with the number of
//! sources, so hundreds of runs are merged in one pass. In contrast, the time of a loser tree grows with the
//! logarithm of the number of sources, and with the tree's cache misses. Dense keys are combined in a table without a
//! sort.
//!
//! A window doubles if its last key was the limit, and shrinks if few of its records are taken. Runs with disjoint or
//! very different keys therefore also need few rounds.

use std::{ops::Range, sync::Arc};

use inshore_store::{Buffer, Job};

use crate::{
    Block, Key, Operation, Result, Value,
    forming::chunk::Chunk,
    forming::sort::Sorter,
    keys::keyrange::{KeyRange, partition_point},
    runs::RunReader,
};

/// A sorted source of records, in which each key occurs once.
#[allow(clippy::large_enum_variant, reason = "hundreds of them at most, and looked at in every round")]
pub(crate) enum Source<K: Key, V> {
    /// A run on flash.
    Run(RunReader<K, V>),
    /// A sorted chunk in memory.
    Chunk(ChunkReader<K, V>),
}

/// A sorted chunk that several readers share, and the order of its blocks.
pub(crate) struct SortedChunk<K: Key, V> {
    chunk: Chunk<K, V>,
    order: Vec<u32>,
}

impl<K: Key, V: Value> SortedChunk<K, V> {
    pub fn new(chunk: Chunk<K, V>) -> Self {
        SortedChunk { order: chunk.sorted_block_numbers(), chunk }
    }

    fn block(&self, number: usize) -> (&[K], &[V]) {
        self.chunk.numbered_block(self.order[number])
    }

    /// Estimates the number of records below a key, in half blocks. The last block that begins below the key counts
    /// as one half block.
    pub fn halves_below(&self, key: K) -> u64 {
        let blocks = partition_point(self.order.len(), |number| self.block(number).0[0] < key) as u64;
        (2 * blocks).saturating_sub(1)
    }
}

/// Streams the records of a sorted chunk whose keys are in a range.
pub(crate) struct ChunkReader<K: Key, V> {
    chunk: Arc<SortedChunk<K, V>>,
    range: KeyRange<K>,
    blocks: Range<usize>,
    position: usize,
}

impl<K: Key, V: Value> ChunkReader<K, V> {
    pub fn new(chunk: Arc<SortedChunk<K, V>>, range: KeyRange<K>) -> Self {
        let blocks = range.blocks(chunk.order.len(), |number| chunk.block(number).0[0]);
        let mut reader = ChunkReader { chunk, range, blocks, position: 0 };
        reader.advance(range.skipped(reader.records().0));
        reader
    }

    fn records(&self) -> (&[K], &[V]) {
        if self.blocks.is_empty() {
            return (&[], &[]);
        }
        let (keys, values) = self.chunk.block(self.blocks.start);
        let end = self.range.kept(keys).max(self.position);
        (&keys[self.position..end], &values[self.position..end])
    }

    fn advance(&mut self, count: usize) {
        self.position += count;
        if self.records().0.is_empty() {
            self.blocks.start = (self.blocks.start + 1).min(self.blocks.end);
            self.position = 0;
        }
    }
}

impl<K: Key, V: Value> Source<K, V> {
    /// Moves as many records as fit to `keys` and `values`, and returns their number.
    fn take(&mut self, (keys, values): (&mut [K], &mut [V])) -> Result<usize> {
        let mut taken = 0;
        loop {
            let (from_keys, from_values) = self.records();
            let part = from_keys.len().min(keys.len() - taken);
            if part == 0 {
                return Ok(taken);
            }
            keys[taken..taken + part].copy_from_slice(&from_keys[..part]);
            values[taken..taken + part].copy_from_slice(&from_values[..part]);
            self.advance(part)?;
            taken += part;
        }
    }

    /// Returns the next contiguous records. The slices are empty only at the end.
    #[inline]
    fn records(&self) -> (&[K], &[V]) {
        match self {
            Source::Run(reader) => (reader.keys(), reader.values()),
            Source::Chunk(reader) => reader.records(),
        }
    }

    #[inline]
    fn keys(&self) -> &[K] {
        match self {
            Source::Run(reader) => reader.keys(),
            Source::Chunk(reader) => reader.records().0,
        }
    }

    fn advance(&mut self, count: usize) -> Result<()> {
        match self {
            Source::Run(reader) => reader.advance(count),
            Source::Chunk(reader) => {
                reader.advance(count);
                Ok(())
            }
        }
    }
}

/// A merge in progress.
pub(crate) struct Merge<O: Operation> {
    job: Job,
    sources: Vec<Source<O::Key, O::Value>>,
    /// The window of each source, in records.
    windows: Vec<usize>,
    windows_sum: usize,
    window_min: usize,
    sorter: Sorter<O>,
    pub records_in: u64,
}

impl<O: Operation> Merge<O> {
    /// Creates a merge of `sources`. There may be at most as many sources as a slab of `sorter` has records.
    pub fn new(job: &Job, mut sources: Vec<Source<O::Key, O::Value>>, sorter: Sorter<O>) -> Self {
        sources.retain(|source| !source.keys().is_empty());
        let window_min = (sorter.slab_records() / (4 * sources.len().max(1))).max(1);
        let windows = vec![window_min; sources.len()];
        let windows_sum = window_min * sources.len();
        assert!(windows_sum <= sorter.slab_records(), "more sources than records in a slab");
        Merge { job: job.clone(), sources, windows, windows_sum, window_min, sorter, records_in: 0 }
    }

    /// Returns the next block of records, or `None` at the end.
    ///
    /// # Errors
    /// - Returns [`inshore_store::Error::Io`] if a read fails.
    /// - Returns [`inshore_store::Error::Damaged`] if the checksum of a run does not match.
    /// - Returns [`inshore_store::Error::Cancelled`] if the job was cancelled.
    pub fn next_block(&mut self) -> Result<Option<Block<'_, O::Key, O::Value>>> {
        self.job.check_cancelled()?;
        if self.sources.len() == 1 {
            return self.next_of_one();
        }
        let count = self.fill_slab()?;
        self.records_in += count as u64;
        let count = self.sorter.sort_reduce(count);
        let (keys, values) = self.sorter.outputs(count);
        Ok((count > 0).then_some(Block { keys, values }))
    }

    /// Returns records of the only remaining source, which need no sort. The source may return only few contiguous
    /// records at a time, so they are copied to a larger block.
    fn next_of_one(&mut self) -> Result<Option<Block<'_, O::Key, O::Value>>> {
        let count = self.sources[0].take(self.sorter.inputs())?;
        let (keys, values) = self.sorter.first_inputs(count);
        self.records_in += count as u64;
        Ok((count > 0).then_some(Block { keys, values }))
    }

    fn fill_slab(&mut self) -> Result<usize> {
        let mut filled = 0;
        while !self.sources.is_empty() && filled + self.windows_sum <= self.sorter.slab_records() {
            filled = self.round(filled)?;
            if self.sources.len() == 1 && filled > 0 {
                break;
            }
        }
        Ok(filled)
    }

    /// Copies all records with keys up to the round's limit to the slab, which already has `filled` records.
    fn round(&mut self, mut filled: usize) -> Result<usize> {
        let (limiting, limit) = limit(&self.sources, &self.windows);
        let (slab_keys, slab_values) = self.sorter.inputs();
        let mut some_ended = false;
        for (source, window) in self.sources.iter_mut().zip(&mut self.windows) {
            let (keys, values) = source.records();
            let count = count_up_to(&keys[..keys.len().min(*window)], limit);
            slab_keys[filled..filled + count].copy_from_slice(&keys[..count]);
            slab_values[filled..filled + count].copy_from_slice(&values[..count]);
            filled += count;
            if count < *window / 4 && *window > self.window_min {
                self.windows_sum -= *window / 2;
                *window -= *window / 2;
            }
            if count > 0 {
                source.advance(count)?;
                some_ended |= source.keys().is_empty();
            }
        }
        let grown = self.windows[limiting];
        if self.windows_sum + grown <= self.sorter.slab_records() / 2 {
            self.windows[limiting] += grown;
            self.windows_sum += grown;
        }
        if some_ended {
            self.remove_ended();
        }
        Ok(filled)
    }

    fn remove_ended(&mut self) {
        let mut number = 0;
        while number < self.sources.len() {
            if self.sources[number].keys().is_empty() {
                self.sources.remove(number);
                self.windows_sum -= self.windows.remove(number);
            } else {
                number += 1;
            }
        }
    }
}

/// Returns the smallest of the last keys of all windows, and the index of its source.
fn limit<K: Key, V: Value>(sources: &[Source<K, V>], windows: &[usize]) -> (usize, K) {
    let ends = sources.iter().zip(windows).enumerate().map(|(number, (source, &window))| {
        let keys = source.keys();
        (keys[keys.len().min(window) - 1], number)
    });
    let (key, number) = ends.min().expect("called with sources only");
    (number, key)
}

/// Returns the number of keys up to `limit`. `keys` must be sorted.
fn count_up_to<K: Key>(keys: &[K], limit: K) -> usize {
    match keys.last() {
        Some(&last) if last <= limit => keys.len(),
        _ => keys.partition_point(|&key| key <= limit),
    }
}

/// Allocates two buffers of `unit_bytes` bytes for each of `count` readers. All buffers are parts of one memory
/// region, so that huge pages are used.
pub(crate) fn read_buffers(job: &Job, count: usize, unit_bytes: usize) -> Result<Vec<[Buffer; 2]>> {
    let all = Buffer::zeroed(job.budget(), 2 * count * unit_bytes, "the read buffers of a merge")?;
    let mut parts = all.split(unit_bytes).into_iter();
    Ok(std::iter::from_fn(|| Some([parts.next()?, parts.next()?])).collect())
}
