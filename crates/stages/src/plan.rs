//! Describes the stages of a job, and checks that each stage can read its producers.

use crate::{
    error::{Error, Result},
    ids::{NodeId, PartitionId},
};

/// The input of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageInput {
    /// A map stage: for each partition, the nodes that hold a replica of its input.
    Replicas(Vec<Vec<NodeId>>),
    /// A merge stage, which reads exchanges.
    Exchange {
        /// The numbers of stages. Partition `p` reads range `p` of one output of each partition of each of these.
        ranges: Vec<u32>,
        /// The numbers of stages whose *state* the stage reads. The output of an attempt may have one more range than
        /// the exchange has: the state of its partition, which is read by the same partition of a later stage. For
        /// example, a superstep of a graph algorithm reads the edges and values of its vertices from earlier stages.
        states: Vec<u32>,
    },
}

impl StageInput {
    /// Returns the input of a stage that reads the exchanges of other stages, and no state.
    pub fn exchange(ranges: impl Into<Vec<u32>>) -> StageInput {
        StageInput::Exchange { ranges: ranges.into(), states: Vec::new() }
    }
}

/// The partitioning of an exchange: the rule that divides the output of each attempt into ranges, one for each
/// partition of the next stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Partitioning {
    /// By a hash of the key.
    Hash {
        /// The number of ranges.
        partitions: u32,
    },
    /// By order of the key.
    Range {
        /// The first key of each range but the first, in ascending order.
        splitters: Vec<Vec<u8>>,
    },
}

impl Partitioning {
    /// Returns the number of ranges.
    pub fn partitions(&self) -> u32 {
        match self {
            Partitioning::Hash { partitions } => *partitions,
            Partitioning::Range { splitters } => splitters.len() as u32 + 1,
        }
    }
}

/// The destination of a stage's outputs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageOutput {
    /// The scratch of the node, as ranges for a later stage.
    Exchange(Partitioning),
    /// The result of the job.
    Result,
}

/// A stage: the same work for each of its partitions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The input.
    pub input: StageInput,
    /// The numbers of the stages that are *broadcast* to the stage: each partition reads all their rows. Their exchange
    /// has one range. For example, the small side of a join is broadcast to the partitions of the other side.
    pub broadcasts: Vec<u32>,
    /// The destination of the outputs.
    pub output: StageOutput,
    /// The memory of one attempt, in bytes.
    pub memory_bytes: u64,
}

/// The stages of a job, in an order in which each stage follows its producers.
///
/// A sort has two stages, a join has three, and each superstep of a graph algorithm adds one:
///
/// ```
/// use inshore_stages::{NodeId, Partitioning, Plan, Stage, StageInput, StageOutput};
///
/// let replicas = vec![vec![NodeId(0), NodeId(1)], vec![NodeId(1), NodeId(2)]];
/// let by_key = Partitioning::Range { splitters: vec![b"m".to_vec()] };
/// let map = Stage {
///     input: StageInput::Replicas(replicas),
///     broadcasts: Vec::new(),
///     output: StageOutput::Exchange(by_key),
///     memory_bytes: 64 << 20,
/// };
/// let merge = Stage {
///     input: StageInput::exchange([0]),
///     broadcasts: Vec::new(),
///     output: StageOutput::Result,
///     memory_bytes: 64 << 20,
/// };
/// let plan = Plan::new(vec![map, merge])?;
/// assert_eq!((plan.partitions(0), plan.partitions(1)), (2, 2));
/// # Ok::<(), inshore_stages::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    stages: Vec<Stage>,
    partitions: Vec<u32>,
    /// For each stage, the stages whose outputs it reads.
    producers: Vec<Vec<u32>>,
}

impl Plan {
    /// Checks stages and makes them a plan.
    ///
    /// # Errors
    /// Returns [`Error::InvalidPlan`] if there is no stage; if a stage but the last one has no exchange or the last one
    /// has one; if a stage has no partition or a map partition has no replica; if a producer is not an earlier stage,
    /// is named twice, or is read by no stage; if the producers of a stage have different numbers of ranges, or other
    /// numbers of partitions than a stage that reads their state; if a broadcast stage has several ranges; or if
    /// splitters do not ascend.
    pub fn new(stages: Vec<Stage>) -> Result<Plan> {
        let mut plan = Plan::default();
        plan.append(stages, false)?;
        Ok(plan)
    }

    /// Checks the first stages of a plan that grows. If the last of them has an exchange, the plan is *open*: when that
    /// stage is complete, the scheduler asks for more stages ([`Action::Extend`](crate::Action)). A graph algorithm, for
    /// example, does not know the number of its supersteps.
    ///
    /// # Errors
    /// Returns the errors of [`Plan::new`].
    pub fn growing(stages: Vec<Stage>) -> Result<Plan> {
        let mut plan = Plan::default();
        plan.append(stages, true)?;
        Ok(plan)
    }

    /// Appends stages to an open plan. After an error, the plan is of no use.
    pub(crate) fn extend(&mut self, stages: Vec<Stage>) -> Result<()> {
        self.append(stages, true)
    }

    /// Returns true if further stages follow the last one.
    pub fn is_open(&self) -> bool {
        self.stages.last().is_some_and(|stage| matches!(stage.output, StageOutput::Exchange(_)))
    }

