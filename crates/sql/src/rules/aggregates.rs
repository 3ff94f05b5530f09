//! Replacements for DataFusion's aggregate functions that return wrong results.
//!
//! - SUM fails if the sum does not fit the result type: 64 bits for integers; the precision of the type (usually 38
//!   digits) for decimals. The check also applies to DISTINCT and window functions. DataFusion's sums wrap around.
//! - AVG of decimals is refused if the type has so many digits that the sum of 10^9 values may not fit 256 bits.
//!   DataFusion's sum wraps around.
//! - MIN and MAX of floating-point numbers in groups treat NaN as the greatest value, and return infinity correctly.
//!   DataFusion's results depend on the order of rows. DataFusion also returns the largest finite number instead of
//!   infinity.
//!
//! All other methods call DataFusion's functions.

use std::{
    collections::HashMap,
    fmt::{self, Debug, Formatter},
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arrow::{
    array::{Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, BooleanArray},
    datatypes::{
        DataType, Decimal32Type, Decimal64Type, Decimal128Type, Decimal256Type, DecimalType, FieldRef,
        Float32Type, Float64Type, Int64Type, UInt64Type, i256,
    },
};
use datafusion::{
    common::ScalarValue,
    error::{DataFusionError, Result},
    functions_aggregate::{
        average::Avg,
        min_max::{Max, Min},
        sum::Sum,
    },
    logical_expr::{
        Accumulator, AggregateUDF, AggregateUDFImpl, Documentation, EmitTo, GroupsAccumulator, ReversedUDAF,
        SetMonotonicity, Signature, StatisticsArgs,
        function::{AccumulatorArgs, StateFieldsArgs},
        utils::AggregateOrderSensitivity,
    },
};
use datafusion_functions_aggregate_common::aggregate::groups_accumulator::prim_op::PrimitiveGroupsAccumulator;

/// Returns all functions of this module. They are registered in place of DataFusion's functions with the same names.
pub(crate) fn functions() -> [AggregateUDF; 4] {
    [
        AggregateUDF::from(CheckedAvg::default()),
        AggregateUDF::from(CheckedSum::default()),
        AggregateUDF::from(Extreme(Min::default())),
        AggregateUDF::from(Extreme(Max::default())),
    ]
}

/// Returns this module's SUM function.
pub(crate) fn checked_sum() -> Arc<AggregateUDF> {
    Arc::new(AggregateUDF::from(CheckedSum::default()))
}

/// Implements methods that call DataFusion's function. Only the rewrite of the sum of `x + 1` to the sum of `x` is
/// disabled, since one of the two sums may overflow when the other does not.
macro_rules! as_in_the_library {
    () => {
        fn name(&self) -> &str {
            self.0.name()
        }

        fn signature(&self) -> &Signature {
            self.0.signature()
        }

        fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
            self.0.return_type(arguments)
        }

        fn state_fields(&self, args: StateFieldsArgs<'_>) -> Result<Vec<FieldRef>> {
            self.0.state_fields(args)
        }

        fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
            self.0.coerce_types(types)
        }

        fn groups_accumulator_supported(&self, args: AccumulatorArgs<'_>) -> bool {
            self.0.groups_accumulator_supported(args)
        }

        fn order_sensitivity(&self) -> AggregateOrderSensitivity {
            self.0.order_sensitivity()
        }

        fn reverse_expr(&self) -> ReversedUDAF {
            self.0.reverse_expr()
        }

        fn is_descending(&self) -> Option<bool> {
            self.0.is_descending()
        }

        fn value_from_stats(&self, args: &StatisticsArgs<'_>) -> Option<ScalarValue> {
            self.0.value_from_stats(args)
        }

        fn aliases(&self) -> &[String] {
            self.0.aliases()
        }

        fn documentation(&self) -> Option<&Documentation> {
            self.0.documentation()
        }

        fn set_monotonicity(&self, kind: &DataType) -> SetMonotonicity {
            self.0.set_monotonicity(kind)
        }
    };
}

