//! Errors of graphs.

/// The result of a graph operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Reports the failure of a graph operation. A message says what failed, where it failed, what was found and what was
/// expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed. The reason is, for example, an I/O error, damaged data, a budget that is too small, a name
    /// that exists already, or cancellation.
    #[error(transparent)]
    Store(#[from] inshore_store::Error),
    /// Sorting and reducing failed.
    #[error(transparent)]
    SortReduce(#[from] inshore_sortreduce::Error),
    /// A file of records could not be read or written.
    #[error(transparent)]
    Tables(#[from] inshore_tables::Error),
    /// A row of an input cannot be an edge or a vertex.
    #[error("{place}: expected {expected}, got {found}")]
    BadInput {
        /// The file, and the line, row or byte.
        place: String,
        /// The text that was found.
        found: String,
        /// The text that was expected.
        expected: String,
    },
    /// The inputs have no vertex at all.
    #[error("{inputs}: no edges and no vertices found")]
    Empty {
        /// Names of the inputs.
        inputs: String,
    },
    /// The inputs have more vertices than a graph can have.
    #[error("{found} vertices: a graph can have at most {limit}")]
    TooManyVertices {
        /// Number of vertices in the inputs.
        found: u64,
        /// The largest number of vertices.
        limit: u64,
    },
    /// The dataset is not a graph, or this program cannot read the version of the graph's format.
    #[error("{name}: {what}: found {found}, expected {expected}")]
    BadGraph {
        /// Name of the dataset.
        name: String,
        /// The part that is wrong.
        what: &'static str,
        /// The value that was found.
        found: String,
        /// The value that was expected.
        expected: String,
    },
    /// The graph has no vertex with this id.
    #[error("{graph} has no vertex {vertex}")]
    NoSuchVertex {
        /// Name of the graph.
        graph: String,
        /// The user's id.
        vertex: u64,
    },
    /// An option is out of its range.
    #[error("{option} is {found}: expected {expected}")]
    BadOption {
        /// Name of the option.
        option: &'static str,
        /// The value that was passed.
        found: String,
        /// The allowed range.
        expected: String,
    },
    /// A vertex program panicked, or broke a rule of its trait's documentation.
    #[error("vertex program {program}: {function}{} {what}", of_vertex(.vertex.as_ref()))]
    Program {
        /// Name of the program.
        program: &'static str,
        /// Name of the program's function that failed.
        function: &'static str,
        /// The original id of the vertex for which the function was called. The value is `None` if it was not called
        /// for a vertex.
        vertex: Option<u64>,
        /// Description of the fault, with the text of a panic.
        what: String,
    },
    /// A number grew beyond what 64 bits can hold.
    #[error("{what}")]
    Overflow {
        /// The numbers that grew too large.
        what: String,
    },
}

fn of_vertex(vertex: Option<&u64>) -> String {
    vertex.map_or(String::new(), |vertex| format!(" of vertex {vertex}"))
}

impl From<inshore_store::RuntimeError> for Error {
    fn from(error: inshore_store::RuntimeError) -> Error {
        Error::Store(error.into())
    }
}

impl Error {
    /// Tells whether the error is a cancellation of the job.
    pub fn is_cancelled(&self) -> bool {
        let store = match self {
            Error::Store(error) => error,
            Error::SortReduce(inshore_sortreduce::Error::Store(error)) => error,
            Error::Tables(inshore_tables::Error::Store(error)) => error,
            _ => return false,
        };
        store.is_cancelled()
    }
}
