//! Writes the log of an agent: audit lines of puts, removals and tasks, and lines about refused requests.

use std::{sync::atomic::Ordering, time::Instant};

use tonic::Status as Refusal;
use tracing::{info, warn};

use super::{Agent, requests::short};

/// One line of the audit log about a put, a removal or a task.
pub(super) struct Audit<'a> {
    /// The logged action: "put", "rm", or the kind of a task.
    pub action: &'a str,
    pub who: &'a str,
    pub dataset: &'a str,
    /// The number of bytes that were loaded, removed or read.
    pub bytes: u64,
    pub seconds: f64,
    /// The reason of the failure, if the action failed.
    pub failed: Option<&'a str>,
    /// The trace id of the task's job, if it has one.
    pub trace: Option<&'a str>,
}

impl Agent {
    /// Logs a put, a removal or a task as one line, whether the action succeeded or failed.
    pub(super) fn audit(&self, audit: &Audit<'_>) {
        let Audit { action, who, dataset, bytes, seconds, failed, trace } = *audit;
        let dataset = short(dataset);
        let dataset = &*dataset;
        match failed {
            None => info!(action, who, dataset, bytes, seconds, trace, result = "done", "audit"),
            Some(why) => warn!(action, who, dataset, bytes, seconds, trace, result = &*short(why), "audit"),
        }
    }

    /// Counts a refused request, logs the refusal within the rate limit, and returns the refusal.
    pub(super) fn refuse(&self, refusal: Refusal) -> Refusal {
        self.0.counters.refused.fetch_add(1, Ordering::Relaxed);
        if let Some(suppressed) = self.0.refusal_log.next(Instant::now()) {
            let reason = &*short(refusal.message());
            match suppressed {
                0 => warn!(code = ?refusal.code(), reason, "refused"),
                _ => warn!(code = ?refusal.code(), reason, others = suppressed, "refused, as others before"),
            }
        }
        refusal
    }
}
