//! Row counts, value ranges and null counts of a table's columns, which the planner uses for estimates.

use arrow::{
    array::Array,
    datatypes::{DataType, Field, Schema},
};
use datafusion::common::{ColumnStatistics, ScalarValue, Statistics, stats::Precision};
use inshore_tables::GroupValues;

/// Estimates a table's size only from its schema and number of rows.
pub(crate) fn row_statistics(schema: &Schema, rows: Option<u64>) -> Statistics {
    let mut statistics = Statistics::new_unknown(schema);
    if let Some(rows) = rows {
        statistics.num_rows = Precision::Exact(rows as usize);
        let width: usize = schema.fields().iter().map(|field| width(field)).sum();
        statistics.total_byte_size = Precision::Inexact((rows as usize).saturating_mul(width));
    }
    statistics
}

/// Estimates the bytes that one value takes in memory.
fn width(field: &Field) -> usize {
    match field.data_type() {
        DataType::Utf8 | DataType::Binary => 24,
        other => other.primitive_width().unwrap_or(1),
    }
}

/// The statistics of one column of a file.
#[derive(Default)]
pub(super) struct ColumnFacts {
    range: Option<(ScalarValue, ScalarValue)>,
    nulls: Option<u64>,
}

impl ColumnFacts {
    pub fn of(values: &GroupValues) -> ColumnFacts {
        let known_nulls = values.nulls.null_count() == 0;
        ColumnFacts { range: range(values), nulls: known_nulls.then(|| values.nulls.values().iter().sum()) }
    }

    pub fn and(self, other: ColumnFacts) -> ColumnFacts {
        let range = self.range.zip(other.range).and_then(|(all, one)| wider(all, one));
        ColumnFacts { range, nulls: self.nulls.zip(other.nulls).map(|(all, one)| all + one) }
    }

    /// Converts to inexact statistics, since the writer of a file may be wrong. The statistics are used only for
    /// estimates, and for bounds that are checked again.
    pub fn estimates(self) -> ColumnStatistics {
        let mut column = ColumnStatistics::new_unknown();
        if let Some((least, most)) = self.range {
            (column.min_value, column.max_value) = (Precision::Inexact(least), Precision::Inexact(most));
        }
        if let Some(nulls) = self.nulls {
            column.null_count = Precision::Inexact(nulls as usize);
        }
        column
    }
}

/// Returns the smallest and the largest value of all row groups, if each row group records both.
fn range(values: &GroupValues) -> Option<(ScalarValue, ScalarValue)> {
    let mut all: Option<(ScalarValue, ScalarValue)> = None;
    for group in 0..values.rows.len() {
        let least =
            ScalarValue::try_from_array(&values.smallest, group).ok().filter(|value| !value.is_null())?;
        let most =
            ScalarValue::try_from_array(&values.largest, group).ok().filter(|value| !value.is_null())?;
        all = match all {
            None => Some((least, most)),
            Some(all) => wider(all, (least, most)),
        };
    }
    all
}

fn wider(
    one: (ScalarValue, ScalarValue),
    other: (ScalarValue, ScalarValue),
) -> Option<(ScalarValue, ScalarValue)> {
    let least = if one.0.partial_cmp(&other.0)?.is_le() { one.0 } else { other.0 };
    let most = if one.1.partial_cmp(&other.1)?.is_ge() { one.1 } else { other.1 };
    Some((least, most))
}
