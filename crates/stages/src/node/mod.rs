//! The side of a node: sessions of jobs, attempts, and the ranges that other nodes fetch.
//!
//! ```text
//!   driver ── stage-session ──► Session: memory of all slots, outputs on scratch     ends with its connection
//!          ── stage-attempt ──► map: shard ─► StageWork ─► output
//!                               merge: ranges of all producers ─► StageWork ─► output
//!   node   ── stage-ranges  ──► bytes of one range of some outputs, with their checksums
//!   driver ── stage-publish ──► outputs of the last stage ─► pieces of a dataset
//! ```
//!
//! A session is a task of the node that lasts as long as its job. The session's memory and slot are those of the task,
//! so the queue of the node shares them fairly among clients. All other requests of the job take no slot, and take
//! their memory from the session: a request that needed memory of the node could fail while other tasks have it. They
//! name the session by its id, a random number that only the driver and the nodes of the job know.
//!
//! The scratch of a job is a lease that its connection holds: if the driver dies, is cut off, or cancels, the node
//! closes the connection after two keepalive intervals at the latest, ends the attempts of the session, and deletes its
//! scratch.

mod attempt;
mod counters;
mod fetch;
mod lists;
mod memory;
mod output;
mod publish;
mod ranges;
mod session;

use self::{attempt::Attempts, publish::Publishes, ranges::Ranges, session::Sessions};
pub(crate) use self::{
    attempt::{AttemptRequest, AttemptResult, StageReads, WorkRequest},
    publish::{PublishAnswer, PublishRequest},
    ranges::{RANGE_KIND, RangeContent, RangeRequest},
    session::SessionRequest,
};
pub use self::{
    output::{OutputWriter, READER_BYTES, RangeInput, RangeReader, WRITER_BYTES},
    session::{memory_bytes, slot_bytes},
};

use std::sync::Arc;

use inshore_kernel::TaskHandlers;
use inshore_nodes::{NodeCredentials, SingleTask};
use serde::Serialize;
use serde_json::json;

use crate::StageWork;

/// The kinds of the tasks of a job.
pub(crate) const SESSION_KIND: &str = "stage-session";
pub(crate) const ATTEMPT_KIND: &str = "stage-attempt";
pub(crate) const PUBLISH_KIND: &str = "stage-publish";

/// Adds the task handlers of stages to the handlers of a node. `works` has the code of each kind of job, and
/// `credentials` are those with which the node connects to other nodes of a job.
#[must_use]
pub fn with_stages(
    handlers: TaskHandlers,
    works: Vec<Arc<dyn StageWork>>,
    credentials: Option<NodeCredentials>,
) -> TaskHandlers {
    let sessions = Sessions::new(works, credentials);
    handlers
        .with(sessions.clone())
        .with(Attempts(sessions.clone()))
        .with(Ranges(sessions.clone()))
        .with(Publishes(sessions))
}

/// Returns a task that names a session. The task works in the memory of the session, and takes no other memory. `trace`
/// is the trace id of the job.
pub(crate) fn task_of_session(
    kind: &'static str,
    request: &impl Serialize,
    trace: Option<&str>,
) -> SingleTask {
    let trace = trace.map(str::to_string);
    SingleTask { kind, arguments: json!(request), pieces: Vec::new(), memory_bytes: Some(0), trace }
}
