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

use std::sync::Arc;

use arrow::{
    array::{Array, ArrayRef, AsArray, BooleanArray, UInt32Array, new_null_array},
    compute::{SortOptions, concat, filter_record_batch, is_not_null, is_null, take},
    datatypes::{Field, Schema, SchemaRef},
    record_batch::RecordBatch,
};
use datafusion::{
    error::Result,
    execution::{SendableRecordBatchStream, TaskContext},
    logical_expr::{EmitTo, GroupsAccumulator},
    physical_expr::{GroupsAccumulatorAdapter, aggregate::AggregateFunctionExpr},
    physical_plan::{
        ExecutionPlan, InputOrderMode, PhysicalExpr,
        aggregates::{
            AggregateExec, AggregateInputMode, AggregateMode, AggregateOutputMode, aggregate_expressions,
            evaluate_group_by, evaluate_many,
            group_values::{GroupValues, new_group_values},
            order::GroupOrdering,
        },
        stream::RecordBatchStreamAdapter,
    },
};
use futures::{StreamExt, stream};
use inshore_sortreduce::rows::{FramedRows, KeepAll, RowConfig, RowShape, RowSort, SortedRows};
use inshore_store::{Budget, Job};
use inshore_tables::{NumberConfig, NumberGroups, RowCodec, SortedGroups};

use super::{
    delegate::delegate_to_original,
    numbers::Numbers,
    row_sort::{BLOCK_BYTES, FEW_ROWS, is_sortable, pieces},
    shared::{Counters, Limits, Shared},
};
use crate::{BATCH_ROWS, Error, memory::Claim};

/// A table of this many bytes fits a processor cache.
const CACHED_BYTES: u64 = 8 << 20;
/// The share of distinct keys among the rows of a full table above which later rows go to the sort directly.
const HARDLY_SHORTER: f64 = 0.7;
/// The same share for records of numbers, which sort-reduce combines faster than a hash table.
const HARDLY_SHORTER_NUMBERS: f64 = 0.05;

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

/// The parts of an aggregate that are the same for all partitions.
#[derive(Debug)]
struct GroupPlan {
    aggregate: AggregateExec,
    arguments: Vec<Vec<Arc<dyn PhysicalExpr>>>,
    is_raw: bool,
    group_schema: SchemaRef,
    /// Keys, then the states of all functions.
    state_schema: SchemaRef,
    /// The number of columns of each function's state.
    state_columns: Vec<usize>,
    numbers: Option<Numbers>,
    schema: SchemaRef,
}

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
        let grouping = PartitionGrouping {
            input: Some(input),
            plan: self.plan.clone(),
            claim: self.claim.clone(),
            job: self.shared.job.clone(),
            limits: self.shared.limits,
            counters: self.counters.clone(),
            part: None,
            table: None,
            sort: None,
            is_direct: false,
            rows_in: 0,
            results_left: None,
        };
        let batches = stream::try_unfold(grouping, |mut grouping| async move {
            Ok(grouping.next().await?.map(|batch| (batch, grouping)))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.plan.schema.clone(), batches)))
    }
}

impl GroupPlan {
    fn new(aggregate: &AggregateExec) -> Result<Option<GroupPlan>> {
        let mode: &AggregateMode = aggregate.mode();
        let is_raw = mode.input_mode() == AggregateInputMode::Raw;
        let input = aggregate.input().schema();
        let group_schema = aggregate.group_expr().group_schema(&input)?;
        let keys = group_schema.fields().len();
        let functions = aggregate.aggr_expr();
        let arguments = aggregate_expressions(functions, mode, aggregate.group_expr().num_group_exprs())?;
        let mut fields: Vec<Arc<Field>> = group_schema.fields().to_vec();
        let mut state_columns = Vec::new();
        for function in functions {
            let state = function.state_fields()?;
            state_columns.push(state.len());
            fields.extend(state);
        }
        // Decoded rows may have nulls in every column, even if the field is declared as not nullable.
        let fields: Vec<Field> = fields
            .iter()
            .enumerate()
            .map(|(index, field)| Field::new(format!("{index}"), field.data_type().clone(), true))
            .collect();
        let state_schema = Arc::new(Schema::new(fields));
        let schema = aggregate.schema();
        let is_plain = schema.fields().len() == keys + functions.len();
        if !is_plain || !is_sortable(&state_schema) {
            return Ok(None);
        }
        let kinds: Vec<_> = state_schema.fields().iter().map(|field| field.data_type().clone()).collect();
        let numbers = Numbers::of(aggregate, &kinds[..keys], &kinds[keys..])?;
        let aggregate = aggregate.clone();
        Ok(Some(GroupPlan {
            aggregate,
            arguments,
            is_raw,
            group_schema,
            state_schema,
            state_columns,
            numbers,
            schema,
        }))
    }