/// AVG with a check of its argument's type; see the module's documentation.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
struct CheckedAvg(Avg);

/// The maximum decimal digits of the argument of AVG. Of the 76 digits of a 256-bit decimal, 9 are for the sum of
/// 10^9 values, and 4 for the additional digits of a mean.
const MEAN_DIGITS_MAX: u8 = 63;

impl CheckedAvg {
    fn check(args: &AccumulatorArgs<'_>) -> Result<()> {
        match args.expr_fields[0].data_type() {
            DataType::Decimal256(digits, scale) if *digits > MEAN_DIGITS_MAX => {
                Err(DataFusionError::Execution(format!(
                    "avg of DECIMAL({digits}, {scale}) is refused: cast its argument to DOUBLE or to a DECIMAL of at most \
                     {MEAN_DIGITS_MAX} digits"
                )))
            }
            _ => Ok(()),
        }
    }
}

impl AggregateUDFImpl for CheckedAvg {
    as_in_the_library!();

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        CheckedAvg::check(&args)?;
        self.0.accumulator(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        CheckedAvg::check(&args)?;
        self.0.create_groups_accumulator(args)
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        CheckedAvg::check(&args)?;
        self.0.create_sliding_accumulator(args)
    }
}

/// SUM with a check for overflow; see the module's documentation.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
struct CheckedSum(Sum);

fn overflow(kind: &DataType) -> DataFusionError {
    use DataType::{Decimal32, Decimal64, Decimal128, Decimal256};
    DataFusionError::Execution(match kind {
        Decimal32(digits, _) | Decimal64(digits, _) | Decimal128(digits, _) | Decimal256(digits, _) => {
            format!("a sum does not fit {digits} digits: cast what is added to DOUBLE")
        }
        _ => "a sum does not fit 64 bits: cast what is added to DOUBLE or DECIMAL(38, 0)".to_string(),
    })
}

impl CheckedSum {
    /// Creates an accumulator of this module if sums of the type may overflow; otherwise returns `None`.
    fn accumulator_of(args: &AccumulatorArgs<'_>) -> Option<Box<dyn Accumulator>> {
        let kind = args.return_field.data_type();
        Some(match (kind, args.is_distinct) {
            (DataType::Int64, true) => DistinctTotal::<Int64Type>::boxed(kind, |value| wide(value.into())),
            (DataType::UInt64, true) => DistinctTotal::<UInt64Type>::boxed(kind, |value| wide(value.into())),
            (DataType::Int64 | DataType::UInt64, false) => Box::new(Total::new(kind)),
            (DataType::Decimal32(..), is_distinct) => {
                decimals::<Decimal32Type>(kind, is_distinct, |value| wide(value.into()))
            }
            (DataType::Decimal64(..), is_distinct) => {
                decimals::<Decimal64Type>(kind, is_distinct, |value| wide(value.into()))
            }
            (DataType::Decimal128(..), is_distinct) => decimals::<Decimal128Type>(kind, is_distinct, wide),
            (DataType::Decimal256(..), is_distinct) => {
                decimals::<Decimal256Type>(kind, is_distinct, |value| value)
            }
            _ => return None,
        })
    }
}

fn wide(value: i128) -> i256 {
    i256::from_i128(value)
}

fn decimals<T: DecimalType<Native: Eq + Hash>>(
    kind: &DataType,
    is_distinct: bool,
    wide: fn(T::Native) -> i256,
) -> Box<dyn Accumulator> {
    match is_distinct {
        true => DistinctTotal::<T>::boxed(kind, wide),
        false => DecimalTotal::<T>::boxed(kind, wide),
    }
}

