//! Assigns the shards of a job to pullers: a state machine without I/O, threads or clock.
//!
//! ```text
//!   events, each with its time ──► Scheduler ──► actions
//!     Pulled, Answered, Completed,                 Begin, ShardGrant, End,
//!     Unreadable, Failed, Waited ...               Cancel, MissingPart
//! ```
//!
//! - A *shard* is queued, out with one attempt, answered, or missing.
//! - A *puller* is a node or a thread of the client. A node may pull the shards on its own storage; the client
//!   may pull all shards.
//! - An *attempt* is one stream of a puller. The attempt answers shards in the order in which they were handed
//!   out. An attempt that ends early gives its shards back to the queue. Later messages of that attempt are
//!   dropped because the attempt is over.
//!
//! If answers are taken in the order of shards ([`AnswerOrder::Window`]), an attempt receives shards in ascending
//! order, and none beyond a window of bytes after the first unanswered shard. If that first shard returns to
//! the queue while each of its holders has later shards out, the answers for the later shards wait for the
//! first one: one of these attempts is cancelled and begun again. If an attempt has one answer for all of its
//! shards ([`AnswerOrder::Combined`]), the shards count as answered together, when the whole answer has arrived.
//! Shards that then return to the queue go to separate attempts, so that the rows already taken from the lost
//! answer can be told from other rows.
//!
//! The real client (`run.rs`) and the simulator (`scheduler/simulation.rs`) drive the same code. Cost of an
//! event: O(log n) for each shard that moves, for n shards.

#[cfg(test)]
mod simulation;

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

/// The maximum number of unfinished shards of a puller: the current shard and the next shard. While no more than
/// this number of shards is queued for each node, a puller receives only the current shard: the queued ones go to
/// the puller that is free first, or to the client. The resulting tail is at most two shards of the slowest node.
pub(crate) const CREDIT: usize = 2;
/// The total bytes up to which several small shards count as one, so that a thousand small files do not cost a
/// thousand round trips.
const SMALL_BYTES: u64 = 64 << 10;
/// The divisor of a node's share of the queued small shards: a node may hold one in four of its share, so that
/// the last shards are not all on one node.
const SHARE: usize = 4;
/// The number of attempts without progress after which a shard is missing.
const ATTEMPTS_MAX: usize = 64;

/// A consumer of shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Puller {
    /// A node, by its number.
    Node(usize),
    /// A thread of the client.
    Client,
}

impl Puller {
    /// Returns the number of the node if the puller is a node.
    pub fn node(self) -> Option<usize> {
        match self {
            Puller::Node(node) => Some(node),
            Puller::Client => None,
        }
    }
}

/// The order in which answers are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AnswerOrder {
    /// In the order of shards; the number is the window in bytes after the first unanswered shard.
    Window(u64),
    /// One combined answer of each attempt for all of its shards.
    Combined,
}

/// An event of the job.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    /// A puller wants more shards and has finished reading the given number of its shards.
    Pulled { attempt: usize, finished: usize },
    /// A task makes progress or sends a message.
    Progressed { attempt: usize },
    /// The consumer waits for the answer of this attempt.
    Waited { attempt: usize },
    /// The consumer waits for a shard that no puller has.
    Starved { shard: usize },
    /// A part of a shard was taken.
    Advanced { attempt: usize, shard: usize },
    /// A shard was answered completely.
    Answered { attempt: usize, shard: usize },
    /// An attempt has ended with an answer for the given shards.
    Completed { attempt: usize, shards: Vec<usize> },
    /// A node cannot read a shard.
    Unreadable { attempt: usize, shard: usize, why: String },
    /// An attempt is lost, and its node too if `is_gone`.
    Failed { attempt: usize, why: String, is_gone: bool },
    /// The stream of an attempt ended with an error. The consumer of the answers reaches the error later,
    /// unless the attempt has no shards.
    Closed { attempt: usize, why: String, is_gone: bool },
    /// No more of a shard is wanted.
    Skipped { shard: usize },
}

/// An action that the scheduler requests from its driver.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Ask a node for a task that pulls shards.
    Begin { attempt: usize, node: usize },
    /// Give a shard to an attempt.
    HandOut { attempt: usize, shard: usize },
    /// Tell an attempt that no more shards follow.
    End { attempt: usize },
    /// Stop an attempt and take no more of its answers.
    Cancel { attempt: usize },
    /// No remaining node has this shard.
    Missing { shard: usize },
}