    fn functions(&self) -> &[Arc<AggregateFunctionExpr>] {
        self.aggregate.aggr_expr()
    }

    fn accumulators(&self) -> Result<Vec<Box<dyn GroupsAccumulator>>> {
        let make = |function: &Arc<AggregateFunctionExpr>| -> Result<Box<dyn GroupsAccumulator>> {
            if function.groups_accumulator_supported() {
                return function.create_groups_accumulator();
            }
            let function = function.clone();
            Ok(Box::new(GroupsAccumulatorAdapter::new(move || function.create_accumulator())))
        };
        self.functions().iter().map(make).collect()
    }

    /// Names the operator for reports.
    fn name(&self) -> String {
        let names = self.group_schema.fields().iter().map(|field| field.name().as_str());
        format!("GROUP BY {}", names.collect::<Vec<_>>().join(", "))
    }

    fn key_count(&self) -> usize {
        self.group_schema.fields().len()
    }

    /// Evaluates the functions for groups whose states were added, and appends the results to the key columns.
    fn results(
        &self,
        mut columns: Vec<ArrayRef>,
        functions: &mut [Box<dyn GroupsAccumulator>],
        which: EmitTo,
    ) -> Result<RecordBatch> {
        for function in functions {
            columns.push(function.evaluate(which)?);
        }
        Ok(RecordBatch::try_new(self.schema.clone(), columns)?)
    }

    /// Adds states to the functions; `places` has the group of each state.
    fn merge(
        &self,
        functions: &mut [Box<dyn GroupsAccumulator>],
        mut states: &[ArrayRef],
        places: &[usize],
        groups: usize,
    ) -> Result<()> {
        for (function, &count) in functions.iter_mut().zip(&self.state_columns) {
            let (own, rest) = states.split_at(count);
            function.merge_batch(own, places, groups)?;
            states = rest;
        }
        Ok(())
    }

    /// Evaluates the keys of all rows for each grouping set, the arguments of all functions, and their filters.
    fn evaluate(&self, batch: &RecordBatch) -> Result<EvaluatedRows> {
        let keys = evaluate_group_by(self.aggregate.group_expr(), batch)?;
        let arguments = evaluate_many(&self.arguments, batch)?;
        let filter = |filter: &Option<Arc<dyn PhysicalExpr>>| match filter {
            Some(filter) if self.is_raw => {
                let chosen = filter.evaluate(batch)?.into_array(batch.num_rows())?;
                Ok(Some(chosen.as_boolean().clone()))
            }
            _ => Ok(None),
        };
        let filters = self.aggregate.filter_expr().iter().map(filter).collect::<Result<_>>()?;
        Ok(EvaluatedRows { keys, arguments, filters })
    }
}

struct EvaluatedRows {
    keys: Vec<Vec<ArrayRef>>,
    arguments: Vec<Vec<ArrayRef>>,
    filters: Vec<Option<BooleanArray>>,
}

/// A table of groups in memory.
struct GroupTable {
    keys: Box<dyn GroupValues>,
    functions: Vec<Box<dyn GroupsAccumulator>>,
    places: Vec<usize>,
    rows: u64,
}

