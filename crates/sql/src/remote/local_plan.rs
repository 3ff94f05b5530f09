//! The part of a remote table scan that runs on a node (a remote machine). Finds a fragment in the node's own plan of
//! the client's query, and inserts a scan of local files.

use std::sync::Arc;

use arrow::{datatypes::SchemaRef, record_batch::RecordBatch};
use datafusion::{
    common::{
        Statistics,
        tree_node::{Transformed, TreeNode, TreeNodeRecursion},
    },
    error::DataFusionError,
    physical_plan::{
        ExecutionPlan, PhysicalExpr, coalesce_partitions::CoalescePartitionsExec,
        execution_plan::replace_children_if_necessary, sorts::sort::SortExec,
        stream::RecordBatchStreamAdapter,
    },
};
use futures::stream;
use inshore_store::Job;
use inshore_tables::TableMetadata;

use super::{
    Fragment,
    conditions::is_round_robin,
    pushdown::{Found, plan_text, replace_fragments},
    scan::check_columns,
    stages::{StagePlan, broadcast_side, cut_keys},
    subqueries::set_values,
    table::RemoteTableScan,
};
use crate::{
    Error,
    operators::StreamExec,
    scan::{Feed, Files, Scan},
};

/// The rows of one exchange that a stage reads. The reading thread may block.
pub type ExchangeRows = Box<dyn Iterator<Item = crate::Result<RecordBatch>> + Send>;

/// The input of a stage on a node.
pub enum StageRows {
    /// The shards of the table that the stage reads.
    Files(Feed),
    /// The rows of one range of each exchange, in the order of
    /// [`FragmentInput::Exchanges`](super::FragmentInput).
    Exchanges(Vec<ExchangeRows>),
}

impl std::fmt::Debug for StageRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StageRows::Files(feed) => f.debug_tuple("Files").field(feed).finish(),
            StageRows::Exchanges(rows) => f.debug_tuple("Exchanges").field(&rows.len()).finish(),
        }
    }
}

/// A stage of a fragment in the plan of a node.
pub(crate) struct LocalStage {
    pub plan: Arc<dyn ExecutionPlan>,
    /// The keys of the exchange that the stage writes.
    pub keys: Vec<Arc<dyn PhysicalExpr>>,
}

impl Fragment {
    /// Finds the fragment in this machine's plan of the query, and inserts a scan of local files. For
    /// `has_whole_rows`, see [`Files::has_whole_rows`].
    ///
    /// # Errors
    /// Returns [`Error::Query`] if the plan differs from the client's plan.
    pub(crate) fn of_plan(
        &self,
        job: &Job,
        plan: Arc<dyn ExecutionPlan>,
        feed: Feed,
        has_whole_rows: bool,
    ) -> crate::Result<Arc<dyn ExecutionPlan>> {
        let (plan, _) = self.find(plan)?;
        let known = self.known().ok_or_else(no_table)?;
        over_files(job, plan, known, feed, has_whole_rows)
    }

    /// Finds a stage of the fragment in this machine's plan of the query, and inserts its input.
    ///
    /// # Errors
    /// Returns [`Error::Query`] if the plan differs from the client's plan, or if the input does not fit the stage.
    pub(crate) fn stage_of_plan(
        &self,
        job: &Job,
        plan: Arc<dyn ExecutionPlan>,
        stage: usize,
        (input, broadcasts): (StageRows, Vec<ExchangeRows>),
        has_whole_rows: bool,
    ) -> crate::Result<LocalStage> {
        let (_, found) = self.find(plan)?;
        let Found::Stages(mut stages) = found else { return Err(no_table()) };
        if stage >= stages.len() {
            return Err(no_table());
        }
        let StagePlan { plan, keys, .. } = stages.swap_remove(stage);
        let plan = with_broadcasts(plan, broadcasts)?;
        let plan = match input {
            StageRows::Files(feed) => {
                over_files(job, plan, self.known_of(stage).ok_or_else(no_table)?, feed, has_whole_rows)?
            }
            StageRows::Exchanges(rows) => over_exchanges(plan, rows)?,
        };
        Ok(LocalStage { plan, keys })
    }

