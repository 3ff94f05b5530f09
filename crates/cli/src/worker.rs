//! `inshore sql` runs in a child process with a limit of memory, the worker; the command itself only waits for it.
//!
//! The query library computes a function over a batch at once and knows of no budget while it does. So the limit is one on the process:
//! whatever a query does, it ends well, or with one message that names the limit and the operator that was at work. Nothing else of the verb
//! knows of it: the worker reads, writes and draws as the command would (docs/decisions/0033). The limit is that of [`contained`].

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use anyhow::{Context, Result};
use inshore::{
    contained,
    sandbox::{Split, WorkerEnd, split},
    sql,
    store::{Store, release_code},
};

use crate::{
    args::{Cli, Command, Everywhere},
    failure,
    outcome::say,
    session::{budget, folders, store_path},
    signals,
};

/// Goes on in a worker where the command is a query: then the process that was started gets the exit code, once that has ended.
pub fn wait_if_contained(cli: &Cli) -> Result<Option<ExitCode>> {
    if !matches!(cli.command, Command::Sql(_)) {
        return Ok(None);
    }
    let budget = budget(&cli.everywhere);
    // Between operators the rows are written, or shown.
    let doing = || sql::doing().unwrap_or_else(|| "writing the rows".to_string());
    let waiting =
        match split(contained::limits(&budget), doing).context("cannot start a process for the query")? {
            Split::Worker(stops) => {
                signals::hear_from_parent(stops);
                return Ok(None);
            }
            Split::Parent(waiting) => waiting,
        };
    // All that is left to do here takes little of it.
    release_code();
    let end = waiting.wait().context("cannot wait for the process of the query")?;
    let code = match end {
        WorkerEnd::Exited(status) => status as u8,
        _ => {
            wipe_bar();
            failure::FAILED + signals::UNTIDY_WORKER
        }
    };
    let code = match code.checked_sub(signals::UNTIDY_WORKER) {
        Some(code @ (failure::FAILED | failure::STOPPED)) => {
            give_back(&cli.everywhere);
            code
        }
        _ => code,
    };
    if !matches!(end, WorkerEnd::Exited(_)) {
        say(&format!("inshore: {}", contained::told(&end, budget.memory_bytes())));
    }
    Ok(Some(ExitCode::from(code)))
}

/// Gives back what a worker had in the store that could not do so itself.
fn give_back(options: &Everywhere) {
    // What cannot be done now, the next job does or says.
    let _ = store_path(options).map(|path| Store::open_folders(&folders(&path))?.give_back_of_dead());
}

/// Wipes off the line of progress that a worker left behind.
fn wipe_bar() {
    let mut stderr = io::stderr();
    if stderr.is_terminal() {
        // A line that cannot be wiped off is no reason to fail.
        let _ = stderr.write_all(b"\r\x1b[2K");
    }
}
