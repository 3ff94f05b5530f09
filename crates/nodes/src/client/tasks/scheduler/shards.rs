//! Defines the states of shards and attempts.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use super::events::Puller;

/// The state of a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShardState {
    Queued,
    Out(usize),
    Answered,
    Missing,
}

#[derive(Debug)]
pub(super) struct Shard {
    /// The total bytes of the shards before this one.
    pub start: u64,
    pub bytes: u64,
    pub holders: Vec<usize>,
    pub state: ShardState,
    pub is_skipped: bool,
    /// The group of attempts that may take the shard.
    pub group: usize,
    pub unreadable: BTreeSet<usize>,
    pub slow: BTreeSet<usize>,
    pub attempts: usize,
    /// The failures of the shard, each with its node.
    pub why: Vec<(Option<usize>, String)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AttemptState {
    /// The task waits for a slot on its node.
    Begun,
    Pulls,
    /// The task was informed that no more shards follow.
    Ending,
    Over,
}

#[derive(Debug)]
pub(super) struct Attempt {
    pub puller: Puller,
    pub group: usize,
    pub state: AttemptState,
    pub assigned: Vec<usize>,
    pub finished: usize,
    /// The shards handed out and not answered, in order.
    pub out: VecDeque<usize>,
    pub progressed: Duration,
    pub waited_for: Option<Duration>,
    pub failed: Option<String>,
    /// True if the failure is the fault of the node.
    pub is_blamed: bool,
}

impl Attempt {
    /// Returns true if more answers of the attempt are expected.
    pub fn is_live(&self) -> bool {
        match self.state {
            AttemptState::Begun | AttemptState::Pulls => true,
            AttemptState::Ending => !self.out.is_empty(),
            AttemptState::Over => false,
        }
    }
}
