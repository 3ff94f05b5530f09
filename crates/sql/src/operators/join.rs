//! Equi-joins that run in any amount of memory.
//!
//! ```text
//!   left ──► collected in memory ──(all rows fit)──► DataFusion's hash join with right
//!               │ memory is full
//!               ▼
//!            sorted ──┐
//!   right ─► sorted ──┴──► merged
//! ```
//!
//! For NOT IN, the sort of the right side also records whether a key is null. The merge begins after that.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use arrow::{
    array::Array,
    compute::{SortOptions, filter_record_batch, is_not_null},
    datatypes::SchemaRef,
    record_batch::RecordBatch,
};
use datafusion::{
    common::{
        JoinSide,
        tree_node::{Transformed, TreeNode},
        utils::memory::get_record_batch_memory_size,
    },
    error::Result,
    execution::{
        SendableRecordBatchStream, TaskContext,
        memory_pool::UnboundedMemoryPool,
        runtime_env::{RuntimeEnv, RuntimeEnvBuilder},
    },
    physical_expr::{LexOrdering, PhysicalSortExpr, expressions::Column},
    physical_plan::{
        ExecutionPlan, PhysicalExpr,
        coalesce_partitions::CoalescePartitionsExec,
        joins::{HashJoinExec, HashJoinExecBuilder, PartitionMode, SortMergeJoinExec, utils::JoinFilter},
        stream::RecordBatchStreamAdapter,
    },
};
use futures::{StreamExt, TryStreamExt, stream};
use inshore_store::Reservation;

use super::{
    delegate::delegate_to_original,
    row_sort::{SortKeys, sorted},
    shared::{Counters, Shared},
    stream_exec::StreamExec,
};
use crate::{Error, memory::Claim};

/// The memory that DataFusion's hash table takes per row of the left side, in addition to the row itself.
const TABLE_BYTES_A_ROW: u64 = 40;

/// The plan node of an equi-join; see the module's documentation.
#[derive(Debug)]
pub(crate) struct Join {
    original: Arc<dyn ExecutionPlan>,
    shared: Shared,
    claim: Arc<Claim>,
    counters: Arc<Counters>,
    orders: Arc<SortOrders>,
}

delegate_to_original!(Join, "SortReduceJoin");

/// The sort keys of both sides, and the order that the result must have.
#[derive(Debug)]
struct SortOrders {
    left: Arc<SortKeys>,
    right: Arc<SortKeys>,
    options: Vec<SortOptions>,
    result: Option<Arc<SortKeys>>,
    partitions: usize,
}

impl SortOrders {
    /// Returns the number of concurrent sorts in one partition.
    fn sorts(&self) -> usize {
        if self.result.is_some() { 3 } else { 2 }
    }
}

impl Join {
    /// Creates the plan node that replaces a hash join of DataFusion. Returns `None` if DataFusion's hash join is
    /// kept.
    pub fn of(node: &Arc<dyn ExecutionPlan>, shared: &Shared) -> Result<Option<Join>> {
        let Some(join) = node.downcast_ref::<HashJoinExec>() else { return Ok(None) };
        let partitions = |side: &Arc<dyn ExecutionPlan>| side.properties().partitioning.partition_count();
        // NOT IN depends on whether any partition of the right side has a null key, so the right side becomes one
        // partition.
        let gathered = match join.null_aware && partitions(join.left()) == 1 && partitions(join.right()) > 1 {
            true => Some(gather_right(join)?),
            false => None,
        };
        let node = gathered.as_ref().unwrap_or(node);
        let join = node.downcast_ref::<HashJoinExec>().expect("the same node, or one with another child");
        let (left, right) = (partitions(join.left()), partitions(join.right()));
        // DataFusion's node is kept if all partitions of the right side share one left side, since that side is
        // small.
        if left != right || (*join.partition_mode() != PartitionMode::Partitioned && left != 1) {
            return Ok(None);
        }
        let keys = |side: &Arc<dyn ExecutionPlan>,
                    keys: Vec<Arc<dyn PhysicalExpr>>|
         -> Result<Option<Arc<SortKeys>>> {
            let order =
                keys.into_iter().map(|expr| PhysicalSortExpr { expr, options: SortOptions::default() });
            let Some(order) = LexOrdering::new(order) else { return Ok(None) };
            let keys = SortKeys::new(&side.schema(), &order)?;
            Ok(keys.is_sortable().then(|| Arc::new(keys)))
        };
        let (on_left, on_right) = join.on().iter().cloned().unzip();
        let (Some(by_left), Some(by_right)) = (keys(join.left(), on_left)?, keys(join.right(), on_right)?)
        else {
            return Ok(None);
        };
        let result = match node.properties().output_ordering() {
            Some(order) => Some(Arc::new(SortKeys::new(&node.schema(), order)?)),
            None => None,
        };
        if result.as_ref().is_some_and(|result| !result.is_sortable()) {
            return Ok(None);
        }
        let on: Vec<String> = join.on().iter().map(|(left, right)| format!("{left} = {right}")).collect();
        let orders = SortOrders {
            left: by_left,
            right: by_right,
            options: vec![SortOptions::default(); join.on().len()],
            partitions: left,
            result,
        };
        Ok(Some(Join {
            original: node.clone(),
            shared: shared.clone(),
            claim: shared.memory.expect(left, orders.sorts()),
            counters: shared.counters(format!("{} JOIN ON {}", join.join_type(), on.join(" AND "))),
            orders: Arc::new(orders),
        }))
    }

