//! Finds groups and rows that consist of numbers alone, which are sorted as records of a few words.

use std::sync::Arc;

use arrow::{compute::SortOptions, datatypes::DataType};
use datafusion::{
    common::{ColumnStatistics, ScalarValue, Statistics},
    error::Result,
    physical_expr::{
        LexOrdering, PhysicalSortExpr,
        aggregate::AggregateFunctionExpr,
        expressions::{CastExpr, Column},
    },
    physical_plan::{
        ExecutionPlan, PhysicalExpr,
        aggregates::{AggregateExec, AggregateInputMode},
        coalesce_partitions::CoalescePartitionsExec,
        coop::CooperativeExec,
        filter::FilterExec,
        projection::ProjectionExec,
        repartition::RepartitionExec,
        statistics::{StatisticsArgs, StatisticsContext},
    },
};
use inshore_tables::{Fold, NumberColumn, NumberGroups, NumberSort, NumberState};

use crate::{rules::floats::normal_column, scan::Scan};

/// The key and the states of groups of numbers, with the known bounds of their table.
#[derive(Debug)]
pub(crate) struct Numbers {
    pub key: DataType,
    /// The smallest and the largest possible key.
    pub range: Option<(i128, i128)>,
    pub states: Vec<NumberState>,
    /// An estimate of the number of input rows, of all partitions together.
    pub rows: Option<u64>,
}

impl Numbers {
    /// Describes an aggregate by its key type and the types of all functions' states, in order. `None` means that a
    /// key or a state is not a number.
    pub fn of(aggregate: &AggregateExec, key: &[DataType], states: &[DataType]) -> Result<Option<Numbers>> {
        let [key] = key else { return Ok(None) };
        let Some(folds) = aggregate.aggr_expr().iter().map(folds).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        // Bounds are known only with the first stage.
        let first = first_stage(aggregate);
        let mut described = Vec::new();
        let mut kinds = states.iter();
        for (number, folds) in folds.iter().enumerate() {
            let has_nulls = first.is_none_or(|first| may_be_null(first, number));
            for &(fold, is_count) in *folds {
                let Some(kind) = kinds.next().cloned() else { return Ok(None) };
                if kind.is_decimal() && !first.is_some_and(|first| is_narrow(first, number, fold)) {
                    return Ok(None);
                }
                described.push(NumberState { kind, fold, has_nulls: has_nulls && !is_count });
            }
        }
        if kinds.next().is_some() || !NumberGroups::is_possible(key, &described) {
            return Ok(None);
        }
        let by = first.and_then(|first| first.group_expr().input_exprs().into_iter().next());
        let of_file = by.zip(first).and_then(|(by, first)| of_file(by.downcast_ref()?, first.input()));
        let range = of_file.and_then(|(column, _)| range(column));
        let rows = first.map(|first| rows_of(first.input())).transpose()?.flatten();
        Ok(Some(Numbers { key: key.clone(), range, states: described, rows }))
    }
}

/// Rows that consist of numbers alone, and their order.
#[derive(Debug)]
pub(crate) struct NumberRows {
    /// The sort columns in their order, then the others.
    pub columns: Vec<NumberColumn>,
    /// The position of each of `columns` in a row.
    pub places: Vec<usize>,
    /// An estimate of the number of input rows.
    pub rows: Option<u64>,
    /// True if all NaNs are one value, the greatest; false if NaNs are ordered by their bits.
    pub has_one_nan: bool,
}

impl NumberRows {
    /// Describes rows with these sort keys; `None` if a column is not a number, or the columns together are too wide.
    pub fn of(input: &Arc<dyn ExecutionPlan>, keys: &[(usize, SortOptions)]) -> Result<Option<NumberRows>> {
        let schema = input.schema();
        let others = (0..schema.fields().len()).filter(|place| keys.iter().all(|(key, _)| key != place));
        let all = keys.iter().copied().chain(others.map(|place| (place, SortOptions::default())));
        let (mut columns, mut places) = (Vec::new(), Vec::new());
        for (place, order) in all {
            let field = schema.field(place);
            let known = of_file(&Column::new(field.name(), place), input);
            let has_none = known.is_some_and(|(column, _)| column.null_count.get_value() == Some(&0));
            columns.push(NumberColumn {
                kind: field.data_type().clone(),
                range: known.and_then(|(column, _)| range(column)),
                has_nulls: field.is_nullable() && !has_none,
                order,
            });
            places.push(place);
        }
        if !NumberSort::is_possible(&columns) {
            return Ok(None);
        }
        Ok(Some(NumberRows { columns, places, rows: rows_of(input)?, has_one_nan: false }))
    }
}

impl NumberRows {
    /// Describes rows of one floating-point number each, sorted by its normal form. Since no second key follows, the
    /// order of zeros of different signs does not matter, so the column itself is sorted.
    pub fn of_fractions(input: &Arc<dyn ExecutionPlan>, order: &LexOrdering) -> Result<Option<NumberRows>> {
        let [PhysicalSortExpr { expr, options }] = &order[..] else { return Ok(None) };
        if input.schema().fields().len() != 1 || normal_column(&**expr).is_none() {
            return Ok(None);
        }
        let rows = NumberRows::of(input, &[(0, *options)])?;
        Ok(rows.map(|rows| NumberRows { has_one_nan: true, ..rows }))
    }
}

