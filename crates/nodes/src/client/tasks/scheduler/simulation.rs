//! Drives the scheduler with simulated nodes, a simulated client and a simulated clock.
//!
//! Nodes have different speeds and faults: nodes stall, fall silent for ever or for a while, die, refuse
//! tasks, send wrong messages, or send messages twice or late. The simulation keeps an independent record of
//! the owner of each shard, and compares this record with the scheduler.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, BinaryHeap, VecDeque},
    time::Duration,
};

use super::{
    Action, AnswerOrder, Event, Puller, Scheduler, ShardState,
    dispatch::{CREDIT, SMALL_BYTES},
};

/// A pseudo-random number generator with a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    None,
    /// No more messages arrive, and the connection stays open.
    Silent,
    /// No messages arrive for some time, and then all of them.
    Partition,
    Dies,
    /// The node refuses every task.
    Refuses,
    /// The node answers a shard that it was not handed.
    Foreign,
    /// The node reports more finished shards than it was handed.
    Greedy,
    /// The node ends the task before all shards are answered.
    EndsEarly,
    /// The node sends every message twice.
    Twice,
    /// The node cannot read some shards.
    Unreadable,
}

const FAULTS: [Fault; 9] = [
    Fault::Silent,
    Fault::Partition,
    Fault::Dies,
    Fault::Refuses,
    Fault::Foreign,
    Fault::Greedy,
    Fault::EndsEarly,
    Fault::Twice,
    Fault::Unreadable,
];

struct Node {
    bytes_per_ms: u64,
    fault: Fault,
    /// The time when the fault begins. `to` is the end of a partition.
    from: u64,
    to: u64,
}

/// The simulated state of a task.
#[derive(Default)]
struct SimulatedTask {
    /// The shards handed out and not begun.
    ahead: VecDeque<usize>,
    read: Vec<usize>,
    is_busy: bool,
    ends: bool,
}

/// An event of the simulation at a point in time.
#[derive(Clone, Debug)]
enum SimulatedEvent {
    /// A task gets a slot on its node and begins to run.
    Runs(usize),
    /// A task has read its current shard.
    Read(usize, usize),
    Hears(Event),
    /// The client polls the answers that it waits for.
    Looks,
    /// A thread of the client has finished its shard.
    Done(usize, usize),
    ClientPulls(usize),
}

struct Simulation {
    dice: Dice,
    scheduler: Scheduler,
    order: AnswerOrder,
    clients: u64,
    skips: bool,
    bytes: Vec<u64>,
    holders: Vec<Vec<usize>>,
    nodes: Vec<Node>,
    now: u64,
    sequence: u64,
    happens: BinaryHeap<Reverse<(u64, u64)>>,
    what: BTreeMap<(u64, u64), SimulatedEvent>,
    works: BTreeMap<usize, SimulatedTask>,
    /// The answers that arrived, for each attempt in order.
    arrived: BTreeMap<usize, VecDeque<Event>>,
    /// The puller of each shard, by the record of the simulation.
    owner: Vec<Option<usize>>,
    handed: BTreeMap<usize, (usize, usize)>,
    cancelled: BTreeSet<usize>,
    answered: Vec<u32>,
    missing: BTreeSet<usize>,
    /// The shards whose remaining answers are not needed.
    skipped: BTreeSet<usize>,
    trace: Vec<String>,
}

const DEADLINE_MS: u64 = 3_000_000;
const STALL_MS: u64 = 5_000;

impl Simulation {
    fn new(seed: u64) -> Simulation {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let count = 1 + dice.below(5) as usize;
        let shards = 1 + dice.below(30) as usize;
        let small = dice.below(4) == 0;
        let bytes: Vec<u64> = (0..shards)
            .map(|_| if small { 1 + dice.below(16 << 10) } else { (1 + dice.below(64)) << 20 })
            .collect();
        let copies = 1 + dice.below(count.min(3) as u64) as usize;
        let holders: Vec<Vec<usize>> =
            (0..shards).map(|shard| (0..copies).map(|copy| (shard + copy) % count).collect()).collect();
        let order = match dice.below(2) {
            0 => AnswerOrder::Window((1 + dice.below(512)) << 20),
            _ => AnswerOrder::Combined,
        };
        let faulty = dice.below(count as u64 + 1) as usize;
        let nodes = (0..count).map(|node| {
            let fault =
                if node < faulty { FAULTS[dice.below(FAULTS.len() as u64) as usize] } else { Fault::None };
            let from = dice.below(4000);
            Node { bytes_per_ms: 10_000 + dice.below(300_000), fault, from, to: from + dice.below(20_000) }
        });
        let nodes = nodes.collect();
        let of = bytes
            .iter()
            .copied()
            .zip(holders.iter().cloned())
            .map(|(bytes, holders)| (bytes, holders, Vec::new()));
        let stall = Duration::from_millis(STALL_MS);
        let scheduler = Scheduler::new(order, stall, count, BTreeSet::new(), of);
        Simulation {
            clients: dice.below(3),
            skips: dice.below(3) == 0,
            dice,
            scheduler,
            order,
            owner: vec![None; shards],
            answered: vec![0; shards],
            bytes,
            holders,
            nodes,
            now: 0,
            sequence: 0,
            happens: BinaryHeap::new(),
            what: BTreeMap::new(),
            works: BTreeMap::new(),
            arrived: BTreeMap::new(),
            handed: BTreeMap::new(),
            cancelled: BTreeSet::new(),
            missing: BTreeSet::new(),
            skipped: BTreeSet::new(),
            trace: Vec::new(),
        }
    }

