//! Drives the scheduler with a simulated driver, simulated nodes and a simulated clock.
//!
//! A node runs attempts, stores outputs, keeps leases and has faults. Messages between driver and node keep their
//! order, and wait while the node is stopped or cut off. A node whose lease runs out resets its connection, so that no
//! older message arrives. An attempt of a merge fetches from node after node, beginning after its own, and then merges.
//!
//! The record of `check.rs` compares each action with what the nodes did.

pub mod check;
pub mod settings;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap},
    rc::Rc,
    time::Duration,
};

use inshore_stages::{
    Action, AttemptToken, Counters, Error, Event, FailureKind, FetchFailure, NodeId, Options, Output,
    PartitionId, Plan, Scheduler, Work,
};

use self::{
    check::Record,
    settings::{Dice, FaultKind, Settings},
};

const WAY_MS: u64 = 2;
const TICK_MS: u64 = 1_000;
const SLOW: u64 = 100;

/// The outcome of a simulated job.
pub struct Outcome {
    pub result: Result<Vec<Output>, Error>,
    /// The time of the end, in milliseconds.
    pub ms: u64,
    pub counters: Counters,
    /// The faults that began before the end, each with its stage.
    pub faults: Vec<(FaultKind, u32)>,
}

/// The step of an attempt on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Maps,
    Copies,
    Fetches,
    /// Waits for slow ranges as long as the fetch of the others took.
    WaitsForSlow,
    Merges,
}

/// An attempt on a node.
struct Running {
    partition: PartitionId,
    step: Step,
    /// The number of the step, so that an end that was postponed is recognized.
    number: u64,
    begun: u64,
    ends: u64,
    /// The outputs to read, with the versions of this attempt.
    table: Table,
    /// The ranges that are not fetched yet. `None` before the first fetch.
    left: Option<Vec<PartitionId>>,
    told_slow: BTreeSet<AttemptToken>,
    waits: bool,
}

/// The outputs of a stage, by partition.
type Outputs = Rc<Vec<Option<Output>>>;

/// The outputs of each producer stage.
type Table = Rc<BTreeMap<u32, Vec<Option<Output>>>>;

#[derive(Default)]
struct SimulatedNode {
    is_dead: bool,
    /// The time until which the node is stopped or cut off.
    stopped_to: u64,
    cut_to: u64,
    is_cut_from_nodes: bool,
    is_full: bool,
    is_flaky: bool,
    is_leaving: bool,
    slow_from: Option<u64>,
    /// The time since which other nodes cannot read from this one.
    unreachable_from: Option<u64>,
    usual_percent: u64,
    /// The number of the connection to the driver.
    connection: u64,
    lease_to: u64,
    has_lease: bool,
    running: BTreeMap<AttemptToken, Running>,
    /// The outputs, each with the time at which it was deleted or damaged.
    stored: BTreeMap<AttemptToken, Option<u64>>,
    reserved: u64,
    /// The happenings that arrive, leave or end while the node is stopped or cut off.
    held: Vec<Happening>,
}

#[derive(Clone, Debug)]
enum Happening {
    ToDriver(NodeId, u64, Event),
    ToNode(NodeId, u64, Action),
    StepEnds(NodeId, AttemptToken, u64),
    LeaseEnds(NodeId),
    FromCluster(Event),
    Begins(usize),
    Returns(NodeId),
    Restarts(NodeId),
    Tick,
}

pub struct Simulation {
    settings: Settings,
    plan: Plan,
    scheduler: Scheduler,
    record: Record,
    nodes: BTreeMap<NodeId, SimulatedNode>,
    /// The connection of each node that the driver knows.
    connections: BTreeMap<NodeId, u64>,
    now: u64,
    number: u64,
    agenda: BinaryHeap<Reverse<(u64, u64)>>,
    what: BTreeMap<u64, Happening>,
    tables: BTreeMap<u32, (usize, Outputs)>,
    starts: BTreeMap<u32, u32>,
    begun: Vec<(FaultKind, u32)>,
    outcome: Option<Result<Vec<Output>, Error>>,
}

/// Runs a job and checks each step.
pub fn run(settings: &Settings) -> Outcome {
    Simulation::new(settings.clone()).run()
}

