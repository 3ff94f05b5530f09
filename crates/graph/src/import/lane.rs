//! Lanes: what each reading thread writes to, so that threads share nothing but the bitmap of ids.

use inshore_store::Job;
use inshore_tables::LINE_BYTES_MAX;

use super::{
    idset::{IdInserter, IdSet},
    log::{EdgeLog, EdgeLogWriter, WRITE_BYTES},
};
use crate::Result;

/// One thread's log and its view of the set of ids.
pub(super) struct Lane<'a> {
    log: EdgeLogWriter,
    ids: IdInserter<'a>,
    drop_loops: bool,
}

impl Lane<'_> {
    /// Enters an edge and its vertices.
    #[inline]
    pub fn edge(&mut self, source: u64, destination: u64, weight: f64) -> Result<()> {
        self.ids.insert(source)?;
        self.ids.insert(destination)?;
        if self.drop_loops && source == destination {
            return Ok(());
        }
        self.log.push(source, destination, weight)
    }

    /// Enters a vertex that may have no edges.
    pub fn vertex(&mut self, id: u64) -> Result<()> {
        self.ids.insert(id)
    }
}

/// All lanes.
pub(super) struct Lanes<'a> {
    pub lanes: Vec<Lane<'a>>,
    /// The size of a block of lines: what a lane parses at a time, and the longest line.
    pub block_bytes: usize,
}

/// How many lanes a job has: one a thread, as far as a 16th of the budget holds their logs.
pub(super) fn count(job: &Job) -> usize {
    let fit = job.budget().memory_bytes() / 16 / WRITE_BYTES;
    job.budget().threads().min(fit as usize).max(1)
}

impl<'a> Lanes<'a> {
    pub fn new(
        job: &Job,
        set: &'a IdSet,
        free_bytes: u64,
        weighted: bool,
        drop_loops: bool,
    ) -> Result<Lanes<'a>> {
        let count = count(job);
        let mut lanes = Vec::with_capacity(count);
        for _ in 0..count {
            lanes.push(Lane { log: EdgeLogWriter::new(job, weighted)?, ids: set.inserter(), drop_loops });
        }
        // Each lane has a block in hand and one waiting, and the reader fills another.
        let block_bytes =
            (free_bytes as usize / 8 / (2 * count + 1)).clamp(64 << 10, LINE_BYTES_MAX as usize);
        Ok(Lanes { lanes, block_bytes })
    }

    /// A lane for the next block of an input that one thread reads: each in turn, so that all logs are of one
    /// length and are sorted in parallel later.
    pub fn take_turns(&mut self) -> &mut Lane<'a> {
        self.lanes.rotate_left(1);
        &mut self.lanes[0]
    }

    /// The logs, one for each lane.
    pub fn finish(self) -> Result<Vec<EdgeLog>> {
        let mut logs = Vec::with_capacity(self.lanes.len());
        for lane in self.lanes {
            lane.ids.finish()?;
            logs.push(lane.log.finish()?);
        }
        Ok(logs)
    }
}
