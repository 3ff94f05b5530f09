//! The scan of a fragment's result rows. A fragment is a part of a query that remote machines run. Its batches arrive
//! through a bounded channel.

use std::{
    fmt::{self, Debug, Formatter},
    sync::Arc,
    time::Duration,
};

use arrow::{
    array::AsArray,
    compute::max,
    datatypes::{Schema, SchemaRef, UInt64Type},
    record_batch::{RecordBatch, RecordBatchOptions},
};
use datafusion::{
    common::tree_node::TreeNodeRecursion,
    error::{DataFusionError, Result},
    execution::{SendableRecordBatchStream, TaskContext},
    physical_plan::{
        DisplayAs, DisplayFormatType, ExecutionPlan, PhysicalExpr, PlanProperties,
        stream::RecordBatchStreamAdapter,
    },
};
use futures::stream;
use inshore_store::Budget;
use tokio::sync::mpsc;

use super::{Fragment, RemoteTables, subqueries::encoded};
use crate::{Error, rules::plan_size::CENTROIDS_MAX};

/// The interval at which a fragment's thread checks whether its receiver still exists.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// A plan node that returns the result rows of a fragment, which remote machines run.
pub(super) struct RemoteScan {
    pub remote: Arc<RemoteTables>,
    pub fragment: Fragment,
    /// The uses of values of subqueries in the fragment.
    pub uses: Vec<Arc<dyn PhysicalExpr>>,
    pub schema: SchemaRef,
    pub properties: Arc<PlanProperties>,
}

impl Debug for RemoteScan {
    fn fmt(&self, text: &mut Formatter<'_>) -> fmt::Result {
        text.debug_struct("RemoteScan").field("fragment", &self.fragment).finish_non_exhaustive()
    }
}

impl DisplayAs for RemoteScan {
    fn fmt_as(&self, _: DisplayFormatType, text: &mut Formatter<'_>) -> fmt::Result {
        let steps: Vec<&str> = self.fragment.plan.lines().map(str::trim).collect();
        write!(text, "NearData: {}", steps.join(" <- "))
    }
}

impl ExecutionPlan for RemoteScan {
    fn name(&self) -> &str {
        "NearData"
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

    /// Runs the fragment when its first rows are needed. The subqueries whose values it uses have run before. If a query requested all tables at once, tasks with unread
    /// rows would occupy all task slots of a remote machine.
    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let fragment = Fragment { values: encoded(&self.uses)?, ..self.fragment.clone() };
        let begin = Some((self.remote.clone(), fragment, self.schema.clone()));
        let batches = stream::unfold((begin, None), |(begin, rows)| async move {
            let mut rows = match (begin, rows) {
                (Some((remote, fragment, schema)), _) => match start_fragment(remote, fragment, schema) {
                    Ok(rows) => rows,
                    Err(error) => return Some((Err(error.into()), (None, None))),
                },
                (None, rows) => rows?,
            };
            let ended_early =
                || Err(Error::Internal("the thread that sends requests to nodes ended early".to_string()));
            let batch = rows.recv().await.unwrap_or_else(ended_early).transpose()?;
            Some((batch.map_err(DataFusionError::from), (None, Some(rows))))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), batches)))
    }
}

/// A batch of rows, or `None` at the end.
type BatchResult = crate::Result<Option<RecordBatch>>;

/// Runs a fragment in its own thread, since requests to nodes block and threads of the query must not block.
fn start_fragment(
    remote: Arc<RemoteTables>,
    fragment: Fragment,
    schema: SchemaRef,
) -> crate::Result<mpsc::Receiver<BatchResult>> {
    let (out, rows) = mpsc::channel::<BatchResult>(2);
    let started = std::thread::Builder::new().name("near".to_string()).spawn(move || {
        let bytes = remote.answers.get().map_or_else(|| remote.elsewhere.answer_bytes(), |(_, each)| *each);
        let answers = Budget::new(bytes, remote.job.budget().threads());
        let ran = remote.elsewhere.run(&remote.job.within(answers), fragment).and_then(|mut rows| {
            while !out.is_closed() {
                match rows.next_within(POLL_INTERVAL)? {
                    None => {}
                    Some(None) => break,
                    // A failed send is ignored, since the loop ends when the receiver is dropped.
                    Some(Some(batch)) => drop(out.blocking_send(check_columns(&batch, &schema).map(Some))),
                }
            }
            Ok(None)
        });
        // The receiver may need the memory of the answers as soon as the rows have ended.
        drop(remote);
        let _ = out.blocking_send(ran);
    });
    started.map_err(|error| Error::Internal(format!("cannot start a thread: {error}")))?;
    Ok(rows)
}

/// Checks that a batch has the column types of the plan, and renames its columns to the plan's names.
pub(super) fn check_columns(batch: &RecordBatch, schema: &SchemaRef) -> crate::Result<RecordBatch> {
    let kinds = |schema: &Schema| -> Vec<_> {
        schema.fields().iter().map(|field| field.data_type().clone()).collect()
    };
    if kinds(&batch.schema()) != kinds(schema) {
        let (expected, found) = (kinds(schema), kinds(&batch.schema()));
        return Err(Error::Internal(format!("a node sent columns {found:?}, expected {expected:?}")));
    }
    // The state of a percentile contains the capacity of its digest. The received value is checked, since DataFusion
    // would allocate that capacity.
    let digests =
        schema.fields().iter().zip(batch.columns()).filter(|(field, _)| field.name().ends_with("[max_size]"));
    let sizes = digests.filter_map(|(_, column)| column.as_primitive_opt::<UInt64Type>());
    if sizes.filter_map(max).any(|size| size > CENTROIDS_MAX as u64) {
        let text = format!("a node sent a digest of more than {CENTROIDS_MAX} centroids");
        return Err(Error::Internal(text));
    }
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let batch = RecordBatch::try_new_with_options(schema.clone(), batch.columns().to_vec(), &options);
    batch.map_err(|error| Error::Internal(format!("a node sent an invalid batch: {error}")))
}
