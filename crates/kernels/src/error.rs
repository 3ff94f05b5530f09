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
    /// An option that means nothing.
    #[error("{option}: {found:?}: {what}")]
    BadOption {
        /// The option.
        option: &'static str,
        /// What it was.
        found: String,
        /// What is wrong with it.
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
    /// Lines whose matches are replaced, that become too long.
    #[error(
        "what matches are replaced by makes the lines of the block at byte {offset} longer than {}, all together; \
         raise --memory, or replace by less",
        inshore_store::format_bytes(*limit)
    )]
    ReplacedTooLong {
        /// Where the block begins.
        offset: u64,
        /// What they may have.
        limit: u64,
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
    /// A file whose name does not say what to call the result.
    #[error("{}: {what}", path.display())]
    BadName {
        /// The file.
        path: std::path::PathBuf,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A file to decompress whose ending is no format's, so that it is not known what to call the result.
    #[error("{}: its ending is none of gz, bz2, zst and lz4", path.display())]
    UnknownEnding {
        /// The file.
        path: std::path::PathBuf,
    },
    /// A file that is there already, and was not to be replaced.
    #[error("{}: it is there already", path.display())]
    Exists {
        /// The file.
        path: std::path::PathBuf,
    },
    /// A list of checksums that is none.
    #[error("{place}: {what}")]
    BadList {
        /// The list, and the line.
        place: String,
        /// What is wrong with it.
        what: String,
    },
    /// The system refused something else than to read.
    #[error("{name}: cannot {what}: {source}")]
    Io {
        /// The file.
        name: String,
        /// What was tried, as a verb phrase.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system refused to read.
    #[error("{name}: cannot read it: {source}{}", inshore_store::url_hint(name, source))]
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

impl From<inshore_store::RuntimeError> for Error {
    fn from(error: inshore_store::RuntimeError) -> Error {
        Error::Store(error.into())
    }
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
