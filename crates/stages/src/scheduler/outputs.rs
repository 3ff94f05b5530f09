//! Handles finished attempts, failures, retries and failed fetches.

use super::{AttemptState, FailureKind, Kind, Missing, NodeState, Phase, Scheduler, Strike, state::Attempt};
use crate::{
    error::Error,
    events::{Action, FetchFailure},
    ids::{AttemptToken, NodeId, PartitionId},
};

/// The number of failed fetches between two nodes after which one of them counts as cut off. A node must be heard
/// between two of these fetches, so nodes that are gone end by their lease instead.
const STRIKES: u32 = 3;

impl Scheduler {
    /// Takes the output of an attempt, and cancels the other attempt of its partition.
    pub(super) fn finished(&mut self, token: AttemptToken, bytes: u64, checksum: u64) {
        let Some(&Attempt { partition, node, state, started, .. }) = self.attempts.get(token.0 as usize)
        else {
            return;
        };
        if state == AttemptState::Over && self.is_readable(node) {
            self.actions.push(Action::DeleteScratch { token, node });
        }
        if !matches!(state, AttemptState::Runs | AttemptState::Waits) {
            return;
        }
        self.end_attempt(token, AttemptState::Finished);
        let own = &mut self.attempts[token.0 as usize];
        (own.bytes, own.checksum) = (bytes, checksum);
        self.counters.finished += 1;
        for other in self.partition(partition).live.into_iter().flatten() {
            self.cancel(other);
        }
        self.set_output(partition, Some(token));
        let time = self.now.saturating_sub(started);
        let stage = &mut self.stages[partition.stage as usize];
        stage.changes.push(partition.partition);
        stage.finished = (stage.finished.0 + 1, stage.finished.1 + time);
        // The output may complete the stage, or end the wait of a consumer.
        self.is_work_new |= stage.missing == 0 || !self.missing.is_empty();
        self.settle(partition);
    }

    /// Handles the failure of an attempt.
    pub(super) fn failed(&mut self, token: AttemptToken, kind: FailureKind, why: String) {
        let Some((partition, node)) = self.live(token) else { return };
        match kind {
            FailureKind::Fatal => self.fail(Error::Failed { partition, node, why }),
            FailureKind::Retryable => self.retry(token, why),
            FailureKind::DiskFull => {
                self.counters.failed += 1;
                self.end_attempt(token, AttemptState::Over);
                self.settle(partition);
                self.restrict(node, NodeState::Full, "its disk is full");
            }
        }
    }

    /// Ends a failed attempt. The partition is queued for another attempt, on another node if possible. If the
    /// partition has failed too often, the job fails.
    fn retry(&mut self, token: AttemptToken, why: String) {
        let &Attempt { partition, node, .. } = self.attempt(token);
        self.counters.failed += 1;
        self.end_attempt(token, AttemptState::Over);
        self.settle(partition);
        self.count_failure(partition, node, why);
    }

    fn count_failure(&mut self, partition: PartitionId, node: NodeId, why: String) {
        let failures = self.failures.entry(partition).or_default();
        failures.push((node, why));
        if failures.len() as u32 >= self.options.max_failures {
            let failures = failures.clone();
            self.fail(Error::RetriesExhausted { partition, failures });
        }
    }

