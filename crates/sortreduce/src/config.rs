//! What a sort-reduce may use, and the choice of its strategy. Nothing here allocates or does I/O.

use serde::Serialize;

use crate::plan::DensePlan;

/// How equal keys are brought together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// An array with a place for every possible key, in memory.
    Dense,
    /// Sorted runs on flash, merged.
    Merge,
}

/// What a sort-reduce may use.
#[derive(Clone, Debug)]
pub struct Config {
    /// Keys are below this (`None`: any key). The dense strategy needs it, and it makes merging a little
    /// faster. A larger key is an error in a dense sort-reduce and costs only speed in a merging one.
    pub key_range: Option<u64>,
    /// Bytes of the job's budget that it may use, in all phases together with their blocks handed out. More
    /// means fewer runs and more equal keys combined before they are written. Too little is an error that
    /// names the smallest; see [`smallest_memory_bytes`].
    pub memory_bytes: u64,
    /// The number of sinks that push at the same time (1 or more); they share the memory.
    pub sinks: usize,
    /// Forces a strategy; `None`: [`choose`].
    pub strategy: Option<Strategy>,
    /// Forces the size of a sink's chunk in bytes of records, so that tests write runs; `None`: as large as the
    /// memory allows. Blocks of the runs shrink with it.
    pub chunk_bytes: Option<usize>,
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
            chunk_bytes: None,
            name: "records",
        }
    }
}

/// The strategy for values of `value_bytes` bytes: dense if its array, presence bitmap and bins fit the memory.
///
/// This is the cost model. Dense moves no byte to flash and its time does not depend on the range but for one
/// scan of the bitmap, so it wins wherever it fits.
pub fn choose(config: &Config, value_bytes: usize) -> Strategy {
    // Keys of 8 bytes are the larger case; the choice must not depend on how keys are held.
    config.strategy.unwrap_or(match DensePlan::new(config, 8, value_bytes) {
        Some(_) => Strategy::Dense,
        None => Strategy::Merge,
    })
}

/// The smallest [`Config::memory_bytes`] with which merging works, for records of `record_bytes` (key and value).
pub fn smallest_memory_bytes(sinks: usize, record_bytes: usize) -> u64 {
    let share = SMALLEST_SHARE_BYTES * record_bytes.div_ceil(WIDE_RECORD_BYTES).max(1);
    (sinks.max(1) * share) as u64
}

const SMALLEST_SHARE_BYTES: usize = 512 << 10;
const WIDE_RECORD_BYTES: usize = 64;
