//! The configuration of a sort-reduce: its memory, sinks and hints. This module does not allocate memory or do I/O.

use inshore_store::Keep;

use crate::Strategy;

/// Sets the resources and hints of a sort-reduce.
#[derive(Clone, Debug)]
pub struct Config {
    /// The exclusive upper bound of keys. `None` allows any key. The dense and partition strategies require the
    /// bound, and the merge strategy is a little faster with a bound. A larger key causes an error with dense or
    /// partition, but only takes more time with merge.
    pub key_range: Option<u64>,
    /// The bytes of the job's budget for all phases, including the blocks of records that the caller reads. More
    /// memory results in fewer runs, and more equal keys are combined before they are written. If the budget is too
    /// small, the error message contains the smallest sufficient budget; see [`smallest_memory_bytes`].
    pub memory_bytes: u64,
    /// The number of sinks that push at the same time (1 or more). The sinks share the memory.
    pub sinks: usize,
    /// Forces a strategy. `None` selects the strategy that [`crate::Choice`] estimates as the fastest.
    pub strategy: Option<Strategy>,
    /// The approximate number of records that will be pushed, from which the strategy is chosen. `None` assumes that
    /// the records have eight times as many bytes as the memory. A wrong number only makes the sort-reduce slower.
    pub expected_records: Option<u64>,
    /// The upper bound on the number of records. `None` means no bound. The partition strategy is not chosen if this
    /// number of records could fill more blocks than the memory can index. With more records than this bound, the
    /// sort-reduce may fail with [`crate::Error::TooManyRuns`].
    pub records_max: Option<u64>,
    /// The approximate number of distinct keys, from which the strategy is chosen. `None` assumes that keys are
    /// spread evenly over the range, or that all keys are different if there is no range.
    pub expected_keys: Option<u64>,
    /// Forces the size of a sink's chunk (the memory in which runs are formed), in bytes of records. Tests set a
    /// small size so that runs are written. `None` uses as much memory as possible. A smaller chunk also results in
    /// smaller blocks of runs.
    pub chunk_bytes: Option<usize>,
    /// Saves runs so that an interrupted sort-reduce can resume, and resumes from saved runs. The strategy is then
    /// merge, or dense, which saves nothing. Each sink must report the unit of the input to which its records belong
    /// ([`crate::Sink::begin_unit`]).
    pub keep: Option<Keep>,
    /// The name of this sort-reduce in scratch files and errors. The name must be valid within a file name.
    pub name: &'static str,
}

impl Default for Config {
    /// Returns a configuration for any key, one sink and 256 MiB. With (u32, u64) records, a run then has 19 million
    /// records.
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

/// Returns the smallest [`Config::memory_bytes`] for the merge strategy. `record_bytes` is the size of key and value
/// together.
pub fn smallest_memory_bytes(sinks: usize, record_bytes: usize) -> u64 {
    let share = SMALLEST_SHARE_BYTES * record_bytes.div_ceil(WIDE_RECORD_BYTES).max(1);
    (sinks.max(1) * share) as u64
}

const SMALLEST_SHARE_BYTES: usize = 512 << 10;
const WIDE_RECORD_BYTES: usize = 64;
