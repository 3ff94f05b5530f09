//! Wraps scalar functions of DataFusion that need a correction, or whose result type must be checked during planning.
//!
//! ```text
//!   lpad, rpad        a negative length in a column would reserve about 2^64 bytes: it is replaced by 0
//!   date_trunc        with a time zone, results are not sorted as arguments when clocks are set back: no known order
//!   struct, map, ...  nested types can double in size with each WITH clause: large types are refused
//!   arrow_cast, ...   each value of a requested type may take gigabytes: such types are refused
//! ```
//!
//! All other methods call DataFusion's functions. The names are also unchanged, since nodes compare plans by their
//! text. The memory of functions is not estimated, since the process that runs the query has a memory limit
//! (docs/decisions/0033).

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use arrow::{
    array::AsArray,
    datatypes::{DataType, FieldRef, Int64Type},
};
use datafusion::{
    common::{
        DFSchema, ExprSchema, ScalarValue,
        config::ConfigOptions,
        tree_node::{Transformed, TreeNode},
    },
    error::Result,
    functions::core::{named_struct, r#struct},
    functions_nested::{make_array::make_array, map::map_udf},
    logical_expr::{
        ColumnarValue, Documentation, Expr, ExpressionPlacement, LogicalPlan, ReturnFieldArgs,
        ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, StructFieldMapping,
        interval_arithmetic::Interval,
        planner::{ExprPlanner, PlannerResult, RawDictionaryExpr},
        preimage::PreimageResult,
        simplify::{ExprSimplifyResult, SimplifyContext},
        sort_properties::{ExprProperties, SortProperties},
    },
};

use super::plan_size::{check_elements, check_type};

/// The kind of correction that a function needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Correction {
    /// Negative lengths are replaced by 0.
    Lengths,
    /// If the argument has a time zone, the planner must not assume that the result is sorted as the argument is.
    Order,
    /// The result type is checked, since it contains the types of all arguments.
    TypesOfTypes,
    /// The result type is checked, since an argument of the query names it.
    TypeAskedFor,
}

impl Correction {
    /// Returns the correction for the function `name`, or `None` if the function needs no correction.
    pub fn of(name: &str) -> Option<Correction> {
        Some(match name {
            "lpad" | "rpad" => Correction::Lengths,
            "date_trunc" => Correction::Order,
            "named_struct" | "struct" | "map" | "arrays_zip" => Correction::TypesOfTypes,
            "arrow_cast" | "arrow_try_cast" | "cast_to_type" | "try_cast_to_type" => Correction::TypeAskedFor,
            _ => return None,
        })
    }
}

/// Wraps the functions of a query. `memory_bytes` limits the size of types.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Corrections {
    pub memory_bytes: u64,
}

impl Corrections {
    /// Wraps a function of DataFusion. Returns `None` if the function needs no correction.
    pub fn corrected(self, library: &Arc<ScalarUDF>) -> Option<ScalarUDF> {
        let correction = Correction::of(library.name())?;
        if library.inner().is::<CorrectedFunction>() {
            return None;
        }
        Some(ScalarUDF::from(CorrectedFunction { library: library.clone(), correction, corrections: self }))
    }

    fn correct(self, library: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
        self.corrected(&library).map_or(library, Arc::new)
    }
}

/// Replaces the wrappers that check types by DataFusion's functions, after the checks. DataFusion's rules recognize a
/// function by its Rust type.
///
/// # Errors
/// Returns errors of DataFusion's tree rewriting.
pub(crate) fn restore_library_functions(plan: LogicalPlan) -> Result<LogicalPlan> {
    let own = |part: Expr| {
        Ok(match part {
            Expr::ScalarFunction(mut call) => match call.func.inner().downcast_ref::<CorrectedFunction>() {
                Some(corrected) if corrected.correction == Correction::TypesOfTypes => {
                    call.func = corrected.library.clone();
                    Transformed::yes(Expr::ScalarFunction(call))
                }
                _ => Transformed::no(Expr::ScalarFunction(call)),
            },
            other => Transformed::no(other),
        })
    };
    let of_node = |node: LogicalPlan| node.map_expressions(|expression| expression.transform_up(own));
    Ok(plan.transform_up_with_subqueries(of_node)?.data)
}

/// Plans the literals `{'a': 1}`, `(1, 2)` and `MAP {1: 2}` as calls of checked functions. Types are checked during
/// planning, since they may double in size with each nesting level.
#[derive(Debug)]
pub(crate) struct CheckedLiterals(pub Corrections);

impl ExprPlanner for CheckedLiterals {
    fn plan_dictionary_literal(
        &self,
        expression: RawDictionaryExpr,
        _: &DFSchema,
    ) -> Result<PlannerResult<RawDictionaryExpr>> {
        let args = expression.keys.into_iter().zip(expression.values).flat_map(|(key, value)| [key, value]);
        Ok(PlannerResult::Planned(self.0.correct(named_struct()).call(args.collect())))
    }

