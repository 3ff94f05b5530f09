//! Maps Rust's errors to Python's exceptions, and parses arguments.

#[cfg(feature = "nodes")]
use inshore::nodes;
#[cfg(feature = "sql")]
use inshore::sql;
use inshore::{graph, sortreduce, store, tables};
#[cfg(feature = "text")]
use inshore::{kernel, kernels};
use inshore_ops as ops;
use pyo3::{exceptions::PyOverflowError, intern, prelude::*, types::PyAnyMethods};
use serde::{Deserialize, Serialize};

/// The error number of a full disk, which is the same on all supported systems.
const ENOSPC: i32 = 28;

// The tree itself is in inshore/errors.py.
mod tree {
    #![allow(missing_docs)]
    use pyo3::import_exception;

    import_exception!(inshore.errors, InshoreError);
    import_exception!(inshore.errors, NotFoundError);
    import_exception!(inshore.errors, ExistsError);
    import_exception!(inshore.errors, BudgetError);
    import_exception!(inshore.errors, DamagedError);
    import_exception!(inshore.errors, InputError);
    import_exception!(inshore.errors, FileError);
    #[cfg(feature = "nodes")]
    import_exception!(inshore.errors, NodeError);
    #[cfg(not(feature = "full"))]
    import_exception!(inshore.errors, FeatureError);
}

/// An exception that is not raised yet, possibly from a child process.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PendingException {
    kind: Kind,
    message: String,
    /// The system's error number, for an `OSError`.
    errno: Option<i32>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) enum Kind {
    Inshore,
    NotFound,
    Exists,
    Budget,
    Damaged,
    Input,
    File,
    #[cfg(feature = "nodes")]
    Node,
}

/// The kind of exception of an error, with the system's error number if the error has one.
pub(crate) type ExceptionCode = (Kind, Option<i32>);

/// An error of a library that maps to an exception.
pub(crate) trait ToException: std::error::Error {
    /// Returns the kind of exception.
    fn told(&self) -> ExceptionCode;

    /// Returns the message for Python; the error's own message may name options of the command line.
    fn message(&self) -> String {
        self.to_string()
    }
}

impl PendingException {
    fn new(kind: Kind, message: String) -> PendingException {
        PendingException { kind, message, errno: None }
    }

    /// Returns an exception of the base class.
    #[cfg(feature = "sql")]
    pub(crate) fn other(message: String) -> PendingException {
        PendingException::new(Kind::Inshore, message)
    }

    /// Returns an exception that a larger budget avoids.
    #[cfg(feature = "sql")]
    pub(crate) fn budget(message: String) -> PendingException {
        PendingException::new(Kind::Budget, message)
    }

    /// Returns the exception for an error of a library.
    pub(crate) fn of(error: &impl ToException) -> PendingException {
        let (kind, errno) = error.told();
        PendingException { kind, message: error.message(), errno }
    }

    /// Converts to Python's exception.
    pub(crate) fn raise(self) -> PyErr {
        let PendingException { kind, message, errno } = self;
        let error = match kind {
            Kind::Inshore => tree::InshoreError::new_err(message),
            Kind::NotFound => tree::NotFoundError::new_err(message),
            Kind::Exists => tree::ExistsError::new_err(message),
            Kind::Budget => tree::BudgetError::new_err(message),
            Kind::Damaged => tree::DamagedError::new_err(message),
            Kind::Input => tree::InputError::new_err(message),
            Kind::File => tree::FileError::new_err(message),
            #[cfg(feature = "nodes")]
            Kind::Node => tree::NodeError::new_err(message),
        };
        if let Kind::File = kind {
            Python::attach(|py| {
                // The number is optional, since the message is complete.
                let _ = error.value(py).setattr(intern!(py, "errno"), errno);
            });
        }
        error
    }
}

impl<E: ToException> From<E> for PendingException {
    fn from(error: E) -> PendingException {
        PendingException::of(&error)
    }
}

/// Returns the exception for an error of any library.
pub(crate) fn to_python(error: impl ToException) -> PyErr {
    PendingException::of(&error).raise()
}

/// Returns an `OSError` with the system's error number, if known.
fn of_file(source: &std::io::Error) -> ExceptionCode {
    (Kind::File, source.raw_os_error())
}