    /// Handles a failed fetch: an attempt that lacks outputs of producers waits, any other attempt is retried.
    pub(super) fn fetch_failed(
        &mut self,
        token: AttemptToken,
        outputs: &[AttemptToken],
        cause: FetchFailure,
    ) {
        let Some((partition, node)) = self.live(token) else { return };
        let own = self.attempt(token);
        let ranges = self.ranges(partition, outputs);
        if matches!(own.kind, Kind::Copy { .. }) && cause == FetchFailure::Gone {
            self.counters.failed += 1;
            self.end_attempt(token, AttemptState::Over);
            self.settle(partition);
            return outputs.iter().for_each(|&output| self.drop_output(output));
        }
        if matches!(own.kind, Kind::Copy { .. }) || ranges.is_empty() {
            return self.retry(token, format!("it could not fetch its input ({cause:?})"));
        }
        if own.state == AttemptState::Runs {
            let retry_at =
                (cause == FetchFailure::Unreachable).then_some(self.now + self.options.retry_after);
            self.attempts[token.0 as usize].state = AttemptState::Waits;
            self.missing.insert(token, Missing { ranges: ranges.clone(), retry_at });
            self.node_mut(node).waiting.insert(token);
            self.counters.waits += 1;
            self.is_work_new = true;
        }
        if !self.is_state(node, NodeState::Usable) {
            self.cancel(token);
            self.settle(partition);
        }
        let mut servers: Vec<NodeId> = ranges.iter().map(|&(_, output)| self.attempt(output).node).collect();
        servers.sort_unstable();
        servers.dedup();
        match cause {
            FetchFailure::Gone => ranges.iter().for_each(|&(_, output)| self.drop_output(output)),
            FetchFailure::Unreachable => servers.iter().for_each(|&server| self.strike(node, server)),
            FetchFailure::Slow => servers.iter().for_each(|&server| self.slow(server)),
        }
    }

    /// Returns the partitions of those outputs that the producers of a partition made.
    fn ranges(&self, partition: PartitionId, outputs: &[AttemptToken]) -> Vec<(PartitionId, AttemptToken)> {
        let producers = self.plan.producers(partition.stage);
        let known =
            outputs.iter().filter_map(|&output| Some((output, self.attempts.get(output.0 as usize)?)));
        known
            .filter(|(_, attempt)| producers.contains(&attempt.partition.stage))
            .map(|(output, attempt)| (attempt.partition, output))
            .collect()
    }

    /// Drops an output whose bytes are missing or damaged. This counts as a failure of its partition.
    fn drop_output(&mut self, token: AttemptToken) {
        let Some(&Attempt { partition, node, .. }) = self.attempts.get(token.0 as usize) else { return };
        if self.partition(partition).output != Some(token) || self.phase == Phase::Ended {
            return;
        }
        self.actions.push(Action::DeleteScratch { token, node });
        self.lose_output(partition);
        self.settle(partition);
        self.count_failure(partition, node, "its output is missing or damaged".to_string());
    }

    /// Removes the output of a partition.
    pub(super) fn lose_output(&mut self, partition: PartitionId) {
        let Some(token) = self.partition(partition).output else { return };
        self.attempts[token.0 as usize].state = AttemptState::Over;
        self.counters.lost_outputs += 1;
        self.set_output(partition, None);
        self.is_work_new = true;
        self.is_loss_new = true;
    }

    /// Sets the output of a partition, and counts the outputs of nodes and the missing outputs of the stage.
    fn set_output(&mut self, partition: PartitionId, output: Option<AttemptToken>) {
        let before = std::mem::replace(&mut self.partition_mut(partition).output, output);
        for (token, is_added) in [(before, false), (output, true)] {
            let Some(token) = token else { continue };
            let node = self.attempt(token).node;
            let count = &mut self.node_mut(node).outputs[partition.stage as usize];
            if is_added { *count += 1 } else { *count -= 1 }
        }
        let missing = &mut self.stages[partition.stage as usize].missing;
        match (before, output) {
            (None, Some(_)) => *missing -= 1,
            (Some(_), None) => *missing += 1,
            _ => {}
        }
    }

    /// Records a failed fetch between two nodes. After [`STRIKES`] of them, the node with more such counterparts counts
    /// as cut off, and of two equal ones the node that serves.
    fn strike(&mut self, reader: NodeId, server: NodeId) {
        if !self.is_readable(reader) || !self.is_readable(server) {
            return;
        }
        let (now, heard) = (self.now, self.nodes[&server].heard);
        let strike = self.strikes.entry((reader, server)).or_insert(Strike { count: 0, at: now });
        if strike.count == 0 || heard > strike.at {
            (strike.count, strike.at) = (strike.count + 1, now);
        }
        if strike.count < STRIKES {
            return;
        }
        let degree = |node: NodeId| {
            let pairs = self.strikes.keys().filter(|&&(a, b)| a == node || b == node);
            let others = pairs.map(|&(a, b)| if a == node { b } else { a });
            others.collect::<std::collections::BTreeSet<_>>().len()
        };
        let cut_off = if degree(reader) > degree(server) { reader } else { server };
        self.expel(cut_off);
    }

