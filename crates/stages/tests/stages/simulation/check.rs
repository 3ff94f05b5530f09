//! Keeps a record of a simulated job, and compares each action of the scheduler with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
};

use super::settings::FaultKind;
use inshore_stages::{
    Action, AttemptToken, Error, Event, FetchFailure, NodeId, Output, PartitionId, Plan, Scheduler,
    StageOutput, Work,
};

/// A node as the driver knows it.
#[derive(Default)]
struct KnownNode {
    slots: u32,
    is_lost: bool,
    asks: u32,
    /// The attempts that have a slot.
    running: BTreeSet<AttemptToken>,
    waiting: BTreeSet<AttemptToken>,
    memory: u64,
    /// The sum of the connections of merge attempts.
    connections: u32,
}

/// An attempt as the driver and its node know it.
struct KnownAttempt {
    partition: PartitionId,
    node: NodeId,
    fan_in: u32,
    is_finished: bool,
    is_over: bool,
    /// The ranges that the attempt has read.
    read: BTreeMap<PartitionId, AttemptToken>,
    copied: Option<AttemptToken>,
}

pub struct Record {
    plan: Plan,
    nodes: BTreeMap<NodeId, KnownNode>,
    attempts: BTreeMap<AttemptToken, KnownAttempt>,
    /// The attempts with a slot or waiting, by partition.
    live: BTreeMap<PartitionId, Vec<AttemptToken>>,
    tables: BTreeMap<AttemptToken, super::Table>,
    /// The latest time of a renewal for each node.
    renewed: BTreeMap<NodeId, u64>,
    faulty: BTreeSet<NodeId>,
    /// True if a node was cut off from the others, so that a healthy node may be given up in its place.
    has_cut: bool,
    records_ranges: bool,
    has_ended: bool,
}

impl Record {
    pub fn new(plan: Plan, nodes: &[(NodeId, u32)], records_ranges: bool) -> Record {
        let node = |&(id, slots): &(NodeId, u32)| (id, KnownNode { slots, ..KnownNode::default() });
        Record {
            plan,
            nodes: nodes.iter().map(node).collect(),
            attempts: BTreeMap::new(),
            live: BTreeMap::new(),
            tables: BTreeMap::new(),
            renewed: BTreeMap::new(),
            faulty: BTreeSet::new(),
            has_cut: false,
            records_ranges,
            has_ended: false,
        }
    }

    pub fn partition(&self, token: AttemptToken) -> PartitionId {
        self.attempts[&token].partition
    }

    pub fn fault(&mut self, node: NodeId, kind: FaultKind) {
        self.faulty.insert(node);
        self.has_cut |= kind == FaultKind::CutOffFromNodes;
    }

    /// Keeps the outputs that the driver passes to an attempt.
    pub fn tables(&mut self, _: NodeId, token: AttemptToken, of: BTreeMap<u32, super::Outputs>) {
        if self.records_ranges {
            let table = of.into_iter().map(|(stage, outputs)| (stage, outputs.to_vec())).collect();
            self.tables.insert(token, Rc::new(table));
        }
    }

    /// Returns the outputs that the driver passed to an attempt last.
    pub fn table(&self, token: AttemptToken) -> super::Table {
        self.tables.get(&token).cloned().unwrap_or_default()
    }

    /// Records that an attempt has read a range as a whole.
    pub fn read(&mut self, token: AttemptToken, range: PartitionId, output: AttemptToken) {
        let attempt = self.attempts.get_mut(&token).unwrap();
        let before = attempt.read.insert(range, output);
        assert_eq!(before, None, "{token} read the range of {range} twice");
    }

    /// Records an output, and checks that its attempt read one range of each producer partition.
    pub fn wrote(&mut self, node: NodeId, token: AttemptToken, partition: PartitionId) {
        let attempt = &self.attempts[&token];
        assert_eq!((attempt.node, attempt.partition), (node, partition));
        self.check_reads(token);
    }

    fn check_reads(&self, token: AttemptToken) {
        let KnownAttempt { partition, read, copied, .. } = &self.attempts[&token];
        if let Some(copied) = copied {
            return self.check_reads(*copied);
        }
        if !self.records_ranges {
            return;
        }
        let producers = self.plan.producers(partition.stage);
        let wanted = producers.iter().map(|&producer| self.plan.partitions(producer) as usize).sum::<usize>();
        assert_eq!(read.len(), wanted, "{token} read one range of each producer partition");
        for (range, output) in read {
            let output = &self.attempts[output];
            assert_eq!(output.partition, *range);
            assert!(output.is_finished, "{token} read an unfinished output of {range}");
        }
    }

