//! The errors of nodes and of requests to nodes.

use std::{fmt::Display, io};

/// The result of a request to nodes.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of nodes and of requests to nodes. Each message names the node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the local store.
    #[error(transparent)]
    Store(#[from] inshore_store::Error),
    /// Missing, wrong or expired credentials.
    #[error("credentials: {what}")]
    Credentials {
        /// A description of the problem.
        what: String,
    },
    /// An unusable address.
    #[error("{address}: {what}")]
    Address {
        /// The address.
        address: String,
        /// The reason.
        what: String,
    },
    /// An unreachable node, or a node that was lost during a request.
    #[error("node {node}: {what}")]
    Lost {
        /// The node.
        node: String,
        /// The error of the connection.
        what: String,
    },
    /// A node that refused the request, or whose task failed.
    #[error("node {node}: {what}")]
    Refused {
        /// The node.
        node: String,
        /// The message of the node.
        what: String,
    },
    /// A task that was stopped because its client took no answers while other tasks waited. The client may
    /// request the task again.
    #[error(
        "node {node}: the task was stopped: the client did not read its answers while other tasks waited"
    )]
    SetAside {
        /// The node.
        node: String,
    },
    /// A node that sent an invalid answer.
    #[error("node {node}: protocol error: {what}")]
    BadAnswer {
        /// The node.
        node: String,
        /// A description of the answer.
        what: String,
    },
    /// Data that no reachable node has.
    #[error("{what} (--partial answers from the rest)")]
    Missing {
        /// The parts that were not read, and the lost nodes.
        what: String,
    },
    /// A file that cannot be processed on its nodes.
    #[error("{name}: {what}")]
    Unfit {
        /// The dataset.
        name: String,
        /// The reason, and a remedy.
        what: String,
    },
    /// A dataset or file that no node has.
    #[error("{name}: not found on any of the nodes")]
    NotFound {
        /// The requested name.
        name: String,
    },
    /// A file that was loaded or removed only in part.
    #[error("{name}: {what}")]
    Incomplete {
        /// The dataset.
        name: String,
        /// A description of the missing part.
        what: String,
    },
    /// A file without pages of the described format, a page with an invalid pointer, or a page that no node can
    /// return.
    #[error("{name}: {what}")]
    Pages {
        /// The file.
        name: String,
        /// A description of the problem.
        what: String,
    },
    /// A request for lines of a file whose pieces end with records and not with lines.
    #[error(
        "{name}: its pieces end with records of {record_bytes} bytes, not with lines: only store get can read it"
    )]
    NoLines {
        /// The file.
        name: String,
        /// The bytes of a record.
        record_bytes: u64,
    },
    /// A request for lines of a file whose pieces end with row groups and not with lines.
    #[error(
        "{name}: its pieces end with row groups of Parquet, not with lines: only sql, reduce, sort and store get can read it"
    )]
    RowGroups {
        /// The file.
        name: String,
    },
    /// A local read error of a file to be loaded.
    #[error("{name}: {source}")]
    Input {
        /// The file.
        name: String,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The deadline of the client has passed.
    #[error("the deadline of {seconds} s has passed: {what}")]
    Deadline {
        /// The given time in seconds.
        seconds: f64,
        /// The unfinished work.
        what: String,
    },
}

impl From<inshore_store::RuntimeError> for Error {
    fn from(error: inshore_store::RuntimeError) -> Error {
        Error::Store(error.into())
    }
}

impl Error {
    /// Returns true if the job was cancelled.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Store(inshore_store::Error::Cancelled))
    }
}

/// Returns the text of an error with its causes: tonic's own errors only say "transport error".
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = error.source();
    }
    text
}

/// Returns the error of a server that cannot start a thread.
pub(crate) fn no_thread(address: &impl Display, error: &io::Error) -> Error {
    Error::Address { address: address.to_string(), what: format!("cannot start a thread: {error}") }
}
