//! Assigns the shards of a job to pullers: a state machine without I/O, threads or clock.
//!
//! ```text
//!   events, each with its time ──► Scheduler ──► actions
//!     Pulled, Answered, Completed,                 Begin, ShardGrant, End,
//!     Unreadable, Failed, Waited ...               Cancel, MissingPart
//! ```
//!
//! - A *shard* is queued, assigned to one attempt ("out"), answered, or missing.
//! - A *puller* is a node or a thread of the client. A node may pull only shards that it holds. The client may pull all
//!   shards.
//! - An *attempt* is one stream of answers of a puller. The attempt answers shards in the order in which they
//!   were handed out. An attempt that ends early gives its shards back to the queue. Later messages of that
//!   attempt are dropped because the attempt is over.
//!
//! If answers are taken in the order of shards ([`AnswerOrder::Window`]), an attempt receives shards in ascending
//! order. All of these shards are within a window of bytes after the first unanswered shard. The first unanswered shard
//! may return to the queue while each of its holders has later shards out. The answers for the later shards would then
//! wait for the first shard, and the first shard would wait for these answers. One of the attempts with later shards is
//! therefore cancelled and restarted. If an attempt has one answer for all of its shards ([`AnswerOrder::Combined`]),
//! the shards count as answered together, when the complete answer has arrived. Shards that then return to the queue go
//! to separate attempts, so that the rows already taken from the lost answer can be distinguished from other rows.
//!
//! The submodules of the scheduler:
//!
//! - `events`: the events of the job, and the actions that follow.
//! - `shards`: the states of shards and attempts.
//! - `queue`: the queued shards of each node.
//! - `dispatch`: hands shards out, and begins and ends attempts.
//! - `answers`: checks pulls and answers.
//! - `failures`: gives up attempts that fail or stall.
//! - `status`: returns the state of shards and attempts to the driver.
//!
//! The real client (`run.rs`) and the simulator (`scheduler/simulation.rs`) drive the same code. Cost of an
//! event: O(log n) for each shard that is queued or handed out, for n shards.

mod answers;
mod dispatch;
mod events;
mod failures;
mod queue;
mod shards;
#[cfg(test)]
mod simulation;
mod status;

use std::{collections::BTreeSet, time::Duration};

use self::shards::{Attempt, AttemptState, Shard};
pub(crate) use self::{
    events::{Action, AnswerOrder, Event, Puller},
    shards::ShardState,
};

/// The state of a job's scheduler: its shards, attempts and queues.
#[derive(Debug)]
pub(crate) struct Scheduler {
    order: AnswerOrder,
    stall: Duration,
    shards: Vec<Shard>,
    attempts: Vec<Attempt>,
    /// All queued shards.
    queue: BTreeSet<usize>,
    queued_bytes: u64,
    /// For each node, the queued shards that the node may take.
    queues: Vec<BTreeSet<usize>>,
    lost: BTreeSet<usize>,
    /// The first shard that is neither answered nor missing.
    head: usize,
    /// The attempt whose lost answer created each group of shards. The value is `None` for the first group.
    origins: Vec<Option<usize>>,
    actions: Vec<Action>,
}

impl Scheduler {
    /// Creates a scheduler for a number of nodes. Each shard is described by its size, its holders and known
    /// problems. The nodes in `lost` receive no requests.
    pub fn new(
        order: AnswerOrder,
        stall: Duration,
        nodes: usize,
        lost: BTreeSet<usize>,
        shards: impl Iterator<Item = (u64, Vec<usize>, Vec<String>)>,
    ) -> Scheduler {
        let mut start = 0;
        let shards = shards.map(|(bytes, holders, why)| {
            let shard = Shard {
                start,
                bytes,
                holders,
                state: ShardState::Queued,
                is_skipped: false,
                group: 0,
                unreadable: BTreeSet::new(),
                slow: BTreeSet::new(),
                attempts: 0,
                why: why.into_iter().map(|why| (None, why)).collect(),
            };
            start = u64::saturating_add(start, bytes);
            shard
        });
        Scheduler {
            order,
            stall,
            shards: shards.collect(),
            attempts: Vec::new(),
            queue: BTreeSet::new(),
            queued_bytes: 0,
            queues: vec![BTreeSet::new(); nodes],
            lost,
            head: 0,
            origins: vec![None],
            actions: Vec::new(),
        }
    }

