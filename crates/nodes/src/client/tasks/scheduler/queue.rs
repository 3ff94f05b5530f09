//! Manages the queues of shards. The queue of a node contains the queued shards that the node may take.

use super::{
    Scheduler,
    events::Action,
    shards::{Shard, ShardState},
};

/// The number of attempts without progress after which a shard counts as missing.
const ATTEMPTS_MAX: usize = 64;

impl Scheduler {
    /// Returns the nodes that may take a shard. Slow nodes are included only if no other node is left.
    pub fn takers(&self, shard: usize) -> Vec<usize> {
        let Shard { holders, unreadable, slow, .. } = &self.shards[shard];
        let can = |node: &usize| !self.lost.contains(node) && !unreadable.contains(node);
        let all: Vec<usize> = holders.iter().copied().filter(can).collect();
        let fast: Vec<usize> = all.iter().copied().filter(|node| !slow.contains(node)).collect();
        if fast.is_empty() { all } else { fast }
    }

    /// Queues a shard, or declares the shard missing if no node may take it.
    pub(super) fn enqueue(&mut self, shard: usize) {
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

    /// Removes a shard from all queues.
    pub(super) fn dequeue(&mut self, shard: usize) {
        if self.queue.remove(&shard) {
            self.queued_bytes -= self.shards[shard].bytes;
        }
        for &node in &self.shards[shard].holders {
            self.queues[node].remove(&shard);
        }
    }

    /// Returns a shard of an attempt to the queue, unless the shard is skipped.
    pub(super) fn give_back(&mut self, shard: usize) {
        match self.shards[shard].is_skipped {
            true => self.shards[shard].state = ShardState::Answered,
            false => self.enqueue(shard),
        }
    }
}
