//! Scalar functions that take no more memory, and no more time at once, than a query may.
//!
//! The library computes a function for a whole batch, or for a constant while it plans, and asks nobody: `repeat('x', n)` takes
//! n bytes, and where these are not there the process ends. So each function that makes much of little is put into a
//! [`Bounded`], which tells from the arguments what it will take ([`Growth`]) and calls it only if that is allowed. Where it is
//! known only at most, and too much, the rows are done in pieces, and what these take is counted. So are rows that take many steps,
//! between which somebody may want to stop.
//!
//! Allowed are an eighth of the query's memory more than the largest of its arguments has (its texts are there already), and no
//! more than all of the memory. What is computed at once is a call: a query with many calls, threads and batches on their way
//! takes more than one of them.
//!
//! All else of the functions is the library's: their names too, of which plans are made that are compared with those of others. The
//! operator || is one of them here ([`Sign`]), since the library lets no one look at what an operator does; so are those that compare
//! with a pattern which is not a small one of the query's text.

use std::{
    collections::HashSet,
    hash::{Hash, Hasher},
    sync::Arc,
};

use arrow::{
    array::{Array, ArrayRef, AsArray},
    compute::concat,
    datatypes::{DataType, Field, FieldRef, Int64Type, Schema},
    record_batch::{RecordBatch, RecordBatchOptions},
};
use datafusion::{
    common::{
        DFSchema, ExprSchema, ScalarValue,
        config::ConfigOptions,
        tree_node::{Transformed, TreeNode},
    },
    error::{DataFusionError, Result},
    functions::core::{named_struct, r#struct},
    functions_nested::{make_array::make_array, map::map_udf},
    logical_expr::{
        BinaryExpr, ColumnarValue, Documentation, Expr, ExpressionPlacement, Like, LogicalPlan, Operator,
        ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, StructFieldMapping,
        Volatility,
        interval_arithmetic::Interval,
        planner::{ExprPlanner, PlannerResult, RawDictionaryExpr},
        preimage::PreimageResult,
        simplify::{ExprSimplifyResult, SimplifyContext},
        sort_properties::{ExprProperties, SortProperties},
        type_coercion::binary::BinaryTypeCoercer,
    },
    physical_expr::expressions::{BinaryExpr as Computed, Column, Literal},
    physical_plan::PhysicalExpr,
};
use inshore_store::{Job, format_bytes};

use crate::{
    Error,
    growth::{Cost, Each, Growth, Once, array_bytes, constant_bytes},
    patterns::Language,
    plan_size::{check_elements, check_type},
};

/// Steps of a function for a row: some seconds, in which nobody can stop it.
pub(crate) const STEPS_MAX: u64 = 1_000_000_000;
/// Steps for rows that are done at once.
const PIECE_STEPS: u64 = STEPS_MAX / 10;

/// What the functions of a query may take.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// What a result may have more than the largest argument.
    growth_bytes: u64,
    /// What a result may have in all.
    most_bytes: u64,
    /// Whom to ask whether to stop: planning alone calls functions as often as the text does.
    job: Job,
}

impl Bounds {
    /// For a query of `job` with so much memory.
    pub fn new(job: &Job, memory_bytes: u64) -> Bounds {
        let growth_bytes = (memory_bytes / 8).max(1 << 20);
        Bounds { growth_bytes, most_bytes: memory_bytes.max(growth_bytes), job: job.clone() }
    }

    /// The memory of the query.
    pub fn memory_bytes(&self) -> u64 {
        self.most_bytes
    }

    /// The library's function, within these bounds where it needs some.
    pub fn bound(&self, library: &Arc<ScalarUDF>) -> Option<ScalarUDF> {
        let growth = Growth::of(library.name())?;
        if library.inner().is::<Bounded>() {
            return None;
        }
        Some(ScalarUDF::from(Bounded { library: library.clone(), growth, bounds: self.clone() }))
    }

    fn bound_always(&self, library: &Arc<ScalarUDF>) -> Arc<ScalarUDF> {
        self.bound(library).map_or_else(|| library.clone(), Arc::new)
    }

