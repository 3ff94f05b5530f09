//! Corrections for queries for which DataFusion 55.2 returns wrong results. Each such query is rewritten or refused.
//!
//! ```text
//!   query                                    fault in DataFusion                            correction
//!   x IN (1, NULL)                           NULL is treated as a value if lists combine    (x IN (1)) OR NULL
//!   EXISTS (SELECT count(*) ...)             false if no rows are counted                   true
//!   x IN (SELECT count(*) ... WHERE outer)   false if no rows are counted                   x = (SELECT count(*) ...)
//!   1 NOT IN (SELECT ...), and correlated    a null in the subquery's rows is ignored       refused
//!   EXCEPT ALL, INTERSECT ALL                copies of a row are not counted                refused
//!   (x IN (SELECT ...)) IS NULL,             a null in the rows is ignored, except in       x = ANY (SELECT ...)
//!     NOT IN under OR                        WHERE directly, or under AND and OR
//!   x > ANY (SELECT x FROM t)                both x denote the subquery's column            rename the subquery's x
//!   ORDER BY date_trunc(zoned time)          assumed to be sorted as its argument is        no known order
//!   FROM t                                   the result has no columns                      SELECT * FROM t
//!   SELECT a, a                              the query fails                                SELECT a, a AS a_1
//!   price = 432863.16                        compares 15 digits after the decimal point     exact comparison
//!   9223372036854775807 + 1                  the sum wraps around                           the query fails
//!   NULLIF(1, 2.5)                           the result is a floating-point number          the type of 1
//! ```
//!
//! Other modules implement some of these corrections: `scalar_functions.rs` (date_trunc), `column_names.rs` (repeated
//! columns), `literals.rs` (decimal literals), `overflow.rs` (sums) and `nullif.rs`.

use std::{ops::ControlFlow, sync::Arc};

use datafusion::{
    common::{
        Column, DFSchema,
        tree_node::{Transformed, TreeNode, TreeNodeRecursion},
    },
    error::{DataFusionError, Result},
    logical_expr::{
        BinaryExpr, Expr, ExprSchemable, LogicalPlan, LogicalPlanBuilder, Operator, Subquery,
        expr::{Exists, InList, InSubquery, SetComparison, SetQuantifier},
        expr_rewriter::NamePreserver,
        lit,
        utils::merge_schema,
    },
    scalar::ScalarValue,
    sql::{
        parser::Statement,
        sqlparser::ast::{
            Expr as AskedExpr, Query, Select, SelectFlavor, SelectItem, SetExpr, SetOperator,
            SetQuantifier as Copies, VisitMut, VisitorMut, WildcardAdditionalOptions,
        },
    },
};

use super::{
    column_names::rename_repeats,
    literals::{keep_digits, with_numbers},
};
use crate::Error;

fn refused(what: &str, instead: &str) -> DataFusionError {
    Error::Query(format!("{what} is refused, since DataFusion 55.2 answers it wrongly: {instead}")).into()
}

