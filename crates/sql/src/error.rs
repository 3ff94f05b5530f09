//! What can go wrong with a query.

use datafusion::{common::SchemaError, error::DataFusionError, sql::sqlparser::parser::ParserError};

/// The result of a query.
pub type Result<T> = std::result::Result<T, Error>;

/// Errors of queries.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The budget or the store refused, or somebody asked to stop.
    #[error(transparent)]
    Store(inshore_store::Error),
    /// A file could not be read, or the result not be written.
    #[error(transparent)]
    Table(inshore_tables::Error),
    /// The query is not SQL, names what is not there, or fails on the values that it meets.
    #[error("{0}")]
    Query(String),
    /// The query names a column that its tables do not have.
    #[error("{0}")]
    NoColumn(String),
    /// An operator that cannot go on elsewhere needs more memory than there is.
    #[error("the query needs more memory than it was given: {0} (a larger --memory helps)")]
    Memory(String),
    /// What computes elsewhere was lost after some of its rows were taken: the query can be run again.
    #[error("{0}")]
    Interrupted(String),
    /// What computes elsewhere cannot.
    #[error("{0}")]
    Elsewhere(String),
    /// The library failed in a way that is not the query's fault.
    #[error("the query failed: {0}")]
    Internal(String),
}

impl Error {
    /// Whether somebody asked the job to stop.
    pub fn is_cancelled(&self) -> bool {
        match self {
            Error::Store(error) => error.is_cancelled(),
            Error::Table(error) => error.is_cancelled(),
            _ => false,
        }
    }

    /// Whether a plan that divides the memory among fewer may do.
    pub(crate) fn is_of_memory(&self) -> bool {
        match self {
            Error::Memory(_) => true,
            Error::Store(error) => is_of_budget(error),
            Error::Table(inshore_tables::Error::SortReduce(error)) => matches!(
                error,
                inshore_sortreduce::Error::RowTooLong { .. } | inshore_sortreduce::Error::TooManyRuns { .. }
            ),
            _ => false,
        }
    }
}

fn is_of_budget(error: &inshore_store::Error) -> bool {
    use inshore_store::Error::{BudgetTooSmall, OverBudget};
    matches!(error, OverBudget { .. } | BudgetTooSmall { .. })
}

impl From<inshore_store::Error> for Error {
    fn from(error: inshore_store::Error) -> Self {
        Error::Store(error)
    }
}

impl From<inshore_store::RuntimeError> for Error {
    fn from(error: inshore_store::RuntimeError) -> Error {
        inshore_store::Error::from(error).into()
    }
}

impl From<inshore_tables::Error> for Error {
    fn from(error: inshore_tables::Error) -> Self {
        match error {
            inshore_tables::Error::Store(error) => Error::Store(error),
            other => Error::Table(other),
        }
    }
}

impl From<inshore_sortreduce::Error> for Error {
    fn from(error: inshore_sortreduce::Error) -> Self {
        inshore_tables::Error::from(error).into()
    }
}

/// Our own errors travel through the library and come out as they were.
impl From<Error> for DataFusionError {
    fn from(error: Error) -> Self {
        DataFusionError::External(Box::new(error))
    }
}

impl From<DataFusionError> for Error {
    fn from(error: DataFusionError) -> Self {
        match error {
            DataFusionError::External(source) => match source.downcast::<Error>() {
                Ok(error) => *error,
                Err(other) => Error::Internal(other.to_string()),
            },
            DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => (*inner).into(),
            DataFusionError::Shared(inner) => from_shared(&inner),
            DataFusionError::Collection(all) => {
                all.into_iter().next().map_or_else(|| Error::Internal("no reason given".into()), Error::from)
            }
            DataFusionError::ResourcesExhausted(what) => Error::Memory(what),
            DataFusionError::SchemaError(ref what, _)
                if matches!(**what, SchemaError::FieldNotFound { .. }) =>
            {
                Error::NoColumn(told(&error))
            }
            DataFusionError::SchemaError(ref what, _) if let Some(name) = doubled(what) => {
                Error::Query(format!(
                    "two columns are called {name}: give one of them another name, as in SELECT {name} AS other"
                ))
            }
            error @ (DataFusionError::SQL(..)
            | DataFusionError::Plan(_)
            | DataFusionError::SchemaError(..)
            | DataFusionError::NotImplemented(_)
            | DataFusionError::Configuration(_)
            | DataFusionError::ArrowError(..)
            | DataFusionError::Execution(_)) => Error::Query(told(&error)),
            other => Error::Internal(told(&other)),
        }
    }
}

/// The name that two columns have of what is selected, where that is the error.
fn doubled(error: &SchemaError) -> Option<&str> {
    match error {
        // Of a field without a table it is told that a name in the query may mean two columns.
        SchemaError::AmbiguousReference { field } if field.relation.is_some() => Some(&field.name),
        SchemaError::DuplicateQualifiedField { name, .. }
        | SchemaError::DuplicateUnqualifiedField { name } => Some(name),
        _ => None,
    }
}

/// The library's message without its prefixes.
fn told(error: &DataFusionError) -> String {
    if let DataFusionError::SQL(error, _) = error {
        return match &**error {
            ParserError::TokenizerError(what) | ParserError::ParserError(what) => {
                format!("the query is not SQL: {what}")
            }
            ParserError::RecursionLimitExceeded => "the query is nested too deep".to_string(),
        };
    }
    let text = error.strip_backtrace();
    // Whom to tell of a fault of the library is not the user's question.
    let text = match text.split_once("This issue was likely caused by a bug") {
        Some((text, _)) => text.trim_end().trim_end_matches('.').to_string(),
        None => text,
    };
    wrong_argument(&text).unwrap_or(text)
}

/// The message for an argument of a wrong type, where the library lists every type that it accepts.
fn wrong_argument(text: &str) -> Option<String> {
    let (before, tried) = text.split_once(" failed to match any signature")?;
    let function = before.rsplit("Function ").next()?;
    let kind = tried.split_once("but received ")?.1.split(' ').next()?;
    Some(format!("the function {function} does not take {kind}"))
}

/// An error that several streams share cannot be taken apart; what it says is kept, and its kind.
fn from_shared(error: &DataFusionError) -> Error {
    let DataFusionError::External(source) = error.find_root() else {
        return match error.find_root() {
            DataFusionError::ResourcesExhausted(what) => Error::Memory(what.clone()),
            other => Error::Query(told(other)),
        };
    };
    match source.downcast_ref::<Error>() {
        Some(Error::Store(error)) if error.is_cancelled() => Error::Store(inshore_store::Error::Cancelled),
        Some(error) if error.is_of_memory() => match error {
            Error::Memory(what) => Error::Memory(what.clone()),
            error => Error::Memory(error.to_string()),
        },
        Some(Error::Interrupted(what)) => Error::Interrupted(what.clone()),
        Some(Error::Elsewhere(what)) => Error::Elsewhere(what.clone()),
        Some(Error::Table(inshore_tables::Error::Contradiction { place, expected, found })) => {
            let (place, expected, found) = (place.clone(), expected.clone(), found.clone());
            Error::Table(inshore_tables::Error::Contradiction { place, expected, found })
        }
        Some(error @ (Error::Table(_) | Error::Query(_))) => Error::Query(error.to_string()),
        _ => Error::Internal(source.to_string()),
    }
}
