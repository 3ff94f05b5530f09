//! What can go wrong between machines.

use std::{fmt::Display, io};

/// The result of asking nodes.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of nodes and of asking them. A message names the node.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store here.
    #[error(transparent)]
    Store(#[from] inshore_store::Error),
    /// Credentials that are missing, wrong or expired.
    #[error("credentials: {what}")]
    Credentials {
        /// What is wrong with them.
        what: String,
    },
    /// An address that cannot be used.
    #[error("{address}: {what}")]
    Address {
        /// The address.
        address: String,
        /// Why.
        what: String,
    },
    /// A node that cannot be reached, or was lost in the middle of something.
    #[error("node {node}: {what}")]
    Lost {
        /// The node.
        node: String,
        /// What the connection said.
        what: String,
    },
    /// A node that refused, or whose task failed.
    #[error("node {node}: {what}")]
    Refused {
        /// The node.
        node: String,
        /// What it said.
        what: String,
    },
    /// A task that was stopped since its client took no answers while others waited. It can be asked for again.
    #[error("node {node}: the task was set aside: nobody took its answers while others waited")]
    SetAside {
        /// The node.
        node: String,
    },
    /// A node that answers what no node should.
    #[error("node {node}: it answers {what}")]
    BadAnswer {
        /// The node.
        node: String,
        /// What was found.
        what: String,
    },
    /// Data that is on no node that can be reached.
    #[error("{what} (--partial answers from the rest)")]
    Missing {
        /// What was not read, and which nodes were lost.
        what: String,
    },
    /// A file that cannot be worked on where it lies.
    #[error("{name}: {what}")]
    Unfit {
        /// The dataset.
        name: String,
        /// Why, and what to do.
        what: String,
    },
    /// Something that no node has.
    #[error("{name}: on none of the nodes")]
    NotFound {
        /// What was asked for.
        name: String,
    },
    /// A file that was not loaded to its end, or only removed in part.
    #[error("{name}: {what}")]
    Incomplete {
        /// The dataset.
        name: String,
        /// What is missing.
        what: String,
    },
    /// A file that has no pages as they were described, a page that names none, or one that no node can give.
    #[error("{name}: {what}")]
    Pages {
        /// The file.
        name: String,
        /// What is wrong.
        what: String,
    },
    /// Lines asked for in a file that is cut at records.
    #[error(
        "{name}: its pieces end with records of {record_bytes} bytes, not with lines: it can only be given back whole"
    )]
    NoLines {
        /// The file.
        name: String,
        /// Bytes of a record.
        record_bytes: u64,
    },
    /// Lines asked for in a file that is cut at row groups.
    #[error(
        "{name}: its pieces end with row groups of Parquet, not with lines: sql reads it, and store get gives it back"
    )]
    RowGroups {
        /// The file.
        name: String,
    },
    /// Reading here what is to be loaded.
    #[error("{name}: {source}")]
    Input {
        /// The file.
        name: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The time that the client gave is over.
    #[error("the deadline of {seconds} s is over: {what}")]
    Deadline {
        /// What was given.
        seconds: f64,
        /// What was not done by then.
        what: String,
    },
}

impl From<inshore_store::RuntimeError> for Error {
    fn from(error: inshore_store::RuntimeError) -> Error {
        Error::Store(error.into())
    }
}

impl Error {
    /// Whether a job was asked to stop.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, Error::Store(inshore_store::Error::Cancelled))
    }
}

/// An error with what caused it: tonic's own say "transport error" alone.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
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

/// The error of a server that has no thread.
pub(super) fn no_thread(address: &impl Display, error: &io::Error) -> Error {
    Error::Address { address: address.to_string(), what: format!("cannot start a thread: {error}") }
}