    /// An expression with all its functions within these bounds.
    fn bound_all(&self, expression: Expr) -> Result<Transformed<Expr>> {
        expression.transform_up(|part| {
            Ok(match part {
                Expr::ScalarFunction(mut call) => {
                    call.func = match call.func.inner().downcast_ref::<Bounded>() {
                        // The library knows its own by their kind. Their types are checked by now.
                        Some(bounded) if bounded.growth == Growth::Struct => bounded.library.clone(),
                        None if Growth::of(call.func.name()) != Some(Growth::Struct) => {
                            self.bound_always(&call.func)
                        }
                        _ => call.func,
                    };
                    Transformed::yes(Expr::ScalarFunction(call))
                }
                other => match Form::of(&other) {
                    Some(form) => {
                        let sides = form.sides(other);
                        Transformed::yes(ScalarUDF::from(Sign::new(form, self.clone())).call(sides))
                    }
                    None => Transformed::no(other),
                },
            })
        })
    }

    /// A plan with all its functions within these bounds: also those that the library puts in for signs, `[1, 2]` and `a || b`.
    ///
    /// # Errors
    /// What keeps an expression from being rewritten.
    pub fn bound_plan(&self, plan: LogicalPlan) -> Result<LogicalPlan> {
        let bound = |node: LogicalPlan| node.map_expressions(|expression| self.bound_all(expression));
        Ok(plan.transform_up_with_subqueries(bound)?.data)
    }

    /// What the result of a function may have.
    fn allowed(&self, args: &[ColumnarValue]) -> u64 {
        let bytes = |value: &ColumnarValue| match value {
            ColumnarValue::Array(array) => array_bytes(array),
            // A constant is there once, and not for each row.
            ColumnarValue::Scalar(_) => 0,
        };
        let largest = args.iter().map(bytes).max().unwrap_or(0);
        self.growth_bytes.saturating_add(largest).min(self.most_bytes)
    }

    /// Refuses a call that takes too much, or gives what may be done in pieces.
    fn check(
        &self,
        name: &str,
        growth: Growth,
        args: &[ColumnarValue],
        rows: usize,
    ) -> Result<Option<InPieces>> {
        self.job.check_cancelled().map_err(Error::from)?;
        let Cost { bytes, is_at_most, steps, once } =
            growth.cost(args, rows, &|| Ok(self.job.check_cancelled().map_err(Error::from)?))?;
        if let Some(steps) = (0..rows).map(|row| steps.at(row)).find(|steps| *steps > STEPS_MAX) {
            let what = format!("{name} would take {steps} steps, and {STEPS_MAX} are allowed at once");
            return Err(Error::Query(what).into());
        }
        let in_rows = |value: &ColumnarValue| match value {
            ColumnarValue::Array(_) => 0,
            ColumnarValue::Scalar(constant) => constant_bytes(constant).saturating_mul(rows as u64),
        };
        let constants = args.iter().map(in_rows).fold(0, u64::saturating_add);
        if rows > 1 && constants > self.most_bytes && growth.writes_out(args) {
            return Err(too_much(name, constants, self.most_bytes));
        }
        let all_once = once.iter().flat_map(|once| &once.bytes).copied().fold(0, u64::saturating_add);
        let (total, is_long) = (bytes.total(rows).saturating_add(all_once), steps.total(rows) > PIECE_STEPS);
        if total <= self.growth_bytes && !is_long {
            return Ok(None);
        }
        let allowed = self.allowed(args);
        match total <= allowed {
            true if !is_long => Ok(None),
            false if !is_at_most || rows <= 1 => Err(too_much(name, total, allowed)),
            _ => Ok(Some(InPieces { bytes, steps, once, allowed, job: self.job.clone() })),
        }
    }
}

fn too_much(name: &str, bytes: u64, allowed: u64) -> DataFusionError {
    let (bytes, allowed) = (format_bytes(bytes), format_bytes(allowed));
    Error::Memory(format!("{name} would make {bytes} at once, and {allowed} are allowed")).into()
}

/// Rows that are done one piece after the other.
struct InPieces {
    /// What each row has at most.
    bytes: Each<u64>,
    steps: Each<u64>,
    once: Option<Once>,
    allowed: u64,
    job: Job,
}

