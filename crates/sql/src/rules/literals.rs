//! Exact comparison of decimals with literals that have a decimal point or more than 64 bits.
//!
//! DataFusion 55.2 parses such literals as doubles. It compares doubles with decimals by 15 digits after the decimal
//! point. For example, `price = 432863.16` finds no row, and an id of 65 bits finds a wrong row. This module keeps
//! the text of a literal in a comparison until types are known. A literal that is compared with a decimal then
//! becomes an exact decimal, and any other literal becomes a double.

use std::sync::{Arc, LazyLock};

use arrow::datatypes::{DECIMAL128_MAX_PRECISION, DataType};
use datafusion::{
    common::{
        DFSchema, plan_err,
        tree_node::{Transformed, TreeNode},
    },
    error::Result,
    logical_expr::{
        Between, BinaryExpr, Case, ColumnarValue, Expr, ExprSchemable, Operator, ScalarFunctionArgs,
        ScalarUDF, ScalarUDFImpl, Signature, Volatility,
        expr::{InList, ScalarFunction},
        lit,
    },
    scalar::ScalarValue,
    sql::sqlparser::ast::{
        self, BinaryOperator, Function, FunctionArg, FunctionArgExpr, FunctionArgumentList,
        FunctionArguments, Ident, ObjectName, UnaryOperator, Value, ValueWithSpan,
    },
};

/// Replaces literals in a comparison of the parse tree by function calls that contain the literals' text.
pub(crate) fn keep_digits(expr: &mut ast::Expr) {
    use ast::Expr::{Between, BinaryOp, Case, Cast, InList, IsDistinctFrom, IsNotDistinctFrom};
    match expr {
        BinaryOp { left, op, right } => {
            let compares = matches!(
                op,
                BinaryOperator::Eq
                    | BinaryOperator::NotEq
                    | BinaryOperator::Lt
                    | BinaryOperator::LtEq
                    | BinaryOperator::Gt
                    | BinaryOperator::GtEq
            );
            if compares {
                keep_in([&mut **left, &mut **right]);
            }
        }
        IsDistinctFrom(left, right) | IsNotDistinctFrom(left, right) => keep_in([&mut **left, &mut **right]),
        Between { expr, low, high, .. } => keep_in([&mut **expr, &mut **low, &mut **high]),
        InList { expr, list, .. } => keep_in([&mut **expr].into_iter().chain(list)),
        Case { operand: Some(operand), conditions, .. } => {
            keep_in(
                [&mut **operand].into_iter().chain(conditions.iter_mut().map(|when| &mut when.condition)),
            );
        }
        Cast { expr, .. } => keep_in([&mut **expr]),
        ast::Expr::Function(Function { name, args: FunctionArguments::List(list), .. })
            if name.to_string().eq_ignore_ascii_case("nullif") =>
        {
            keep_in(list.args.iter_mut().filter_map(|argument| match argument {
                FunctionArg::Unnamed(FunctionArgExpr::Expr(expr)) => Some(expr),
                _ => None,
            }));
        }
        _ => {}
    }
}

fn keep_in<'a>(sides: impl IntoIterator<Item = &'a mut ast::Expr>) {
    sides.into_iter().for_each(keep);
}

/// Replaces literals in an expression by such calls, also within sums, differences and products.
fn keep(expr: &mut ast::Expr) {
    match expr {
        ast::Expr::Value(value) => {
            if let Value::Number(text, _) = &value.value
                && has_digits_to_lose(text)
            {
                *expr = call(text.clone());
            }
        }
        ast::Expr::UnaryOp { op: UnaryOperator::Minus, expr: inner } => match &**inner {
            ast::Expr::Value(ValueWithSpan { value: Value::Number(text, _), .. })
                if has_digits_to_lose(text) =>
            {
                *expr = call(format!("-{text}"));
            }
            _ => keep(inner),
        },
        ast::Expr::Nested(inner) => keep(inner),
        ast::Expr::BinaryOp {
            left,
            op: BinaryOperator::Plus | BinaryOperator::Minus | BinaryOperator::Multiply,
            right,
        } if is_constant(left) && is_constant(right) => keep_in([&mut **left, &mut **right]),
        _ => {}
    }
}

