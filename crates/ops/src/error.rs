//! This module defines the errors of operations.

use std::{io, path::PathBuf};

use crate::target_kind::TargetKind;

/// The result type of operations.
pub type Result<T> = std::result::Result<T, Error>;

/// The error type of operations. An error of another crate of Inshore keeps its message, and is the
/// [source](std::error::Error::source).
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
    /// A request has a version that this build does not support.
    #[error("operation `{operation}`: the request has version {found}, expected {expected}")]
    Version {
        /// The name of the operation.
        operation: &'static str,
        /// The version in the request, or `none`.
        found: String,
        /// The version that this build supports.
        expected: u32,
    },
    /// A request has an unknown or a missing field, or a value of another type.
    #[error("operation `{operation}`: bad request: {what}")]
    Request {
        /// The name of the operation.
        operation: &'static str,
        /// The name of the field, the value that was found, and the value that was expected.
        what: String,
    },
    /// An operation does not run on this kind of target.
    #[error("operation `{operation}` does not run on {place}")]
    Unsupported {
        /// The name of the operation.
        operation: &'static str,
        /// The kind of the requested target.
        place: TargetKind,
    },
    /// An operation runs on this kind of target, but not with this option.
    #[error("operation `{operation}`: {option} does not work with {place}: {why}")]
    UnsupportedOption {
        /// The name of the operation.
        operation: &'static str,
        /// The name of the option's field in the request.
        option: &'static str,
        /// The kind of the requested target.
        place: TargetKind,
        /// The reason, or a remedy.
        why: &'static str,
    },
    /// An operation needs a store, but its job has no store.
    #[error("operation `{operation}` needs a store here")]
    NeedsStore {
        /// The name of the operation.
        operation: &'static str,
    },
    /// A dataset exists already, with settings that differ from the requested settings.
    #[error("{name} exists already {what}")]
    MadeOtherwise {
        /// The name of the dataset.
        name: String,
        /// The existing setting, which cannot change.
        what: String,
    },
    /// A dataset has several files, and the request names none of them.
    #[error("{name} has several files: choose one of {}", files.join(", "))]
    SeveralFiles {
        /// The name of the dataset.
        name: String,
        /// The names of the dataset's files.
        files: Vec<String>,
    },
    /// A dataset does not have a file.
    #[error("{name} has no file {file:?}: its files are {}", files.join(", "))]
    NoFile {
        /// The name of the dataset.
        name: String,
        /// The requested file name.
        file: String,
        /// The names of the dataset's files.
        files: Vec<String>,
    },
    /// A range begins beyond the end of a file.
    #[error("the offset {offset} is beyond the end: {file} has {bytes} bytes")]
    BeyondEnd {
        /// The name or path of the file.
        file: String,
        /// The offset of the range.
        offset: u64,
        /// The length of the file in bytes.
        bytes: u64,
    },
    /// The output file would be in a folder of the store.
    #[error("{}: the path is in {}, a device of the store: choose another path", output.display(), device.display())]
    InStore {
        /// The name or path of the file.
        output: PathBuf,
        /// The path of the device's folder.
        device: PathBuf,
    },
    /// An operation on nodes needs a dataset, and the request names none.
    #[error("operation `{operation}` on nodes: no dataset is given")]
    NoInput {
        /// The name of the operation.
        operation: &'static str,
    },
    /// An operation needs an output file, and the request names none.
    #[error("operation `{operation}`: no output is given")]
    NoOutput {
        /// The name of the operation.
        operation: &'static str,
    },
    /// The request has several inputs and one output file.
    #[error("{} is one file, and {inputs} inputs are given", output.display())]
    OneOutput {
        /// The name or path of the file.
        output: PathBuf,
        /// The number of inputs.
        inputs: usize,
    },
    /// A table in a binary format cannot be sorted by lines.
    #[error("{name}: tables are sorted by columns: give them")]
    TableAsLines {
        /// The name of the table.
        name: String,
    },
    /// A key extends beyond the end of a record.
    #[error("the key {start}..{end} reaches beyond the {bytes} bytes of a record")]
    KeyBeyondRecord {
        /// The offset of the first byte of the key.
        start: u64,
        /// The offset of the first byte after the key.
        end: u64,
        /// The length of a record in bytes.
        bytes: u64,
    },
    /// A request to group rows names neither columns nor aggregates.
    #[error("nothing to compute: give columns to group by, or aggregates")]
    NothingAsked,
    /// An aggregate lacks the column that its function needs.
    #[error("the aggregate {function} needs a column")]
    NoColumn {
        /// The name of the aggregate function.
        function: &'static str,
    },
    /// An operation on nodes takes one input, and the request names another number.
    #[error("operation `{operation}` on nodes takes one table, and there are {inputs}: give one dataset")]
    OneInput {
        /// The name of the operation.
        operation: &'static str,
        /// The number of inputs.
        inputs: usize,
    },
    /// A file that a request names cannot be read.
    #[error("{}: cannot read the file", path.display())]
    Unreadable {
        /// The name or path of the file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The name of a dataset is not UTF-8.
    #[error("{}: this is not a name of a dataset", path.display())]
    BadName {
        /// The path that should name a dataset.
        path: PathBuf,
    },
    /// The store failed, the budget is too small, or the job was cancelled.
    #[error("{0}")]
    Store(#[from] inshore_store::Error),
    /// Reading, writing or sorting a table failed.
    #[error("{0}")]
    Table(#[from] inshore_tables::Error),
    /// A graph cannot be read, made or analysed.
    #[cfg(feature = "graph")]
    #[error("{0}")]
    Graph(#[from] inshore_graph::Error),
    /// A kernel (a function over the bytes of files, such as a search) failed.
    #[cfg(feature = "text")]
    #[error("{0}")]
    Kernel(#[from] inshore_kernels::Error),
    /// A node or the network failed.
    #[cfg(feature = "nodes")]
    #[error("{0}")]
    Nodes(#[from] inshore_nodes::Error),
    /// A file on nodes cannot be processed.
    #[cfg(feature = "nodes")]
    #[error("{0}")]
    File(#[from] crate::files::Error),
    /// A WebAssembly module failed.
    #[cfg(feature = "wasm")]
    #[error("{0}")]
    Wasm(#[from] crate::wasm::Error),
    /// An SQL query failed.
    #[cfg(feature = "sql")]
    #[error("{0}")]
    Sql(#[from] inshore_sql::Error),
    /// Importing or searching vectors failed.
    #[cfg(feature = "vectors")]
    #[error("{0}")]
    Vectors(#[from] inshore_vectors::Error),
    /// The receiver of an answer's rows failed.
    #[error("{0}")]
    Rows(Box<dyn std::error::Error + Send + Sync>),
}

#[cfg(feature = "vectors")]
impl Error {
    /// Converts the error of a search of vectors. An error of the receiver of rows is one of this crate.
    pub(crate) fn of_search(error: inshore_vectors::Error) -> Error {
        match error {
            inshore_vectors::Error::Rows(inner) => match inner.downcast::<Error>() {
                Ok(error) => *error,
                Err(inner) => Error::Rows(inner),
            },
            error => error.into(),
        }
    }
}

impl From<inshore_store::RuntimeError> for Error {
    fn from(error: inshore_store::RuntimeError) -> Error {
        Error::Store(error.into())
    }
}
