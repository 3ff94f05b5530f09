//! Runs a task on files that are spread over nodes, and gathers the answers.
//!
//! ```text
//!   shards, in order:   0   1   2   3   4   5
//!   pulled by:          A   B   C   B   A   B        A: {0, 4}, B: {1, 3, 5}, C: {2}
//!   taken:              0 from A, 1 from B, 2 from C, 3 from B ...
//! ```
//!
//! A node pulls shards from a queue, and sends the answers in the same order. The answers are therefore
//! merged by taking from each stream in the order of shards. Answers of a node that is ahead of other nodes
//! wait on this machine while memory is free; after that, the flow control window of the connection stops the
//! node.
//!
//! If a node is lost, its unanswered shards return to the queue (`scheduler.rs`). A partly answered shard
//! continues at the position up to which the client has taken rows. The same happens to the shards of a node
//! that answers but makes no progress ([`RunOptions::stall`]). No row is taken twice: an answer that reaches
//! no further than the rows already taken of its shard is a protocol error, and the node counts as lost.
//!
//! The cores of this machine may also pull shards (`local.rs`).
//!
//! The submodules:
//!
//! - `ordered`: runs a kernel and consumes the answers in order; `range` reads a byte range in that way.
//! - `streams`: passes on the answers of several nodes in parallel.
//! - `rows`: takes the rows of one shard after the other; `skipped` checks the rows of unwanted shards.
//! - `receive`: receives the messages of an attempt.
//! - `losses`: gives up attempts and reports missing shards.

mod losses;
mod ordered;
mod range;
mod receive;
mod rows;
mod skipped;
mod streams;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use inshore_kernel::PartRow;
use inshore_store::{Context, Reservation, release_code};
use serde_json::Value;

use self::skipped::SkippedRows;
pub use self::{
    ordered::run_on_nodes,
    range::read_from_nodes,
    streams::{Streams, stream_from_each, stream_from_nodes, stream_with_help},
};
use super::{
    gather_report::{ANSWER_BYTES, GatherReport, RunOptions},
    local::LocalThreads,
    run::{Answers, Run},
    scheduler::{AnswerOrder, ShardState},
};
use crate::{DistributedFile, Nodes, Result};

/// The maximum bytes of the result of a block: a block in which every byte is a matching line has a result of
/// 32 times its size.
const PART_BYTES_MAX: usize = 256 << 20;

/// The maximum bytes of the answers of a node that wait for their turn: the results of a few pieces.
const AHEAD_BYTES_MAX: u64 = 64 << 20;

/// The interval at which a waiting job checks for cancellation and the deadline.
const LOOK: Duration = Duration::from_millis(50);

/// Receives the answers of a [`Run`], and passes them on in order.
#[derive(Debug)]
pub(crate) struct Gather {
    pub(crate) run: Arc<Run>,
    /// The threads of this machine that process a part of the shards.
    local_threads: Option<Arc<LocalThreads>>,
    streams: BTreeMap<usize, Answers>,
    /// The rows of each attempt that arrived and that the client has not taken yet.
    rows: BTreeMap<usize, VecDeque<PartRow>>,
    skipped: BTreeMap<usize, SkippedRows>,
    /// The beginning of the result of a block that arrives in several rows. `begun_by` is the attempt that
    /// sent the rows.
    beginning: Vec<u8>,
    begun_by: usize,
    /// The memory for answers in flight.
    memory: Reservation,
    /// The memory for answers that wait for their turn.
    ahead: Option<Reservation>,
}

impl Gather {
    pub(crate) fn new(
        nodes: &Nodes,
        job: &Context,
        files: &[DistributedFile],
        work: (&'static str, Value),
        options: &RunOptions,
        order: AnswerOrder,
    ) -> Result<Gather> {
        let holders = files.iter().flat_map(|file| &file.pieces).flat_map(|piece| &piece.holders);
        let used = holders.map(|holder| holder.node).collect::<BTreeSet<_>>().len().max(1);
        let memory = job.budget().reserve(used as u64 * ANSWER_BYTES, "received answers of nodes")?;
        let run = Run::new(nodes, job, files, work, options, order);
        run.state().ahead_nodes = used;
        Ok(Gather {
            run,
            local_threads: None,
            streams: BTreeMap::new(),
            rows: BTreeMap::new(),
            skipped: BTreeMap::new(),
            beginning: Vec::new(),
            begun_by: usize::MAX,
            memory,
            ahead: None,
        })
    }

    /// Reserves memory for answers that wait for their turn: without this memory a node that is ahead has to
    /// pause. The job also works without the reservation.
    fn reserve_ahead(&mut self) {
        let mut state = self.run.state();
        let (budget, nodes) = (self.run.job.budget(), state.ahead_nodes as u64);
        let each = (budget.free_bytes() / 8 / nodes).min(AHEAD_BYTES_MAX);
        if let Ok(memory) = budget.reserve(nodes * each, "buffered answers") {
            state.ahead_bytes = each;
            self.ahead = Some(memory);
        }
    }

    pub(crate) fn begin_all(&mut self) -> Result<()> {
        self.run.start();
        self.check_missing()?;
        // The code for arguments, connections and lookups takes much memory, and is not needed to receive
        // answers.
        release_code();
        Ok(())
    }

    fn state_of(&self, shard: usize) -> ShardState {
        self.run.state().scheduler.state(shard)
    }

    /// Drops the remaining data of an attempt that is over.
    fn forget(&mut self, attempt: usize) {
        self.rows.remove(&attempt);
        self.streams.remove(&attempt);
        self.skipped.remove(&attempt);
        if self.begun_by == attempt {
            self.beginning.clear();
        }
    }

    pub(crate) fn finish(mut self) -> GatherReport {
        self.run.stop();
        let missing = self.run.missing(&self.run.state());
        let mut gathered = GatherReport { nodes: self.run.costs(), missing, here: None };
        if let Some(local_threads) = self.local_threads.take() {
            local_threads.tell_costs(&mut gathered);
        }
        gathered
    }
}

impl Drop for Gather {
    /// Closes the streams, which stops the tasks.
    fn drop(&mut self) {
        self.run.stop();
    }
}

impl Nodes {
    /// Returns the memory in bytes on this machine for answers in flight of a job on these nodes.
    pub fn answer_bytes(&self) -> u64 {
        self.0.nodes.len() as u64 * ANSWER_BYTES
    }
}
