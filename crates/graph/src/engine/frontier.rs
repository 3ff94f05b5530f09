//! Frontiers: sorted lists of vertices. The first part of a list is in memory, and the rest of a long list is on flash.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use inshore_store::{CheckedFile, FileReader, FileWriter, Job};
use zerocopy::IntoBytes;

use crate::Result;

/// The smallest number of keys that a list keeps in memory before it writes further keys to flash.
pub(crate) const MEMORY_KEYS: usize = 32 << 10;
const BLOCK_BYTES: usize = 64 << 10;
const BLOCK_KEYS: usize = BLOCK_BYTES / 4;

/// Returns the memory of a list that is read, a list that is written, and a log. Each list has at most `keys` keys in
/// memory.
pub(crate) const fn memory_bytes(keys: usize) -> u64 {
    (2 * keys * 4 + 7 * BLOCK_BYTES) as u64
}

/// Returns the number of keys that a frontier keeps in memory. A list that is read and a list that is written take a
/// sixteenth of the free memory together.
pub(crate) fn frontier_keys(vertices: u64, free: u64) -> usize {
    (free / 16 / 8).min(vertices).max(MEMORY_KEYS as u64) as usize
}

/// The active vertices of a superstep.
#[derive(Clone)]
pub(crate) enum Frontier {
    /// All vertices.
    All,
    /// Some vertices, in ascending order.
    List { memory: Arc<Vec<u32>>, file: Option<(CheckedFile, Range<u64>)> },
}

impl Frontier {
    /// Creates a frontier of one vertex.
    pub fn one(vertex: u32) -> Frontier {
        Frontier::List { memory: Arc::new(vec![vertex]), file: None }
    }

    pub fn is_all(&self) -> bool {
        matches!(self, Frontier::All)
    }

    /// Tells whether no vertex is active. ([`Frontier::All`] is never empty, since every graph has a vertex.)
    pub fn is_empty(&self) -> bool {
        match self {
            Frontier::All => false,
            Frontier::List { memory, file } => memory.is_empty() && file.is_none(),
        }
    }

    /// Returns the number of vertices. Returns `None` if all are active.
    pub fn count(&self) -> Option<u64> {
        match self {
            Frontier::All => None,
            Frontier::List { memory, file: None } => Some(memory.len() as u64),
            Frontier::List { file: Some((_, range)), .. } => Some((range.end - range.start) / 4),
        }
    }

    /// Tells whether the frontier has fewer than `count` vertices.
    pub fn is_shorter_than(&self, count: usize) -> bool {
        self.count().is_some_and(|known| known < count as u64)
    }

    /// Streams the vertices. `vertices` is the number of vertices in the graph.
    pub fn reader(&self, job: &Job, vertices: u64) -> Result<FrontierReader> {
        let (memory, file) = match self {
            Frontier::All => return Ok(VertexRanges::new(vertices, vertices).reader()),
            Frontier::List { memory, file } => (memory, file),
        };
        let reader = match file {
            Some((file, range)) => Some(FileReader::new(job, file, range.clone(), BLOCK_BYTES)?),
            None => None,
        };
        Ok(FrontierReader::List { keys: memory.clone(), used: 0, reader })
    }
}

/// A stream of vertices.
pub(crate) enum FrontierReader {
    All { next: u64, end: u64, ranges: VertexRanges },
    List { keys: Arc<Vec<u32>>, used: usize, reader: Option<FileReader> },
}

/// Ranges that together contain all vertices. Several readers take these ranges one by one.
#[derive(Clone)]
pub(crate) struct VertexRanges {
    next: Arc<AtomicU64>,
    step: u64,
    vertices: u64,
}

impl VertexRanges {
    /// Divides the vertices into ranges of `step` vertices.
    pub fn new(vertices: u64, step: u64) -> VertexRanges {
        VertexRanges { next: Arc::default(), step, vertices }
    }

    /// Creates a stream that takes ranges of vertices one by one. No two streams of these ranges return the same
    /// vertex.
    pub fn reader(&self) -> FrontierReader {
        FrontierReader::All { next: 0, end: 0, ranges: self.clone() }
    }

    fn take(&self) -> Range<u64> {
        let start = self.next.fetch_add(self.step, Ordering::Relaxed).min(self.vertices);
        start..(start + self.step).min(self.vertices)
    }
}

impl FrontierReader {
    #[inline]
    pub fn next(&mut self) -> Result<Option<u32>> {
        match self {
            FrontierReader::All { next, end, ranges } => {
                if next == end {
                    let range = ranges.take();
                    if range.is_empty() {
                        return Ok(None);
                    }
                    (*next, *end) = (range.start, range.end);
                }
                *next += 1;
                Ok(Some((*next - 1) as u32))
            }
            FrontierReader::List { keys, used, reader } => {
                if *used == keys.len() {
                    let Some(reader) = reader else { return Ok(None) };
                    let Some(piece) = reader.next_piece()? else { return Ok(None) };
                    let key = |key: &[u8]| u32::from_le_bytes(key.try_into().expect("4"));
                    *keys = Arc::new(piece.chunks_exact(4).map(key).collect());
                    *used = 0;
                }
                *used += 1;
                Ok(Some(keys[*used - 1]))
            }
        }
    }
}

/// Collects vertices in ascending order.
pub(crate) struct FrontierBuilder {
    job: Job,
    memory: Vec<u32>,
    keys_max: usize,
    file: Option<FileWriter>,
}