impl AggregateUDFImpl for CheckedSum {
    as_in_the_library!();

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        CheckedSum::accumulator_of(&args).map_or_else(|| self.0.accumulator(args), Ok)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        match args.return_field.data_type() {
            DataType::Int64 => Ok(Totals::boxed::<Int64Type>()),
            DataType::UInt64 => Ok(Totals::boxed::<UInt64Type>()),
            kind @ DataType::Decimal32(digits, _) => Ok(Totals::of_decimals::<Decimal32Type>(kind, *digits)),
            kind @ DataType::Decimal64(digits, _) => Ok(Totals::of_decimals::<Decimal64Type>(kind, *digits)),
            kind @ DataType::Decimal128(digits, _) => {
                Ok(Totals::of_decimals::<Decimal128Type>(kind, *digits))
            }
            kind @ DataType::Decimal256(digits, _) => {
                Ok(Totals::of_decimals::<Decimal256Type>(kind, *digits))
            }
            _ => self.0.create_groups_accumulator(args),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        CheckedSum::accumulator_of(&args).map_or_else(|| self.0.create_sliding_accumulator(args), Ok)
    }
}

/// Iterates over the integers of a column that are not null.
fn whole(values: &ArrayRef) -> Box<dyn Iterator<Item = i128> + '_> {
    match values.data_type() {
        DataType::UInt64 => Box::new(values.as_primitive::<UInt64Type>().iter().flatten().map(i128::from)),
        _ => Box::new(values.as_primitive::<Int64Type>().iter().flatten().map(i128::from)),
    }
}

/// Converts a sum to a value of the type `kind`, or returns the error of an overflow.
fn fitting(sum: i256, kind: &DataType) -> Result<ScalarValue> {
    let narrow = || sum.to_i128();
    let fits = |precision| Decimal256Type::is_valid_decimal_precision(sum, precision);
    let value = match *kind {
        DataType::UInt64 => narrow().and_then(|sum| u64::try_from(sum).ok()).map(ScalarValue::from),
        DataType::Int64 => narrow().and_then(|sum| i64::try_from(sum).ok()).map(ScalarValue::from),
        DataType::Decimal32(precision, scale) if fits(precision) => {
            narrow().map(|sum| ScalarValue::Decimal32(Some(sum as i32), precision, scale))
        }
        DataType::Decimal64(precision, scale) if fits(precision) => {
            narrow().map(|sum| ScalarValue::Decimal64(Some(sum as i64), precision, scale))
        }
        DataType::Decimal128(precision, scale) if fits(precision) => {
            narrow().map(|sum| ScalarValue::Decimal128(Some(sum), precision, scale))
        }
        DataType::Decimal256(precision, scale) if fits(precision) => {
            Some(ScalarValue::Decimal256(Some(sum), precision, scale))
        }
        _ => None,
    };
    value.ok_or_else(|| overflow(kind))
}

/// A sum of integers from which values can be subtracted again. Its 128 bits can represent the sum of 2^64 values.
/// The check that a sum fits its type is therefore made only when the result is requested.
#[derive(Debug)]
struct Total {
    kind: DataType,
    sum: i128,
    values: u64,
}

impl Total {
    fn new(kind: &DataType) -> Total {
        Total { kind: kind.clone(), sum: 0, values: 0 }
    }
}

impl Accumulator for Total {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.sum += whole(&values[0]).sum::<i128>();
        self.values += (values[0].len() - values[0].null_count()) as u64;
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.sum -= whole(&values[0]).sum::<i128>();
        self.values -= (values[0].len() - values[0].null_count()) as u64;
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        match self.values {
            0 => ScalarValue::try_from(&self.kind),
            _ => fitting(i256::from_i128(self.sum), &self.kind),
        }
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }
}

/// A sum of decimals in 256 bits, which can represent the sum of 2^128 values of up to 128 bits.
struct DecimalTotal<T: DecimalType> {
    kind: DataType,
    wide: fn(T::Native) -> i256,
    sum: i256,
    values: u64,
}

impl<T: DecimalType> DecimalTotal<T> {
    fn boxed(kind: &DataType, wide: fn(T::Native) -> i256) -> Box<dyn Accumulator> {
        Box::new(DecimalTotal::<T> { kind: kind.clone(), wide, sum: i256::ZERO, values: 0 })
    }

