//! Refuses queries whose plan would take too long to traverse.
//!
//! A short text can describe an enormous plan. For example, forty WITH clauses that each use the previous clause
//! twice expand to 2^40 nodes. DataFusion stores each node once, but each planner rule visits all 2^40 nodes and
//! cannot be interrupted. The size is therefore checked twice:
//!
//! - [`check_statement`] counts the nodes of the parse tree before planning, since planning expands subqueries.
//! - [`check_plan`] counts the nodes of the plan before optimization, and stops at the limit. This function also
//!   finds parts that would grow later. Filters grow when they are pushed below the expressions that they refer to.
//!   Other such parts are deeply nested types, and types in which each value is large.

use std::{collections::HashMap, ops::ControlFlow, sync::Arc};

use arrow::datatypes::DataType;
use datafusion::{
    common::{
        Column, DFSchema, ScalarValue,
        tree_node::{TreeNode, TreeNodeRecursion, TreeNodeVisitor},
    },
    error::{DataFusionError, Result},
    logical_expr::{Cast, Distinct, Expr, GroupingSet, Join, JoinType, LogicalPlan, TryCast},
    sql::{
        parser::Statement,
        sqlparser::ast::{
            Expr as Asked, Ident, ObjectName, Query, Select, SelectItem, SetExpr, Visit, Visitor,
        },
    },
};
use inshore_store::format_bytes;

use crate::{BATCH_ROWS, Error};

/// The maximum number of nodes of a plan. Planning this many nodes takes about a second and cannot be interrupted
/// (6,000 nodes took 0.8 s in a debug build).
pub(crate) const NODES_MAX: usize = 10_000;
/// The maximum depth of nested expressions in a query text. Planning time grows with the third power of the depth,
/// and the stack grows linearly.
const DEPTH_MAX: usize = 1000;
/// The maximum number of expressions of a query, after all WITH clauses are expanded.
const PARTS_MAX: usize = 200_000;
/// The maximum number of joins of a plan. Planning 128 joins takes some seconds, and twice as many joins take eight
/// times as long.
const JOINS_MAX: usize = 128;
/// The maximum number of grouping sets of an aggregate.
const SETS_MAX: usize = 256;
/// The maximum number of expressions of a column, if the columns that it is computed from are replaced by their
/// expressions. The limit also applies to the number of expressions by which all filters together grow when they are
/// pushed down.
const MORE_PARTS_MAX: u64 = 100_000;
/// The limits of a nested type: the number of types in it, their depth, and the total bytes of field names.
const TYPES_MAX: usize = 10_000;
const TYPE_DEPTH_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 1 << 20;
/// The maximum number of centroids of a percentile digest. A centroid takes 16 bytes, and a digest has 100 centroids
/// by default.
pub(crate) const CENTROIDS_MAX: i64 = 65_536;
/// The size in bytes of a fixed-size value that is always allowed, even if the budget is small.
const VALUE_BYTES: u64 = 16 << 10;
/// The maximum bytes of a fixed-size list element in a type that a query requests. The limit is small, since a row
/// may have any number of elements.
const ELEMENT_BYTES: u64 = 1 << 10;

fn too_large(what: String) -> DataFusionError {
    Error::Query(what).into()
}

fn too_many_nodes() -> DataFusionError {
    too_large(format!("the query needs a plan of more than {NODES_MAX} nodes, the most that are planned"))
}

