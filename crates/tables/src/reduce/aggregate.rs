//! Aggregate functions, and the columns that they are applied to.

use arrow_schema::DataType;
use serde::{Deserialize, Serialize};

/// One column of the result. Its values are a function of one column of the input, or the number of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Aggregate {
    pub(super) function: Function,
    pub(super) column: Option<String>,
}

/// A function of the values of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Function {
    /// The number of rows, or of the values of a column that are not null.
    Count,
    /// The sum.
    Sum,
    /// The mean.
    Mean,
    /// The smallest value.
    Min,
    /// The greatest value.
    Max,
    /// The first value, in the order of the input.
    First,
    /// The last value, in the order of the input.
    Last,
}

impl Function {
    /// Returns the function's name, as it appears in the names of the result's columns.
    pub fn name(self) -> &'static str {
        match self {
            Function::Count => "count",
            Function::Sum => "sum",
            Function::Mean => "mean",
            Function::Min => "min",
            Function::Max => "max",
            Function::First => "first",
            Function::Last => "last",
        }
    }

    pub(super) fn result_type(self, of: Option<&DataType>) -> DataType {
        let of = of.cloned().unwrap_or(DataType::UInt64);
        match self {
            Function::Count => DataType::UInt64,
            Function::Mean => DataType::Float64,
            Function::Sum if of.is_unsigned_integer() => DataType::UInt64,
            Function::Sum if of.is_integer() => DataType::Int64,
            Function::Sum if of.is_floating() => DataType::Float64,
            Function::Sum => match of {
                DataType::Decimal128(_, scale) => DataType::Decimal128(38, scale),
                other => other,
            },
            Function::Min | Function::Max | Function::First | Function::Last => of,
        }
    }
}

impl Aggregate {
    /// Counts rows.
    pub fn count() -> Aggregate {
        Aggregate { function: Function::Count, column: None }
    }

    /// Counts the values of a column that are not null.
    pub fn count_of(column: impl Into<String>) -> Aggregate {
        Self::of(Function::Count, column)
    }

    /// Sums a column's values.
    pub fn sum(column: impl Into<String>) -> Aggregate {
        Self::of(Function::Sum, column)
    }

    /// Takes the mean of a column's values.
    pub fn mean(column: impl Into<String>) -> Aggregate {
        Self::of(Function::Mean, column)
    }

    /// Takes the smallest value of a column.
    pub fn min(column: impl Into<String>) -> Aggregate {
        Self::of(Function::Min, column)
    }

    /// Takes the greatest value of a column.
    pub fn max(column: impl Into<String>) -> Aggregate {
        Self::of(Function::Max, column)
    }

    /// Takes the first value of a column that is not null, in the order of the input.
    pub fn first(column: impl Into<String>) -> Aggregate {
        Self::of(Function::First, column)
    }

    /// Takes the last value of a column that is not null, in the order of the input.
    pub fn last(column: impl Into<String>) -> Aggregate {
        Self::of(Function::Last, column)
    }

    /// Applies a function to a column.
    pub fn of(function: Function, column: impl Into<String>) -> Aggregate {
        Aggregate { function, column: Some(column.into()) }
    }

    /// Returns the name of the result's column, for example "count" or "sum_price".
    pub fn name(&self) -> String {
        match &self.column {
            Some(column) => format!("{}_{column}", self.function.name()),
            None => self.function.name().to_string(),
        }
    }
}