    /// Notes what an event changes.
    pub fn event(&mut self, event: &Event) {
        match event {
            Event::Joined { node, slots } => {
                self.lose(*node);
                self.nodes.insert(*node, KnownNode { slots: *slots, ..KnownNode::default() });
            }
            Event::Lost { node } | Event::LeaseExpired { node } => self.lose(*node),
            Event::Asked { node } => self.nodes.get_mut(node).unwrap().asks += 1,
            Event::Reserved { node, memory_bytes } => {
                self.nodes.get_mut(node).unwrap().memory = *memory_bytes
            }
            Event::Finished { token, .. } => {
                let attempt = self.attempts.get_mut(token).unwrap();
                attempt.is_finished = true;
                self.end(*token);
            }
            Event::Failed { token, .. } => self.end(*token),
            Event::FetchFailed { token, outputs, cause } => {
                assert!(!outputs.is_empty() || *cause == FetchFailure::Gone);
                if self.attempts[token].copied.is_some() {
                    return self.end(*token);
                }
                let KnownAttempt { node, fan_in, .. } = self.attempts[token];
                let node = self.nodes.get_mut(&node).unwrap();
                if node.running.remove(token) {
                    node.connections -= fan_in;
                    node.waiting.insert(*token);
                }
            }
            _ => {}
        }
    }

    fn lose(&mut self, id: NodeId) {
        let node = self.nodes.get_mut(&id).unwrap();
        (node.is_lost, node.asks, node.memory) = (true, 0, 0);
        let live: Vec<AttemptToken> = node.running.iter().chain(&node.waiting).copied().collect();
        live.into_iter().for_each(|token| self.end(token));
    }

    fn end(&mut self, token: AttemptToken) {
        let attempt = self.attempts.get_mut(&token).unwrap();
        attempt.is_over = true;
        let node = self.nodes.get_mut(&attempt.node).unwrap();
        if node.running.remove(&token) {
            node.connections -= attempt.fan_in;
        }
        node.waiting.remove(&token);
        if let Some(live) = self.live.get_mut(&attempt.partition) {
            live.retain(|&live| live != token);
        }
        self.tables.remove(&token);
    }

    /// Checks an action, and notes what it changes.
    pub fn action(&mut self, action: &Action, scheduler: &Scheduler, now: u64) {
        assert!(!self.has_ended, "{action:?} after the end");
        match action {
            Action::Start { token, node, partition, work } => {
                self.take_slot(*node, *token);
                self.start(*token, *node, *partition, work, scheduler)
            }
            Action::Resume { token, node, .. } => {
                assert!(self.nodes.get_mut(node).unwrap().waiting.remove(token), "{token} does not wait");
                self.take_slot(*node, *token);
                let fan_in = self.attempts[token].fan_in;
                self.connect(*node, fan_in);
            }
            Action::Cancel { token, node } => {
                assert_eq!(self.attempts[token].node, *node);
                assert!(!self.attempts[token].is_over, "{token} is over and is cancelled");
                self.end(*token);
            }
            Action::Unreserve { node } => {
                let node = self.nodes.get_mut(node).unwrap();
                assert!(node.running.is_empty(), "memory in use is returned");
                node.memory = 0;
            }
            Action::RenewLease { node } => {
                self.renewed.insert(*node, now);
            }
            Action::Release { node, kept } => {
                self.lose(*node);
                kept.iter().for_each(|token| assert_eq!(self.attempts[token].node, *node));
            }
            Action::Finish { result } => {
                self.has_ended = true;
                self.finish(result);
            }
            Action::Fail { error } => {
                self.has_ended = true;
                self.fail(error);
            }
            _ => {}
        }
    }

    fn take_slot(&mut self, id: NodeId, token: AttemptToken) {
        let node = self.nodes.get_mut(&id).unwrap();
        assert!(!node.is_lost, "{id} is lost");
        assert!(node.asks > 0, "{id} has not asked");
        node.asks -= 1;
        node.running.insert(token);
        assert!(node.running.len() <= node.slots as usize, "{id} has {} slots", node.slots);
    }

