//! A plan node whose rows are a stream that is there already.

use std::{
    fmt::{self, Debug, Formatter},
    sync::{Arc, Mutex},
};

use arrow::datatypes::SchemaRef;
use datafusion::{
    common::tree_node::TreeNodeRecursion,
    error::{DataFusionError, Result},
    execution::{SendableRecordBatchStream, TaskContext},
    physical_expr::EquivalenceProperties,
    physical_plan::{
        DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties,
        execution_plan::{Boundedness, EmissionType},
    },
};

/// One partition, to be run once.
pub(crate) struct Once {
    stream: Mutex<Option<SendableRecordBatchStream>>,
    properties: Arc<PlanProperties>,
}

impl Once {
    pub fn plan(stream: SendableRecordBatchStream) -> Arc<dyn ExecutionPlan> {
        let properties = properties(stream.schema(), 1);
        Arc::new(Once { stream: Mutex::new(Some(stream)), properties })
    }
}

/// Of rows in no order.
pub(crate) fn properties(schema: SchemaRef, partitions: usize) -> Arc<PlanProperties> {
    Arc::new(PlanProperties::new(
        EquivalenceProperties::new(schema),
        Partitioning::UnknownPartitioning(partitions),
        EmissionType::Incremental,
        Boundedness::Bounded,
    ))
}

impl Debug for Once {
    fn fmt(&self, text: &mut Formatter<'_>) -> fmt::Result {
        text.write_str("Once")
    }
}

impl DisplayAs for Once {
    fn fmt_as(&self, _: DisplayFormatType, text: &mut Formatter<'_>) -> fmt::Result {
        text.write_str("Once")
    }
}

impl ExecutionPlan for Once {
    fn name(&self) -> &str {
        "Once"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        Vec::new()
    }

    fn apply_expressions(
        &self,
        _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> Result<TreeNodeRecursion>,
    ) -> Result<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> Result<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let stream = self.stream.lock().expect("no panic under this lock").take();
        stream.ok_or_else(|| DataFusionError::Internal("a stream that is read twice".to_string()))
    }
}
