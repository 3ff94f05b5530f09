//! Converts floating-point numbers to normal forms, so that grouping, joins and comparisons can compare bits.

use std::sync::Arc;

use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType,
    cast::AsArray,
    types::{Float16Type, Float32Type, Float64Type},
};
use arrow_schema::DataType;

/// Replaces every NaN, of either sign, by the NaN that is greater than all numbers, as in SQL. Zeros keep their
/// signs.
pub fn one_nan(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Float64 => {
            let values = column.as_primitive::<Float64Type>();
            Arc::new(values.unary::<_, Float64Type>(|value| if value.is_nan() { f64::NAN } else { value }))
        }
        DataType::Float32 => {
            let values = column.as_primitive::<Float32Type>();
            Arc::new(values.unary::<_, Float32Type>(|value| if value.is_nan() { f32::NAN } else { value }))
        }
        _ => column.clone(),
    }
}

/// Converts floating-point numbers so that equal numbers have equal bits. Every NaN becomes the positive quiet NaN, and
/// -0.0 becomes 0.0. The function copies a floating-point column at the speed of memory. It returns columns of other
/// types unchanged.
///
/// The row encoding and the hash tables of the libraries compare bits, while SQL compares values. After this
/// conversion, both comparisons have equal results.
///
/// ```
/// use std::sync::Arc;
/// use arrow_array::{ArrayRef, Float64Array, cast::AsArray, types::Float64Type};
///
/// let column: ArrayRef = Arc::new(Float64Array::from(vec![-0.0, -f64::NAN, 1.5]));
/// let normal = inshore_tables::normal_floats(&column);
/// let bits: Vec<u64> = normal.as_primitive::<Float64Type>().values().iter().map(|v| v.to_bits()).collect();
/// assert_eq!(bits, [0, f64::NAN.to_bits(), 1.5f64.to_bits()]);
/// ```
pub fn normal_floats(column: &ArrayRef) -> ArrayRef {
    match column.data_type() {
        DataType::Float64 => {
            let normal = |value: f64| if value.is_nan() { f64::NAN } else { value + 0.0 };
            Arc::new(column.as_primitive::<Float64Type>().unary::<_, Float64Type>(normal))
        }
        DataType::Float32 => {
            let normal = |value: f32| if value.is_nan() { f32::NAN } else { value + 0.0 };
            Arc::new(column.as_primitive::<Float32Type>().unary::<_, Float32Type>(normal))
        }
        DataType::Float16 => {
            type Half = <Float16Type as ArrowPrimitiveType>::Native;
            let values = column.as_primitive::<Float16Type>();
            Arc::new(values.unary::<_, Float16Type>(|value| match value {
                value if value.is_nan() => Half::NAN,
                value if value.to_bits() == 1 << 15 => Default::default(),
                value => value,
            }))
        }
        _ => column.clone(),
    }
}
