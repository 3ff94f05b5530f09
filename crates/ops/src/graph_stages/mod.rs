//! This module runs graph algorithms in stages on a cluster, from a list of edges whose pieces lie on the nodes.
//!
//! ```text
//!   map          pieces of edges ─► edges by the hash of the source, vertices by their own hash
//!   rows         range p of each map ─► vertices and edges of partition p                           state
//!   superstep 0  rows ─► sums for the vertices of each partition                                    ranges
//!   superstep i  sums of all partitions, rows, values ─► new values, sums for each partition        state, ranges
//!   collect      sums, rows, values ─► values of vertices, divided at ids                           ranges
//!   result       one range of each partition ─► rows in the order of ids                            result
//! ```
//!
//! A *partition* has the vertices whose hash selects it (`rows::partition_of`), with their out-edges. Its edges are sorted by
//! the partition of the target and then by the target. A superstep therefore computes the sum of all messages to a
//! target one target after the other, in one pass over the edges, and only sums cross the wire: at most one message
//! from each partition to each vertex. The rows and values of a partition are its *state*, which stays on a node: see
//! [`inshore_stages::StageInput`]. Facts about the whole graph travel at the beginning of each range, as `Totals` of
//! a partition; each partition adds up those of all partitions, and makes the same decisions as the others.
//!
//! PageRank sums integers ([`inshore_graph::RankArithmetic`]), so the ranks are those of one machine bit for bit, whatever
//! the numbers of nodes and partitions.
//!
//! Cost for V vertices, E edges and P partitions: the map writes 16 bytes for each edge, and 16 for each vertex that an
//! attempt meets. The rows take 12 bytes for each edge. A superstep reads them once, and sends at most min(E, P V)
//! messages of 16 bytes. The outputs of all stages stay on the nodes until the job ends. Memory of an attempt: 16 bytes
//! for each edge of its partition and 28 for each vertex (rows), or 28 bytes for each vertex (supersteps). If these do
//! not fit in a slot, the attempt fails with a message that names the memory.

mod edges;
mod exchange;
mod memory;
mod rows;
mod run;
mod supersteps;
#[cfg(test)]
mod tests;

use inshore_kernel::Failure;
use inshore_stages::{MapInputs, MergeInputs, OutputWriter, StageTask, StageWork};
use serde::{Deserialize, Serialize};

pub use self::run::{PageRankOnCluster, pagerank_on_cluster};

/// The largest number of iterations of a job. All outputs of a job stay on the nodes until its end.
pub const ITERATIONS_MAX: u32 = 100;

/// The stage that builds rows. Supersteps follow it.
const ROWS: u32 = 1;

/// The arguments of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Arguments {
    partitions: u32,
    iterations: u32,
    damping: f64,
    tolerance: f64,
    /// True if the result partitions are lines of CSV, and not batches.
    to_csv: bool,
    /// The titles of the files of edges, by the index of each file in the request.
    names: Vec<String>,
}

impl Arguments {
    /// Returns the stage in which the values of vertices are final.
    fn collect(&self) -> u32 {
        ROWS + 1 + self.iterations
    }
}

/// The code of graph algorithms on the nodes of a cluster.
#[derive(Debug)]
pub struct StageGraphs;

impl StageWork for StageGraphs {
    fn kind(&self) -> &'static str {
        "graph pagerank"
    }

    /// Ranges are read one after the other, and the arrays of a partition need the memory.
    fn kept_bytes(&self, slot_bytes: u64, _ranges: u64) -> u64 {
        slot_bytes - slot_bytes / 8
    }

    fn map(
        &self,
        task: &StageTask<'_>,
        MapInputs { sources, .. }: MapInputs,
        output: &mut OutputWriter,
    ) -> Result<(), Failure> {
        let arguments: Arguments = serde_json::from_value(task.arguments.clone())?;
        edges::map(task.job, &arguments, sources, output)
    }

    fn merge(
        &self,
        task: &StageTask<'_>,
        inputs: MergeInputs,
        output: &mut OutputWriter,
    ) -> Result<(), Failure> {
        let arguments: Arguments = serde_json::from_value(task.arguments.clone())?;
        match task.stage {
            ROWS => rows::build(task, arguments.partitions, inputs, output),
            stage if stage <= arguments.collect() => supersteps::superstep(task, &arguments, inputs, output),
            _ => supersteps::result(task, &arguments, inputs, output),
        }
    }
}