/// Rewrites a statement that DataFusion would interpret incorrectly.
///
/// # Errors
/// Returns [`Error::Query`] for EXCEPT ALL and INTERSECT ALL.
pub(crate) fn correct_statement(statement: &mut Statement) -> Result<()> {
    let asked = match statement {
        Statement::Statement(asked) => asked,
        Statement::Explain(explain) => return correct_statement(&mut explain.statement),
        _ => return Ok(()),
    };
    match VisitMut::visit(asked.as_mut(), &mut CorrectionVisitor) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct CorrectionVisitor;

impl VisitorMut for CorrectionVisitor {
    type Break = DataFusionError;

    fn pre_visit_query(&mut self, query: &mut Query) -> ControlFlow<DataFusionError> {
        let mut open = vec![&*query.body];
        while let Some(set) = open.pop() {
            let SetExpr::SetOperation { op, set_quantifier, left, right } = set else { continue };
            if *set_quantifier == Copies::All && *op != SetOperator::Union {
                let what = format!("{op} ALL");
                return ControlFlow::Break(refused(&what, "group both sides with count(*), and join them"));
            }
            open.extend([&**left, &**right]);
        }
        ControlFlow::Continue(())
    }

    fn pre_visit_expr(&mut self, expr: &mut AskedExpr) -> ControlFlow<DataFusionError> {
        keep_digits(expr);
        ControlFlow::Continue(())
    }

    fn pre_visit_select(&mut self, select: &mut Select) -> ControlFlow<DataFusionError> {
        if select.flavor == SelectFlavor::FromFirstNoSelect {
            select.flavor = SelectFlavor::Standard;
            select.projection = vec![SelectItem::Wildcard(WildcardAdditionalOptions::default())];
        }
        rename_repeats(&mut select.projection);
        ControlFlow::Continue(())
    }
}

/// Rewrites a plan for which DataFusion would return wrong results. The plan must not be optimized yet.
///
/// # Errors
/// Returns [`Error::Query`] for `NOT IN` of a constant or over a correlated subquery.
pub(crate) fn correct_plan(plan: LogicalPlan) -> Result<LogicalPlan> {
    let corrected = plan.transform_up_with_subqueries(|node| {
        let names = NamePreserver::new(&node);
        let schema = merge_schema(&node.inputs());
        let corrected = node.map_expressions(|expr| {
            let name = names.save(&expr);
            let corrected =
                with_numbers(expr, &schema)?.transform_data(|expr| expr.transform_up(correct_expr))?;
            Ok(corrected.update_data(|expr| name.restore(expr)))
        })?;
        corrected.map_data(|node| match node {
            LogicalPlan::Filter(mut filter) => {
                let schema = filter.input.schema().clone();
                filter.predicate = correct_condition(filter.predicate, ConditionPlace::Top, &schema)?;
                Ok(LogicalPlan::Filter(filter))
            }
            other => other.recompute_schema(),
        })
    })?;
    Ok(corrected.data)
}

/// Refuses correlated subqueries that remain after optimization. DataFusion cannot run them, and rewrites all others
/// to joins.
///
/// # Errors
/// Returns [`Error::Query`], whose message contains the subquery's result column and the outer columns.
pub(crate) fn check_subqueries(plan: &LogicalPlan) -> Result<()> {
    plan.apply_with_subqueries(|node| {
        node.apply_expressions(|expr| {
            expr.apply(|part| {
                let (form, subquery, instead) = match part {
                    Expr::ScalarSubquery(subquery) => {
                        ("(SELECT ...)", subquery, "a join of both tables, and GROUP BY")
                    }
                    Expr::InSubquery(within) => ("IN (SELECT ...)", &within.subquery, "a join of both tables"),
                    Expr::Exists(exists) => ("EXISTS (SELECT ...)", &exists.subquery, "a join of both tables"),
                    Expr::SetComparison(some) => ("ANY or ALL (SELECT ...)", &some.subquery, "a join of both tables"),
                    _ => return Ok(TreeNodeRecursion::Continue),
                };
                if !is_correlated(subquery) {
                    return Ok(TreeNodeRecursion::Continue);
                }
                let columns: Vec<String> = subquery.outer_ref_columns.iter().map(outer_name).collect();
                let what = subquery.subquery.schema().field(0).name();
                Err(Error::Query(format!(
                    "the subquery {form} of {what} names {} from outside of it in a way that DataFusion 55.2 cannot run: it runs such \
                     subqueries where WHERE compares these columns by = alone, without LIMIT; write {instead}",
                    columns.join(", ")
                ))
                .into())
            })
        })
    })?;
    Ok(())
}

/// Formats the name of a column of an outer query.
fn outer_name(expr: &Expr) -> String {
    match expr {
        Expr::OuterReferenceColumn(_, column) => column.flat_name(),
        other => other.to_string(),
    }
}

fn correct_expr(expr: Expr) -> Result<Transformed<Expr>> {
    match expr {
        Expr::InList(list) => Ok(correct_list(list)),
        Expr::Exists(Exists { subquery, negated }) if has_one_row(&subquery.subquery) => {
            Ok(Transformed::yes(lit(!negated)))
        }
        Expr::InSubquery(InSubquery { expr, subquery, negated })
            if is_correlated(&subquery) && has_one_row(&subquery.subquery) =>
        {
            let value = Expr::ScalarSubquery(subquery);
            Ok(Transformed::yes(if negated { (*expr).not_eq(value) } else { (*expr).eq(value) }))
        }
        Expr::InSubquery(InSubquery { expr, subquery, negated: true })
            if expr.column_refs().is_empty() || is_correlated(&subquery) =>
        {
            let what = if is_correlated(&subquery) {
                "NOT IN over a subquery that names columns from outside of it"
            } else {
                "NOT IN of a constant and a subquery"
            };
            Err(refused(what, "write NOT EXISTS (SELECT ... WHERE column = value OR column IS NULL)"))
        }
        Expr::SetComparison(mut comparison) if !is_correlated(&comparison.subquery) => {
            comparison.subquery = with_own_name(comparison.subquery)?;
            Ok(Transformed::yes(Expr::SetComparison(comparison)))
        }
        other => Ok(Transformed::no(other)),
    }
}

/// The position of an expression in a WHERE condition.
#[derive(Clone, Copy)]
enum ConditionPlace {
    /// The expression is the whole condition, or is below only ANDs. False and unknown have the same effect.
    /// DataFusion treats nulls in NOT IN correctly at this position.
    Top,
    /// The expression is below at least one OR, and otherwise only below AND and OR. False and unknown have the same
    /// effect.
    Under,
}

/// Rewrites `x IN (...)` to `x = ANY (...)` if DataFusion would treat an unknown result as false, and that would
/// change the result of the query.
fn correct_condition(expr: Expr, place: ConditionPlace, schema: &DFSchema) -> Result<Expr> {
    let is_in = |expr: &Expr| matches!(expr, Expr::InSubquery(InSubquery { negated: false, .. }));
    match (expr, place) {
        (Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }), _) => {
            let place = if op == Operator::And { place } else { ConditionPlace::Under };
            let left = Box::new(correct_condition(*left, place, schema)?);
            let right = Box::new(correct_condition(*right, place, schema)?);
            Ok(Expr::BinaryExpr(BinaryExpr { left, op, right }))
        }
        (expr, _) if is_in(&expr) => Ok(expr),
        (expr @ Expr::InSubquery(_), ConditionPlace::Top) => Ok(expr),
        (Expr::Not(inner), ConditionPlace::Top) if is_in(&inner) => Ok(Expr::Not(inner)),
        (expr, _) => {
            let corrected = expr.transform_up(|part| {
                let Expr::InSubquery(InSubquery { expr, subquery, negated }) = part else {
                    return Ok(Transformed::no(part));
                };
                if !expr.nullable(schema)? && !subquery.subquery.schema().field(0).is_nullable() {
                    return Ok(Transformed::no(Expr::InSubquery(InSubquery { expr, subquery, negated })));
                }
                if is_correlated(&subquery) {
                    let what = "IN over a subquery that names columns from outside of it, under more than AND and OR,";
                    return Err(refused(what, "write EXISTS (SELECT ... WHERE column = value)"));
                }
                let (subquery, op) = (with_own_name(subquery)?, Operator::Eq);
                let any =
                    Expr::SetComparison(SetComparison { expr, subquery, op, quantifier: SetQuantifier::Any });
                Ok(Transformed::yes(if negated { Expr::Not(Box::new(any)) } else { any }))
            })?;
            Ok(corrected.data)
        }
    }
}

