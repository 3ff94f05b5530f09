//! This module defines the errors of memory, files and jobs.

use std::{io, path::PathBuf};

use crate::{format_bytes, format_bytes_up};

/// `Result` is the result of an operation of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// `Error` lists the errors of memory, files and jobs. A message says what failed, where, what was found and what was
/// expected.
///
/// The list is exhaustive: crates that use this crate convert each variant to an error of their own, so the
/// compiler reports a new variant in these crates.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system refused an operation on a file or folder (no permission, disk full, I/O error).
    #[error("{}: cannot {what}: {source}{}", path.display(), url_hint(&path.to_string_lossy(), source))]
    Io {
        /// The operation, as a verb phrase ("write 1048576 bytes at 0").
        what: String,
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A reservation would exceed the budget.
    #[error(
        "not enough memory for {what} ({} needed, {} of the budget of {} free){}",
        format_bytes(*wanted), format_bytes(*free), format_bytes(*total),
        enough.map(|enough| format!(": a budget of {} is enough", format_bytes_up(enough)))
            .unwrap_or_default()
    )]
    OverBudget {
        /// The purpose of the memory.
        what: &'static str,
        /// The number of bytes of the reservation.
        wanted: u64,
        /// The number of bytes of the budget that were not reserved at that moment.
        free: u64,
        /// The size of the complete budget in bytes.
        total: u64,
        /// The size of a budget in which the reservation would fit. The value is `None` if this budget is a part of a
        /// larger one.
        enough: Option<u64>,
    },
    /// The budget is too small for the job to run at all.
    #[error("{what} cannot work in {}: the smallest budget that works is {}", format_bytes(*given), format_bytes_up(*smallest))]
    BudgetTooSmall {
        /// A description of the job.
        what: String,
        /// The size of the given budget in bytes.
        given: u64,
        /// The smallest budget in which the job can run, in bytes.
        smallest: u64,
    },
    /// A text is not a size.
    #[error("bad size {text:?}: expected a number of bytes such as 64MiB, 1.5GiB or 200MB")]
    BadSize {
        /// The text that was found.
        text: String,
    },
    /// The job ended early because its stop flag was set.
    #[error("the job was stopped before it was done; the store is unchanged")]
    Cancelled,
}

impl Error {
    /// Returns true if the job ended early because its stop flag was set.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Cancelled)
    }

    /// Creates an [`Error::Io`] for `what` on `path`.
    pub fn io(what: impl Into<String>, path: impl Into<PathBuf>, source: io::Error) -> Self {
        Error::Io { what: what.into(), path: path.into(), source }
    }
}

/// Returns the hint that an error about a path adds if there is no file at the path and the path is a URL.
pub fn url_hint(path: &str, source: &io::Error) -> &'static str {
    let is_scheme = |text: &str| {
        text.len() > 1
            && text.starts_with(|first: char| first.is_ascii_alphabetic())
            && text.chars().all(|letter| letter.is_ascii_alphanumeric() || "+-.".contains(letter))
    };
    let is_url = path.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme));
    match is_url && source.kind() == io::ErrorKind::NotFound {
        true => "; URLs are neither read nor written: copy the file, or use a pipe and -",
        false => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_path_that_is_a_url_gets_a_hint() {
        let said = |path: &str, kind: io::ErrorKind| Error::io("open", path, kind.into()).to_string();
        for url in ["https://example.org/a.csv", "s3://bucket/a.parquet", "gs://b"] {
            assert!(
                said(url, io::ErrorKind::NotFound).contains("URLs are neither read nor written"),
                "{url}"
            );
        }
        for path in ["a.csv", "://", "a b://c", "C:/a"] {
            assert!(!said(path, io::ErrorKind::NotFound).contains("URL"), "{path}");
        }
        assert!(!said("https://example.org", io::ErrorKind::PermissionDenied).contains("URL"));
    }
}