/// Returns false for an integer that fits 64 bits, and for a literal with an exponent, which denotes a double.
fn has_digits_to_lose(text: &str) -> bool {
    text.parse::<u64>().is_err() && !text.contains(['e', 'E', '_'])
}

/// Creates a call of [`FUNCTION`], which represents a literal in the plan.
fn call(text: String) -> ast::Expr {
    let text = ast::Expr::Value(Value::SingleQuotedString(text).into());
    ast::Expr::Function(Function {
        name: ObjectName::from(vec![Ident::new(NUMBER)]),
        uses_odbc_syntax: false,
        parameters: FunctionArguments::None,
        args: FunctionArguments::List(FunctionArgumentList {
            duplicate_treatment: None,
            args: vec![FunctionArg::Unnamed(FunctionArgExpr::Expr(text))],
            clauses: Vec::new(),
        }),
        filter: None,
        null_treatment: None,
        over: None,
        within_group: Vec::new(),
    })
}

fn is_constant(expr: &ast::Expr) -> bool {
    match expr {
        ast::Expr::Value(value) => matches!(value.value, Value::Number(..)),
        ast::Expr::Nested(inner) | ast::Expr::UnaryOp { op: UnaryOperator::Minus, expr: inner } => {
            is_constant(inner)
        }
        ast::Expr::BinaryOp {
            left,
            op: BinaryOperator::Plus | BinaryOperator::Minus | BinaryOperator::Multiply,
            right,
        } => is_constant(left) && is_constant(right),
        _ => false,
    }
}

/// Replaces the calls of [`FUNCTION`] by literals. A literal becomes a decimal if it is compared with decimals,
/// integers or other literals, and otherwise a double.
pub(crate) fn with_numbers(expr: Expr, schema: &DFSchema) -> Result<Transformed<Expr>> {
    expr.transform_down(|part| match part {
        Expr::BinaryExpr(BinaryExpr { left, op, right }) if compares(op) => {
            let [left, right] = match_types([*left, *right], schema)?;
            Ok(Transformed::yes(Expr::BinaryExpr(BinaryExpr::new(Box::new(left), op, Box::new(right)))))
        }
        Expr::Between(Between { expr, negated, low, high }) => {
            let [expr, low, high] = match_types([*expr, *low, *high], schema)?.map(Box::new);
            Ok(Transformed::yes(Expr::Between(Between { expr, negated, low, high })))
        }
        Expr::InList(InList { expr, mut list, negated }) => {
            list.push(*expr);
            let mut list = match_types(list, schema)?;
            let expr = Box::new(list.pop().expect("the value that is looked for"));
            Ok(Transformed::yes(Expr::InList(InList { expr, list, negated })))
        }
        Expr::Case(Case { expr: Some(expr), when_then_expr, else_expr }) => {
            let (mut sides, results): (Vec<Expr>, Vec<Box<Expr>>) =
                when_then_expr.into_iter().map(|(when, then)| (*when, then)).unzip();
            sides.push(*expr);
            let mut sides = match_types(sides, schema)?;
            let expr = sides.pop().map(Box::new);
            let when_then_expr = sides.into_iter().map(Box::new).zip(results).collect();
            Ok(Transformed::yes(Expr::Case(Case { expr, when_then_expr, else_expr })))
        }
        Expr::Cast(mut cast) if cast.field.data_type().is_decimal() => {
            *cast.expr = numbers(*cast.expr, true)?.data;
            Ok(Transformed::yes(Expr::Cast(cast)))
        }
        Expr::TryCast(mut cast) if cast.field.data_type().is_decimal() => {
            *cast.expr = numbers(*cast.expr, true)?.data;
            Ok(Transformed::yes(Expr::TryCast(cast)))
        }
        Expr::ScalarFunction(ScalarFunction { func, args }) if func.name() == "nullif" => {
            let args = match_types(args, schema)?;
            Ok(Transformed::yes(Expr::ScalarFunction(ScalarFunction { func, args })))
        }
        // This literal is not part of a comparison.
        Expr::ScalarFunction(call) if is_number(&call) => Ok(Transformed::yes(number(&call, false)?)),
        other => Ok(Transformed::no(other)),
    })
}

fn compares(op: Operator) -> bool {
    use Operator::{Eq, Gt, GtEq, IsDistinctFrom, IsNotDistinctFrom, Lt, LtEq, NotEq};
    matches!(op, Eq | NotEq | Lt | LtEq | Gt | GtEq | IsDistinctFrom | IsNotDistinctFrom)
}

