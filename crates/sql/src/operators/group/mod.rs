//! GROUP BY and DISTINCT in any memory.
//!
//! ```text
//!   rows ──► table of groups ──(no more rows)──────────────────────────────► results
//!                │ full
//!                ▼
//!            states of groups ──► sort of rows by key ──► equal keys meet ──► results
//!                │ one key of whole numbers, states that are numbers
//!                ▼
//!            sort-reduce of records ──────────────────────────────────────────► results
//! ```
//!
//! DataFusion keeps groups and their states in memory (any aggregate function works). When a table is full, its
//! states go to the sort as rows, and states with equal keys are merged in sorted order. If a full table has combined
//! few rows, another table would not help, and later rows go to the sort directly.

mod hash_table;
mod partition;
mod plan;
mod results;
mod state_sort;

use std::sync::Arc;

use datafusion::{
    error::Result,
    execution::{SendableRecordBatchStream, TaskContext},
    physical_plan::{
        ExecutionPlan, InputOrderMode,
        aggregates::{AggregateExec, AggregateOutputMode},
        stream::RecordBatchStreamAdapter,
    },
};
use futures::stream;

use self::{partition::PartitionGrouping, plan::GroupPlan};
use super::{
    delegate::delegate_to_original,
    row_sort::FEW_ROWS,
    shared::{Counters, Shared},
};
use crate::memory::Claim;

/// The plan node that groups rows; see the module.
#[derive(Debug)]
pub(crate) struct Group {
    original: Arc<dyn ExecutionPlan>,
    shared: Shared,
    claim: Arc<Claim>,
    counters: Arc<Counters>,
    plan: Arc<GroupPlan>,
}

delegate_to_original!(Group, "SortReduceGroup");

impl Group {
    /// Creates the node that replaces an aggregate of DataFusion; `None` if DataFusion's aggregate is kept.
    pub fn of(node: &Arc<dyn ExecutionPlan>, shared: &Shared) -> Result<Option<Group>> {
        let Some(aggregate) = node.downcast_ref::<AggregateExec>() else { return Ok(None) };
        let is_limited = aggregate.limit_options().is_some_and(|limit| limit.limit() <= FEW_ROWS);
        if aggregate.mode().output_mode() == AggregateOutputMode::Partial
            || aggregate.group_expr().is_true_no_grouping()
            || *aggregate.input_order_mode() != InputOrderMode::Linear
            || is_limited
        {
            return Ok(None);
        }
        let Some(plan) = GroupPlan::new(aggregate)? else { return Ok(None) };
        let operator = plan.name();
        let partitions = aggregate.input().properties().partitioning.partition_count();
        Ok(Some(Group {
            original: node.clone(),
            shared: shared.clone(),
            claim: shared.memory.expect(partitions, 1),
            counters: shared.counters(operator),
            plan: Arc::new(plan),
        }))
    }

    fn run(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let input = self.plan.aggregate.input().execute(partition, context)?;
        let grouping = PartitionGrouping::new(
            input,
            self.plan.clone(),
            self.claim.clone(),
            self.shared.job.clone(),
            self.shared.limits,
            self.counters.clone(),
        );
        let batches = stream::try_unfold(grouping, |mut grouping| async move {
            Ok(grouping.next().await?.map(|batch| (batch, grouping)))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.plan.schema.clone(), batches)))
    }
}
