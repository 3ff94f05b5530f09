//! The description of a job, and the errors of a driver.

use std::collections::BTreeMap;

use inshore_nodes::{DistributedFile, protocol::PieceRequest};
use serde_json::Value;

use crate::{NodeId, Options, Partitioning, Plan, Result, Stage, StageInput, StageOutput};

/// An input partition: pieces of files, and the nodes that hold all of them.
#[derive(Clone, Debug)]
pub struct InputPartition {
    /// For each node by its index in the list of nodes, the request for the pieces.
    replicas: Vec<(usize, Vec<PieceRequest>)>,
}

impl InputPartition {
    /// Groups the pieces of files into partitions of about `bytes` bytes. All pieces of a partition are on the same
    /// nodes. Pieces are numbered in the order of the files, and files by their index.
    ///
    /// # Errors
    /// Returns the reason for the first piece that no node holds.
    pub fn of_files(
        files: &[DistributedFile],
        bytes: u64,
    ) -> std::result::Result<Vec<InputPartition>, String> {
        let mut partitions: Vec<InputPartition> = Vec::new();
        // For each list of nodes, the partition that further pieces join, and its size.
        let mut open: BTreeMap<Vec<usize>, (InputPartition, u64)> = BTreeMap::new();
        let mut number = 0;
        for (whole, file) in files.iter().enumerate() {
            for piece in 0..file.pieces.len() {
                let mut requests = file.piece_requests(piece, number, whole as u64);
                number += 1;
                if requests.is_empty() {
                    return Err(file.absence(piece));
                }
                requests.sort_by_key(|(node, _)| *node);
                let nodes: Vec<usize> = requests.iter().map(|(node, _)| *node).collect();
                let (partition, size) = open.entry(nodes.clone()).or_insert_with(|| {
                    let replicas = nodes.iter().map(|&node| (node, Vec::new())).collect();
                    (InputPartition { replicas }, 0)
                });
                for ((_, pieces), (_, request)) in partition.replicas.iter_mut().zip(requests) {
                    pieces.push(request);
                }
                *size += file.pieces[piece].bytes;
                if *size >= bytes {
                    partitions.extend(open.remove(&nodes).map(|(partition, _)| partition));
                }
            }
        }
        partitions.extend(open.into_values().map(|(partition, _)| partition));
        Ok(partitions)
    }

    /// Returns a partition without pieces, which any of the nodes with these indexes can read. A job has one partition at
    /// least, also if its files are empty.
    pub fn empty(nodes: impl IntoIterator<Item = usize>) -> InputPartition {
        InputPartition { replicas: nodes.into_iter().map(|node| (node, Vec::new())).collect() }
    }

    /// Returns the nodes that hold the pieces.
    pub(super) fn holders(&self) -> impl Iterator<Item = usize> {
        self.replicas.iter().map(|(node, _)| *node)
    }

    /// Returns the request to a node.
    pub(super) fn request(&self, node: usize) -> Vec<PieceRequest> {
        let found = self.replicas.iter().find(|(holder, _)| *holder == node);
        found.map(|(_, pieces)| pieces.clone()).unwrap_or_default()
    }
}

/// The input of a stage of a job.
#[derive(Clone, Debug)]
pub enum JobInput {
    /// A map stage reads input partitions.
    Pieces(Vec<InputPartition>),
    /// A merge stage reads exchanges: see [`StageInput::Exchange`].
    Exchange {
        /// The numbers of the stages whose ranges it reads.
        ranges: Vec<u32>,
        /// The numbers of the stages whose state it reads.
        states: Vec<u32>,
    },
}

/// A stage of a job.
#[derive(Clone, Debug)]
pub struct JobStage {
    /// The name of the stage in reports, such as `map`.
    pub name: String,
    /// The input.
    pub input: JobInput,
    /// The numbers of the stages that are broadcast to the stage: see [`Stage::broadcasts`].
    pub broadcasts: Vec<u32>,
    /// The number of ranges of the exchange, which is the number of partitions of the stages that read it. The last
    /// stage has none.
    pub ranges: u32,
    /// The arguments of the stage's code, or null.
    pub arguments: Value,
}

impl JobStage {
    /// Returns the stages of a job that maps partitions, and merges `ranges` ranges to the result.
    pub fn map_and_merge(inputs: Vec<InputPartition>, ranges: u32) -> Vec<JobStage> {
        let merge = JobInput::Exchange { ranges: vec![0], states: Vec::new() };
        let stage = |name: &str, input: JobInput, ranges: u32| JobStage {
            name: name.to_string(),
            input,
            broadcasts: Vec::new(),
            ranges,
            arguments: Value::Null,
        };
        vec![stage("map", JobInput::Pieces(inputs), ranges), stage("merge", merge, 0)]
    }

    /// Returns the stage of a plan. `number` maps the index of a node to its number.
    fn planned(
        &self,
        slot_bytes: u64,
        makes_result: bool,
        number: impl Fn(usize) -> Option<NodeId>,
    ) -> Stage {
        let replicas = |input: &InputPartition| {
            input.replicas.iter().filter_map(|(node, _)| number(*node)).collect::<Vec<NodeId>>()
        };
        Stage {
            input: match &self.input {
                JobInput::Pieces(inputs) => StageInput::Replicas(inputs.iter().map(replicas).collect()),
                JobInput::Exchange { ranges, states } => {
                    StageInput::Exchange { ranges: ranges.clone(), states: states.clone() }
                }
            },
            broadcasts: self.broadcasts.clone(),
            output: match makes_result {
                true => StageOutput::Result,
                false => StageOutput::Exchange(Partitioning::Hash { partitions: self.ranges }),
            },
            memory_bytes: slot_bytes,
        }
    }

    /// Returns the stages of a plan that grows: a stage without ranges makes the result.
    pub(super) fn growing(
        stages: &[JobStage],
        slot_bytes: u64,
        number: impl Fn(usize) -> Option<NodeId>,
    ) -> Vec<Stage> {
        stages.iter().map(|stage| stage.planned(slot_bytes, stage.ranges == 0, &number)).collect()
    }

    /// Returns the input partitions of a map stage.
    pub(super) fn pieces(&self) -> &[InputPartition] {
        match &self.input {
            JobInput::Pieces(inputs) => inputs.as_slice(),
            JobInput::Exchange { .. } => &[],
        }
    }
}

/// A job of several stages, of which the last one makes the result.
#[derive(Clone, Debug)]
pub struct StagesJob {
    /// The kind of the job: see [`StageWork::kind`](crate::StageWork::kind).
    pub kind: &'static str,
    /// The arguments of the job's code.
    pub arguments: Value,
    /// The stages, each after those that it reads.
    pub stages: Vec<JobStage>,
    /// The number of attempts that run on a node at the same time.
    pub slots: u32,
    /// The memory of an attempt, in bytes.
    pub slot_bytes: u64,
    /// The limits of the job.
    pub options: Options,
}

impl StagesJob {
    /// Returns the plan of the job. `number` maps the index of a node to its number.
    pub(super) fn plan(&self, number: impl Fn(usize) -> Option<NodeId>) -> Result<Plan> {
        let last = self.stages.len().saturating_sub(1);
        let stages = self.stages.iter().enumerate();
        Plan::new(
            stages.map(|(place, stage)| stage.planned(self.slot_bytes, place == last, &number)).collect(),
        )
    }

    /// Returns the input partitions of all map stages.
    pub(super) fn inputs(&self) -> impl Iterator<Item = &InputPartition> {
        self.stages.iter().flat_map(JobStage::pieces)
    }
}