    fn after(&mut self, ms: u64, what: SimulatedEvent) {
        let place = (self.now + ms, self.sequence);
        self.sequence += 1;
        self.happens.push(Reverse(place));
        self.what.insert(place, what);
    }

    fn now(&self) -> Duration {
        Duration::from_millis(self.now)
    }

    fn node_of(&self, attempt: usize) -> Option<&Node> {
        self.scheduler.puller(attempt).node().map(|node| &self.nodes[node])
    }

    fn fault_of(&self, attempt: usize) -> Fault {
        let fault = self.node_of(attempt).filter(|node| self.now >= node.from).map(|node| node.fault);
        fault.unwrap_or(Fault::None)
    }

    /// Sends a message of a node to the client. The fault of the node may delay, repeat or suppress the
    /// message.
    fn say(&mut self, attempt: usize, event: Event) {
        let way = 1 + self.dice.below(3);
        match self.fault_of(attempt) {
            Fault::Silent => {}
            Fault::Partition => {
                let to = self.node_of(attempt).expect("it is a node's").to;
                self.after(to.saturating_sub(self.now).max(way), SimulatedEvent::Hears(event));
            }
            Fault::Twice => {
                self.after(3, SimulatedEvent::Hears(event.clone()));
                self.after(3, SimulatedEvent::Hears(event));
            }
            // Messages arrive in the order in which they were sent.
            _ => self.after(3, SimulatedEvent::Hears(event)),
        }
    }

    fn tell(&mut self, event: Event) {
        let text = format!("{} {event:?}", self.now);
        if let Event::Unreadable { attempt, shard, .. } = event
            && self.owner[shard] == Some(attempt)
        {
            self.owner[shard] = None;
        }
        let before: Vec<ShardState> =
            (0..self.bytes.len()).map(|shard| self.scheduler.state(shard)).collect();
        let actions = self.scheduler.on(self.now(), event);
        self.trace.push(format!("{text}: {actions:?}"));
        self.account(&before);
        self.act(actions);
    }

    /// Asserts that a shard is answered once, by the puller that had it.
    fn account(&mut self, before: &[ShardState]) {
        for (shard, &before) in before.iter().enumerate() {
            let now = self.scheduler.state(shard);
            if now == ShardState::Answered && before != ShardState::Answered {
                self.answered[shard] += 1;
                let is_skipped = self.skipped.contains(&shard);
                assert!(self.owner[shard].is_some() || is_skipped, "shard {shard} was answered by nobody");
                self.owner[shard] = None;
            }
        }
    }

    fn act(&mut self, actions: Vec<Action>) {
        for action in actions {
            match action {
                Action::Begin { attempt, node } => {
                    assert_eq!(self.scheduler.puller(attempt), Puller::Node(node));
                    self.works.insert(attempt, SimulatedTask::default());
                    let wait = 1 + self.dice.below(200);
                    self.after(wait, SimulatedEvent::Runs(attempt));
                }
                Action::HandOut { attempt, shard } => self.hand_out(attempt, shard),
                Action::End { attempt } => {
                    let work = self.works.get_mut(&attempt).expect("it was begun");
                    work.ends = true;
                    self.go_on(attempt);
                }
                Action::Cancel { attempt } => {
                    self.cancelled.insert(attempt);
                    self.arrived.remove(&attempt);
                    for owner in &mut self.owner {
                        *owner = owner.filter(|&owner| owner != attempt);
                    }
                }
                Action::Missing { shard } => {
                    assert!(
                        !self.scheduler.why(shard).is_empty(),
                        "shard {shard} is missing without a reason"
                    );
                    self.owner[shard] = None;
                    assert!(self.missing.insert(shard), "shard {shard} is missing twice");
                }
            }
        }
    }

