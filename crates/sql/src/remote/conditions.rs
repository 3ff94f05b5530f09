//! The conditions under which a part of a plan can run on another machine.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::{
    common::tree_node::{TreeNode, TreeNodeRecursion},
    error::Result,
    physical_plan::{
        ExecutionPlan, Partitioning, PhysicalExpr,
        aggregates::{AggregateExec, AggregateOutputMode},
        coop::CooperativeExec,
        filter::FilterExec,
        projection::ProjectionExec,
        repartition::RepartitionExec,
    },
};

use super::table::RemoteTableScan;
use crate::rules::plan_size::of_every_type;

/// Returns whether an expression has the same value on every machine. The values of subqueries are sent with a fragment.
fn is_portable(expression: &Arc<dyn PhysicalExpr>) -> Result<bool> {
    expression.exists(|part| Ok(part.is_volatile_node())).map(|is_volatile| !is_volatile)
}

/// Returns whether all expressions of a plan node have the same values on every machine.
pub(super) fn has_portable_expressions(node: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    let mut all = true;
    node.apply_expressions(&mut |expression| {
        all &= is_portable(expression)?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(all)
}

/// Returns whether a plan node is a round-robin repartitioning.
pub(super) fn is_round_robin(node: &Arc<dyn ExecutionPlan>) -> bool {
    let shares = |node: &RepartitionExec| matches!(node.partitioning(), Partitioning::RoundRobinBatch(_));
    node.downcast_ref::<RepartitionExec>().is_some_and(shares)
}

/// Returns whether a plan node has one child, and makes its rows from single rows of the child.
pub(super) fn is_by_row(node: &Arc<dyn ExecutionPlan>) -> bool {
    node.is::<FilterExec>() || node.is::<ProjectionExec>() || node.is::<CooperativeExec>()
}

/// Returns the table of a scan. Tables of the client belong to no fragment, in the client's plan and in a node's plan.
/// The predicate of the scan needs no check, since filters above the scan test the rows again.
pub(super) fn table_of(node: &Arc<dyn ExecutionPlan>) -> Option<String> {
    let scan = node.downcast_ref::<RemoteTableScan>()?;
    (!scan.is_clients).then(|| scan.table.clone())
}

/// Returns the table of a plan that only filters and projects the rows of one remote table; otherwise `None`.
pub(super) fn rows_of(node: &Arc<dyn ExecutionPlan>) -> Result<Option<String>> {
    if node.is::<RemoteTableScan>() {
        return Ok(table_of(node));
    }
    if !(is_by_row(node) || is_round_robin(node)) || !has_portable_expressions(node)? {
        return Ok(None);
    }
    rows_of(node.children()[0])
}

/// Returns whether the rows of a plan node can be sent over the network. Rows with dictionaries cannot be sent, since
/// a message would depend on the dictionaries of earlier messages.
pub(super) fn is_sendable(node: &Arc<dyn ExecutionPlan>) -> bool {
    let mut is_whole = |kind: &DataType, _: usize| !matches!(kind, DataType::Dictionary(..));
    node.schema().fields().iter().all(|field| of_every_type(field.data_type(), 0, &mut is_whole))
}

/// Returns the table of a plan that can run as a fragment; otherwise `None`.
pub(super) fn fragment_of(node: &Arc<dyn ExecutionPlan>) -> Result<Option<String>> {
    if let Some(aggregate) = node.downcast_ref::<AggregateExec>()
        && aggregate.mode().output_mode() == AggregateOutputMode::Partial
        && has_portable_expressions(node)?
    {
        return rows_of(aggregate.input());
    }
    rows_of(node)
}
