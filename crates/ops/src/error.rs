//! Errors of operations.

use std::{io, path::PathBuf};

use crate::place::Place;

/// The result of an operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of operations. An error of a library below has that library's message, and is the [source](std::error::Error::source).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A request names an operation that this build does not have.
    #[error("operation {operation:?}: unknown in this build, which has: {}", known.join(", "))]
    Unknown {
        /// The name in the request.
        operation: String,
        /// The names of the operations of this build.
        known: Vec<&'static str>,
    },
    /// A request is of a version that this build does not read.
    #[error("operation `{operation}`: the request has version {found}, expected {expected}")]
    Version {
        /// The operation.
        operation: &'static str,
        /// The version in the request, or `none`.
        found: String,
        /// The version that this build reads.
        expected: u32,
    },
    /// A request is not what the operation expects: an unknown or a missing field, or a value of another type.
    #[error("operation `{operation}`: bad request: {what}")]
    Request {
        /// The operation.
        operation: &'static str,
        /// The field, what was found and what was expected.
        what: String,
    },
    /// An operation does not run at a target.
    #[error("operation `{operation}` does not run on {place}")]
    Unsupported {
        /// The operation.
        operation: &'static str,
        /// The kind of target.
        place: Place,
    },
    /// An operation runs at a target, but not with this option.
    #[error("operation `{operation}`: {option} does not go with {place}: {why}")]
    UnsupportedOption {
        /// The operation.
        operation: &'static str,
        /// The field of the request.
        option: &'static str,
        /// The kind of target.
        place: Place,
        /// The reason, or what to do.
        why: &'static str,
    },
    /// An operation needs a job on a store, and got a context without one.
    #[error("operation `{operation}` needs a store here")]
    NeedsStore {
        /// The operation.
        operation: &'static str,
    },
    /// A dataset is there, and is not made as it is asked for now.
    #[error("{name} is there, {what}")]
    MadeOtherwise {
        /// The dataset.
        name: String,
        /// How it is made, and that this was chosen then.
        what: String,
    },
    /// One of several files of a dataset has to be named.
    #[error("{name} is several files: name one of {}", files.join(", "))]
    SeveralFiles {
        /// The dataset.
        name: String,
        /// Its files.
        files: Vec<String>,
    },
    /// A dataset does not have a file.
    #[error("{name} has no file {file:?}: it has {}", files.join(", "))]
    NoFile {
        /// The dataset.
        name: String,
        /// The name that is asked for.
        file: String,
        /// Its files.
        files: Vec<String>,
    },
    /// A range begins behind the end of a file.
    #[error("the offset {offset} is beyond the end: {file} has {bytes} bytes")]
    BeyondEnd {
        /// The file.
        file: String,
        /// Where the range begins.
        offset: u64,
        /// Bytes of the file.
        bytes: u64,
    },
    /// A file would be written among those that the store consists of.
    #[error("{}: lies in {}, a device of the store: choose another place", output.display(), device.display())]
    InStore {
        /// The file.
        output: PathBuf,
        /// The device.
        device: PathBuf,
    },
    /// An operation on nodes reads datasets, and none is named.
    #[error("operation `{operation}` on nodes: no dataset is named")]
    NoInput {
        /// The operation.
        operation: &'static str,
    },
    /// An operation writes a file, and none is named.
    #[error("operation `{operation}`: no output is named")]
    NoOutput {
        /// The operation.
        operation: &'static str,
    },
    /// Several inputs would become one file.
    #[error("{} is one file, and {inputs} are named", output.display())]
    OneOutput {
        /// The file.
        output: PathBuf,
        /// The number of inputs.
        inputs: usize,
    },
    /// A table in a format that has no lines would be sorted by lines.
    #[error("{name}: a table is sorted by its columns: name them")]
    TableAsLines {
        /// The table.
        name: String,
    },
    /// A key reaches beyond the end of a record.
    #[error("the key {start}..{end} reaches beyond the {bytes} bytes of a record")]
    KeyBeyondRecord {
        /// The first byte of the key.
        start: u64,
        /// The byte behind the last one of the key.
        end: u64,
        /// Bytes of a record.
        bytes: u64,
    },
    /// A group is asked for nothing.
    #[error("nothing is asked for: name columns to group by, or what to compute")]
    NothingAsked,
    /// An aggregate lacks the column that its function needs.
    #[error("the aggregate {function} needs a column")]
    NoColumn {
        /// The function.
        function: &'static str,
    },
    /// An operation on nodes takes one input, and another number is named.
    #[error("operation `{operation}` on nodes takes one table, and {inputs} are named: name one dataset")]
    OneInput {
        /// The operation.
        operation: &'static str,
        /// The number of inputs.
        inputs: usize,
    },
    /// A file that says what to do cannot be read.
    #[error("{}: cannot read it", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The name of a dataset is not UTF-8.
    #[error("{}: this is no name of a dataset", path.display())]
    BadName {
        /// The name.
        path: PathBuf,
    },
    /// A store, a budget, or a job that was stopped.
    #[error("{0}")]
    Store(#[from] inshore_store::Error),
    /// A table that is read or written, or sorted.
    #[error("{0}")]
    Table(#[from] inshore_tables::Error),
    /// A kernel.
    #[cfg(feature = "text")]
    #[error("{0}")]
    Kernel(#[from] inshore_kernels::Error),
    /// Nodes, or the way to them.
    #[cfg(feature = "nodes")]
    #[error("{0}")]
    Nodes(#[from] inshore_neardata::nodes::Error),
    /// A file on nodes.
    #[cfg(feature = "nodes")]
    #[error("{0}")]
    File(#[from] crate::files::Error),
    /// A module of WebAssembly.
    #[cfg(feature = "wasm")]
    #[error("{0}")]
    Wasm(#[from] crate::wasm::Error),
    /// A query.
    #[cfg(feature = "sql")]
    #[error("{0}")]
    Sql(#[from] inshore_sql::Error),
    /// Whoever takes the rows of an answer.
    #[error("{0}")]
    Rows(Box<dyn std::error::Error + Send + Sync>),
}

impl From<inshore_store::RuntimeError> for Error {
    fn from(error: inshore_store::RuntimeError) -> Error {
        Error::Store(error.into())
    }
}