    /// Adds all values to the sum or subtracts them, as `change` does.
    fn change(&mut self, values: &ArrayRef, change: fn(i256, i256) -> Option<i256>) -> Result<()> {
        for value in values.as_primitive::<T>().iter().flatten() {
            self.sum = change(self.sum, (self.wide)(value)).ok_or_else(|| overflow(&self.kind))?;
        }
        Ok(())
    }
}

impl<T: DecimalType> Debug for DecimalTotal<T> {
    fn fmt(&self, text: &mut Formatter<'_>) -> fmt::Result {
        write!(text, "a sum of {}", self.kind)
    }
}

impl<T: DecimalType> Accumulator for DecimalTotal<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values += (values[0].len() - values[0].null_count()) as u64;
        self.change(&values[0], i256::checked_add)
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.values -= (values[0].len() - values[0].null_count()) as u64;
        self.change(&values[0], i256::checked_sub)
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        if self.values == 0 { ScalarValue::try_from(&self.kind) } else { fitting(self.sum, &self.kind) }
    }

    fn size(&self) -> usize {
        size_of_val(self)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        Ok(vec![self.evaluate()?])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        self.update_batch(states)
    }
}

/// The sum of distinct values. The number of occurrences of each value is stored, so that occurrences can be
/// subtracted again. The accumulator's state is a list of the values, as in DataFusion.
struct DistinctTotal<T: ArrowPrimitiveType> {
    kind: DataType,
    wide: fn(T::Native) -> i256,
    counts: HashMap<T::Native, u64>,
}

impl<T: ArrowPrimitiveType<Native: Eq + Hash>> DistinctTotal<T> {
    fn boxed(kind: &DataType, wide: fn(T::Native) -> i256) -> Box<dyn Accumulator> {
        Box::new(DistinctTotal::<T> { kind: kind.clone(), wide, counts: HashMap::new() })
    }
}

impl<T: ArrowPrimitiveType> Debug for DistinctTotal<T> {
    fn fmt(&self, text: &mut Formatter<'_>) -> fmt::Result {
        write!(text, "a sum of different {}", self.kind)
    }
}

impl<T: ArrowPrimitiveType<Native: Eq + Hash>> Accumulator for DistinctTotal<T> {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        let values = values[0].as_primitive::<T>().iter().flatten();
        values.for_each(|value| *self.counts.entry(value).or_default() += 1);
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in values[0].as_primitive::<T>().iter().flatten() {
            let count = self.counts.get_mut(&value).expect("it came before it goes");
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&value);
            }
        }
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        if self.counts.is_empty() {
            return ScalarValue::try_from(&self.kind);
        }
        let sum = self.counts.keys().try_fold(i256::ZERO, |sum, &value| sum.checked_add((self.wide)(value)));
        fitting(sum.ok_or_else(|| overflow(&self.kind))?, &self.kind)
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.counts.capacity() * (size_of::<(T::Native, u64)>() + 1)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values = self.counts.keys().map(|&value| fitting((self.wide)(value), &self.kind));
        let values = values.collect::<Result<Vec<_>>>()?;
        Ok(vec![ScalarValue::List(ScalarValue::new_list_nullable(&values, &self.kind))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        states[0].as_list::<i32>().iter().flatten().try_for_each(|values| self.update_batch(&[values]))
    }
}

/// The sums of many groups, and a flag that is set if any of these sums overflows.
struct Totals {
    kind: DataType,
    sums: Box<dyn GroupsAccumulator>,
    overflow: Arc<AtomicBool>,
}

impl Totals {
    fn boxed<T: ArrowPrimitiveType + Debug + Send>() -> Box<dyn GroupsAccumulator> {
        let overflow = Arc::new(AtomicBool::new(false));
        let noted = overflow.clone();
        let add = move |sum: &mut T::Native, value: T::Native| match sum.add_checked(value) {
            Ok(larger) => *sum = larger,
            Err(_) => noted.store(true, Ordering::Relaxed),
        };
        let sums = Box::new(PrimitiveGroupsAccumulator::<T, _>::new(&T::DATA_TYPE, add));
        Box::new(Totals { kind: T::DATA_TYPE, sums, overflow })
    }

