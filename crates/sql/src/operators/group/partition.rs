//! Groups the rows of one partition: first in a hash table, and after the table is full by a sort.

use std::sync::Arc;

use arrow::{compute::SortOptions, record_batch::RecordBatch};
use datafusion::{error::Result, execution::SendableRecordBatchStream};
use futures::StreamExt;
use inshore_sortreduce::rows::{KeepAll, RowConfig, RowSort};
use inshore_store::{Budget, Job};
use inshore_tables::{NumberConfig, NumberGroups, RowCodec};

use super::{
    super::{
        row_sort::pieces,
        shared::{Counters, Limits},
    },
    hash_table::GroupTable,
    plan::{EvaluatedRows, GroupPlan},
    results::{CombinedGroups, GroupResults, MergedStates},
    state_sort::{NullGroup, StateSort, StatesAsNumbers, StatesAsRows},
};
use crate::{BATCH_ROWS, Error, memory::Claim};

/// The maximum bytes of a hash table that fits a processor cache.
const CACHED_BYTES: u64 = 8 << 20;

/// The state of the grouping of one partition.
pub(super) struct PartitionGrouping {
    input: Option<SendableRecordBatchStream>,
    plan: Arc<GroupPlan>,
    claim: Arc<Claim>,
    job: Job,
    limits: Limits,
    counters: Arc<Counters>,
    part: Option<Budget>,
    table: Option<GroupTable>,
    sort: Option<StateSort>,
    /// True if rows go directly to the sort, without the hash table.
    is_direct: bool,
    rows_in: u64,
    results_left: Option<GroupResults>,
}

impl PartitionGrouping {
    pub fn new(
        input: SendableRecordBatchStream,
        plan: Arc<GroupPlan>,
        claim: Arc<Claim>,
        job: Job,
        limits: Limits,
        counters: Arc<Counters>,
    ) -> PartitionGrouping {
        PartitionGrouping {
            input: Some(input),
            plan,
            claim,
            job,
            limits,
            counters,
            part: None,
            table: None,
            sort: None,
            is_direct: false,
            rows_in: 0,
            results_left: None,
        }
    }

    /// Returns the next batch of results. The first call reads the whole input.
    pub async fn next(&mut self) -> Result<Option<RecordBatch>> {
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

    /// Moves the states of the hash table into the sort.
    fn sort_table(&mut self) -> Result<()> {
        let Some(mut table) = self.table.take() else { return Ok(()) };
        let states = table.take_states(&self.plan)?;
        drop(table);
        self.sort_states(&states)
    }

    /// Converts each row to a state of its own, and adds the states to the sort.
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
