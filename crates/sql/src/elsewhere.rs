//! Queries about tables that lie on other machines.
//!
//! ```text
//!   client: plan ─► fragments: what can be done to the rows of one table where they lie ─► rows of fragments ─► the rest
//!                     │ the query's text, what is known of its tables, which fragment               ▲
//!                     ▼                                                                             │
//!   node:   plan ─► the same fragment, over the rows that are here ─────────────────────────────────┘
//! ```
//!
//! A fragment is a filter, a projection, the first half of a GROUP BY (states of groups, which the client puts together), or
//! the first rows of an ORDER BY with a LIMIT, directly over one table. No plan travels: both sides make the same plan of the same
//! text, by the same numbers, and compare the fragment in words before it runs. So nothing has to be written down and read
//! again in a form of its own, and states of any aggregate function can be put together.
//!
//! What is not the same on both sides is not in a fragment: what random() gives, and results of subqueries. A query whose plan
//! differs (two versions of the program, now() in a filter) is refused by the node.
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
use inshore_tables::Known;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::{
    Error, Feed,
    files::{self, Files},
    once::properties,
    plan_size::{CENTROIDS_MAX, of_every_type},
    scan::Scan,
};

/// The numbers of which a plan is made, beside its text and its tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Planning {
    /// Into how many parts rows are divided.
    pub partitions: usize,
    /// The memory that is planned for.
    pub memory_bytes: u64,
    /// Whether small sides of joins are given to all threads as they are.
    pub is_bold: bool,
}

/// A part of a query that is about one table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Fragment {
    /// The table, as the query calls it.
    table: String,
    sql: String,
    tables: BTreeMap<String, Known>,
    planning: Planning,
    /// Which of the plan's fragments, in its order.
    number: usize,
    /// The fragment in words.
    plan: String,
}

/// Where tables are that are not here.
pub trait Elsewhere: Debug + Send + Sync {
    /// What is known of the table that a query calls `name`, of which columns in `as_text` are text; `None` where it is none
    /// of those that are elsewhere. Called in a thread that may wait.
    ///
    /// # Errors
    /// What keeps it from being read.
    fn describe(&self, job: &Job, name: &str, as_text: &[String]) -> crate::Result<Option<Known>>;

    /// Memory for the answers of a fragment that are on their way.
    fn answer_bytes(&self) -> u64;

    /// Memory to do a part of a fragment here, where so many bytes may be taken for that: all of them, less, or none.
    fn help_bytes(&self, _may_be_taken: u64) -> u64 {
        0
    }

    /// Begins to run a fragment; the job has [`Self::answer_bytes`], what was asked for by [`Self::help_bytes`], and no more. Called in a thread that may wait.
    ///
    /// # Errors
    /// What keeps it from being begun.
    fn run(&self, job: &Job, fragment: Fragment) -> crate::Result<Box<dyn FragmentRows>>;
}

/// The rows of a fragment.
pub trait FragmentRows: Send {
    /// The next ones, if they come within `wait`: `None` where nothing came, `Some(None)` at the end.
    ///
    /// # Errors
    /// [`Error::Interrupted`] where the fragment can be run again, from the start.
    fn next_within(&mut self, wait: Duration) -> crate::Result<Option<Option<RecordBatch>>>;
}

/// How long it may go unnoticed that nobody wants more rows.
const PATIENCE: Duration = Duration::from_millis(50);

/// What the fragments of a query share.
#[derive(Debug)]
pub(crate) struct Near {
    pub job: Job,
    pub elsewhere: Arc<dyn Elsewhere>,
    pub sql: String,
    pub planning: Planning,
    /// All tables of the query, once they are known.
    pub tables: OnceLock<BTreeMap<String, Known>>,
    /// Memory for the answers of all fragments and for the help with them, once these are known, and how much of it each has: operators
    /// take what is free when they begin.
    pub answers: OnceLock<(Reservation, u64)>,
}

/// A table that is not here, for plans.
#[derive(Debug)]
pub(crate) struct AbsentTable {
    name: String,
    known: Known,
    partitions: usize,
}

impl AbsentTable {
    pub fn new(name: &str, known: Known, partitions: usize) -> AbsentTable {
        AbsentTable { name: name.to_string(), known, partitions }
    }
}