    fn join(&self) -> &HashJoinExec {
        self.original.downcast_ref::<HashJoinExec>().expect("looked at when it was replaced")
    }

    fn run(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let schema = self.original.schema();
        let left_side = LeftSide {
            left: self.join().left().execute(partition, context.clone())?,
            right: self.join().right().execute(partition, context.clone())?,
            original: self.original.clone(),
            shared: self.shared.clone(),
            claim: self.claim.clone(),
            counters: self.counters.clone(),
            orders: self.orders.clone(),
            context,
            schema: schema.clone(),
        };
        let joined = stream::once(left_side.join()).try_flatten();
        Ok(Box::pin(RecordBatchStreamAdapter::new(schema, joined)))
    }
}

/// A partition that collects the rows of its left side in memory.
struct LeftSide {
    left: SendableRecordBatchStream,
    right: SendableRecordBatchStream,
    original: Arc<dyn ExecutionPlan>,
    shared: Shared,
    claim: Arc<Claim>,
    counters: Arc<Counters>,
    orders: Arc<SortOrders>,
    context: Arc<TaskContext>,
    schema: SchemaRef,
}

impl LeftSide {
    async fn join(mut self) -> Result<SendableRecordBatchStream> {
        let memory = self.claim.memory().clone();
        let mut held = memory.nothing("one side of a join").map_err(Error::from)?;
        let most = self.shared.job.budget().memory_bytes() / 2 / self.orders.partitions as u64;
        let most = most.min(self.shared.limits.table_bytes.unwrap_or(u64::MAX));
        let mut gathered: Vec<RecordBatch> = Vec::new();
        let mut rows = 0;
        while let Some(batch) = self.left.next().await.transpose()? {
            self.shared.job.check_cancelled().map_err(Error::from)?;
            if batch.num_rows() == 0 {
                continue;
            }
            rows += batch.num_rows() as u64;
            // The hash join first copies all batches into one batch, so the rows are in memory twice.
            let bytes = 2 * get_record_batch_memory_size(&batch) as u64;
            let bytes = bytes + TABLE_BYTES_A_ROW * batch.num_rows() as u64;
            gathered.push(batch);
            if held.bytes() + bytes > most || !memory.hold(&mut held, bytes) {
                return self.merge(gathered, held).await;
            }
        }
        self.claim.drop_floor();
        self.counters.add_way("hash join", rows);
        self.hash(gathered, held)
    }

    /// Runs DataFusion's hash join, with the collected rows as its left side.
    fn hash(self, gathered: Vec<RecordBatch>, held: Reservation) -> Result<SendableRecordBatchStream> {
        let left_schema = self.left.schema();
        drop(self.left);
        let left = stream::iter(gathered.into_iter().map(Ok));
        let left = StreamExec::plan(Box::pin(RecordBatchStreamAdapter::new(left_schema, left)));
        let join = self.original.downcast_ref::<HashJoinExec>().expect("looked at when it was replaced");
        let join = HashJoinExecBuilder::from(join)
            .with_new_children(vec![left, StreamExec::plan(self.right)])?
            .with_partition_mode(PartitionMode::Partitioned)
            .reset_state()
            .recompute_properties()
            .build()?;
        // The memory of the hash join is already reserved, so its memory pool has no limit.
        let runtime = RuntimeEnvBuilder::from_runtime_env(&self.context.runtime_env())
            .with_memory_pool(Arc::new(UnboundedMemoryPool::default()))
            .build_arc()?;
        let joined = join.execute(0, Arc::new(with_runtime(&self.context, runtime)))?;
        Ok(keeping(self.schema, joined, held))
    }

