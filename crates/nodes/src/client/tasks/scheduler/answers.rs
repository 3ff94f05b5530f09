//! Records pulls and answers of attempts, and checks each against the shards that were assigned to the
//! attempt.

use std::time::Duration;

use super::{
    Scheduler,
    events::AnswerOrder,
    shards::{AttemptState, ShardState},
};

impl Scheduler {
    /// Records the number of shards that an attempt has read.
    pub(super) fn pulled(&mut self, attempt: usize, finished: usize, now: Duration) {
        let own = &mut self.attempts[attempt];
        if finished < own.finished || finished > own.assigned.len() {
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

    /// Records the complete answer of a shard.
    pub(super) fn answered(&mut self, attempt: usize, shard: usize, now: Duration) {
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

    /// Records the end of an attempt that answered the given shards.
    pub(super) fn completed(&mut self, attempt: usize, mut shards: Vec<usize>, now: Duration) {
        let own = &mut self.attempts[attempt];
        shards.sort_unstable();
        let mut assigned = own.assigned.clone();
        assigned.sort_unstable();
        let is_all = match self.order {
            AnswerOrder::Window(_) => own.out.is_empty(),
            AnswerOrder::Combined => own.out.is_empty() || assigned == shards,
        };
        if !is_all {
            return self.fail(attempt, "it ended before all its shards were read", true, now);
        }
        own.state = AttemptState::Over;
        for shard in std::mem::take(&mut own.out) {
            self.shards[shard].state = ShardState::Answered;
        }
    }

    /// Returns a shard that a node cannot read to the queue, for other nodes.
    pub(super) fn unreadable(&mut self, attempt: usize, shard: usize, why: String, now: Duration) {
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

    /// Removes a shard whose answer is not needed from the queue.
    pub(super) fn skipped(&mut self, shard: usize) {
        self.shards[shard].is_skipped = true;
        if self.shards[shard].state == ShardState::Queued {
            self.dequeue(shard);
            self.shards[shard].state = ShardState::Answered;
        }
    }
}