    fn append(&mut self, stages: Vec<Stage>, may_grow: bool) -> Result<()> {
        let invalid = |stage: usize, why: String| Error::InvalidPlan { stage: stage as u32, why };
        if stages.is_empty() || !self.stages.is_empty() && !self.is_open() {
            return Err(invalid(self.stages.len(), "a plan has stages".into()));
        }
        let last = self.stages.len() + stages.len() - 1;
        for stage in stages {
            let number = self.stages.len();
            let count = input_partitions(&self.stages, &self.partitions, &stage)
                .and_then(|count| check_output(&stage, number == last, may_grow).map(|()| count));
            self.partitions.push(count.map_err(|why| invalid(number, why))?);
            self.producers.push(producers(&stage));
            self.stages.push(stage);
        }
        let is_read = |number: usize| self.producers.iter().any(|of| of.contains(&(number as u32)));
        match (0..last).find(|&number| !is_read(number)) {
            Some(unread) => Err(invalid(unread, "no stage reads its exchange".into())),
            None => Ok(()),
        }
    }

    /// Returns the stages.
    pub fn stages(&self) -> &[Stage] {
        &self.stages
    }

    /// Returns the number of partitions of a stage.
    pub fn partitions(&self, stage: u32) -> u32 {
        self.partitions[stage as usize]
    }

    /// Returns the stages whose outputs a stage reads, in ascending order.
    pub fn producers(&self, stage: u32) -> &[u32] {
        &self.producers[stage as usize]
    }

    /// Returns true if a stage reads input partitions.
    pub fn is_map(&self, stage: u32) -> bool {
        matches!(self.stages[stage as usize].input, StageInput::Replicas(_))
    }

    /// Returns the stages whose state a stage reads.
    pub fn states(&self, stage: u32) -> &[u32] {
        match &self.stages[stage as usize].input {
            StageInput::Replicas(_) => &[],
            StageInput::Exchange { states, .. } => states,
        }
    }

    /// Returns the nodes that hold a replica of the input of a partition. A partition of a merge stage has none.
    pub fn replicas(&self, id: PartitionId) -> &[NodeId] {
        match &self.stages[id.stage as usize].input {
            StageInput::Replicas(replicas) => &replicas[id.partition as usize],
            StageInput::Exchange { .. } => &[],
        }
    }
}

/// Returns the number of ranges of the exchange of a stage.
fn exchange_of(earlier: &[Stage], producer: u32) -> std::result::Result<u32, String> {
    match earlier.get(producer as usize).map(|stage| &stage.output) {
        Some(StageOutput::Exchange(partitioning)) => Ok(partitioning.partitions()),
        _ => Err(format!("producer {producer} is not an earlier stage with an exchange")),
    }
}

/// Returns the number of partitions that the input of a stage has, or the rule that the input breaks.
fn input_partitions(
    earlier: &[Stage],
    partitions: &[u32],
    stage: &Stage,
) -> std::result::Result<u32, String> {
    for &producer in &stage.broadcasts {
        let ranges = exchange_of(earlier, producer)?;
        if ranges != 1 {
            return Err(format!("stage {producer} is broadcast and has {ranges} ranges, expected 1"));
        }
    }
    let (ranges, states) = match &stage.input {
        StageInput::Replicas(replicas) => {
            if let Some(bare) = replicas.iter().position(Vec::is_empty) {
                return Err(format!("input partition {bare} has no replica"));
            }
            return match u32::try_from(replicas.len()) {
                Ok(1..) => Ok(replicas.len() as u32),
                _ => Err(format!("expected 1 to {} input partitions, found {}", u32::MAX, replicas.len())),
            };
        }
        StageInput::Exchange { ranges, states } => (ranges, states),
    };
    let mut found = None;
    for (place, &producer) in ranges.iter().enumerate() {
        if ranges[..place].contains(&producer) {
            return Err(format!("producer {producer} is named twice"));
        }
        let ranges = exchange_of(earlier, producer)?;
        match found.replace(ranges) {
            Some(other) if other != ranges => {
                return Err(format!("its producers have {other} and {ranges} ranges"));
            }
            _ => {}
        }
    }
    let found = found.ok_or_else(|| "a merge stage has no producer".to_string())?;
    for (place, &producer) in states.iter().enumerate() {
        if states[..place].contains(&producer) {
            return Err(format!("the state of stage {producer} is named twice"));
        }
        exchange_of(earlier, producer)?;
        let held = partitions[producer as usize];
        if held != found {
            return Err(format!("stage {producer} has {held} states, expected {found}"));
        }
    }
    Ok(found)
}

/// Returns the stages whose outputs a stage reads, in ascending order.
fn producers(stage: &Stage) -> Vec<u32> {
    let (ranges, states): (&[u32], &[u32]) = match &stage.input {
        StageInput::Replicas(_) => (&[], &[]),
        StageInput::Exchange { ranges, states } => (ranges, states),
    };
    let mut all = [ranges, states, &stage.broadcasts].concat();
    all.sort_unstable();
    all.dedup();
    all
}

fn check_output(stage: &Stage, is_last: bool, may_grow: bool) -> std::result::Result<(), String> {
    match (&stage.output, is_last) {
        (StageOutput::Result, true) => Ok(()),
        (StageOutput::Result, false) => Err("only the last stage makes the result".to_string()),
        (StageOutput::Exchange(_), true) if !may_grow => {
            Err("the last stage makes the result, not an exchange".to_string())
        }
        (StageOutput::Exchange(Partitioning::Hash { partitions: 0 }), _) => {
            Err("its exchange has no range".to_string())
        }
        (StageOutput::Exchange(Partitioning::Range { splitters }), _)
            if !splitters.is_sorted_by(|before, after| before < after) =>
        {
            Err("the splitters of its exchange do not ascend".to_string())
        }
        (StageOutput::Exchange(_), _) => Ok(()),
    }
}
