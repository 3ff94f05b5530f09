//! ORDER BY in any memory: a sort of rows.

use std::sync::Arc;

use arrow::{
    compute::SortOptions,
    datatypes::{Field, Schema, SchemaRef},
    record_batch::RecordBatch,
};
use datafusion::{
    error::Result,
    execution::{SendableRecordBatchStream, TaskContext},
    physical_expr::{LexOrdering, PhysicalSortExpr, expressions::Column},
    physical_plan::{
        ExecutionPlan, PhysicalExpr,
        coalesce_partitions::CoalescePartitionsExec,
        sorts::{sort::SortExec, sort_preserving_merge::SortPreservingMergeExec},
        stream::RecordBatchStreamAdapter,
    },
};
use futures::{StreamExt, stream};
use inshore_sortreduce::rows::{FramedRows, KeepAll, RowConfig, RowSort, SortedRows};
use inshore_store::{Budget, Job};
use inshore_tables::RowCodec;

use crate::{
    Error,
    files::BATCH_ROWS,
    group::{BLOCK_BYTES, FEW_ROWS, is_sortable},
    memory::Claim,
    number_order::{NumberOrdering, are_many},
    numbers::NumberRows,
    operator::{Limits, Notes, Shared, stands_for_original},
};

/// Sorts rows; see the module.
#[derive(Debug)]
pub(crate) struct Order {
    original: Arc<dyn ExecutionPlan>,
    shared: Shared,
    claim: Arc<Claim>,
    notes: Arc<Notes>,
    keys: Arc<Keys>,
    /// Where rows are numbers, and many.
    numbers: Option<Arc<NumberRows>>,
    fetch: Option<usize>,
}

stands_for_original!(Order, "SortReduceOrder");

impl Order {
    /// What stands in the place of a node of the library's, if it can.
    pub fn of(node: &Arc<dyn ExecutionPlan>, shared: &Shared) -> Result<Option<Order>> {
        if let Some(merge) = node.downcast_ref::<SortPreservingMergeExec>() {
            return Order::gathering(merge, shared);
        }
        let Some(sort) = node.downcast_ref::<SortExec>() else { return Ok(None) };
        // The first few are kept in a heap.
        if sort.fetch().is_some_and(|rows| rows <= FEW_ROWS) || !is_sortable(&sort.schema()) {
            return Ok(None);
        }
        let keys = Keys::new(&sort.input().schema(), sort.expr())?;
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
            notes: shared.notes(format!("ORDER BY {}", sort.expr())),
            keys: Arc::new(keys),
            numbers: numbers.map(Arc::new),
            fetch: sort.fetch(),
        }))
    }

    /// Instead of merging what sorts of numbers give, one sort that takes the rows of all their partitions.
    fn gathering(merge: &SortPreservingMergeExec, shared: &Shared) -> Result<Option<Order>> {
        let order = merge.input().downcast_ref::<Order>().filter(|order| order.numbers.is_some());
        let Some((order, sort)) =
            order.and_then(|order| Some((order, order.original.downcast_ref::<SortExec>()?)))
        else {
            return Ok(None);
        };
        let all = Arc::new(CoalescePartitionsExec::new(sort.input().clone()));
        let fetch = merge.fetch().into_iter().chain(sort.fetch()).min();
        // What is constant in each partition is sorted by in the merge alone.
        let sort: Arc<dyn ExecutionPlan> =
            Arc::new(SortExec::new(merge.expr().clone(), all).with_fetch(fetch));
        let ours = Order::of(&sort, shared)?;
        if ours.is_some() {
            order.claim.drop_floor();
            shared.forget(&order.notes);
        }
        Ok(ours)
    }

    /// Sorts numbers: all partitions that an exchange would bring together.
    fn run_numbers(
        &self,
        numbers: &Arc<NumberRows>,
        partition: usize,
        context: Arc<TaskContext>,
    ) -> Result<SendableRecordBatchStream> {
        let below = self.original.children()[0];
        let inputs = match below.downcast_ref::<CoalescePartitionsExec>() {
            // With a limit it gives some of the rows only.
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
            notes: self.notes.clone(),
            numbers: numbers.clone(),
            name: self.notes.ran().operator,
            left: self.fetch.unwrap_or(usize::MAX),
        };
        Ok(ordering.run())
    }

    fn run(&self, partition: usize, context: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        if let Some(numbers) = &self.numbers {
            return self.run_numbers(numbers, partition, context);
        }
        let input = self.original.children()[0].execute(partition, context)?;
        let (claim, notes) = (self.claim.clone(), self.notes.clone());
        let memory = move || claim.take("sorting");
        Ok(sorted(&self.shared, input, &self.keys, self.fetch, memory, move |sorted, rows| {
            notes.went(if sorted.stats().runs > 0 { "sort-reduce" } else { "in memory" }, rows);
            notes.sorted(&sorted.stats());
        }))
    }
}

/// By what rows are sorted.
#[derive(Debug)]
pub(crate) struct Keys {
    /// The columns of the rows, then those that are computed for the order alone.
    schema: SchemaRef,
    /// How many columns the rows have.
    columns: usize,
    computed: Vec<Arc<dyn PhysicalExpr>>,
    keys: Vec<(usize, SortOptions)>,
}

impl Keys {
    pub fn new(rows: &SchemaRef, order: &LexOrdering) -> Result<Keys> {
        let columns = rows.fields().len();
        // Rows know nulls, whatever a field says of itself.
        let field = |(index, field): (usize, &Arc<Field>)| {
            Field::new(format!("{index}"), field.data_type().clone(), true)
        };
        let mut fields: Vec<Field> = rows.fields().iter().enumerate().map(field).collect();
        let (mut computed, mut keys) = (Vec::new(), Vec::new());
        for PhysicalSortExpr { expr, options } in order {
            let place = match expr.downcast_ref::<Column>() {
                Some(column) => column.index(),
                None => {
                    fields.push(Field::new(format!("{}", fields.len()), expr.data_type(rows)?, true));
                    computed.push(expr.clone());
                    fields.len() - 1
                }
            };
            if !keys.iter().any(|&(key, _)| key == place) {
                keys.push((place, *options));
            }
        }
        Ok(Keys { schema: Arc::new(Schema::new(fields)), columns, computed, keys })
    }

