//! Functions of the library that are mended here, or whose types are looked at as soon as they are named.
//!
//! ```text
//!   lpad, rpad        2^64 bytes are reserved for a column that has a length below 0: it is 0
//!   date_trunc        a time of a zone is not in the order of its argument, where clocks are set back: no order is known of it
//!   struct, map, ...  types of types, which double with each WITH: refused where they are too large
//!   arrow_cast, ...   a type of which each value may have gigabytes: refused
//! ```
//!
//! All else of the functions is the library's: their names too, of which plans are made that are compared with those of others. None is
//! asked how much it will take: that is limited for the whole process, by whoever started it.

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

use crate::plan_size::{check_elements, check_type};

/// How a function is mended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Mend {
    /// Lengths below 0 are 0.
    Lengths,
    /// Times of a zone have no order.
    Order,
    /// Its type is all types of its arguments together.
    TypesOfTypes,
    /// Its type is asked for.
    TypeAskedFor,
}

impl Mend {
    /// Of the library's function with this name; `None` where it needs none.
    pub fn of(name: &str) -> Option<Mend> {
        Some(match name {
            "lpad" | "rpad" => Mend::Lengths,
            "date_trunc" => Mend::Order,
            "named_struct" | "struct" | "map" | "arrays_zip" => Mend::TypesOfTypes,
            "arrow_cast" | "arrow_try_cast" | "cast_to_type" | "try_cast_to_type" => Mend::TypeAskedFor,
            _ => return None,
        })
    }
}

/// Mends the functions of a query with so much memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mends {
    pub memory_bytes: u64,
}

impl Mends {
    /// The library's function in the place of which a mended one comes, if it needs that.
    pub fn mended(self, library: &Arc<ScalarUDF>) -> Option<ScalarUDF> {
        let mend = Mend::of(library.name())?;
        if library.inner().is::<Mended>() {
            return None;
        }
        Some(ScalarUDF::from(Mended { library: library.clone(), mend, mends: self }))
    }

    fn mend(self, library: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
        self.mended(&library).map_or(library, Arc::new)
    }
}

/// A plan with the library's own functions in the place of those whose types are checked by now: it knows its own by their kind.
///
/// # Errors
/// The library's, of an expression that cannot be rewritten.
pub(crate) fn with_own_types(plan: LogicalPlan) -> Result<LogicalPlan> {
    let own = |part: Expr| {
        Ok(match part {
            Expr::ScalarFunction(mut call) => match call.func.inner().downcast_ref::<Mended>() {
                Some(mended) if mended.mend == Mend::TypesOfTypes => {
                    call.func = mended.library.clone();
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

/// Puts checked functions in for signs that make types of types: `{'a': 1}`, `(1, 2)` and `MAP {1: 2}`. Types are looked through
/// as often as they are named, while the text is still read.
#[derive(Debug)]
pub(crate) struct Literals(pub Mends);

impl ExprPlanner for Literals {
    fn plan_dictionary_literal(
        &self,
        expression: RawDictionaryExpr,
        _: &DFSchema,
    ) -> Result<PlannerResult<RawDictionaryExpr>> {
        let args = expression.keys.into_iter().zip(expression.values).flat_map(|(key, value)| [key, value]);
        Ok(PlannerResult::Planned(self.0.mend(named_struct()).call(args.collect())))
    }

    fn plan_struct_literal(&self, args: Vec<Expr>, is_named: bool) -> Result<PlannerResult<Vec<Expr>>> {
        let library = if is_named { named_struct() } else { r#struct() };
        Ok(PlannerResult::Planned(self.0.mend(library).call(args)))
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
        Ok(PlannerResult::Planned(self.0.mend(map_udf()).call(entries)))
    }
}

/// A function of the library, mended; see the module.
#[derive(Debug)]
struct Mended {
    library: Arc<ScalarUDF>,
    mend: Mend,
    mends: Mends,
}

// All those of a query have the same memory.
impl PartialEq for Mended {
    fn eq(&self, other: &Mended) -> bool {
        self.library == other.library
    }
}

impl Eq for Mended {}

impl Hash for Mended {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.library.hash(hasher);
    }
}

impl Mended {
    fn library(&self) -> &dyn ScalarUDFImpl {
        self.library.inner().as_ref()
    }
}

// It stands for another: whatever the library may ask of one has to be said.
#[warn(clippy::missing_trait_methods)]
impl ScalarUDFImpl for Mended {
    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        if self.mend == Mend::Lengths {
            // The library gives as many rows as there are, where constants have one.
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
        self.mends.mended(&Arc::new(self.library().with_updated_config(config)?))
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
        check_type(field.data_type(), self.mends.memory_bytes)?;
        if self.mend == Mend::TypeAskedFor {
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
        if self.mend == Mend::Order && !inputs.get(1).is_some_and(has_no_zone) {
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