impl GroupTable {
    fn new(plan: &GroupPlan) -> Result<GroupTable> {
        let keys = new_group_values(plan.group_schema.clone(), &GroupOrdering::None)?;
        Ok(GroupTable { keys, functions: plan.accumulators()?, places: Vec::new(), rows: 0 })
    }

    fn add(&mut self, plan: &GroupPlan, rows: &EvaluatedRows) -> Result<()> {
        for keys in &rows.keys {
            self.keys.intern(keys, &mut self.places)?;
            self.rows += self.places.len() as u64;
            let all = self.keys.len();
            for ((function, values), filter) in
                self.functions.iter_mut().zip(&rows.arguments).zip(&rows.filters)
            {
                match plan.is_raw {
                    true => function.update_batch(values, &self.places, filter.as_ref(), all)?,
                    false => function.merge_batch(values, &self.places, all)?,
                }
            }
        }
        Ok(())
    }

    fn bytes(&self) -> usize {
        let functions: usize = self.functions.iter().map(|function| function.size()).sum();
        self.keys.size() + functions + self.places.capacity() * 8
    }

    fn is_hardly_shorter(&self, plan: &GroupPlan) -> bool {
        let hardly = if plan.numbers.is_some() { HARDLY_SHORTER_NUMBERS } else { HARDLY_SHORTER };
        self.keys.len() as f64 > hardly * self.rows as f64
    }

    /// Takes all groups with their states out of the table.
    fn take_states(&mut self, plan: &GroupPlan) -> Result<RecordBatch> {
        let mut columns = self.keys.emit(EmitTo::All)?;
        for function in &mut self.functions {
            columns.extend(function.state(EmitTo::All)?);
        }
        self.rows = 0;
        Ok(RecordBatch::try_new(plan.state_schema.clone(), columns)?)
    }

    fn results(mut self, plan: &GroupPlan) -> Result<RecordBatch> {
        let columns = self.keys.emit(EmitTo::All)?;
        plan.results(columns, &mut self.functions, EmitTo::All)
    }
}

/// A partition that groups its rows.
struct PartitionGrouping {
    input: Option<SendableRecordBatchStream>,
    plan: Arc<GroupPlan>,
    claim: Arc<Claim>,
    job: Job,
    limits: Limits,
    counters: Arc<Counters>,
    part: Option<Budget>,
    table: Option<GroupTable>,
    sort: Option<StateSort>,
    /// Rows skip the table.
    is_direct: bool,
    rows_in: u64,
    results_left: Option<GroupResults>,
}

/// The sort that states of groups go to.
enum StateSort {
    Rows(Box<StatesAsRows>),
    Numbers(Box<StatesAsNumbers>),
}

struct StatesAsRows {
    codec: RowCodec,
    rows: RowSort<FramedRows, KeepAll>,
    block: Vec<u8>,
}

struct StatesAsNumbers {
    groups: NumberGroups,
    null_group: NullGroup,
}

impl StateSort {
    /// Adds some states.
    fn add(&mut self, plan: &GroupPlan, states: &RecordBatch) -> Result<()> {
        match self {
            StateSort::Rows(sort) => {
                sort.block.clear();
                sort.codec.encode(states, &mut sort.block).map_err(Error::from)?;
                sort.rows.write(&sort.block).map_err(Error::from)?;
            }
            StateSort::Numbers(sort) => {
                let states = sort.null_group.take(plan, states)?;
                sort.groups.add(states.column(0), &states.columns()[1..]).map_err(Error::from)?;
            }
        }
        Ok(())
    }
}

/// The group whose key is null, which a record cannot express.
#[derive(Default)]
struct NullGroup(Option<Vec<Box<dyn GroupsAccumulator>>>);

impl NullGroup {
    /// Stores the states of the group with the null key in `self`, and returns the other groups.
    fn take(&mut self, plan: &GroupPlan, states: &RecordBatch) -> Result<RecordBatch> {
        let key = states.column(0);
        if key.null_count() == 0 {
            return Ok(states.clone());
        }
        let without = filter_record_batch(states, &is_null(key)?)?;
        if self.0.is_none() {
            self.0 = Some(plan.accumulators()?);
        }
        let functions = self.0.as_mut().expect("set above");
        plan.merge(functions, &without.columns()[1..], &vec![0; without.num_rows()], 1)?;
        Ok(filter_record_batch(states, &is_not_null(key)?)?)
    }

