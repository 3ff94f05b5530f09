//! Hands shards out to attempts, and begins and ends attempts.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use super::{
    Scheduler,
    events::{Action, AnswerOrder, Puller},
    shards::{Attempt, AttemptState, ShardState},
};

/// The maximum number of unfinished shards of a puller: the current shard and the next shard. While no more
/// than this number of shards is queued for each node, a puller receives only the current shard: the queued
/// shards go to the puller that is free first, or to the client. At the end of a job, other pullers therefore
/// wait for at most two shards of the slowest node.
pub(super) const CREDIT: usize = 2;

/// The total bytes up to which several small shards count as one shard, so that a thousand small files do not
/// cost a thousand round trips.
pub(super) const SMALL_BYTES: u64 = 64 << 10;

/// The divisor for small shards: a node may hold one fourth of its share of the queued shards at once, so
/// that the last shards are not all on one node.
const SHARE: usize = 4;

impl Scheduler {
    /// Creates an attempt of a puller for a group of shards.
    pub(super) fn begin(&mut self, puller: Puller, group: usize, now: Duration) -> usize {
        self.attempts.push(Attempt {
            puller,
            group,
            state: AttemptState::Begun,
            assigned: Vec::new(),
            finished: 0,
            out: VecDeque::new(),
            progressed: now,
            waited_for: None,
            failed: None,
            is_blamed: false,
        });
        self.attempts.len() - 1
    }

    /// Hands out shards, and ends and begins attempts, as far as credit and the order of answers permit.
    pub(super) fn dispatch(&mut self, now: Duration) {
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

    /// Moves a shard from the queues to an attempt.
    pub(super) fn hand_out(&mut self, attempt: usize, shard: usize) {
        self.dequeue(shard);
        let own = &mut self.shards[shard];
        (own.state, own.attempts) = (ShardState::Out(attempt), own.attempts + 1);
        self.attempts[attempt].assigned.push(shard);
        self.attempts[attempt].out.push_back(shard);
        self.actions.push(Action::HandOut { attempt, shard });
    }

    /// Returns the shard for the client: the first shard that the order of answers permits, or with
    /// [`AnswerOrder::Combined`] the last shard of the node with the longest queue.
    pub(super) fn next_for_client(&self, attempt: usize) -> Option<usize> {
        match self.order {
            AnswerOrder::Window(_) => self.eligible(attempt).filter(|&shard| self.is_in_turn(attempt, shard)),
            AnswerOrder::Combined => {
                let group = self.attempts[attempt].group;
                let longest = self.queues.iter().max_by_key(|queue| queue.len())?;
                longest.iter().rev().copied().find(|&shard| self.shards[shard].group == group)
            }
        }
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

    /// Returns true if an attempt may hold one more shard.
    fn has_credit(&self, attempt: usize, shard: usize) -> bool {
        let Attempt { state, assigned, finished, .. } = &self.attempts[attempt];
        let held = &assigned[*finished..];
        let bytes: u64 = held.iter().take(CREDIT * 32).map(|&held| self.shards[held].bytes).sum();
        let share = (self.queue.len() / (self.queues.len() * SHARE)).min(CREDIT * 31);
        let is_small = held.len() < CREDIT + share && bytes + self.shards[shard].bytes <= SMALL_BYTES;
        // The last shards stay in the queue for the puller that is free first.
        let credit = if self.queue.len() > CREDIT * self.queues.len() { CREDIT } else { 1 };
        *state == AttemptState::Pulls && (held.len() < credit || is_small)
    }
}