/// The state of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardState {
    Queued,
    Out(usize),
    Answered,
    Missing,
}

#[derive(Debug)]
struct Shard {
    /// The total bytes of the shards before this one.
    start: u64,
    bytes: u64,
    holders: Vec<usize>,
    state: ShardState,
    is_skipped: bool,
    /// The group of attempts that may take the shard.
    group: usize,
    unreadable: BTreeSet<usize>,
    slow: BTreeSet<usize>,
    attempts: usize,
    /// The failures of the shard, each with its node.
    why: Vec<(Option<usize>, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AttemptState {
    /// The task waits for a slot on its node.
    Begun,
    Pulls,
    /// The task was told that no more shards follow.
    Ending,
    Over,
}

#[derive(Debug)]
struct Attempt {
    puller: Puller,
    group: usize,
    state: AttemptState,
    handed: Vec<usize>,
    finished: usize,
    /// The shards handed out and not answered, in order.
    out: VecDeque<usize>,
    progressed: Duration,
    waited_for: Option<Duration>,
    failed: Option<String>,
    /// True if the failure is the fault of the node.
    is_blamed: bool,
}

impl Attempt {
    /// Returns true if more answers of the attempt are expected.
    fn is_live(&self) -> bool {
        match self.state {
            AttemptState::Begun | AttemptState::Pulls => true,
            AttemptState::Ending => !self.out.is_empty(),
            AttemptState::Over => false,
        }
    }
}

/// The queue, credit, attempts and order of the shards of a job.
#[derive(Debug)]
pub(crate) struct Scheduler {
    order: AnswerOrder,
    stall: Duration,
    shards: Vec<Shard>,
    attempts: Vec<Attempt>,
    /// The queued shards. `queues` has the queued shards that each node may take.
    queue: BTreeSet<usize>,
    queued_bytes: u64,
    queues: Vec<BTreeSet<usize>>,
    lost: BTreeSet<usize>,
    /// The first shard that is neither answered nor missing.
    head: usize,
    /// The attempt whose lost answer created each group of shards; `None` for the first group.
    origins: Vec<Option<usize>>,
    actions: Vec<Action>,
}

impl Scheduler {
    /// Creates a scheduler for a number of nodes. Each shard is given by size, holders and known problems.
    /// The nodes in `lost` receive no requests.
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

    /// Begins an attempt of a node that pulls no shards.
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
            (own.state, own.finished) = (AttemptState::Pulls, own.handed.len());
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

    pub fn state(&self, shard: usize) -> ShardState {
        self.shards[shard].state
    }

    /// Returns the reasons why no remaining node has a shard.
    pub fn why(&self, shard: usize) -> &[(Option<usize>, String)] {
        &self.shards[shard].why
    }

    /// Returns the shard whose answer comes next in the stream of an attempt.
    pub fn next_of(&self, attempt: usize) -> Option<usize> {
        self.attempts[attempt].out.front().copied()
    }

    /// Returns the shards that an attempt was handed and has not answered.
    pub fn out(&self, attempt: usize) -> impl Iterator<Item = usize> + '_ {
        self.attempts[attempt].out.iter().copied()
    }

    /// Marks a missing shard as answered, since its failure was reported in another way.
    pub fn forgive(&mut self, shard: usize) {
        self.shards[shard].state = ShardState::Answered;
    }

    pub fn is_skipped(&self, shard: usize) -> bool {
        self.shards[shard].is_skipped
    }

    pub fn is_over(&self, attempt: usize) -> bool {
        self.attempts[attempt].state == AttemptState::Over
    }

    /// Returns the reason why an attempt was given up.
    pub fn failed(&self, attempt: usize) -> Option<&str> {
        self.attempts[attempt].failed.as_deref()
    }

    /// Returns the attempt whose lost answer covered the shards that this attempt takes, if any.
    pub fn origin(&self, attempt: usize) -> Option<usize> {
        self.origins[self.attempts[attempt].group]
    }

    /// Returns the reason why an attempt was given up if its node is at fault.
    pub fn blamed(&self, attempt: usize) -> Option<&str> {
        let Attempt { failed, is_blamed, .. } = &self.attempts[attempt];
        failed.as_deref().filter(|_| *is_blamed)
    }

    pub fn attempts(&self) -> usize {
        self.attempts.len()
    }

    pub fn puller(&self, attempt: usize) -> Puller {
        self.attempts[attempt].puller
    }

    /// Returns the expected bytes for a node if all holders of a shard pull it equally often, and the number of
    /// its shards.
    pub fn expected_of(&self, node: usize) -> (u64, u64) {
        let held = self.shards.iter().filter(|shard| shard.holders.contains(&node));
        let share = |shard: &Shard| shard.bytes / shard.holders.len() as u64;
        held.fold((0, 0), |(bytes, count), shard| (bytes + share(shard), count + 1))
    }

    /// Returns the number and the bytes of the queued shards.
    pub fn queued(&self) -> (usize, u64) {
        (self.queue.len(), self.queued_bytes)
    }

    /// Returns the bytes of the shards that no puller has finished reading.
    pub fn left_bytes(&self) -> u64 {
        let live = self.attempts.iter().filter(|attempt| attempt.state != AttemptState::Over);
        let held = live.flat_map(|attempt| &attempt.handed[attempt.finished..]);
        self.queued_bytes + held.map(|&shard| self.shards[shard].bytes).sum::<u64>()
    }

    /// Returns the bytes of the first `count` shards that an attempt was handed.
    pub fn bytes_of_first(&self, attempt: usize, count: usize) -> u64 {
        self.attempts[attempt].handed.iter().take(count).map(|&shard| self.shards[shard].bytes).sum()
    }

    fn begin(&mut self, puller: Puller, group: usize, now: Duration) -> usize {
        self.attempts.push(Attempt {
            puller,
            group,
            state: AttemptState::Begun,
            handed: Vec::new(),
            finished: 0,
            out: VecDeque::new(),
            progressed: now,
            waited_for: None,
            failed: None,
            is_blamed: false,
        });
        self.attempts.len() - 1
    }

    fn pulled(&mut self, attempt: usize, finished: usize, now: Duration) {
        let own = &mut self.attempts[attempt];
        if finished < own.finished || finished > own.handed.len() {
            return self.fail(
                attempt,
                "protocol error: it finished more shards than it was assigned",
                true,
                now,
            );
        }
        own.finished = finished;
        if own.state == AttemptState::Begun {
            own.state = AttemptState::Pulls;
        }
    }

    /// Gives up an attempt that makes no progress while its answer is awaited, if other nodes hold the
    /// outstanding shards.
    fn waited(&mut self, attempt: usize, now: Duration) {
        let own = &mut self.attempts[attempt];
        let node = own.puller.node();
        let since = own.progressed.max(*own.waited_for.get_or_insert(now));
        let others = |&shard: &usize| {
            let Shard { holders, slow, unreadable, .. } = &self.shards[shard];
            holders.iter().any(|&other| {
                let is_bad = [&self.lost, slow, unreadable].iter().any(|bad| bad.contains(&other));
                Some(other) != node && !is_bad
            })
        };
        let own = &self.attempts[attempt];
        let is_stalled = now.saturating_sub(since) > self.stall && !own.out.is_empty();
        let goes_on = match self.order {
            AnswerOrder::Window(_) => own.out.front().is_some_and(others),
            AnswerOrder::Combined => own.out.iter().all(others),
        };
        if is_stalled && goes_on {
            for shard in self.attempts[attempt].out.clone() {
                self.shards[shard].slow.extend(node);
            }
            self.attempts[attempt].is_blamed = true;
            let what = format!("it made no progress for {} s", self.stall.as_secs_f64());
            self.fail(attempt, &what, false, now);
        }
    }

    /// Marks the stalled nodes of a queued shard as slow, so that other nodes take the shard: the next pull of
    /// a stalled node never comes. A node whose later answers wait for this shard is not to blame; if only such
    /// nodes remain, one node begins again. If all nodes are already marked as slow, only the nodes that are
    /// stalled at present keep the mark.
    fn starved(&mut self, shard: usize, now: Duration) {
        if self.shards[shard].state != ShardState::Queued {
            return;
        }
        let takers = self.takers(shard);
        let mut stalled = BTreeSet::new();
        for attempt in 0..self.attempts.len() {
            let node = self.attempts[attempt].puller.node().filter(|node| takers.contains(node));
            let Some(node) = node.filter(|_| !self.is_blocked(attempt, shard)) else { continue };
            let own = &mut self.attempts[attempt];
            let since = own.progressed.max(*own.waited_for.get_or_insert(now));
            if own.is_live() && now.saturating_sub(since) > self.stall {
                stalled.insert(node);
            }
        }
        if !stalled.is_empty() {
            self.dequeue(shard);
            self.shards[shard].slow.extend(&stalled);
            if self.takers(shard).iter().all(|node| self.shards[shard].slow.contains(node)) {
                self.shards[shard].slow = stalled;
            }
            self.enqueue(shard);
        }
    }

    /// Returns true if an attempt cannot take a shard because later answers of the attempt wait for the shard.
    fn is_blocked(&self, attempt: usize, shard: usize) -> bool {
        let Attempt { state, out, .. } = &self.attempts[attempt];
        let is_later = *state == AttemptState::Ending || out.iter().any(|&out| out > shard);
        matches!(self.order, AnswerOrder::Window(_)) && is_later
    }

    fn answered(&mut self, attempt: usize, shard: usize, now: Duration) {
        if self.attempts[attempt].out.front() != Some(&shard) {
            return self.fail(
                attempt,
                "protocol error: an answer for a shard that it was not assigned",
                true,
                now,
            );
        }
        self.attempts[attempt].out.pop_front();
        self.shards[shard].state = ShardState::Answered;
    }

    fn completed(&mut self, attempt: usize, mut shards: Vec<usize>, now: Duration) {
        let own = &mut self.attempts[attempt];
        shards.sort_unstable();
        let mut handed = own.handed.clone();
        handed.sort_unstable();
        let is_all = match self.order {
            AnswerOrder::Window(_) => own.out.is_empty(),
            AnswerOrder::Combined => own.out.is_empty() || handed == shards,
        };
        if !is_all {
            return self.fail(attempt, "it ended before all its shards were read", true, now);
        }
        own.state = AttemptState::Over;
        for shard in std::mem::take(&mut own.out) {
            self.shards[shard].state = ShardState::Answered;
        }
    }

    fn unreadable(&mut self, attempt: usize, shard: usize, why: String, now: Duration) {
        if self.attempts[attempt].out.front() != Some(&shard) {
            return self.fail(
                attempt,
                "protocol error: an answer for a shard that it was not assigned",
                true,
                now,
            );
        }
        self.attempts[attempt].out.pop_front();
        self.shards[shard].unreadable.extend(self.attempts[attempt].puller.node());
        self.shards[shard].why.push((self.attempts[attempt].puller.node(), why));
        self.give_back(shard);
    }

    fn skipped(&mut self, shard: usize) {
        self.shards[shard].is_skipped = true;
        if self.shards[shard].state == ShardState::Queued {
            self.dequeue(shard);
            self.shards[shard].state = ShardState::Answered;
        }
    }

    /// Ends an attempt early: its shards return to the queue.
    fn fail(&mut self, attempt: usize, why: &str, is_gone: bool, now: Duration) {
        let own = &mut self.attempts[attempt];
        own.state = AttemptState::Over;
        own.failed = Some(why.to_string());
        own.is_blamed |= is_gone;
        let out = std::mem::take(&mut own.out);
        self.actions.push(Action::Cancel { attempt });
        let node = own.puller.node();
        if self.order == AnswerOrder::Combined && !out.is_empty() {
            out.iter().for_each(|&shard| self.shards[shard].group = self.origins.len());
            self.origins.push(Some(attempt));
        }
        if let Some(node) = node.filter(|&node| is_gone && self.lost.insert(node)) {
            for shard in std::mem::take(&mut self.queues[node]) {
                self.dequeue(shard);
                self.shards[shard].why.push((Some(node), why.to_string()));
                self.enqueue(shard);
            }
            // The other attempts of the node deliver no more answers.
            let others = (0..self.attempts.len())
                .filter(|&other| self.attempts[other].puller == Puller::Node(node) && !self.is_over(other));
            for other in others.collect::<Vec<_>>() {
                self.fail(other, why, false, now);
            }
        }
        for shard in out {
            if node.is_some() {
                self.shards[shard].why.push((node, why.to_string()));
            }
            self.give_back(shard);
        }
        self.dispatch(now);
    }

    fn give_back(&mut self, shard: usize) {
        match self.shards[shard].is_skipped {
            true => self.shards[shard].state = ShardState::Answered,
            false => self.enqueue(shard),
        }
    }

    /// Returns the nodes that may take a shard. Slow nodes are included only if no other node is left.
    pub fn takers(&self, shard: usize) -> Vec<usize> {
        let Shard { holders, unreadable, slow, .. } = &self.shards[shard];
        let can = |node: &usize| !self.lost.contains(node) && !unreadable.contains(node);
        let all: Vec<usize> = holders.iter().copied().filter(can).collect();
        let fast: Vec<usize> = all.iter().copied().filter(|node| !slow.contains(node)).collect();
        if fast.is_empty() { all } else { fast }
    }

    fn enqueue(&mut self, shard: usize) {
        let takers = self.takers(shard);
        let own = &mut self.shards[shard];
        if takers.is_empty() || own.attempts >= ATTEMPTS_MAX {
            own.state = ShardState::Missing;
            self.actions.push(Action::Missing { shard });
            return;
        }
        own.state = ShardState::Queued;
        if self.queue.insert(shard) {
            self.queued_bytes += own.bytes;
        }
        for node in takers {
            self.queues[node].insert(shard);
        }
    }

    fn dequeue(&mut self, shard: usize) {
        if self.queue.remove(&shard) {
            self.queued_bytes -= self.shards[shard].bytes;
        }
        for &node in &self.shards[shard].holders {
            self.queues[node].remove(&shard);
        }
    }

    fn hand_out(&mut self, attempt: usize, shard: usize) {
        self.dequeue(shard);
        let own = &mut self.shards[shard];
        (own.state, own.attempts) = (ShardState::Out(attempt), own.attempts + 1);
        self.attempts[attempt].handed.push(shard);
        self.attempts[attempt].out.push_back(shard);
        self.actions.push(Action::HandOut { attempt, shard });
    }

    /// Returns the first queued shard that an attempt may take at some time.
    fn eligible(&self, attempt: usize) -> Option<usize> {
        let Attempt { puller, group, .. } = self.attempts[attempt];
        let queue = match puller {
            Puller::Node(node) => &self.queues[node],
            Puller::Client => &self.queue,
        };
        queue.iter().copied().find(|&shard| self.shards[shard].group == group)
    }

    /// Returns true if the order of answers permits a shard to be handed to an attempt at present.
    fn is_in_turn(&self, attempt: usize, shard: usize) -> bool {
        let AnswerOrder::Window(window) = self.order else { return true };
        let begin = self.shards.get(self.head).map_or(0, |head| head.start);
        let is_behind = self.attempts[attempt].out.back().is_none_or(|&last| last < shard);
        is_behind && (shard == self.head || self.shards[shard].start < begin.saturating_add(window))
    }

    fn has_credit(&self, attempt: usize, shard: usize) -> bool {
        let Attempt { state, handed, finished, .. } = &self.attempts[attempt];
        let held = &handed[*finished..];
        let bytes: u64 = held.iter().take(CREDIT * 32).map(|&held| self.shards[held].bytes).sum();
        let share = (self.queue.len() / (self.queues.len() * SHARE)).min(CREDIT * 31);
        let is_small = held.len() < CREDIT + share && bytes + self.shards[shard].bytes <= SMALL_BYTES;
        // The last shards stay in the queue for the puller that is free first.
        let credit = if self.queue.len() > CREDIT * self.queues.len() { CREDIT } else { 1 };
        *state == AttemptState::Pulls && (held.len() < credit || is_small)
    }

    /// Returns the shard for the client: the first shard in turn, or with [`AnswerOrder::Combined`] the last shard of
    /// the node with the longest queue.
    fn next_for_client(&self, attempt: usize) -> Option<usize> {
        match self.order {
            AnswerOrder::Window(_) => self.eligible(attempt).filter(|&shard| self.is_in_turn(attempt, shard)),
            AnswerOrder::Combined => {
                let group = self.attempts[attempt].group;
                let longest = self.queues.iter().max_by_key(|queue| queue.len())?;
                longest.iter().rev().copied().find(|&shard| self.shards[shard].group == group)
            }
        }
    }

    /// Hands out shards and ends and begins attempts as far as possible.
    fn dispatch(&mut self, now: Duration) {
        while self.shards.get(self.head).is_some_and(|head| {
            head.is_skipped || matches!(head.state, ShardState::Answered | ShardState::Missing)
        }) {
            self.head += 1;
        }
        for attempt in 0..self.attempts.len() {
            let Attempt { state, puller, .. } = self.attempts[attempt];
            if puller == Puller::Client || matches!(state, AttemptState::Over | AttemptState::Ending) {
                continue;
            }
            loop {
                let Some(shard) = self.eligible(attempt) else {
                    self.end(attempt);
                    break;
                };
                if !self.has_credit(attempt, shard) || !self.is_in_turn(attempt, shard) {
                    break;
                }
                self.hand_out(attempt, shard);
            }
        }
        self.begin_where_needed(now);
        self.unblock_head(now);
    }

    /// Ends an attempt for which no more shards follow. An attempt that has not begun to pull is cancelled.
    fn end(&mut self, attempt: usize) {
        let own = &mut self.attempts[attempt];
        match own.state {
            AttemptState::Begun => {
                own.state = AttemptState::Over;
                self.actions.push(Action::Cancel { attempt });
            }
            _ => {
                own.state = AttemptState::Ending;
                self.actions.push(Action::End { attempt });
            }
        }
    }

    /// Begins a task on each node that may take a queued shard and has no task for it. With [`AnswerOrder::Window`] a
    /// node has one task at a time: a second task could wait on the node for a slot behind the first task, and
    /// the first task waits for its turn on the client.
    fn begin_where_needed(&mut self, now: Duration) {
        for node in 0..self.queues.len() {
            let mut groups = BTreeSet::new();
            match self.order {
                AnswerOrder::Window(_) => groups.extend((!self.queues[node].is_empty()).then_some(0)),
                AnswerOrder::Combined if self.origins.len() == 1 => {
                    groups.extend((!self.queues[node].is_empty()).then_some(0))
                }
                AnswerOrder::Combined => {
                    groups.extend(self.queues[node].iter().map(|&shard| self.shards[shard].group))
                }
            }
            for group in groups {
                let is_served = self.attempts.iter().any(|attempt| {
                    attempt.puller == Puller::Node(node)
                        && match self.order {
                            AnswerOrder::Window(_) => attempt.is_live(),
                            AnswerOrder::Combined => {
                                attempt.group == group
                                    && matches!(attempt.state, AttemptState::Begun | AttemptState::Pulls)
                            }
                        }
                });
                if !is_served {
                    let attempt = self.begin(Puller::Node(node), group, now);
                    self.actions.push(Action::Begin { attempt, node });
                }
            }
        }
    }

    /// Restarts one attempt if the first unanswered shard cannot be handed out: each holder of the shard has
    /// later shards out, and the answers for the later shards wait for the first shard.
    fn unblock_head(&mut self, now: Duration) {
        let AnswerOrder::Window(_) = self.order else { return };
        let head = self.head;
        if self.shards.get(head).is_none_or(|shard| shard.state != ShardState::Queued) {
            return;
        }
        let takers = self.takers(head);
        let of_takers = (0..self.attempts.len()).filter(|&attempt| {
            let node = self.attempts[attempt].puller.node();
            let is_taker = node.is_some_and(|node| takers.contains(&node));
            is_taker && self.attempts[attempt].is_live()
        });
        let of_takers: Vec<usize> = of_takers.collect();
        if of_takers.iter().all(|&attempt| self.is_blocked(attempt, head))
            && let Some(&attempt) = of_takers.first()
        {
            let out = std::mem::take(&mut self.attempts[attempt].out);
            self.attempts[attempt].state = AttemptState::Over;
            self.actions.push(Action::Cancel { attempt });
            out.into_iter().for_each(|shard| self.give_back(shard));
            self.dispatch(now);
        }
    }
}
