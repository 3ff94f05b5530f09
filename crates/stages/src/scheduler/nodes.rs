//! Handles nodes that join, drain, fill, slow down or are lost.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    Action, AttemptState, NodeState, Phase, Scheduler,
    state::{Memory, Node},
};
use crate::ids::{AttemptToken, NodeId, PartitionId};

/// The share of nodes that may count as slow: one of this number, at least one. If more nodes are slow, then something
/// that they share is slow, and to compute their outputs again would not help.
const SLOW_SHARE: usize = 4;

/// The number of renewals of a lease in its time. Two of three may be lost or late.
const RENEWALS: u32 = 3;

impl Scheduler {
    /// Handles a node that joins. A known node has restarted, and has lost what it had.
    pub(super) fn joined(&mut self, id: NodeId, slots: u32) {
        self.lose(id, "it restarted");
        if self.nodes.get(&id).is_some_and(|node| node.losses > self.options.max_losses) {
            return;
        }
        self.add_node(id, slots);
        match self.phase {
            Phase::Open => self.reserve_late(id),
            Phase::Reserving(_) | Phase::Ended => {}
        }
    }

    /// Adds a node without attempts and outputs.
    pub(super) fn add_node(&mut self, id: NodeId, slots: u32) {
        let losses = self.nodes.get(&id).map_or(0, |node| node.losses);
        let node = Node {
            state: NodeState::Usable,
            why: "",
            slots: slots.clamp(1, (self.options.max_connections / 2).max(1)),
            asks: 0,
            memory: Memory::None,
            heard: self.now,
            renewed: self.now,
            losses,
            live: BTreeSet::new(),
            waiting: BTreeSet::new(),
            queue: self.queued_at(id),
            outputs: vec![0; self.stages.len()],
        };
        self.nodes.insert(id, node);
        self.usable += 1;
        self.actions.push(Action::RenewLease { node: id });
    }

    /// Returns the queued map partitions whose input a node holds.
    pub(super) fn queued_at(&self, id: NodeId) -> BTreeSet<PartitionId> {
        let stages = (0..self.stages.len() as u32).filter(|&stage| self.plan.is_map(stage));
        let queued = stages.flat_map(|stage| {
            self.stages[stage as usize].queue.iter().map(move |&partition| PartitionId { stage, partition })
        });
        queued.filter(|&partition| self.plan.replicas(partition).contains(&id)).collect()
    }

    /// Takes a node for lost, with its attempts and outputs. Attempts on other nodes that read from it end.
    pub(super) fn lose(&mut self, id: NodeId, why: &'static str) {
        if !self.is_readable(id) {
            return;
        }
        self.set_state(id, NodeState::Lost, why);
        self.hungry.remove(&id);
        let node = self.node_mut(id);
        (node.asks, node.memory, node.losses) = (0, Memory::None, node.losses.saturating_add(1));
        node.queue.clear();
        let own: Vec<AttemptToken> = node.live.iter().copied().collect();
        let mut touched = self.stored_at(id);
        touched.iter().for_each(|&partition| self.lose_output(partition));
        for token in own {
            self.counters.lost += 1;
            touched.push(self.attempt(token).partition);
            self.end_attempt(token, AttemptState::Over);
        }
        for token in self.readers(id) {
            touched.push(self.attempt(token).partition);
            self.cancel(token);
        }
        touched.into_iter().for_each(|partition| self.settle(partition));
        self.strikes.retain(|&(reader, server), _| reader != id && server != id);
        (self.is_loss_new, self.is_work_new) = (true, true);
        if self.phase == Phase::Reserving(Some(id)) {
            self.reserve_after(Some(id));
        }
    }

    /// Takes a node for lost that may still run and store something: releases the node, if it can be reached.
    pub(super) fn give_up(&mut self, id: NodeId, why: &'static str) {
        if self.is_readable(id) {
            self.actions.push(Action::Release { node: id, kept: Vec::new() });
            self.lose(id, why);
        }
    }

    /// Gives up a node that other nodes cannot reach, and ignores it for the rest of the job.
    pub(super) fn expel(&mut self, id: NodeId) {
        self.give_up(id, "other nodes cannot reach it");
        self.node_mut(id).losses = u32::MAX;
    }

    /// Handles a drain notice.
    pub(super) fn drain(&mut self, id: NodeId) {
        self.restrict(id, NodeState::Draining, "it is draining");
    }

