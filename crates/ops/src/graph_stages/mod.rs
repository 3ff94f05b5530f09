//! This module runs graph algorithms in stages on a cluster, from a list of edges whose pieces lie on the nodes.
//!
//! ```text
//!   map          pieces of edges ─► edges by the hash of the source, vertices by their own hash
//!   rows         range p of each map ─► vertices and edges of partition p                           state
//!   superstep 0  rows ─► values of the vertices, messages to the vertices of each partition         state, ranges
//!   superstep i  messages of all partitions, rows, values ─► new values, messages                   state, ranges
//!   collect      rows, values ─► values of vertices, divided at ids                                 ranges
//!   result       one range of each partition ─► rows in the order of ids                            result
//! ```
//!
//! A *program* (`Program`) is the algorithm: PageRank (`pagerank.rs`), or a *search*, in which each vertex keeps the
//! smallest message (`searches.rs`: breadth-first search, connected components, shortest paths). The other files are
//! those of all programs.
//!
//! A *partition* has the vertices whose hash selects it (`rows::partition_of`), with their out-edges. Its edges are sorted by
//! the partition of the target and then by the target. A superstep therefore combines the messages to one target after
//! the other, in one pass over the edges, and only combined messages cross the wire: at most one from each partition to
//! each vertex. The rows and values of a partition are its *state*, which stays on a node: see
//! [`inshore_stages::StageInput`].
//!
//! The number of supersteps is unknown. The plan of a job grows ([`inshore_stages::run_growing`]): attempts count what
//! they changed, and from the sums of these counts the driver (`run.rs`) decides between another superstep and the
//! result.
//!
//! PageRank sums integers ([`inshore_graph::RankArithmetic`]), and searches take the smallest number, so the values are
//! those of one machine bit for bit, whatever the numbers of nodes and partitions.
//!
//! Cost for V vertices, E edges and P partitions: the map writes 16 bytes for each edge, and 16 for each vertex that an
//! attempt meets. The rows take 12 bytes for each edge. A weight adds 8 bytes to both. A superstep reads the rows once in
//! each partition with an active vertex, and sends at most min(E, P V) messages of 16 bytes. The outputs of all stages
//! stay on the nodes until the job ends. Memory of an attempt: 16 bytes for each edge of its partition (24 with weights)
//! and 28 for each vertex (rows), or 28 bytes for each vertex (supersteps). If these do not fit in a slot, the attempt
//! fails with a message that names the memory.

mod collect;
mod edges;
mod exchange;
mod memory;
mod messages;
mod pagerank;
mod rows;
mod run;
mod searches;
#[cfg(test)]
mod tests;
mod weights;

use inshore_kernel::Failure;
use inshore_stages::{MapInputs, MergeInputs, OutputWriter, StageTask, StageWork};
use serde::{Deserialize, Serialize};

pub use self::run::{
    GraphOnCluster, RowsTo, bfs_on_cluster, components_on_cluster, pagerank_on_cluster, sssp_on_cluster,
};
use self::{exchange::Visit, searches::Search, weights::Number};

/// The largest number of iterations of PageRank. All outputs of a job stay on the nodes until its end.
pub const ITERATIONS_MAX: u32 = 100;
/// The largest number of supersteps of a search. Each of them leaves 12 bytes for each vertex on the nodes until the end of
/// the job, and takes 0.15 s even if it has nothing to do (decision 47).
pub const SUPERSTEPS_MAX: u32 = 500;

/// The algorithm of a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Program {
    PageRank { damping: f64 },
    Search(Search),
}

impl Program {
    /// Returns true if edges lead in both directions.
    fn is_symmetric(self) -> bool {
        matches!(self, Program::Search(Search::Components))
    }

    /// Returns true if edges have weights.
    fn is_weighted(self) -> bool {
        matches!(self, Program::Search(Search::Sssp { .. }))
    }
}

/// The arguments of a job.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Arguments {
    program: Program,
    partitions: u32,
    /// True if the result partitions are lines of CSV, and not batches.
    to_csv: bool,
    /// The titles of the files of edges, by the index of each file in the request.
    names: Vec<String>,
}

/// The arguments of a merge stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Step {
    Rows,
    Superstep {
        /// The number of the superstep, counted from 0.
        number: u32,
        /// True if another superstep may follow.
        sends: bool,
    },
    Collect,
    Result,
}

/// The code of graph algorithms on the nodes of a cluster.
#[derive(Debug)]
pub struct StageGraphs;

impl StageWork for StageGraphs {
    fn kind(&self) -> &'static str {
        "graph"
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
        match arguments.program.is_weighted() {
            true => edges::map::<Number>(task.job, &arguments, sources, output),
            false => edges::map::<()>(task.job, &arguments, sources, output),
        }
    }

    fn merge(
        &self,
        task: &StageTask<'_>,
        inputs: MergeInputs,
        output: &mut OutputWriter,
    ) -> Result<(), Failure> {
        let arguments: Arguments = serde_json::from_value(task.arguments.clone())?;
        let (program, partitions) = (arguments.program, arguments.partitions);
        match (Step::deserialize(task.stage_arguments)?, program) {
            (Step::Rows, _) if program.is_weighted() => {
                rows::build::<Number>(task, partitions, inputs, output)
            }
            (Step::Rows, _) => rows::build::<()>(task, partitions, inputs, output),
            (Step::Superstep { number, sends }, Program::PageRank { damping }) => {
                pagerank::superstep(task, (partitions, damping), (number, sends), inputs, output)
            }
            (Step::Superstep { number, .. }, Program::Search(search)) if program.is_weighted() => {
                searches::superstep::<Number>(task, (partitions, search), number, inputs, output)
            }
            (Step::Superstep { number, .. }, Program::Search(search)) => {
                searches::superstep::<()>(task, (partitions, search), number, inputs, output)
            }
            (Step::Collect, Program::PageRank { .. }) => {
                collect::collect::<u64>(task, partitions, inputs, output)
            }
            (Step::Collect, Program::Search(_)) => {
                collect::collect::<Visit>(task, partitions, inputs, output)
            }
            (Step::Result, Program::PageRank { .. }) => {
                collect::result(task, &arguments, inputs, output, pagerank::columns, |_: u64, _: u64| false)
            }
            (Step::Result, Program::Search(search)) => {
                let columns = |visits: &[(u64, Visit)]| search.columns(visits);
                collect::result(task, &arguments, inputs, output, columns, |id, visit: Visit| {
                    search.is_counted(id, visit)
                })
            }
        }
    }
}