    /// Finds the fragment in this machine's plan of the query.
    fn find(&self, plan: Arc<dyn ExecutionPlan>) -> crate::Result<(Arc<dyn ExecutionPlan>, Found)> {
        let mut all = None;
        replace_fragments(plan, self.planning, |number, found, node| {
            let is_same = match &found {
                Found::Table(table) => *table == self.table,
                Found::Stages(stages) => stages.iter().map(|stage| &stage.stage).eq(&self.stages),
            };
            if number == self.number && is_same {
                all = Some((node.clone(), found));
            }
            Ok(node.clone())
        })?;
        let found = all.filter(|(node, _)| plan_text(node) == self.plan).ok_or_else(|| {
            let what = "this node plans the query differently than the client: their versions differ, or the query asks \
                for the time";
            Error::Query(what.to_string())
        })?;
        set_values(&found.0, &self.values)?;
        Ok(found)
    }
}

fn no_table() -> Error {
    Error::Query("the fragment does not describe its table or its stage".to_string())
}

/// Inserts scans of local files into the plan of a fragment over one table.
fn over_files(
    job: &Job,
    plan: Arc<dyn ExecutionPlan>,
    known: &TableMetadata,
    feed: Feed,
    has_whole_rows: bool,
) -> crate::Result<Arc<dyn ExecutionPlan>> {
    let mut files = Files::fed(job, &known.schema, feed);
    files.has_whole_rows = has_whole_rows;
    let threads = job.budget().threads();
    let here = plan.transform_up(|node| {
        if let Some(scan) = node.downcast_ref::<RemoteTableScan>() {
            let statistics = Statistics::new_unknown(&scan.schema);
            let (schema, columns) = (scan.schema.as_ref().clone(), scan.columns.clone());
            let predicate = scan.predicate.clone();
            let scan = Scan::new(files.again(), schema, columns, predicate, statistics, threads);
            return Ok(Transformed::yes(Arc::new(scan) as Arc<dyn ExecutionPlan>));
        }
        if is_round_robin(&node) {
            return Ok(Transformed::yes(node.children()[0].clone()));
        }
        if let Some(sort) = node.downcast_ref::<SortExec>()
            && !sort.preserve_partitioning()
        {
            let one: Arc<dyn ExecutionPlan> = Arc::new(CoalescePartitionsExec::new(sort.input().clone()));
            return Ok(Transformed::yes(replace_children_if_necessary(node, vec![one])?));
        }
        Ok(Transformed::no(node))
    })?;
    Ok(here.data)
}

/// Replaces the sides of joins that are broadcast by their rows. `rows` are in the order in which a walk from the root
/// finds them.
fn with_broadcasts(
    plan: Arc<dyn ExecutionPlan>,
    rows: Vec<ExchangeRows>,
) -> crate::Result<Arc<dyn ExecutionPlan>> {
    if rows.is_empty() {
        return Ok(plan);
    }
    let mut rows = rows.into_iter();
    let here = plan.transform_down(|node| {
        // A join below a cut belongs to another stage.
        if cut_keys(&node).is_some() {
            return Ok(Transformed::new(node, false, TreeNodeRecursion::Jump));
        }
        let Some(small) = broadcast_side(&node)? else { return Ok(Transformed::no(node)) };
        let stream = exchange_stream(small.schema(), rows.next().ok_or_else(no_table)?);
        let mut children: Vec<Arc<dyn ExecutionPlan>> = node.children().into_iter().cloned().collect();
        children[0] = StreamExec::plan(stream);
        Ok(Transformed::yes(replace_children_if_necessary(node, children)?))
    })?;
    match rows.next() {
        None => Ok(here.data),
        Some(_) => Err(no_table()),
    }
}

/// Replaces the cuts of a stage's plan by the rows of exchanges. The plan then has one partition.
fn over_exchanges(
    plan: Arc<dyn ExecutionPlan>,
    rows: Vec<ExchangeRows>,
) -> crate::Result<Arc<dyn ExecutionPlan>> {
    let mut rows = rows.into_iter();
    let here = plan.transform_down(|node| {
        if cut_keys(&node).is_none() {
            return Ok(Transformed::no(node));
        }
        let rows = rows.next().ok_or_else(no_table)?;
        let stream = exchange_stream(node.schema(), rows);
        Ok(Transformed::new(StreamExec::plan(stream), true, TreeNodeRecursion::Jump))
    })?;
    match rows.next() {
        None => Ok(here.data),
        Some(_) => Err(no_table()),
    }
}

fn exchange_stream(
    schema: SchemaRef,
    rows: ExchangeRows,
) -> datafusion::execution::SendableRecordBatchStream {
    let of = schema.clone();
    let rows = rows.map(move |batch| batch.and_then(|batch| check_columns(&batch, &of)));
    let rows = stream::iter(rows.map(|batch| batch.map_err(DataFusionError::from)));
    Box::pin(RecordBatchStreamAdapter::new(schema, rows))
}
