//! Finds the fragments of a plan (the parts that run on remote machines). Replaces each fragment by a scan of its
//! result rows.

use std::sync::Arc;

use arrow::datatypes::DataType;
use datafusion::{
    common::{
        config::ConfigOptions,
        tree_node::{Transformed, TreeNode, TreeNodeRecursion},
    },
    error::Result,
    physical_expr::{expressions::UnKnownColumn, scalar_subquery::ScalarSubqueryExpr},
    physical_optimizer::PhysicalOptimizerRule,
    physical_plan::{
        ExecutionPlan, ExecutionPlanProperties, Partitioning, PhysicalExpr,
        aggregates::{AggregateExec, AggregateOutputMode},
        coop::CooperativeExec,
        displayable,
        execution_plan::replace_children_if_necessary,
        filter::FilterExec,
        projection::ProjectionExec,
        repartition::RepartitionExec,
        sorts::sort::SortExec,
    },
};

use super::{
    Fragment, RemoteTables,
    scan::RemoteScan,
    stages::{StagePlan, stages_of},
    table::RemoteTableScan,
};
use crate::{Error, rules::plan_size::of_every_type, scan::properties};

/// Returns whether an expression has the same value on every machine.
fn is_portable(expression: &Arc<dyn PhysicalExpr>) -> Result<bool> {
    expression
        .exists(|part| Ok(part.is_volatile_node() || part.is::<ScalarSubqueryExpr>()))
        .map(|is_bound| !is_bound)
}

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