/// Estimates the number of rows of a plan.
fn rows_of(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<u64>> {
    let statistics = StatisticsContext::new().compute(&**plan, &StatisticsArgs::new())?;
    Ok(statistics.num_rows.get_value().map(|&rows| rows as u64))
}

/// Returns how each column of a function's state is combined, and whether the column is a count, which is never null.
fn folds(function: &Arc<AggregateFunctionExpr>) -> Option<&'static [(Fold, bool)]> {
    let name = function.fun().name();
    match name {
        _ if function.is_distinct() => None,
        "count" => Some(&[(Fold::Sum, true)]),
        "sum" => Some(&[(Fold::Sum, false)]),
        "min" => Some(&[(Fold::Min, false)]),
        "max" => Some(&[(Fold::Max, false)]),
        // The count is null where the sum is.
        "avg" => Some(&[(Fold::Sum, false), (Fold::Sum, false)]),
        _ => None,
    }
}

/// Returns the stage that reads the input rows. If there are two stages, the second stage reads states through an
/// exchange.
fn first_stage(aggregate: &AggregateExec) -> Option<&AggregateExec> {
    if aggregate.mode().input_mode() == AggregateInputMode::Raw {
        return Some(aggregate);
    }
    let mut below = aggregate.input();
    while below.is::<RepartitionExec>() || below.is::<CoalescePartitionsExec>() {
        below = below.children()[0];
    }
    below.downcast_ref().filter(|first: &&AggregateExec| first.mode().input_mode() == AggregateInputMode::Raw)
}

/// Returns a column's statistics from the files, if every row of the plan is a row of the files. The filters of the
/// plan only remove rows, so the bounds hold. DataFusion's own statistics of a plan are only estimates.
fn of_file<'a>(
    column: &Column,
    mut plan: &'a Arc<dyn ExecutionPlan>,
) -> Option<(&'a ColumnStatistics, &'a Statistics)> {
    let mut place = column.index();
    loop {
        if let Some(scan) = plan.downcast_ref::<Scan>() {
            let all = scan.statistics();
            return Some((all.column_statistics.get(place)?, all));
        } else if let Some(filter) = plan.downcast_ref::<FilterExec>() {
            place = filter.projection().as_ref().map_or(Some(place), |chosen| chosen.get(place).copied())?;
        } else if let Some(projection) = plan.downcast_ref::<ProjectionExec>() {
            place = projection.expr().get(place)?.expr.downcast_ref::<Column>()?.index();
        } else if !plan.is::<RepartitionExec>()
            && !plan.is::<CoalescePartitionsExec>()
            && !plan.is::<CooperativeExec>()
        {
            return None;
        }
        plan = plan.children()[0];
    }
}

/// Returns whether a function of the first stage may meet nulls.
fn may_be_null(first: &AggregateExec, number: usize) -> bool {
    let (input, function) = (first.input(), &first.aggr_expr()[number]);
    let schema = input.schema();
    let meets_none = |argument: &Arc<dyn PhysicalExpr>| {
        let taken = argument.downcast_ref::<CastExpr>().map_or(argument, CastExpr::expr);
        let known = taken.downcast_ref::<Column>().and_then(|column| of_file(column, input));
        let has_none = known.is_some_and(|(column, _)| column.null_count.get_value() == Some(&0));
        has_none || !argument.nullable(&schema).unwrap_or(true)
    };
    first.filter_expr()[number].is_some() || !function.expressions().iter().all(meets_none)
}

/// Returns whether the decimals of a function of the first stage, and every sum of some of them, fit 64 bits.
fn is_narrow(first: &AggregateExec, number: usize, fold: Fold) -> bool {
    let arguments = first.aggr_expr()[number].expressions();
    let known = || {
        let (column, all) = of_file(arguments.first()?.downcast_ref()?, first.input())?;
        let (least, most) = range(column)?;
        let rows = if fold == Fold::Sum { *all.num_rows.get_value()? as i128 } else { 1 };
        least.checked_abs()?.max(most.checked_abs()?).checked_mul(rows)
    };
    known().is_some_and(|most| most <= i64::MAX.into())
}

fn range(column: &ColumnStatistics) -> Option<(i128, i128)> {
    Some((whole(column.min_value.get_value()?)?, whole(column.max_value.get_value()?)?))
}

/// Returns a whole number, or the digits of a decimal.
fn whole(value: &ScalarValue) -> Option<i128> {
    match value {
        ScalarValue::Int8(value) => value.map(i128::from),
        ScalarValue::Int16(value) => value.map(i128::from),
        ScalarValue::Int32(value) | ScalarValue::Date32(value) => value.map(i128::from),
        ScalarValue::Int64(value) => value.map(i128::from),
        ScalarValue::UInt8(value) => value.map(i128::from),
        ScalarValue::UInt16(value) => value.map(i128::from),
        ScalarValue::UInt32(value) => value.map(i128::from),
        ScalarValue::UInt64(value) => value.map(i128::from),
        ScalarValue::Decimal128(value, ..) => *value,
        _ => None,
    }
}