    /// Whether all of it can be turned into bytes and back.
    pub fn is_sortable(&self) -> bool {
        is_sortable(&self.schema)
    }

    fn rows(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let mut columns = batch.columns().to_vec();
        for computed in &self.computed {
            columns.push(computed.evaluate(batch)?.into_array(batch.num_rows())?);
        }
        Ok(RecordBatch::try_new(self.schema.clone(), columns)?)
    }
}

/// The rows of `input` in order, at most `fetch`; sorted in the part of the budget that `memory` gives when the first rows
/// come. `tell` hears what came of it, with the rows that came in.
pub(crate) fn sorted(
    shared: &Shared,
    input: SendableRecordBatchStream,
    keys: &Arc<Keys>,
    fetch: Option<usize>,
    memory: impl FnOnce() -> inshore_store::Result<Budget> + Send + 'static,
    tell: impl FnOnce(&SortedRows<FramedRows, KeepAll>, u64) + Send + 'static,
) -> SendableRecordBatchStream {
    let schema = input.schema();
    let ordering = Ordering {
        input: Some(input),
        schema: schema.clone(),
        job: shared.job.clone(),
        limits: shared.limits,
        keys: keys.clone(),
        left: fetch.unwrap_or(usize::MAX),
        memory: Some(Box::new(memory)),
        tell: Some(Box::new(tell)),
        sort: None,
        sorted: None,
        giving: None,
        rows_in: 0,
        block: Vec::new(),
    };
    let batches = stream::try_unfold(ordering, |mut ordering| async move {
        Ok(ordering.next().await?.map(|batch| (batch, ordering)))
    });
    Box::pin(RecordBatchStreamAdapter::new(schema, batches))
}

type Tell = dyn FnOnce(&SortedRows<FramedRows, KeepAll>, u64) + Send;

/// One partition at work.
struct Ordering {
    input: Option<SendableRecordBatchStream>,
    schema: SchemaRef,
    job: Job,
    limits: Limits,
    keys: Arc<Keys>,
    /// Rows to be given.
    left: usize,
    memory: Option<Box<dyn FnOnce() -> inshore_store::Result<Budget> + Send>>,
    tell: Option<Box<Tell>>,
    sort: Option<(RowCodec, RowSort<FramedRows, KeepAll>)>,
    sorted: Option<(RowCodec, SortedRows<FramedRows, KeepAll>)>,
    /// A batch of which so many rows were given.
    giving: Option<(RecordBatch, usize)>,
    rows_in: u64,
    block: Vec<u8>,
}

impl Ordering {
    async fn next(&mut self) -> Result<Option<RecordBatch>> {
        while let Some(input) = &mut self.input {
            match input.next().await.transpose()? {
                Some(batch) if batch.num_rows() > 0 => self.add(&batch)?,
                Some(_) => {}
                None => {
                    self.input = None;
                    self.finish()?;
                }
            }
        }
        loop {
            if let Some((batch, given)) = &mut self.giving
                && *given < batch.num_rows()
                && self.left > 0
            {
                let rows = BATCH_ROWS.min(batch.num_rows() - *given).min(self.left);
                let piece = batch.slice(*given, rows);
                *given += rows;
                self.left -= rows;
                return Ok(Some(piece));
            }
            self.giving = None;
            let Some((codec, sorted)) = self.sorted.as_mut().filter(|_| self.left > 0) else {
                return Ok(None);
            };
            self.block.clear();
            sorted.append(&mut self.block, BLOCK_BYTES).map_err(Error::from)?;
            if self.block.is_empty() {
                self.sorted = None;
                return Ok(None);
            }
            let rows = codec.decode(&self.block).map_err(Error::from)?;
            let columns = rows.columns()[..self.keys.columns].to_vec();
            self.giving = Some((RecordBatch::try_new(self.schema.clone(), columns)?, 0));
        }
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        if let Some(memory) = self.memory.take() {
            let part = memory().map_err(Error::from)?;
            let codec = RowCodec::new("ORDER BY", &self.keys.schema, &self.keys.keys).map_err(Error::from)?;
            let memory_bytes = part.memory_bytes();
            let arena_bytes = self.limits.arena_bytes;
            let config =
                RowConfig { memory_bytes, threads: 1, arena_bytes, name: "order", ..RowConfig::default() };
            let sort = RowSort::new(&self.job.within(part), RowCodec::SHAPE, KeepAll, &config);
            self.sort = Some((codec, sort.map_err(Error::from)?));
        }
        let (codec, sort) = self.sort.as_mut().expect("set above");
        let rows = self.keys.rows(batch)?;
        self.rows_in += rows.num_rows() as u64;
        for start in (0..rows.num_rows()).step_by(BATCH_ROWS) {
            let piece = rows.slice(start, BATCH_ROWS.min(rows.num_rows() - start));
            self.block.clear();
            codec.encode(&piece, &mut self.block).map_err(Error::from)?;
            sort.write(&self.block).map_err(Error::from)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let Some((codec, sort)) = self.sort.take() else { return Ok(()) };
        let sorted = sort.finish().map_err(Error::from)?;
        if let Some(tell) = self.tell.take() {
            tell(&sorted, self.rows_in);
        }
        self.sorted = Some((codec, sorted));
        Ok(())
    }
}
