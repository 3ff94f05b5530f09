//! Handles failures and stalls: gives up attempts, and avoids nodes that are lost or slow.

use std::{collections::BTreeSet, time::Duration};

use super::{
    Scheduler,
    events::{Action, AnswerOrder, Puller},
    shards::{Attempt, AttemptState, Shard, ShardState},
};

impl Scheduler {
    /// Ends an attempt early: its shards return to the queue.
    pub(super) fn fail(&mut self, attempt: usize, why: &str, is_gone: bool, now: Duration) {
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
            // The other attempts of a lost node deliver no more answers.
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

    /// Gives up an attempt that makes no progress while its answer is awaited, if other nodes hold the
    /// outstanding shards.
    pub(super) fn waited(&mut self, attempt: usize, now: Duration) {
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

    /// Marks the stalled nodes of a queued shard as slow, so that other nodes take the shard: a stalled node
    /// may never pull again. A node whose later answers wait for this shard is not marked. If only such nodes
    /// remain, one of their attempts is restarted. If all nodes are marked as slow, only the nodes that are
    /// stalled at present keep the mark.
    pub(super) fn starved(&mut self, shard: usize, now: Duration) {
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
    pub(super) fn is_blocked(&self, attempt: usize, shard: usize) -> bool {
        let Attempt { state, out, .. } = &self.attempts[attempt];
        let is_later = *state == AttemptState::Ending || out.iter().any(|&out| out > shard);
        matches!(self.order, AnswerOrder::Window(_)) && is_later
    }
}
