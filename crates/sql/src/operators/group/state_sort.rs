//! The sort of group states that begins when the hash table is full.

use arrow::{
    array::{Array, new_null_array},
    compute::{filter_record_batch, is_not_null, is_null},
    record_batch::RecordBatch,
};
use datafusion::{
    error::Result,
    logical_expr::{EmitTo, GroupsAccumulator},
};
use inshore_sortreduce::rows::{FramedRows, KeepAll, RowSort};
use inshore_tables::{NumberGroups, RowCodec};

use super::plan::GroupPlan;
use crate::Error;

/// A sort of group states, as encoded rows or as records of numbers.
pub(super) enum StateSort {
    Rows(Box<StatesAsRows>),
    Numbers(Box<StatesAsNumbers>),
}

pub(super) struct StatesAsRows {
    pub codec: RowCodec,
    pub rows: RowSort<FramedRows, KeepAll>,
    pub block: Vec<u8>,
}

pub(super) struct StatesAsNumbers {
    pub groups: NumberGroups,
    pub null_group: NullGroup,
}

impl StateSort {
    /// Adds a batch of group states.
    pub fn add(&mut self, plan: &GroupPlan, states: &RecordBatch) -> Result<()> {
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

/// The group whose key is null. Records of numbers cannot represent a null key.
#[derive(Default)]
pub(super) struct NullGroup(Option<Vec<Box<dyn GroupsAccumulator>>>);

impl NullGroup {
    /// Stores the states of the group with the null key in `self`, and returns the other groups.
    pub fn take(&mut self, plan: &GroupPlan, states: &RecordBatch) -> Result<RecordBatch> {
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

    /// Returns the result of the null group the first time; `None` later, or if there is no such group.
    pub fn result(&mut self, plan: &GroupPlan) -> Result<Option<RecordBatch>> {
        let Some(mut functions) = self.0.take() else { return Ok(None) };
        let key = new_null_array(plan.group_schema.field(0).data_type(), 1);
        plan.results(vec![key], &mut functions, EmitTo::All).map(Some)
    }
}
