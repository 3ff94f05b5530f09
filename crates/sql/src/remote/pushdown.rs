//! Finds the fragments of a plan (the parts that run on remote machines). Replaces each fragment by a scan of its
//! result rows.

use std::sync::Arc;

use datafusion::{
    common::{
        config::ConfigOptions,
        tree_node::{Transformed, TreeNode, TreeNodeRecursion},
    },
    error::Result,
    physical_expr::expressions::UnKnownColumn,
    physical_optimizer::PhysicalOptimizerRule,
    physical_plan::{
        ExecutionPlan, ExecutionPlanProperties, Partitioning, PhysicalExpr, displayable,
        execution_plan::replace_children_if_necessary, repartition::RepartitionExec, sorts::sort::SortExec,
    },
};

use super::{
    Fragment, Planning, RemoteTables,
    conditions::{fragment_of, has_portable_expressions, is_sendable, rows_of},
    scan::RemoteScan,
    stages::{StagePlan, stages_of},
    subqueries::uses_of,
};
use crate::{Error, scan::properties};

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
fn found(node: &Arc<dyn ExecutionPlan>, planning: Planning) -> Result<Option<Found>> {
    if !is_sendable(node) {
        return Ok(None);
    }
    if let Some(table) = fragment_of(node)? {
        return Ok(Some(Found::Table(table)));
    }
    // A sort of all rows would be done again above.
    let is_sort = |sort: &SortExec| sort.fetch().is_none();
    if !planning.with_exchanges || node.downcast_ref::<SortExec>().is_some_and(is_sort) {
        return Ok(None);
    }
    Ok(stages_of(node, planning.is_bold)?.map(Found::Stages))
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
    planning: Planning,
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
        let Some(found) = found(&node, planning)? else { return Ok(Transformed::no(node)) };
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
        let plan = replace_fragments(plan, remote.planning, |number, found, node| {
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
                values: Vec::new(),
            };
            let uses = uses_of(node)?;
            let schema = node.schema();
            let properties = properties(schema.clone(), 1);
            Ok(Arc::new(RemoteScan { remote: remote.clone(), fragment, uses, schema, properties }))
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
