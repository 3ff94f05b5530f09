//! The state machine of a job: receives events and returns actions, without I/O, threads or clock.
//!
//! The submodules of the scheduler:
//!
//! - `state`: the states of stages, partitions, attempts and nodes.
//! - `dispatch`: answers the pulls of nodes with attempts.
//! - `outputs`: finished attempts, failures, retries and failed fetches.
//! - `nodes`: nodes that join, drain, fill, slow down or are lost.
//! - `memory`: reserves the memory of a level on all nodes or on none.
//! - `ending`: opens levels, and ends the job.

mod dispatch;
mod ending;
mod memory;
mod nodes;
mod outputs;
mod state;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use self::state::{
    Attempt, AttemptState, Kind, Missing, Node, NodeState, Partition, Phase, StageState, Strike,
};
use crate::{
    events::{Action, Event, FailureKind, Output},
    ids::{AttemptToken, NodeId, PartitionId},
    options::Options,
    plan::Plan,
};

/// The numbers of a job's attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Counters {
    /// Started attempts.
    pub started: u64,
    /// Attempts whose output was used.
    pub finished: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Attempts that were lost with their node.
    pub lost: u64,
    /// Second attempts of partitions whose first attempt took long.
    pub second: u64,
    /// Map attempts that read a replica of another node.
    pub remote: u64,
    /// Attempts that copied an output of a draining node.
    pub copies: u64,
    /// Outputs that were lost with their node, damaged or missing.
    pub lost_outputs: u64,
    /// Merge attempts that waited for ranges.
    pub waits: u64,
}

/// The state machine of a job.
///
/// The state takes about 250 bytes for each partition, with an attempt and two replicas, and 500 bytes for each node. No
/// part of the state has an entry for each pair of partitions. An event costs O(log n) for n partitions, attempts and
/// nodes, except for an event that loses, drains or slows a node: such an event costs O(n). After an event that makes
/// work available, each node that waits for work is tried.
///
/// The example runs a plan of one map partition and one merge partition on one node. A driver would send the actions to
/// nodes, and pass their replies to [`Scheduler::on`]:
///
/// ```
/// use std::time::Duration;
///
/// use inshore_stages::{
///     Action, Event, NodeId, Options, Partitioning, Plan, Scheduler, Stage, StageInput, StageOutput,
/// };
///
/// let map = Stage {
///     input: StageInput::Replicas(vec![vec![NodeId(0)]]),
///     broadcasts: Vec::new(),
///     output: StageOutput::Exchange(Partitioning::Hash { partitions: 1 }),
///     memory_bytes: 1 << 20,
/// };
/// let merge = Stage {
///     input: StageInput::exchange([0]),
///     broadcasts: Vec::new(),
///     output: StageOutput::Result,
///     memory_bytes: 1 << 20,
/// };
/// let plan = Plan::new(vec![map, merge])?;
/// let (mut scheduler, actions) = Scheduler::start(plan, Options::default(), &[(NodeId(0), 1)]);
/// let mut actions = std::collections::VecDeque::from(actions);
/// let (mut now, mut results) = (Duration::ZERO, 0);
/// while let Some(action) = actions.pop_front() {
///     now += Duration::from_millis(1);
///     let events = match action {
///         Action::Reserve { node, memory_bytes } => {
///             vec![Event::Reserved { node, memory_bytes }, Event::Asked { node }]
///         }
///         Action::Start { token, node, .. } => {
///             vec![Event::Finished { token, bytes: 100, checksum: 7 }, Event::Asked { node }]
///         }
///         Action::Finish { result } => {
///             results = result.len();
///             vec![]
///         }
///         _ => vec![],
///     };
///     for event in events {
///         actions.extend(scheduler.on(now, event));
///     }
/// }
/// assert_eq!((results, scheduler.counters().started), (1, 2));
/// # Ok::<(), inshore_stages::Error>(())
/// ```
#[derive(Debug)]
pub struct Scheduler {
    plan: Plan,
    options: Options,
    stages: Vec<StageState>,
    attempts: Vec<Attempt>,
    nodes: BTreeMap<NodeId, Node>,
    /// The number of nodes in the state `Usable`.
    usable: usize,
    /// The nodes that have asked for work.
    hungry: BTreeSet<NodeId>,
    /// The attempts that are the only ones of their partition.
    single: BTreeSet<AttemptToken>,
    missing: BTreeMap<AttemptToken, Missing>,
    failures: BTreeMap<PartitionId, Vec<(NodeId, String)>>,
    /// Failed fetches by the node that fetched and the node that served.
    strikes: BTreeMap<(NodeId, NodeId), Strike>,
    /// The level whose stages are open, with all lower levels.
    level: u32,
    phase: Phase,
    /// The memory of a slot, in bytes, that is reserved or asked for.
    slot_memory: u64,
    /// The time when a refused reservation of all nodes is tried again.
    reserve_at: Duration,
    now: Duration,
    /// True if work may have become available for nodes that asked before.
    is_work_new: bool,
    /// True if inputs or nodes may have been lost that the job needs.
    is_loss_new: bool,
    /// True if the driver was asked for the stages that follow the last one.
    is_asked_to_extend: bool,
    counters: Counters,
    actions: Vec<Action>,
}

