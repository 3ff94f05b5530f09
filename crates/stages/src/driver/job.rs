//! The description of a job, and the errors of a driver.

use std::collections::BTreeMap;

use inshore_nodes::{DistributedFile, protocol::PieceRequest};
use serde_json::Value;

use crate::{NodeId, Options, Plan, Result, Stage, StageInput, StageOutput};

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

/// A job of two stages: a map stage over input partitions, and a merge stage.
#[derive(Clone, Debug)]
pub struct StagesJob {
    /// The kind of the job: see [`StageWork::kind`](crate::StageWork::kind).
    pub kind: &'static str,
    /// The arguments of the job's code.
    pub arguments: Value,
    /// The input partitions.
    pub inputs: Vec<InputPartition>,
    /// The number of ranges of the exchange, which is the number of result partitions.
    pub ranges: u32,
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
        let replicas = |input: &InputPartition| {
            input.replicas.iter().filter_map(|(node, _)| number(*node)).collect::<Vec<NodeId>>()
        };
        let memory_bytes = self.slot_bytes;
        let output = StageOutput::Exchange(crate::Partitioning::Hash { partitions: self.ranges });
        let input = StageInput::Replicas(self.inputs.iter().map(replicas).collect());
        let map = Stage { input, output, memory_bytes };
        let input = StageInput::Exchange(vec![0]);
        Plan::new(vec![map, Stage { input, output: StageOutput::Result, memory_bytes }])
    }
}
