//! Runs `inshore sql`, `inshore cluster sql` and `inshore nearest query --where` in a worker: a child process with a memory limit. The parent
//! process forwards stop signals to the worker, waits for the end of the worker, and releases the extents that the worker could not release.
//!
//! The query library (DataFusion) does not count the memory of function results against the budget, and evaluates
//! functions over whole batches of rows. The limit therefore applies to the whole process. A query succeeds, or ends
//! with one message that names the limit and the running operator. The worker itself reads the input, writes the
//! results and draws the progress bar (docs/decisions/0033). [`query_process`] defines the limit.

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use anyhow::{Context, Result};
use inshore::{
    query_process,
    sandbox::{WorkerEnd, WorkerFork, split},
    sql,
    store::{Store, release_code},
};

use crate::{
    args::{Cli, Command, GlobalOptions},
    job::{
        session::{budget, folders, store_path},
        signals,
    },
    report::{failure, outcome::say},
};

/// Starts a worker if the command is a query. In the parent, waits for the worker, and returns the worker's exit code.
/// In the worker, and for all other commands, returns `None`: the caller must then run the command.
pub fn wait_if_contained(cli: &Cli) -> Result<Option<ExitCode>> {
    let is_query = match &cli.command {
        Command::Sql(_) => true,
        #[cfg(feature = "nodes")]
        Command::Cluster { command: crate::args::ClusterCommand::Sql(_) } => true,
        // A predicate is a query over the columns of the vectors.
        #[cfg(feature = "vectors")]
        Command::Nearest { command: crate::args::NearestCommand::Query(arguments) } => {
            arguments.predicate.is_some()
        }
        _ => false,
    };
    if !is_query {
        return Ok(None);
    }
    let budget = budget(&cli.everywhere);
    // If no operator is running, the rows are being written or shown.
    let doing = || sql::current_operator().unwrap_or_else(|| "writing the rows".to_string());
    let waiting =
        match split(query_process::limits(&budget), doing).context("cannot start a process for the query")? {
            WorkerFork::Worker(stops) => {
                signals::listen_to_parent(stops);
                return Ok(None);
            }
            WorkerFork::Parent(waiting) => waiting,
        };
    // From this point on the parent only waits, so it releases the memory of its code.
    release_code();
    let end = waiting.wait().context("cannot wait for the process of the query")?;
    let code = match end {
        WorkerEnd::Exited(status) => status as u8,
        _ => {
            erase_bar();
            failure::FAILED + signals::UNCLEAN_WORKER
        }
    };
    let code = match code.checked_sub(signals::UNCLEAN_WORKER) {
        Some(code @ (failure::FAILED | failure::STOPPED)) => {
            release_extents(&cli.everywhere);
            code
        }
        _ => code,
    };
    if !matches!(end, WorkerEnd::Exited(_)) {
        say(&format!("inshore: {}", query_process::describe_end(&end, budget.memory_bytes())));
    }
    Ok(Some(ExitCode::from(code)))
}

/// Releases the extents of a worker that could not release them itself.
fn release_extents(options: &GlobalOptions) {
    // If extents cannot be released now, the next job releases or reports them.
    let _ = store_path(options).map(|path| Store::open_folders(&folders(&path))?.give_back_of_dead());
}

/// Erases the progress line that a worker left on the terminal.
fn erase_bar() {
    let mut stderr = io::stderr();
    if stderr.is_terminal() {
        // The result is ignored, since a progress line that remains is harmless.
        let _ = stderr.write_all(b"\r\x1b[2K");
    }
}