    /// Sorts both sides and merges them.
    async fn merge(self, gathered: Vec<RecordBatch>, held: Reservation) -> Result<SendableRecordBatchStream> {
        drop(held);
        let join = self.original.downcast_ref::<HashJoinExec>().expect("looked at when it was replaced");
        let part = self.claim.take("sorting both sides of a join").map_err(Error::from)?;
        let share = part.memory_bytes() / self.orders.sorts() as u64;
        let counters = self.counters.clone();
        let sort = |rows: SendableRecordBatchStream, keys: &Arc<SortKeys>| {
            let (part, counters) = (part.clone(), counters.clone());
            let memory = move || Ok(part.part(share, 1, "sorting one side of a join")?);
            sorted(&self.shared, rows, keys, None, memory, move |sorted, rows| {
                counters.add_way("sort-merge join", rows);
                counters.add_row_sort(&sorted.stats());
            })
        };
        let left_schema = self.left.schema();
        let left = stream::iter(gathered.into_iter().map(Ok)).chain(self.left);
        let left = sort(Box::pin(RecordBatchStreamAdapter::new(left_schema, left)), &self.orders.left);
        let nulls = Arc::new(NullCheck::default());
        let right_side = match join.null_aware {
            true => nulls.watch(self.right, join.on()[0].1.clone()),
            false => self.right,
        };
        let right = sort(right_side, &self.orders.right);
        // A sort returns its first batch after it has read all its input rows. The left side is sorted first, since
        // its collected rows take memory.
        let (left, right) = match join.null_aware {
            true => (with_first_batch(left).await?, with_first_batch(right).await?),
            false => (left, right),
        };
        if nulls.has_null.load(Ordering::Relaxed) {
            return Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema, stream::empty())));
        }
        let merged = SortMergeJoinExec::try_new(
            StreamExec::plan(left),
            StreamExec::plan(right),
            join.on().to_vec(),
            join.filter().map(left_first).transpose()?,
            *join.join_type(),
            self.orders.options.clone(),
            join.null_equality(),
        )?;
        let merged = merged.execute(0, self.context.clone())?;
        let merged = match join.null_aware && nulls.has_rows.load(Ordering::Relaxed) {
            true => without_null_keys(merged, join.on()[0].0.clone()),
            false => merged,
        };
        let (schema, projection) = (self.schema.clone(), join.projection.clone());
        let project = move |batch: RecordBatch| {
            let columns = match &projection {
                Some(projection) => projection.iter().map(|&index| batch.column(index).clone()).collect(),
                None => batch.columns().to_vec(),
            };
            let options =
                arrow::record_batch::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
            Ok(RecordBatch::try_new_with_options(schema.clone(), columns, &options)?)
        };
        let merged = merged.map(move |batch| batch.and_then(&project));
        let merged: SendableRecordBatchStream =
            Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), merged));
        let merged = match &self.orders.result {
            Some(order) => sort(merged, order),
            None => merged,
        };
        Ok(limited(self.schema, merged, join.fetch()))
    }
}

/// Combines all partitions of the right side into one, for a join that treats nulls as NOT IN does.
fn gather_right(join: &HashJoinExec) -> Result<Arc<dyn ExecutionPlan>> {
    let right = Arc::new(CoalescePartitionsExec::new(join.right().clone()));
    let join = HashJoinExecBuilder::from(join).with_new_children(vec![join.left().clone(), right])?;
    Ok(Arc::new(join.recompute_properties().build()?))
}

/// Records for NOT IN whether the right side has rows, and whether a key is null. If a key is null, the result is
/// empty. If the right side has no rows, the result has all rows of the left side, including rows with a null key.
#[derive(Default)]
struct NullCheck {
    has_null: AtomicBool,
    has_rows: AtomicBool,
}

