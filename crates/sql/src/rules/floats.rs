//! Equality of floating-point numbers. All NaNs are equal to each other and greater than other values, and -0.0
//! equals 0.0.
//!
//! DataFusion 55.2 groups and joins floating-point numbers by their bits. Its comparisons order NaNs by sign. Most of
//! its comparisons treat -0.0 and 0.0 as equal, but some do not (lists of many values, CASE). Plans therefore use the
//! [normal form](normal_floats) of floating-point numbers in groups, DISTINCT, comparisons, sort keys, join keys and
//! window partitions. Numbers in results are not changed.
//!
//! Comparisons in the query are rewritten before DataFusion computes constants and simplifies expressions
//! ([`AnalyzerRule`]). Otherwise `x = 0.0 AND x = -0.0` would be simplified to false. Groups, join keys, and
//! comparisons that DataFusion creates from subqueries are rewritten at the end of optimization ([`OptimizerRule`]).
//!
//! Scans still skip row groups by their statistics, since [`of_statistics`] removes the function of the normal form
//! from filters. The lower bound is the normal form of the smallest value. There is no upper bound, since Parquet
//! does not record whether a NaN occurs.

use std::sync::Arc;

use arrow::{
    array::{ArrayRef, new_null_array},
    datatypes::{DataType, FieldRef},
};
use datafusion::{
    common::{
        DFSchema, ScalarValue,
        config::ConfigOptions,
        tree_node::{Transformed, TreeNode},
    },
    error::Result,
    logical_expr::{
        Aggregate, BinaryExpr, ColumnarValue, Expr, ExprSchemable, GroupingSet, Join, LogicalPlan, Operator,
        ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Sort, SortExpr as SortKey,
        Volatility, expr_rewriter::NamePreserver, utils::merge_schema,
    },
    optimizer::{AnalyzerRule, ApplyOrder, OptimizerConfig, OptimizerRule},
    physical_expr::{PhysicalExpr, ScalarFunctionExpr, expressions::Column},
};
use inshore_tables::normal_floats;

/// The rule that uses the normal form in comparisons, groups, sort keys and joins; see the module's documentation.
#[derive(Clone, Debug)]
pub(crate) struct EqualFloats(Arc<ScalarUDF>);

impl Default for EqualFloats {
    fn default() -> EqualFloats {
        EqualFloats(Arc::new(ScalarUDF::from(NormalFloat(Signature::any(1, Volatility::Immutable)))))
    }
}

impl OptimizerRule for EqualFloats {
    fn name(&self) -> &str {
        "equal_floats"
    }

    fn apply_order(&self) -> Option<ApplyOrder> {
        Some(ApplyOrder::BottomUp)
    }

    fn rewrite(&self, plan: LogicalPlan, _: &dyn OptimizerConfig) -> Result<Transformed<LogicalPlan>> {
        self.comparisons(plan)?.transform_data(|plan| match plan {
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate),
            LogicalPlan::Join(join) => self.join(join),
            LogicalPlan::Sort(sort) => self.sort(sort),
            other => Ok(Transformed::no(other)),
        })
    }
}

impl AnalyzerRule for EqualFloats {
    fn name(&self) -> &str {
        "equal_floats"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        Ok(plan.transform_up_with_subqueries(|node| self.comparisons(node))?.data)
    }
}

impl EqualFloats {
    /// Rewrites the comparisons of a plan node to compare normal forms.
    fn comparisons(&self, node: LogicalPlan) -> Result<Transformed<LogicalPlan>> {
        // The filters of a scan only skip row groups, and are copies of other nodes' filters.
        if matches!(node, LogicalPlan::TableScan(_)) {
            return Ok(Transformed::no(node));
        }
        let schema = merge_schema(&node.inputs());
        let names = NamePreserver::new(&node);
        node.map_expressions(|expr| {
            let name = names.save(&expr);
            let compared = expr.transform_up(|part| self.comparison(part, &schema))?;
            Ok(if compared.transformed { compared.update_data(|expr| name.restore(expr)) } else { compared })
        })
    }

