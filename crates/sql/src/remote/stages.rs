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
//!
//! A small side of a join is broadcast: it is a stage whose rows each partition of the other side reads as a whole. The
//! other side is then not divided.

use std::sync::Arc;

use datafusion::{
    common::{
        JoinType,
        config::ConfigOptions,
        tree_node::{Transformed, TreeNode},
    },
    error::Result,
    physical_optimizer::PhysicalOptimizerRule,
    physical_plan::{
        ExecutionPlan, Partitioning, PhysicalExpr,
        aggregates::{AggregateExec, AggregateMode},
        coalesce_partitions::CoalescePartitionsExec,
        execution_plan::replace_children_if_necessary,
        joins::{CrossJoinExec, HashJoinExec, NestedLoopJoinExec, PartitionMode, SortMergeJoinExec},
        repartition::RepartitionExec,
        sorts::sort::SortExec,
        statistics::{StatisticsArgs, StatisticsContext},
        windows::{BoundedWindowAggExec, WindowAggExec},
    },
};
use serde::{Deserialize, Serialize};

use super::conditions::{has_portable_expressions, is_by_row, is_round_robin, is_sendable, table_of};

/// The largest number of rows of a side of a join that is broadcast.
pub(crate) const BROADCAST_ROWS_MAX: usize = 200_000;

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
    /// The stages that are broadcast to each partition of this one: small sides of its joins, in the order in which the
    /// stage's plan reads them. Their exchange has one range.
    pub broadcasts: Vec<usize>,
    /// True if the stage's exchange has one range, which each partition of another stage reads.
    pub is_broadcast: bool,
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

/// Returns the side of a join that is broadcast: its left side, if it is small and each row of the right side alone meets
/// all of it.
pub(super) fn broadcast_side(node: &Arc<dyn ExecutionPlan>) -> Result<Option<&Arc<dyn ExecutionPlan>>> {
    let left = || node.children()[0];
    if let Some(join) = node.downcast_ref::<HashJoinExec>() {
        // DataFusion has compared the size of this side with the limit.
        let is_small = *join.partition_mode() == PartitionMode::CollectLeft;
        return Ok((is_small && is_by_right_rows(*join.join_type())).then(left));
    }
    let kind = match node.downcast_ref::<NestedLoopJoinExec>() {
        Some(join) => *join.join_type(),
        None if node.is::<CrossJoinExec>() => JoinType::Inner,
        None => return Ok(None),
    };
    let rows = StatisticsContext::new().compute(left().as_ref(), &StatisticsArgs::new())?.num_rows;
    let is_small = rows.get_value().is_some_and(|&rows| rows <= BROADCAST_ROWS_MAX);
    Ok((is_small && is_by_right_rows(kind)).then(left))
}

/// Returns true if the rows of a join are known for each row of its right side alone. A join that also returns rows of
/// its left side must know the rows that no partition has matched.
fn is_by_right_rows(kind: JoinType) -> bool {
    matches!(
        kind,
        JoinType::Inner | JoinType::Right | JoinType::RightSemi | JoinType::RightAnti | JoinType::RightMark
    )
}

/// Divides both sides of a join by its keys if its small side cannot be broadcast.
#[derive(Debug)]
pub(crate) struct PartitionJoins;

