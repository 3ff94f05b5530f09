//! The plan of a GROUP BY: its keys, its aggregate functions and the columns of their states.

use std::sync::Arc;

use arrow::{
    array::{ArrayRef, AsArray, BooleanArray},
    datatypes::{Field, Schema, SchemaRef},
    record_batch::RecordBatch,
};
use datafusion::{
    error::Result,
    logical_expr::{EmitTo, GroupsAccumulator},
    physical_expr::{GroupsAccumulatorAdapter, aggregate::AggregateFunctionExpr},
    physical_plan::{
        ExecutionPlan, PhysicalExpr,
        aggregates::{
            AggregateExec, AggregateInputMode, AggregateMode, aggregate_expressions, evaluate_group_by,
            evaluate_many,
        },
    },
};

use super::super::{numbers::Numbers, row_sort::is_sortable};

/// The properties of an aggregate that all partitions share.
#[derive(Debug)]
pub(super) struct GroupPlan {
    pub aggregate: AggregateExec,
    arguments: Vec<Vec<Arc<dyn PhysicalExpr>>>,
    pub is_raw: bool,
    pub group_schema: SchemaRef,
    /// The columns of the keys, then the state columns of all functions.
    pub state_schema: SchemaRef,
    /// The number of state columns of each function.
    state_columns: Vec<usize>,
    pub numbers: Option<Numbers>,
    pub schema: SchemaRef,
}

impl GroupPlan {
    pub fn new(aggregate: &AggregateExec) -> Result<Option<GroupPlan>> {
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

    pub fn accumulators(&self) -> Result<Vec<Box<dyn GroupsAccumulator>>> {
        let make = |function: &Arc<AggregateFunctionExpr>| -> Result<Box<dyn GroupsAccumulator>> {
            if function.groups_accumulator_supported() {
                return function.create_groups_accumulator();
            }
            let function = function.clone();
            Ok(Box::new(GroupsAccumulatorAdapter::new(move || function.create_accumulator())))
        };
        self.functions().iter().map(make).collect()
    }

    /// Returns the operator's name for reports.
    pub fn name(&self) -> String {
        let names = self.group_schema.fields().iter().map(|field| field.name().as_str());
        format!("GROUP BY {}", names.collect::<Vec<_>>().join(", "))
    }

    pub fn key_count(&self) -> usize {
        self.group_schema.fields().len()
    }

    /// Evaluates the functions for groups whose states were added. Appends the results to the key columns.
    pub fn results(
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

    /// Adds states to the functions. `places` contains the group index of each state.
    pub fn merge(
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

    /// Evaluates the keys of all rows for each grouping set, and the arguments and filters of all functions.
    pub fn evaluate(&self, batch: &RecordBatch) -> Result<EvaluatedRows> {
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

pub(super) struct EvaluatedRows {
    pub keys: Vec<Vec<ArrayRef>>,
    pub arguments: Vec<Vec<ArrayRef>>,
    pub filters: Vec<Option<BooleanArray>>,
}