#[async_trait]
impl TableProvider for AbsentTable {
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
        files::check_readable(all, &chosen, &self.name)?;
        let predicate = files::predicate(state, all, filters)?;
        let schema = Arc::new(all.project(&chosen)?);
        Ok(Arc::new(AbsentScan {
            table: self.name.clone(),
            is_clients: self.known.path.is_empty(),
            columns: schema.fields().iter().map(|field| field.name().clone()).collect(),
            statistics: Arc::new(files::row_statistics(&schema, self.known.rows)),
            properties: properties(schema.clone(), self.partitions),
            schema,
            predicate,
        }))
    }
}

/// Reads a table that is not here: a place in a plan, which fragments are cut out around.
#[derive(Debug)]
struct AbsentScan {
    table: String,
    /// Whether it lies with the client, and this is a node's plan.
    is_clients: bool,
    columns: Vec<String>,
    schema: SchemaRef,
    predicate: Option<Arc<dyn PhysicalExpr>>,
    statistics: Arc<Statistics>,
    properties: Arc<PlanProperties>,
}

impl DisplayAs for AbsentScan {
    fn fmt_as(&self, _: DisplayFormatType, text: &mut Formatter<'_>) -> fmt::Result {
        write!(text, "Scan: {}, columns=[{}]", self.table, self.columns.join(", "))?;
        self.predicate.iter().try_for_each(|predicate| write!(text, ", row groups where {predicate}"))
    }
}

impl ExecutionPlan for AbsentScan {
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
        Err(Error::Internal(format!("{} is not read where it lies", self.table)).into())
    }
}

/// Whether an expression gives the same wherever it is computed.
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

/// Whether a repartitioning only shares rows out.
fn is_sharing(node: &Arc<dyn ExecutionPlan>) -> bool {
    let shares = |node: &RepartitionExec| matches!(node.partitioning(), Partitioning::RoundRobinBatch(_));
    node.downcast_ref::<RepartitionExec>().is_some_and(shares)
}

/// The table whose rows a plan filters and projects, where it does nothing else.
fn rows_of(node: &Arc<dyn ExecutionPlan>) -> Result<Option<String>> {
    if let Some(scan) = node.downcast_ref::<AbsentScan>() {
        // A table that lies with the client is none of a fragment, on neither side. What a scan leaves out is looked at again above.
        return Ok((!scan.is_clients).then(|| scan.table.clone()));
    }
    let is_simple = node.is::<FilterExec>() || node.is::<ProjectionExec>() || node.is::<CooperativeExec>();
    if !(is_simple || is_sharing(node)) || !has_portable_expressions(node)? {
        return Ok(None);
    }
    rows_of(node.children()[0])
}

/// Whether rows travel as they are. Those with dictionaries do not: what a message says would hang on others before it.
fn travels(node: &Arc<dyn ExecutionPlan>) -> bool {
    let mut is_whole = |kind: &DataType, _: usize| !matches!(kind, DataType::Dictionary(..));
    node.schema().fields().iter().all(|field| of_every_type(field.data_type(), 0, &mut is_whole))
}

/// The table of which a plan is a fragment, where it is one.
fn fragment_of(node: &Arc<dyn ExecutionPlan>) -> Result<Option<String>> {
    if let Some(aggregate) = node.downcast_ref::<AggregateExec>()
        && aggregate.mode().output_mode() == AggregateOutputMode::Partial
        && has_portable_expressions(node)?
    {
        return rows_of(aggregate.input());
    }
    rows_of(node)
}

/// Finds the fragments of a plan, in its order from above, and gives the plan with what `replace` puts in their places.
fn cut(
    plan: Arc<dyn ExecutionPlan>,
    mut replace: impl FnMut(usize, &str, &Arc<dyn ExecutionPlan>) -> Result<Arc<dyn ExecutionPlan>>,
) -> Result<Arc<dyn ExecutionPlan>> {
    let mut number = 0;
    let cut = plan.transform_down(|node| {
        // The first rows of each node, of which the first ones are taken here.
        if let Some(sort) = node.downcast_ref::<SortExec>()
            && sort.fetch().is_some()
            && travels(&node)
            && has_portable_expressions(&node)?
            && let Some(table) = rows_of(sort.input())?
        {
            let below = replace(number, &table, &node)?;
            number += 1;
            let node = replace_children_if_necessary(node, vec![below])?;
            return Ok(Transformed::new(node, true, TreeNodeRecursion::Jump));
        }
        let table = if travels(&node) { fragment_of(&node)? } else { None };
        let Some(table) = table else { return Ok(Transformed::no(node)) };
        let rows = replace(number, &table, &node)?;
        number += 1;
        Ok(Transformed::new(rows, true, TreeNodeRecursion::Jump))
    })?;
    Ok(cut.data)
}

