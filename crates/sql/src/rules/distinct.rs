//! Rewrites DISTINCT in aggregate functions to GROUP BY, which can spill to flash.
//!
//! DataFusion stores the values of `count(DISTINCT a)` in a set within one accumulator, which cannot spill.
//! DataFusion's rule `single_distinct_aggregation_to_group_by` uses groups instead. The rule requires that all
//! DISTINCT functions have the same argument, and that the other functions are sums, minima or maxima. This module
//! rewrites queries with several DISTINCT arguments, functions without DISTINCT, or filters, so that they take one
//! pass over the rows:
//!
//! ```text
//!   SELECT k, count(DISTINCT a), sum(DISTINCT b), count(*) FROM t GROUP BY k
//!
//!   SELECT k, count(a) FILTER (set = 1), sum(b) FILTER (set = 2), sum(n) FILTER (set = 1)
//!   FROM (SELECT k, a, b, count(*) AS n, grouping number AS set FROM t GROUP BY GROUPING SETS ((k, a), (k, b)))
//!   GROUP BY k
//! ```
//!
//! Functions without DISTINCT are computed in the first grouping set, and their partial results are merged. A plan is
//! therefore not changed if no function can merge the partial results to a result of the same type.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::{
    common::{Column, DFSchema, ScalarValue, tree_node::Transformed},
    error::Result,
    functions_aggregate::count::count_udaf,
    logical_expr::{
        Aggregate, Case, Expr, ExprSchemable, GroupingSet, LogicalPlan, LogicalPlanBuilder,
        expr::{AggregateFunction, AggregateFunctionParams},
        lit,
    },
};

use super::aggregates::checked_sum;

/// The maximum number of grouping sets. With more sets, the additional rows take more time than the rewrite saves.
const SETS_MAX: usize = 16;

/// Rewrites aggregates that have DISTINCT functions of different arguments, or both DISTINCT and other functions.
///
/// # Errors
/// Returns errors of DataFusion's planner.
pub(crate) fn distinct_as_groups(plan: LogicalPlan) -> Result<LogicalPlan> {
    let grouped = plan.transform_up_with_subqueries(|node| {
        if let LogicalPlan::Aggregate(aggregate) = &node
            && let Some(calls) = AggregateCalls::of(aggregate)?
        {
            return Ok(Transformed::yes(calls.plan(aggregate)?));
        }
        Ok(Transformed::yes(node.recompute_schema()?))
    })?;
    Ok(grouped.data)
}

/// The function calls of an aggregate.
struct AggregateCalls<'a> {
    /// The different arguments of functions with DISTINCT.
    arguments: Vec<Expr>,
    all: Vec<AggregateCall<'a>>,
}

