//! The error type of queries, and its conversion to and from DataFusion's errors.

use datafusion::{common::SchemaError, error::DataFusionError, sql::sqlparser::parser::ParserError};

/// The result of a query.
pub type Result<T> = std::result::Result<T, Error>;

/// An error of a query.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the budget or the store, or the cancellation of the job.
    #[error(transparent)]
    Store(inshore_store::Error),
    /// A file could not be read, or the result could not be written.
    #[error(transparent)]
    Table(inshore_tables::Error),
    /// The query is not valid SQL, refers to a table or function that does not exist, or fails on a value in the
    /// data.
    #[error("{0}")]
    Query(String),
    /// The query refers to a column that its tables do not have.
    #[error("{0}")]
    NoColumn(String),
    /// An operator that cannot spill to flash needs more memory than the budget has.
    #[error("the query needs more memory than it was given: {0} (a larger --memory helps)")]
    Memory(String),
    /// A node (a remote machine) failed after the query had used rows from this node. The query can be run again.
    #[error("{0}")]
    Interrupted(String),
    /// The nodes (remote machines) cannot run their part of the query.
    #[error("{0}")]
    Nodes(String),
    /// DataFusion failed for a reason that is not in the query.
    #[error("the query failed: {0}")]
    Internal(String),
}

impl Error {
    /// Returns whether the job was cancelled.
    pub fn is_cancelled(&self) -> bool {
        match self {
            Error::Store(error) => error.is_cancelled(),
            Error::Table(error) => error.is_cancelled(),
            _ => false,
        }
    }

    /// Returns whether a stage of the query fails with this error wherever and whenever it runs: an error of the query, or
    /// of a value in its tables.
    pub fn is_final(&self) -> bool {
        match self {
            Error::Query(_) | Error::NoColumn(_) => true,
            Error::Table(error) => error.is_contradiction(),
            _ => false,
        }
    }

    /// Returns whether the query may succeed with a plan of fewer partitions, each of which has more memory.
    pub fn is_of_memory(&self) -> bool {
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

/// Wraps an error of this crate for DataFusion. The conversion back returns the same error.
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
                Error::NoColumn(short_message(&error))
            }
            DataFusionError::SchemaError(ref what, _) if let Some(name) = repeated_name(what) => {
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
            | DataFusionError::Execution(_)) => Error::Query(short_message(&error)),
            other => Error::Internal(short_message(&other)),
        }
    }
}

/// Returns the repeated column name if the error reports that two columns have the same name; otherwise `None`.
fn repeated_name(error: &SchemaError) -> Option<&str> {
    match error {
        // If the field has no table, the error reports an ambiguous name in the query, not two columns of the same
        // name.
        SchemaError::AmbiguousReference { field } if field.relation.is_some() => Some(&field.name),
        SchemaError::DuplicateQualifiedField { name, .. }
        | SchemaError::DuplicateUnqualifiedField { name } => Some(name),
        _ => None,
    }
}

/// Returns DataFusion's message without its prefixes.
fn short_message(error: &DataFusionError) -> String {
    if let DataFusionError::SQL(error, _) = error {
        return match &**error {
            ParserError::TokenizerError(what) | ParserError::ParserError(what) => {
                format!("the query is not valid SQL: {what}")
            }
            ParserError::RecursionLimitExceeded => "the query is nested too deep".to_string(),
        };
    }
    let text = error.strip_backtrace();
    // DataFusion's request to report a bug does not help the user, so it is removed.
    let text = match text.split_once("This issue was likely caused by a bug") {
        Some((text, _)) => text.trim_end().trim_end_matches('.').to_string(),
        None => text,
    };
    wrong_argument(&text).unwrap_or(text)
}

/// Shortens DataFusion's message for an argument of a wrong type, which lists every type that the function accepts.
fn wrong_argument(text: &str) -> Option<String> {
    let (before, tried) = text.split_once(" failed to match any signature")?;
    let function = before.rsplit("Function ").next()?;
    let kind = tried.split_once("but received ")?.1.split(' ').next()?;
    Some(format!("the function {function} does not take {kind}"))
}

/// Copies an error that several streams share. The copy has the same kind and text.
fn from_shared(error: &DataFusionError) -> Error {
    let DataFusionError::External(source) = error.find_root() else {
        return match error.find_root() {
            DataFusionError::ResourcesExhausted(what) => Error::Memory(what.clone()),
            other => Error::Query(short_message(other)),
        };
    };
    match source.downcast_ref::<Error>() {
        Some(Error::Store(error)) if error.is_cancelled() => Error::Store(inshore_store::Error::Cancelled),
        Some(error) if error.is_of_memory() => match error {
            Error::Memory(what) => Error::Memory(what.clone()),
            error => Error::Memory(error.to_string()),
        },
        Some(Error::Interrupted(what)) => Error::Interrupted(what.clone()),
        Some(Error::Nodes(what)) => Error::Nodes(what.clone()),
        Some(Error::Table(inshore_tables::Error::Contradiction { place, expected, found })) => {
            let (place, expected, found) = (place.clone(), expected.clone(), found.clone());
            Error::Table(inshore_tables::Error::Contradiction { place, expected, found })
        }
        Some(error @ (Error::Table(_) | Error::Query(_))) => Error::Query(error.to_string()),
        _ => Error::Internal(source.to_string()),
    }
}
