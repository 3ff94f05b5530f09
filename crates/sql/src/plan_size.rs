//! Plans that are too large are refused before anything walks through them.
//!
//! A short text can stand for a plan without end. A WITH that names another one twice, forty times one behind the other, has 2^40
//! nodes, though the library keeps each but once; whatever walks through it, and each rule of the planner does, never comes
//! back, and nobody can stop it. So:
//!
//! - [`check_statement`] counts on the text, before it is planned: planning looks into subqueries;
//! - [`check_plan`] counts on the plan, before it is made better, and stops counting where it is too large. It looks for what would
//!   grow later too: filters, which are put below what they are about and become as large as all of that
//!   together; types in types; values of a type that are large whatever they are.

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

use crate::{Error, files::BATCH_ROWS};

/// Nodes of a plan: about a second of planning (6,000 nodes took 0.8 s in a build for tests), in which nobody can stop it.
pub(crate) const NODES_MAX: usize = 10_000;
/// Expressions in expressions of a text: the planner's steps grow with the third power of them, and its stack with them.
const DEPTH_MAX: usize = 1000;
/// Expressions of a text, with all WITH written out.
const PARTS_MAX: usize = 200_000;
/// Joins of a plan: so many take some seconds to plan, and twice as many eight times as long.
const JOINS_MAX: usize = 128;
/// Sets that an aggregate groups by.
const SETS_MAX: usize = 256;
/// Parts of a column with all that it is computed from written out; parts that all conditions have more where they are put below what they are about.
const MORE_PARTS_MAX: u64 = 100_000;
/// Types that a type is made of, one in another, and bytes of their names.
const TYPES_MAX: usize = 10_000;
const TYPE_DEPTH_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 1 << 20;
/// Centroids of a digest of percentiles, which has 16 bytes for each; 100 are what it has unless it is said.
pub(crate) const CENTROIDS_MAX: i64 = 65_536;
/// A value that every row has, whatever it is, may be as large as this in any memory.
const VALUE_BYTES: u64 = 16 << 10;
/// The same for each element of a list, of which a row has any number, where a type is asked for.
const ELEMENT_BYTES: u64 = 1 << 10;

fn refused(what: String) -> DataFusionError {
    Error::Query(what).into()
}

fn too_many_nodes() -> DataFusionError {
    refused(format!(
        "the query makes a plan of more than {NODES_MAX} nodes, which is more than is planned for"
    ))
}

/// Refuses a statement whose plan would be too large with all its WITH written out.
///
/// # Errors
/// [`Error::Query`] for more than [`NODES_MAX`] nodes, or too many expressions.
pub(crate) fn check_statement(statement: &Statement) -> Result<()> {
    let statement = match statement {
        Statement::Statement(statement) => statement,
        Statement::Explain(explain) => return check_statement(&explain.statement),
        _ => return Ok(()),
    };
    let mut count = Count { open: vec![Open::default()], named: HashMap::new(), depth: 0 };
    match statement.visit(&mut count) {
        ControlFlow::Break(error) => Err(error),
        ControlFlow::Continue(()) => Ok(()),
    }
}

/// Whether a query asks for all columns of something, whatever they are (`*`, or a table without SELECT).
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

/// Counts queries and the tables that they name.
struct Count {
    /// The queries around this place, from the outside.
    open: Vec<Open>,
    /// Queries in a WITH, by where they lie, with their names.
    named: HashMap<*const Query, String>,
    /// Expressions around this place.
    depth: usize,
}

#[derive(Default)]
struct Open {
    size: Size,
    /// What the names in its WITH stand for.
    sizes: HashMap<String, Size>,
}

/// The size of a query.
#[derive(Clone, Copy, Default)]
struct Size {
    nodes: usize,
    /// Its expressions.
    parts: usize,
}

impl Count {
    fn add(&mut self, size: Size) -> ControlFlow<DataFusionError> {
        let own = &mut self.open.last_mut().expect("the statement is around all of it").size;
        own.nodes = own.nodes.saturating_add(size.nodes);
        own.parts = own.parts.saturating_add(size.parts);
        if own.nodes > NODES_MAX {
            return ControlFlow::Break(too_many_nodes());
        }
        if own.parts > PARTS_MAX {
            return ControlFlow::Break(refused(format!(
                "the query has more than {PARTS_MAX} expressions with its WITH written out, which is more than is planned for"
            )));
        }
        ControlFlow::Continue(())
    }
}

/// A name as the library compares it.
pub(crate) fn normal(name: &Ident) -> String {
    if name.quote_style.is_some() { name.value.clone() } else { name.value.to_ascii_lowercase() }
}

impl Visitor for Count {
    type Break = DataFusionError;

    fn pre_visit_expr(&mut self, _: &Asked) -> ControlFlow<DataFusionError> {
        self.depth += 1;
        if self.depth > DEPTH_MAX {
            return ControlFlow::Break(refused(format!(
                "the query has more than {DEPTH_MAX} expressions in each other, as a + b + ... and a OR b OR ... have: IN takes more"
            )));
        }
        self.add(Size { nodes: 0, parts: 1 })
    }

    fn post_visit_expr(&mut self, _: &Asked) -> ControlFlow<DataFusionError> {
        self.depth -= 1;
        ControlFlow::Continue(())
    }

