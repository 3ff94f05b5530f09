//! Replaces the ids of edges by vertex numbers if the ids do not fit in memory. Edges are partitioned into bins for
//! this.
//!
//! The ids are cut into ranges that fit. First, the log is split into one bin per range by the source's id. The ids of
//! each range are then loaded. Each edge in the bin gets the number of its source, and goes to a second bin by its
//! destination's id. Finally, the ids of each range are loaded again. Each edge in the second bin gets the number of
//! its destination, and goes to a log of numbered edges. Every edge is read and written three times.

use inshore_store::{CheckedFile, Job};

use super::{
    idset::{load, place},
    log::{EdgeLog, EdgeLogWriter, WRITE_BYTES},
};
use crate::{Result, graph::too_small, idfile};

/// Ranges of ids, each of which fits in memory.
struct IdRanges {
    ids: CheckedFile,
    /// The number of ids per range, except in the last range.
    len: u64,
    /// The first id of each range except the first range.
    bounds: Vec<u64>,
}

impl IdRanges {
    fn new(job: &Job, ids: &CheckedFile) -> Result<IdRanges> {
        let free = job.budget().free_bytes();
        let block_ids = idfile::BLOCK_BYTES as u64 / 8;
        // A quarter of the memory is for the ids of a range. Ranges begin and end at blocks of the file, so that
        // loading a range reads no other ids.
        let len = |free: u64| (free / 4 / 8 / block_ids).max(1) * block_ids;
        let count = |free: u64| (ids.len() / 8).div_ceil(len(free));
        // Half of the memory is for the writers of the bins.
        let fits = |free: u64| count(free) <= free / 2 / WRITE_BYTES;
        if !fits(free) {
            return Err(too_small(job, format!("import of {} vertices", ids.len() / 8), fits));
        }
        let (len, count) = (len(free), count(free));
        let mut bounds = Vec::with_capacity(count as usize);
        for range in 1..count {
            bounds.push(idfile::get(job, ids, (range * len) as u32)?);
        }
        Ok(IdRanges { ids: ids.clone(), len, bounds })
    }

    fn of(&self, id: u64) -> usize {
        self.bounds.partition_point(|&bound| bound <= id)
    }

    fn count(&self) -> usize {
        self.bounds.len() + 1
    }

    /// Loads the ids of a range. Returns the ids, and the vertex number of the first id.
    fn load(&self, job: &Job, range: usize) -> Result<(inshore_store::Buffer, u32)> {
        let first = range as u64 * self.len;
        let end = (first + self.len).min(self.ids.len() / 8);
        Ok((load(job, &self.ids, first * 8..end * 8)?, first as u32))
    }
}

/// Turns logs of ids into the same number of logs of vertex numbers.
pub(super) fn number(job: &Job, ids: &CheckedFile, logs: Vec<EdgeLog>) -> Result<Vec<EdgeLog>> {
    let ranges = IdRanges::new(job, ids)?;
    let lanes = logs.len();
    let weighted = logs[0].is_weighted();
    let edges = logs.iter().map(EdgeLog::len).sum();
    job.start_phase("numbering edges (split)", "edges", edges);
    let by_source = split(job, logs, weighted, ranges.count(), |source, _| ranges.of(source))?;
    job.start_phase("numbering edges (sources)", "edges", edges);
    let mut writers = create(job, weighted, ranges.count())?;
    for (range, log) in by_source.into_iter().enumerate() {
        let (known, first) = ranges.load(job, range)?;
        log.for_each(job, |source, destination, weight| {
            let number = first + place(known.typed::<u64>(), source);
            writers[ranges.of(destination)].push(number as u64, destination, weight)
        })?;
    }
    let by_destination = finish(writers)?;
    job.start_phase("numbering edges (destinations)", "edges", edges);
    let mut writers = create(job, weighted, lanes)?;
    for (range, log) in by_destination.into_iter().enumerate() {
        let (known, first) = ranges.load(job, range)?;
        let mut turn = 0;
        log.for_each(job, |source, destination, weight| {
            let number = first + place(known.typed::<u64>(), destination);
            turn = (turn + 1) % lanes;
            writers[turn].push(source, number as u64, weight)
        })?;
    }
    finish(writers)
}

fn create(job: &Job, weighted: bool, count: usize) -> Result<Vec<EdgeLogWriter>> {
    (0..count).map(|_| EdgeLogWriter::new(job, weighted)).collect()
}

fn finish(writers: Vec<EdgeLogWriter>) -> Result<Vec<EdgeLog>> {
    writers.into_iter().map(|writer| writer.finish()).collect()
}

fn split(
    job: &Job,
    logs: Vec<EdgeLog>,
    weighted: bool,
    count: usize,
    bin: impl Fn(u64, u64) -> usize,
) -> Result<Vec<EdgeLog>> {
    let mut writers = create(job, weighted, count)?;
    for log in logs {
        log.for_each(job, |source, destination, weight| {
            writers[bin(source, destination)].push(source, destination, weight)
        })?;
    }
    finish(writers)
}
