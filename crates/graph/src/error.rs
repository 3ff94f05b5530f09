//! What can go wrong with graphs.

/// The result of a graph operation.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of graphs. A message says what failed, where, what was found and what was expected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The store failed: I/O, damage, budget, names, cancellation.
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
        /// File and line, row or byte.
        place: String,
        /// What stands there.
        found: String,
        /// What should.
        expected: String,
    },
    /// The inputs hold no vertex at all.
    #[error("{inputs}: no edges and no vertices in it")]
    Empty {
        /// The inputs.
        inputs: String,
    },
    /// More vertices than a graph can have.
    #[error("{found} vertices: a graph can have at most {limit}")]
    TooManyVertices {
        /// How many there are.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// A dataset that is no graph, or of a version that this program cannot read.
    #[error("{name}: {what}: found {found}, expected {expected}")]
    BadGraph {
        /// The dataset.
        name: String,
        /// The part that is wrong.
        what: &'static str,
        /// What stands there.
        found: String,
        /// What should.
        expected: String,
    },
    /// A vertex id that the graph does not have.
    #[error("{graph} has no vertex {vertex}")]
    NoSuchVertex {
        /// The graph.
        graph: String,
        /// The user's id.
        vertex: u64,
    },
    /// An option out of its range.
    #[error("{option} is {found}: expected {expected}")]
    BadOption {
        /// The option.
        option: &'static str,
        /// Its value.
        found: String,
        /// The range.
        expected: String,
    },
    /// A vertex program panicked, or broke a rule that its trait's doc tells.
    #[error("vertex program {program}: {function}{} {what}", of_vertex(.vertex.as_ref()))]
    Program {
        /// The program's name.
        program: &'static str,
        /// Its function.
        function: &'static str,
        /// The original id of the vertex for which it was called, if it was for one.
        vertex: Option<u64>,
        /// What went wrong, with the text of a panic.
        what: String,
    },
    /// Numbers that grew beyond what 64 bits can hold.
    #[error("{what}")]
    Overflow {
        /// What grew.
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
    /// Whether the job was asked to stop.
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