/// Refuses a statement whose plan would be too large after all its WITH clauses are expanded.
///
/// # Errors
/// Returns [`Error::Query`] if there are more than [`NODES_MAX`] nodes, or too many expressions.
pub(crate) fn check_statement(statement: &Statement) -> Result<()> {
    let statement = match statement {
        Statement::Statement(statement) => statement,
        Statement::Explain(explain) => return check_statement(&explain.statement),
        _ => return Ok(()),
    };
    let mut count = SizeCounter { open: vec![OpenQuery::default()], named: HashMap::new(), depth: 0 };
    match statement.visit(&mut count) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// Returns whether a query requests all columns of a table (`*`, or a table without SELECT).
pub(crate) fn has_wildcard(statement: &Statement) -> bool {
    match statement {
        Statement::Statement(statement) => statement.visit(&mut Wildcard).is_break(),
        Statement::Explain(explain) => has_wildcard(&explain.statement),
        _ => false,
    }
}

struct Wildcard;

impl Visitor for Wildcard {
    type Break = ();

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<()> {
        if matches!(*query.body, SetExpr::Table(_)) {
            ControlFlow::Break(())
        } else {
            ControlFlow::Continue(())
        }
    }

    fn pre_visit_select(&mut self, select: &Select) -> ControlFlow<()> {
        let is_all =
            |item: &SelectItem| matches!(item, SelectItem::Wildcard(_) | SelectItem::QualifiedWildcard(..));
        match select.projection.is_empty() || select.projection.iter().any(is_all) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}

/// A visitor that counts the expressions of each query, and its plan nodes: queries, and the tables that they refer
/// to.
struct SizeCounter {
    /// The queries that contain the current node, from the outermost to the innermost.
    open: Vec<OpenQuery>,
    /// The names of queries in a WITH clause, by the address of the query.
    named: HashMap<*const Query, String>,
    /// The number of expressions that contain the current node.
    depth: usize,
}

#[derive(Default)]
struct OpenQuery {
    size: QuerySize,
    /// The sizes of the queries in this query's WITH clause, by name.
    sizes: HashMap<String, QuerySize>,
}

/// The size of a query.
#[derive(Clone, Copy, Default)]
struct QuerySize {
    nodes: usize,
    /// The number of expressions.
    parts: usize,
}

impl SizeCounter {
    fn add(&mut self, size: QuerySize) -> ControlFlow<DataFusionError> {
        let own = &mut self.open.last_mut().expect("the statement is around all of it").size;
        own.nodes = own.nodes.saturating_add(size.nodes);
        own.parts = own.parts.saturating_add(size.parts);
        if own.nodes > NODES_MAX {
            return ControlFlow::Break(too_many_nodes());
        }
        if own.parts > PARTS_MAX {
            return ControlFlow::Break(too_large(format!(
                "the query has more than {PARTS_MAX} expressions with its WITH expanded, the most that are planned"
            )));
        }
        ControlFlow::Continue(())
    }
}

/// Returns the form of a name by which DataFusion compares names: lower case, unless the name is quoted.
pub(crate) fn normal_name(name: &Ident) -> String {
    if name.quote_style.is_some() { name.value.clone() } else { name.value.to_ascii_lowercase() }
}

impl Visitor for SizeCounter {
    type Break = DataFusionError;

    fn pre_visit_expr(&mut self, _: &Asked) -> ControlFlow<DataFusionError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return ControlFlow::Break(too_large(format!(
                "the query nests more than {DEPTH_MAX} expressions, as a + b + ... and a OR b OR ... do: IN takes longer lists"
            )));
        }
        self.add(QuerySize { nodes: 0, parts: 1 })
    }

    fn post_visit_expr(&mut self, _: &Asked) -> ControlFlow<DataFusionError> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<DataFusionError> {
        self.open.push(OpenQuery { size: QuerySize { nodes: 1, parts: 0 }, sizes: HashMap::new() });
        for named in query.with.iter().flat_map(|with| &with.cte_tables) {
            self.named.insert(&raw const *named.query, normal_name(&named.alias.name));
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<DataFusionError> {
        let size = self.open.pop().expect("it was opened").size;
        match self.named.remove(&(&raw const *query)) {
            // A query in a WITH clause is counted at each use of its name.
            Some(name) => {
                self.open.last_mut().expect("a WITH is in a query").sizes.insert(name, size);
                ControlFlow::Continue(())
            }
            None => self.add(size),
        }
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<DataFusionError> {
        let name = match &relation.0[..] {
            [part] => part.as_ident().map(normal_name),
            _ => None,
        };
        let size =
            name.and_then(|name| self.open.iter().rev().find_map(|open| open.sizes.get(&name).copied()));
        self.add(size.unwrap_or(QuerySize { nodes: 1, parts: 0 }))
    }
}

/// Refuses a plan that is too large, or that would become too large.
///
/// # Errors
/// Returns [`Error::Query`] if a number exceeds its limit, and [`Error::Memory`] if the values of a type are too
/// large.
pub(crate) fn check_plan(plan: &LogicalPlan, memory_bytes: u64) -> Result<()> {
    let (mut nodes, mut joins) = (0, 0);
    plan.apply_with_subqueries(|node| {
        nodes += 1;
        joins += usize::from(matches!(node, LogicalPlan::Join(_)));
        Ok(if nodes > NODES_MAX { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    })?;
    if nodes > NODES_MAX {
        return Err(too_many_nodes());
    }
    if joins > JOINS_MAX {
        let what = format!(
            "the query has {joins} joins (EXCEPT and INTERSECT count as joins), and at most {JOINS_MAX} are planned"
        );
        return Err(too_large(what));
    }
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Aggregate(aggregate) = node {
            let sets = aggregate.group_expr.iter().map(sets_of).fold(1, usize::saturating_mul);
            if sets > SETS_MAX {
                return Err(too_large(format!(
                    "the query groups by {sets} sets of columns, and at most {SETS_MAX} are allowed"
                )));
            }
        }
        node.schema().fields().iter().try_for_each(|field| check_type(field.data_type(), memory_bytes))?;
        node.apply_expressions(|expression| {
            expression.apply(|part| {
                match part {
                    Expr::Cast(Cast { field, .. }) | Expr::TryCast(TryCast { field, .. }) => {
                        check_type(field.data_type(), memory_bytes)?;
                        check_elements(field.data_type())?;
                    }
                    Expr::AggregateFunction(call) => check_digest(call.func.name(), &call.params.args)?,
                    Expr::WindowFunction(call) => check_digest(call.fun.name(), &call.params.args)?,
                    _ => {}
                }
                Ok(TreeNodeRecursion::Continue)
            })
        })
    })?;
    let mut written = ExpandedSizes::default();
    plan.visit(&mut written)?;
    plan.apply_with_subqueries(|node| node.apply_subqueries(|subquery| subquery.visit(&mut written)))?;
    Ok(())
}

/// Returns the number of grouping sets of an expression.
fn sets_of(group: &Expr) -> usize {
    match group {
        Expr::GroupingSet(GroupingSet::Cube(columns)) => u32::try_from(columns.len())
            .ok()
            .and_then(|columns| 1usize.checked_shl(columns))
            .unwrap_or(usize::MAX),
        Expr::GroupingSet(GroupingSet::Rollup(columns)) => columns.len() + 1,
        Expr::GroupingSet(GroupingSet::GroupingSets(sets)) => sets.len(),
        _ => 1,
    }
}

/// Refuses a percentile digest with a capacity of too many centroids.
///
/// # Errors
/// Returns [`Error::Query`], whose message contains the limit.
fn check_digest(function: &str, args: &[Expr]) -> Result<()> {
    let centroids = match function {
        "approx_percentile_cont" => args.get(2),
        "approx_percentile_cont_with_weight" => args.get(3),
        _ => None,
    };
    let is_few = |value: &ScalarValue| {
        let number = value.cast_to(&DataType::Int64);
        matches!(number, Ok(ScalarValue::Int64(Some(1..=CENTROIDS_MAX))))
    };
    match centroids {
        Some(Expr::Literal(value, _)) if is_few(value) => Ok(()),
        None => Ok(()),
        Some(other) => {
            let what =
                format!("{function} takes a number of centroids from 1 to {CENTROIDS_MAX}, not {other}");
            Err(too_large(what))
        }
    }
}

/// Refuses a type that is nested too deeply, or in which each value is too large.
///
/// # Errors
/// Returns [`Error::Query`] for the nesting, and [`Error::Memory`] for the size.
pub(crate) fn check_type(kind: &DataType, memory_bytes: u64) -> Result<()> {
    let (mut types, mut name_bytes) = (0, 0);
    let mut is_one_more = |kind: &DataType, depth: usize| {
        types += 1;
        name_bytes += match kind {
            DataType::Struct(fields) => fields.iter().map(|field| field.name().len()).sum(),
            _ => 0,
        };
        types <= TYPES_MAX && depth <= TYPE_DEPTH_MAX && name_bytes <= NAME_BYTES_MAX
    };
    if !of_every_type(kind, 0, &mut is_one_more) {
        return Err(too_large(format!(
            "a column of the query has a type of more than {TYPES_MAX} types, more than {TYPE_DEPTH_MAX} levels, or more than 1 MiB of names"
        )));
    }
    let (bytes, allowed) = (fixed_bytes(kind), VALUE_BYTES.max(memory_bytes / BATCH_ROWS as u64));
    if bytes > allowed {
        let (bytes, allowed) = (format_bytes(bytes), format_bytes(allowed));
        let what =
            format!("each value of a type of the query takes {bytes}, and at most {allowed} are allowed");
        return Err(Error::Memory(what).into());
    }
    Ok(())
}

/// Returns the bytes that each value of a type takes, even if the value is null.
fn fixed_bytes(kind: &DataType) -> u64 {
    match kind {
        DataType::FixedSizeBinary(size) => u64::try_from(*size).unwrap_or(0),
        DataType::FixedSizeList(element, size) => {
            fixed_bytes(element.data_type()).max(1).saturating_mul(u64::try_from(*size).unwrap_or(0))
        }
        DataType::Struct(fields) => {
            fields.iter().map(|field| fixed_bytes(field.data_type())).fold(0, u64::saturating_add)
        }
        other => other.primitive_width().unwrap_or(0) as u64,
    }
}

/// Refuses a requested type in which each list element is too large.
///
/// # Errors
/// Returns [`Error::Memory`], whose message contains the size of an element and the limit.
pub(crate) fn check_elements(kind: &DataType) -> Result<()> {
    let mut largest = 0;
    of_every_type(kind, 0, &mut |list, _| {
        if let DataType::List(element)
        | DataType::LargeList(element)
        | DataType::ListView(element)
        | DataType::LargeListView(element)
        | DataType::Map(element, _) = list
        {
            largest = largest.max(fixed_bytes(element.data_type()));
        }
        true
    });
    if largest > ELEMENT_BYTES {
        let [bytes, allowed] = [largest, ELEMENT_BYTES].map(format_bytes);
        let what =
            format!("each element of a type of the query takes {bytes}, and at most {allowed} are allowed");
        return Err(Error::Memory(what).into());
    }
    Ok(())
}

/// Returns whether `holds` is true for a type and for all types nested in it. The second argument of `holds` is the
/// depth. The traversal stops at the first false result.
pub(crate) fn of_every_type(
    kind: &DataType,
    depth: usize,
    holds: &mut impl FnMut(&DataType, usize) -> bool,
) -> bool {
    holds(kind, depth)
        && match kind {
            DataType::List(field)
            | DataType::LargeList(field)
            | DataType::ListView(field)
            | DataType::LargeListView(field)
            | DataType::FixedSizeList(field, _)
            | DataType::Map(field, _) => of_every_type(field.data_type(), depth + 1, holds),
            DataType::Struct(fields) => {
                fields.iter().all(|field| of_every_type(field.data_type(), depth + 1, holds))
            }
            DataType::Union(fields, _) => {
                fields.iter().all(|(_, field)| of_every_type(field.data_type(), depth + 1, holds))
            }
            DataType::Dictionary(key, value) => {
                of_every_type(key, depth + 1, holds) && of_every_type(value, depth + 1, holds)
            }
            DataType::RunEndEncoded(ends, values) => {
                of_every_type(ends.data_type(), depth + 1, holds)
                    && of_every_type(values.data_type(), depth + 1, holds)
            }
            _ => true,
        }
}

/// A visitor that counts the expressions of each column, if the columns that it is computed from are replaced by
/// their expressions.
#[derive(Default)]
struct ExpandedSizes {
    /// The counts for the columns of visited nodes whose parent is not yet visited.
    inputs: Vec<Vec<u64>>,
    /// The number of expressions by which the visited filters would grow.
    more: u64,
}

impl<'n> TreeNodeVisitor<'n> for ExpandedSizes {
    type Node = LogicalPlan;

    fn f_up(&mut self, node: &'n LogicalPlan) -> Result<TreeNodeRecursion> {
        let inputs = self.inputs.split_off(self.inputs.len() - node.inputs().len());
        let columns = node.schema().fields().len();
        let largest = inputs.iter().flatten().copied().max().unwrap_or(1);
        let mut parts = match node {
            LogicalPlan::Projection(projection) => {
                let of = |expression| parts_of(expression, &[(projection.input.schema(), &inputs[0])]);
                projection.expr.iter().map(of).collect::<Result<Vec<u64>>>()?
            }
            LogicalPlan::Filter(filter) => {
                self.check_filter(&filter.predicate, &[(filter.input.schema(), &inputs[0])])?;
                inputs.into_iter().next().unwrap_or_default()
            }
            LogicalPlan::Join(join) => {
                let sides = [(join.left.schema(), &inputs[0]), (join.right.schema(), &inputs[1])];
                let on = join.on.iter().flat_map(|(left, right)| [left, right]);
                on.chain(&join.filter).try_for_each(|expression| self.check_filter(expression, &sides))?;
                join_columns(join, &inputs)
            }
            LogicalPlan::Aggregate(aggregate) => {
                let of = |expression| parts_of(expression, &[(aggregate.input.schema(), &inputs[0])]);
                let groups = aggregate.group_expr.iter().map(of).collect::<Result<Vec<u64>>>()?;
                match aggregate.group_expr.iter().any(|group| matches!(group, Expr::GroupingSet(_))) {
                    true => vec![groups.into_iter().max().unwrap_or(1); columns],
                    false => groups,
                }
            }
            LogicalPlan::SubqueryAlias(_)
            | LogicalPlan::Sort(_)
            | LogicalPlan::Limit(_)
            | LogicalPlan::Window(_)
            | LogicalPlan::Distinct(Distinct::All(_)) => inputs.into_iter().next().unwrap_or_default(),
            _ => vec![largest; columns],
        };
        if let Some(written) = parts.iter().find(|parts| **parts > MORE_PARTS_MAX) {
            return Err(too_large(format!(
                "a column of the query has {written} parts with the columns that it is computed from expanded, and at most \
                 {MORE_PARTS_MAX} are planned"
            )));
        }
        // Other columns, such as results of aggregates and windows, count as one expression, since filters are not
        // pushed below them.
        parts.resize(columns, 1);
        self.inputs.push(parts);
        Ok(TreeNodeRecursion::Continue)
    }
}

fn join_columns(join: &Join, inputs: &[Vec<u64>]) -> Vec<u64> {
    match join.join_type {
        JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => inputs[1].clone(),
        JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => inputs[0].clone(),
        _ => inputs.concat(),
    }
}

/// A join input: its columns, and the number of expressions of each column.
type JoinSide<'a> = (&'a Arc<DFSchema>, &'a Vec<u64>);

fn parts_of(expression: &Expr, sides: &[JoinSide<'_>]) -> Result<u64> {
    let of_column = |column: &Column| {
        let find = |(schema, parts): &JoinSide<'_>| {
            schema.maybe_index_of_column(column).and_then(|index| parts.get(index).copied())
        };
        sides.iter().find_map(find).unwrap_or(1)
    };
    let mut parts = 0u64;
    expression.apply(|part| {
        let more = if let Expr::Column(column) = part { of_column(column) } else { 1 };
        parts = parts.saturating_add(more);
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(parts)
}

impl ExpandedSizes {
    fn check_filter(&mut self, expression: &Expr, sides: &[JoinSide<'_>]) -> Result<()> {
        let (written, own) = (parts_of(expression, sides)?, parts_of(expression, &[])?);
        self.more = self.more.saturating_add(written.saturating_sub(own));
        if self.more > MORE_PARTS_MAX {
            return Err(too_large(format!(
                "the conditions of the query gain {} parts with their columns expanded, and at most {MORE_PARTS_MAX} are planned \
                 (move conditions into subqueries over the tables)",
                self.more
            )));
        }
        Ok(())
    }
}
