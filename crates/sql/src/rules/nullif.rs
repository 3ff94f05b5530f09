//! A function `NULLIF(a, b)` whose result has the type of `a`.
//!
//! In DataFusion 55.2, the result has the type in which `a` and `b` are compared. For example, `NULLIF(1, 2.5)` is a
//! floating-point number. This module compares both arguments in that type, and floating-point numbers in their
//! [normal form](normal_floats), but returns a result of `a`'s type. A `CASE` would have the same result but contain
//! `a` twice, so nested calls would double the expression at each level.

use std::sync::Arc;

use arrow::{
    array::Array,
    compute::{and, cast, is_not_null, is_null, nullif as without},
    datatypes::{DataType, Field},
};
use datafusion::{
    common::{ScalarValue, plan_err, utils::take_function_args},
    error::Result,
    logical_expr::{
        ColumnarValue, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility,
        type_coercion::binary::comparison_coercion,
    },
};
use inshore_tables::normal_floats;

/// Creates the function as a wrapper of DataFusion's NULLIF.
pub(crate) fn nullif(original: Arc<ScalarUDF>) -> ScalarUDF {
    ScalarUDF::from(NullIf { original, signature: Signature::any(2, Volatility::Immutable) })
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct NullIf {
    original: Arc<ScalarUDF>,
    signature: Signature,
}

/// Returns the type in which values of two types are compared.
fn common_type(one: &DataType, other: &DataType) -> Result<DataType> {
    match comparison_coercion(one, other) {
        Some(kind) => Ok(kind),
        None => plan_err!("NULLIF cannot compare {one} with {other}"),
    }
}

impl ScalarUDFImpl for NullIf {
    fn name(&self) -> &str {
        "nullif"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, kinds: &[DataType]) -> Result<DataType> {
        let [value, other] = take_function_args(self.name(), kinds)?;
        let common = common_type(value, other)?;
        Ok(if value.is_null() { common } else { value.clone() })
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let kind = args.return_field.data_type().clone();
        let [value, other] = take_function_args(self.name(), &args.args)?;
        let common = common_type(&value.data_type(), &other.data_type())?;
        let are_constant = args.args.iter().all(|side| matches!(side, ColumnarValue::Scalar(_)));
        let rows = if are_constant { 1 } else { args.number_rows };
        let value = cast(&value.to_array(rows)?, &kind)?;
        let comparable = |side: &ColumnarValue| -> Result<ColumnarValue> {
            Ok(ColumnarValue::Array(normal_floats(&cast(&side.to_array(rows)?, &common)?)))
        };
        let sides = vec![comparable(&args.args[0])?, comparable(other)?];
        let field = Arc::new(Field::new(self.name(), common.clone(), true));
        let compared = self.original.invoke_with_args(ScalarFunctionArgs {
            args: sides,
            arg_fields: vec![field.clone(), field.clone()],
            number_rows: rows,
            return_field: field,
            config_options: args.config_options.clone(),
        })?;
        // DataFusion's function returned null for equal values.
        let is_equal = and(&is_null(&compared.to_array(rows)?)?, &is_not_null(&value)?)?;
        let left = without(&value, &is_equal)?;
        debug_assert_eq!(left.data_type(), &kind);
        Ok(match are_constant {
            true => ColumnarValue::Scalar(ScalarValue::try_from_array(&left, 0)?),
            false => ColumnarValue::Array(left),
        })
    }
}