    fn connect(&mut self, id: NodeId, fan_in: u32) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.connections += fan_in;
        assert!((1..=32).contains(&node.connections), "{id} fetches by {} connections", node.connections);
    }

    fn start(
        &mut self,
        token: AttemptToken,
        id: NodeId,
        partition: PartitionId,
        work: &Work,
        scheduler: &Scheduler,
    ) {
        let needed = self.plan.stages()[partition.stage as usize].memory_bytes;
        let node = &self.nodes[&id];
        assert!(node.memory >= needed * u64::from(node.slots), "{id} has reserved {} bytes", node.memory);
        let live = self.live.entry(partition).or_default();
        live.push(token);
        let nodes: BTreeSet<NodeId> =
            live.iter().map(|live| self.attempts.get(live).map_or(id, |of| of.node)).collect();
        assert!(live.len() <= 2 && nodes.len() == live.len(), "{partition} has two attempts on two nodes");
        let mut attempt = KnownAttempt {
            partition,
            node: id,
            fan_in: 0,
            is_finished: false,
            is_over: false,
            read: BTreeMap::new(),
            copied: None,
        };
        match work {
            Work::Map { read_from } => {
                assert!(self.plan.replicas(partition).contains(read_from), "{read_from} has no {partition}");
                assert!(!self.nodes[read_from].is_lost, "{read_from} is lost");
                let has_own = self.plan.replicas(partition).contains(&id);
                assert!(!has_own || *read_from == id, "{id} reads its own replica");
                attempt.fan_in = u32::from(!self.plan.producers(partition.stage).is_empty());
            }
            Work::Merge { fan_in } => attempt.fan_in = *fan_in,
            Work::Copy { output } => {
                assert_eq!(output.partition, partition);
                self.check_output(output);
                attempt.copied = Some(output.token);
            }
        }
        if self.records_ranges && !matches!(work, Work::Copy { .. }) {
            self.check_exchange(partition.stage, scheduler);
        }
        let fan_in = attempt.fan_in;
        self.attempts.insert(token, attempt);
        if fan_in > 0 {
            self.connect(id, fan_in);
        }
    }

    /// Checks that each producer partition of a stage has one output on a known node.
    fn check_exchange(&self, stage: u32, scheduler: &Scheduler) {
        for &producer in self.plan.producers(stage) {
            let outputs: BTreeMap<PartitionId, Output> =
                scheduler.outputs_since(producer, 0).0.map(|output| (output.partition, output)).collect();
            assert_eq!(outputs.len(), self.plan.partitions(producer) as usize, "the exchange is complete");
            outputs.values().for_each(|output| self.check_output(output));
        }
    }

    fn check_output(&self, output: &Output) {
        let attempt = &self.attempts[&output.token];
        assert_eq!((attempt.partition, attempt.node), (output.partition, output.node));
        assert!(attempt.is_finished && output.bytes > 0 && output.checksum > 0);
    }

    /// Checks that the result has each partition once, from complete reads.
    fn finish(&self, result: &[Output]) {
        let last = self.plan.stages().len() as u32 - 1;
        assert_eq!(self.plan.stages()[last as usize].output, StageOutput::Result);
        let partitions: Vec<PartitionId> =
            (0..self.plan.partitions(last)).map(|partition| PartitionId { stage: last, partition }).collect();
        assert_eq!(result.iter().map(|output| output.partition).collect::<Vec<_>>(), partitions);
        for output in result {
            self.check_output(output);
            self.check_reads(output.token);
        }
    }

    /// Checks that an error names what the faults of the job explain.
    fn fail(&self, error: &Error) {
        // A node that was cut off and given up joins in vain.
        let is_lost = |node: &NodeId| self.has_cut || self.nodes[node].is_lost;
        let is_faulty = |node: &NodeId| self.has_cut || self.faulty.contains(node);
        match error {
            Error::InputLost { partitions, count, nodes } => {
                assert!(*count >= partitions.len() && !partitions.is_empty());
                for &partition in partitions {
                    let replicas = self.plan.replicas(partition);
                    assert!(replicas.iter().all(is_faulty), "{error}");
                }
                assert!(nodes.iter().all(is_lost), "{error}");
            }
            Error::NoNodes { nodes, .. } => {
                assert!(nodes.iter().all(|(node, _)| is_faulty(node)), "{error}");
            }
            Error::RetriesExhausted { failures, .. } => {
                assert!(failures.iter().any(|(node, _)| is_faulty(node)), "{error}");
            }
            Error::Deadline { unfinished, .. } => assert!(!unfinished.is_empty()),
            _ => panic!("no fault explains: {error}"),
        }
    }
}