impl InPieces {
    fn call(
        &self,
        name: &str,
        args: &ScalarFunctionArgs,
        function: impl Fn(ScalarFunctionArgs) -> Result<ColumnarValue>,
    ) -> Result<ColumnarValue> {
        let (rows, mut from, mut held_bytes) = (rows_of(args), 0, 0);
        let mut pieces: Vec<ArrayRef> = Vec::new();
        while from < rows {
            self.job.check_cancelled().map_err(Error::from)?;
            let (mut to, mut piece_bytes, mut piece_steps) = (from, 0u64, 0u64);
            let (mut taken, mut needed) = (HashSet::new(), 0);
            while to < rows {
                let once = self.once.as_ref().map(|once| (once.of_row[to], once));
                let once = once.filter(|(number, _)| !taken.contains(number));
                let more =
                    once.and_then(|(number, once)| once.bytes.get(number as usize)).copied().unwrap_or(0);
                let more = self.bytes.at(to).saturating_add(more);
                needed = piece_bytes.saturating_add(more);
                if needed > self.allowed {
                    break;
                }
                piece_bytes = needed;
                taken.extend(once.map(|(number, _)| number));
                piece_steps = piece_steps.saturating_add(self.steps.at(to));
                if to > from && piece_steps > PIECE_STEPS {
                    break;
                }
                to += 1;
            }
            if to == from {
                return Err(too_much(name, needed, self.allowed));
            }
            let part = |value: &ColumnarValue| match value {
                ColumnarValue::Array(array) => ColumnarValue::Array(array.slice(from, to - from)),
                scalar => scalar.clone(),
            };
            let args = ScalarFunctionArgs {
                args: args.args.iter().map(part).collect(),
                number_rows: to - from,
                ..args.clone()
            };
            let piece = function(args)?.into_array(to - from)?;
            held_bytes += array_bytes(&piece);
            if held_bytes > self.allowed {
                return Err(too_much(name, held_bytes, self.allowed));
            }
            pieces.push(piece);
            from = to;
        }
        let pieces: Vec<&dyn Array> = pieces.iter().map(AsRef::as_ref).collect();
        Ok(ColumnarValue::Array(concat(&pieces)?))
    }
}

/// The rows that a call is for: constants alone give one.
fn rows_of(args: &ScalarFunctionArgs) -> usize {
    match args.args.iter().any(|value| matches!(value, ColumnarValue::Array(_))) {
        true => args.number_rows,
        false => args.number_rows.min(1),
    }
}

/// Whether a function looks after its arguments itself.
pub(crate) fn is_bounded(function: &ScalarUDF) -> bool {
    function.inner().is::<Bounded>() || function.inner().is::<Sign>()
}

/// Puts bounded functions in for signs that make types of types: `{'a': 1}`, `(1, 2)` and `MAP {1: 2}`. Types are looked through
/// as often as they are named, while the text is still read.
#[derive(Debug)]
pub(crate) struct Literals(pub Bounds);

impl ExprPlanner for Literals {
    fn plan_dictionary_literal(
        &self,
        expression: RawDictionaryExpr,
        _: &DFSchema,
    ) -> Result<PlannerResult<RawDictionaryExpr>> {
        let args = expression.keys.into_iter().zip(expression.values).flat_map(|(key, value)| [key, value]);
        Ok(PlannerResult::Planned(self.0.bound_always(&named_struct()).call(args.collect())))
    }

    fn plan_struct_literal(&self, args: Vec<Expr>, is_named: bool) -> Result<PlannerResult<Vec<Expr>>> {
        let library = if is_named { named_struct() } else { r#struct() };
        Ok(PlannerResult::Planned(self.0.bound_always(&library).call(args)))
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
        Ok(PlannerResult::Planned(self.0.bound_always(&map_udf()).call(entries)))
    }
}

/// A function of the library within bounds; see the module.
#[derive(Debug)]
struct Bounded {
    library: Arc<ScalarUDF>,
    growth: Growth,
    bounds: Bounds,
}

// All those of a query are within the same bounds.
impl PartialEq for Bounded {
    fn eq(&self, other: &Bounded) -> bool {
        self.library == other.library
    }
}

impl Eq for Bounded {}

impl Hash for Bounded {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.library.hash(hasher);
    }
}

impl Bounded {
    fn library(&self) -> &dyn ScalarUDFImpl {
        self.library.inner().as_ref()
    }
}