    fn hand_out(&mut self, attempt: usize, shard: usize) {
        assert!(!self.cancelled.contains(&attempt), "attempt {attempt} is over");
        assert_eq!(self.owner[shard], None, "shard {shard} is out with one puller at a time");
        self.owner[shard] = Some(attempt);
        if let Puller::Node(node) = self.scheduler.puller(attempt) {
            assert!(self.holders[shard].contains(&node), "node {node} has no shard {shard}");
        }
        if let AnswerOrder::Window(window) = self.order {
            let first = (0..shard).find(|&shard| self.is_open(shard));
            let between: u64 = first.map_or(0, |first| self.bytes[first..shard].iter().sum());
            assert!(between < window, "shard {shard} is {between} bytes behind the first one");
        }
        let handed = self.handed.entry(attempt).or_default();
        handed.0 += 1;
        let held = handed.0 - handed.1;
        let work = self.works.entry(attempt).or_default();
        let bytes: u64 = work.ahead.iter().map(|&shard| self.bytes[shard]).sum::<u64>() + self.bytes[shard];
        assert!(held <= CREDIT || bytes <= SMALL_BYTES, "attempt {attempt} holds {held} shards of {bytes}");
        work.ahead.push_back(shard);
        self.go_on(attempt);
    }

    /// Begins the next shard of a task, or ends the task.
    fn go_on(&mut self, attempt: usize) {
        let (node, fault) = (self.scheduler.puller(attempt).node(), self.fault_of(attempt));
        let work = self.works.get_mut(&attempt).expect("it was begun");
        if work.is_busy {
            return;
        }
        if fault == Fault::EndsEarly && !work.read.is_empty() {
            work.is_busy = true;
            let event = Event::Completed { attempt, shards: vec![work.read[0]] };
            return self.say(attempt, event);
        }
        match work.ahead.pop_front() {
            Some(shard) => {
                work.is_busy = true;
                let rate = node.map_or(100_000, |node| self.nodes[node].bytes_per_ms);
                let ms = 1 + self.bytes[shard] / rate;
                self.after(ms, SimulatedEvent::Read(attempt, shard));
            }
            None if work.ends => {
                work.is_busy = true;
                let shards = work.read.clone();
                self.say(attempt, Event::Completed { attempt, shards });
            }
            None => {}
        }
    }

    fn read(&mut self, attempt: usize, shard: usize) {
        let fault = self.fault_of(attempt);
        let shards = self.bytes.len() as u64;
        let other = self.dice.below(shards) as usize;
        let work = self.works.get_mut(&attempt).expect("it was begun");
        work.is_busy = false;
        work.read.push(shard);
        let finished = work.read.len();
        if let AnswerOrder::Window(_) = self.order {
            let event = match fault {
                Fault::Foreign => Event::Answered { attempt, shard: other },
                Fault::Unreadable if shard.is_multiple_of(2) => {
                    Event::Unreadable { attempt, shard, why: "it is damaged".to_string() }
                }
                _ => Event::Answered { attempt, shard },
            };
            self.say(attempt, event);
        }
        let finished = if fault == Fault::Greedy { finished + 100 } else { finished };
        self.say(attempt, Event::Pulled { attempt, finished });
        self.go_on(attempt);
    }

    /// Delivers a message to the client. Answers wait for their turn; all other messages go to the scheduler at
    /// once.
    fn hears(&mut self, event: Event) {
        let attempt = match &event {
            Event::Answered { attempt, .. }
            | Event::Unreadable { attempt, .. }
            | Event::Completed { attempt, .. } => *attempt,
            Event::Pulled { attempt, finished } => {
                let handed = self.handed.entry(*attempt).or_default();
                handed.1 = (*finished).min(handed.0).max(handed.1);
                return self.tell(event);
            }
            _ => return self.tell(event),
        };
        if self.cancelled.contains(&attempt) {
            // A late answer: the attempt is already over for the scheduler.
            assert!(self.scheduler.on(self.now(), event).is_empty());
            return;
        }
        self.arrived.entry(attempt).or_default().push_back(event);
        self.take();
    }

    /// Takes the answers of the first open shard, or any complete answer.
    fn take(&mut self) {
        match self.order {
            AnswerOrder::Window(_) => {
                while let Some(head) = self.first_open() {
                    if self.skips && self.dice.below(10) == 0 {
                        self.skipped.insert(head);
                        self.tell(Event::Skipped { shard: head });
                        continue;
                    }
                    let ShardState::Out(attempt) = self.scheduler.state(head) else { return };
                    let Some(event) = self.arrived.get_mut(&attempt).and_then(VecDeque::pop_front) else {
                        return;
                    };
                    self.tell(event);
                }
            }
            AnswerOrder::Combined => {
                while let Some((_, event)) = self.arrived.pop_first() {
                    event.into_iter().for_each(|event| self.tell(event));
                }
            }
        }
    }

