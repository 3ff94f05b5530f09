//! The in-memory hash table of groups.

use arrow::record_batch::RecordBatch;
use datafusion::{
    error::Result,
    logical_expr::{EmitTo, GroupsAccumulator},
    physical_plan::aggregates::{
        group_values::{GroupValues, new_group_values},
        order::GroupOrdering,
    },
};

use super::plan::{EvaluatedRows, GroupPlan};

/// The ratio of groups to rows above which a full table has combined too few rows. Later rows then go directly to the
/// sort.
const HARDLY_SHORTER: f64 = 0.7;
/// The same ratio if groups are records of numbers, which sort-reduce combines faster than a hash table does.
const HARDLY_SHORTER_NUMBERS: f64 = 0.05;

/// A hash table of groups, with the aggregate states of each group.
pub(super) struct GroupTable {
    keys: Box<dyn GroupValues>,
    functions: Vec<Box<dyn GroupsAccumulator>>,
    places: Vec<usize>,
    rows: u64,
}

impl GroupTable {
    pub fn new(plan: &GroupPlan) -> Result<GroupTable> {
        let keys = new_group_values(plan.group_schema.clone(), &GroupOrdering::None)?;
        Ok(GroupTable { keys, functions: plan.accumulators()?, places: Vec::new(), rows: 0 })
    }

    pub fn add(&mut self, plan: &GroupPlan, rows: &EvaluatedRows) -> Result<()> {
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

    pub fn bytes(&self) -> usize {
        let functions: usize = self.functions.iter().map(|function| function.size()).sum();
        self.keys.size() + functions + self.places.capacity() * 8
    }

    pub fn is_hardly_shorter(&self, plan: &GroupPlan) -> bool {
        let hardly = if plan.numbers.is_some() { HARDLY_SHORTER_NUMBERS } else { HARDLY_SHORTER };
        self.keys.len() as f64 > hardly * self.rows as f64
    }

    /// Removes all groups from the table, and returns their keys and states.
    pub fn take_states(&mut self, plan: &GroupPlan) -> Result<RecordBatch> {
        let mut columns = self.keys.emit(EmitTo::All)?;
        for function in &mut self.functions {
            columns.extend(function.state(EmitTo::All)?);
        }
        self.rows = 0;
        Ok(RecordBatch::try_new(plan.state_schema.clone(), columns)?)
    }

    pub fn results(mut self, plan: &GroupPlan) -> Result<RecordBatch> {
        let columns = self.keys.emit(EmitTo::All)?;
        plan.results(columns, &mut self.functions, EmitTo::All)
    }
}
