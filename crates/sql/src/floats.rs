//! Groups and joins of fractions: every NaN is one value, and -0.0 equals 0.0.
//!
//! The library groups and joins by bits (DataFusion 55.2). So where fractions make groups, are counted as different ones, divide
//! a window or are what tables are joined on, the plan has them in their [normal form](normal_floats). Elsewhere they keep
//! their bits.

use std::sync::Arc;

use arrow::datatypes::{DataType, FieldRef};
use datafusion::{
    common::{DFSchema, tree_node::Transformed},
    error::Result,
    logical_expr::{
        Aggregate, ColumnarValue, Expr, ExprSchemable, GroupingSet, Join, LogicalPlan, ReturnFieldArgs,
        ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
    },
    optimizer::{ApplyOrder, OptimizerConfig, OptimizerRule},
};
use inshore_tables::normal_floats;

/// Puts fractions that are compared with each other into their normal form; see the module.
#[derive(Debug)]
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
        match plan {
            LogicalPlan::Aggregate(aggregate) => self.aggregate(aggregate),
            LogicalPlan::Join(join) => self.join(join),
            other => Ok(Transformed::no(other)),
        }
    }
}

impl EqualFloats {
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

    /// A fraction in its normal form; `None` for what is none, or has that form.
    fn normal(&self, value: &Expr, input: &DFSchema) -> Result<Option<Expr>> {
        let is_normal = match value {
            Expr::ScalarFunction(call) => call.func == self.0,
            Expr::Literal(..) => true,
            _ => false,
        };
        if is_normal || !value.get_type(input)?.is_floating() {
            return Ok(None);
        }
        Ok(Some(self.0.call(vec![value.clone()])))
    }

    /// A key of groups in its normal form, under the same name.
    fn named(&self, key: &Expr, input: &DFSchema, is_changed: &mut bool) -> Result<Expr> {
        let value = if let Expr::Alias(alias) = key { &alias.expr } else { key };
        let Some(normal) = self.normal(value, input)? else { return Ok(key.clone()) };
        *is_changed = true;
        let (relation, name) = key.qualified_name();
        Ok(normal.alias_qualified(relation, name))
    }

    /// A function of different values, of which each counts once.
    fn function(&self, function: &Expr, input: &DFSchema, is_changed: &mut bool) -> Result<Expr> {
        let called = if let Expr::Alias(alias) = function { &alias.expr } else { function };
        let Expr::AggregateFunction(call) = called else { return Ok(function.clone()) };
        if !call.params.distinct {
            return Ok(function.clone());
        }
        let mut call = call.clone();
        let mut has_floats = false;
        for argument in &mut call.params.args {
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

/// The function that gives the normal form.
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
