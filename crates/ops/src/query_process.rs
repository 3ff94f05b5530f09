//! This module sets the memory limit of a process that runs one query, and describes how such a process ended.
//!
//! ```text
//!   budget + 64 MiB   [ budget | 40 MiB: program, plans, computed values | 24 MiB: code, and the parent process ]
//!                       └────── limit of the process of the query ──────┘
//! ```

use inshore_sandbox::{ChildLimits, WorkerEnd};
use inshore_store::{Budget, format_bytes};

/// The memory of the process in addition to its budget, in bytes. Ordinary queries use 23 MiB of this memory. The
/// resident code of a query (20 MiB) and the parent process (4 MiB) are not included. With these two, the total is
/// 64 MiB.
pub const BESIDE_BYTES: u64 = 40 << 20;
/// The address space in bytes for the stacks of all threads other than the query's threads.
const STACK_BYTES: u64 = 128 << 20;

/// Returns the limits of the process that runs a query with this memory budget.
pub fn limits(budget: &Budget) -> ChildLimits {
    ChildLimits {
        memory_bytes: budget.memory_bytes().saturating_add(BESIDE_BYTES),
        stack_bytes: STACK_BYTES + inshore_sql::stack_bytes(budget.threads()),
        threads: budget.threads(),
    }
}

/// Describes the abnormal end of a query's process.
pub fn describe_end(end: &WorkerEnd, budget_bytes: u64) -> String {
    let budget = format_bytes(budget_bytes);
    match end {
        WorkerEnd::Exited(code) => format!("the query's process ended with status {code}"),
        // The message equals that of `inshore_sql::Error::Memory`, the error of an operator that gets no memory.
        WorkerEnd::TooLarge(doing) => {
            let place = if doing.is_empty() { String::new() } else { format!("at '{doing}' ") };
            format!(
                "the query needs more memory than it was given: {place}it exceeded its budget of {budget} and the {} that it may have beside \
                 that (a larger --memory helps)",
                format_bytes(BESIDE_BYTES)
            )
        }
        WorkerEnd::UnknownSize => "the system does not report how much memory the query uses".to_string(),
        WorkerEnd::Killed(9) => {
            "the query's process was killed by signal 9, usually because the system ran out of memory"
                .to_string()
        }
        WorkerEnd::Killed(signal) => format!("the query's process was ended by signal {signal}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_end_is_told_with_the_limit_and_the_operator() {
        let told = describe_end(&WorkerEnd::TooLarge("FilterExec: k > 5".to_string()), 24 << 20);
        for part in ["needs more memory", "24 MiB", "40 MiB", "'FilterExec: k > 5'", "--memory"] {
            assert!(told.contains(part), "{told}");
        }
    }
}