    fn is_open(&self, shard: usize) -> bool {
        self.answered[shard] == 0 && !self.missing.contains(&shard) && !self.skipped.contains(&shard)
    }

    fn first_open(&self) -> Option<usize> {
        (0..self.bytes.len()).find(|&shard| self.is_open(shard))
    }

    fn step(&mut self, what: SimulatedEvent) {
        match what {
            SimulatedEvent::Runs(attempt) if self.fault_of(attempt) == Fault::Refuses => {
                let why = "it takes no task".to_string();
                self.tell(Event::Closed { attempt, why, is_gone: true });
            }
            SimulatedEvent::Runs(attempt) => self.say(attempt, Event::Pulled { attempt, finished: 0 }),
            SimulatedEvent::Read(attempt, _) if self.cancelled.contains(&attempt) => {
                let late = Event::Pulled { attempt, finished: 1 };
                self.say(attempt, late);
            }
            SimulatedEvent::Read(attempt, _) if self.fault_of(attempt) == Fault::Dies => {
                let why = "it died".to_string();
                self.tell(Event::Failed { attempt, why, is_gone: true });
            }
            SimulatedEvent::Read(attempt, shard) => self.read(attempt, shard),
            SimulatedEvent::Hears(event) => self.hears(event),
            SimulatedEvent::Looks => {
                let waited = match self.order {
                    AnswerOrder::Window(_) => self.first_open().into_iter().collect::<Vec<_>>(),
                    AnswerOrder::Combined => (0..self.bytes.len()).collect(),
                };
                for shard in waited {
                    match self.scheduler.state(shard) {
                        ShardState::Out(attempt) => self.tell(Event::Waited { attempt }),
                        ShardState::Queued => self.tell(Event::Starved { shard }),
                        _ => {}
                    }
                }
                self.take();
                self.after(500, SimulatedEvent::Looks);
            }
            SimulatedEvent::ClientPulls(attempt) => {
                if self.cancelled.contains(&attempt) || self.works[&attempt].is_busy {
                    return;
                }
                let (pulled, actions) = self.scheduler.pull(self.now(), attempt);
                self.trace.push(format!("{} client {attempt}: {pulled:?} {actions:?}", self.now));
                if let Some(shard) = pulled {
                    assert_eq!(self.owner[shard], None, "shard {shard} is out with one puller at a time");
                    self.owner[shard] = Some(attempt);
                    let ms = 1 + self.bytes[shard] / 200_000;
                    self.after(ms, SimulatedEvent::Done(attempt, shard));
                }
                self.act(actions);
                let shards = self.works[&attempt].read.clone();
                match pulled {
                    Some(_) => {}
                    None if self.order == AnswerOrder::Combined && !shards.is_empty() => {
                        self.tell(Event::Completed { attempt, shards });
                    }
                    None => self.after(300, SimulatedEvent::ClientPulls(attempt)),
                }
            }
            SimulatedEvent::Done(attempt, _) if self.cancelled.contains(&attempt) => {}
            SimulatedEvent::Done(attempt, shard) => {
                match self.order {
                    AnswerOrder::Window(_) => {
                        self.arrived
                            .entry(attempt)
                            .or_default()
                            .push_back(Event::Answered { attempt, shard });
                        self.take();
                    }
                    AnswerOrder::Combined => {
                        let work = self.works.get_mut(&attempt).expect("it was begun");
                        work.read.push(shard);
                        // The thread gives its answer at random times, as a thread without free memory would.
                        if self.dice.below(3) == 0 {
                            let shards = self.works[&attempt].read.clone();
                            self.tell(Event::Completed { attempt, shards });
                            return;
                        }
                    }
                }
                self.after(1, SimulatedEvent::ClientPulls(attempt));
            }
        }
    }

