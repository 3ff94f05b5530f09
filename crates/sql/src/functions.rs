//! Aggregate functions that give the right answer, or none, where the library's give another.
//!
//! - SUM of whole numbers stops with an error where 64 bits do not hold it, and SUM of decimals where 38 digits do not; the library's
//!   wrap around.
//! - MIN and MAX of fractions of a group: NaN is greater than all others, whatever comes first, and infinity is a number
//!   like others; the library's depend on the order of rows, and give the largest finite number for infinity.
//!
//! All else of them is the library's.

use std::{
    collections::HashMap,
    fmt::Debug,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use arrow::{
    array::{Array, ArrayRef, ArrowNativeTypeOp, ArrowPrimitiveType, AsArray, BooleanArray},
    datatypes::{DataType, Decimal128Type, FieldRef, Float32Type, Float64Type, Int64Type, UInt64Type, i256},
};
use datafusion::{
    common::ScalarValue,
    error::{DataFusionError, Result},
    functions_aggregate::{
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

/// All of them, to be put in the place of those with their names.
pub(crate) fn functions() -> [AggregateUDF; 3] {
    [
        AggregateUDF::from(CheckedSum::default()),
        AggregateUDF::from(Extreme(Min::default())),
        AggregateUDF::from(Extreme(Max::default())),
    ]
}

/// The sum among them.
pub(crate) fn checked_sum() -> Arc<AggregateUDF> {
    Arc::new(AggregateUDF::from(CheckedSum::default()))
}

/// What is as in the library's function. A sum of `x + 1` is not rewritten to that of `x`: one may fit where the other does not.
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

        fn documentation(&self) -> Option<&Documentation> {
            self.0.documentation()
        }

        fn set_monotonicity(&self, kind: &DataType) -> SetMonotonicity {
            self.0.set_monotonicity(kind)
        }
    };
}

/// SUM; see the module.
#[derive(Debug, Default, PartialEq, Eq, Hash)]
struct CheckedSum(Sum);

fn overflow(kind: &DataType) -> DataFusionError {
    let what = match kind {
        DataType::Decimal128(..) => "a sum does not fit 38 digits: cast what is added to DOUBLE",
        _ => "a sum does not fit 64 bits: cast what is added to DOUBLE or DECIMAL(38, 0)",
    };
    DataFusionError::Execution(what.to_string())
}

impl CheckedSum {
    /// Where sums may be too large in earnest.
    fn accumulator_of(args: &AccumulatorArgs<'_>) -> Option<Box<dyn Accumulator>> {
        let kind = args.return_field.data_type();
        match kind {
            DataType::Int64 | DataType::UInt64 if args.is_distinct => {
                Some(Box::new(DistinctTotal::new(kind)))
            }
            DataType::Int64 | DataType::UInt64 => Some(Box::new(Total::new(kind))),
            DataType::Decimal128(..) if !args.is_distinct => Some(Box::new(DecimalTotal::new(kind))),
            _ => None,
        }
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
            kind @ DataType::Decimal128(precision, _) => Ok(Totals::of_decimals(kind, *precision)),
            _ => self.0.create_groups_accumulator(args),
        }
    }

    fn create_sliding_accumulator(&self, args: AccumulatorArgs<'_>) -> Result<Box<dyn Accumulator>> {
        CheckedSum::accumulator_of(&args).map_or_else(|| self.0.create_sliding_accumulator(args), Ok)
    }
}

/// Whole numbers of a column that are not null.
fn whole(values: &ArrayRef) -> Box<dyn Iterator<Item = i128> + '_> {
    match values.data_type() {
        DataType::UInt64 => Box::new(values.as_primitive::<UInt64Type>().iter().flatten().map(i128::from)),
        _ => Box::new(values.as_primitive::<Int64Type>().iter().flatten().map(i128::from)),
    }
}

/// A number as a value of a type of 64 bits.
fn fitting(sum: i128, kind: &DataType) -> Result<ScalarValue> {
    match kind {
        DataType::UInt64 => u64::try_from(sum).map(ScalarValue::from),
        _ => i64::try_from(sum).map(ScalarValue::from),
    }
    .map_err(|_| overflow(kind))
}