// It stands for another: whatever the library may ask of one has to be said.
#[warn(clippy::missing_trait_methods)]
impl ScalarUDFImpl for Bounded {
    fn invoke_with_args(&self, mut args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = rows_of(&args);
        // Padding gives as many rows as there are, whatever it is asked.
        if args.args.iter().all(|value| matches!(value, ColumnarValue::Scalar(_))) {
            args.number_rows = rows;
        }
        // The library reserves 2^64 bytes for a column that has a length below 0.
        if self.growth == Growth::Pad
            && let Some(ColumnarValue::Array(lengths)) = args.args.get_mut(1)
            && let Some(numbers) = lengths.as_primitive_opt::<Int64Type>()
        {
            *lengths = Arc::new(numbers.unary::<_, Int64Type>(|length| length.max(0)));
        }
        match self.bounds.check(self.name(), self.growth, &args.args, rows)? {
            None => self.library.invoke_with_args(args),
            Some(pieces) => pieces.call(self.name(), &args, |args| self.library.invoke_with_args(args)),
        }
    }

    /// The library puts constants together here too.
    fn simplify(&self, args: Vec<Expr>, info: &SimplifyContext) -> Result<ExprSimplifyResult> {
        let constant = |part: &Expr| match part {
            Expr::Literal(value, _) => Some(ColumnarValue::Scalar(value.clone())),
            _ => None,
        };
        if matches!(self.growth, Growth::Texts | Growth::TextsWith) {
            let constants: Vec<ColumnarValue> = args.iter().filter_map(constant).collect();
            self.bounds.check(self.name(), self.growth, &constants, 1)?;
        }
        Ok(match self.library().simplify(args, info)? {
            ExprSimplifyResult::Simplified(simpler) => {
                ExprSimplifyResult::Simplified(self.bounds.bound_all(simpler)?.data)
            }
            original => original,
        })
    }

    fn with_updated_config(&self, config: &ConfigOptions) -> Option<ScalarUDF> {
        let library = Arc::new(self.library().with_updated_config(config)?);
        self.bounds.bound(&library)
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
        check_type(field.data_type(), self.bounds.most_bytes)?;
        if self.growth == Growth::Cast {
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
        if self.growth == Growth::Truncated && !inputs.get(1).is_some_and(has_no_zone) {
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

/// A sign that is a function here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Form {
    /// ||, or one of those that compare with a pattern: ~, ~~.
    Operator(Operator),
    Like {
        negated: bool,
        ignores_case: bool,
    },
    SimilarTo {
        negated: bool,
        ignores_case: bool,
    },
}

impl Form {
    /// Of an expression that is to be one; `None` where the library may do it.
    fn of(expression: &Expr) -> Option<Form> {
        let (form, pattern) = match expression {
            Expr::BinaryExpr(BinaryExpr { op, right, .. }) => (Form::Operator(*op), right),
            Expr::Like(Like {
                negated, pattern, escape_char: None | Some('\\'), case_insensitive, ..
            }) => (Form::Like { negated: *negated, ignores_case: *case_insensitive }, pattern),
            Expr::SimilarTo(Like { negated, pattern, escape_char: None, case_insensitive, .. }) => {
                (Form::SimilarTo { negated: *negated, ignores_case: *case_insensitive }, pattern)
            }
            _ => return None,
        };
        let is_needed = match form.growth()? {
            Growth::Pattern(language) => !language.is_small(pattern),
            _ => true,
        };
        is_needed.then_some(form)
    }

    /// What stands left and right of it.
    fn sides(self, expression: Expr) -> Vec<Expr> {
        match expression {
            Expr::BinaryExpr(BinaryExpr { left, right, .. }) => vec![*left, *right],
            Expr::Like(like) | Expr::SimilarTo(like) => vec![*like.expr, *like.pattern],
            other => unreachable!("{other} was none"),
        }
    }

    fn operator(self) -> Operator {
        match self {
            Form::Operator(operator) => operator,
            Form::Like { negated: false, ignores_case: false } => Operator::LikeMatch,
            Form::Like { negated: false, ignores_case: true } => Operator::ILikeMatch,
            Form::Like { negated: true, ignores_case: false } => Operator::NotLikeMatch,
            Form::Like { negated: true, ignores_case: true } => Operator::NotILikeMatch,
            Form::SimilarTo { negated: false, ignores_case: false } => Operator::RegexMatch,
            Form::SimilarTo { negated: false, ignores_case: true } => Operator::RegexIMatch,
            Form::SimilarTo { negated: true, ignores_case: false } => Operator::RegexNotMatch,
            Form::SimilarTo { negated: true, ignores_case: true } => Operator::RegexNotIMatch,
        }
    }

    fn growth(self) -> Option<Growth> {
        use Operator::*;
        match self.operator() {
            StringConcat => Some(Growth::Texts),
            LikeMatch | ILikeMatch | NotLikeMatch | NotILikeMatch => Some(Growth::Pattern(Language::Like)),
            RegexMatch | RegexIMatch | RegexNotMatch | RegexNotIMatch => {
                Some(Growth::Pattern(Language::Regexp))
            }
            _ => None,
        }
    }
}

/// A [`Form`], by the library's own, within bounds.
#[derive(Debug)]
struct Sign {
    form: Form,
    growth: Growth,
    signature: Signature,
    bounds: Bounds,
}

impl PartialEq for Sign {
    fn eq(&self, other: &Sign) -> bool {
        self.form == other.form
    }
}

impl Eq for Sign {}

impl Hash for Sign {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.form.hash(state);
    }
}

impl Sign {
    fn new(form: Form, bounds: Bounds) -> Sign {
        let growth = form.growth().expect("it is a form of those");
        Sign { form, growth, signature: Signature::user_defined(Volatility::Immutable), bounds }
    }

    fn evaluate(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = rows_of(&args);
        let (mut fields, mut columns, mut sides) = (Vec::new(), Vec::new(), Vec::new());
        for value in args.args {
            let side: Arc<dyn PhysicalExpr> = match value {
                ColumnarValue::Scalar(scalar) => Arc::new(Literal::new(scalar)),
                ColumnarValue::Array(array) => {
                    let column = Column::new("", columns.len());
                    fields.push(Field::new("", array.data_type().clone(), true));
                    columns.push(array);
                    Arc::new(column)
                }
            };
            sides.push(side);
        }
        let [left, right] = <[_; 2]>::try_from(sides).map_err(|sides| self.two_expected(sides.len()))?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch = RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), columns, &options)?;
        Computed::new(left, self.form.operator(), right).evaluate(&batch)
    }

