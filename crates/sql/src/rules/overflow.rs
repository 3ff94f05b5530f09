//! Overflow checks for `+`, `-` and `*` of integers and decimals.
//!
//! DataFusion 55.2 does not detect these overflows. Integers wrap around (`9223372036854775807 + 1` is negative).
//! Decimals may have more digits than their type, as long as they fit 128 bits.

use std::sync::{Arc, LazyLock};

use arrow::{
    array::{AsArray, Datum},
    compute::kernels::numeric::{add, mul, sub},
    datatypes::{DECIMAL128_MAX_PRECISION, DataType, Decimal128Type},
};
use datafusion::{
    common::{
        DFSchema,
        config::ConfigOptions,
        tree_node::{Transformed, TreeNode},
    },
    error::Result,
    logical_expr::{
        BinaryExpr, ColumnarValue, Expr, ExprSchemable, LogicalPlan, Operator, ScalarFunctionArgs, ScalarUDF,
        ScalarUDFImpl, Signature, Volatility, expr_rewriter::NamePreserver, utils::merge_schema,
    },
    optimizer::AnalyzerRule,
    scalar::ScalarValue,
};

use crate::Error;

/// The rule that replaces operators on integers of the same type by checked functions, and checks the digits of
/// decimal results. The rule runs when types are known.
#[derive(Debug)]
pub(crate) struct CheckedNumbers;

impl AnalyzerRule for CheckedNumbers {
    fn name(&self) -> &str {
        "checked_numbers"
    }

    fn analyze(&self, plan: LogicalPlan, _: &ConfigOptions) -> Result<LogicalPlan> {
        let checked = plan.transform_up_with_subqueries(|node| {
            let mut schema = merge_schema(&node.inputs());
            // A scan has no input plan, so the columns of its filters come from the table.
            if let LogicalPlan::TableScan(scan) = &node {
                schema.merge(&DFSchema::try_from_qualified_schema(
                    scan.table_name.clone(),
                    &scan.source.schema(),
                )?);
            }
            let names = NamePreserver::new(&node);
            node.map_expressions(|expr| {
                let name = names.save(&expr);
                Ok(expr.transform_up(|expr| check(expr, &schema))?.update_data(|expr| name.restore(expr)))
            })
        })?;
        Ok(checked.data)
    }
}

fn check(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    let Expr::BinaryExpr(BinaryExpr { left, op, right }) = &expr else { return Ok(Transformed::no(expr)) };
    let function = match op {
        Operator::Plus => Some(&PLUS),
        Operator::Minus => Some(&MINUS),
        Operator::Multiply => Some(&TIMES),
        Operator::Divide => None,
        _ => return Ok(Transformed::no(expr)),
    };
    match (left.get_type(schema)?, right.get_type(schema)?) {
        (first, second) if first == second && first.is_integer() => {
            let checked = function.map(|function| function.call(vec![*left.clone(), *right.clone()]));
            Ok(checked.map_or(Transformed::no(expr), Transformed::yes))
        }
        // Only results of 38 digits are checked. The planner makes any smaller type wide enough for every result.
        (first, second) if first.is_decimal() || second.is_decimal() => match expr.get_type(schema)? {
            DataType::Decimal128(DECIMAL128_MAX_PRECISION, _) => {
                Ok(Transformed::yes(CHECKED_DIGITS.call(vec![expr])))
            }
            _ => Ok(Transformed::no(expr)),
        },
        _ => Ok(Transformed::no(expr)),
    }
}

static PLUS: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| function(Operator::Plus));
static MINUS: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| function(Operator::Minus));
static TIMES: LazyLock<Arc<ScalarUDF>> = LazyLock::new(|| function(Operator::Multiply));
static CHECKED_DIGITS: LazyLock<Arc<ScalarUDF>> =
    LazyLock::new(|| Arc::new(ScalarUDF::from(CheckedDigits(Signature::any(1, Volatility::Immutable)))));

fn function(op: Operator) -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(CheckedOperator { op, signature: Signature::any(2, Volatility::Immutable) }))
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct CheckedOperator {
    op: Operator,
    signature: Signature,
}

impl ScalarUDFImpl for CheckedOperator {
    fn name(&self) -> &str {
        match self.op {
            Operator::Plus => "checked_plus",
            Operator::Minus => "checked_minus",
            _ => "checked_times",
        }
    }

    /// Returns the column name that the expression would have without the check.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        Ok(format!("{} {} {}", args[0].schema_name(), self.op, args[1].schema_name()))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, kinds: &[DataType]) -> Result<DataType> {
        Ok(kinds[0].clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let apply = match self.op {
            Operator::Plus => add,
            Operator::Minus => sub,
            _ => mul,
        };
        let apply = |left: &dyn Datum, right: &dyn Datum| {
            apply(left, right).map_err(|_| {
                let kind = left.get().0.data_type();
                Error::Query(format!(
                    "a result of `{}` is too large for {kind}: CAST a side to a wider type, as in CAST(x AS decimal(38, 0))",
                    self.op
                ))
            })
        };
        match (&args.args[0], &args.args[1]) {
            (ColumnarValue::Scalar(left), ColumnarValue::Scalar(right)) => {
                let value = apply(&left.to_scalar()?, &right.to_scalar()?)?;
                Ok(ColumnarValue::Scalar(ScalarValue::try_from_array(&value, 0)?))
            }
            (ColumnarValue::Array(left), ColumnarValue::Array(right)) => {
                Ok(ColumnarValue::Array(apply(left, right)?))
            }
            (ColumnarValue::Array(left), ColumnarValue::Scalar(right)) => {
                Ok(ColumnarValue::Array(apply(left, &right.to_scalar()?)?))
            }
            (ColumnarValue::Scalar(left), ColumnarValue::Array(right)) => {
                Ok(ColumnarValue::Array(apply(&left.to_scalar()?, right)?))
            }
        }
    }
}

/// The function that returns decimals unchanged, or an error if a decimal has more digits than its type.
#[derive(Debug, PartialEq, Eq, Hash)]
struct CheckedDigits(Signature);

impl ScalarUDFImpl for CheckedDigits {
    fn name(&self) -> &str {
        "checked_digits"
    }

    /// Returns the column name that the expression would have without the check.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        Ok(args[0].schema_name().to_string())
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn return_type(&self, kinds: &[DataType]) -> Result<DataType> {
        Ok(kinds[0].clone())
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let value = args.args[0].clone();
        let values = value.to_array(args.number_rows)?;
        let decimals = values.as_primitive::<Decimal128Type>();
        decimals.validate_decimal_precision(decimals.precision()).map_err(|_| {
            Error::Query(format!(
                "a result does not fit {DECIMAL128_MAX_PRECISION} digits, and decimals have no more"
            ))
        })?;
        Ok(value)
    }
}