enum AggregateCall<'a> {
    /// A function over distinct values, with the index of its argument in `AggregateCalls::arguments`.
    Distinct(&'a AggregateFunction, usize),
    Plain(&'a AggregateFunction),
}

impl<'a> AggregateCalls<'a> {
    fn of(aggregate: &'a Aggregate) -> Result<Option<AggregateCalls<'a>>> {
        let mut calls = AggregateCalls { arguments: Vec::new(), all: Vec::new() };
        if aggregate.group_expr.iter().any(|group| matches!(group, Expr::GroupingSet(_))) {
            return Ok(None);
        }
        for expr in &aggregate.aggr_expr {
            let Expr::AggregateFunction(function) = unaliased(expr) else { return Ok(None) };
            let AggregateFunctionParams { args, distinct, filter, order_by, null_treatment } =
                &function.params;
            if !order_by.is_empty() || null_treatment.is_some() {
                return Ok(None);
            }
            if !distinct {
                if !is_mergeable(function, aggregate.input.schema())? {
                    return Ok(None);
                }
                calls.all.push(AggregateCall::Plain(function));
                continue;
            }
            let [argument] = &args[..] else { return Ok(None) };
            let ignores_nulls = ["count", "sum", "avg", "min", "max"].contains(&function.func.name());
            let argument = match filter {
                None => argument.clone(),
                // A filter is rewritten to a CASE without ELSE, since these functions ignore nulls.
                Some(filter) if ignores_nulls => Expr::Case(Case {
                    expr: None,
                    when_then_expr: vec![(filter.clone(), Box::new(argument.clone()))],
                    else_expr: None,
                }),
                Some(_) => return Ok(None),
            };
            if argument.column_refs().is_empty() || argument.is_volatile() {
                return Ok(None);
            }
            let place = calls.arguments.iter().position(|known| *known == argument).unwrap_or_else(|| {
                calls.arguments.push(argument);
                calls.arguments.len() - 1
            });
            calls.all.push(AggregateCall::Distinct(function, place));
        }
        let is_wanted = (1..=SETS_MAX).contains(&calls.arguments.len()) && !calls.does_library_rewrite();
        Ok(is_wanted.then_some(calls))
    }

    /// Returns whether DataFusion's own rule rewrites these functions to groups.
    fn does_library_rewrite(&self) -> bool {
        let is_its = |call: &AggregateCall<'_>| match call {
            AggregateCall::Distinct(function, _) => function.params.filter.is_none(),
            AggregateCall::Plain(_) => false,
        };
        self.arguments.len() == 1 && self.all.iter().all(is_its)
    }

    fn plan(&self, aggregate: &Aggregate) -> Result<LogicalPlan> {
        let (groups, sets) = (aggregate.group_expr.len(), self.arguments.len());
        // The columns get new names, since a query may group by a column and also aggregate the column.
        let group = |number: usize| Expr::Column(Column::from_name(format!("__group_{number}")));
        let argument = |number: usize| Expr::Column(Column::from_name(format!("__distinct_{number}")));
        let state = |number: usize| Expr::Column(Column::from_name(format!("__state_{number}")));
        let named = |named: Expr, expr: &Expr| match named {
            Expr::Column(column) => expr.clone().alias(column.name),
            _ => unreachable!("made above"),
        };
        let mut columns: Vec<Expr> =
            aggregate.input.schema().columns().into_iter().map(Expr::Column).collect();
        columns.extend(
            aggregate.group_expr.iter().enumerate().map(|(n, expr)| named(group(n), unaliased(expr))),
        );
        columns.extend(self.arguments.iter().enumerate().map(|(n, expr)| named(argument(n), expr)));
        let rows = LogicalPlanBuilder::from(aggregate.input.as_ref().clone()).project(columns)?.build()?;

        let of_set = |set: usize| (0..groups).map(group).chain([argument(set)]).collect::<Vec<_>>();
        let by = match sets {
            1 => of_set(0),
            _ => vec![Expr::GroupingSet(GroupingSet::GroupingSets((0..sets).map(of_set).collect()))],
        };
        let plain = self.all.iter().enumerate().filter_map(|(number, call)| match call {
            AggregateCall::Plain(function) => {
                Some(named(state(number), &Expr::AggregateFunction((*function).clone())))
            }
            AggregateCall::Distinct(..) => None,
        });
        let inner = Aggregate::try_new(Arc::new(rows), by, plain.collect())?;

        // The grouping id has a bit for each argument, which is 1 if the argument is null in the grouping set. In
        // each set, all arguments except one are null. The arguments are the last columns, so they have the lowest
        // bits.
        let number_of = |set: usize| ((1u64 << sets) - 1) & !(1 << (sets - 1 - set));
        let kind = Aggregate::grouping_id_type(groups + sets, 0);
        let is_set = |set: usize| -> Result<Option<Box<Expr>>> {
            if sets == 1 {
                return Ok(None);
            }
            let number = ScalarValue::UInt64(Some(number_of(set))).cast_to(&kind)?;
            let known = Expr::Column(Column::from_name(Aggregate::INTERNAL_GROUPING_ID));
            Ok(Some(Box::new(known.eq(lit(number)))))
        };
        let mut outer = Vec::new();
        for (number, call) in self.all.iter().enumerate() {
            let (function, argument, set) = match call {
                AggregateCall::Distinct(function, place) => (function.func.clone(), argument(*place), *place),
                AggregateCall::Plain(function) if is_count(function) => (checked_sum(), state(number), 0),
                AggregateCall::Plain(function) => (function.func.clone(), state(number), 0),
            };
            let call =
                AggregateFunction::new_udf(function, vec![argument], false, is_set(set)?, Vec::new(), None);
            outer.push(Expr::AggregateFunction(call).alias(format!("__result_{number}")));
        }
        let outer = Aggregate::try_new(
            Arc::new(LogicalPlan::Aggregate(inner)),
            (0..groups).map(group).collect(),
            outer,
        )?;

        let result = |number: usize| {
            let found = Expr::Column(Column::from_name(format!("__result_{number}")));
            match &self.all[number] {
                // Over no rows, a count is 0 but a sum of counts is null.
                AggregateCall::Plain(function) if is_count(function) => {
                    datafusion::functions::core::expr_fn::coalesce(vec![found, lit(0i64)])
                }
                _ => found,
            }
        };
        let found = (0..groups).map(group).chain((0..self.all.len()).map(result));
        let columns = found.zip(aggregate.schema.iter()).map(|(found, (qualifier, field))| {
            found.alias_qualified(qualifier.cloned(), field.name().clone())
        });
        LogicalPlanBuilder::from(LogicalPlan::Aggregate(outer)).project(columns.collect::<Vec<_>>())?.build()
    }
}

fn unaliased(expr: &Expr) -> &Expr {
    match expr {
        Expr::Alias(alias) => unaliased(&alias.expr),
        other => other,
    }
}

fn is_count(function: &AggregateFunction) -> bool {
    function.func.name() == count_udaf().name()
}

/// Returns whether partial results of a function can be merged to a result of the same type. Counts are merged by a
/// sum, and other functions by themselves.
fn is_mergeable(function: &AggregateFunction, input: &DFSchema) -> Result<bool> {
    Ok(match (function.func.name(), &function.params.args[..]) {
        ("count" | "min" | "max", [_]) => true,
        ("sum", [argument]) => {
            // The type of a sum of decimals has more digits than its argument, so merged sums would have another
            // type.
            let kind = argument.get_type(input)?;
            kind.is_integer() || matches!(kind, DataType::Float32 | DataType::Float64)
        }
        _ => false,
    })
}