/// Renames a subquery's result column, so that no outer column has the same name.
fn with_own_name(subquery: Subquery) -> Result<Subquery> {
    let column = Column::from(subquery.subquery.schema().qualified_field(0));
    let rows = LogicalPlanBuilder::from(subquery.subquery.as_ref().clone())
        .project([Expr::Column(column).alias("__any")])?
        .alias("__any_rows")?
        .build()?;
    Ok(Subquery { subquery: Arc::new(rows), ..subquery })
}

/// Removes the nulls from the list of an IN. If the list had a null, the result is unknown for a value that equals no
/// element.
fn correct_list(mut list: InList) -> Transformed<Expr> {
    let all = list.list.len();
    list.list.retain(|value| !is_null(value));
    if list.list.len() == all {
        return Transformed::no(Expr::InList(list));
    }
    let unknown = lit(ScalarValue::Boolean(None));
    if list.list.is_empty() {
        return Transformed::yes(unknown);
    }
    let negated = list.negated;
    let known = Expr::InList(list);
    Transformed::yes(if negated { known.and(unknown) } else { known.or(unknown) })
}

fn is_null(value: &Expr) -> bool {
    match value {
        Expr::Literal(value, _) => value.is_null(),
        Expr::Cast(cast) => is_null(&cast.expr),
        _ => false,
    }
}

fn is_correlated(subquery: &Subquery) -> bool {
    !subquery.outer_ref_columns.is_empty()
}

/// Returns whether a plan always returns exactly one row, as an aggregate without GROUP BY and HAVING does.
fn has_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => has_one_row(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => has_one_row(&alias.input),
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        _ => false,
    }
}
