//! DataFusion's table provider and plan node for tables on other machines.

use std::{
    fmt::{self, Formatter},
    sync::Arc,
};

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use datafusion::{
    catalog::{Session, TableProvider},
    common::{Statistics, tree_node::TreeNodeRecursion},
    datasource::TableType,
    error::Result,
    execution::{SendableRecordBatchStream, TaskContext},
    logical_expr::{Expr, TableProviderFilterPushDown},
    physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PhysicalExpr, PlanProperties},
};
use inshore_tables::TableMetadata;

use crate::{
    Error,
    scan::{check_readable, predicate, properties, row_statistics},
};

/// The table provider for a table on other machines.
#[derive(Debug)]
pub(crate) struct RemoteTable {
    name: String,
    known: TableMetadata,
    partitions: usize,
}

impl RemoteTable {
    pub fn new(name: &str, known: TableMetadata, partitions: usize) -> RemoteTable {
        RemoteTable { name: name.to_string(), known, partitions }
    }
}

#[async_trait]
impl TableProvider for RemoteTable {
    fn schema(&self) -> SchemaRef {
        self.known.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> Result<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    async fn scan(
        &self,
        state: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        _limit: Option<usize>,
    ) -> Result<Arc<dyn ExecutionPlan>> {
        let all = &self.known.schema;
        let chosen = projection.cloned().unwrap_or_else(|| (0..all.fields().len()).collect());
        check_readable(all, &chosen, &self.name)?;
        let predicate = predicate(state, all, filters)?;
        let schema = Arc::new(all.project(&chosen)?);
        Ok(Arc::new(RemoteTableScan {
            table: self.name.clone(),
            is_clients: self.known.path.is_empty(),
            columns: schema.fields().iter().map(|field| field.name().clone()).collect(),
            statistics: Arc::new(row_statistics(&schema, self.known.rows)),
            properties: properties(schema.clone(), self.partitions),
            schema,
            predicate,
        }))
    }
}

/// The scan of a remote table during planning. A later rule replaces the fragment that contains this node.
#[derive(Debug)]
pub(super) struct RemoteTableScan {
    pub table: String,
    /// True if the plan is made on a remote machine, but the table is on the client.
    pub is_clients: bool,
    pub columns: Vec<String>,
    pub schema: SchemaRef,
    pub predicate: Option<Arc<dyn PhysicalExpr>>,
    statistics: Arc<Statistics>,
    properties: Arc<PlanProperties>,
}

impl DisplayAs for RemoteTableScan {
    fn fmt_as(&self, _: DisplayFormatType, text: &mut Formatter<'_>) -> fmt::Result {
        write!(text, "Scan: {}, columns=[{}]", self.table, self.columns.join(", "))?;
        self.predicate.iter().try_for_each(|predicate| write!(text, ", row groups where {predicate}"))
    }
}

impl ExecutionPlan for RemoteTableScan {
    fn name(&self) -> &str {
        "Scan"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        visit: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        self.predicate.as_ref().map_or(Ok(TreeNodeRecursion::Continue), visit)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn partition_statistics(&self, partition: Option<usize>) -> Result<Arc<Statistics>> {
        Ok(match partition {
            None => self.statistics.clone(),
            Some(_) => Arc::new(Statistics::new_unknown(&self.schema)),
        })
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        Err(Error::Internal(format!(
            "internal error: no fragment has the scan of the remote table {}",
            self.table
        ))
        .into())
    }
}