impl Scheduler {
    /// Starts a job at time zero on the given nodes, each with its number of slots. Further nodes may join.
    pub fn start(plan: Plan, options: Options, nodes: &[(NodeId, u32)]) -> (Scheduler, Vec<Action>) {
        let mut stages = Vec::with_capacity(plan.stages().len());
        add_stages(&mut stages, &plan);
        let mut scheduler = Scheduler {
            plan,
            options,
            stages,
            attempts: Vec::new(),
            nodes: BTreeMap::new(),
            usable: 0,
            hungry: BTreeSet::new(),
            single: BTreeSet::new(),
            missing: BTreeMap::new(),
            failures: BTreeMap::new(),
            strikes: BTreeMap::new(),
            level: 0,
            phase: Phase::Reserving(None),
            slot_memory: 0,
            reserve_at: Duration::ZERO,
            now: Duration::ZERO,
            is_work_new: false,
            is_loss_new: true,
            is_asked_to_extend: false,
            counters: Counters::default(),
            actions: Vec::new(),
        };
        nodes.iter().for_each(|&(node, slots)| scheduler.add_node(node, slots));
        scheduler.reserve_level();
        scheduler.advance();
        let actions = std::mem::take(&mut scheduler.actions);
        (scheduler, actions)
    }

    /// Handles an event at a time since the start of the job, and returns the resulting actions. Times do not decrease.
    /// Events of attempts that are over and of lost nodes change nothing, nor do events after the end of the job.
    pub fn on(&mut self, now: Duration, event: Event) -> Vec<Action> {
        if self.phase == Phase::Ended {
            return Vec::new();
        }
        self.now = self.now.max(now);
        self.note_sender(&event);
        match event {
            Event::Joined { node, slots } => self.joined(node, slots),
            Event::Lost { node } => self.give_up(node, "the cluster reported its loss"),
            Event::Draining { node } => self.drain(node),
            Event::Asked { node } => self.asked(node),
            Event::Reserved { node, memory_bytes } => self.reserved(node, memory_bytes),
            Event::Refused { node, limit_bytes } => self.refused(node, limit_bytes),
            Event::LeaseRenewed { .. } => {}
            Event::LeaseExpired { node } => self.lose(node, "its lease expired"),
            Event::Finished { token, bytes, checksum } => self.finished(token, bytes, checksum),
            Event::Failed { token, kind, why } => self.failed(token, kind, why),
            Event::FetchFailed { token, outputs, cause } => self.fetch_failed(token, &outputs, cause),
            Event::Tick => self.tick(),
            Event::Cancelled => self.fail(crate::error::Error::Cancelled),
        }
        self.advance();
        std::mem::take(&mut self.actions)
    }

    /// Returns the current outputs of the partitions of a stage that changed after a version, in no particular order,
    /// and the present version. A partition may be listed twice; a partition without an output is not listed. Version 0
    /// precedes all changes.
    ///
    /// The driver sends each node the changes with the attempts of the node, and remembers the version sent. A merge of n
    /// partitions on m nodes thus sends n × m entries and not n × n.
    pub fn outputs_since(&self, stage: u32, version: usize) -> (impl Iterator<Item = Output> + '_, usize) {
        let changes = &self.stages[stage as usize].changes;
        let outputs = changes[version.min(changes.len())..].iter().filter_map(move |&partition| {
            let token = self.partition(PartitionId { stage, partition }).output?;
            Some(self.output(token))
        });
        (outputs, changes.len())
    }

    /// Returns true if each partition of a stage has an output.
    pub(crate) fn has_outputs(&self, stage: u32) -> bool {
        self.stages[stage as usize].missing == 0
    }

    /// Returns true if a partition has an output.
    pub(crate) fn has_output(&self, id: PartitionId) -> bool {
        self.partition(id).output.is_some()
    }

    /// Returns the attempts of those partitions that a partition reads and that have no output. Costs O(n) for n attempts.
    pub(crate) fn attempts_without_output(&self, id: PartitionId) -> Vec<AttemptToken> {
        let producers = self.plan.producers(id.stage);
        let is_lost = |attempt: &Attempt| {
            producers.contains(&attempt.partition.stage) && !self.has_output(attempt.partition)
        };
        let lost = self.attempts.iter().zip(0..).filter(|(attempt, _)| is_lost(attempt));
        lost.map(|(_, number)| AttemptToken(number)).collect()
    }