    /// Rewrites one comparison to compare normal forms.
    fn comparison(&self, mut expr: Expr, input: &DFSchema) -> Result<Transformed<Expr>> {
        let mut is_changed = false;
        let mut compare = |value: &mut Expr| -> Result<()> {
            if let Some(normal) = self.normal(value, input)? {
                (*value, is_changed) = (normal, true);
            }
            Ok(())
        };
        match &mut expr {
            Expr::BinaryExpr(BinaryExpr { left, op, right }) if compares(*op) => {
                [left, right].into_iter().try_for_each(|side| compare(side))?;
            }
            Expr::Between(between) => {
                let bounds = [&mut between.expr, &mut between.low, &mut between.high];
                bounds.into_iter().try_for_each(|value| compare(value))?;
            }
            Expr::InList(list) => {
                compare(&mut list.expr)?;
                list.list.iter_mut().try_for_each(compare)?;
            }
            Expr::Case(case) => {
                if let Some(value) = &mut case.expr {
                    compare(value)?;
                    case.when_then_expr.iter_mut().try_for_each(|(when, _)| compare(when))?;
                }
            }
            Expr::WindowFunction(call) => {
                call.params.partition_by.iter_mut().try_for_each(&mut compare)?;
                call.params.order_by.iter_mut().try_for_each(|key| compare(&mut key.expr))?;
            }
            _ => {}
        }
        Ok(Transformed::new_transformed(expr, is_changed))
    }

    fn aggregate(&self, aggregate: Aggregate) -> Result<Transformed<LogicalPlan>> {
        let input = aggregate.input.schema();
        let mut is_changed = false;
        let mut groups = Vec::with_capacity(aggregate.group_expr.len());
        for group in &aggregate.group_expr {
            groups.push(match group {
                Expr::GroupingSet(set) => {
                    let mut each = |all: &[Expr]| {
                        all.iter()
                            .map(|key| self.named(key, input, &mut is_changed))
                            .collect::<Result<Vec<_>>>()
                    };
                    Expr::GroupingSet(match set {
                        GroupingSet::Rollup(keys) => GroupingSet::Rollup(each(keys)?),
                        GroupingSet::Cube(keys) => GroupingSet::Cube(each(keys)?),
                        GroupingSet::GroupingSets(sets) => GroupingSet::GroupingSets(
                            sets.iter().map(|keys| each(keys)).collect::<Result<_>>()?,
                        ),
                    })
                }
                key => self.named(key, input, &mut is_changed)?,
            });
        }
        let functions =
            aggregate.aggr_expr.iter().map(|function| self.function(function, input, &mut is_changed));
        let functions = functions.collect::<Result<Vec<_>>>()?;
        if !is_changed {
            return Ok(Transformed::no(LogicalPlan::Aggregate(aggregate)));
        }
        let Aggregate { input, schema, .. } = aggregate;
        let changed = Aggregate::try_new_with_schema(input, groups, functions, schema)?;
        Ok(Transformed::yes(LogicalPlan::Aggregate(changed)))
    }

    fn join(&self, mut join: Join) -> Result<Transformed<LogicalPlan>> {
        let mut is_changed = false;
        for (left, right) in &mut join.on {
            for (key, side) in [(left, &join.left), (right, &join.right)] {
                if let Some(normal) = self.normal(key, side.schema())? {
                    *key = normal;
                    is_changed = true;
                }
            }
        }
        let join = LogicalPlan::Join(join);
        Ok(if is_changed { Transformed::yes(join) } else { Transformed::no(join) })
    }

    fn sort(&self, mut sort: Sort) -> Result<Transformed<LogicalPlan>> {
        let is_changed = self.order(&mut sort.expr, sort.input.schema())?;
        Ok(Transformed::new_transformed(LogicalPlan::Sort(sort), is_changed))
    }

    /// Rewrites sort keys to their normal form. Returns whether a key was changed.
    fn order(&self, keys: &mut [SortKey], input: &DFSchema) -> Result<bool> {
        let mut is_changed = false;
        for key in keys {
            if let Some(normal) = self.normal(&key.expr, input)? {
                (key.expr, is_changed) = (normal, true);
            }
        }
        Ok(is_changed)
    }

