//! The configuration of a sort-reduce: its memory, sinks and hints. Nothing here allocates or does I/O.

use inshore_store::Keep;

use crate::Strategy;

/// Sets the resources and hints of a sort-reduce.
#[derive(Clone, Debug)]
pub struct Config {
    /// The exclusive upper bound of keys (`None`: any key). The dense and partition strategies need the bound, and
    /// merging is a little faster with it. A larger key is an error in a dense or partitioning sort-reduce and costs
    /// only speed in a merging one.
    pub key_range: Option<u64>,
    /// The bytes of the job's budget for all phases, including the blocks of records that the caller reads. With more
    /// memory there are fewer runs, and more equal keys are combined before they are written. A budget that is too
    /// small causes an error that names the smallest sufficient budget; see [`smallest_memory_bytes`].
    pub memory_bytes: u64,
    /// The number of sinks that push at the same time (1 or more); sinks share the memory.
    pub sinks: usize,
    /// Forces a strategy; `None` takes the one that [`crate::Choice`] estimates as the fastest.
    pub strategy: Option<Strategy>,
    /// The approximate number of records that will be pushed, used to choose the strategy; `None` assumes eight times
    /// as many bytes of records as memory. A wrong number costs only speed.
    pub expected_records: Option<u64>,
    /// The upper bound on the number of records (`None`: no bound). Partition is not chosen if this number of records
    /// could fill more blocks than the memory can index; a larger number of records may return
    /// [`crate::Error::TooManyRuns`].
    pub records_max: Option<u64>,
    /// The approximate number of distinct keys, used to choose the strategy. `None` assumes that keys are spread evenly
    /// over the range, or that all keys are different if there is no range.
    pub expected_keys: Option<u64>,
    /// Forces the size of a sink's chunk, in bytes of records, so that tests write runs; `None` takes as much as the
    /// memory allows. The blocks of runs are smaller if the chunk is smaller.
    pub chunk_bytes: Option<usize>,
    /// Keeps runs so that an interrupted sort-reduce can resume, and resumes with runs that were kept. The strategy is
    /// then merge (or dense, which keeps nothing). Each sink must report which unit of the input its records belong to
    /// ([`crate::Sink::begin_unit`]).
    pub keep: Option<Keep>,
    /// The name in scratch files and errors; it must be a valid part of a file name.
    pub name: &'static str,
}

impl Default for Config {
    /// Returns settings for any key, one sink and 256 MiB. A run of (u32, u64) records then has 19 million records.
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
