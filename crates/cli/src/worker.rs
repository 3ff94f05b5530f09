//! `inshore sql` runs in a child process with a limit of memory, the worker; the command itself only waits for it.
//!
//! The query library computes a function over a batch at once and knows of no budget while it does. So the limit is one on the process:
//! whatever a query does, it ends well, or with one message that names the limit and the operator that was at work. Nothing else of the verb
//! knows of it: the worker reads, writes and draws as the command would (docs/decisions/0033).
//!
//! ```text
//!   budget + 64 MiB   [ budget | 40 MiB: program, plans, values that are computed | 24 MiB: code, and the waiting process ]
//!                       └──────── limit of the worker ──────────────────────────┘
//! ```

use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
};

use anyhow::{Context, Result};
use inshore::{
    sandbox::{ApartLimits, Split, WorkerEnd, split},
    sql,
    store::{Store, format_bytes, release_code},
};

use crate::{
    args::{Cli, Command, Everywhere},
    failure,
    outcome::say,
    session::{budget, folders, store_path},
    signals,
};

/// The memory that a worker may have beside its budget: 23 MiB were seen of ordinary queries. Code isn't counted, of which a query keeps 20 MiB
/// resident, nor the process that waits, which has 4 MiB that the worker has not: all together are 64 MiB.
const BESIDE_BYTES: u64 = 40 << 20;
/// Room for stacks of threads that are not the query's.
const STACK_BYTES: u64 = 128 << 20;

/// Goes on in a worker where the command is a query: then the process that was started gets the exit code, once that has ended.
pub fn wait_if_contained(cli: &Cli) -> Result<Option<ExitCode>> {
    if !matches!(cli.command, Command::Sql(_)) {
        return Ok(None);
    }
    let budget = budget(&cli.everywhere);
    let limits = ApartLimits {
        memory_bytes: budget.memory_bytes().saturating_add(BESIDE_BYTES),
        stack_bytes: STACK_BYTES + sql::stack_bytes(budget.threads()),
        threads: budget.threads(),
    };
    // Between operators the rows are written, or shown.
    let doing = || sql::doing().unwrap_or_else(|| "writing the rows".to_string());
    let waiting = match split(limits, doing).context("cannot start a process for the query")? {
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
        say(&format!("inshore: {}", told(&end, budget.memory_bytes())));
    }
    Ok(Some(ExitCode::from(code)))
}

/// How a worker ended that did not end by itself.
fn told(end: &WorkerEnd, budget_bytes: u64) -> String {
    let budget = format_bytes(budget_bytes);
    match end {
        WorkerEnd::Exited(code) => format!("the query's process ended with status {code}"),
        // In the words of an operator that is refused memory: sql::Error::Memory.
        WorkerEnd::TooLarge(doing) => format!(
            "the query needs more memory than it was given: at '{doing}' it took more than its budget of {budget} and the {} that it may \
             have beside that (a larger --memory helps)",
            format_bytes(BESIDE_BYTES)
        ),
        WorkerEnd::UnknownSize => "the system does not tell how much memory the query has".to_string(),
        WorkerEnd::Killed(9) => {
            "the query's process was killed, as the system does where its memory is short (signal 9)"
                .to_string()
        }
        WorkerEnd::Killed(signal) => format!("the query's process was ended by signal {signal}"),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_with_the_limit_and_the_operator() {
        let told = told(&WorkerEnd::TooLarge("FilterExec: k > 5".to_string()), 24 << 20);
        for part in ["needs more memory", "24 MiB", "40 MiB", "'FilterExec: k > 5'", "--memory"] {
            assert!(told.contains(part), "{told}");
        }
    }
}