fn words(plan: &Arc<dyn ExecutionPlan>) -> String {
    displayable(plan.as_ref()).indent(false).to_string()
}

/// Puts rows that come from elsewhere in the place of fragments.
#[derive(Debug)]
pub(crate) struct CutOut(pub Arc<Near>);

impl PhysicalOptimizerRule for CutOut {
    fn optimize(&self, plan: Arc<dyn ExecutionPlan>, _: &ConfigOptions) -> Result<Arc<dyn ExecutionPlan>> {
        let near = &self.0;
        let mut fragments = 0;
        let plan = cut(plan, |number, table, node| {
            fragments += 1;
            let fragment = Fragment {
                table: table.to_string(),
                sql: near.sql.clone(),
                tables: near.tables.get().cloned().unwrap_or_default(),
                planning: near.planning,
                number,
                plan: words(node),
            };
            let schema = node.schema();
            let properties = properties(schema.clone(), 1);
            Ok(Arc::new(NearRows { near: near.clone(), fragment, schema, properties }))
        })?;
        // A plan that is made twice (EXPLAIN ANALYZE) has as many.
        if near.answers.get().is_none() {
            let (budget, answer_bytes) = (near.job.budget(), near.elsewhere.answer_bytes());
            let may_be_taken = budget.free_bytes().saturating_sub(fragments * answer_bytes) / 4;
            let help_bytes = near.elsewhere.help_bytes(may_be_taken / fragments.max(1));
            let each = answer_bytes + help_bytes.min(may_be_taken);
            let answers = budget.reserve(fragments * each, "answers of nodes on their way");
            let _ = near.answers.set((answers.map_err(Error::from)?, each));
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

/// The rows of a fragment.
struct NearRows {
    near: Arc<Near>,
    fragment: Fragment,
    schema: SchemaRef,
    properties: Arc<PlanProperties>,
}

impl Debug for NearRows {
    fn fmt(&self, text: &mut Formatter<'_>) -> fmt::Result {
        text.debug_struct("NearRows").field("fragment", &self.fragment).finish_non_exhaustive()
    }
}

impl DisplayAs for NearRows {
    fn fmt_as(&self, _: DisplayFormatType, text: &mut Formatter<'_>) -> fmt::Result {
        let steps: Vec<&str> = self.fragment.plan.lines().map(str::trim).collect();
        write!(text, "NearData: {}", steps.join(" <- "))
    }
}

impl ExecutionPlan for NearRows {
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

    /// Asks when rows are wanted and not before: who asks for all tables of a query at once takes all places of a node for rows
    /// that wait.
    fn execute(&self, _: usize, _: Arc<TaskContext>) -> Result<SendableRecordBatchStream> {
        let begin = Some((self.near.clone(), self.fragment.clone(), self.schema.clone()));
        let batches = stream::unfold((begin, None), |(begin, rows)| async move {
            let mut rows = match (begin, rows) {
                (Some((near, fragment, schema)), _) => match ask(near, fragment, schema) {
                    Ok(rows) => rows,
                    Err(error) => return Some((Err(error.into()), (None, None))),
                },
                (None, rows) => rows?,
            };
            let ended_early = || Err(Error::Internal("what asks nodes ended early".to_string()));
            let batch = rows.recv().await.unwrap_or_else(ended_early).transpose()?;
            Some((batch.map_err(DataFusionError::from), (None, Some(rows))))
        });
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), batches)))
    }
}

/// Batches, and `None` at their end.
type Told = crate::Result<Option<RecordBatch>>;

/// Runs a fragment, in a thread of its own: whoever asks nodes waits, which threads of the query must not.
fn ask(near: Arc<Near>, fragment: Fragment, schema: SchemaRef) -> crate::Result<mpsc::Receiver<Told>> {
    let (out, rows) = mpsc::channel::<Told>(2);
    let started = std::thread::Builder::new().name("near".to_string()).spawn(move || {
        let bytes = near.answers.get().map_or_else(|| near.elsewhere.answer_bytes(), |(_, each)| *each);
        let answers = Budget::new(bytes, near.job.budget().threads());
        let ran = near.elsewhere.run(&near.job.within(answers), fragment).and_then(|mut rows| {
            while !out.is_closed() {
                match rows.next_within(PATIENCE)? {
                    None => {}
                    Some(None) => break,
                    // Where nobody wants it, the loop ends.
                    Some(Some(batch)) => drop(out.blocking_send(as_planned(&batch, &schema).map(Some))),
                }
            }
            Ok(None)
        });
        let _ = out.blocking_send(ran);
    });
    started.map_err(|error| Error::Internal(format!("cannot start a thread: {error}")))?;
    Ok(rows)
}

