//! The errors of operations on vectors.

/// The result of an operation on vectors.
pub type Result<T> = std::result::Result<T, Error>;

/// The failure of an operation on vectors. The message states what failed and where, what was found, and what was
/// expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed. The cause is, for example, an I/O error, damaged data, too small a budget, an invalid name, or
    /// cancellation.
    #[error(transparent)]
    Store(#[from] inshore_store::Error),
    /// A sort failed.
    #[error(transparent)]
    Sort(inshore_sortreduce::Error),
    /// A table of vectors, or the columns of a dataset, cannot be read.
    #[error(transparent)]
    Table(inshore_tables::Error),
    /// A file of vectors is malformed, truncated, or holds a value that cannot be compared.
    #[error("{file}: {place}: found {found}, expected {expected}")]
    BadFile {
        /// The name of the file, or of the dataset whose vectors are queries.
        file: String,
        /// The position of the fault in the file, such as the header, a vector or a dimension.
        place: String,
        /// The value that was found.
        found: String,
        /// The value that was expected.
        expected: String,
    },
    /// A dataset does not hold vectors, is damaged, or has a version that this program cannot read.
    #[error("{name}: {what}: found {found}, expected {expected}")]
    BadDataset {
        /// The name of the dataset.
        name: String,
        /// The part of the dataset that is wrong.
        what: &'static str,
        /// The value that was found.
        found: String,
        /// The value that was expected.
        expected: String,
    },
    /// The vectors have no index.
    #[error("{name} has no index: build one (`nearest index {name}`)")]
    NoIndex {
        /// The name of the vectors.
        name: String,
    },
    /// The vectors have no index that could be removed.
    #[error("{name} has no index to remove")]
    NoIndexToRemove {
        /// The name of the vectors.
        name: String,
    },
    /// The value of an option is out of range.
    #[error("{option} is {found}: expected {expected}")]
    BadOption {
        /// The name of the option.
        option: &'static str,
        /// The value that was passed.
        found: String,
        /// The values that are allowed.
        expected: String,
    },
    /// A source of content ([`crate::ContentRows`]) failed.
    #[error("{0}")]
    Content(Box<dyn std::error::Error + Send + Sync>),
    /// The receiver of the rows of an answer failed.
    #[error("{0}")]
    Rows(Box<dyn std::error::Error + Send + Sync>),
}

impl From<inshore_sortreduce::Error> for Error {
    fn from(error: inshore_sortreduce::Error) -> Error {
        match error {
            inshore_sortreduce::Error::Store(error) => Error::Store(error),
            error => Error::Sort(error),
        }
    }
}

impl From<inshore_tables::Error> for Error {
    fn from(error: inshore_tables::Error) -> Error {
        match error {
            inshore_tables::Error::Store(error) => Error::Store(error),
            error => Error::Table(error),
        }
    }
}

impl From<inshore_store::RuntimeError> for Error {
    fn from(error: inshore_store::RuntimeError) -> Error {
        Error::Store(error.into())
    }
}

impl Error {
    /// Returns true if the error is a cancellation of the job.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Store(error) if error.is_cancelled())
    }
}
