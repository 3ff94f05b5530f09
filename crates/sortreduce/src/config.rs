//! The configuration of a sort-reduce: its memory, sinks and hints. Nothing here allocates or does I/O.

use inshore_store::Keep;

use crate::Strategy;

/// What a sort-reduce may use.
#[derive(Clone, Debug)]
pub struct Config {
    /// Keys are below this (`None`: any key). Dense and partition need it, and it makes merging a little faster. A
    /// larger key is an error in a dense or partitioning sort-reduce and costs only speed in a merging one.
    pub key_range: Option<u64>,
    /// Bytes of the job's budget that it may use, in all phases together with their blocks handed out. More
    /// means fewer runs and more equal keys combined before they are written. Too little is an error that
    /// names the smallest; see [`smallest_memory_bytes`].
    pub memory_bytes: u64,
    /// The number of sinks that push at the same time (1 or more); they share the memory.
    pub sinks: usize,
    /// Forces a strategy; `None`: the one that [`crate::Choice`] estimates as the quickest.
    pub strategy: Option<Strategy>,
    /// About how many records will be pushed, for the choice of the strategy; `None`: eight times as many bytes of
    /// them as there is memory. A wrong number costs speed only.
    pub expected_records: Option<u64>,
    /// No more records than this are pushed, whatever is expected; `None`: any number. Partition is not chosen where so many
    /// could be more blocks than the memory can keep the numbers of; pushing more may be [`crate::Error::TooManyRuns`].
    pub records_max: Option<u64>,
    /// About how many distinct keys they have, likewise; `None`: keys spread evenly over the range, all different where
    /// there is none.
    pub expected_keys: Option<u64>,
    /// Forces the size of a sink's chunk in bytes of records, so that tests write runs; `None`: as large as the
    /// memory allows. Blocks of the runs shrink with it.
    pub chunk_bytes: Option<usize>,
    /// Keeps runs for the sort-reduce that goes on with this one, and goes on with those that are there: it then merges
    /// (or is dense, and keeps nothing). Each sink must say what it pushes ([`crate::Sink::begin_unit`]).
    pub keep: Option<Keep>,
    /// The name of scratch files and in errors; a valid part of a file name.
    pub name: &'static str,
}

impl Default for Config {
    /// Any key, one sink, 256 MiB: with that much, runs of (u32, u64) records have 19 million records.
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

/// The smallest [`Config::memory_bytes`] with which merging works, for records of `record_bytes` (key and value).
pub fn smallest_memory_bytes(sinks: usize, record_bytes: usize) -> u64 {
    let share = SMALLEST_SHARE_BYTES * record_bytes.div_ceil(WIDE_RECORD_BYTES).max(1);
    (sinks.max(1) * share) as u64
}

const SMALLEST_SHARE_BYTES: usize = 512 << 10;
const WIDE_RECORD_BYTES: usize = 64;