    /// Starts the job: begins a task on each node that holds shards.
    pub fn start(&mut self, now: Duration) -> Vec<Action> {
        (0..self.shards.len()).for_each(|shard| self.enqueue(shard));
        self.dispatch(now);
        std::mem::take(&mut self.actions)
    }

    /// Begins an attempt of the client, which [pulls](Self::pull) by itself.
    pub fn begin_client(&mut self, now: Duration) -> usize {
        self.begin(Puller::Client, 0, now)
    }

    /// Begins an attempt that pulls no shards, on a node.
    pub fn begin_without_shards(&mut self, node: usize, now: Duration) -> usize {
        let attempt = self.begin(Puller::Node(node), 0, now);
        self.attempts[attempt].state = AttemptState::Ending;
        attempt
    }

    /// Returns the next shard for the client, if any, and the actions that follow from removing the shard
    /// from the queues.
    pub fn pull(&mut self, now: Duration, attempt: usize) -> (Option<usize>, Vec<Action>) {
        let shard = match self.is_over(attempt) {
            true => None,
            false => self.next_for_client(attempt),
        };
        if let Some(shard) = shard {
            let own = &mut self.attempts[attempt];
            (own.state, own.finished) = (AttemptState::Pulls, own.assigned.len());
            self.hand_out(attempt, shard);
            self.actions.pop();
            self.dispatch(now);
        }
        (shard, std::mem::take(&mut self.actions))
    }

    /// Handles an event and returns the resulting actions. Events of attempts that are over have no effect.
    pub fn on(&mut self, now: Duration, event: Event) -> Vec<Action> {
        let of = match &event {
            Event::Pulled { attempt, .. }
            | Event::Progressed { attempt }
            | Event::Waited { attempt }
            | Event::Advanced { attempt, .. }
            | Event::Answered { attempt, .. }
            | Event::Completed { attempt, .. }
            | Event::Unreadable { attempt, .. }
            | Event::Failed { attempt, .. }
            | Event::Closed { attempt, .. } => Some(*attempt),
            Event::Skipped { .. } | Event::Starved { .. } => None,
        };
        if of.is_some_and(|attempt| self.is_over(attempt)) {
            return Vec::new();
        }
        if let Some(attempt) = of.filter(|_| !matches!(event, Event::Waited { .. })) {
            (self.attempts[attempt].progressed, self.attempts[attempt].waited_for) = (now, None);
        }
        match event {
            Event::Pulled { attempt, finished } => self.pulled(attempt, finished, now),
            Event::Progressed { .. } => return Vec::new(),
            Event::Waited { attempt } => self.waited(attempt, now),
            Event::Starved { shard } => self.starved(shard, now),
            Event::Advanced { attempt, shard } => {
                if self.shards[shard].state == ShardState::Out(attempt) {
                    self.shards[shard].attempts = 0;
                }
                return Vec::new();
            }
            Event::Answered { attempt, shard } => self.answered(attempt, shard, now),
            Event::Completed { attempt, shards } => self.completed(attempt, shards, now),
            Event::Unreadable { attempt, shard, why } => self.unreadable(attempt, shard, why, now),
            Event::Failed { attempt, why, is_gone } => self.fail(attempt, &why, is_gone, now),
            Event::Closed { attempt, why, is_gone } => match self.attempts[attempt].out.is_empty() {
                true => self.fail(attempt, &why, is_gone, now),
                false => self.attempts[attempt].state = AttemptState::Ending,
            },
            Event::Skipped { shard } => self.skipped(shard),
        }
        self.dispatch(now);
        std::mem::take(&mut self.actions)
    }

    /// Marks a missing shard as answered, after its failure was reported in another way.
    pub fn forgive(&mut self, shard: usize) {
        self.shards[shard].state = ShardState::Answered;
    }
}
