//! Answers the pulls of nodes with attempts.

use std::time::Duration;

use super::{
    Scheduler,
    state::{Attempt, AttemptState, Kind, Memory, NodeState, Phase},
};
use crate::{
    events::{Action, Work},
    ids::{AttemptToken, NodeId, PartitionId},
    plan::StageInput,
};

/// The number of attempts that a pull considers for a second attempt, the oldest first. The bound limits the cost of a
/// pull in vain. The later attempts are the younger ones, so they are less late.
const CANDIDATES: usize = 64;
/// The smallest age of an attempt that gets a second one. A shorter attempt ends before the second attempt of it would.
const SECOND_ATTEMPT_MIN: Duration = Duration::from_secs(1);

impl Scheduler {
    /// Handles the pull of a node.
    pub(super) fn asked(&mut self, id: NodeId) {
        let Some(node) = self.nodes.get_mut(&id).filter(|node| !node.is_lost()) else { return };
        node.asks = (node.asks + 1).min(node.slots.saturating_sub(node.running()));
        if node.asks > 0 {
            self.hungry.insert(id);
            self.feed(id);
        }
    }

    /// Tries all nodes that have asked for work.
    pub(super) fn feed_all(&mut self) {
        for node in self.hungry.iter().copied().collect::<Vec<_>>() {
            self.feed(node);
        }
    }

    /// Gives a node attempts for its free slots, as far as there is work.
    fn feed(&mut self, id: NodeId) {
        while self.phase == Phase::Open
            && self.nodes[&id].asks > 0
            && self.nodes[&id].memory == Memory::Held
            && self.nodes[&id].state == NodeState::Usable
            && (self.resume(id) || self.start_next(id))
        {
            let node = self.node_mut(id);
            node.asks -= 1;
            if node.asks == 0 {
                self.hungry.remove(&id);
            }
        }
    }

    /// Resumes the first attempt of a node whose missing ranges are there.
    fn resume(&mut self, id: NodeId) -> bool {
        let waiting = &self.nodes[&id].waiting;
        let Some(token) = waiting.iter().copied().find(|&token| self.has_ranges(token)) else { return false };
        self.missing.remove(&token);
        self.node_mut(id).waiting.remove(&token);
        self.attempts[token.0 as usize].state = AttemptState::Runs;
        let work = match self.attempt(token).kind {
            Kind::Map { read_from } => Work::Map { read_from },
            // An attempt that waits for missing ranges opens one connection at a time.
            Kind::Merge | Kind::Copy { .. } => Work::Merge { fan_in: 1 },
        };
        self.actions.push(Action::Resume { token, node: id, work });
        true
    }

    /// Returns true if a waiting attempt can fetch its missing ranges: from another output, or from the same one if its
    /// time has come or nothing will replace it. All other producers need outputs too: more of them may have been lost
    /// since the fetch failed, and a failed fetch names the outputs of one request only.
    fn has_ranges(&self, token: AttemptToken) -> bool {
        if !self.is_ready(self.attempt(token).partition.stage) {
            return false;
        }
        let missing = &self.missing[&token];
        let is_due = missing.retry_at.is_some_and(|at| self.now >= at);
        missing.ranges.iter().all(|&(partition, failed)| match self.partition(partition).output {
            None => false,
            Some(output) => {
                let will_change = missing.retry_at.is_some() || self.must_move(partition);
                output != failed || is_due || !will_change
            }
        })
    }

    /// Starts the next attempt on a node: outputs that must move, then queued partitions, then a second attempt.
    fn start_next(&mut self, id: NodeId) -> bool {
        let next = self.next_moving(id).or_else(|| self.next_queued(id));
        if let Some((partition, kind)) = next {
            self.begin(id, partition, kind);
            return true;
        }
        let Some((partition, kind)) = self.next_second(id) else { return false };
        self.counters.second += 1;
        self.begin(id, partition, kind);
        true
    }