    /// Runs the simulation to the end. Returns true if the job completed, and the trace of events.
    fn run(mut self) -> (bool, Vec<String>) {
        let actions = self.scheduler.start(self.now());
        self.act(actions);
        for _ in 0..self.clients {
            let attempt = self.scheduler.begin_client(self.now());
            self.works.insert(attempt, SimulatedTask::default());
            let after = self.dice.below(3000);
            self.after(after, SimulatedEvent::ClientPulls(attempt));
        }
        self.after(500, SimulatedEvent::Looks);
        while let Some(Reverse(place)) = self.happens.pop() {
            let what = self.what.remove(&place).expect("it was put there");
            self.now = place.0;
            if self.now > DEADLINE_MS {
                break;
            }
            self.step(what);
            if self.first_open().is_none() {
                break;
            }
        }
        let open: Vec<usize> = (0..self.bytes.len()).filter(|&shard| self.is_open(shard)).collect();
        // A job may only remain open if a silent node is the only holder of the awaited shards.
        let waited = match self.order {
            AnswerOrder::Window(_) => &open[..open.len().min(1)],
            AnswerOrder::Combined => &open[..],
        };
        for &shard in waited {
            let is_silent = match self.scheduler.state(shard) {
                ShardState::Out(attempt) => {
                    self.node_of(attempt).is_some_and(|node| node.fault == Fault::Silent)
                }
                _ => {
                    let takers = self.scheduler.takers(shard);
                    takers.iter().all(|&node| self.nodes[node].fault == Fault::Silent)
                }
            };
            let is_news =
                |line: &&String| !["Waited", "Starved", "None []"].iter().any(|old| line.contains(old));
            let trace: Vec<&str> = self.trace.iter().filter(is_news).map(String::as_str).collect();
            let last = trace[trace.len().saturating_sub(20)..].join("\n");
            assert!(is_silent, "shard {shard} was not answered: {:#?}\n{last}", self.scheduler);
        }
        assert!(self.answered.iter().all(|&answered| answered <= 1));
        assert!(self.missing.iter().all(|&shard| self.answered[shard] == 0));
        (open.is_empty() && self.missing.is_empty(), self.trace)
    }
}

#[test]
fn every_shard_is_answered_once_or_declared_missing_whatever_nodes_do() {
    let (mut good, mut all) = (0, 0);
    for seed in 1..=10_000 {
        let run = || std::panic::catch_unwind(|| Simulation::new(seed).run());
        let (is_good, trace) = run().unwrap_or_else(|_| panic!("seed {seed}"));
        all += 1;
        good += u32::from(is_good);
        if seed % 10 == 0 {
            assert!(trace == Simulation::new(seed).run().1, "seed {seed} has two traces");
        }
    }
    assert!(good > all / 3 && good < all, "{good} of {all} jobs came to a good end");
}

/// Measures the tail due to read-ahead: if a slow node holds two of the last shards, the others wait for these
/// two shards and no more.
#[test]
fn the_tail_of_a_slow_node_is_its_credit() {
    let mut world = Simulation::new(1);
    let (count, shards) = (2, 40);
    world.nodes = (0..count)
        .map(|node| Node { bytes_per_ms: [1_000, 100_000][node], fault: Fault::None, from: 0, to: 0 })
        .collect();
    world.order = AnswerOrder::Combined;
    world.bytes = vec![64 << 20; shards];
    world.holders = vec![vec![0, 1]; shards];
    let of = world
        .bytes
        .iter()
        .copied()
        .zip(world.holders.clone())
        .map(|(bytes, holders)| (bytes, holders, Vec::new()));
    let stall = Duration::from_millis(DEADLINE_MS);
    world.scheduler = Scheduler::new(AnswerOrder::Combined, stall, count, BTreeSet::new(), of);
    (world.owner, world.answered) = (vec![None; shards], vec![0; shards]);
    (world.dice, world.clients, world.skips) = (Dice(1), 0, false);
    let trace = world.run().1;
    let handed = |attempt: usize| {
        let text = format!("HandOut {{ attempt: {attempt}, ");
        trace.iter().map(|line| line.matches(&text).count()).sum::<usize>()
    };
    assert_eq!(handed(0), CREDIT, "{trace:#?}");
}

/// Nodes take only one shard each at the end of a job, so the client can pull the remaining shards.
#[test]
fn the_last_shards_stay_in_the_queue() {
    let shards = (0..6).map(|_| (64 << 20, vec![0, 1, 2, 3], Vec::new()));
    let mut scheduler = Scheduler::new(AnswerOrder::Combined, Duration::MAX, 4, BTreeSet::new(), shards);
    let mut handed = 0;
    scheduler.start(Duration::ZERO);
    for attempt in 0..4 {
        let actions = scheduler.on(Duration::ZERO, Event::Pulled { attempt, finished: 0 });
        handed += actions.iter().filter(|action| matches!(action, Action::HandOut { .. })).count();
    }
    assert_eq!((handed, scheduler.queued()), (4, (2, 128 << 20)));
    let client = scheduler.begin_client(Duration::ZERO);
    assert!(scheduler.pull(Duration::ZERO, client).0.is_some());
}