    /// Returns the normal form of a floating-point expression. Returns `None` for other types, and for expressions
    /// that are already in normal form.
    fn normal(&self, value: &Expr, input: &DFSchema) -> Result<Option<Expr>> {
        match value {
            Expr::ScalarFunction(call) if call.func == self.0 => return Ok(None),
            Expr::Literal(constant, metadata) => {
                if !constant.data_type().is_floating() {
                    return Ok(None);
                }
                let normal = ScalarValue::try_from_array(&normal_floats(&constant.to_array()?), 0)?;
                // Scalar values are equal only if their bits are equal.
                return Ok((normal != *constant).then(|| Expr::Literal(normal, metadata.clone())));
            }
            _ => {}
        }
        Ok(value.get_type(input)?.is_floating().then(|| self.0.call(vec![value.clone()])))
    }

    /// Rewrites a grouping key to its normal form, with an alias that keeps its name.
    fn named(&self, key: &Expr, input: &DFSchema, is_changed: &mut bool) -> Result<Expr> {
        let value = if let Expr::Alias(alias) = key { &alias.expr } else { key };
        let Some(normal) = self.normal(value, input)? else { return Ok(key.clone()) };
        *is_changed = true;
        let (relation, name) = key.qualified_name();
        Ok(normal.alias_qualified(relation, name))
    }

    /// Rewrites the arguments of an aggregate function with DISTINCT, and the sort keys of any aggregate function, to
    /// normal form.
    fn function(&self, function: &Expr, input: &DFSchema, is_changed: &mut bool) -> Result<Expr> {
        let called = if let Expr::Alias(alias) = function { &alias.expr } else { function };
        let Expr::AggregateFunction(call) = called else { return Ok(function.clone()) };
        let mut call = call.clone();
        let mut has_floats = self.order(&mut call.params.order_by, input)?;
        for argument in call.params.args.iter_mut().filter(|_| call.params.distinct) {
            if let Some(normal) = self.normal(argument, input)? {
                *argument = normal;
                has_floats = true;
            }
        }
        if !has_floats {
            return Ok(function.clone());
        }
        *is_changed = true;
        let (relation, name) = function.qualified_name();
        Ok(Expr::AggregateFunction(call).alias_qualified(relation, name))
    }
}

/// Returns the column if a physical expression is the normal form of a column; otherwise `None`.
pub(crate) fn normal_column(key: &dyn PhysicalExpr) -> Option<&Column> {
    let call = key.downcast_ref::<ScalarFunctionExpr>()?;
    let [column] = call.args() else { return None };
    if call.fun().inner().is::<NormalFloat>() { column.downcast_ref() } else { None }
}

fn compares(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// Rewrites a filter for a test against statistics of row groups. [`least`] and [`most`] convert the bounds in the
/// statistics.
///
/// Only the normal form of a plain column is removed. For example, the largest value of `-x` could come from a NaN.
pub(crate) fn of_statistics(filter: Expr) -> Result<Expr> {
    let plain = filter.transform_up(|part| match part {
        Expr::ScalarFunction(mut call)
            if call.func.inner().is::<NormalFloat>() && matches!(call.args[..], [Expr::Column(_)]) =>
        {
            Ok(Transformed::yes(call.args.remove(0)))
        }
        other => Ok(Transformed::no(other)),
    })?;
    Ok(plain.data)
}

/// Returns lower bounds for the normal form of a column, from the smallest values of its row groups.
pub(crate) fn least(smallest: &ArrayRef) -> ArrayRef {
    normal_floats(smallest)
}

/// Returns upper bounds for the normal form of a column. A floating-point column has no upper bound, since it may
/// contain a NaN.
pub(crate) fn most(largest: &ArrayRef) -> ArrayRef {
    match largest.data_type() {
        kind if kind.is_floating() => new_null_array(kind, largest.len()),
        _ => largest.clone(),
    }
}

/// The SQL function that returns the normal form of a floating-point number.
#[derive(Debug, PartialEq, Eq, Hash)]
struct NormalFloat(Signature);

impl ScalarUDFImpl for NormalFloat {
    fn name(&self) -> &str {
        "normal_float"
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn return_type(&self, kinds: &[DataType]) -> Result<DataType> {
        Ok(kinds[0].clone())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        Ok(Arc::new(args.arg_fields[0].as_ref().clone().with_name(self.name())))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let values = args.args[0].to_array(args.number_rows)?;
        Ok(ColumnarValue::Array(normal_floats(&values)))
    }
}