/// Returns the table of a plan that only filters and projects the rows of one remote table; otherwise `None`.
fn rows_of(node: &Arc<dyn ExecutionPlan>) -> Result<Option<String>> {
    if let Some(scan) = node.downcast_ref::<RemoteTableScan>() {
        // Tables of the client belong to no fragment, in the client's plan and in a node's plan. The predicate of the
        // scan needs no check, since filters above the scan test the rows again.
        return Ok((!scan.is_clients).then(|| scan.table.clone()));
    }
    let is_simple = node.is::<FilterExec>() || node.is::<ProjectionExec>() || node.is::<CooperativeExec>();
    if !(is_simple || is_round_robin(node)) || !has_portable_expressions(node)? {
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

/// The inputs of a fragment.
#[derive(Clone, Debug)]
pub(super) enum Found {
    /// The fragment reads one table.
    Table(String),
    /// The fragment has several stages.
    Stages(Vec<StagePlan>),
}

/// Returns the inputs of a plan that can run on nodes as a whole. If its rows are in an order, the caller sorts them
/// again.
fn found(node: &Arc<dyn ExecutionPlan>, with_exchanges: bool) -> Result<Option<Found>> {
    if !is_sendable(node) {
        return Ok(None);
    }
    if let Some(table) = fragment_of(node)? {
        return Ok(Some(Found::Table(table)));
    }
    // A sort of all rows would be done again above.
    let is_sort = |sort: &SortExec| sort.fetch().is_none();
    if !with_exchanges || node.downcast_ref::<SortExec>().is_some_and(is_sort) {
        return Ok(None);
    }
    Ok(stages_of(node)?.map(Found::Stages))
}

/// Gives the rows of a fragment with stages the partitions and the order of the plan node that they replace. The ranges
/// of the last stage arrive one after the other, in one partition.
fn arranged(
    mut rows: Arc<dyn ExecutionPlan>,
    node: &Arc<dyn ExecutionPlan>,
) -> Result<Arc<dyn ExecutionPlan>> {
    // A key that the rows no longer have is unknown, so no other node of the plan depends on it.
    let is_known = |key: &Arc<dyn PhysicalExpr>| Ok(!key.exists(|part| Ok(part.is::<UnKnownColumn>()))?);
    let is_divided = match node.output_partitioning() {
        Partitioning::Hash(keys, _) => {
            keys.iter().map(is_known).collect::<Result<Vec<bool>>>()?.into_iter().all(|known| known)
        }
        _ => false,
    };
    if is_divided {
        rows = Arc::new(RepartitionExec::try_new(rows, node.output_partitioning().clone())?);
    }
    let Some(order) = node.properties().output_ordering() else { return Ok(rows) };
    let fetch = node.downcast_ref::<SortExec>().and_then(SortExec::fetch);
    let sort = SortExec::new(order.clone(), rows).with_preserve_partitioning(is_divided);
    Ok(Arc::new(sort.with_fetch(fetch)))
}

/// Finds the fragments of a plan, numbers them from the root downwards, and replaces each by the result of `replace`.
/// With exchanges, a fragment may read several tables.
pub(super) fn replace_fragments(
    plan: Arc<dyn ExecutionPlan>,
    with_exchanges: bool,
    mut replace: impl FnMut(usize, Found, &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let mut number = 0;
    let replaced = plan.transform_down(|node| {
        // Each remote machine sends only its first rows, and the client sorts these rows again.
        if let Some(sort) = node.downcast_ref::<SortExec>()
            && sort.fetch().is_some()
            && is_sendable(&node)
            && has_portable_expressions(&node)?
            && let Some(table) = rows_of(sort.input())?
        {
            let below = replace(number, Found::Table(table), &node)?;
            number += 1;
            let node = replace_children_if_necessary(node, vec![below])?;
            return Ok(Transformed::new(node, true, TreeNodeRecursion::Jump));
        }
        let Some(found) = found(&node, with_exchanges)? else { return Ok(Transformed::no(node)) };
        let is_staged = matches!(found, Found::Stages(_));
        let rows = replace(number, found, &node)?;
        number += 1;
        let rows = if is_staged { arranged(rows, &node)? } else { rows };
        Ok(Transformed::new(rows, true, TreeNodeRecursion::Jump))
    })?;
    Ok(replaced.data)
}

pub(super) fn plan_text(plan: &Arc<dyn ExecutionPlan>) -> String {
    displayable(plan.as_ref()).indent(false).to_string()
}

/// The optimizer rule that replaces each fragment by a scan of the fragment's result rows.
#[derive(Debug)]
pub(crate) struct PushDownFragments(pub Arc<RemoteTables>);

impl PhysicalOptimizerRule for PushDownFragments {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let remote = &self.0;
        let mut fragments = 0;
        let plan = replace_fragments(plan, remote.planning.with_exchanges, |number, found, node| {
            fragments += 1;
            let (table, stages) = match found {
                Found::Table(table) => (table, Vec::new()),
                Found::Stages(stages) => {
                    (String::new(), stages.into_iter().map(|stage| stage.stage).collect())
                }
            };
            let fragment = Fragment {
                table,
                stages,
                sql: remote.sql.clone(),
                tables: remote.tables.get().cloned().unwrap_or_default(),
                planning: remote.planning,
                number,
                plan: plan_text(node),
            };
            let schema = node.schema();
            let properties = properties(schema.clone(), 1);
            Ok(Arc::new(RemoteScan { remote: remote.clone(), fragment, schema, properties }))
        })?;
        // EXPLAIN ANALYZE makes the plan twice. Both plans have the same fragments, so memory is reserved once.
        if remote.answers.get().is_none() {
            let (budget, answer_bytes) = (remote.job.budget(), remote.elsewhere.answer_bytes());
            let may_be_taken = budget.free_bytes().saturating_sub(fragments * answer_bytes) / 4;
            let help_bytes = remote.elsewhere.help_bytes(may_be_taken / fragments.max(1));
            let each = answer_bytes + help_bytes.min(may_be_taken);
            let answers = budget.reserve(fragments * each, "received answers of nodes");
            let _ = remote.answers.set((answers.map_err(Error::from)?, each));
        }
        Ok(plan)
    }

    fn name(&self) -> &str {
        "near the data"
    }

    fn schema_check(&self) -> bool {
        true
    }
}
