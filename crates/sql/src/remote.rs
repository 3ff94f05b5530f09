//! Remote table scans: fragments of a query run on the nodes that hold a table.
//!
//! ```text
//!   client: plan ─► fragments: parts of the plan over one table ─► rows of fragments ─► rest of the plan
//!                     │ text of the query, descriptions of tables,      ▲
//!                     ▼ number of the fragment                          │
//!   node:   plan ─► the same fragment, over the node's files ───────────┘
//! ```
//!
//! A fragment is a filter, a projection, the partial half of a GROUP BY (states of groups, which the client merges), or
//! the first rows of an ORDER BY with a LIMIT, directly over one table. Plans are not sent: client and node plan the
//! same text with the same parameters, and the node compares the text of the fragment before a run. So plans need no
//! serialized form, and
//! partial states of any aggregate function can be merged.
//!
//! Expressions whose value differs between machines stay out of fragments: random() and results of subqueries. A node
//! refuses a query whose plan differs (two versions of the program, now() in a filter).
//!
//! Paper: in-store processing, 2014 thesis chapter 5; host and drives together, 2019 thesis 4.2.

use std::{
    collections::BTreeMap,
    fmt::{self, Debug, Formatter},
    sync::{Arc, OnceLock},
    time::Duration,
};

use arrow::{
    array::AsArray,
    compute::max,
    datatypes::{DataType, Schema, SchemaRef, UInt64Type},
    record_batch::{RecordBatch, RecordBatchOptions},
};
use async_trait::async_trait;
use datafusion::{
    catalog::{Session, TableProvider},
    common::{
        Statistics,
        config::ConfigOptions,
        tree_node::{Transformed, TreeNode, TreeNodeRecursion},
    },
    datasource::TableType,
    error::{DataFusionError, Result},
    execution::{SendableRecordBatchStream, TaskContext},
    logical_expr::{Expr, TableProviderFilterPushDown},
    physical_expr::scalar_subquery::ScalarSubqueryExpr,
    physical_optimizer::PhysicalOptimizerRule,
    physical_plan::{
        DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties,
        aggregates::{AggregateExec, AggregateOutputMode},
        coalesce_partitions::CoalescePartitionsExec,
        coop::CooperativeExec,
        displayable,
        execution_plan::replace_children_if_necessary,
        filter::FilterExec,
        projection::ProjectionExec,
        repartition::RepartitionExec,
        sorts::sort::SortExec,
        stream::RecordBatchStreamAdapter,
    },
};
use futures::stream;
use inshore_store::{Budget, Job, Reservation};
use inshore_tables::TableMetadata;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::{
    Error,
    rules::plan_size::{CENTROIDS_MAX, of_every_type},
    scan::{Feed, Files, Scan, check_readable, predicate, properties, row_statistics},
};

/// The parameters of planning, beside the text and the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Planning {
    /// The number of partitions that rows are divided into.
    pub partitions: usize,
    /// The memory that the plan is made for.
    pub memory_bytes: u64,
    /// Small sides of joins are broadcast to all threads.
    pub is_bold: bool,
}

/// A part of a query over one table, which nodes run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fragment {
    /// The table's name in the query.
    table: String,
    sql: String,
    tables: BTreeMap<String, TableMetadata>,
    planning: Planning,
    /// The index of the fragment among those of the plan, from the root down.
    number: usize,
    /// The fragment's plan as text.
    plan: String,
}

/// Tables on other machines, and a way to run fragments there.
pub trait RemoteExecutor: Debug + Send + Sync {
    /// Describes the table that a query calls `name`, with the columns in `as_text` as text; `None` for a name that is
    /// no remote table. The calling thread may block.
    ///
    /// # Errors
    /// The implementation returns an error for a table that exists and cannot be read.
    fn describe(&self, job: &Job, name: &str, as_text: &[String]) -> crate::Result<Option<TableMetadata>>;

    /// Returns the memory for the answers of a fragment in flight, in bytes.
    fn answer_bytes(&self) -> u64;