    fn of_decimals<T: DecimalType + Debug>(kind: &DataType, digits: u8) -> Box<dyn GroupsAccumulator> {
        let overflow = Arc::new(AtomicBool::new(false));
        let noted = overflow.clone();
        let add = move |sum: &mut T::Native, value: T::Native| match sum.add_checked(value) {
            Ok(larger) if T::is_valid_decimal_precision(larger, digits) => *sum = larger,
            _ => noted.store(true, Ordering::Relaxed),
        };
        let sums = Box::new(PrimitiveGroupsAccumulator::<T, _>::new(kind, add));
        Box::new(Totals { kind: kind.clone(), sums, overflow })
    }

    fn check(&self) -> Result<()> {
        if self.overflow.load(Ordering::Relaxed) { Err(overflow(&self.kind)) } else { Ok(()) }
    }
}

impl GroupsAccumulator for Totals {
    fn update_batch(
        &mut self,
        values: &[ArrayRef],
        groups: &[usize],
        filter: Option<&BooleanArray>,
        count: usize,
    ) -> Result<()> {
        self.sums.update_batch(values, groups, filter, count)?;
        self.check()
    }

    fn merge_batch(&mut self, states: &[ArrayRef], groups: &[usize], count: usize) -> Result<()> {
        self.sums.merge_batch(states, groups, count)?;
        self.check()
    }

    fn evaluate(&mut self, which: EmitTo) -> Result<ArrayRef> {
        self.sums.evaluate(which)
    }

    fn state(&mut self, which: EmitTo) -> Result<Vec<ArrayRef>> {
        self.sums.state(which)
    }

    fn convert_to_state(&self, values: &[ArrayRef], filter: Option<&BooleanArray>) -> Result<Vec<ArrayRef>> {
        self.sums.convert_to_state(values, filter)
    }

    fn size(&self) -> usize {
        self.sums.size()
    }
}

/// MIN or MAX that treats every NaN as the same value; see the module's documentation.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Extreme<F>(F);

impl<F: AggregateUDFImpl + Debug + Eq + Hash> AggregateUDFImpl for Extreme<F> {
    as_in_the_library!();

    fn accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        self.0.accumulator(args)
    }

    fn create_groups_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn GroupsAccumulator>> {
        let is_max = self.0.name() == "max";
        match args.return_field.data_type() {
            DataType::Float32 => {
                Ok(extremes::<Float32Type>(is_max, f32::NAN, f32::NEG_INFINITY, |value| value.is_nan()))
            }
            DataType::Float64 => {
                Ok(extremes::<Float64Type>(is_max, f64::NAN, f64::NEG_INFINITY, |value| value.is_nan()))
            }
            _ => self.0.create_groups_accumulator(args),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        self.0.create_sliding_accumulator(args)
    }
}

/// Creates an accumulator for the smallest or largest floating-point number of each group. The initial value compares
/// after all others for MIN, and before all others for MAX.
fn extremes<T: ArrowPrimitiveType + Debug + Send>(
    is_max: bool,
    greatest: T::Native,
    least: T::Native,
    is_nan: fn(T::Native) -> bool,
) -> Box<dyn GroupsAccumulator> {
    let is_less = move |a: T::Native, b: T::Native| !is_nan(a) && (is_nan(b) || a.is_lt(b));
    let kind = &T::DATA_TYPE;
    match is_max {
        true => Box::new(
            PrimitiveGroupsAccumulator::<T, _>::new(kind, move |most: &mut T::Native, value: T::Native| {
                if is_less(*most, value) {
                    *most = value;
                }
            })
            .with_starting_value(least),
        ),
        false => Box::new(
            PrimitiveGroupsAccumulator::<T, _>::new(kind, move |least: &mut T::Native, value: T::Native| {
                if is_less(value, *least) {
                    *least = value;
                }
            })
            .with_starting_value(greatest),
        ),
    }
}