    fn pre_visit_query(&mut self, query: &Query) -> ControlFlow<DataFusionError> {
        self.open.push(Open { size: Size { nodes: 1, parts: 0 }, sizes: HashMap::new() });
        for named in query.with.iter().flat_map(|with| &with.cte_tables) {
            self.named.insert(&raw const *named.query, normal(&named.alias.name));
        }
        ControlFlow::Continue(())
    }

    fn post_visit_query(&mut self, query: &Query) -> ControlFlow<DataFusionError> {
        let size = self.open.pop().expect("it was opened").size;
        match self.named.remove(&(&raw const *query)) {
            // It counts where it is named.
            Some(name) => {
                self.open.last_mut().expect("a WITH is in a query").sizes.insert(name, size);
                ControlFlow::Continue(())
            }
            None => self.add(size),
        }
    }

    fn pre_visit_relation(&mut self, relation: &ObjectName) -> ControlFlow<DataFusionError> {
        let name = match &relation.0[..] {
            [part] => part.as_ident().map(normal),
            _ => None,
        };
        let size =
            name.and_then(|name| self.open.iter().rev().find_map(|open| open.sizes.get(&name).copied()));
        self.add(size.unwrap_or(Size { nodes: 1, parts: 0 }))
    }
}

/// Refuses a plan that is too large, or would be.
///
/// # Errors
/// [`Error::Query`] that names the number.
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
            "the query has {joins} joins (EXCEPT and INTERSECT are some): {JOINS_MAX} are planned for"
        );
        return Err(refused(what));
    }
    plan.apply_with_subqueries(|node| {
        if let LogicalPlan::Aggregate(aggregate) = node {
            let sets = aggregate.group_expr.iter().map(sets_of).fold(1, usize::saturating_mul);
            if sets > SETS_MAX {
                return Err(refused(format!(
                    "the query groups by {sets} sets of columns, and {SETS_MAX} are allowed"
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
    let mut written = Written::default();
    plan.visit(&mut written)?;
    plan.apply_with_subqueries(|node| node.apply_subqueries(|subquery| subquery.visit(&mut written)))?;
    Ok(())
}

/// How many sets of columns an expression groups by.
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

/// Refuses a digest of percentiles that has room for too many centroids from the start.
///
/// # Errors
/// [`Error::Query`] that says so.
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
            Err(refused(what))
        }
    }
}

/// Refuses a type of too many types, and one of which each value is too large whatever it is.
///
/// # Errors
/// [`Error::Query`] or [`Error::Memory`] that says so.
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
        return Err(refused(format!(
            "a column of the query has a type of more than {TYPES_MAX} types, {TYPE_DEPTH_MAX} in each other, or a MiB of names"
        )));
    }
    let (bytes, allowed) = (fixed_bytes(kind), VALUE_BYTES.max(memory_bytes / BATCH_ROWS as u64));
    if bytes > allowed {
        let (bytes, allowed) = (format_bytes(bytes), format_bytes(allowed));
        let what = format!("each value of a type of the query has {bytes}, and {allowed} are allowed");
        return Err(Error::Memory(what).into());
    }
    Ok(())
}

/// The bytes that each value of a type has, whatever it is: also null, and where nothing else is known of it.
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

/// Refuses a type that is asked for of whose lists each element is large whatever it is.
///
/// # Errors
/// [`Error::Memory`] that says so.
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
        let what = format!("each element of a type of the query has {bytes}, and {allowed} are allowed");
        return Err(Error::Memory(what).into());
    }
    Ok(())
}

/// Whether `holds` of a type and of all that it is made of, each with how many are around it; asks no further where it does not.
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

/// How many parts each column of a plan has, with all that it is computed from written out.
#[derive(Default)]
struct Written {
    /// For the inputs that were walked through and not used yet.
    inputs: Vec<Vec<u64>>,
    /// Parts that the conditions so far have more.
    more: u64,
}

impl<'n> TreeNodeVisitor<'n> for Written {
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
                joined(join, &inputs)
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
            return Err(refused(format!(
                "a column of the query has {written} parts with the columns that it is computed from written out, which is more than \
                 is planned for"
            )));
        }
        // Aggregates and windows are computed, and nothing is put below them.
        parts.resize(columns, 1);
        self.inputs.push(parts);
        Ok(TreeNodeRecursion::Continue)
    }
}

fn joined(join: &Join, inputs: &[Vec<u64>]) -> Vec<u64> {
    match join.join_type {
        JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark => inputs[1].clone(),
        JoinType::LeftSemi | JoinType::LeftAnti | JoinType::LeftMark => inputs[0].clone(),
        _ => inputs.concat(),
    }
}

/// An input: its columns, and how many parts each of them has.
type Side<'a> = (&'a Arc<DFSchema>, &'a Vec<u64>);

fn parts_of(expression: &Expr, sides: &[Side<'_>]) -> Result<u64> {
    let of_column = |column: &Column| {
        let find = |(schema, parts): &Side<'_>| {
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

impl Written {
    fn check_filter(&mut self, expression: &Expr, sides: &[Side<'_>]) -> Result<()> {
        let (written, own) = (parts_of(expression, sides)?, parts_of(expression, &[])?);
        self.more = self.more.saturating_add(written.saturating_sub(own));
        if self.more > MORE_PARTS_MAX {
            return Err(refused(format!(
                "the conditions of the query have {} parts more with their columns written out, which is more than is planned for \
                 (conditions nearer to the tables help)",
                self.more
            )));
        }
        Ok(())
    }
}