impl NullCheck {
    /// Returns the rows of the right side unchanged. Records whether the side has rows, and whether a key is null.
    fn watch(
        self: &Arc<Self>,
        rows: SendableRecordBatchStream,
        key: Arc<dyn PhysicalExpr>,
    ) -> SendableRecordBatchStream {
        let (schema, check) = (rows.schema(), self.clone());
        let rows = rows.map(move |batch| {
            let batch = batch?;
            if batch.num_rows() > 0 {
                let keys = key.evaluate(&batch)?.into_array(batch.num_rows())?;
                check.has_rows.store(true, Ordering::Relaxed);
                check.has_null.fetch_or(keys.logical_null_count() > 0, Ordering::Relaxed);
            }
            Ok(batch)
        });
        Box::pin(RecordBatchStreamAdapter::new(schema, rows))
    }
}

/// Waits for the first batch, and returns a stream of all rows including that batch.
async fn with_first_batch(mut rows: SendableRecordBatchStream) -> Result<SendableRecordBatchStream> {
    let schema = rows.schema();
    let first = rows.next().await.transpose()?;
    let all = stream::iter(first.map(Ok)).chain(rows);
    Ok(Box::pin(RecordBatchStreamAdapter::new(schema, all)))
}

/// Returns only the rows whose key is not null.
fn without_null_keys(
    rows: SendableRecordBatchStream,
    key: Arc<dyn PhysicalExpr>,
) -> SendableRecordBatchStream {
    let schema = rows.schema();
    let rows = rows.map(move |batch| {
        let batch = batch?;
        let keys = key.evaluate(&batch)?.into_array(batch.num_rows())?;
        Ok(filter_record_batch(&batch, &is_not_null(&keys)?)?)
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}

/// Reorders the columns of a join filter: first the columns of the left side, then those of the right side.
/// DataFusion's merge join assumes this order (`get_filter_columns` in DataFusion 55.2). The planner violates the
/// order if it swaps the sides.
fn left_first(filter: &JoinFilter) -> Result<JoinFilter> {
    let indices = filter.column_indices();
    let mut order: Vec<usize> = (0..indices.len()).collect();
    order.sort_by_key(|&place| indices[place].side != JoinSide::Left);
    let moved = |expr: Arc<dyn PhysicalExpr>| {
        let Some(column) = expr.downcast_ref::<Column>() else { return Ok(Transformed::no(expr)) };
        let place = order.iter().position(|&place| place == column.index()).unwrap_or(column.index());
        Ok(Transformed::yes(Arc::new(Column::new(column.name(), place)) as Arc<dyn PhysicalExpr>))
    };
    let expression = filter.expression().clone().transform(moved)?.data;
    let schema = Arc::new(filter.schema().project(&order)?);
    let indices = order.iter().map(|&place| indices[place].clone()).collect();
    Ok(JoinFilter::new(expression, indices, schema))
}

/// Copies a context with another memory pool.
fn with_runtime(context: &TaskContext, runtime: Arc<RuntimeEnv>) -> TaskContext {
    TaskContext::new(
        context.task_id(),
        context.session_id(),
        context.session_config().clone(),
        context.scalar_functions().clone(),
        context.higher_order_functions().clone(),
        context.aggregate_functions().clone(),
        context.window_functions().clone(),
        runtime,
    )
}

/// Returns the rows unchanged, and releases the reservation `held` after the last row.
fn keeping(
    schema: SchemaRef,
    rows: SendableRecordBatchStream,
    held: Reservation,
) -> SendableRecordBatchStream {
    let rows = stream::unfold((rows, held), |(mut rows, held)| async move {
        rows.next().await.map(|batch| (batch, (rows, held)))
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}

/// Returns the first `fetch` rows, or all rows if `fetch` is `None`.
fn limited(
    schema: SchemaRef,
    rows: SendableRecordBatchStream,
    fetch: Option<usize>,
) -> SendableRecordBatchStream {
    let Some(fetch) = fetch else { return rows };
    let rows = stream::unfold((rows, fetch), |(mut rows, left)| async move {
        if left == 0 {
            return None;
        }
        let batch = rows.next().await?.map(|batch| batch.slice(0, left.min(batch.num_rows())));
        let given = batch.as_ref().map_or(left, RecordBatch::num_rows);
        Some((batch, (rows, left - given)))
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}