    /// Returns the group's result, once.
    fn result(&mut self, plan: &GroupPlan) -> Result<Option<RecordBatch>> {
        let Some(mut functions) = self.0.take() else { return Ok(None) };
        let key = new_null_array(plan.group_schema.field(0).data_type(), 1);
        plan.results(vec![key], &mut functions, EmitTo::All).map(Some)
    }
}

enum GroupResults {
    /// Results in memory, and the number of rows that were returned.
    Memory(RecordBatch, usize),
    Sorted(Box<MergedStates>),
    Numbers(Box<CombinedGroups>),
}

impl PartitionGrouping {
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
        let batch = match &mut self.results_left {
            None => None,
            Some(GroupResults::Memory(all, given)) => {
                let rows = BATCH_ROWS.min(all.num_rows() - *given);
                *given += rows;
                (rows > 0).then(|| all.slice(*given - rows, rows))
            }
            Some(GroupResults::Sorted(merging)) => merging.next()?,
            Some(GroupResults::Numbers(numbered)) => numbered.next()?,
        };
        if batch.is_none() {
            (self.results_left, self.part) = (None, None);
        }
        Ok(batch)
    }

    fn part(&mut self) -> Result<Budget> {
        if self.part.is_none() {
            self.part = Some(self.claim.take("grouping").map_err(Error::from)?);
        }
        Ok(self.part.clone().expect("set above"))
    }

    fn add(&mut self, batch: &RecordBatch) -> Result<()> {
        self.job.check_cancelled().map_err(Error::from)?;
        self.rows_in += batch.num_rows() as u64;
        let limit = (self.part()?.memory_bytes() / 2).min(self.limits.table_bytes.unwrap_or(u64::MAX));
        let plan = self.plan.clone();
        let rows = plan.evaluate(batch)?;
        if self.is_direct {
            return self.sort_rows(&rows);
        }
        if self.table.is_none() {
            self.table = Some(GroupTable::new(&plan)?);
        }
        let table = self.table.as_mut().expect("set above");
        table.add(&plan, &rows)?;
        let bytes = table.bytes() as u64;
        let is_hardly_shorter = table.is_hardly_shorter(&plan);
        // If keys are numbers and few rows share a key, sorting is faster than a hash table larger than the cache.
        let limit = if plan.numbers.is_some() && is_hardly_shorter { limit.min(CACHED_BYTES) } else { limit };
        if bytes <= limit {
            return Ok(());
        }
        self.is_direct = is_hardly_shorter;
        self.sort_table()
    }

    /// Moves the table into the sort.
    fn sort_table(&mut self) -> Result<()> {
        let Some(mut table) = self.table.take() else { return Ok(()) };
        let states = table.take_states(&self.plan)?;
        drop(table);
        self.sort_states(&states)
    }

    /// Sorts rows directly, as states of one row each.
    fn sort_rows(&mut self, rows: &EvaluatedRows) -> Result<()> {
        for keys in &rows.keys {
            let mut columns = keys.clone();
            if self.plan.is_raw {
                let functions = self.plan.accumulators()?;
                for ((function, values), filter) in functions.iter().zip(&rows.arguments).zip(&rows.filters) {
                    columns.extend(function.convert_to_state(values, filter.as_ref())?);
                }
            } else {
                columns.extend(rows.arguments.iter().flatten().cloned());
            }
            self.sort_states(&RecordBatch::try_new(self.plan.state_schema.clone(), columns)?)?;
        }
        Ok(())
    }

    fn sort_states(&mut self, states: &RecordBatch) -> Result<()> {
        if self.sort.is_none() {
            self.sort = Some(self.new_sort()?);
        }
        let sort = self.sort.as_mut().expect("set above");
        for piece in pieces(states) {
            sort.add(&self.plan, &piece)?;
        }
        Ok(())
    }

    fn new_sort(&mut self) -> Result<StateSort> {
        let part = self.part()?;
        let memory_bytes = part.memory_bytes() / 2;
        let job = self.job.within(part);
        let plan = &self.plan;
        if let Some(numbers) = &plan.numbers
            && memory_bytes >= NumberGroups::smallest_memory_bytes()
        {
            let partitions = plan.aggregate.input().properties().partitioning.partition_count() as u64;
            let config = NumberConfig {
                range: numbers.range,
                rows: numbers.rows.map(|rows| rows / partitions),
                memory_bytes,
                chunk_bytes: self.limits.arena_bytes,
            };
            let name = plan.name();
            let groups = NumberGroups::new(&job, &name, &numbers.key, &numbers.states, &config);
            let groups = groups.map_err(Error::from)?;
            return Ok(StateSort::Numbers(Box::new(StatesAsNumbers {
                groups,
                null_group: NullGroup::default(),
            })));
        }
        let keys: Vec<_> = (0..plan.key_count()).map(|column| (column, SortOptions::default())).collect();
        let codec = RowCodec::new("GROUP BY", &plan.state_schema, &keys).map_err(Error::from)?;
        let arena_bytes = self.limits.arena_bytes;
        let config =
            RowConfig { memory_bytes, threads: 1, arena_bytes, name: "group", ..RowConfig::default() };
        let rows = RowSort::new(&job, RowCodec::SHAPE, KeepAll, &config).map_err(Error::from)?;
        Ok(StateSort::Rows(Box::new(StatesAsRows { codec, rows, block: Vec::new() })))
    }

    fn finish(&mut self) -> Result<()> {
        if self.sort.is_some() {
            self.sort_table()?;
        }
        match self.sort.take() {
            Some(StateSort::Rows(sort)) => {
                let StatesAsRows { codec, rows, .. } = *sort;
                let sorted = rows.finish().map_err(Error::from)?;
                self.counters.add_way("sort-reduce", self.rows_in);
                self.counters.add_row_sort(&sorted.stats());
                let merging = MergedStates::new(self.plan.clone(), codec, sorted)?;
                self.results_left = Some(GroupResults::Sorted(Box::new(merging)));
            }
            Some(StateSort::Numbers(sort)) => {
                let StatesAsNumbers { groups, null_group } = *sort;
                let sorted = groups.finish().map_err(Error::from)?;
                self.counters.add_way("sort-reduce of numbers", self.rows_in);
                self.counters.add_sort_reduce(&sorted.stats());
                let functions = self.plan.accumulators()?;
                let numbered = CombinedGroups {
                    plan: self.plan.clone(),
                    sorted,
                    functions,
                    null_group,
                    results_left: None,
                };
                self.results_left = Some(GroupResults::Numbers(Box::new(numbered)));
            }
            None => {
                self.counters.add_way("in memory", self.rows_in);
                if let Some(table) = self.table.take() {
                    self.results_left = Some(GroupResults::Memory(table.results(&self.plan)?, 0));
                }
            }
        }
        Ok(())
    }
}