    fn coercer<R>(&self, kinds: &[DataType], of: impl Fn(BinaryTypeCoercer<'_>) -> Result<R>) -> Result<R> {
        let [left, right] = kinds else { return Err(self.two_expected(kinds.len())) };
        of(BinaryTypeCoercer::new(left, &self.form.operator(), right))
    }

    fn two_expected(&self, found: usize) -> DataFusionError {
        DataFusionError::Plan(format!("{} is between two values, got {found}", self.name()))
    }
}

impl ScalarUDFImpl for Sign {
    fn name(&self) -> &str {
        match self.form.operator() {
            Operator::StringConcat => "||",
            Operator::LikeMatch => "LIKE",
            Operator::ILikeMatch => "ILIKE",
            Operator::NotLikeMatch => "NOT LIKE",
            Operator::NotILikeMatch => "NOT ILIKE",
            Operator::RegexMatch => "~",
            Operator::RegexIMatch => "~*",
            Operator::RegexNotMatch => "!~",
            _ => "!~*",
        }
    }

    /// Columns are called as where it is an operator.
    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        let [left, right] = args else { return Err(self.two_expected(args.len())) };
        let sign = match self.form {
            Form::Operator(operator) => operator.to_string(),
            Form::Like { .. } => self.name().to_string(),
            Form::SimilarTo { negated: false, .. } => "SIMILAR TO".to_string(),
            Form::SimilarTo { negated: true, .. } => "NOT SIMILAR TO".to_string(),
        };
        Ok(format!("{} {sign} {}", left.schema_name(), right.schema_name()))
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, kinds: &[DataType]) -> Result<Vec<DataType>> {
        let (left, right) = self.coercer(kinds, |coercer| coercer.get_input_types())?;
        Ok(vec![left, right])
    }

    fn return_type(&self, kinds: &[DataType]) -> Result<DataType> {
        self.coercer(kinds, |coercer| coercer.get_result_type())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs<'_>) -> Result<FieldRef> {
        let kinds: Vec<DataType> = args.arg_fields.iter().map(|field| field.data_type().clone()).collect();
        let is_nullable = args.arg_fields.iter().any(|field| field.is_nullable());
        Ok(Arc::new(Field::new(self.name(), self.return_type(&kinds)?, is_nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        match self.bounds.check(self.name(), self.growth, &args.args, rows_of(&args))? {
            None => self.evaluate(args),
            Some(pieces) => pieces.call(self.name(), &args, |args| self.evaluate(args)),
        }
    }
}