/// A batch with the columns of the plan, whatever its fields are called.
fn as_planned(batch: &RecordBatch, schema: &SchemaRef) -> crate::Result<RecordBatch> {
    let kinds = |schema: &Schema| -> Vec<_> {
        schema.fields().iter().map(|field| field.data_type().clone()).collect()
    };
    if kinds(&batch.schema()) != kinds(schema) {
        let (expected, found) = (kinds(schema), kinds(&batch.schema()));
        return Err(Error::Internal(format!("a node answers columns {found:?}, expected {expected:?}")));
    }
    // A state of percentiles says how much room its digest is to have.
    let digests =
        schema.fields().iter().zip(batch.columns()).filter(|(field, _)| field.name().ends_with("[max_size]"));
    let sizes = digests.filter_map(|(_, column)| column.as_primitive_opt::<UInt64Type>());
    if sizes.filter_map(max).any(|size| size > CENTROIDS_MAX as u64) {
        return Err(Error::Internal("a node answers a digest that is larger than any".to_string()));
    }
    let options = RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
    let batch = RecordBatch::try_new_with_options(schema.clone(), batch.columns().to_vec(), &options);
    batch.map_err(|error| Error::Internal(format!("a node answers rows that are none: {error}")))
}

/// The longest text of a query, and the most parts of its rows, that a node plans for.
const SQL_BYTES_MAX: usize = 256 << 10;
const PARTITIONS_MAX: usize = 4096;

impl Fragment {
    /// Refuses what no client should ask for.
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

    /// What is known of the table that the query calls `name`.
    pub(crate) fn table_of(&self, name: &str) -> Option<AbsentTable> {
        let known = self.tables.get(name)?;
        Some(AbsentTable::new(name, known.clone(), self.planning.partitions))
    }

    /// What [`Elsewhere::describe`] called its table.
    pub fn path(&self) -> &str {
        self.tables.get(&self.table).map_or("", |known| &known.path)
    }

    /// The columns and rows of its table, as far as they are known.
    pub fn known(&self) -> Option<&Known> {
        self.tables.get(&self.table)
    }

    /// The columns of its table.
    pub fn schema(&self) -> Option<&SchemaRef> {
        self.known().map(|known| &known.schema)
    }

    /// The fragment out of a plan of its query, over files that are here; see [`Files::has_whole_rows`].
    ///
    /// # Errors
    /// Where the plan is not the client's.
    pub(crate) fn of_plan(
        &self,
        job: &Job,
        plan: Arc<dyn ExecutionPlan>,
        feed: Feed,
        has_whole_rows: bool,
    ) -> crate::Result<Arc<dyn ExecutionPlan>> {
        let mut found = None;
        cut(plan, |number, table, node| {
            if number == self.number && table == self.table {
                found = Some(node.clone());
            }
            Ok(node.clone())
        })?;
        let found = found.filter(|node| words(node) == self.plan).ok_or_else(|| {
            let what = "this node makes another plan of the query than the client: their versions differ, or the query asks \
                for the time";
            Error::Query(what.to_string())
        })?;
        let schema = self.schema().ok_or_else(|| Error::Query("a fragment of no table".to_string()))?;
        let mut files = Files::fed(job, schema, feed);
        files.has_whole_rows = has_whole_rows;
        let threads = job.budget().threads();
        let here = found.transform_up(|node| {
            if let Some(scan) = node.downcast_ref::<AbsentScan>() {
                let statistics = Statistics::new_unknown(&scan.schema);
                let (schema, columns) = (scan.schema.as_ref().clone(), scan.columns.clone());
                let predicate = scan.predicate.clone();
                let scan = Scan::new(files.again(), schema, columns, predicate, statistics, threads);
                return Ok(Transformed::yes(Arc::new(scan) as Arc<dyn ExecutionPlan>));
            }
            if is_sharing(&node) {
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