    /// Returns the memory that the client uses for its own share of a fragment, at most `_may_be_taken`; 0 for none.
    fn help_bytes(&self, _may_be_taken: u64) -> u64 {
        0
    }

    /// Begins to run a fragment, in a job with [`Self::answer_bytes`] and the memory of [`Self::help_bytes`]. The
    /// calling thread may block.
    ///
    /// # Errors
    /// The implementation returns an error where the fragment cannot begin.
    fn run(&self, job: &Job, fragment: Fragment) -> crate::Result<Box<dyn FragmentRows>>;
}

/// The rows of a fragment.
pub trait FragmentRows: Send {
    /// Returns the next rows if they come within `wait`: `None` after `wait` without rows, `Some(None)` at the end.
    ///
    /// # Errors
    /// [`Error::Interrupted`] means that the fragment can be run again from the start.
    fn next_within(&mut self, wait: Duration) -> crate::Result<Option<Option<RecordBatch>>>;
}

/// The interval at which a fragment's thread checks whether its receiver exists.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The state that the fragments of a query share.
#[derive(Debug)]
pub(crate) struct RemoteTables {
    pub job: Job,
    pub elsewhere: Arc<dyn RemoteExecutor>,
    pub sql: String,
    pub planning: Planning,
    /// All tables of the query, set once they are known.
    pub tables: OnceLock<BTreeMap<String, TableMetadata>>,
    /// The memory for the answers of all fragments and the client's own share, and the bytes of each fragment. The
    /// memory is reserved while planning, since operators take all free memory when they begin.
    pub answers: OnceLock<(Reservation, u64)>,
}

/// A table provider for a table on other machines.
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