impl ToException for store::Error {
    fn told(&self) -> ExceptionCode {
        let kind = match self {
            store::Error::NotFound { .. } => Kind::NotFound,
            store::Error::NameExists { .. } => Kind::Exists,
            store::Error::OverBudget { .. } | store::Error::BudgetTooSmall { .. } => Kind::Budget,
            store::Error::Damaged { .. } | store::Error::BadFormat { .. } => Kind::Damaged,
            store::Error::BadName { .. }
            | store::Error::BadOutput { .. }
            | store::Error::BadSize { .. }
            | store::Error::NotAStore { .. } => Kind::Input,
            store::Error::Io { source, .. } => return of_file(source),
            _ => Kind::Inshore,
        };
        (kind, None)
    }
}

impl ToException for sortreduce::Error {
    fn told(&self) -> ExceptionCode {
        let kind = match self {
            sortreduce::Error::Store(error) => return error.told(),
            sortreduce::Error::TooManyRuns { .. } => Kind::Budget,
            sortreduce::Error::DamagedRun { .. } => Kind::Damaged,
            _ => Kind::Inshore,
        };
        (kind, None)
    }
}

impl ToException for tables::Error {
    fn told(&self) -> ExceptionCode {
        match self {
            tables::Error::Store(error) => error.told(),
            tables::Error::SortReduce(error) => match error.told() {
                (Kind::Inshore, _) => (Kind::Input, None),
                told => told,
            },
            tables::Error::Io { source, .. } => of_file(source),
            tables::Error::NoRoom { .. } => (Kind::File, Some(ENOSPC)),
            tables::Error::TooLarge { .. } => (Kind::Budget, None),
            _ => (Kind::Input, None),
        }
    }
}

impl ToException for graph::Error {
    fn told(&self) -> ExceptionCode {
        let kind = match self {
            graph::Error::Store(error) => return error.told(),
            graph::Error::SortReduce(error) => return error.told(),
            graph::Error::Tables(error) => return error.told(),
            graph::Error::NoSuchVertex { .. } => Kind::NotFound,
            graph::Error::BadGraph { .. } => Kind::Damaged,
            graph::Error::BadInput { .. }
            | graph::Error::Empty { .. }
            | graph::Error::TooManyVertices { .. }
            | graph::Error::BadOption { .. }
            | graph::Error::Overflow { .. } => Kind::Input,
            _ => Kind::Inshore,
        };
        (kind, None)
    }
}

#[cfg(feature = "sql")]
impl ToException for sql::Error {
    fn told(&self) -> ExceptionCode {
        let kind = match self {
            sql::Error::Store(error) => return error.told(),
            sql::Error::Table(error) => return error.told(),
            sql::Error::Query(_) | sql::Error::NoColumn(_) => Kind::Input,
            sql::Error::Memory(_) => Kind::Budget,
            sql::Error::Nodes(_) => Kind::Node,
            _ => Kind::Inshore,
        };
        (kind, None)
    }
}

#[cfg(feature = "text")]
impl ToException for kernels::Error {
    fn told(&self) -> ExceptionCode {
        let kind = match self {
            kernels::Error::Read(error) => return error.told(),
            kernels::Error::Store(error) => return error.told(),
            kernels::Error::Table(error) => return error.told(),
            kernels::Error::SortReduce(error) => return error.told(),
            kernels::Error::WordTooLong { .. } => Kind::Budget,
            kernels::Error::Exists { .. } => Kind::Exists,
            kernels::Error::UnknownEnding { .. }
            | kernels::Error::BadPattern { .. }
            | kernels::Error::BadOption { .. }
            | kernels::Error::BadProfiles { .. }
            | kernels::Error::BadLevel { .. }
            | kernels::Error::BadName { .. }
            | kernels::Error::BadList { .. }
            | kernels::Error::Damaged { .. } => Kind::Input,
            kernels::Error::Input { source, .. }
            | kernels::Error::Io { source, .. }
            | kernels::Error::Write(source) => return of_file(source),
            _ => Kind::Inshore,
        };
        (kind, None)
    }

    fn message(&self) -> String {
        match self {
            kernels::Error::Exists { .. } => format!("{self}: force=True replaces it"),
            kernels::Error::UnknownEnding { .. } => format!("{self}: pass output"),
            _ => self.to_string(),
        }
    }
}

