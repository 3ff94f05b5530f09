//! This module defines the errors of kernels.

/// The result of a kernel.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a kernel. A message says what failed, where, what was found and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A source could not be read.
    #[error(transparent)]
    Read(#[from] inshore_kernel::Error),
    /// The store or the budget failed, or the job was stopped.
    #[error(transparent)]
    Store(#[from] inshore_store::Error),
    /// A table or compressed input could not be read.
    #[error(transparent)]
    Table(#[from] inshore_tables::Error),
    /// A pattern or a replacement is invalid.
    #[error("{what}")]
    BadPattern {
        /// Says what is wrong, and where.
        what: String,
    },
    /// The value of an option is invalid.
    #[error("{option}: {found:?}: {what}")]
    BadOption {
        /// Names the option.
        option: &'static str,
        /// Holds the value that was found.
        found: String,
        /// Says what is wrong with the value.
        what: String,
    },
    /// Sorting failed, in memory or on flash.
    #[error(transparent)]
    SortReduce(#[from] inshore_sortreduce::Error),
    /// A word is longer than the memory for all words.
    #[error("a word of {} exceeds the memory for words: raise --memory", inshore_store::format_bytes(*bytes))]
    WordTooLong {
        /// Holds the length of the word.
        bytes: u64,
    },
    /// The lines of a block became too long in total when matches were replaced.
    #[error(
        "replacing matches makes the lines of the block at byte {offset} longer than {} together; \
         raise --memory, or use a shorter replacement",
        inshore_store::format_bytes(*limit)
    )]
    ReplacedTooLong {
        /// Holds the offset of the block.
        offset: u64,
        /// Holds the limit on the total length of a block's lines.
        limit: u64,
    },
    /// A dataset is not a set of language profiles, or no profiles can be made from the samples.
    #[error("{name}: {what}")]
    BadProfiles {
        /// Names the dataset.
        name: String,
        /// Says what is wrong with the dataset.
        what: String,
    },
    /// The compression format does not have the requested level.
    #[error("{format} has no level {level}: expected {} to {}", levels.start(), levels.end())]
    BadLevel {
        /// Names the format.
        format: crate::Format,
        /// Holds the level that was requested.
        level: u32,
        /// Holds the levels of the format.
        levels: std::ops::RangeInclusive<u32>,
    },
    /// Compressed bytes are damaged or truncated, or are not compressed at all.
    #[error("{name}: {what}")]
    Damaged {
        /// Names the file.
        name: String,
        /// Says what is wrong with the bytes.
        what: String,
    },
    /// No name for the result can be derived from the name of a file.
    #[error("{}: {what}", path.display())]
    BadName {
        /// Names the file.
        path: std::path::PathBuf,
        /// Says what is wrong with the name.
        what: &'static str,
    },
    /// A file to be decompressed has no known ending, so the name of the result cannot be derived.
    #[error("{}: unknown ending: expected .gz, .bz2, .zst or .lz4", path.display())]
    UnknownEnding {
        /// Names the file.
        path: std::path::PathBuf,
    },
    /// The output file exists already, and must not be replaced.
    #[error("{}: it exists already", path.display())]
    Exists {
        /// Names the file.
        path: std::path::PathBuf,
    },
    /// A list of checksums is invalid.
    #[error("{place}: {what}")]
    BadList {
        /// Names the list and the line.
        place: String,
        /// Says what is wrong with the line.
        what: String,
    },
    /// The operating system refused an operation other than reading.
    #[error("{name}: cannot {what}: {source}")]
    Io {
        /// Names the file.
        name: String,
        /// Says what was tried, as a verb phrase.
        what: &'static str,
        /// Holds the error of the system.
        source: std::io::Error,
    },
    /// The operating system could not read a file.
    #[error("{name}: cannot read the file: {source}{}", inshore_store::url_hint(name, source))]
    Input {
        /// Names the file.
        name: String,
        /// Holds the error of the system.
        source: std::io::Error,
    },
    /// The result could not be written.
    #[error("cannot write the result: {0}")]
    Write(#[source] std::io::Error),
}

impl From<inshore_store::RuntimeError> for Error {
    fn from(error: inshore_store::RuntimeError) -> Error {
        Error::Store(error.into())
    }
}

impl Error {
    /// Returns true if reading failed because the source is not text. Such a source has a NUL byte in a "line" that is
    /// too long.
    pub fn is_binary_line(&self) -> bool {
        matches!(self, Error::Read(inshore_kernel::Error::LineTooLong { has_nul: true, .. }))
    }

    /// Tells whether the job was cancelled.
    pub fn is_cancelled(&self) -> bool {
        match self {
            Error::Read(error) => error.is_cancelled(),
            Error::Store(inshore_store::Error::Cancelled)
            | Error::Table(inshore_tables::Error::Store(inshore_store::Error::Cancelled)) => true,
            _ => false,
        }
    }
}
