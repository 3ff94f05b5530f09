//! Runs a fragment (a part) of another machine's query on the files of this machine.

use std::sync::Arc;

use arrow::record_batch::RecordBatch;
use datafusion::{
    catalog::TableProvider,
    physical_optimizer::PhysicalOptimizerRule,
    physical_plan::{ExecutionPlan, execute_stream},
    prelude::SessionContext,
};
use inshore_store::{Job, release_code};

use super::{
    Report, check_budget,
    planning::{bytes_read, context, logical_plan, memory_of},
    running::{Running, catch_panics, on_large_stack},
};
use crate::{
    Feed, Fragment, Result,
    current_operator::traced,
    operators::{Limits, ReplaceOperators, Shared},
    remote::{Exchange, ExchangeRows, LocalStage, StageRows, check_ranges},
    scan::{FragmentScan, Scan},
};

/// The largest memory of the rows that an exchange collects, in bytes.
const COLLECTED_BYTES_MAX: u64 = 8 << 20;

/// Runs a [`Fragment`] of a client's query on files of this machine.
///
/// The files must have the columns of the fragment's table. Before the first file is requested, `needed` is called
/// with a description of the byte ranges to read. `each` is called with each batch of result rows.
///
/// # Errors
/// Returns the errors of [`Query::start`](crate::Query::start), [`Query::next_batch`](crate::Query::next_batch) and
/// `each`. Returns [`Error::Query`](crate::Error::Query) if the plan of this machine differs from the client's plan.
pub fn run_fragment(
    job: &Job,
    fragment: &Fragment,
    feed: Feed,
    needed: impl FnOnce(FragmentScan) + Send,
    each: impl FnMut(RecordBatch) -> Result<()> + Send,
) -> Result<Report> {
    check_budget(job.budget())?;
    fragment.check()?;
    catch_panics(|| on_large_stack(|| run_fragment_here(job, fragment, feed, needed, each)))
}

fn run_fragment_here(
    job: &Job,
    fragment: &Fragment,
    feed: Feed,
    needed: impl FnOnce(FragmentScan),
    mut each: impl FnMut(RecordBatch) -> Result<()>,
) -> Result<Report> {
    let leave = feed.leave();
    let mut running = Running::of(job, Limits::default(), async |shared: &Shared| {
        let (plan, context, has_whole_rows) = plan_again(job, fragment, shared).await?;
        let plan = fragment.of_plan(job, plan, feed, has_whole_rows)?;
        let options = context.state().config().options().clone();
        let plan = ReplaceOperators(shared.clone()).optimize(plan, &options)?;
        job.start_phase("query", "bytes", bytes_read(&plan));
        if let Some(scan) = scan_of(&plan) {
            needed(scan.needed());
        }
        release_code();
        Ok(execute_stream(traced(plan)?, context.task_ctx())?)
    })?;
    let mut rows = 0;
    let mut run = || -> Result<()> {
        while let Some(batch) = running.next(job)? {
            rows += batch.num_rows() as u64;
            each(batch)?;
        }
        Ok(())
    };
    // When `running` is dropped, its runtime waits for its threads, and a thread may wait for a file. `leave` ends
    // that wait.
    run().inspect_err(|_| leave())?;
    Ok(Report { rows, operators: running.shared.ran() })
}

/// Runs a stage of a [`Fragment`] on this machine. `each` is called with rows of the stage and their range, of which
/// there are `ranges`; the rows of the last stage are in range 0. `broadcasts` has the rows of each stage that is broadcast
/// to this one.
///
/// An eighth of the budget, at most 16 MiB, collects rows before they are divided. Rows with equal keys are in one range
/// on all machines.
///
/// # Errors
/// Returns the errors of [`run_fragment`], and [`Error::Query`](crate::Error::Query) if the fragment lacks the stage.
pub fn run_stage(
    job: &Job,
    fragment: &Fragment,
    (stage, ranges): (usize, u32),
    input: (StageRows, Vec<ExchangeRows>),
    each: impl FnMut(u32, RecordBatch) -> Result<()> + Send,
) -> Result<Report> {
    check_budget(job.budget())?;
    fragment.check()?;
    check_ranges(ranges)?;
    catch_panics(|| on_large_stack(|| run_stage_here(job, fragment, (stage, ranges), input, each)))
}

fn run_stage_here(
    job: &Job,
    fragment: &Fragment,
    (stage, ranges): (usize, u32),
    input: (StageRows, Vec<ExchangeRows>),
    each: impl FnMut(u32, RecordBatch) -> Result<()>,
) -> Result<Report> {
    let leave = match &input.0 {
        StageRows::Files(feed) => feed.leave(),
        StageRows::Exchanges(_) => Arc::new(|| {}),
    };
    let collected_bytes = (job.budget().memory_bytes() / 16).min(COLLECTED_BYTES_MAX);
    let _memory = job
        .budget()
        .reserve(2 * collected_bytes, "rows of an exchange")
        .map_err(inshore_store::Error::from)?;
    let mut keys = Vec::new();
    let mut running = Running::of(job, Limits::default(), async |shared: &Shared| {
        let (plan, context, has_whole_rows) = plan_again(job, fragment, shared).await?;
        let LocalStage { plan, keys: of_stage } =
            fragment.stage_of_plan(job, plan, stage, input, has_whole_rows)?;
        keys = of_stage;
        let plan = ReplaceOperators(shared.clone()).optimize(plan, context.state().config().options())?;
        release_code();
        Ok(execute_stream(traced(plan)?, context.task_ctx())?)
    })?;
    let mut exchange =
        Exchange::new(keys, ranges, usize::try_from(collected_bytes).unwrap_or(usize::MAX), each);
    let mut rows = 0;
    let mut run = || -> Result<()> {
        while let Some(batch) = running.next(job)? {
            rows += batch.num_rows() as u64;
            if batch.num_rows() > 0 {
                exchange.add(batch)?;
            }
        }
        exchange.flush()
    };
    run().inspect_err(|_| leave())?;
    Ok(Report { rows, operators: running.shared.ran() })
}

/// Plans the query of a fragment on this machine. The second value is true if the query has a wildcard.
async fn plan_again(
    job: &Job,
    fragment: &Fragment,
    shared: &Shared,
) -> Result<(Arc<dyn ExecutionPlan>, SessionContext, bool)> {
    let context = context(job, shared, fragment.planning(), Vec::new())?;
    let memory_bytes = memory_of(job, &fragment.planning());
    let mut has_whole_rows = false;
    let find = |name: &str, is_whole: bool| {
        has_whole_rows |= is_whole;
        Ok(fragment.table_of(name).map(|table| Arc::new(table) as Arc<dyn TableProvider>))
    };
    let plan = logical_plan(&context, fragment.sql(), memory_bytes, find).await?;
    let frame = context.execute_logical_plan(plan).await?;
    Ok((frame.create_physical_plan().await?, context, has_whole_rows))
}

/// Finds the scan node in a fragment's plan.
fn scan_of(plan: &Arc<dyn ExecutionPlan>) -> Option<&Scan> {
    plan.downcast_ref::<Scan>().or_else(|| plan.children().into_iter().find_map(scan_of))
}