impl PhysicalOptimizerRule for PartitionJoins {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let divided = plan.transform_up(|node| match node.downcast_ref::<HashJoinExec>() {
            Some(join) if !is_by_right_rows(*join.join_type()) && !join.null_aware => {
                let join = join.builder().with_partition_mode(PartitionMode::Partitioned).build()?;
                Ok(Transformed::yes(Arc::new(join) as Arc<dyn ExecutionPlan>))
            }
            _ => Ok(Transformed::no(node)),
        })?;
        Ok(divided.data)
    }

    fn name(&self) -> &str {
        "partition joins"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Cuts a plan into stages, each after those that it reads. Returns `None` if the plan contains a node that does not
/// work on one range alone, or if no node of its last stage needs the rows of a key or of another table together. With
/// `is_bold`, small sides of joins are broadcast.
pub(super) fn stages_of(plan: &Arc<dyn ExecutionPlan>, is_bold: bool) -> Result<Option<Vec<StagePlan>>> {
    let mut cutter = Cutter { is_bold, stages: Vec::new() };
    let Some(of_stage) = cutter.parts_of(plan)?.filter(|parts| parts.name.is_some()) else { return Ok(None) };
    let Some(stage) = of_stage.stage() else { return Ok(None) };
    let mut stages = cutter.stages;
    stages.push(StagePlan { stage, plan: plan.clone(), keys: Vec::new() });
    Ok(Some(stages))
}

/// Removes the node that brings all rows of a side to one partition. The exchange of a broadcast has one range, so the
/// rows meet there.
fn in_partitions(node: &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>> {
    if let Some(all) = node.downcast_ref::<CoalescePartitionsExec>() {
        return Ok(all.input().clone());
    }
    if !is_by_row(node) {
        return Ok(node.clone());
    }
    replace_children_if_necessary(node.clone(), vec![in_partitions(node.children()[0])?])
}

/// The inputs of a part of a stage's plan.
#[derive(Default)]
struct StageParts {
    table: Option<String>,
    exchanges: Vec<usize>,
    broadcasts: Vec<usize>,
    /// The name of the first node that needs rows together.
    name: Option<&'static str>,
}

impl StageParts {
    /// Returns the description of the stage. A stage reads either one table or exchanges.
    fn stage(self) -> Option<FragmentStage> {
        let StageParts { table, exchanges, broadcasts, name } = self;
        let (name, input) = match table {
            Some(table) if exchanges.is_empty() => {
                (format!("{} {table}", name.unwrap_or("map")), FragmentInput::Table(table))
            }
            None if !exchanges.is_empty() => {
                (name.unwrap_or("exchange").to_string(), FragmentInput::Exchanges(exchanges))
            }
            _ => return None,
        };
        Some(FragmentStage { name, input, broadcasts, is_broadcast: false })
    }

    /// Adds the parts of another child of the same node. Returns false if both read a table.
    fn join(&mut self, other: StageParts) -> bool {
        let is_one = self.table.is_none() || other.table.is_none();
        self.table = self.table.take().or(other.table);
        self.exchanges.extend(other.exchanges);
        self.broadcasts.extend(other.broadcasts);
        self.name = self.name.or(other.name);
        is_one
    }
}

/// Cuts a plan.
struct Cutter {
    is_bold: bool,
    stages: Vec<StagePlan>,
}

impl Cutter {
    /// Adds the stages below a part of a stage's plan, and returns what the part itself reads.
    fn parts_of(&mut self, node: &Arc<dyn ExecutionPlan>) -> Result<Option<StageParts>> {
        if let Some(keys) = cut_keys(node) {
            let below = self.stage_below(node.children()[0], keys)?;
            return Ok(below.map(|stage| StageParts { exchanges: vec![stage], ..StageParts::default() }));
        }
        if let Some(table) = table_of(node) {
            return Ok(Some(StageParts { table: Some(table), ..StageParts::default() }));
        }
        let small = if self.is_bold { broadcast_side(node)? } else { None };
        let name = if small.is_some() { Some("join") } else { meeting_name(node) };
        let is_known = name.is_some() || is_rowwise(node) || is_round_robin(node);
        // Shards may hold rows of one key on several nodes, so a node that needs these rows together reads exchanges.
        let needs_exchange = small.is_none() && name.is_some();
        if !is_known || !has_portable_expressions(node)? {
            return Ok(None);
        }
        let mut parts = StageParts { name, ..StageParts::default() };
        for (place, child) in node.children().into_iter().enumerate() {
            let below = match small.filter(|_| place == 0) {
                Some(small) => self.broadcast(small)?,
                None => self.parts_of(child)?,
            };
            let Some(below) = below.filter(|below| !is_round_robin(node) || below.exchanges.is_empty())
            else {
                return Ok(None);
            };
            if !parts.join(below) {
                return Ok(None);
            }
        }
        Ok(Some(parts).filter(|parts| !needs_exchange || parts.table.is_none()))
    }

    /// Adds the stage below a cut and the stages that it reads. Returns its number.
    fn stage_below(
        &mut self,
        plan: &Arc<dyn ExecutionPlan>,
        keys: &[Arc<dyn PhysicalExpr>],
    ) -> Result<Option<usize>> {
        if !is_sendable(plan) {
            return Ok(None);
        }
        let Some(stage) = self.parts_of(plan)?.and_then(StageParts::stage) else { return Ok(None) };
        self.stages.push(StagePlan { stage, plan: plan.clone(), keys: keys.to_vec() });
        Ok(Some(self.stages.len() - 1))
    }

    /// Adds the stage of a side of a join that is broadcast, and the stages that it reads.
    fn broadcast(&mut self, side: &Arc<dyn ExecutionPlan>) -> Result<Option<StageParts>> {
        let Some(stage) = self.stage_below(&in_partitions(side)?, &[])? else { return Ok(None) };
        self.stages[stage].stage.is_broadcast = true;
        Ok(Some(StageParts { broadcasts: vec![stage], ..StageParts::default() }))
    }
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
    is_by_row(node)
        || node.downcast_ref::<AggregateExec>().is_some_and(is_partial)
        || node.downcast_ref::<SortExec>().is_some_and(SortExec::preserve_partitioning)
}
