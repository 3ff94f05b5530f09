//! Recognizes groups and rows that consist only of numbers. Such groups and rows are sorted as records of a few
//! machine words.

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

/// The key and the aggregate states of groups that consist of numbers, with known bounds of their values.
#[derive(Debug)]
pub(crate) struct Numbers {
    pub key: DataType,
    /// The smallest and the largest possible key, if known.
    pub range: Option<(i128, i128)>,
    pub states: Vec<NumberState>,
    /// An estimate of the number of input rows in all partitions together.
    pub rows: Option<u64>,
}

impl Numbers {
    /// Describes an aggregate by its key type and the state types of all its functions, in order. Returns `None` if a
    /// key or a state is not a number.
    pub fn of(aggregate: &AggregateExec, key: &[DataType], states: &[DataType]) -> Result<Option<Numbers>> {
        let [key] = key else { return Ok(None) };
        let Some(folds) = aggregate.aggr_expr().iter().map(folds).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        // Bounds of values are known only if the first aggregation stage, which reads the input rows, is found.
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

/// Describes rows that consist only of numbers, and their sort order.
#[derive(Debug)]
pub(crate) struct NumberRows {
    /// The sort columns in sort order, then the other columns.
    pub columns: Vec<NumberColumn>,
    /// The index in the row of each column in `columns`.
    pub places: Vec<usize>,
    /// An estimate of the number of input rows.
    pub rows: Option<u64>,
    /// True if all NaNs count as one value, which is the greatest; false if NaNs are ordered by their bits.
    pub has_one_nan: bool,
}

impl NumberRows {
    /// Describes rows with these sort keys. Returns `None` if a column is not a number, or if the columns together
    /// have too many bits.
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
    /// Describes rows that consist of one floating-point number and are sorted by the number's normal form. No second
    /// key follows, so the relative order of 0.0 and -0.0 does not matter. The column itself is therefore the sort
    /// key.
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

/// Returns, for each state column of a function, how values are combined, and whether the column is a count. A count
/// is never null.
fn folds(function: &Arc<AggregateFunctionExpr>) -> Option<&'static [(Fold, bool)]> {
    let name = function.fun().name();
    match name {
        _ if function.is_distinct() => None,
        "count" => Some(&[(Fold::Sum, true)]),
        "sum" => Some(&[(Fold::Sum, false)]),
        "min" => Some(&[(Fold::Min, false)]),
        "max" => Some(&[(Fold::Max, false)]),
        // The count of an average is null if the sum is null, so it is not marked as a count.
        "avg" => Some(&[(Fold::Sum, false), (Fold::Sum, false)]),
        _ => None,
    }
}

/// Returns the aggregation stage that reads the input rows. If there are two stages, the second stage reads states
/// through an exchange.
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

/// Returns a column's statistics from the files, if every row of the plan is a row of the files. Filters in the plan
/// only remove rows, so the bounds remain valid. DataFusion's own statistics of a plan are only estimates.
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

/// Returns whether an argument of a function in the first stage may be null.
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

/// Returns whether the decimal arguments of a function in the first stage fit 64 bits. For a sum, the sum of any
/// subset of them must fit too.
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

/// Returns the value of an integer, or the unscaled integer of a decimal.
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