    fn plan_struct_literal(&self, args: Vec<Expr>, is_named: bool) -> Result<PlannerResult<Vec<Expr>>> {
        let library = if is_named { named_struct() } else { r#struct() };
        Ok(PlannerResult::Planned(self.0.correct(library).call(args)))
    }

    fn plan_make_map(&self, args: Vec<Expr>) -> Result<PlannerResult<Vec<Expr>>> {
        if !args.len().is_multiple_of(2) {
            return Ok(PlannerResult::Original(args));
        }
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (number, arg) in args.into_iter().enumerate() {
            if number % 2 == 0 { keys.push(arg) } else { values.push(arg) }
        }
        let entries = vec![make_array(keys), make_array(values)];
        Ok(PlannerResult::Planned(self.0.correct(map_udf()).call(entries)))
    }
}

/// A wrapper of a DataFusion function with its correction; see the module's documentation.
#[derive(Debug)]
struct CorrectedFunction {
    library: Arc<ScalarUDF>,
    correction: Correction,
    corrections: Corrections,
}

// The comparison ignores the memory limit, which is the same for all functions of a query.
impl PartialEq for CorrectedFunction {
    fn eq(&self, other: &CorrectedFunction) -> bool {
        self.library == other.library
    }
}

impl Eq for CorrectedFunction {}

impl Hash for CorrectedFunction {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.library.hash(hasher);
    }
}

impl CorrectedFunction {
    fn library(&self) -> &dyn ScalarUDFImpl {
        self.library.inner().as_ref()
    }
}

// The wrapper implements every method of the trait. The lint reports a method that a new version of DataFusion adds.
#[warn(clippy::missing_trait_methods)]
impl ScalarUDFImpl for CorrectedFunction {
    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if self.correction == Correction::Lengths {
            // If all arguments are constants, one row is enough, but DataFusion would pad every row.
            if args.args.iter().all(|value| matches!(value, ColumnarValue::Scalar(_))) {
                args.number_rows = args.number_rows.min(1);
            }
            if let Some(ColumnarValue::Array(lengths)) = args.args.get_mut(1)
                && let Some(numbers) = lengths.as_primitive_opt::<Int64Type>()
            {
                *lengths = Arc::new(numbers.unary::<_, Int64Type>(|length| length.max(0)));
            }
        }
        self.library.invoke_with_args(args)
    }

    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        self.library().simplify(args, info)
    }

    fn with_updated_config(&self, config: &ConfigOptions) -> Option<ScalarUDF> {
        self.corrections.corrected(&Arc::new(self.library().with_updated_config(config)?))
    }

    fn name(&self) -> &str {
        self.library().name()
    }

    fn aliases(&self) -> &[String] {
        self.library().aliases()
    }

    fn display_name(&self, args: &[Expr]) -> Result<String> {
        #[expect(deprecated)]
        self.library().display_name(args)
    }

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        self.library().schema_name(args)
    }

    fn signature(&self) -> &Signature {
        self.library().signature()
    }

    fn return_type(&self, kinds: &[DataType]) -> Result<DataType> {
        self.library().return_type(kinds)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let field = self.library().return_field_from_args(args)?;
        check_type(field.data_type(), self.corrections.memory_bytes)?;
        if self.correction == Correction::TypeAskedFor {
            check_elements(field.data_type())?;
        }
        Ok(field)
    }

    fn is_nullable(&self, args: &[Expr], schema: &dyn ExprSchema) -> bool {
        #[expect(deprecated)]
        self.library().is_nullable(args, schema)
    }

    fn is_strict(&self) -> bool {
        self.library().is_strict()
    }

    fn preimage(&self, args: &[Expr], literal: &Expr, info: &SimplifyContext) -> Result<PreimageResult> {
        self.library().preimage(args, literal, info)
    }

    fn short_circuits(&self) -> bool {
        self.library().short_circuits()
    }

    fn conditional_arguments<'a>(&self, args: &'a [Expr]) -> Option<(Vec<&'a Expr>, Vec<&'a Expr>)> {
        self.library().conditional_arguments(args)
    }

    fn evaluate_bounds(&self, inputs: &[&Interval]) -> Result<Interval> {
        self.library().evaluate_bounds(inputs)
    }

    fn propagate_constraints(
        &self,
        interval: &Interval,
        inputs: &[&Interval],
    ) -> Result<Option<Vec<Interval>>> {
        self.library().propagate_constraints(interval, inputs)
    }

    fn output_ordering(&self, inputs: &[ExprProperties]) -> Result<SortProperties> {
        let has_no_zone =
            |input: &ExprProperties| matches!(input.range.data_type(), DataType::Timestamp(_, None));
        if self.correction == Correction::Order && !inputs.get(1).is_some_and(has_no_zone) {
            return Ok(SortProperties::Unordered);
        }
        self.library().output_ordering(inputs)
    }

    fn preserves_lex_ordering(&self, inputs: &[ExprProperties]) -> Result<bool> {
        self.library().preserves_lex_ordering(inputs)
    }

    fn strictly_order_preserving(&self, inputs: &[ExprProperties]) -> Result<bool> {
        self.library().strictly_order_preserving(inputs)
    }

    fn coerce_types(&self, kinds: &[DataType]) -> Result<Vec<DataType>> {
        self.library().coerce_types(kinds)
    }

    fn struct_field_mapping(&self, literals: &[Option<ScalarValue>]) -> Option<StructFieldMapping> {
        self.library().struct_field_mapping(literals)
    }

    fn documentation(&self) -> Option<&Documentation> {
        self.library().documentation()
    }

    fn placement(&self, args: &[ExpressionPlacement]) -> ExpressionPlacement {
        self.library().placement(args)
    }
}