    /// Marks a node as slow, whose outputs are then replaced, unless too many nodes are slow.
    pub(super) fn slow(&mut self, id: NodeId) {
        let live = self.nodes.values().filter(|node| !node.is_lost()).count();
        let slow = self.nodes.values().filter(|node| node.state == NodeState::Slow).count();
        let usable = self.usable - usize::from(self.is_state(id, NodeState::Usable));
        if slow < (live / SLOW_SHARE).max(1) && usable > 0 {
            self.restrict(id, NodeState::Slow, "other nodes waited for its outputs");
        }
    }

    /// Gives a node no more attempts. Its waiting attempts end; those that run go on.
    pub(super) fn restrict(&mut self, id: NodeId, state: NodeState, why: &'static str) {
        let Some(node) = self.nodes.get(&id) else { return };
        let is_change = match node.state {
            NodeState::Lost | NodeState::Draining => false,
            NodeState::Slow => state == NodeState::Draining,
            NodeState::Usable | NodeState::Full => node.state != state,
        };
        if !is_change {
            return;
        }
        let waiting: Vec<AttemptToken> = node.waiting.iter().copied().collect();
        self.set_state(id, state, why);
        let mut touched = self.stored_at(id);
        for token in waiting {
            touched.push(self.attempt(token).partition);
            self.cancel(token);
        }
        touched.into_iter().for_each(|partition| self.settle(partition));
        (self.is_loss_new, self.is_work_new) = (true, true);
    }

    fn set_state(&mut self, id: NodeId, state: NodeState, why: &'static str) {
        let node = self.node_mut(id);
        let was_usable = node.state == NodeState::Usable;
        (node.state, node.why) = (state, why);
        self.usable -= usize::from(was_usable);
    }

    /// Lists the partitions whose output a node stores.
    fn stored_at(&self, id: NodeId) -> Vec<PartitionId> {
        let node = &self.nodes[&id];
        let mut stored = Vec::new();
        for (stage, state) in self.stages.iter().enumerate().filter(|&(stage, _)| node.outputs[stage] > 0) {
            for (partition, of) in state.partitions.iter().enumerate() {
                if of.output.is_some_and(|output| self.attempt(output).node == id) {
                    stored.push(PartitionId { stage: stage as u32, partition: partition as u32 });
                }
            }
        }
        stored
    }

    /// Lists the attempts on other nodes that read a replica or copy an output of a node.
    fn readers(&self, id: NodeId) -> Vec<AttemptToken> {
        let live = self.nodes.values().flat_map(|node| node.live.iter().copied());
        live.filter(|&token| self.attempt(token).reads_from(id)).collect()
    }

    /// Releases draining nodes from which the job needs nothing more.
    pub(super) fn release_drained(&mut self) {
        let draining = |nodes: &BTreeMap<NodeId, Node>| -> Vec<NodeId> {
            let found = nodes.iter().filter(|(_, node)| node.state == NodeState::Draining);
            found.map(|(&id, _)| id).collect()
        };
        for id in draining(&self.nodes) {
            if self.nodes[&id].live.is_empty() && !self.needs(id) {
                self.give_up(id, "it was drained");
            }
        }
    }

    /// Returns true if an output or a replica on a node is needed, or an attempt reads one.
    fn needs(&self, id: NodeId) -> bool {
        let node = &self.nodes[&id];
        // Stages that are not known yet may read any output.
        let has_outputs = (0..self.stages.len() as u32)
            .any(|stage| node.outputs[stage as usize] > 0 && (self.plan.is_open() || self.is_needed(stage)));
        let is_last = |&partition: &PartitionId| {
            self.is_needed(partition.stage) && self.replica(partition, Some(id)).is_none()
        };
        has_outputs || node.queue.iter().any(is_last) || !self.readers(id).is_empty()
    }

    /// Handles the passing of time: ends a late job, finds silent nodes, renews leases, and repeats what was refused.
    pub(super) fn tick(&mut self) {
        if self.now >= self.options.deadline {
            return self.fail_late();
        }
        let (now, lease) = (self.now, self.options.lease);
        let is_silent = |node: &Node| !node.is_lost() && now.saturating_sub(node.heard) >= lease;
        let silent: Vec<NodeId> =
            self.nodes.iter().filter(|(_, node)| is_silent(node)).map(|(&id, _)| id).collect();
        silent.into_iter().for_each(|id| self.give_up(id, "it was silent for the time of its lease"));
        for (&id, node) in self.nodes.iter_mut().filter(|(_, node)| !node.is_lost()) {
            if now.saturating_sub(node.renewed) >= lease / RENEWALS {
                node.renewed = now;
                self.actions.push(Action::RenewLease { node: id });
            }
        }
        self.retry_memory();
        self.is_work_new = true;
    }
}
