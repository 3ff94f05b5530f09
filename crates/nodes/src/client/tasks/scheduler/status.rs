//! Returns the state of shards, attempts and queues to the driver of the scheduler.

use super::{
    Scheduler,
    events::Puller,
    shards::{Attempt, AttemptState, Shard, ShardState},
};

impl Scheduler {
    pub fn state(&self, shard: usize) -> ShardState {
        self.shards[shard].state
    }

    /// Returns the reasons why no remaining node has a shard.
    pub fn why(&self, shard: usize) -> &[(Option<usize>, String)] {
        &self.shards[shard].why
    }

    pub fn is_skipped(&self, shard: usize) -> bool {
        self.shards[shard].is_skipped
    }

    /// Returns the shard whose answer comes next in the stream of an attempt.
    pub fn next_of(&self, attempt: usize) -> Option<usize> {
        self.attempts[attempt].out.front().copied()
    }

    /// Returns the shards that an attempt was assigned and has not answered.
    pub fn out(&self, attempt: usize) -> impl Iterator<Item = usize> + '_ {
        self.attempts[attempt].out.iter().copied()
    }

    pub fn is_over(&self, attempt: usize) -> bool {
        self.attempts[attempt].state == AttemptState::Over
    }

    /// Returns the reason why an attempt was given up.
    pub fn failed(&self, attempt: usize) -> Option<&str> {
        self.attempts[attempt].failed.as_deref()
    }

    /// Returns the reason why an attempt was given up if its node is at fault.
    pub fn blamed(&self, attempt: usize) -> Option<&str> {
        let Attempt { failed, is_blamed, .. } = &self.attempts[attempt];
        failed.as_deref().filter(|_| *is_blamed)
    }

    /// Returns the attempt whose lost answer covered the shards that this attempt takes, if any.
    pub fn origin(&self, attempt: usize) -> Option<usize> {
        self.origins[self.attempts[attempt].group]
    }

    pub fn attempts(&self) -> usize {
        self.attempts.len()
    }

    pub fn puller(&self, attempt: usize) -> Puller {
        self.attempts[attempt].puller
    }

    /// Returns the number of bytes that a node is expected to process if all holders of a shard pull the
    /// shard equally often. The second number is the number of shards that the node holds.
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
        let held = live.flat_map(|attempt| &attempt.assigned[attempt.finished..]);
        self.queued_bytes + held.map(|&shard| self.shards[shard].bytes).sum::<u64>()
    }

    /// Returns the bytes of the first `count` shards that an attempt was assigned.
    pub fn bytes_of_first(&self, attempt: usize, count: usize) -> u64 {
        self.attempts[attempt].assigned.iter().take(count).map(|&shard| self.shards[shard].bytes).sum()
    }
}