/// Groups whose states sort-reduce has combined already.
struct CombinedGroups {
    plan: Arc<GroupPlan>,
    sorted: SortedGroups,
    functions: Vec<Box<dyn GroupsAccumulator>>,
    null_group: NullGroup,
    /// A batch, and the number of its rows that were returned.
    results_left: Option<(RecordBatch, usize)>,
}

impl CombinedGroups {
    fn next(&mut self) -> Result<Option<RecordBatch>> {
        loop {
            if let Some((batch, given)) = &mut self.results_left {
                let rows = BATCH_ROWS.min(batch.num_rows() - *given);
                if rows > 0 {
                    *given += rows;
                    return Ok(Some(batch.slice(*given - rows, rows)));
                }
            }
            let Some(mut columns) = self.sorted.next_columns().map_err(Error::from)? else {
                self.results_left = None;
                return self.null_group.result(&self.plan);
            };
            let states = columns.split_off(1);
            let places: Vec<usize> = (0..columns[0].len()).collect();
            self.plan.merge(&mut self.functions, &states, &places, places.len())?;
            let batch = self.plan.results(columns, &mut self.functions, EmitTo::All)?;
            self.results_left = Some((batch, 0));
        }
    }
}

/// Sorted states; states with equal keys are merged.
struct MergedStates {
    plan: Arc<GroupPlan>,
    codec: RowCodec,
    sorted: SortedRows<FramedRows, KeepAll>,
    functions: Vec<Box<dyn GroupsAccumulator>>,
    block: Vec<u8>,
    /// The key of the last row, as bytes and as columns of one row. The next block may have more states of the key.
    open: Option<(Vec<u8>, Vec<ArrayRef>)>,
    ended: bool,
}

