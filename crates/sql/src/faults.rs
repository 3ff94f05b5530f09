//! Questions that the query library answers wrongly (DataFusion 55.2): asked in another way, or refused.
//!
//! ```text
//!   x IN (1, NULL)                           sets of lists are united and cut as if NULL were a value: (x IN (1)) OR NULL
//!   EXISTS (SELECT count(*) ...)             one row whatever it counts: true, not the rows that there are
//!   x IN (SELECT count(*) ... WHERE outer)   one row: x = (SELECT count(*) ...)
//!   1 NOT IN (SELECT ...), and correlated    a null among the rows is lost: refused
//!   EXCEPT ALL, INTERSECT ALL                all copies of a row go or stay: refused
//!   (x IN (SELECT ...)) IS NULL, NOT IN under OR   a null among the rows is lost in all places but conditions of WHERE that stand
//!                                            alone or under AND and OR: x = ANY (SELECT ...)
//!   x > ANY (SELECT x FROM t)                x is taken for that of the subquery: its column gets a name of its own
//!   ORDER BY date_trunc(zoned time)          taken to be in the order of its argument: no order is known of it (mended.rs)
//!   FROM t                                   no columns: SELECT * FROM t
//!   SELECT a, a                              an error: SELECT a, a AS a_1 (names.rs)
//!   price = 432863.16                        compared by 15 digits behind the point (literals.rs)
//!   9223372036854775807 + 1                  wraps: an error (checked.rs)
//!   NULLIF(1, 2.5)                           a fraction: of the type of 1 (nullif.rs)
//! ```

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

use crate::{
    Error,
    literals::{keep_digits, with_numbers},
    names::rename_repeats,
};

fn refused(what: &str, instead: &str) -> DataFusionError {
    Error::Query(format!("{what} is refused, since DataFusion 55.2 answers it wrongly: {instead}")).into()
}

/// Asks a statement so that the library understands it.
///
/// # Errors
/// [`Error::Query`] for EXCEPT ALL and INTERSECT ALL.
pub(crate) fn mend_statement(statement: &mut Statement) -> Result<()> {
    let asked = match statement {
        Statement::Statement(asked) => asked,
        Statement::Explain(explain) => return mend_statement(&mut explain.statement),
        _ => return Ok(()),
    };
    match VisitMut::visit(asked.as_mut(), &mut Mend) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

struct Mend;

impl VisitorMut for Mend {
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

/// Asks a plan so that the library answers it rightly, before it is optimized.
///
/// # Errors
/// [`Error::Query`] for `NOT IN` of a constant, or over a subquery that names columns from outside of it.
pub(crate) fn mend_plan(plan: LogicalPlan) -> Result<LogicalPlan> {
    let mended = plan.transform_up_with_subqueries(|node| {
        let names = NamePreserver::new(&node);
        let schema = merge_schema(&node.inputs());
        let mended = node.map_expressions(|expr| {
            let name = names.save(&expr);
            let mended = with_numbers(expr, &schema)?.transform_data(|expr| expr.transform_up(mend_expr))?;
            Ok(mended.update_data(|expr| name.restore(expr)))
        })?;
        mended.map_data(|node| match node {
            LogicalPlan::Filter(mut filter) => {
                let schema = filter.input.schema().clone();
                filter.predicate = mend_condition(filter.predicate, Place::Top, &schema)?;
                Ok(LogicalPlan::Filter(filter))
            }
            other => other.recompute_schema(),
        })
    })?;
    Ok(mended.data)
}

/// Refuses what is left of subqueries that name columns from outside of them, once a plan is optimized: the library makes joins of
/// the others, and runs none as they are.
///
/// # Errors
/// [`Error::Query`] with what the subquery computes, and the columns from outside of it.
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

/// A column from outside, as people call it.
fn outer_name(expr: &Expr) -> String {
    match expr {
        Expr::OuterReferenceColumn(_, column) => column.flat_name(),
        other => other.to_string(),
    }
}

fn mend_expr(expr: Expr) -> Result<Transformed<Expr>> {
    match expr {
        Expr::InList(list) => Ok(mend_list(list)),
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

/// Where in the condition of a WHERE an expression stands.
#[derive(Clone, Copy)]
enum Place {
    /// Alone, or under AND: false and unknown are the same, and NOT IN looks at nulls.
    Top,
    /// Under AND and OR: false and unknown are the same.
    Under,
}

/// Asks for `x = ANY (...)` where the library would take an unknown `x IN (...)` for false, and that matters.
fn mend_condition(expr: Expr, place: Place, schema: &DFSchema) -> Result<Expr> {
    let is_in = |expr: &Expr| matches!(expr, Expr::InSubquery(InSubquery { negated: false, .. }));
    match (expr, place) {
        (Expr::BinaryExpr(BinaryExpr { left, op: op @ (Operator::And | Operator::Or), right }), _) => {
            let place = if op == Operator::And { place } else { Place::Under };
            let left = Box::new(mend_condition(*left, place, schema)?);
            let right = Box::new(mend_condition(*right, place, schema)?);
            Ok(Expr::BinaryExpr(BinaryExpr { left, op, right }))
        }
        (expr, _) if is_in(&expr) => Ok(expr),
        (expr @ Expr::InSubquery(_), Place::Top) => Ok(expr),
        (Expr::Not(inner), Place::Top) if is_in(&inner) => Ok(Expr::Not(inner)),
        (expr, _) => {
            let mended = expr.transform_up(|part| {
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
            Ok(mended.data)
        }
    }
}

/// A subquery whose column is not called as one around it.
fn with_own_name(subquery: Subquery) -> Result<Subquery> {
    let column = Column::from(subquery.subquery.schema().qualified_field(0));
    let rows = LogicalPlanBuilder::from(subquery.subquery.as_ref().clone())
        .project([Expr::Column(column).alias("__any")])?
        .alias("__any_rows")?
        .build()?;
    Ok(Subquery { subquery: Arc::new(rows), ..subquery })
}

/// Takes the nulls out of a list: a value that is not among the others is unknown then.
fn mend_list(mut list: InList) -> Transformed<Expr> {
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

/// True for a plan that always gives exactly one row: an aggregate without GROUP BY and HAVING.
fn has_one_row(plan: &LogicalPlan) -> bool {
    match plan {
        LogicalPlan::Projection(projection) => has_one_row(&projection.input),
        LogicalPlan::SubqueryAlias(alias) => has_one_row(&alias.input),
        LogicalPlan::Aggregate(aggregate) => aggregate.group_expr.is_empty(),
        _ => false,
    }
}