    /// Returns partition and node of an attempt that runs or waits.
    fn live(&self, token: AttemptToken) -> Option<(PartitionId, NodeId)> {
        let attempt = self.attempts.get(token.0 as usize)?;
        let is_live = matches!(attempt.state, AttemptState::Runs | AttemptState::Waits);
        is_live.then_some((attempt.partition, attempt.node))
    }

    /// Cancels an attempt that runs or waits. The caller settles its partition.
    pub(super) fn cancel(&mut self, token: AttemptToken) {
        let node = self.attempt(token).node;
        self.end_attempt(token, AttemptState::Over);
        self.actions.push(Action::Cancel { token, node });
    }

    /// Takes an attempt out of its partition and its node.
    pub(super) fn end_attempt(&mut self, token: AttemptToken, state: AttemptState) {
        let &Attempt { partition, node, .. } = self.attempt(token);
        self.attempts[token.0 as usize].state = state;
        self.missing.remove(&token);
        self.single.remove(&token);
        let live = &mut self.partition_mut(partition).live;
        live.iter_mut().for_each(|place| *place = place.filter(|&live| live != token));
        live.sort_by_key(|place| (place.is_none(), *place));
        self.stages[partition.stage as usize].live -= 1;
        let node = self.node_mut(node);
        node.live.remove(&token);
        node.waiting.remove(&token);
    }

    /// Puts a partition into the queues where it belongs, after its attempts, its output or the state of a node
    /// changed.
    pub(super) fn settle(&mut self, id: PartitionId) {
        let partition = self.partition(id);
        let (live, is_missing) = (partition.live, partition.output.is_none());
        let is_idle = live == [None, None];
        let moves = is_idle && self.is_misplaced(id);
        let stage = &mut self.stages[id.stage as usize];
        let is_moved = set(&mut stage.moving, id.partition, moves);
        let is_queued = set(&mut stage.queue, id.partition, is_idle && is_missing);
        self.is_work_new |= is_moved && moves || is_queued && is_idle;
        // A map partition without an attempt may have lost its last replica.
        self.is_loss_new |= is_queued && is_idle;
        if is_queued {
            for &node in self.plan.replicas(id) {
                if let Some(node) = self.nodes.get_mut(&node).filter(|node| !node.is_lost()) {
                    set(&mut node.queue, id, is_idle);
                }
            }
        }
        match live {
            [Some(only), None] => {
                self.single.insert(only);
            }
            _ => live.iter().flatten().for_each(|token| {
                self.single.remove(token);
            }),
        }
    }

    /// Returns true if the output of a partition is on a draining node, or on a slow one where consumers read it.
    fn is_misplaced(&self, id: PartitionId) -> bool {
        let Some(output) = self.partition(id).output else { return false };
        let has_consumers = !self.stages[id.stage as usize].consumers.is_empty();
        match self.nodes[&self.attempt(output).node].state {
            NodeState::Draining => true,
            NodeState::Slow => has_consumers,
            NodeState::Usable | NodeState::Full | NodeState::Lost => false,
        }
    }

    /// Returns true if the output of a partition is misplaced and another attempt can replace it at present.
    pub(super) fn must_move(&self, id: PartitionId) -> bool {
        let Some(output) = self.partition(id).output else { return false };
        let node = self.attempt(output).node;
        let has_input = self.is_ready(id.stage)
            && (self.plan.replicas(id).is_empty() || self.replica(id, Some(node)).is_some());
        self.is_misplaced(id) && (has_input || self.is_state(node, NodeState::Draining))
    }
}

/// Adds or removes an element. Returns true if the set changed.
fn set<T: Ord>(of: &mut std::collections::BTreeSet<T>, element: T, is_member: bool) -> bool {
    if is_member { of.insert(element) } else { of.remove(&element) }
}