impl FrontierBuilder {
    /// Creates a builder that keeps up to `keys_max` keys in memory.
    pub fn new(job: &Job, keys_max: usize) -> FrontierBuilder {
        FrontierBuilder { job: job.clone(), memory: Vec::new(), keys_max, file: None }
    }

    #[inline]
    pub fn push(&mut self, vertex: u32) -> Result<()> {
        if self.memory.len() == self.memory.capacity() {
            let more = self.memory.len().max(1024).min(self.keys_max - self.memory.len());
            self.memory.reserve_exact(more);
        }
        self.memory.push(vertex);
        if self.memory.len() == self.keys_max { self.spill() } else { Ok(()) }
    }

    fn spill(&mut self) -> Result<()> {
        if self.file.is_none() {
            self.file = Some(FileWriter::create(&self.job, "active vertices", BLOCK_BYTES, BLOCK_BYTES)?);
        }
        self.file.as_mut().expect("created above").write(self.memory.as_bytes())?;
        self.memory.clear();
        Ok(())
    }

    pub fn finish(mut self) -> Result<Frontier> {
        if self.file.is_none() {
            return Ok(Frontier::List { memory: Arc::new(self.memory), file: None });
        }
        self.spill()?;
        let file = self.file.expect("spilled").finish()?;
        let range = 0..file.len();
        Ok(Frontier::List { memory: Arc::default(), file: Some((file, range)) })
    }
}

/// A log of the active vertices of all supersteps. The reverse pass of a search reads these vertices from the log.
pub(crate) struct KeyLog {
    file: FileWriter,
    staged: Vec<u32>,
    ends: Vec<u64>,
}

impl KeyLog {
    pub fn new(job: &Job) -> Result<KeyLog> {
        let file = FileWriter::create(job, "levels", BLOCK_BYTES, BLOCK_BYTES)?;
        Ok(KeyLog { file, staged: Vec::with_capacity(BLOCK_KEYS), ends: Vec::new() })
    }

    #[inline]
    pub fn push(&mut self, vertex: u32) -> Result<()> {
        self.staged.push(vertex);
        if self.staged.len() == BLOCK_KEYS { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<()> {
        self.file.write(self.staged.as_bytes())?;
        self.staged.clear();
        Ok(())
    }

    /// Ends the list of the current superstep.
    pub fn end_level(&mut self) {
        self.ends.push(self.file.len() + self.staged.len() as u64 * 4);
    }

    /// Returns the lists of all supersteps, the last list first.
    pub fn into_levels(mut self) -> Result<impl Iterator<Item = Frontier>> {
        self.flush()?;
        let file = self.file.finish()?;
        let ends = self.ends;
        Ok((0..ends.len()).rev().map(move |level| {
            let start = if level == 0 { 0 } else { ends[level - 1] };
            let file = (ends[level] > start).then(|| (file.clone(), start..ends[level]));
            Frontier::List { memory: Arc::default(), file }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::test_job;

    fn read(job: &Job, frontier: &Frontier) -> Vec<u32> {
        let mut reader = frontier.reader(job, 7).unwrap();
        std::iter::from_fn(|| reader.next().unwrap()).collect()
    }

    #[test]
    fn a_list_of_any_length_gives_what_was_pushed() {
        let (_folder, job) = test_job(8 << 20);
        for count in [0, 1, MEMORY_KEYS - 1, MEMORY_KEYS, MEMORY_KEYS + 1, 3 * MEMORY_KEYS + 17] {
            let mut builder = FrontierBuilder::new(&job, MEMORY_KEYS);
            for key in 0..count as u32 {
                builder.push(key * 3).unwrap();
            }
            let frontier = builder.finish().unwrap();
            assert_eq!(frontier.is_empty(), count == 0);
            assert!(read(&job, &frontier).iter().copied().eq((0..count as u32).map(|key| key * 3)));
        }
        assert_eq!(read(&job, &Frontier::All), [0, 1, 2, 3, 4, 5, 6]);
        assert_eq!(job.budget().reserved_bytes(), 0);
    }

    #[test]
    fn readers_of_ranges_return_each_vertex_once() {
        let ranges = VertexRanges::new(1000, 64);
        let mut readers = [ranges.reader(), ranges.reader(), ranges.reader()];
        let mut given: Vec<u32> = Vec::new();
        for turn in 0.. {
            let Some(vertex) = readers[turn % 2].next().unwrap() else { break };
            given.push(vertex);
        }
        given
            .extend(std::iter::from_fn(|| readers[0].next().unwrap().or_else(|| readers[1].next().unwrap())));
        assert!(readers[2].next().unwrap().is_none());
        assert!(given.chunks(2).take(64).all(|pair| pair[1] == pair[0] + 64), "each in its own range");
        given.sort_unstable();
        assert!(given.into_iter().eq(0..1000));
    }

    #[test]
    fn a_log_gives_its_levels_backwards() {
        let (_folder, job) = test_job(8 << 20);
        let mut log = KeyLog::new(&job).unwrap();
        let levels: Vec<Vec<u32>> = vec![vec![5], (0..100_000).collect(), vec![], vec![7, 9]];
        for level in &levels {
            level.iter().for_each(|&key| log.push(key).unwrap());
            log.end_level();
        }
        let back: Vec<_> = log.into_levels().unwrap().map(|frontier| read(&job, &frontier)).collect();
        assert!(back.iter().eq(levels.iter().rev()));
    }
}
