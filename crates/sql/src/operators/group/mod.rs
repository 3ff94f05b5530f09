//! GROUP BY and DISTINCT in any amount of memory.
//!
//! ```text
//!   rows ──► hash table of groups ──(end of the input)─────────────────────────► results
//!                │ table is full
//!                ▼
//!            states of groups ──► sort by key ──► merge of states with equal keys ──► results
//!                │ instead, if the key is one integer column and the states are numbers
//!                ▼
//!            sort-reduce of records ───────────────────────────────────────────► results
//! ```
//!
//! DataFusion's accumulators store the groups and their aggregate states in a hash table, so all aggregate functions
//! are supported. When the table is full, its states are pushed into the sort as rows. States with equal keys are
//! adjacent in sorted order and are merged. If a full table has combined few rows, another table would not help.
//! Later rows then go directly to the sort.

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

/// The plan node of GROUP BY; see the module's documentation.
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
    /// Creates the plan node that replaces an aggregate of DataFusion. Returns `None` if DataFusion's aggregate is
    /// kept.
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
