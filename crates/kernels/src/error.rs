//! What can go wrong in a kernel.

/// The result of a kernel.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of kernels. A message says what failed, where, what was found and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Reading a source.
    #[error(transparent)]
    Read(#[from] inshore_neardata::Error),
    /// The store, the budget, or a job that was stopped.
    #[error(transparent)]
    Store(#[from] inshore_store::Error),
    /// A table, or compressed input.
    #[error(transparent)]
    Table(#[from] inshore_tables::Error),
    /// A pattern that is none.
    #[error("{what}")]
    BadPattern {
        /// What is wrong with it, and where.
        what: String,
    },
    /// Sorting, through flash where it must be.
    #[error(transparent)]
    SortReduce(#[from] inshore_sortreduce::Error),
    /// A word that is longer than the memory for all words.
    #[error("a word of {} exceeds the memory for words", inshore_store::format_bytes(*bytes))]
    WordTooLong {
        /// Its length.
        bytes: u64,
    },
    /// What is no set of profiles, or cannot become one.
    #[error("{name}: {what}")]
    BadProfiles {
        /// The dataset.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// A level that a format of compression does not have.
    #[error("{format} has the levels {} to {}, not {level}", levels.start(), levels.end())]
    BadLevel {
        /// The format.
        format: crate::Format,
        /// What was asked for.
        level: u32,
        /// What there is.
        levels: std::ops::RangeInclusive<u32>,
    },
    /// Compressed bytes that are damaged, cut, or none.
    #[error("{name}: {what}")]
    Damaged {
        /// The file.
        name: String,
        /// What is wrong with it.
        what: String,
    },
    /// The system refused to read.
    #[error("{name}: cannot read it: {source}")]
    Input {
        /// The file.
        name: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// Writing what was found.
    #[error("cannot write: {0}")]
    Write(#[source] std::io::Error),
}

impl Error {
    /// Whether a line was too long that is none, since it has a NUL byte: the source is no text.
    pub fn is_binary_line(&self) -> bool {
        matches!(self, Error::Read(inshore_neardata::Error::LineTooLong { has_nul: true, .. }))
    }

    /// Whether a job was asked to stop.
    pub fn is_cancelled(&self) -> bool {
        match self {
            Error::Read(error) => error.is_cancelled(),
            Error::Store(inshore_store::Error::Cancelled)
            | Error::Table(inshore_tables::Error::Store(inshore_store::Error::Cancelled)) => true,
            _ => false,
        }
    }
}