/// The scan of a remote table: a placeholder in a plan, around which fragments are cut out.
#[derive(Debug)]
struct RemoteTableScan {
    table: String,
    /// The table is on the client, and the plan is a node's.
    is_clients: bool,
    columns: Vec<String>,
    schema: SchemaRef,
    predicate: Option<Arc<dyn PhysicalExpr>>,
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

/// Returns whether an expression has the same value on every machine.
fn is_portable(expression: &Arc<dyn PhysicalExpr>) -> Result<bool> {
    expression
        .exists(|part| Ok(part.is_volatile_node() || part.is::<ScalarSubqueryExpr>()))
        .map(|is_bound| !is_bound)
}

fn has_portable_expressions(node: &Arc<dyn ExecutionPlan>) -> Result<bool> {
    let mut all = true;
    node.apply_expressions(&mut |expression| {
        all &= is_portable(expression)?;
        Ok(TreeNodeRecursion::Continue)
    })?;
    Ok(all)
}

/// Returns whether a repartitioning is round robin.
fn is_round_robin(node: &Arc<dyn ExecutionPlan>) -> bool {
    let shares = |node: &RepartitionExec| matches!(node.partitioning(), Partitioning::RoundRobinBatch(_));
    node.downcast_ref::<RepartitionExec>().is_some_and(shares)
}

/// Returns the table of a plan that only filters and projects the rows of that table.
fn rows_of(node: &Arc<dyn ExecutionPlan>) -> Result<Option<String>> {
    if let Some(scan) = node.downcast_ref::<RemoteTableScan>() {
        // Tables of the client are in no fragment, neither in the client's plan nor in a node's. The filters above a
        // scan test the rows that the scan returns.
        return Ok((!scan.is_clients).then(|| scan.table.clone()));
    }
    let is_simple = node.is::<FilterExec>() || node.is::<ProjectionExec>() || node.is::<CooperativeExec>();
    if !(is_simple || is_round_robin(node)) || !has_portable_expressions(node)? {
        return Ok(None);
    }
    rows_of(node.children()[0])
}

/// Returns whether rows can be sent. Rows with dictionaries cannot: a message would depend on dictionaries in earlier
/// ones.
fn is_sendable(node: &Arc<dyn ExecutionPlan>) -> bool {
    let mut is_whole = |kind: &DataType, _: usize| !matches!(kind, DataType::Dictionary(..));
    node.schema().fields().iter().all(|field| of_every_type(field.data_type(), 0, &mut is_whole))
}

/// Returns the table of a plan that is a fragment.
fn fragment_of(node: &Arc<dyn ExecutionPlan>) -> Result<Option<String>> {
    if let Some(aggregate) = node.downcast_ref::<AggregateExec>()
        && aggregate.mode().output_mode() == AggregateOutputMode::Partial
        && has_portable_expressions(node)?
    {
        return rows_of(aggregate.input());
    }
    rows_of(node)
}

/// Finds the fragments of a plan, numbered from the root down, and replaces each by the result of `replace`.
fn replace_fragments(
    plan: Arc<dyn ExecutionPlan>,
    mut replace: impl FnMut(usize, &str, &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let mut number = 0;
    let replaced = plan.transform_down(|node| {
        // Each node sends its first rows, and the client sorts those again.
        if let Some(sort) = node.downcast_ref::<SortExec>()
            && sort.fetch().is_some()
            && is_sendable(&node)
            && has_portable_expressions(&node)?
            && let Some(table) = rows_of(sort.input())?
        {
            let below = replace(number, &table, &node)?;
            number += 1;
            let node = replace_children_if_necessary(node, vec![below])?;
            return Ok(Transformed::new(node, true, TreeNodeRecursion::Jump));
        }
        let table = if is_sendable(&node) { fragment_of(&node)? } else { None };
        let Some(table) = table else { return Ok(Transformed::no(node)) };
        let rows = replace(number, &table, &node)?;
        number += 1;
        Ok(Transformed::new(rows, true, TreeNodeRecursion::Jump))
    })?;
    Ok(replaced.data)
}

fn plan_text(plan: &Arc<dyn ExecutionPlan>) -> String {
    displayable(plan.as_ref()).indent(false).to_string()
}

/// The optimizer rule that replaces fragments by scans of their remote rows.
#[derive(Debug)]
pub(crate) struct PushDownFragments(pub Arc<RemoteTables>);

impl PhysicalOptimizerRule for PushDownFragments {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let remote = &self.0;
        let mut fragments = 0;
        let plan = replace_fragments(plan, |number, table, node| {
            fragments += 1;
            let fragment = Fragment {
                table: table.to_string(),
                sql: remote.sql.clone(),
                tables: remote.tables.get().cloned().unwrap_or_default(),
                planning: remote.planning,
                number,
                plan: plan_text(node),
            };
            let schema = node.schema();
            let properties = properties(schema.clone(), 1);
            Ok(Arc::new(RemoteScan { remote: remote.clone(), fragment, schema, properties }))
        })?;
        // A plan that is made twice (EXPLAIN ANALYZE) has the same fragments.
        if remote.answers.get().is_none() {
            let (budget, answer_bytes) = (remote.job.budget(), remote.elsewhere.answer_bytes());
            let may_be_taken = budget.free_bytes().saturating_sub(fragments * answer_bytes) / 4;
            let help_bytes = remote.elsewhere.help_bytes(may_be_taken / fragments.max(1));
            let each = answer_bytes + help_bytes.min(may_be_taken);
            let answers = budget.reserve(fragments * each, "received answers of nodes");
            let _ = remote.answers.set((answers.map_err(Error::from)?, each));
        }
        Ok(plan)
    }

    fn name(&self) -> &str {
        "near the data"
    }

    fn schema_check(&self) -> bool {
        true
    }
}

/// A plan node that returns the rows of a fragment.
struct RemoteScan {
    remote: Arc<RemoteTables>,
    fragment: Fragment,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
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

