//! ORDER BY in any amount of memory. Rows are sorted in encoded form, or as integers if they consist of numbers.

use std::sync::Arc;

use datafusion::{
    error::Result,
    execution::{SendableRecordBatchStream, TaskContext},
    physical_plan::{
        ExecutionPlan,
        coalesce_partitions::CoalescePartitionsExec,
        sorts::{sort::SortExec, sort_preserving_merge::SortPreservingMergeExec},
    },
};

use super::{
    delegate::delegate_to_original,
    number_order::{NumberOrdering, are_many},
    numbers::NumberRows,
    row_sort::{FEW_ROWS, SortKeys, is_sortable, sorted},
    shared::{Counters, Shared},
};
use crate::memory::Claim;

/// The plan node of ORDER BY; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Order {
    original: Arc<dyn ExecutionPlan>,
    shared: Shared,
    claim: Arc<Claim>,
    counters: Arc<Counters>,
    keys: Arc<SortKeys>,
    /// The description of the rows, if there are many of them and they consist of numbers.
    numbers: Option<Arc<NumberRows>>,
    fetch: Option<usize>,
}

delegate_to_original!(Order, "SortReduceOrder");

impl Order {
    /// Creates the plan node that replaces a sort or a merge of sorts. Returns `None` if DataFusion's node is kept.
    pub fn of(node: &Arc<dyn ExecutionPlan>, shared: &Shared) -> Result<Option<Order>> {
        if let Some(merge) = node.downcast_ref::<SortPreservingMergeExec>() {
            return Order::gathering(merge, shared);
        }
        let Some(sort) = node.downcast_ref::<SortExec>() else { return Ok(None) };
        // For a small limit, DataFusion's sort needs only a heap of that many rows.
        if sort.fetch().is_some_and(|rows| rows <= FEW_ROWS) || !is_sortable(&sort.schema()) {
            return Ok(None);
        }
        let keys = SortKeys::new(&sort.input().schema(), sort.expr())?;
        let numbers = match keys.computed.is_empty() {
            true => NumberRows::of(sort.input(), &keys.keys)?,
            false => NumberRows::of_fractions(sort.input(), sort.expr())?,
        };
        let numbers = numbers.filter(|numbers| are_many(numbers, shared));
        let partitions = match sort.preserve_partitioning() {
            true => sort.input().properties().partitioning.partition_count(),
            false => 1,
        };
        Ok(Some(Order {
            original: node.clone(),
            shared: shared.clone(),
            claim: shared.memory.expect(partitions, 1),
            counters: shared.counters(format!("ORDER BY {}", sort.expr())),
            keys: Arc::new(keys),
            numbers: numbers.map(Arc::new),
            fetch: sort.fetch(),
        }))
    }

    /// Creates one sort of integers over the rows of all partitions. This sort replaces the sorts of the partitions
    /// and their merge.
    fn gathering(merge: &SortPreservingMergeExec, shared: &Shared) -> Result<Option<Order>> {
        let order = merge.input().downcast_ref::<Order>().filter(|order| order.numbers.is_some());
        let Some((order, sort)) =
            order.and_then(|order| Some((order, order.original.downcast_ref::<SortExec>()?)))
        else {
            return Ok(None);
        };
        let all = Arc::new(CoalescePartitionsExec::new(sort.input().clone()));
        let fetch = merge.fetch().into_iter().chain(sort.fetch()).min();
        // The sort uses the keys of the merge, since a partition's sort omits expressions that are constant in the
        // partition.
        let sort: Arc<dyn ExecutionPlan> =
            Arc::new(SortExec::new(merge.expr().clone(), all).with_fetch(fetch));
        let ours = Order::of(&sort, shared)?;
        if ours.is_some() {
            order.claim.drop_floor();
            shared.remove_counters(&order.counters);
        }
        Ok(ours)
    }

    /// Sorts rows as integers. If the input is an exchange that combines partitions, the sort reads those partitions
    /// directly.
    fn run_numbers(
        &self,
        numbers: &Arc<NumberRows>,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let below = self.original.children()[0];
        let inputs = match below.downcast_ref::<CoalescePartitionsExec>() {
            // An exchange with a limit is not skipped, since it returns only some of the rows.
            Some(all) if all.fetch().is_none() => {
                let count = all.input().properties().partitioning.partition_count();
                (0..count).map(|part| all.input().execute(part, context.clone())).collect::<Result<_>>()?
            }
            _ => vec![below.execute(partition, context)?],
        };
        let ordering = NumberOrdering {
            inputs,
            schema: self.original.schema(),
            shared: self.shared.clone(),
            claim: self.claim.clone(),
            counters: self.counters.clone(),
            numbers: numbers.clone(),
            name: self.counters.ran().operator,
            left: self.fetch.unwrap_or(usize::MAX),
        };
        Ok(ordering.run())
    }

    fn run(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if let Some(numbers) = &self.numbers {
            return self.run_numbers(numbers, partition, context);
        }
        let input = self.original.children()[0].execute(partition, context)?;
        let (claim, counters) = (self.claim.clone(), self.counters.clone());
        let memory = move || claim.take("sorting");
        Ok(sorted(&self.shared, input, &self.keys, self.fetch, memory, move |sorted, rows| {
            counters.add_way(if sorted.stats().runs > 0 { "sort-reduce" } else { "in memory" }, rows);
            counters.add_row_sort(&sorted.stats());
        }))
    }
}
