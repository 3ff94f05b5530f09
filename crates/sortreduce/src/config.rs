//! The configuration of a sort-reduce: its memory, sinks and hints. Nothing here allocates or does I/O.

use inshore_store::Keep;

use crate::Strategy;

/// Sets the resources and hints of a sort-reduce.
#[derive(Clone, Debug)]
pub struct Config {
    /// Keys are below this number (`None`: any key). Dense and partition need the range, and merging is a little faster with it.
    /// A larger key is an error in a dense or partitioning sort-reduce and costs only speed in a merging one.
    pub key_range: Option<u64>,
    /// Bytes of the job's budget for all phases, including the blocks handed out. With more memory there are fewer runs and more
    /// equal keys are combined before they are written. Too little is an error that names the smallest; see
    /// [`smallest_memory_bytes`].
    pub memory_bytes: u64,
    /// The number of sinks that push at the same time (1 or more); sinks share the memory.
    pub sinks: usize,
    /// Forces a strategy; `None` takes the one that [`crate::Choice`] estimates as the fastest.
    pub strategy: Option<Strategy>,
    /// Approximate number of records that will be pushed, for the choice of the strategy; `None` assumes eight times as many
    /// bytes as memory. A wrong number costs only speed.
    pub expected_records: Option<u64>,
    /// Upper bound on the number of records; `None`: any number. Partition is not chosen if this number of records
    /// could fill more blocks than the memory can index; more records may return [`crate::Error::TooManyRuns`].
    pub records_max: Option<u64>,
    /// Approximate number of distinct keys, for the choice of the strategy; `None` assumes keys spread evenly over the range, or
    /// all different without a range.
    pub expected_keys: Option<u64>,
    /// Forces the size of a sink's chunk in bytes of records, so that tests write runs; `None` takes as much as the memory
    /// allows. Blocks of the runs shrink with the chunk.
    pub chunk_bytes: Option<usize>,
    /// Keeps runs so that an interrupted sort-reduce can resume, and resumes with runs that were kept: then the strategy is merge
    /// (or dense, which keeps nothing). Each sink must tell the unit of its records ([`crate::Sink::begin_unit`]).
    pub keep: Option<Keep>,
    /// Name in scratch files and errors; a valid part of a file name.
    pub name: &'static str,
}

impl Default for Config {
    /// Returns settings for any key, one sink and 256 MiB: then runs of (u32, u64) records have 19 million records.
    fn default() -> Self {
        Config {
            key_range: None,
            memory_bytes: 256 << 20,
            sinks: 1,
            strategy: None,
            expected_records: None,
            records_max: None,
            expected_keys: None,
            chunk_bytes: None,
            keep: None,
            name: "records",
        }
    }
}

/// Returns the smallest [`Config::memory_bytes`] with which merging works, for records of `record_bytes` (key and value).
pub fn smallest_memory_bytes(sinks: usize, record_bytes: usize) -> u64 {
    let share = SMALLEST_SHARE_BYTES * record_bytes.div_ceil(WIDE_RECORD_BYTES).max(1);
    (sinks.max(1) * share) as u64
}

const SMALLEST_SHARE_BYTES: usize = 512 << 10;
const WIDE_RECORD_BYTES: usize = 64;
