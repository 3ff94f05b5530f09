//! Operators that spill to flash when memory is exhausted, and the optimizer rule that puts these operators into a
//! plan.
//!
//! - [`ReplaceOperators`]: the optimizer rule that replaces operators of DataFusion by operators of this crate.
//! - [`Group`], [`Order`], [`Join`]: the operators for GROUP BY, ORDER BY and equi-joins in any amount of memory.
//!   Each of these operators replaces an operator of DataFusion, and has it as its field `original`.
//! - [`Shared`]: the job, the memory and the limits that all operators of a query share.
//! - [`OperatorStats`]: the counters of one operator.

mod delegate;
mod group;
mod join;
mod number_order;
mod numbers;
mod order;
mod row_sort;
mod shared;
mod stream_exec;

use std::sync::Arc;

use datafusion::{
    common::{
        config::ConfigOptions,
        tree_node::{Transformed, TreeNode},
    },
    error::Result,
    physical_optimizer::PhysicalOptimizerRule,
    physical_plan::{
        ExecutionPlan,
        coop::CooperativeExec,
        joins::{CrossJoinExec, NestedLoopJoinExec},
        recursive_query::RecursiveQueryExec,
    },
};

use self::{group::Group, join::Join, order::Order};
pub use shared::OperatorStats;
pub(crate) use shared::{Limits, Shared};
pub(crate) use stream_exec::StreamExec;

/// The optimizer rule that replaces DataFusion's operators that would fail when memory is exhausted.
#[derive(Debug)]
pub(crate) struct ReplaceOperators(pub Shared);

impl PhysicalOptimizerRule for ReplaceOperators {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        if plan.exists(|node| Ok(node.is::<RecursiveQueryExec>()))? {
            self.0.memory.expect_again();
        }
        let replaced = plan.transform_up(|node| {
            let ours: Arc<dyn ExecutionPlan> = if let Some(group) = Group::of(&node, &self.0)? {
                Arc::new(group)
            } else if let Some(order) = Order::of(&node, &self.0)? {
                Arc::new(order)
            } else if let Some(join) = Join::of(&node, &self.0)? {
                Arc::new(join)
            } else if let Some(pausing) = yielding(&node) {
                pausing
            } else {
                return Ok(Transformed::no(node));
            };
            Ok(Transformed::yes(ours))
        })?;
        Ok(replaced.data)
    }

    fn name(&self) -> &str {
        "sort-reduce"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// Makes a cross or nested-loop join yield to the runtime between output batches. One input batch can produce any
/// number of output batches. The runtime can stop a task, or advance the timer of the deadline, only when the task
/// yields.
fn yielding(node: &Arc<dyn ExecutionPlan>) -> Option<Arc<dyn ExecutionPlan>> {
    let multiplies = node.is::<CrossJoinExec>() || node.is::<NestedLoopJoinExec>();
    multiplies.then(|| Arc::new(CooperativeExec::new(node.clone())) as _)
}