impl Simulation {
    pub fn new(settings: Settings) -> Simulation {
        let plan = settings.plan();
        let options = Options { deadline: Duration::from_millis(settings.deadline_ms), ..Options::default() };
        let ids: Vec<(NodeId, u32)> =
            (0..settings.nodes).map(|node| (NodeId(node), settings.slots)).collect();
        let mut dice = Dice::new(settings.seed ^ 0xD1CE);
        let node = |dice: &mut Dice| SimulatedNode {
            usual_percent: 100 + dice.below(settings.spread_percent + 1),
            ..SimulatedNode::default()
        };
        let nodes = ids.iter().map(|&(id, _)| (id, node(&mut dice))).collect();
        let (scheduler, actions) = Scheduler::start(plan.clone(), options, &ids);
        let mut simulation = Simulation {
            record: Record::new(plan.clone(), &ids, settings.records_ranges),
            settings,
            plan,
            scheduler,
            nodes,
            connections: ids.iter().map(|&(id, _)| (id, 0)).collect(),
            now: 0,
            number: 0,
            agenda: BinaryHeap::new(),
            what: BTreeMap::new(),
            tables: BTreeMap::new(),
            starts: BTreeMap::new(),
            begun: Vec::new(),
            outcome: None,
        };
        simulation.after(TICK_MS, Happening::Tick);
        simulation.act(actions);
        for (id, slots) in ids {
            (0..slots).for_each(|_| simulation.say(id, Event::Asked { node: id }));
        }
        simulation
    }

    fn run(mut self) -> Outcome {
        while self.outcome.is_none() {
            assert!(self.now <= self.settings.deadline_ms + 2 * TICK_MS, "the job passed its deadline");
            self.step();
        }
        let ms = self.now;
        // Outputs that remain on nodes after the end of the job are deleted when the last lease has ended.
        let longest = [self.now + 20_000].into_iter();
        let until = longest.chain(self.nodes.values().map(|node| node.stopped_to.max(node.cut_to) + 20_000));
        let until = until.max().unwrap_or_default();
        while self.agenda.peek().is_some_and(|Reverse((at, _))| *at <= until) {
            self.step();
        }
        let result = self.outcome.take().expect("the job has ended");
        let kept: BTreeSet<AttemptToken> = result.iter().flatten().map(|output| output.token).collect();
        for (id, node) in self.nodes.iter().filter(|(_, node)| !node.is_dead) {
            assert!(node.running.is_empty(), "{id} still runs attempts");
            assert_eq!(node.reserved, 0, "{id} still has reserved memory");
            let left = node.stored.iter().filter(|(_, gone)| gone.is_none()).map(|(token, _)| token);
            left.for_each(|token| assert!(kept.contains(token), "{id} still stores {token}"));
        }
        Outcome { result, ms, counters: self.scheduler.counters(), faults: self.begun }
    }

    fn after(&mut self, ms: u64, what: Happening) {
        self.number += 1;
        self.agenda.push(Reverse((self.now + ms, self.number)));
        self.what.insert(self.number, what);
    }

    fn step(&mut self) {
        let Reverse((at, number)) = self.agenda.pop().expect("ticks go on");
        self.now = at;
        match self.what.remove(&number).expect("each number is used once") {
            Happening::Tick => {
                self.after(TICK_MS, Happening::Tick);
                self.tell(Event::Tick);
            }
            Happening::FromCluster(event) => self.tell(event),
            Happening::ToDriver(id, connection, event) => {
                if self.holds(id, false, Happening::ToDriver(id, connection, event.clone())) {
                    return;
                }
                if matches!(event, Event::LeaseExpired { .. }) {
                    self.tell(event);
                    self.after(500, Happening::Restarts(id));
                } else if self.connections[&id] == connection {
                    self.tell(event);
                }
            }
            Happening::ToNode(id, connection, action) => {
                let is_held = self.holds(id, false, Happening::ToNode(id, connection, action.clone()));
                if !is_held && self.nodes[&id].connection == connection {
                    self.carry_out(id, action);
                }
            }
            Happening::StepEnds(id, token, number) => {
                if !self.holds(id, true, Happening::StepEnds(id, token, number)) {
                    self.step_ends(id, token, number);
                }
            }
            Happening::LeaseEnds(id) => {
                if !self.holds(id, true, Happening::LeaseEnds(id)) {
                    self.lease_ends(id);
                }
            }
            Happening::Begins(fault) => self.begin_fault(fault),
            Happening::Returns(id) => {
                let node = self.nodes.get_mut(&id).unwrap();
                if self.now >= node.stopped_to.max(node.cut_to) {
                    node.unreachable_from = node.is_cut_from_nodes.then_some(self.now);
                    let held = std::mem::take(&mut node.held);
                    held.into_iter().for_each(|what| self.after(0, what));
                }
            }
            Happening::Restarts(id) => self.restart(id),
        }
    }

