//! The settings of a simulated job: its plan, nodes and faults.

use inshore_stages::{NodeId, Partitioning, Plan, Stage, StageInput, StageOutput};

/// A pseudo-random number generator with a seed.
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

/// The kind of a fault of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// The node dies, and the cluster reports it after a second.
    Dies,
    /// The node dies, and the cluster does not report it.
    DiesSilently,
    /// The node dies, and returns empty after five seconds.
    Restarts,
    /// The node does nothing for some milliseconds (SIGSTOP).
    Stops(u64),
    /// No message reaches the node or leaves it for some milliseconds.
    CutOff(u64),
    /// Other nodes cannot reach the node, and the driver can.
    CutOffFromNodes,
    /// The cluster reports the loss of a node that lives.
    ReportedLost,
    DiskFull,
    /// All that the node does takes 100 times as long.
    Slow,
    Drains,
    /// All attempts on the node fail.
    Flaky,
    /// The outputs that the node stores at this moment are damaged.
    Damages,
}

pub const FAULTS: [FaultKind; 14] = [
    FaultKind::Dies,
    FaultKind::DiesSilently,
    FaultKind::Restarts,
    FaultKind::Stops(5_000),
    FaultKind::Stops(60_000),
    FaultKind::CutOff(5_000),
    FaultKind::CutOff(60_000),
    FaultKind::CutOffFromNodes,
    FaultKind::ReportedLost,
    FaultKind::DiskFull,
    FaultKind::Slow,
    FaultKind::Drains,
    FaultKind::Flaky,
    FaultKind::Damages,
];

/// A fault of a node, which begins when attempts of a stage have started a number of times.
#[derive(Clone, Debug)]
pub struct Fault {
    pub node: NodeId,
    pub kind: FaultKind,
    pub stage: u32,
    pub starts: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A map and a merge stage.
    Sort,
    /// Two map stages and a merge stage.
    Join,
    /// A map stage that is broadcast to another one, and a merge stage.
    Broadcast,
    /// A map stage and several merge stages in a row.
    Rounds(u32),
}

/// A simulated job.
#[derive(Clone, Debug)]
pub struct Settings {
    pub seed: u64,
    pub nodes: u32,
    pub slots: u32,
    pub shape: Shape,
    pub maps: u32,
    pub merges: u32,
    pub replicas: u32,
    /// The times of an attempt on a node of usual speed, in milliseconds.
    pub map_ms: u64,
    pub fetch_ms: u64,
    pub merge_ms: u64,
    /// The speeds of nodes differ by up to this percentage.
    pub spread_percent: u64,
    pub deadline_ms: u64,
    pub faults: Vec<Fault>,
    /// False for large jobs without lost ranges: the simulator then does not record each range that is read.
    pub records_ranges: bool,
}

impl Settings {
    /// A sort on nodes of equal speed in four waves of maps and four waves of merges.
    pub fn sort(seed: u64, nodes: u32) -> Settings {
        Settings {
            seed,
            nodes,
            slots: 2,
            shape: Shape::Sort,
            maps: nodes * 8,
            merges: nodes * 8,
            replicas: 2,
            map_ms: 10_000,
            fetch_ms: 6_000,
            merge_ms: 6_000,
            spread_percent: 20,
            deadline_ms: 100_000_000,
            faults: Vec::new(),
            records_ranges: true,
        }
    }

    /// A job of any shape with any faults.
    pub fn random(seed: u64) -> Settings {
        let mut dice = Dice::new(seed);
        let nodes = 1 + dice.below(8) as u32;
        let shape = match dice.below(4) {
            0 => Shape::Sort,
            1 => Shape::Join,
            2 => Shape::Broadcast,
            _ => Shape::Rounds(1 + dice.below(3) as u32),
        };
        let mut settings = Settings {
            slots: 1 + dice.below(3) as u32,
            shape,
            maps: 1 + dice.below(24) as u32,
            merges: 1 + dice.below(24) as u32,
            replicas: 1 + dice.below(u64::from(nodes.min(3))) as u32,
            map_ms: 500 + dice.below(10_000),
            fetch_ms: 500 + dice.below(5_000),
            merge_ms: 500 + dice.below(10_000),
            spread_percent: dice.below(100),
            deadline_ms: if dice.below(20) == 0 { 30_000 } else { 100_000_000 },
            ..Settings::sort(seed, nodes)
        };
        let stages = settings.plan().stages().len() as u64;
        let faulty = dice.below(u64::from(nodes) + 1) as u32;
        settings.faults = (0..faulty)
            .map(|node| {
                let stage = dice.below(stages) as u32;
                let partitions = u64::from(settings.plan().partitions(stage));
                Fault {
                    node: NodeId(node),
                    kind: FAULTS[dice.below(FAULTS.len() as u64) as usize],
                    stage,
                    starts: 1 + dice.below(partitions) as u32,
                }
            })
            .collect();
        settings
    }

    pub fn with_fault(mut self, node: u32, kind: FaultKind, stage: u32, starts: u32) -> Settings {
        self.faults.push(Fault { node: NodeId(node), kind, stage, starts });
        self
    }

    /// Returns the plan. Replicas are on nodes that a partition's number selects at random.
    pub fn plan(&self) -> Plan {
        let mut dice = Dice::new(self.seed ^ 0x5EED);
        let map = |dice: &mut Dice| {
            let replicas = (0..self.maps).map(|partition| {
                let mut nodes = vec![NodeId(partition % self.nodes)];
                while nodes.len() < self.replicas as usize {
                    let node = NodeId(dice.below(u64::from(self.nodes)) as u32);
                    if !nodes.contains(&node) {
                        nodes.push(node);
                    }
                }
                nodes
            });
            Stage {
                input: StageInput::Replicas(replicas.collect()),
                broadcasts: Vec::new(),
                output: StageOutput::Exchange(self.partitioning()),
                memory_bytes: 100,
            }
        };
        let merge = |producers: Vec<u32>, output: StageOutput, memory_bytes: u64| Stage {
            input: StageInput::exchange(producers),
            broadcasts: Vec::new(),
            output,
            memory_bytes,
        };
        let exchange = || StageOutput::Exchange(self.partitioning());
        let stages = match self.shape {
            Shape::Sort => vec![map(&mut dice), merge(vec![0], StageOutput::Result, 200)],
            Shape::Join => {
                vec![map(&mut dice), map(&mut dice), merge(vec![0, 1], StageOutput::Result, 50)]
            }
            Shape::Broadcast => {
                let output = StageOutput::Exchange(Partitioning::Hash { partitions: 1 });
                let small = Stage { output, ..map(&mut dice) };
                let large = Stage { broadcasts: vec![0], ..map(&mut dice) };
                vec![small, large, merge(vec![1], StageOutput::Result, 100)]
            }
            Shape::Rounds(rounds) => {
                let mut stages = vec![map(&mut dice)];
                stages
                    .extend((0..rounds).map(|round| merge(vec![round], exchange(), 100 + u64::from(round))));
                stages.push(merge(vec![rounds], StageOutput::Result, 100));
                stages
            }
        };
        Plan::new(stages).unwrap()
    }

    fn partitioning(&self) -> Partitioning {
        match self.seed % 2 {
            0 => Partitioning::Hash { partitions: self.merges },
            _ => Partitioning::Range {
                splitters: (1..self.merges).map(|key| key.to_be_bytes().to_vec()).collect(),
            },
        }
    }
}
