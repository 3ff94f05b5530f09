//! The result of a sort-reduce, and its counters.

use inshore_store::Job;
use serde::Serialize;

use crate::{Block, Operation, Result, Strategy, dense::Scan, merge::Merge};

/// The result: sorted, unique records, block by block. Dropping it removes the runs and hands the memory back.
pub struct Sorted<O: Operation> {
    job: Job,
    stats: Stats,
    /// The level of the streaming merge (0: a dense scan) in the job's counters; none where nothing is merged.
    level: Option<u32>,
    ended: bool,
    records: Records<O>,
}

/// Where the records come from.
pub(crate) enum Records<O: Operation> {
    Dense(Scan<O>),
    Merge(Box<Merge<O>>),
}

impl<O: Operation> Sorted<O> {
    pub(crate) fn new(job: Job, stats: Stats, level: Option<u32>, records: Records<O>) -> Self {
        Sorted { job, stats, level, ended: false, records }
    }

    /// The next records: one or more, up to some ten thousand; `None` at the end.
    ///
    /// # Errors
    /// [`inshore_store::Error::Io`], [`inshore_store::Error::Damaged`], [`inshore_store::Error::Cancelled`].
    pub fn next_block(&mut self) -> Result<Option<Block<'_, O::Key, O::Value>>> {
        self.job.check_cancelled()?;
        let (block, records_in) = match &mut self.records {
            Records::Dense(scan) => (scan.next_block(), self.stats.records_in),
            Records::Merge(merge) => {
                let records_in = merge.records_in;
                (merge.next_block()?, records_in)
            }
        };
        match block {
            Some(block) => self.stats.records_out += block.keys.len() as u64,
            None if !self.ended => {
                self.ended = true;
                if let Some(level) = self.level {
                    self.job.counters().add_level(level, records_in, self.stats.records_out);
                }
            }
            None => {}
        }
        Ok(block)
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }
}

/// Counters of a sort-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// How equal keys were brought together.
    pub strategy: Strategy,
    /// Records pushed.
    pub records_in: u64,
    /// Distinct keys handed out so far: all of them after the end.
    pub records_out: u64,
    /// Runs written while records came in; 0 where all fitted in memory.
    pub runs: u64,
    /// How many runs can be merged at once; 0 for dense.
    pub fan_in: usize,
    /// Merges that a record goes through at most, the last, streaming one included; 0 without runs.
    pub merge_passes: u32,
    /// Bytes of runs written in all passes.
    pub bytes_spilled: u64,
}

impl Stats {
    pub(crate) fn new(strategy: Strategy) -> Stats {
        Stats {
            strategy,
            records_in: 0,
            records_out: 0,
            runs: 0,
            fan_in: 0,
            merge_passes: 0,
            bytes_spilled: 0,
        }
    }
}

impl<O: Operation> std::fmt::Debug for Sorted<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sorted").field("stats", &self.stats).finish_non_exhaustive()
    }
}