/// Converts the literals of a comparison to decimals if all other sides are decimals or integers, and otherwise to
/// doubles.
fn match_types<Sides: AsMut<[Expr]>>(mut sides: Sides, schema: &DFSchema) -> Result<Sides> {
    let all = sides.as_mut();
    if !all.iter().any(is_of_numbers) {
        return Ok(sides);
    }
    let others = all.iter().filter(|side| !is_of_numbers(side));
    let are_exact = others
        .filter_map(|side| side.get_type(schema).ok())
        .all(|kind| kind.is_decimal() || kind.is_integer() || kind.is_null());
    for side in all.iter_mut().filter(|side| is_of_numbers(side)) {
        *side = numbers(std::mem::take(side), are_exact)?.data;
    }
    Ok(sides)
}

/// Returns whether an expression consists of calls of [`FUNCTION`] and other constants.
fn is_of_numbers(expr: &Expr) -> bool {
    match expr {
        Expr::ScalarFunction(call) => is_number(call),
        Expr::Negative(inner) => is_of_numbers(inner),
        Expr::BinaryExpr(BinaryExpr { left, right, .. }) => {
            let is_constant = |side: &Expr| matches!(side, Expr::Literal(..)) || is_of_numbers(side);
            (is_of_numbers(left) || is_of_numbers(right)) && is_constant(left) && is_constant(right)
        }
        _ => false,
    }
}

fn numbers(expr: Expr, are_exact: bool) -> Result<Transformed<Expr>> {
    expr.transform_up(|part| match part {
        Expr::ScalarFunction(call) if is_number(&call) => Ok(Transformed::yes(number(&call, are_exact)?)),
        other => Ok(Transformed::no(other)),
    })
}

fn is_number(call: &ScalarFunction) -> bool {
    call.func == *FUNCTION
}

/// Parses a literal as a decimal if `is_exact` is true and the number has at most 38 digits, and otherwise as a
/// double.
fn number(call: &ScalarFunction, is_exact: bool) -> Result<Expr> {
    let [Expr::Literal(ScalarValue::Utf8(Some(text)), _)] = &call.args[..] else {
        return plan_err!("{NUMBER} takes a number in quotes");
    };
    if is_exact && let Some(decimal) = decimal(text) {
        return Ok(lit(decimal));
    }
    match text.parse::<f64>() {
        Ok(fraction) => Ok(lit(fraction)),
        Err(_) => plan_err!("{text} is not a number"),
    }
}

fn decimal(text: &str) -> Option<ScalarValue> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let value: i128 = format!("{whole}{fraction}").parse().ok()?;
    let digits = value.unsigned_abs().checked_ilog10().map_or(1, |digits| digits + 1) as usize;
    let precision = digits.max(fraction.len()) as u8;
    (precision <= DECIMAL128_MAX_PRECISION)
        .then(|| ScalarValue::Decimal128(Some(value), precision, fraction.len() as i8))
}

/// The name of [`FUNCTION`].
const NUMBER: &str = "__number";

/// The function whose call represents a literal. [`with_numbers`] removes all calls before the plan runs.
pub(crate) static FUNCTION: LazyLock<Arc<ScalarUDF>> =
    LazyLock::new(|| Arc::new(ScalarUDF::from(KeptLiteral(Signature::any(1, Volatility::Immutable)))));

#[derive(Debug, PartialEq, Eq, Hash)]
struct KeptLiteral(Signature);

impl ScalarUDFImpl for KeptLiteral {
    fn name(&self) -> &str {
        NUMBER
    }

    /// Returns the column name that the literal would have without this function.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        match args {
            [Expr::Literal(ScalarValue::Utf8(Some(text)), _)] => match text.parse::<f64>() {
                Ok(fraction) => Ok(lit(fraction).schema_name().to_string()),
                Err(_) => Ok(text.clone()),
            },
            _ => Ok(NUMBER.to_string()),
        }
    }

    fn signature(&self) -> &Signature {
        &self.0
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        Ok(DataType::Float64)
    }

    fn invoke_with_args(&self, _: ScalarFunctionArgs) -> Result<ColumnarValue> {
        plan_err!("{NUMBER} is a literal and not a function")
    }
}