    /// Lists the stages that may start attempts, the earliest first.
    fn open_stages(&self) -> impl Iterator<Item = u32> + '_ {
        let is_open = |&stage: &u32| {
            let state = &self.stages[stage as usize];
            let has_work = !state.queue.is_empty() || !state.moving.is_empty();
            state.level <= self.level && has_work && self.is_needed(stage)
        };
        (0..self.stages.len() as u32).filter(is_open)
    }

    /// Returns a partition whose output must move, and the way to do it for this node.
    fn next_moving(&self, id: NodeId) -> Option<(PartitionId, Kind)> {
        self.open_stages().find_map(|stage| {
            let moving = self.stages[stage as usize].moving.iter();
            moving.map(|&partition| PartitionId { stage, partition }).find_map(|partition| {
                if self.avoids(partition, id) {
                    return None;
                }
                let from = self.attempt(self.partition(partition).output?).node;
                let is_draining = self.is_state(from, NodeState::Draining);
                let copy = is_draining.then_some((partition, Kind::Copy { from }));
                match self.failures.contains_key(&partition) {
                    true => self.recompute(id, partition, from).or(copy),
                    false => copy.or_else(|| self.recompute(id, partition, from)),
                }
            })
        })
    }

    /// Returns the next queued partition for a node: its own input first, then the input of the node with the longest
    /// queue, in the earliest stage that has work.
    fn next_queued(&self, id: NodeId) -> Option<(PartitionId, Kind)> {
        let ready = self.open_stages().filter(|&stage| self.is_ready(stage));
        ready.into_iter().find_map(|stage| match self.plan.stages()[stage as usize].input {
            StageInput::Replicas(_) => self
                .next_of(id, self.local(stage, id))
                .map(|partition| (partition, Kind::Map { read_from: id }))
                .or_else(|| self.next_remote(stage, id)),
            StageInput::Exchange { .. } => {
                let queue = self.stages[stage as usize].queue.iter();
                let queue = queue.map(|&partition| PartitionId { stage, partition });
                let next = self.next_of(id, queue.filter(|&partition| self.may_take(id, partition)));
                next.map(|partition| (partition, Kind::Merge))
            }
        })
    }

    /// Lists the queued partitions of a map stage whose input a node holds.
    fn local(&self, stage: u32, id: NodeId) -> impl DoubleEndedIterator<Item = PartitionId> + '_ {
        let first = PartitionId { stage, partition: 0 };
        let last = PartitionId { stage, partition: u32::MAX };
        self.nodes[&id].queue.range(first..=last).copied()
    }

    /// Returns a queued map partition whose input other nodes hold. A partition is left to a holder that has a free slot.
    fn next_remote(&self, stage: u32, id: NodeId) -> Option<(PartitionId, Kind)> {
        let queue = &self.stages[stage as usize].queue;
        let longest = self.nodes.iter().max_by_key(|(_, node)| node.queue.len()).map(|(&node, _)| node);
        let of_longest = longest.into_iter().flat_map(|node| self.local(stage, node).rev());
        let of_stage = queue.iter().map(|&partition| PartitionId { stage, partition });
        let is_left = |&partition: &PartitionId| {
            self.plan.replicas(partition).iter().any(|&holder| {
                self.hungry.contains(&holder)
                    && self.is_state(holder, NodeState::Usable)
                    && self.nodes[&holder].memory == Memory::Held
                    && !self.avoids(partition, holder)
            })
        };
        let next = of_longest.chain(of_stage).find(|next| !self.avoids(*next, id) && !is_left(next))?;
        Some((next, Kind::Map { read_from: self.replica(next, None)? }))
    }

    /// Returns true if a node may start a merge partition. A partition with state is left to the node that stores the
    /// state, unless that node gets no attempts of it.
    fn may_take(&self, id: NodeId, partition: PartitionId) -> bool {
        let is_left = |home: NodeId| {
            home != id && self.is_state(home, NodeState::Usable) && !self.avoids(partition, home)
        };
        !self.home(partition).is_some_and(is_left)
    }

    /// Returns the first partition that a node does not avoid.
    fn next_of(&self, id: NodeId, mut partitions: impl Iterator<Item = PartitionId>) -> Option<PartitionId> {
        partitions.find(|&partition| !self.avoids(partition, id))
    }

    /// Returns the oldest attempt that runs alone and for much longer than the finished attempts of its stage on average,
    /// as a second attempt for a node.
    fn next_second(&self, id: NodeId) -> Option<(PartitionId, Kind)> {
        self.single.iter().take(CANDIDATES).find_map(|&token| {
            let &Attempt { partition, node, state, started, kind, .. } = self.attempt(token);
            let age = self.now.saturating_sub(started);
            let is_late = state == AttemptState::Runs && age > self.usual_time(partition.stage);
            if node == id || !is_late || self.avoids(partition, id) {
                return None;
            }
            match kind {
                Kind::Map { .. } | Kind::Merge => self.recompute(id, partition, node),
                Kind::Copy { .. } => None,
            }
        })
    }

    /// Returns the time after which an attempt of a stage is late.
    fn usual_time(&self, stage: u32) -> Duration {
        match self.stages[stage as usize].finished {
            (0, _) => self.options.second_attempt_after,
            (count, total) => (total / count * 3 / 2).max(SECOND_ATTEMPT_MIN),
        }
    }

    /// Returns the way in which a node can compute a partition without reading from another node.
    fn recompute(&self, id: NodeId, partition: PartitionId, without: NodeId) -> Option<(PartitionId, Kind)> {
        if !self.is_ready(partition.stage) {
            return None;
        }
        let kind = match self.plan.stages()[partition.stage as usize].input {
            StageInput::Exchange { .. } => Some(Kind::Merge),
            StageInput::Replicas(_) if self.plan.replicas(partition).contains(&id) => {
                Some(Kind::Map { read_from: id })
            }
            StageInput::Replicas(_) => {
                self.replica(partition, Some(without)).map(|read_from| Kind::Map { read_from })
            }
        };
        kind.map(|kind| (partition, kind))
    }

    /// Returns a readable replica of an input partition, on a usable node if there is one, else on the node with the
    /// shortest queue.
    pub(super) fn replica(&self, partition: PartitionId, without: Option<NodeId>) -> Option<NodeId> {
        let replicas = self.plan.replicas(partition).iter().copied();
        replicas.filter(|&node| Some(node) != without && self.is_readable(node)).min_by_key(|node| {
            let state = &self.nodes[node];
            (state.state != NodeState::Usable, state.queue.len())
        })
    }

    /// Returns true if a partition failed on a node and another usable node can try it.
    fn avoids(&self, partition: PartitionId, id: NodeId) -> bool {
        let Some(failures) = self.failures.get(&partition) else { return false };
        let mut nodes: Vec<NodeId> = failures.iter().map(|(node, _)| *node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let usable = nodes.iter().filter(|&&node| self.is_state(node, NodeState::Usable)).count();
        nodes.contains(&id) && usable < self.usable
    }

    /// Begins an attempt of a partition on a node.
    fn begin(&mut self, id: NodeId, partition: PartitionId, kind: Kind) {
        let token = AttemptToken(self.attempts.len() as u32);
        let work = match kind {
            Kind::Map { read_from } => {
                self.counters.remote += u64::from(read_from != id);
                Work::Map { read_from }
            }
            Kind::Merge => {
                Work::Merge { fan_in: (self.options.max_connections / 2 / self.nodes[&id].slots).max(1) }
            }
            Kind::Copy { .. } => {
                self.counters.copies += 1;
                let output = self.partition(partition).output.expect("a copy has an output to read");
                Work::Copy { output: self.output(output) }
            }
        };
        self.counters.started += 1;
        self.attempts.push(Attempt {
            partition,
            node: id,
            state: AttemptState::Runs,
            kind,
            started: self.now,
            bytes: 0,
            checksum: 0,
        });
        let live = &mut self.partition_mut(partition).live;
        let place = live.iter().position(Option::is_none).expect("a partition has at most two attempts");
        live[place] = Some(token);
        self.stages[partition.stage as usize].live += 1;
        self.node_mut(id).live.insert(token);
        self.settle(partition);
        self.actions.push(Action::Start { token, node: id, partition, work });
    }
}
