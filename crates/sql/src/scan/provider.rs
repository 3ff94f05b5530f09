//! The table provider over [`Files`], from which DataFusion's planner gets a [`Scan`].

use std::sync::Arc;

use arrow::datatypes::{Schema, SchemaRef};
use async_trait::async_trait;
use datafusion::{
    catalog::{Session, TableProvider},
    common::DFSchema,
    datasource::TableType,
    error::{DataFusionError, Result},
    logical_expr::{Expr, TableProviderFilterPushDown, utils::conjunction},
    physical_plan::{ExecutionPlan, PhysicalExpr},
};
use inshore_tables::is_readable;

use super::{files::Files, node::Scan};
use crate::rules::floats::of_statistics;

#[async_trait]
impl TableProvider for Files {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        // A scan uses filters only to skip row groups. The plan applies the filters again to the rows.
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let all: Vec<usize> = (0..self.schema.fields().len()).collect();
        let chosen = projection.unwrap_or(&all);
        let columns: Vec<String> =
            chosen.iter().map(|&index| self.schema.field(index).name().clone()).collect();
        check_readable(&self.schema, chosen, self.inputs[0].name())?;
        let predicate = predicate(state, &self.schema, filters)?;
        let statistics = self.statistics(&columns).map_err(DataFusionError::from)?;
        let threads = state.config().target_partitions();
        let partitions = if self.has_groups { threads } else { threads.min(self.inputs.len()) };
        Ok(Arc::new(Scan::new(
            self.again(),
            self.schema.project(chosen)?,
            columns,
            predicate,
            statistics,
            partitions.max(1),
        )))
    }
}

/// Returns an error if a chosen column has a type that no reader supports.
pub(crate) fn check_readable(schema: &Schema, chosen: &[usize], file: &str) -> crate::Result<()> {
    let mut chosen = chosen.iter().map(|&index| schema.field(index));
    let unread = chosen.find(|field| !is_readable(field.data_type()));
    unread.map_or(Ok(()), |field| Err(inshore_tables::Error::unread_type(file, field).into()))
}

/// Combines all filters of a scan into one expression, which is tested against the statistics of row groups.
pub(crate) fn predicate(
    state: &dyn Session,
    schema: &Schema,
    filters: &[Expr],
) -> Result<Option<Arc<dyn PhysicalExpr>>> {
    let Some(filter) = conjunction(filters.to_vec()) else { return Ok(None) };
    let schema = DFSchema::try_from(schema.clone())?;
    state.create_physical_expr(of_statistics(filter)?, &schema).map(Some)
}
