//! The buffers for reading edges in a superstep, and the cursor over the graph's index. They are allocated for the
//! first superstep, and later supersteps reuse them.

use inshore_store::{Buffer, Job};

use super::Frontier;
use crate::{
    Result,
    csr::{Csr, IndexCursor},
};

/// A superstep is small if it has at most this number of edges. The updates of a small superstep are combined in a
/// small part of the free memory, since preparing memory takes time.
const FEW_EDGES: u64 = 4096;

/// A frontier of fewer vertices than this number is processed by one worker.
pub(super) const ALONE_VERTICES: usize = 256;
/// The number of chunks of a worker: one is in use, and the others are being read.
pub(super) const CHUNKS: usize = 4;

/// Buffers of all workers and a cursor, allocated for the first superstep and reused by the next ones.
pub(super) struct Pools {
    pub window_bytes: usize,
    pub edges: Vec<Pool>,
    pub weights: Vec<Pool>,
    /// The cursor of the last superstep. In a deep search the next superstep finds most of its rows in the index pages
    /// that the cursor holds.
    pub index: Option<IndexCursor>,
}

impl Pools {
    pub fn new(window_bytes: usize) -> Pools {
        Pools { window_bytes, edges: Vec::new(), weights: Vec::new(), index: None }
    }

    /// Returns a cursor over the rows of `csr`: the cursor of the previous superstep, if it had the same rows.
    pub fn cursor(&mut self, job: &Job, csr: &Csr) -> Result<IndexCursor> {
        match self.index.take().filter(|index| index.is_of(csr)) {
            Some(index) => Ok(index),
            None => IndexCursor::new(job, csr),
        }
    }

    /// Counts the edges of the active vertices, if few vertices are active. Returns `None` if there are too many
    /// vertices or edges.
    pub fn few_edges(&mut self, job: &Job, rows: &[&Csr], active: &Frontier) -> Result<Option<u64>> {
        let mut edges = 0;
        if !active.is_shorter_than(ALONE_VERTICES) {
            return Ok(None);
        }
        for csr in rows {
            let (mut index, mut reader) = (self.cursor(job, csr)?, active.reader(job, csr.vertices)?);
            while let Some(vertex) = reader.next()? {
                edges += u64::from(index.find(vertex)?.1);
            }
            self.index = Some(index);
        }
        Ok((edges <= FEW_EDGES).then_some(edges))
    }

    /// Drops the cursor, since the rows were moved from flash to memory.
    pub fn forget_rows(&mut self) {
        self.index = None;
    }

    /// Tells whether a superstep has allocated the buffers.
    pub fn is_made(&self) -> bool {
        !self.edges.is_empty()
    }
}

/// A worker's buffers: one large buffer and a batch of small buffers for each chunk.
pub(super) struct Pool {
    small_bytes: usize,
    small: Vec<Buffer>,
    large: Vec<Buffer>,
}

impl Pool {
    pub fn new(job: &Job, workers: usize, large_bytes: usize, small_bytes: usize) -> Result<Vec<Pool>> {
        let what = "read buffers of edges";
        let large = Buffer::zeroed(job.budget(), CHUNKS * workers * large_bytes, what)?.split(large_bytes);
        let small_count = CHUNKS * (large_bytes / small_bytes);
        let small = Buffer::zeroed(job.budget(), workers * small_count * small_bytes, what)?;
        let (mut large, mut small) = (large.into_iter(), small.split(small_bytes).into_iter());
        let pool = |_| Pool {
            small_bytes,
            small: small.by_ref().take(small_count).collect(),
            large: large.by_ref().take(CHUNKS).collect(),
        };
        Ok((0..workers).map(pool).collect())
    }

    pub fn take(&mut self, is_small: bool) -> Buffer {
        let buffers = if is_small { &mut self.small } else { &mut self.large };
        buffers.pop().expect("a large window and a batch of small ones for each chunk")
    }

    pub fn put(&mut self, buffer: Buffer) {
        match buffer.len() == self.small_bytes {
            true => self.small.push(buffer),
            false => self.large.push(buffer),
        }
    }
}
