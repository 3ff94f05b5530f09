//! Errors of sorting and combining records.

use crate::Strategy;

/// The result of a sort-reduce operation.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a sort-reduce or of a sort of rows. The message contains what failed, where, what was found and what
/// was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed: I/O, damaged data, exhausted budget, or cancellation.
    #[error(transparent)]
    Store(#[from] inshore_store::Error),
    /// The dense or partition strategy was forced, but no range of keys was configured.
    #[error("{name}: the {strategy} strategy needs a range of keys, and none was given")]
    NoKeyRange {
        /// The strategy that was forced.
        strategy: Strategy,
        /// Name of the sort-reduce.
        name: &'static str,
    },
    /// A key was not below the configured upper bound.
    #[error("{name}: key {key} is outside the range: expected keys below {range}")]
    KeyOutOfRange {
        /// Name of the sort-reduce.
        name: &'static str,
        /// The largest key of the batch that was out of range. `u64::MAX` also represents all larger keys.
        key: u64,
        /// The exclusive upper bound of keys.
        range: u64,
    },
    /// The runs have more blocks than the budget can index, since the checksum and the first key of each block are in
    /// memory. All reduced runs together may have at most 512 times the budget with keys of 4 bytes, 341 times with 8
    /// bytes, and 205 times with 16 bytes.
    #[error(
        "{name}: a budget of {} cannot index {} of sorted runs: {}",
        inshore_store::format_bytes(*memory),
        inshore_store::format_bytes(*spilled),
        enough.map_or("give it more memory".to_string(), |enough| {
            format!("{} are enough", inshore_store::format_bytes_up(enough))
        })
    )]
    TooManyRuns {
        /// Name of the sort-reduce.
        name: &'static str,
        /// The bytes of the runs of one sink, or of the bins of all sinks.
        spilled: u64,
        /// The budget in bytes.
        memory: u64,
        /// A budget in bytes that suffices for the whole input, if the input's size is known.
        enough: Option<u64>,
    },
    /// A block of a run is malformed, although its checksum is correct. Another program must have written the block.
    #[error("{file}: damaged: a block of records is malformed")]
    DamagedRun {
        /// The scratch file, or the dataset of a saved run.
        file: String,
    },
    /// A row does not fit in memory.
    #[error(
        "{name}: a row{} is longer than the {} that this budget allows: give it more memory",
        bytes.map(|bytes| format!(" of {}", inshore_store::format_bytes(bytes))).unwrap_or_default(),
        inshore_store::format_bytes(*limit)
    )]
    RowTooLong {
        /// Name of the sort.
        name: &'static str,
        /// The length of the row in bytes, if the end of the row was reached.
        bytes: Option<u64>,
        /// The length in bytes of the longest row that fits.
        limit: u64,
    },
}

impl From<inshore_store::RuntimeError> for Error {
    fn from(error: inshore_store::RuntimeError) -> Error {
        Error::Store(error.into())
    }
}
