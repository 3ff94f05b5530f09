//! Errors of sorting and combining records.

use crate::Strategy;

/// The result of a sort-reduce operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Reports the failure of a sort-reduce. A message says what failed, where, what was found and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed: I/O, damage, budget, cancellation.
    #[error(transparent)]
    Store(#[from] inshore_store::Error),
    /// The dense or the partition strategy was forced without a range of keys.
    #[error("{name}: the {strategy} strategy needs a range of keys, and none was given")]
    NoKeyRange {
        /// The strategy that was forced.
        strategy: Strategy,
        /// Name of the sort-reduce.
        name: &'static str,
    },
    /// A key was not below the range.
    #[error("{name}: key {key} is outside the range: expected keys below {range}")]
    KeyOutOfRange {
        /// Name of the sort-reduce.
        name: &'static str,
        /// The largest such key of a batch; `u64::MAX` represents all larger keys.
        key: u64,
        /// Upper limit of keys.
        range: u64,
    },
    /// More runs were written than a budget of this size can index (checksums and first keys): 512 times the budget
    /// with keys of 4 bytes, 341 times with 8, 205 times with 16, counted after reduction.
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
        /// Bytes of the runs of one sink, or of the bins of all.
        spilled: u64,
        /// The budget in bytes.
        memory: u64,
        /// A budget that suffices for all of the input, if its size is known.
        enough: Option<u64>,
    },
    /// A block of a run is malformed, though its checksum is right: another program wrote the block.
    #[error("{file}: damaged: a block of records is malformed")]
    DamagedRun {
        /// The scratch file, or the dataset of a kept run.
        file: String,
    },
    /// A row does not fit the memory.
    #[error(
        "{name}: a row{} is longer than the {} that this budget allows: give it more memory",
        bytes.map(|bytes| format!(" of {}", inshore_store::format_bytes(bytes))).unwrap_or_default(),
        inshore_store::format_bytes(*limit)
    )]
    RowTooLong {
        /// Name of the sort.
        name: &'static str,
        /// Bytes of the row, if its end was seen.
        bytes: Option<u64>,
        /// Bytes of the longest row that fits.
        limit: u64,
    },
}

impl From<inshore_store::RuntimeError> for Error {
    fn from(error: inshore_store::RuntimeError) -> Error {
        Error::Store(error.into())
    }
}