/// One sum, of which values can be taken back: as wide as 2^64 values need, so that only what is asked for has to fit.
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

/// One sum of decimals, in 256 bits: 2^128 values fit them.
#[derive(Debug)]
struct DecimalTotal {
    kind: DataType,
    sum: i256,
    values: u64,
}

impl DecimalTotal {
    fn new(kind: &DataType) -> DecimalTotal {
        DecimalTotal { kind: kind.clone(), sum: i256::ZERO, values: 0 }
    }

    fn total(values: &ArrayRef) -> i256 {
        let values = values.as_primitive::<Decimal128Type>().iter().flatten();
        values.fold(i256::ZERO, |sum, value| sum.wrapping_add(i256::from_i128(value)))
    }
}

impl Accumulator for DecimalTotal {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.sum = self.sum.wrapping_add(DecimalTotal::total(&values[0]));
        self.values += (values[0].len() - values[0].null_count()) as u64;
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        self.sum = self.sum.wrapping_sub(DecimalTotal::total(&values[0]));
        self.values -= (values[0].len() - values[0].null_count()) as u64;
        Ok(())
    }

    fn supports_retract_batch(&self) -> bool {
        true
    }

    fn evaluate(&mut self) -> Result<ScalarValue> {
        let DataType::Decimal128(precision, scale) = self.kind else { return Err(overflow(&self.kind)) };
        if self.values == 0 {
            return ScalarValue::try_from(&self.kind);
        }
        let sum = self.sum.to_i128().filter(|&sum| has_digits(sum, precision));
        let sum = sum.ok_or_else(|| overflow(&self.kind))?;
        Ok(ScalarValue::Decimal128(Some(sum), precision, scale))
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

/// Whether a number has so many digits at most.
fn has_digits(number: i128, digits: u8) -> bool {
    number.unsigned_abs() < 10u128.pow(digits.into())
}

/// The sum of different values, each with how often it is there. Its state is a list of them, as the library's is.
#[derive(Debug)]
struct DistinctTotal {
    kind: DataType,
    counts: HashMap<i128, u64>,
}

impl DistinctTotal {
    fn new(kind: &DataType) -> DistinctTotal {
        DistinctTotal { kind: kind.clone(), counts: HashMap::new() }
    }
}

impl Accumulator for DistinctTotal {
    fn update_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        whole(&values[0]).for_each(|value| *self.counts.entry(value).or_default() += 1);
        Ok(())
    }

    fn retract_batch(&mut self, values: &[ArrayRef]) -> Result<()> {
        for value in whole(&values[0]) {
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
        match self.counts.is_empty() {
            true => ScalarValue::try_from(&self.kind),
            false => fitting(self.counts.keys().sum(), &self.kind),
        }
    }

    fn size(&self) -> usize {
        size_of_val(self) + self.counts.capacity() * (size_of::<(i128, u64)>() + 1)
    }

    fn state(&mut self) -> Result<Vec<ScalarValue>> {
        let values =
            self.counts.keys().map(|&value| fitting(value, &self.kind)).collect::<Result<Vec<_>>>()?;
        Ok(vec![ScalarValue::List(ScalarValue::new_list_nullable(&values, &self.kind))])
    }

    fn merge_batch(&mut self, states: &[ArrayRef]) -> Result<()> {
        states[0].as_list::<i32>().iter().flatten().try_for_each(|values| self.update_batch(&[values]))
    }
}

/// The sums of many groups, and whether one of them was too large on its way.
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

    fn of_decimals(kind: &DataType, precision: u8) -> Box<dyn GroupsAccumulator> {
        let overflow = Arc::new(AtomicBool::new(false));
        let noted = overflow.clone();
        let add = move |sum: &mut i128, value: i128| match sum.checked_add(value) {
            Some(larger) if has_digits(larger, precision) => *sum = larger,
            _ => noted.store(true, Ordering::Relaxed),
        };
        let sums = Box::new(PrimitiveGroupsAccumulator::<Decimal128Type, _>::new(kind, add));
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

/// MIN or MAX; see the module.
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

/// The smallest or largest fraction of each group, beginning with what all others are smaller or larger than.
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
