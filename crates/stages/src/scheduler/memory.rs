//! Reserves the memory of a level's stages on all nodes or on none.
//!
//! The nodes are asked one after the other in the order of their numbers. If one of them refuses, all memory is
//! returned, and the job tries again later. Two jobs therefore never hold half of the nodes each: the job that gets the
//! first node gets the others, too. A level that needs more memory than the level before returns all memory first, for
//! the same reason. The memory of a level covers the stages of all levels below, since their lost partitions are
//! computed again.

use super::{
    Action, Phase, Scheduler,
    state::{Memory, NodeState},
};
use crate::{
    error::Error,
    ids::{AttemptToken, NodeId},
};

impl Scheduler {
    /// Reserves the memory of the level, unless the reserved memory suffices. No attempt runs meanwhile.
    pub(super) fn reserve_level(&mut self) {
        let stages = self.stages.iter().zip(self.plan.stages());
        let open = stages.filter(|(state, _)| state.level <= self.level);
        let needed = open.map(|(_, stage)| stage.memory_bytes).max().unwrap_or_default();
        if self.phase == Phase::Open && needed <= self.slot_memory {
            return;
        }
        let live: Vec<AttemptToken> =
            self.nodes.values().flat_map(|node| node.live.iter().copied()).collect();
        for token in live {
            let partition = self.attempt(token).partition;
            self.cancel(token);
            self.settle(partition);
        }
        self.unreserve_all();
        self.slot_memory = needed;
        self.reserve_after(None);
    }

    fn unreserve_all(&mut self) {
        for (&id, node) in &mut self.nodes {
            if matches!(node.memory, Memory::Held | Memory::Asked) {
                self.actions.push(Action::Unreserve { node: id });
            }
            node.memory = Memory::None;
        }
    }

    /// Asks the next usable node for memory. If there is none, attempts start.
    pub(super) fn reserve_after(&mut self, last: Option<NodeId>) {
        let is_next = |(id, state): &(&NodeId, NodeState)| {
            last.is_none_or(|last| **id > last) && *state == NodeState::Usable
        };
        let next = self.nodes.iter().map(|(id, node)| (id, node.state)).find(is_next);
        match next.map(|(&id, _)| id) {
            Some(id) => {
                self.phase = Phase::Reserving(Some(id));
                self.reserve(id);
            }
            None => {
                (self.phase, self.is_work_new) = (Phase::Open, true);
                self.nodes
                    .keys()
                    .copied()
                    .collect::<Vec<_>>()
                    .into_iter()
                    .for_each(|id| self.reserve_late(id));
            }
        }
    }

    /// Asks a node for memory that joined after the other nodes were asked.
    pub(super) fn reserve_late(&mut self, id: NodeId) {
        if self.is_state(id, NodeState::Usable) && self.nodes[&id].memory == Memory::None {
            self.reserve(id);
        }
    }

    fn reserve(&mut self, id: NodeId) {
        let memory_bytes = self.memory_of(id);
        self.node_mut(id).memory = Memory::Asked;
        self.actions.push(Action::Reserve { node: id, memory_bytes });
    }

    /// Returns the memory of all slots of a node, in bytes.
    fn memory_of(&self, id: NodeId) -> u64 {
        self.slot_memory.saturating_mul(u64::from(self.nodes[&id].slots))
    }

    /// Handles a granted reservation. A reply to an earlier request has another amount and changes nothing.
    pub(super) fn reserved(&mut self, id: NodeId, memory_bytes: u64) {
        if !self.is_asked(id) || memory_bytes != self.memory_of(id) {
            return;
        }
        self.node_mut(id).memory = Memory::Held;
        self.is_work_new = true;
        if self.phase == Phase::Reserving(Some(id)) {
            self.reserve_after(Some(id));
        }
    }

    /// Handles a refused reservation: the job holds no memory until it tries again. A node that joined late is asked
    /// again by itself.
    pub(super) fn refused(&mut self, id: NodeId, limit_bytes: u64) {
        if !self.is_asked(id) {
            return;
        }
        let retry_at = self.now.saturating_add(self.options.retry_after);
        if self.phase != Phase::Reserving(Some(id)) {
            self.node_mut(id).memory = Memory::RetryAt(retry_at);
            return;
        }
        let needed_bytes = self.memory_of(id);
        if limit_bytes < needed_bytes {
            return self.fail(Error::Memory { node: id, needed_bytes, limit_bytes });
        }
        self.node_mut(id).memory = Memory::None;
        self.unreserve_all();
        (self.phase, self.reserve_at) = (Phase::Reserving(None), retry_at);
    }

    fn is_asked(&self, id: NodeId) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.memory == Memory::Asked)
    }

    /// Repeats refused reservations whose time has come.
    pub(super) fn retry_memory(&mut self) {
        if self.phase == Phase::Reserving(None) && self.now >= self.reserve_at {
            self.reserve_after(None);
        }
        let is_due = |memory: Memory| matches!(memory, Memory::RetryAt(at) if self.now >= at);
        let due: Vec<NodeId> =
            self.nodes.iter().filter(|(_, node)| is_due(node.memory)).map(|(&id, _)| id).collect();
        for id in due {
            self.node_mut(id).memory = Memory::None;
            self.reserve_late(id);
        }
    }
}
