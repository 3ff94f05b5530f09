//! From Rust's errors to Python's exceptions: one mapping, and the readings of arguments that can fail.

#[cfg(feature = "nodes")]
use inshore::neardata::nodes;
#[cfg(feature = "sql")]
use inshore::sql;
use inshore::{graph, sortreduce, store, tables};
#[cfg(feature = "text")]
use inshore::{kernels, neardata};
use pyo3::{exceptions::PyOverflowError, intern, prelude::*, types::PyAnyMethods};
use serde::{Deserialize, Serialize};

/// No space left on device, on every system that this runs on.
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

/// An exception that is not raised yet: also one that another process of ours tells of.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Raised {
    kind: Kind,
    message: String,
    /// The system's number of it, where it is an `OSError`.
    errno: Option<i32>,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Kind {
    Inshore,
    NotFound,
    Exists,
    Budget,
    Damaged,
    Input,
    File,
}

impl Raised {
    fn new(kind: Kind, message: String) -> Raised {
        Raised { kind, message, errno: None }
    }

    /// One that no other exception of ours tells of.
    #[cfg(feature = "sql")]
    pub(crate) fn other(message: String) -> Raised {
        Raised::new(Kind::Inshore, message)
    }

    /// One that a larger budget helps against.
    #[cfg(feature = "sql")]
    pub(crate) fn budget(message: String) -> Raised {
        Raised::new(Kind::Budget, message)
    }

    /// That of an error of any of the libraries.
    pub(crate) fn of(error: impl Into<graph::Error>) -> Raised {
        let error = error.into();
        let message = error.to_string();
        match error {
            graph::Error::Store(error) => of_store(error, message),
            graph::Error::SortReduce(sortreduce::Error::Store(error)) => of_store(error, message),
            graph::Error::Tables(
                tables::Error::Store(error) | tables::Error::SortReduce(sortreduce::Error::Store(error)),
            ) => of_store(error, message),
            graph::Error::Tables(tables::Error::Io { source, .. }) => of_file(&source, message),
            graph::Error::Tables(tables::Error::NoRoom { .. }) => {
                of_file(&std::io::Error::from_raw_os_error(ENOSPC), message)
            }
            graph::Error::SortReduce(sortreduce::Error::TooManyRuns { .. })
            | graph::Error::Tables(
                tables::Error::TooLarge { .. }
                | tables::Error::SortReduce(sortreduce::Error::TooManyRuns { .. }),
            ) => Raised::new(Kind::Budget, message),
            graph::Error::NoSuchVertex { .. } => Raised::new(Kind::NotFound, message),
            graph::Error::SortReduce(sortreduce::Error::DamagedRun { .. })
            | graph::Error::Tables(tables::Error::SortReduce(sortreduce::Error::DamagedRun { .. }))
            | graph::Error::BadGraph { .. } => Raised::new(Kind::Damaged, message),
            graph::Error::Tables(_)
            | graph::Error::BadInput { .. }
            | graph::Error::Empty { .. }
            | graph::Error::TooManyVertices { .. }
            | graph::Error::BadOption { .. }
            | graph::Error::Overflow { .. } => Raised::new(Kind::Input, message),
            _ => Raised::new(Kind::Inshore, message),
        }
    }

    /// That of an error of a query.
    #[cfg(feature = "sql")]
    pub(crate) fn of_sql(error: sql::Error) -> Raised {
        let message = error.to_string();
        match error {
            sql::Error::Store(error) => Raised::of(error),
            sql::Error::Table(error) => Raised::of(error),
            sql::Error::Query(_) | sql::Error::NoColumn(_) => Raised::new(Kind::Input, message),
            sql::Error::Memory(_) => Raised::new(Kind::Budget, message),
            _ => Raised::new(Kind::Inshore, message),
        }
    }

    /// Makes the exception.
    pub(crate) fn raise(self) -> PyErr {
        let Raised { kind, message, errno } = self;
        let error = match kind {
            Kind::Inshore => tree::InshoreError::new_err(message),
            Kind::NotFound => tree::NotFoundError::new_err(message),
            Kind::Exists => tree::ExistsError::new_err(message),
            Kind::Budget => tree::BudgetError::new_err(message),
            Kind::Damaged => tree::DamagedError::new_err(message),
            Kind::Input => tree::InputError::new_err(message),
            Kind::File => tree::FileError::new_err(message),
        };
        if let Kind::File = kind {
            Python::attach(|py| {
                // Only a hint: the message says it all.
                let _ = error.value(py).setattr(intern!(py, "errno"), errno);
            });
        }
        error
    }
}

/// The exception for an error of any of the libraries.
pub(crate) fn to_python(error: impl Into<graph::Error>) -> PyErr {
    Raised::of(error).raise()
}

