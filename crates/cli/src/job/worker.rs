//! Runs `inshore sql`, and `inshore nearest query --where`, in a worker: a child process with a memory limit. The command itself only waits for the worker.
//!
//! The query library computes a function over a whole batch without a budget. The limit therefore applies to the
//! process: a query succeeds, or ends with one message that names the limit and the running operator. Nothing else
//! changes for the command: the worker reads, writes and draws as a command without a worker would
//! (docs/decisions/0033). The limit is that of [`query_process`].

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
    args::{Cli, Command, GlobalOptions, NearestCommand},
    job::{
        session::{budget, folders, store_path},
        signals,
    },
    report::{failure, outcome::say},
};

/// Runs the command in a worker if it is a query. The first process waits for the worker and returns its exit code.
pub fn wait_if_contained(cli: &Cli) -> Result<Option<ExitCode>> {
    let is_query = match &cli.command {
        Command::Sql(_) => true,
        // A predicate is a query over the columns of the vectors.
        Command::Nearest { command: NearestCommand::Query(arguments) } => arguments.predicate.is_some(),
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
    // This process only waits from here on, so it releases the memory of its code.
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
        // The result is ignored, since a line that stays is no failure.
        let _ = stderr.write_all(b"\r\x1b[2K");
    }
}
