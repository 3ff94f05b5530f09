//! A plan node that returns the rows of an existing stream.

use std::{
    fmt::{self, Debug, Formatter},
    sync::{Arc, Mutex},
};

use datafusion::{
    common::tree_node::TreeNodeRecursion,
    error::{DataFusionError, Result},
    execution::{SendableRecordBatchStream, TaskContext},
    physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, PhysicalExpr, PlanProperties},
};

use crate::scan::properties;

/// A plan node over one stream. The node has one partition and can run once.
pub(crate) struct StreamExec {
    stream: Mutex<Option<SendableRecordBatchStream>>,
    properties: Arc<PlanProperties>,
}

impl StreamExec {
    pub fn plan(stream: SendableRecordBatchStream) -> Arc<dyn ExecutionPlan> {
        let properties = properties(stream.schema(), 1);
        Arc::new(StreamExec { stream: Mutex::new(Some(stream)), properties })
    }
}

impl Debug for StreamExec {
    fn fmt(&self, text: &mut Formatter<'_>) -> fmt::Result {
        text.write_str("Once")
    }
}

impl DisplayAs for StreamExec {
    fn fmt_as(&self, _: DisplayFormatType, text: &mut Formatter<'_>) -> fmt::Result {
        text.write_str("Once")
    }
}

impl ExecutionPlan for StreamExec {
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
        stream.ok_or_else(|| DataFusionError::Internal("internal error: a stream was read twice".to_string()))
    }
}