    /// Keeps something for later if the node is stopped, or cut off and `is_local` is false. Drops it if the node is
    /// dead.
    fn holds(&mut self, id: NodeId, is_local: bool, what: Happening) -> bool {
        let node = self.nodes.get_mut(&id).unwrap();
        let is_held = self.now < node.stopped_to || !is_local && self.now < node.cut_to;
        // A message that a dead node sent before its death arrives.
        let is_dropped = node.is_dead && !matches!(what, Happening::ToDriver(..));
        if is_held && !node.is_dead {
            node.held.push(what);
            return true;
        }
        is_dropped
    }

    fn say(&mut self, id: NodeId, event: Event) {
        let connection = self.nodes[&id].connection;
        self.after(WAY_MS, Happening::ToDriver(id, connection, event));
    }

    fn tell(&mut self, event: Event) {
        self.record.event(&event);
        let actions = self.scheduler.on(Duration::from_millis(self.now), event);
        assert!(self.outcome.is_none() || actions.is_empty(), "no action follows the end: {actions:?}");
        self.act(actions);
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            assert!(self.outcome.is_none(), "no action follows the end: {action:?}");
            self.record.action(&action, &self.scheduler, self.now);
            let node = match &action {
                Action::Reserve { node, .. }
                | Action::Unreserve { node }
                | Action::Start { node, .. }
                | Action::Resume { node, .. }
                | Action::Cancel { node, .. }
                | Action::DeleteScratch { node, .. }
                | Action::RenewLease { node }
                | Action::Release { node, .. } => *node,
                Action::Finish { result } => {
                    self.outcome = Some(Ok(result.clone()));
                    continue;
                }
                Action::Extend { .. } => unreachable!("the plans of the simulator do not grow"),
                Action::Fail { error } => {
                    self.outcome = Some(Err(error.clone()));
                    continue;
                }
            };
            match action {
                Action::Start { token, partition, work: Work::Map { .. } | Work::Merge { .. }, .. } => {
                    self.pass_table(node, token, partition)
                }
                Action::Resume { token, .. } => self.pass_table(node, token, self.record.partition(token)),
                _ => {}
            }
            if let Action::Start { partition, .. } = action {
                self.count_start(partition.stage);
            }
            self.after(WAY_MS, Happening::ToNode(node, self.connections[&node], action));
        }
    }

    /// Begins the faults that wait for this start.
    fn count_start(&mut self, stage: u32) {
        let starts = self.starts.entry(stage).or_default();
        *starts += 1;
        let starts = *starts;
        for fault in 0..self.settings.faults.len() {
            let of = &self.settings.faults[fault];
            if of.stage == stage && of.starts == starts {
                let delay = self.settings.map_ms.min(self.settings.merge_ms) / 2;
                self.after(delay, Happening::Begins(fault));
            }
        }
    }

    /// Brings the outputs of producers up to date, and keeps them for an attempt.
    fn pass_table(&mut self, node: NodeId, token: AttemptToken, partition: PartitionId) {
        let producers = self.plan.producers(partition.stage).to_vec();
        for &producer in &producers {
            let count = self.plan.partitions(producer) as usize;
            let (version, table) =
                self.tables.entry(producer).or_insert_with(|| (0, Rc::new(vec![None; count])));
            let (changed, latest) = self.scheduler.outputs_since(producer, *version);
            let changed: Vec<Output> = changed.collect();
            if !changed.is_empty() {
                let own = Rc::make_mut(table);
                changed
                    .into_iter()
                    .for_each(|output| own[output.partition.partition as usize] = Some(output));
            }
            *version = latest;
        }
        self.record.tables(
            node,
            token,
            producers.iter().map(|of| (*of, self.tables[of].1.clone())).collect(),
        );
    }

    /// Carries out an action on a node.
    fn carry_out(&mut self, id: NodeId, action: Action) {
        match action {
            Action::Reserve { memory_bytes, .. } => {
                self.nodes.get_mut(&id).unwrap().reserved = memory_bytes;
                self.say(id, Event::Reserved { node: id, memory_bytes });
            }
            Action::Unreserve { .. } => {
                let node = self.nodes.get_mut(&id).unwrap();
                assert!(node.running.values().all(|running| running.waits), "memory in use was returned");
                node.reserved = 0;
            }
            Action::RenewLease { .. } => {
                let node = self.nodes.get_mut(&id).unwrap();
                (node.lease_to, node.has_lease) = (self.now + 15_000, true);
                self.after(15_000, Happening::LeaseEnds(id));
                self.say(id, Event::LeaseRenewed { node: id });
            }
            Action::Start { token, partition, work, .. } => self.begin(id, token, partition, work),
            Action::Resume { token, .. } => {
                let table = self.record.table(token);
                let running = self.nodes.get_mut(&id).unwrap().running.get_mut(&token);
                let running = running.expect("a waiting attempt is resumed");
                assert!(running.waits, "{token} is resumed and does not wait");
                (running.waits, running.table) = (false, table);
                self.next_step(id, token, Step::Fetches);
            }
            Action::Cancel { token, .. } => {
                let node = self.nodes.get_mut(&id).unwrap();
                let ended = node.running.remove(&token);
                self.delete(id, token);
                if ended.is_some_and(|running| !running.waits) {
                    self.say(id, Event::Asked { node: id });
                }
            }
            Action::DeleteScratch { token, .. } => self.delete(id, token),
            Action::Release { kept, .. } => {
                let node = self.nodes.get_mut(&id).unwrap();
                node.running.clear();
                (node.reserved, node.has_lease) = (0, false);
                let stored: Vec<AttemptToken> = node.stored.keys().copied().collect();
                stored
                    .into_iter()
                    .filter(|token| !kept.contains(token))
                    .for_each(|token| self.delete(id, token));
                // A node that was given up by mistake joins again.
                if self.outcome.is_none() && !self.nodes[&id].is_leaving {
                    self.after(500, Happening::Restarts(id));
                }
            }
            _ => panic!("{action:?} is not for a node"),
        }
    }

    fn delete(&mut self, id: NodeId, token: AttemptToken) {
        let now = self.now;
        if let Some(gone) = self.nodes.get_mut(&id).unwrap().stored.get_mut(&token) {
            gone.get_or_insert(now);
        }
    }

    fn begin(&mut self, id: NodeId, token: AttemptToken, partition: PartitionId, work: Work) {
        let (step, table) = match work {
            Work::Map { .. } if self.plan.producers(partition.stage).is_empty() => {
                (Step::Maps, Table::default())
            }
            Work::Map { .. } | Work::Merge { .. } => (Step::Fetches, self.record.table(token)),
            Work::Copy { output } => {
                let mut of = vec![None; partition.partition as usize + 1];
                of[partition.partition as usize] = Some(output);
                (Step::Copies, Rc::new(BTreeMap::from([(partition.stage, of)])))
            }
        };
        let running = Running {
            partition,
            step,
            number: 0,
            begun: self.now,
            ends: self.now,
            table,
            left: None,
            told_slow: BTreeSet::new(),
            waits: false,
        };
        self.nodes.get_mut(&id).unwrap().running.insert(token, running);
        self.next_step(id, token, step);
    }

    fn next_step(&mut self, id: NodeId, token: AttemptToken, step: Step) {
        let Settings { map_ms, fetch_ms, merge_ms, .. } = self.settings;
        let node = self.nodes.get_mut(&id).unwrap();
        let factor = if node.slow_from.is_some() { SLOW } else { 1 };
        let running = node.running.get_mut(&token).unwrap();
        let usual = match step {
            Step::Maps => map_ms,
            Step::Copies => map_ms / 2,
            Step::Fetches | Step::WaitsForSlow => fetch_ms,
            Step::Merges => merge_ms,
        };
        let ms = (usual * node.usual_percent / 100 * factor).max(1);
        self.number += 1;
        (running.step, running.number) = (step, self.number);
        (running.begun, running.ends) = (self.now, self.now + ms);
        let number = self.number;
        self.after(ms, Happening::StepEnds(id, token, number));
    }

    fn step_ends(&mut self, id: NodeId, token: AttemptToken, number: u64) {
        let node = &self.nodes[&id];
        let Some(running) = node.running.get(&token).filter(|running| running.number == number) else {
            return;
        };
        match running.step {
            Step::Maps | Step::Merges => self.write(id, token),
            Step::Copies => {
                let output = running.table.values().flatten().flatten().next().copied().unwrap();
                match self.cause(id, &output, self.now) {
                    None => self.write(id, token),
                    Some(cause) => self.miss(id, token, vec![output], cause),
                }
            }
            Step::Fetches => self.fetched(id, token, false),
            Step::WaitsForSlow => self.fetched(id, token, true),
        }
    }

    /// Returns the reason why a range of an output cannot be read at a time in the past.
    fn cause(&self, reader: NodeId, output: &Output, at: u64) -> Option<FetchFailure> {
        let server = &self.nodes[&output.node];
        let own = &self.nodes[&reader];
        let is_gone = match server.stored.get(&output.token) {
            Some(gone) => gone.is_some_and(|gone| gone <= at),
            None => true,
        };
        let unreachable = |node: &SimulatedNode| node.unreachable_from.is_some_and(|from| from <= at);
        let is_remote = reader != output.node;
        if is_remote && (unreachable(server) || unreachable(own)) {
            Some(FetchFailure::Unreachable)
        } else if is_gone {
            Some(FetchFailure::Gone)
        } else if is_remote && own.slow_from.is_none() && server.slow_from.is_some_and(|from| from <= at) {
            Some(FetchFailure::Slow)
        } else {
            None
        }
    }

    /// Ends the fetches of an attempt: it merges, waits for slow ranges, or reports missing ones.
    fn fetched(&mut self, id: NodeId, token: AttemptToken, has_waited: bool) {
        if !self.settings.records_ranges {
            return self.next_step(id, token, Step::Merges);
        }
        let running = &self.nodes[&id].running[&token];
        let all = || {
            running.table.iter().flat_map(|(&stage, outputs)| {
                (0..outputs.len() as u32).map(move |partition| PartitionId { stage, partition })
            })
        };
        let wanted: Vec<PartitionId> = running.left.clone().unwrap_or_else(|| all().collect());
        let (begun, ends, nodes) = (running.begun, running.ends, u64::from(self.settings.nodes));
        let mut read = Vec::new();
        let mut failed: BTreeMap<u8, Vec<Output>> = BTreeMap::new();
        let mut slow = Vec::new();
        let mut left = Vec::new();
        for range in wanted {
            let output =
                running.table[&range.stage][range.partition as usize].expect("the exchange is complete");
            let turn = (u64::from(output.node.0) + nodes - u64::from(id.0)) % nodes + 1;
            let at = begun + (ends - begun) * turn / nodes;
            match self.cause(id, &output, at) {
                None => read.push((range, output)),
                // After its report, an attempt reads what is slow.
                Some(FetchFailure::Slow) if running.told_slow.contains(&output.token) => {
                    slow.push((range, output))
                }
                Some(cause) => {
                    left.push(range);
                    let order = [FetchFailure::Gone, FetchFailure::Unreachable, FetchFailure::Slow];
                    let place = order.iter().position(|&of| of == cause).unwrap();
                    failed.entry(place as u8).or_default().push(output);
                }
            }
        }
        left.extend(slow.iter().map(|&(range, _)| range));
        let has_slow_alone = failed.is_empty() && !slow.is_empty();
        let reads = |record: &mut Record, read: &[(PartitionId, Output)]| {
            read.iter().for_each(|(range, output)| record.read(token, *range, output.token));
        };
        reads(&mut self.record, &read);
        let running = self.nodes.get_mut(&id).unwrap().running.get_mut(&token).unwrap();
        running.left = Some(left);
        if has_slow_alone {
            // The slow node answers in the end.
            reads(&mut self.record, &slow);
            running.left = Some(Vec::new());
            self.next_step(id, token, Step::Merges);
            let late = self.settings.fetch_ms * SLOW;
            return self.postpone(id, token, late);
        }
        match failed.into_iter().next() {
            None => self.next_step(id, token, Step::Merges),
            Some((2, _)) if !has_waited => self.next_step(id, token, Step::WaitsForSlow),
            Some((place, outputs)) => {
                if place == 2 {
                    running.told_slow.extend(outputs.iter().map(|output| output.token));
                }
                let cause =
                    [FetchFailure::Gone, FetchFailure::Unreachable, FetchFailure::Slow][usize::from(place)];
                self.miss(id, token, outputs, cause);
            }
        }
    }

    /// Postpones the end of a step.
    fn postpone(&mut self, id: NodeId, token: AttemptToken, ms: u64) {
        self.number += 1;
        let number = self.number;
        let running = self.nodes.get_mut(&id).unwrap().running.get_mut(&token).unwrap();
        (running.number, running.ends) = (number, running.ends + ms);
        let rest = running.ends - self.now;
        self.after(rest, Happening::StepEnds(id, token, number));
    }

    fn miss(&mut self, id: NodeId, token: AttemptToken, outputs: Vec<Output>, cause: FetchFailure) {
        let node = self.nodes.get_mut(&id).unwrap();
        let running = node.running.get_mut(&token).unwrap();
        match running.step {
            Step::Copies => {
                node.running.remove(&token);
            }
            _ => running.waits = true,
        }
        let outputs = outputs.into_iter().map(|output| output.token).collect();
        self.say(id, Event::FetchFailed { token, outputs, cause });
        self.say(id, Event::Asked { node: id });
    }

    /// Writes the output of an attempt, unless the node fails it.
    fn write(&mut self, id: NodeId, token: AttemptToken) {
        let node = self.nodes.get_mut(&id).unwrap();
        let running = node.running.remove(&token).unwrap();
        let kind = match (node.is_full, node.is_flaky) {
            (true, _) => Some(FailureKind::DiskFull),
            (_, true) => Some(FailureKind::Retryable),
            _ => None,
        };
        match kind {
            Some(kind) => self.say(id, Event::Failed { token, kind, why: "simulated".to_string() }),
            None => {
                node.stored.insert(token, None);
                self.record.wrote(id, token, running.partition);
                self.say(id, Event::Finished { token, bytes: 1_000, checksum: 7 });
            }
        }
        self.say(id, Event::Asked { node: id });
    }

    fn lease_ends(&mut self, id: NodeId) {
        let node = &self.nodes[&id];
        if !node.has_lease || self.now < node.lease_to {
            return;
        }
        self.empty(id);
        self.say(id, Event::LeaseExpired { node: id });
    }

    /// Ends what a node runs and stores, and its connection.
    fn empty(&mut self, id: NodeId) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.running.clear();
        node.stored.values_mut().for_each(|gone| {
            gone.get_or_insert(self.now);
        });
        (node.reserved, node.has_lease) = (0, false);
        node.connection += 1;
    }

    /// A node joins again, empty.
    fn restart(&mut self, id: NodeId) {
        self.empty(id);
        let node = self.nodes.get_mut(&id).unwrap();
        node.is_dead = false;
        node.unreachable_from = node.is_cut_from_nodes.then_some(self.now);
        self.connections.insert(id, node.connection);
        if self.outcome.is_none() {
            self.tell(Event::Joined { node: id, slots: self.settings.slots });
            (0..self.settings.slots).for_each(|_| self.say(id, Event::Asked { node: id }));
        }
    }

    fn begin_fault(&mut self, fault: usize) {
        if self.outcome.is_some() {
            return;
        }
        let settings::Fault { node: id, kind, stage, .. } = self.settings.faults[fault].clone();
        self.begun.push((kind, stage));
        self.record.fault(id, kind);
        let now = self.now;
        let node = self.nodes.get_mut(&id).unwrap();
        match kind {
            FaultKind::Dies | FaultKind::DiesSilently | FaultKind::Restarts => {
                node.is_dead = true;
                node.unreachable_from = Some(now);
                self.empty(id);
                match kind {
                    FaultKind::Dies => self.after(1_000, Happening::FromCluster(Event::Lost { node: id })),
                    FaultKind::Restarts => self.after(5_000, Happening::Restarts(id)),
                    _ => {}
                }
            }
            FaultKind::Stops(ms) => {
                (node.stopped_to, node.unreachable_from) = (now + ms, Some(now));
                self.after(ms, Happening::Returns(id));
            }
            FaultKind::CutOff(ms) => {
                (node.cut_to, node.unreachable_from) = (now + ms, Some(now));
                self.after(ms, Happening::Returns(id));
            }
            FaultKind::CutOffFromNodes => {
                (node.is_cut_from_nodes, node.unreachable_from) = (true, Some(now));
            }
            FaultKind::ReportedLost => self.tell(Event::Lost { node: id }),
            FaultKind::DiskFull => node.is_full = true,
            FaultKind::Flaky => node.is_flaky = true,
            FaultKind::Slow => {
                node.slow_from = Some(now);
                let late: Vec<(AttemptToken, u64)> = node
                    .running
                    .iter()
                    .filter(|(_, running)| !running.waits)
                    .map(|(&token, running)| (token, running.ends.saturating_sub(now) * (SLOW - 1)))
                    .collect();
                late.into_iter().for_each(|(token, ms)| self.postpone(id, token, ms));
            }
            FaultKind::Drains => {
                node.is_leaving = true;
                self.tell(Event::Draining { node: id })
            }
            FaultKind::Damages => node.stored.values_mut().for_each(|gone| {
                gone.get_or_insert(now);
            }),
        }
    }
}