    /// Returns the number of partitions of a stage.
    pub fn partitions(&self, stage: u32) -> u32 {
        self.plan.partitions(stage)
    }

    /// Returns true if the job has not ended.
    pub fn is_running(&self) -> bool {
        self.phase != Phase::Ended
    }

    /// Returns the numbers of attempts so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    fn partition(&self, id: PartitionId) -> &Partition {
        &self.stages[id.stage as usize].partitions[id.partition as usize]
    }

    fn partition_mut(&mut self, id: PartitionId) -> &mut Partition {
        &mut self.stages[id.stage as usize].partitions[id.partition as usize]
    }

    fn attempt(&self, token: AttemptToken) -> &Attempt {
        &self.attempts[token.0 as usize]
    }

    fn node_mut(&mut self, node: NodeId) -> &mut Node {
        self.nodes.get_mut(&node).expect("attempts run on known nodes")
    }

    fn output(&self, token: AttemptToken) -> Output {
        let &Attempt { partition, node, bytes, checksum, .. } = self.attempt(token);
        Output { partition, token, node, bytes, checksum }
    }

    /// Returns the node that stores the state that a partition reads, if it reads one.
    fn home(&self, partition: PartitionId) -> Option<NodeId> {
        let stage = *self.plan.states(partition.stage).first()?;
        let output = self.partition(PartitionId { stage, ..partition }).output?;
        Some(self.attempt(output).node)
    }

    fn is_state(&self, node: NodeId, state: NodeState) -> bool {
        self.nodes.get(&node).is_some_and(|node| node.state == state)
    }

    /// Returns true if a node serves replicas and outputs.
    fn is_readable(&self, node: NodeId) -> bool {
        self.nodes.get(&node).is_some_and(|node| !node.is_lost())
    }

    /// Returns true if outputs of a stage are needed: the stage makes the result, or a consumer has attempts, or a
    /// needed consumer lacks outputs.
    fn is_needed(&self, stage: u32) -> bool {
        let consumers = &self.stages[stage as usize].consumers;
        let reads = |&consumer: &u32| {
            let state = &self.stages[consumer as usize];
            state.live > 0 || state.missing > 0 && self.is_needed(consumer)
        };
        consumers.is_empty() || consumers.iter().any(reads)
    }

    /// Returns true if the job cannot end without the outputs of a stage: the stage makes the result, or such a
    /// consumer lacks outputs. Attempts of other consumers replace outputs that can still be read.
    fn is_required(&self, stage: u32) -> bool {
        let consumers = &self.stages[stage as usize].consumers;
        let lacks =
            |&consumer: &u32| self.stages[consumer as usize].missing > 0 && self.is_required(consumer);
        consumers.is_empty() || consumers.iter().any(lacks)
    }

    /// Returns true if each partition of a stage's producers has an output.
    fn is_ready(&self, stage: u32) -> bool {
        self.plan.producers(stage).iter().all(|&stage| self.has_outputs(stage))
    }

    /// Records that the sender of an event is alive.
    fn note_sender(&mut self, event: &Event) {
        let node = match event {
            Event::Asked { node }
            | Event::Reserved { node, .. }
            | Event::Refused { node, .. }
            | Event::LeaseRenewed { node } => Some(*node),
            Event::Finished { token, .. }
            | Event::Failed { token, .. }
            | Event::FetchFailed { token, .. } => {
                self.attempts.get(token.0 as usize).map(|attempt| attempt.node)
            }
            _ => None,
        };
        if let Some(node) = node.and_then(|node| self.nodes.get_mut(&node)) {
            node.heard = self.now;
        }
    }
}

/// Adds the states of the stages of a plan that have none.
fn add_stages(stages: &mut Vec<StageState>, plan: &Plan) {
    for number in stages.len()..plan.stages().len() {
        let producers = plan.producers(number as u32);
        let level = producers.iter().map(|&of| 1 + stages[of as usize].level).max().unwrap_or_default();
        producers.iter().for_each(|&of| stages[of as usize].consumers.push(number as u32));
        let count = plan.partitions(number as u32);
        stages.push(StageState {
            level,
            consumers: Vec::new(),
            partitions: vec![Partition::default(); count as usize],
            missing: count,
            live: 0,
            queue: (0..count).collect(),
            moving: BTreeSet::new(),
            changes: Vec::new(),
            finished: (0, Duration::ZERO),
        });
    }
}