impl MergedStates {
    fn new(
        plan: Arc<GroupPlan>,
        codec: RowCodec,
        sorted: SortedRows<FramedRows, KeepAll>,
    ) -> Result<MergedStates> {
        let functions = plan.accumulators()?;
        Ok(MergedStates { plan, codec, sorted, functions, block: Vec::new(), open: None, ended: false })
    }

    fn next(&mut self) -> Result<Option<RecordBatch>> {
        while !self.ended {
            self.block.clear();
            self.sorted.append(&mut self.block, BLOCK_BYTES).map_err(Error::from)?;
            let batch = if self.block.is_empty() { self.close()? } else { self.merge()? };
            if let Some(batch) = batch.filter(|batch| batch.num_rows() > 0) {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// Returns the last group.
    fn close(&mut self) -> Result<Option<RecordBatch>> {
        self.ended = true;
        let Some((_, keys)) = self.open.take() else { return Ok(None) };
        self.plan.results(keys, &mut self.functions, EmitTo::All).map(Some)
    }

    /// Adds a block, and returns the groups that end in it.
    fn merge(&mut self) -> Result<Option<RecordBatch>> {
        let rows = self.codec.decode(&self.block).map_err(Error::from)?;
        let mut places = Vec::with_capacity(rows.num_rows());
        // The first row of each group that begins in this block.
        let mut firsts: Vec<u32> = Vec::new();
        let was_open = self.open.is_some();
        let mut last: Option<&[u8]> = self.open.as_ref().map(|(key, _)| &key[..]);
        let mut rest = &self.block[..];
        while let Some(len) = RowCodec::SHAPE.row_len(rest) {
            let (row, after) = rest.split_at(len);
            let key = RowCodec::SHAPE.key(row);
            if last != Some(key) {
                firsts.push(places.len() as u32);
                last = Some(key);
            }
            places.push(firsts.len() + usize::from(was_open) - 1);
            rest = after;
        }
        let groups = firsts.len() + usize::from(was_open);
        let states = &rows.columns()[self.plan.key_count()..];
        self.plan.merge(&mut self.functions, states, &places, groups)?;
        let open_key = last.expect("a block has rows").to_vec();
        let firsts = UInt32Array::from(firsts);
        let begun = rows.columns()[..self.plan.key_count()].iter().map(|keys| Ok(take(keys, &firsts, None)?));
        let begun = begun.collect::<Result<Vec<ArrayRef>>>()?;
        let keys = match self.open.take() {
            None => begun,
            Some((_, open)) => {
                let join =
                    |(open, begun): (&ArrayRef, &ArrayRef)| Ok(concat(&[open.as_ref(), begun.as_ref()])?);
                open.iter().zip(&begun).map(join).collect::<Result<_>>()?
            }
        };
        let ended = groups - 1;
        // The row is copied: a slice would keep the block's columns.
        let last_row = UInt32Array::from(vec![ended as u32]);
        let open =
            keys.iter().map(|keys| Ok(take(keys, &last_row, None)?)).collect::<Result<Vec<ArrayRef>>>()?;
        self.open = Some((open_key, open));
        if ended == 0 {
            return Ok(None);
        }
        let keys = keys.iter().map(|keys| keys.slice(0, ended)).collect();
        self.plan.results(keys, &mut self.functions, EmitTo::First(ended)).map(Some)
    }
}