#[cfg(feature = "text")]
impl ToException for kernel::Error {
    fn told(&self) -> ExceptionCode {
        let stream = match self {
            kernel::Error::Store(error) => return error.told(),
            kernel::Error::LineTooLong { .. } => return (Kind::Budget, None),
            kernel::Error::Stream(error) => error,
            _ => return (Kind::Inshore, None),
        };
        // The error of a stream has the type of the library that reads the stream.
        let told = stream.downcast_ref().map(store::Error::told);
        let told = told.or_else(|| stream.downcast_ref().map(tables::Error::told));
        #[cfg(feature = "nodes")]
        let told = told.or_else(|| stream.downcast_ref().map(nodes::Error::told));
        told.unwrap_or((Kind::Input, None))
    }
}

#[cfg(feature = "nodes")]
impl ToException for nodes::Error {
    fn told(&self) -> ExceptionCode {
        let kind = match self {
            nodes::Error::Store(error) => return error.told(),
            nodes::Error::NotFound { .. } => Kind::NotFound,
            nodes::Error::Input { source, .. } => return of_file(source),
            nodes::Error::Credentials { .. }
            | nodes::Error::Address { .. }
            | nodes::Error::NoLines { .. }
            | nodes::Error::RowGroups { .. }
            | nodes::Error::Pages { .. } => Kind::Input,
            _ => Kind::Node,
        };
        (kind, None)
    }
}

impl ToException for ops::Error {
    fn told(&self) -> ExceptionCode {
        let kind = match self {
            ops::Error::Store(error) => return error.told(),
            ops::Error::Table(error) => return error.told(),
            ops::Error::Graph(error) => return error.told(),
            #[cfg(feature = "text")]
            ops::Error::Kernel(error) => return error.told(),
            #[cfg(feature = "nodes")]
            ops::Error::Nodes(error) | ops::Error::File(ops::FileError::Nodes(error)) => return error.told(),
            #[cfg(feature = "nodes")]
            ops::Error::File(ops::FileError::Table(error)) => return error.told(),
            #[cfg(feature = "sql")]
            ops::Error::Sql(error) => return error.told(),
            #[cfg(feature = "vectors")]
            ops::Error::Vectors(inshore::vectors::Error::Store(error)) => return error.told(),
            ops::Error::Unreadable { source, .. } => return of_file(source),
            ops::Error::Rows(_) | ops::Error::NeedsStore { .. } => Kind::Inshore,
            // The request has unknown names, or options that exclude each other.
            _ => Kind::Input,
        };
        (kind, None)
    }

    fn message(&self) -> String {
        match self {
            #[cfg(feature = "text")]
            ops::Error::Kernel(error) => error.message(),
            ops::Error::OneOutput { inputs, .. } => {
                format!("output is one file, and {inputs} inputs are given: expected one")
            }
            _ => self.to_string(),
        }
    }
}

/// Parses a whole number for `option`; a value outside the range of `T` raises an error that names the
/// option, instead of Python's `OverflowError`.
pub(crate) fn whole<'py, T>(option: &'static str, value: &Bound<'py, PyAny>) -> PyResult<T>
where
    T: FromPyObjectOwned<'py> + num::Whole,
{
    value.extract().map_err(Into::<PyErr>::into).map_err(|error| {
        if !error.is_instance_of::<PyOverflowError>(value.py()) {
            return error;
        }
        bad_option(option, value, &format!("0 to {}", T::MAX))
    })
}

/// Returns the exception for a function of a feature that this build lacks.
#[cfg(not(feature = "full"))]
pub(crate) fn feature_error(feature: &str) -> PyErr {
    let has: Vec<&str> = inshore::FEATURES.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
    tree::FeatureError::new_err(format!(
        "this needs the feature '{feature}', which this build of inshore lacks (it has: {}): install a wheel, which has all \
         features",
        has.join(", ")
    ))
}

/// Returns the exception for an option out of its range.
pub(crate) fn bad_option(option: &'static str, value: &Bound<'_, PyAny>, expected: &str) -> PyErr {
    let (found, expected) = (value.to_string(), expected.to_string());
    to_python(graph::Error::BadOption { option, found, expected })
}

mod num {
    pub(crate) trait Whole {
        const MAX: u64;
    }
    impl Whole for u32 {
        const MAX: u64 = u32::MAX as u64;
    }
    impl Whole for u64 {
        const MAX: u64 = u64::MAX;
    }
}
