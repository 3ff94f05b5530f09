//! What can go wrong when blocks are read.

use inshore_store::format_bytes;

/// The result of reading blocks.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of reading blocks. A message says what failed, where, what was found and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store, or a file of the file system.
    #[error(transparent)]
    Store(#[from] inshore_store::Error),
    /// What gives a stream, such as a decompressor.
    #[error(transparent)]
    Stream(Box<dyn std::error::Error + Send + Sync>),
    /// A line that does not fit the part of the budget that is for one.
    #[error(
        "{source_name}: a line that begins at byte {offset} exceeds the {} that the budget has for one",
        format_bytes(*limit)
    )]
    LineTooLong {
        /// The source.
        source_name: String,
        /// Where the line begins.
        offset: u64,
        /// Bytes that would have been accepted.
        limit: u64,
        /// Whether there is a NUL byte among those that were seen of it: then it is no line of text.
        has_nul: bool,
    },
}

impl From<inshore_store::RuntimeError> for Error {
    fn from(error: inshore_store::RuntimeError) -> Error {
        Error::Store(error.into())
    }
}

impl Error {
    /// An error of reading a stream: what a decompressor says names the source already, what the system says does not.
    pub fn from_read(name: &str, error: std::io::Error) -> Error {
        if error.get_ref().is_some() {
            return Error::Stream(error.into_inner().expect("looked at just now"));
        }
        Error::Store(inshore_store::Error::Io { what: "read".to_string(), path: name.into(), source: error })
    }

    /// Whether a job was asked to stop.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Store(inshore_store::Error::Cancelled))
    }
}
