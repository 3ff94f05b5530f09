//! The result stream of a sort-reduce, and its counters.

use inshore_store::Job;
use serde::Serialize;

use crate::{
    Block, Operation, Result, Strategy,
    part::{Part, Records},
};

/// Streams the result block by block. The records are sorted, and each key occurs once. Dropping the stream removes
/// the runs and releases the memory.
///
/// No run is read before the first block is requested. Until then, the result can be split into parts.
pub struct Sorted<O: Operation> {
    job: Job,
    stats: Stats,
    level: Level,
    state: ReadState<O>,
}

/// The merge level in the job's counters to which the result is added at the end.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Level {
    /// The result is added to no level, since no merge was needed.
    None,
    /// The result is added to level 0, which has an array and no runs. The field is the number of pushed records.
    Pushed(u64),
    /// The result is added to the counters of this merge level.
    Merge(u32),
}

const BEGUN: &str = "a result is cut before its first block is read";

enum ReadState<O: Operation> {
    Waiting(Part<O>),
    Begun(Records<O>),
    /// The read of the first block failed to start.
    Failed,
}

impl<O: Operation> Sorted<O> {
    pub(crate) fn new(job: Job, stats: Stats, level: Level, part: Part<O>) -> Self {
        Sorted { job, stats, level, state: ReadState::Waiting(part) }
    }

    /// Splits the result into at most `parts` parts of ascending keys, which threads can read in parallel. Each part
    /// has about the same number of records to read, but a part may be empty. All parts in order are the complete
    /// result. The parts divide the memory. The function returns fewer parts if the memory does not suffice for the
    /// read buffers. The memory suffices for as many parts as there were sinks, unless hundreds of runs remain.
    ///
    /// A split itself reads only memory. If runs are merged, each part reads at most two blocks of each run in
    /// addition to its own records. Each part counts its own [`Stats::records_out`]. The other counters are those of
    /// the complete result.
    ///
    /// # Errors
    /// This function never returns an error.
    ///
    /// # Panics
    /// The function panics if a block was already returned.
    ///
    /// ```
    /// # use inshore_sortreduce::{Config, Operation, SortReduce};
    /// # use inshore_store::{Budget, Cancel, Store};
    /// # #[derive(Clone)]
    /// # struct Sum;
    /// # impl Operation for Sum {
    /// #     type Key = u32;
    /// #     type Value = u64;
    /// #     fn combine(&self, a: u64, b: u64) -> u64 {
    /// #         a + b
    /// #     }
    /// # }
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let folder = tempfile::tempdir()?;
    /// # let store = Store::open(folder.path())?;
    /// # let job = store.job(Budget::new(64 << 20, 2), Cancel::default())?;
    /// # let config = Config { memory_bytes: 16 << 20, ..Config::default() };
    /// # let sums = SortReduce::new(&job, Sum, &config)?;
    /// # let mut sink = sums.sink()?;
    /// # (0..1000).try_for_each(|key| sink.push(key % 600, 1))?;
    /// # sink.finish()?;
    /// let parts = sums.finish()?.split(2)?;
    /// let count = std::thread::scope(|scope| {
    ///     let count = |mut part: inshore_sortreduce::Sorted<_>| {
    ///         let mut count = 0;
    ///         while let Some(block) = part.next_block()? {
    ///             count += block.keys.len();
    ///         }
    ///         Ok::<_, inshore_sortreduce::Error>(count)
    ///     };
    ///     let threads: Vec<_> = parts.into_iter().map(|part| scope.spawn(move || count(part))).collect();
    ///     threads.into_iter().map(|thread| thread.join().unwrap()).sum::<Result<usize, _>>()
    /// })?;
    /// assert_eq!(count, 600);
    /// # Ok(())
    /// # }
    /// ```
    pub fn split(self, parts: usize) -> Result<Vec<Sorted<O>>> {
        let readers = self.part().readers(parts.max(1));
        Ok(self.cut(readers, readers))
    }

