//! Errors of reading blocks.

use inshore_store::format_bytes;

/// The result of reading blocks.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of reading blocks. An error message names the operation, the file and offset, the value found and the value
/// expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the store, or of a file in the file system.
    #[error(transparent)]
    Store(#[from] inshore_store::Error),
    /// An error that the producer of a stream, such as a decompressor, reports.
    #[error(transparent)]
    Stream(Box<dyn std::error::Error + Send + Sync>),
    /// A line is longer than the share of the memory budget that a single line may take.
    #[error(
        "{source_name}: the line at byte {offset} exceeds the limit of {} for a line: raise --memory",
        format_bytes(*limit)
    )]
    LineTooLong {
        /// The name of the source.
        source_name: String,
        /// The offset of the line's start.
        offset: u64,
        /// The largest accepted length of a line, in bytes.
        limit: u64,
        /// True if the bytes of the line that were read contain a NUL byte. A NUL byte indicates that the source is not
        /// text.
        has_nul: bool,
    },
}

impl From<inshore_store::RuntimeError> for Error {
    fn from(error: inshore_store::RuntimeError) -> Error {
        Error::Store(error.into())
    }
}

impl Error {
    /// Converts an I/O error of reading a stream to an [`Error`]. An error of a decompressor already contains the name
    /// of the source. A system error lacks the name, so the function adds `name`.
    pub fn from_read(name: &str, error: std::io::Error) -> Error {
        if error.get_ref().is_some() {
            return Error::Stream(error.into_inner().expect("looked at just now"));
        }
        Error::Store(inshore_store::Error::Io { what: "read".to_string(), path: name.into(), source: error })
    }

    /// Returns true if the job was cancelled.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Store(inshore_store::Error::Cancelled))
    }
}