    /// Runs the fragment when its first rows are needed: if a query requested all tables at once, tasks with unread
    /// rows would occupy all task slots of a node.
    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let begin = Some((self.remote.clone(), self.fragment.clone(), self.schema.clone()));
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

/// A batch of rows, and `None` at the end.
type BatchResult = crate::Result<Option<RecordBatch>>;

/// Runs a fragment in its own thread, since requests to nodes block, and threads of the query must not block.
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
                    // A send that fails is ignored: the loop ends when the receiver is gone.
                    Some(Some(batch)) => drop(out.blocking_send(check_columns(&batch, &schema).map(Some))),
                }
            }
            Ok(None)
        });
        let _ = out.blocking_send(ran);
    });
    started.map_err(|error| Error::Internal(format!("cannot start a thread: {error}")))?;
    Ok(rows)
}

/// Checks that a batch has the column types of the plan, and renames its columns to the plan's names.
fn check_columns(batch: &RecordBatch, schema: &SchemaRef) -> crate::Result<RecordBatch> {
    let kinds = |schema: &Schema| -> Vec<_> {
        schema.fields().iter().map(|field| field.data_type().clone()).collect()
    };
    if kinds(&batch.schema()) != kinds(schema) {
        let (expected, found) = (kinds(schema), kinds(&batch.schema()));
        return Err(Error::Internal(format!("a node sent columns {found:?}, expected {expected:?}")));
    }
    // A state of percentiles contains the capacity of its digest.
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

/// The limits of a fragment that a node plans: bytes of the query's text, and partitions.
const SQL_BYTES_MAX: usize = 256 << 10;
const PARTITIONS_MAX: usize = 4096;

impl Fragment {
    /// Refuses fragments beyond the limits of text and partitions.
    pub(crate) fn check(&self) -> crate::Result<()> {
        let (bytes, partitions) = (self.sql.len(), self.planning.partitions);
        if bytes > SQL_BYTES_MAX || !(1..=PARTITIONS_MAX).contains(&partitions) {
            return Err(Error::Query(format!(
                "nodes take queries of up to {SQL_BYTES_MAX} bytes in up to {PARTITIONS_MAX} parts, got {bytes} and {partitions}"
            )));
        }
        Ok(())
    }

    pub(crate) fn sql(&self) -> &str {
        &self.sql
    }

    pub(crate) fn planning(&self) -> Planning {
        self.planning
    }

    /// Returns the table that the query calls `name`, as the fragment describes it.
    pub(crate) fn table_of(&self, name: &str) -> Option<RemoteTable> {
        let known = self.tables.get(name)?;
        Some(RemoteTable::new(name, known.clone(), self.planning.partitions))
    }

    /// Returns the path that [`RemoteExecutor::describe`] gave the fragment's table.
    pub fn path(&self) -> &str {
        self.tables.get(&self.table).map_or("", |known| &known.path)
    }

    /// Returns the columns of the fragment's table, and its row count if known.
    pub fn known(&self) -> Option<&TableMetadata> {
        self.tables.get(&self.table)
    }

    /// Returns the columns of the fragment's table.
    pub fn schema(&self) -> Option<&SchemaRef> {
        self.known().map(|known| &known.schema)
    }

    /// Finds the fragment in this machine's plan of the query, and puts local files into it; see
    /// [`Files::has_whole_rows`].
    ///
    /// # Errors
    /// [`Error::Query`] is returned where the plan differs from the client's.
    pub(crate) fn of_plan(
        &self,
        job: &Job,
        plan: Arc<dyn ExecutionPlan>,
        feed: Feed,
        has_whole_rows: bool,
    ) -> crate::Result<Arc<dyn ExecutionPlan>> {
        let mut found = None;
        replace_fragments(plan, |number, table, node| {
            if number == self.number && table == self.table {
                found = Some(node.clone());
            }
            Ok(node.clone())
        })?;
        let found = found.filter(|node| plan_text(node) == self.plan).ok_or_else(|| {
            let what = "this node plans the query differently than the client: their versions differ, or the query asks \
                for the time";
            Error::Query(what.to_string())
        })?;
        let schema = self
            .schema()
            .ok_or_else(|| Error::Query("the fragment does not describe its table".to_string()))?;
        let mut files = Files::fed(job, schema, feed);
        files.has_whole_rows = has_whole_rows;
        let threads = job.budget().threads();
        let here = found.transform_up(|node| {
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
}
