//! Cuts a plan at its hash exchanges into stages that run on nodes.
//!
//! ```text
//!   stage 2:  Final aggregate                         reads range p of stage 1
//!                 Repartition(town)      ── cut ──
//!   stage 1:  Partial aggregate ◄ Join                reads range p of stages 0 and 3
//!                 Repartition(key)       ── cut ──
//!   stage 0:  Filter ◄ Scan of one table              reads shards
//! ```
//!
//! DataFusion has planned where rows must meet: a node of the plan that needs all rows of a key is above a
//! [`RepartitionExec`] by a hash of that key. Each such node is a cut. The part of a plan below a cut is a stage; its
//! rows are divided by the same hash on all machines (see [`super::exchange`]). A stage over one table reads shards,
//! and every other stage reads the exchanges below it.

use std::sync::Arc;

use datafusion::{
    error::Result,
    physical_plan::{
        ExecutionPlan, Partitioning, PhysicalExpr,
        aggregates::{AggregateExec, AggregateMode},
        coop::CooperativeExec,
        filter::FilterExec,
        joins::{HashJoinExec, PartitionMode, SortMergeJoinExec},
        projection::ProjectionExec,
        repartition::RepartitionExec,
        sorts::sort::SortExec,
        windows::{BoundedWindowAggExec, WindowAggExec},
    },
};
use serde::{Deserialize, Serialize};

use super::conditions::{fragment_of, has_portable_expressions, is_sendable};

/// The input of a stage of a fragment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum FragmentInput {
    /// The shards of the table with this name in the query.
    Table(String),
    /// The exchanges of these stages, in the order in which the stage's plan reads them.
    Exchanges(Vec<usize>),
}

/// A stage of a fragment, as the client describes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FragmentStage {
    /// A name for reports, such as `join`.
    pub name: String,
    /// The input.
    pub input: FragmentInput,
}

/// A stage of a plan.
#[derive(Clone, Debug)]
pub(super) struct StagePlan {
    pub stage: FragmentStage,
    /// The plan. The cuts below it are still there.
    pub plan: Arc<dyn ExecutionPlan>,
    /// The keys of the exchange that the stage writes. The last stage has none.
    pub keys: Vec<Arc<dyn PhysicalExpr>>,
}

/// Returns the keys of a plan node that is a cut.
pub(super) fn cut_keys(node: &Arc<dyn ExecutionPlan>) -> Option<&[Arc<dyn PhysicalExpr>]> {
    match node.downcast_ref::<RepartitionExec>()?.partitioning() {
        Partitioning::Hash(keys, _) => Some(keys),
        _ => None,
    }
}

/// Cuts a plan into stages, each after those that it reads. Returns `None` if the plan contains a node that does not
/// work on one range alone, or if no node of its last stage needs the rows of a key together.
pub(super) fn stages_of(plan: &Arc<dyn ExecutionPlan>) -> Result<Option<Vec<StagePlan>>> {
    let mut stages = Vec::new();
    let mut meeting = None;
    let Some(inputs) = inputs_of(plan, &mut stages, &mut meeting)? else { return Ok(None) };
    let Some(name) = meeting else { return Ok(None) };
    let stage = FragmentStage { name: name.to_string(), input: FragmentInput::Exchanges(inputs) };
    stages.push(StagePlan { stage, plan: plan.clone(), keys: Vec::new() });
    Ok(Some(stages))
}

/// Adds the stages below a part of a stage's plan, and returns the stages that the part reads, in the order of its
/// cuts. `meeting` becomes the name of the first node that needs rows together.
fn inputs_of(
    node: &Arc<dyn ExecutionPlan>,
    stages: &mut Vec<StagePlan>,
    meeting: &mut Option<&'static str>,
) -> Result<Option<Vec<usize>>> {
    if let Some(keys) = cut_keys(node) {
        return Ok(stage_below(node.children()[0], keys, stages)?.map(|stage| vec![stage]));
    }
    let name = meeting_name(node);
    if name.is_none() && !is_rowwise(node) || !has_portable_expressions(node)? {
        return Ok(None);
    }
    *meeting = meeting.or(name);
    let mut inputs = Vec::new();
    for child in node.children() {
        let Some(below) = inputs_of(child, stages, meeting)? else { return Ok(None) };
        inputs.extend(below);
    }
    Ok((!inputs.is_empty()).then_some(inputs))
}

/// Adds the stage below a cut and the stages that it reads. Returns its number.
fn stage_below(
    plan: &Arc<dyn ExecutionPlan>,
    keys: &[Arc<dyn PhysicalExpr>],
    stages: &mut Vec<StagePlan>,
) -> Result<Option<usize>> {
    if !is_sendable(plan) {
        return Ok(None);
    }
    let stage = match fragment_of(plan)? {
        Some(table) => FragmentStage { name: format!("map {table}"), input: FragmentInput::Table(table) },
        None => {
            let mut meeting = None;
            let Some(inputs) = inputs_of(plan, stages, &mut meeting)? else { return Ok(None) };
            let name = meeting.unwrap_or("exchange").to_string();
            FragmentStage { name, input: FragmentInput::Exchanges(inputs) }
        }
    };
    stages.push(StagePlan { stage, plan: plan.clone(), keys: keys.to_vec() });
    Ok(Some(stages.len() - 1))
}

/// Returns the name of a plan node that needs all rows of a key in one partition, and no others.
fn meeting_name(node: &Arc<dyn ExecutionPlan>) -> Option<&'static str> {
    if let Some(aggregate) = node.downcast_ref::<AggregateExec>() {
        let is_whole =
            matches!(aggregate.mode(), AggregateMode::FinalPartitioned | AggregateMode::SinglePartitioned);
        return is_whole.then_some("group");
    }
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        return (*join.partition_mode() == PartitionMode::Partitioned).then_some("join");
    }
    if let Some(window) = node.downcast_ref::<WindowAggExec>() {
        return (!window.partition_keys().is_empty()).then_some("window");
    }
    if let Some(window) = node.downcast_ref::<BoundedWindowAggExec>() {
        return (!window.partition_keys().is_empty()).then_some("window");
    }
    node.is::<SortMergeJoinExec>().then_some("join")
}

/// Returns true for a plan node whose result on all rows is that on each partition alone: by rows, or sorted and
/// aggregated in partitions.
fn is_rowwise(node: &Arc<dyn ExecutionPlan>) -> bool {
    let is_partial = |aggregate: &AggregateExec| *aggregate.mode() == AggregateMode::Partial;
    node.is::<FilterExec>()
        || node.is::<ProjectionExec>()
        || node.is::<CooperativeExec>()
        || node.downcast_ref::<AggregateExec>().is_some_and(is_partial)
        || node.downcast_ref::<SortExec>().is_some_and(SortExec::preserve_partitioning)
}