/// The exception for an error of a kernel.
#[cfg(feature = "text")]
pub(crate) fn kernel_to_python(error: kernels::Error) -> PyErr {
    let message = error.to_string();
    match error {
        kernels::Error::Read(error) => of_reading(error, message),
        kernels::Error::Store(error) => of_store(error, message).raise(),
        kernels::Error::Table(error) => to_python(error),
        kernels::Error::SortReduce(error) => to_python(error),
        kernels::Error::WordTooLong { .. } => tree::BudgetError::new_err(message),
        kernels::Error::Exists { .. } => {
            tree::ExistsError::new_err(format!("{message}: force=True replaces it"))
        }
        kernels::Error::UnknownEnding { .. } => {
            tree::InputError::new_err(format!("{message}: say with output what to write"))
        }
        kernels::Error::BadPattern { .. }
        | kernels::Error::BadOption { .. }
        | kernels::Error::BadProfiles { .. }
        | kernels::Error::BadLevel { .. }
        | kernels::Error::BadName { .. }
        | kernels::Error::BadList { .. }
        | kernels::Error::Damaged { .. } => tree::InputError::new_err(message),
        kernels::Error::Input { source, .. }
        | kernels::Error::Io { source, .. }
        | kernels::Error::Write(source) => file_error(&source, message),
        _ => tree::InshoreError::new_err(message),
    }
}

/// The exception for an error of nodes.
#[cfg(feature = "nodes")]
pub(crate) fn nodes_to_python(error: nodes::Error) -> PyErr {
    let message = error.to_string();
    match error {
        nodes::Error::Store(error) => of_store(error, message).raise(),
        nodes::Error::NotFound { .. } => tree::NotFoundError::new_err(message),
        nodes::Error::Input { source, .. } => file_error(&source, message),
        nodes::Error::Credentials { .. }
        | nodes::Error::Address { .. }
        | nodes::Error::NoLines { .. }
        | nodes::Error::RowGroups { .. }
        | nodes::Error::Pages { .. } => tree::InputError::new_err(message),
        _ => tree::NodeError::new_err(message),
    }
}

#[cfg(feature = "text")]
fn of_reading(error: neardata::Error, message: String) -> PyErr {
    match error {
        neardata::Error::Store(error) => of_store(error, message).raise(),
        neardata::Error::LineTooLong { .. } => tree::BudgetError::new_err(message),
        // What gives a stream fails with errors of its own.
        neardata::Error::Stream(error) => match error.downcast::<tables::Error>() {
            Ok(error) => to_python(*error),
            Err(error) => match error.downcast::<store::Error>() {
                Ok(error) => of_store(*error, message).raise(),
                #[cfg(feature = "nodes")]
                Err(error) => match error.downcast::<nodes::Error>() {
                    Ok(error) => nodes_to_python(*error),
                    Err(_) => tree::InputError::new_err(message),
                },
                #[cfg(not(feature = "nodes"))]
                Err(_) => tree::InputError::new_err(message),
            },
        },
        _ => tree::InshoreError::new_err(message),
    }
}

fn of_store(error: store::Error, message: String) -> Raised {
    let kind = match error {
        store::Error::NotFound { .. } => Kind::NotFound,
        store::Error::NameExists { .. } => Kind::Exists,
        store::Error::OverBudget { .. } | store::Error::BudgetTooSmall { .. } => Kind::Budget,
        store::Error::Damaged { .. } | store::Error::BadFormat { .. } => Kind::Damaged,
        store::Error::BadName { .. }
        | store::Error::BadOutput { .. }
        | store::Error::BadSize { .. }
        | store::Error::NotAStore { .. } => Kind::Input,
        store::Error::Io { source, .. } => return of_file(&source, message),
        _ => Kind::Inshore,
    };
    Raised::new(kind, message)
}

/// An `OSError` with the system's number, if there is one.
fn of_file(source: &std::io::Error, message: String) -> Raised {
    Raised { errno: source.raw_os_error(), ..Raised::new(Kind::File, message) }
}

/// An `OSError` with the system's number, if there is one.
#[cfg(feature = "text")]
fn file_error(source: &std::io::Error, message: String) -> PyErr {
    of_file(source, message).raise()
}

/// A whole number given as `option`; what does not fit `T` is named, and not Python's `OverflowError`.
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

/// The exception for a function that needs a feature which this build lacks.
#[cfg(not(feature = "full"))]
pub(crate) fn feature_error(feature: &str) -> PyErr {
    let has: Vec<&str> = inshore::FEATURES.iter().filter(|(_, has)| *has).map(|(name, _)| *name).collect();
    tree::FeatureError::new_err(format!(
        "this needs the feature '{feature}', which this build of inshore lacks (it has: {}): install a wheel, which has all \
         features",
        has.join(", ")
    ))
}

/// The exception for an option out of its range.
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