    /// Splits the result into at most `parts` parts, as [`Sorted::split`] does, for callers with more parts than
    /// threads. At most `readers` parts are read at the same time and divide the memory. There are fewer parts if
    /// more than an eighth of the blocks of runs would be read twice. Returns the parts, and the number of parts that
    /// may be read at the same time.
    ///
    /// # Errors
    /// This function never returns an error.
    ///
    /// # Panics
    /// The function panics if a block was already returned.
    pub fn split_in_turns(self, parts: usize, readers: usize) -> Result<(Vec<Sorted<O>>, usize)> {
        let readers = self.part().readers(readers.max(1));
        let parts = parts.min(self.part().parts_max()).max(1);
        Ok((self.cut(parts, readers), readers))
    }

    /// Returns an upper bound on the bytes of memory that reading takes, in addition to the current memory of the
    /// result.
    ///
    /// # Panics
    /// The function panics if a block was already returned.
    pub fn reading_bytes(&self) -> u64 {
        self.part().reading_bytes() as u64
    }

    fn part(&self) -> &Part<O> {
        match &self.state {
            ReadState::Waiting(part) => part,
            _ => panic!("{BEGUN}"),
        }
    }

    fn cut(self, parts: usize, readers: usize) -> Vec<Sorted<O>> {
        let Sorted { job, stats, level, state } = self;
        let ReadState::Waiting(part) = state else { panic!("{BEGUN}") };
        let parts = part.split(parts, readers).into_iter().enumerate().map(|(number, part)| {
            let level = match level {
                Level::Pushed(_) if number > 0 => Level::Pushed(0),
                level => level,
            };
            Sorted { job: job.clone(), stats, level, state: ReadState::Waiting(part) }
        });
        parts.collect()
    }

    /// Returns the next block, which has between one and some ten thousand records. Returns `None` at the end.
    ///
    /// # Errors
    /// - Returns [`inshore_store::Error::Io`] if a read fails.
    /// - Returns [`inshore_store::Error::Damaged`] if the checksum of a run does not match.
    /// - Returns [`inshore_store::Error::Cancelled`] if the job was cancelled.
    pub fn next_block(&mut self) -> Result<Option<Block<'_, O::Key, O::Value>>> {
        self.job.check_cancelled()?;
        if matches!(self.state, ReadState::Waiting(_)) {
            let ReadState::Waiting(part) = std::mem::replace(&mut self.state, ReadState::Failed) else {
                unreachable!()
            };
            self.state = ReadState::Begun(part.begin(&self.job)?);
        }
        let ReadState::Begun(records) = &mut self.state else { return Ok(None) };
        let records_in = records.records_in();
        let block = records.next_block()?;
        match &block {
            Some(block) => self.stats.records_out += block.keys.len() as u64,
            None => {
                count(&self.job, self.level, records_in, self.stats.records_out);
                self.level = Level::None;
            }
        }
        Ok(block)
    }

    /// Returns the current counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }
}

/// Adds the numbers of input and output records to the job's counters.
fn count(job: &Job, level: Level, records_in: u64, records_out: u64) {
    match level {
        Level::None => {}
        Level::Pushed(records) => job.counters().add_level(0, records, records_out),
        Level::Merge(level) => job.counters().add_level(level, records_in, records_out),
    }
}

/// The counters of a sort-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// The strategy that the sort-reduce used.
    pub strategy: Strategy,
    /// The number of records that were pushed.
    pub records_in: u64,
    /// The number of distinct keys that were returned. After the end, this is the number of all distinct keys.
    pub records_out: u64,
    /// The number of runs that were written during the input. The number is 0 if all records fitted in memory, and
    /// with the dense and partition strategies.
    pub runs: u64,
    /// The number of runs that can be merged at once. The number is 0 with the dense and partition strategies.
    pub fan_in: usize,
    /// The largest number of merges that a record goes through, including the last merge, which streams the result.
    /// The number is 0 if there are no runs, and 1 if bins are on flash.
    pub merge_passes: u32,
    /// The total bytes of runs or bins that were written in all passes.
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
