//! Runs `inshore sql` in a child process with a memory limit, the worker; the command itself only waits for it.
//!
//! The query library computes a function over a whole batch without a budget. The limit therefore applies to the
//! process: a query succeeds, or ends with one message that names the limit and the running operator. No other part
//! of the verb is affected: the
//! worker reads, writes and draws as the command would (docs/decisions/0033). The limit is that of [`query_process`].

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

/// Continues in a worker if the command is a query: then the first process gets the exit code when the worker has ended.
pub fn wait_if_contained(cli: &Cli) -> Result<Option<ExitCode>> {
    if !matches!(cli.command, Command::Sql(_)) {
        return Ok(None);
    }
    let budget = budget(&cli.everywhere);
    // Between operators the rows are written, or shown.
    let doing = || sql::current_operator().unwrap_or_else(|| "writing the rows".to_string());
    let waiting =
        match split(query_process::limits(&budget), doing).context("cannot start a process for the query")? {
            WorkerFork::Worker(stops) => {
                signals::listen_to_parent(stops);
                return Ok(None);
            }
            WorkerFork::Parent(waiting) => waiting,
        };
    // The remaining work of this process needs few code pages.
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
    // Extents that cannot be released now are released, or reported, by the next job.
    let _ = store_path(options).map(|path| Store::open_folders(&folders(&path))?.give_back_of_dead());
}

/// Erases the progress line that a worker left behind.
fn erase_bar() {
    let mut stderr = io::stderr();
    if stderr.is_terminal() {
        // A line that cannot be erased is not an error.
        let _ = stderr.write_all(b"\r\x1b[2K");
    }
}
