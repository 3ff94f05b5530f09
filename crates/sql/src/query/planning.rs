//! Translates the text of a query to a physical plan with the rules and operators of this crate.

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use datafusion::{
    catalog::TableProvider,
    common::{TableReference, config::ConfigNonZeroUsize},
    execution::{
        SendableRecordBatchStream, SessionStateBuilder, disk_manager::DiskManagerBuilder,
        runtime_env::RuntimeEnvBuilder,
    },
    logical_expr::LogicalPlan,
    physical_optimizer::{PhysicalOptimizerRule, optimizer::PhysicalOptimizer},
    physical_plan::{ExecutionPlan, execute_stream},
    prelude::{SQLOptions, SessionConfig, SessionContext},
    sql::{parser::Statement, sqlparser::ast::Statement as Asked},
};
use inshore_store::{Job, release_code};

use crate::{
    BATCH_ROWS, Error, Result, Tables,
    current_operator::traced,
    operators::{ReplaceOperators, Shared},
    remote::{BROADCAST_ROWS_MAX, PartitionJoins, Planning, PushDownFragments, RemoteTables},
    rules::{
        aggregates::functions,
        corrections::{check_subqueries, correct_plan, correct_statement},
        distinct::distinct_as_groups,
        floats::EqualFloats,
        literals,
        nullif::nullif,
        overflow::CheckedNumbers,
        plan_size::{check_plan, check_statement, has_wildcard},
        scalar_functions::{CheckedLiterals, Corrections, restore_library_functions},
    },
    scan::Scan,
    spills,
};

/// The strategy for planning joins and partitions. A query that runs out of memory before its first row is planned
/// again in the next mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlanMode {
    /// Small join sides are broadcast to all threads.
    BroadcastSmallSides,
    /// Both sides of every join are partitioned.
    PartitionAll,
    /// The plan has one partition, whatever the number of threads. Each operator then has the memory of all
    /// partitions. Success does not depend on the order in which threads run.
    OnePartition,
}

impl PlanMode {
    /// Returns the mode to try after a query ran out of memory in this mode.
    pub fn more(self) -> Option<PlanMode> {
        match self {
            PlanMode::BroadcastSmallSides => Some(PlanMode::PartitionAll),
            PlanMode::PartitionAll => Some(PlanMode::OnePartition),
            PlanMode::OnePartition => None,
        }
    }
}

/// The minimum memory of a partition. With less memory, a sort would not get its minimum memory.
const PART_BYTES_MIN: u64 = 8 << 20;

/// Plans a query, and starts its execution.
pub(super) async fn plan(
    job: &Job,
    text: &str,
    tables: &Tables,
    shared: &Shared,
    mode: PlanMode,
) -> Result<SendableRecordBatchStream> {
    let (threads, memory_bytes) = (job.budget().threads(), job.budget().memory_bytes());
    let partitions = match mode {
        PlanMode::OnePartition => 1,
        _ => threads.min((memory_bytes / PART_BYTES_MIN) as usize).max(1),
    };
    // With one partition, DataFusion would make no partial aggregates, which nodes compute.
    let partitions = if tables.elsewhere().is_some() { partitions.max(2) } else { partitions };
    let with_exchanges = tables.elsewhere().is_some_and(|elsewhere| elsewhere.has_exchanges());
    let is_bold = mode == PlanMode::BroadcastSmallSides;
    let planning = Planning { partitions, memory_bytes, is_bold, with_exchanges };
    let remote = tables.elsewhere().map(|elsewhere| {
        Arc::new(RemoteTables {
            job: job.clone(),
            elsewhere: elsewhere.clone(),
            sql: text.to_string(),
            planning,
            tables: OnceLock::new(),
            answers: OnceLock::new(),
        })
    });
    if let Some(remote) = &remote {
        shared.remote.set(Arc::downgrade(remote)).expect("set once");
    }
    let mut rules: Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>> = Vec::new();
    rules.extend(remote.clone().map(|remote| Arc::new(PushDownFragments(remote)) as _));
    rules.push(Arc::new(ReplaceOperators(shared.clone())));
    let context = context(job, shared, planning, rules)?;
    let mut all_known = BTreeMap::new();
    let find = |name: &str, is_whole: bool| {
        // Table functions such as generate_series are not looked up as tables.
        if !tables.has(name) && context.state().table_functions().contains_key(name) {
            return Ok(None);
        }
        let (table, known) = tables.find(job, name, &planning, is_whole)?;
        all_known.extend(known.map(|known| (name.to_string(), known)));
        Ok(Some(table))
    };
    let plan = logical_plan(&context, text, memory_bytes, find).await?;
    if let Some(remote) = remote {
        remote.tables.set(all_known).expect("set once");
    }
    let frame = context.execute_logical_plan(plan).await?;
    let context = Arc::new(frame.task_ctx());
    let (state, plan) = frame.into_parts();
    let plan = state.optimize(&plan)?;
    check_subqueries(&plan)?;
    let plan = state.query_planner().create_physical_plan(&plan, &state).await?;
    job.start_phase("query", "bytes", bytes_read(&plan));
    // Planning touches most code pages of a large library, but execution touches only a few. The pages are therefore
    // released.
    release_code();
    Ok(execute_stream(traced(plan)?, context)?)
}

/// Returns the memory that plans are made for: the smaller of the job's memory and the client's memory. Client and
/// node must make the same plan.
pub(super) fn memory_of(job: &Job, planning: &Planning) -> u64 {
    planning.memory_bytes.min(job.budget().memory_bytes())
}

/// Parses a query, finds its tables, and makes a plan that is not too large for `memory_bytes`. The second argument
/// of `find` is true if the query has a wildcard, so that it may need all columns.
pub(super) async fn logical_plan(
    context: &SessionContext,
    text: &str,
    memory_bytes: u64,
    mut find: impl FnMut(&str, bool) -> Result<Option<Arc<dyn TableProvider>>>,
) -> Result<LogicalPlan> {
    let state = context.state();
    let dialect = state.config().options().sql_parser.dialect;
    let mut statement = state.sql_to_statement(text, &dialect)?;
    check_is_query(&statement)?;
    check_statement(&statement)?;
    correct_statement(&mut statement)?;
    let is_whole = has_wildcard(&statement);
    for reference in state.resolve_table_references(&statement)? {
        if let TableReference::Bare { table } = &reference
            && let Some(table) = find(table, is_whole)?
        {
            context.register_table(reference.clone(), table)?;
        }
    }
    let plan = context.state().statement_to_plan(statement).await?;
    check_plan(&plan, memory_bytes)?;
    let only_reading =
        SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    only_reading.verify_plan(&plan).map_err(|error| {
        Error::Query(format!(
            "only queries are supported (SELECT, EXPLAIN, VALUES): {}",
            error.strip_backtrace()
        ))
    })?;
    Ok(restore_library_functions(distinct_as_groups(correct_plan(plan)?)?)?)
}

/// Refuses statements other than queries.
fn check_is_query(statement: &Statement) -> Result<()> {
    match statement {
        Statement::Statement(inner) if matches!(**inner, Asked::Query(_) | Asked::ExplainTable { .. }) => {
            Ok(())
        }
        Statement::Explain(explain) => check_is_query(&explain.statement),
        other => {
            let text = other.to_string();
            let shown: String = text.chars().take(40).collect();
            Err(Error::Query(format!("only queries are supported (SELECT, EXPLAIN, VALUES), not {shown}")))
        }
    }
}

/// Returns the total bytes of all files that a plan reads.
pub(super) fn bytes_read(plan: &Arc<dyn ExecutionPlan>) -> u64 {
    let below: u64 = plan.children().into_iter().map(bytes_read).sum();
    below + plan.downcast_ref::<Scan>().map_or(0, Scan::bytes)
}

/// Creates a DataFusion session with the memory pool, the functions and the rules of a query.
pub(super) fn context(
    job: &Job,
    shared: &Shared,
    planning: Planning,
    rules: Vec<Arc<dyn PhysicalOptimizerRule + Send + Sync>>,
) -> Result<SessionContext> {
    let disk = DiskManagerBuilder::default().with_temp_file_factory(shared.spills.clone());
    let runtime = RuntimeEnvBuilder::new()
        .with_memory_pool(shared.memory.clone())
        .with_disk_manager_builder(disk)
        .build_arc()?;
    let mut config = SessionConfig::new()
        .with_target_partitions(planning.partitions)
        .with_batch_size(BATCH_ROWS)
        .with_information_schema(true);
    let options = config.options_mut();
    // A join side that is broadcast must be small, since such a join cannot spill to flash.
    let (bytes, rows) = match planning.is_bold {
        true => ((planning.memory_bytes / 64) as usize, BROADCAST_ROWS_MAX),
        false => (0, 0),
    };
    options.optimizer.hash_join_single_partition_threshold = bytes;
    options.optimizer.hash_join_single_partition_threshold_rows = rows;
    options.optimizer.enable_topk_dynamic_filter_pushdown = false;
    options.optimizer.enable_join_dynamic_filter_pushdown = false;
    options.optimizer.enable_aggregate_dynamic_filter_pushdown = false;
    options.execution.max_spill_file_size_bytes = ConfigNonZeroUsize::try_new(spills::FILE_BYTES_MAX)?;
    // Each input stream of a merge may take this much memory without a reservation.
    options.execution.sort_spill_reservation_bytes = (job.budget().memory_bytes() / 64) as usize;
    let mut state =
        SessionStateBuilder::new_with_default_features().with_config(config).with_runtime_env(runtime);
    let corrections = Corrections { memory_bytes: memory_of(job, &planning) };
    state.expr_planners().get_or_insert_default().insert(0, Arc::new(CheckedLiterals(corrections)));
    let equal_floats = Arc::new(EqualFloats::default());
    state = state.with_analyzer_rule(equal_floats.clone()).with_optimizer_rule(equal_floats);
    state = state.with_analyzer_rule(Arc::new(CheckedNumbers));
    if planning.with_exchanges {
        let mut all = PhysicalOptimizer::new().rules;
        // The rule precedes the one that divides the sides of partitioned joins.
        let place = all.iter().position(|rule| rule.name() == "join_selection").map_or(0, |place| place + 1);
        all.insert(place, Arc::new(PartitionJoins));
        state = state.with_physical_optimizer_rules(all);
    }
    for rule in rules {
        state = state.with_physical_optimizer_rule(rule);
    }
    let context = SessionContext::new_with_state(state.build());
    functions().into_iter().for_each(|function| context.register_udaf(function));
    let scalar = context.state().scalar_functions().clone();
    scalar
        .values()
        .filter_map(|function| corrections.corrected(function))
        .for_each(|function| context.register_udf(function));
    context.register_udf(literals::FUNCTION.as_ref().clone());
    if let Some(original) = scalar.get("nullif") {
        context.register_udf(nullif(original.clone()));
    }
    Ok(context)
}
