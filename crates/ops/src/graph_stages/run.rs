//! The driver's part of a job: its sizes, its stages, and its result.

use std::path::Path;

use arrow_schema::{Schema, SchemaRef};
use inshore_graph::{
    BfsOptions, ComponentsOptions, EdgeFormat, PageRankOptions, RankArithmetic, SsspOptions, Summary,
    check_edge_text,
};
use inshore_nodes::{DistributedFile, read_from_nodes};
use inshore_stages::{
    DriverError, InputPartition, JobInput, JobReport, JobStage, Options, StageWork, StagesJob,
};
use inshore_store::{Execution, format_bytes};
use inshore_tables::{Compression, Input};

use super::{
    Arguments, Program, SUPERSTEPS_MAX, StageGraphs, Step, collect::result_fields, searches::Search,
};
use crate::{
    error::Result,
    files::{Asker, Error, check_plain, ending_of},
    job_memory::JobMemory,
    operation::{RowOutput, RowReceiver, explain_files},
    sorting::dataset_name,
    target::OnNodes,
};

/// The number of the stage that builds rows. Supersteps follow it.
const ROWS: u32 = 1;
/// The number of partitions for each slot of the cluster. With more of them, the last attempts of a stage end at more
/// equal times; with fewer of them, more messages are combined before they are sent.
const PARTITIONS_PER_SLOT: u64 = 2;
/// The largest number of partitions. Each of them writes a range for each other one, in each superstep.
const PARTITIONS_MAX: u64 = 512;
/// The memory of a partition as a multiple of the bytes of its text. An edge of 8 characters takes 32 bytes: its pair of
/// ids, and its target as a vertex.
const MEMORY_PER_TEXT: u64 = 4;
/// The multiple for edges in both directions, and for edges with weights, whose text is longer.
const MEMORY_PER_TEXT_OF_MORE: u64 = 6;
/// The smallest slot in bytes: for blocks of lines, readers and writers.
const SLOT_BYTES_MIN: u64 = 4 << 20;

/// The answer of a job.
#[derive(Debug)]
pub struct GraphOnCluster {
    /// The summary, as that of the algorithm on one machine.
    pub summary: Summary,
    /// The number of vertices.
    pub vertices: u64,
    /// The cost of the stages.
    pub report: JobReport,
}

/// The place of the rows: a file, a dataset (`store:NAME`) as lines of CSV, whose pieces stay on the nodes that made them,
/// or a receiver.
pub type RowsTo<'p, 'r> = (Option<&'p Path>, Option<&'r mut dyn RowReceiver>);

/// Computes the ranks of the vertices of a graph on a cluster. `edges` are lists of edges as text. The rows equal those of
/// an import of the same edges and of [`inshore_graph::pagerank`].
///
/// The options `resume` and `vertex_tolerance` are not supported; the caller refuses them. `tuning` has no effect.
///
/// # Errors
/// - Returns [`Error::Unfit`] for files that are no text of edges, and if the nodes have too little memory.
/// - Returns [`Error::Stages`] if the job fails, also for malformed lines.
/// - Returns the error of an output that cannot be written, and of the receiver.
pub fn pagerank_on_cluster(
    on: &OnNodes,
    job: &Execution,
    edges: &[DistributedFile],
    options: &PageRankOptions,
    rows: RowsTo<'_, '_>,
) -> Result<GraphOnCluster> {
    let program = Program::PageRank { damping: options.damping };
    let end = End { supersteps: options.iterations_max(), tolerance: options.tolerance };
    compute(on, job, edges, (program, end), rows)
}

/// Searches a graph on a cluster breadth first. The rows equal those of an import of the same edges and of
/// [`inshore_graph::bfs`].
///
/// # Errors
/// - Returns [`inshore_graph::Error::NoSuchVertex`] if no edge has the source.
/// - Returns [`Error::Unfit`] if the search needs more than [`SUPERSTEPS_MAX`] supersteps.
/// - Returns the errors of [`pagerank_on_cluster`].
pub fn bfs_on_cluster(
    on: &OnNodes,
    job: &Execution,
    edges: &[DistributedFile],
    options: &BfsOptions,
    rows: RowsTo<'_, '_>,
) -> Result<GraphOnCluster> {
    compute(on, job, edges, (Program::Search(Search::Bfs { source: options.source }), End::OF_SEARCH), rows)
}

/// Finds the weakly connected components of a graph on a cluster. The rows equal those of an import of the same edges and
/// of [`inshore_graph::components`]. The number of supersteps grows with the number of edges between a vertex and the
/// smallest id of its component.
///
/// # Errors
/// - Returns [`Error::Unfit`] if the search needs more than [`SUPERSTEPS_MAX`] supersteps.
/// - Returns the errors of [`pagerank_on_cluster`].
pub fn components_on_cluster(
    on: &OnNodes,
    job: &Execution,
    edges: &[DistributedFile],
    _options: &ComponentsOptions,
    rows: RowsTo<'_, '_>,
) -> Result<GraphOnCluster> {
    compute(on, job, edges, (Program::Search(Search::Components), End::OF_SEARCH), rows)
}

/// Computes the distances of all vertices from a source on a cluster. Each line has a weight after its ids. The rows equal
/// those of an import of the same edges with weights and of [`inshore_graph::sssp`].
///
/// # Errors
/// - Returns [`inshore_graph::Error::NoSuchVertex`] if no edge has the source.
/// - Returns [`Error::Unfit`] if the search needs more than [`SUPERSTEPS_MAX`] supersteps.
/// - Returns the errors of [`pagerank_on_cluster`], also for a negative weight that a path reaches.
pub fn sssp_on_cluster(
    on: &OnNodes,
    job: &Execution,
    edges: &[DistributedFile],
    options: &SsspOptions,
    rows: RowsTo<'_, '_>,
) -> Result<GraphOnCluster> {
    compute(on, job, edges, (Program::Search(Search::Sssp { source: options.source }), End::OF_SEARCH), rows)
}

/// Runs a program, and passes its rows on.
fn compute(
    on: &OnNodes,
    job: &Execution,
    edges: &[DistributedFile],
    (program, end): (Program, End),
    (output, receiver): RowsTo<'_, '_>,
) -> Result<GraphOnCluster> {
    let asker = &Asker { nodes: &on.nodes, options: &on.options, context: job };
    edges.iter().try_for_each(|whole| check_edges(asker, whole))?;
    if let Some(plan) = explain_files(on, edges) {
        job.progress().tell(|| plan);
    }
    let dataset = output.and_then(dataset_name);
    if let Some(name) = dataset {
        inshore_stages::check_name(&on.nodes, job, name).map_err(Error::from)?;
    }
    let size = Size::of(asker, edges, program)?;
    let inputs = InputPartition::of_files(edges, size.piece_bytes);
    let mut inputs = inputs.map_err(|why| Error::unfit("a graph on a cluster", why))?;
    if inputs.is_empty() {
        inputs.push(InputPartition::empty(0..on.nodes.addresses().count()));
    }
    job.progress().tell(|| size.explained(inputs.len()));
    let names: Vec<String> = edges.iter().map(|whole| whole.title.clone()).collect();
    let mut course = Course::new(program, end, size.partitions, names.join(", "));
    let arguments = Arguments { program, partitions: size.partitions, to_csv: dataset.is_some(), names };
    let stages_job = StagesJob {
        kind: StageGraphs.kind(),
        stages: course.first_stages(inputs),
        arguments: serde_json::to_value(&arguments).expect("plain data"),
        slots: size.memory.slots,
        slot_bytes: size.memory.slot_bytes,
        options: Options::default(),
    };
    let mut next = |counts: &[u64]| course.next_stages(counts).map_err(Into::into);
    let finished = inshore_stages::run_growing(&on.nodes, job, &stages_job, &mut next).map_err(stopped)?;
    let report = finished.report().clone();
    let (summary, vertices) = course.summary(&finished.counts());
    if let Some(name) = dataset {
        job.start_phase("writing", "bytes", finished.bytes());
        finished.publish(job, name, None).map_err(Error::from)?;
        return Ok(GraphOnCluster { summary, vertices, report });
    }
    let schema: SchemaRef = Schema::new(result_fields(program)).into();
    let mut rows = RowOutput::begin(output, receiver, &schema, job)?;
    for batch in finished.into_rows(job) {
        rows.batch(batch.map_err(Error::from)?)?;
    }
    rows.finish()?;
    Ok(GraphOnCluster { summary, vertices, report })
}

/// Returns the error of a job. An error of the function that decides the next stages is one of this crate.
fn stopped(error: DriverError) -> crate::error::Error {
    match error {
        DriverError::Stopped(why) => match why.downcast::<crate::error::Error>() {
            Ok(error) => *error,
            Err(why) => Error::from(DriverError::Stopped(why)).into(),
        },
        error => Error::from(error).into(),
    }
}

/// The condition under which a job needs no further superstep.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    /// The largest number of supersteps after the first one. PageRank ends after it, and a search fails.
    pub supersteps: u32,
    /// PageRank ends when the ranks have changed by at most this sum.
    pub tolerance: f64,
}

impl End {
    const OF_SEARCH: End = End { supersteps: SUPERSTEPS_MAX, tolerance: 0.0 };
}

/// The course of a job: decides each stage from the counts of the last one.
#[derive(Debug)]
pub(super) struct Course {
    program: Program,
    end: End,
    partitions: u32,
    /// The titles of the files of edges, for errors.
    names: String,
    /// The number of the last superstep that has begun.
    number: u32,
    summary: Summary,
}

impl Course {
    pub fn new(program: Program, end: End, partitions: u32, names: String) -> Course {
        let strategy = format!("{partitions} partitions in stages");
        let summary = Summary { state: "nodes", strategy, ..Summary::default() };
        Course { program, end, partitions, names, number: 0, summary }
    }

    /// Returns the stages up to the first superstep: see the parent module.
    pub fn first_stages(&self, inputs: Vec<InputPartition>) -> Vec<JobStage> {
        let map = JobStage {
            name: "map".into(),
            input: JobInput::Pieces(inputs),
            broadcasts: Vec::new(),
            ranges: self.partitions,
            arguments: serde_json::Value::Null,
        };
        vec![map, self.stage("rows".into(), (vec![0], vec![]), Step::Rows), self.superstep()]
    }

    /// Decides the stages that follow superstep `number` from the counts of its attempts: another superstep, or the result.
    ///
    /// # Errors
    /// Returns an error if the graph is empty or has no source, and if a search is too long.
    pub fn next_stages(&mut self, counts: &[u64]) -> Result<Vec<JobStage>> {
        if self.number == 0 && count(counts, 2) == 0 {
            return Err(inshore_graph::Error::Empty { inputs: self.names.clone() }.into());
        }
        let is_last = match self.program {
            Program::PageRank { .. } => self.is_last_iteration(counts),
            Program::Search(search) => self.is_end_of_search(search, counts)?,
        };
        if !is_last {
            self.number += 1;
            return Ok(vec![self.superstep()]);
        }
        let last = ROWS + 1 + self.number;
        // The ranges of rows have the samples of ids, at which the result is divided.
        let collect = self.stage("collect".into(), (vec![ROWS], vec![ROWS, last]), Step::Collect);
        let result = self.stage("result".into(), (vec![last + 1], vec![]), Step::Result);
        Ok(vec![collect, JobStage { ranges: 0, ..result }])
    }

    fn superstep(&self) -> JobStage {
        let (number, before) = (self.number, ROWS + self.number);
        let states = if number == 0 { vec![ROWS] } else { vec![ROWS, before] };
        let step = Step::Superstep { number, sends: number < self.end.supersteps };
        self.stage(format!("superstep {number}"), (vec![before], states), step)
    }

    fn stage(&self, name: String, (ranges, states): (Vec<u32>, Vec<u32>), step: Step) -> JobStage {
        let arguments = serde_json::to_value(step).expect("plain data");
        JobStage {
            name,
            input: JobInput::Exchange { ranges, states },
            broadcasts: Vec::new(),
            ranges: self.partitions,
            arguments,
        }
    }

    /// Takes the counts of an iteration: the changes of ranks, all edges, and all vertices.
    fn is_last_iteration(&mut self, counts: &[u64]) -> bool {
        let number = self.number;
        let change = RankArithmetic::to_f64(count(counts, 0));
        self.summary.supersteps = number;
        self.summary.last_change = (number > 0).then_some(change);
        self.summary.edges_traversed = count(counts, 1) * u64::from(number);
        number >= self.end.supersteps || number > 0 && change <= self.end.tolerance
    }

    /// Takes the counts of a superstep of a search: the active vertices, their edges, and all vertices.
    fn is_end_of_search(&mut self, search: Search, counts: &[u64]) -> Result<bool> {
        let (active, edges) = (count(counts, 0), count(counts, 1));
        if self.number == 0 && active == 0 {
            let vertex = search.source().expect("a search without a source begins at all vertices");
            return Err(inshore_graph::Error::NoSuchVertex { graph: self.names.clone(), vertex }.into());
        }
        self.summary.edges_traversed += edges;
        if active > 0 && edges > 0 {
            return if self.number < self.end.supersteps { Ok(false) } else { Err(self.too_long()) };
        }
        // A superstep after active vertices without edges would find nothing.
        self.summary.supersteps = self.number + u32::from(active > 0);
        Ok(true)
    }

    fn too_long(&self) -> crate::error::Error {
        let limit = self.end.supersteps;
        let what = format!(
            "the search has not ended after {limit} supersteps, which is the limit, since all of them stay on the nodes: import the edges on one machine"
        );
        Error::unfit(&self.names, what).into()
    }

    /// Returns the summary and the number of vertices, from the counts of the result.
    pub fn summary(mut self, counts: &[u64]) -> (Summary, u64) {
        let counted = count(counts, 1);
        match self.program {
            Program::Search(Search::Components) => self.summary.components = Some(counted),
            Program::Search(Search::Sssp { .. }) => self.summary.reached = Some(counted),
            Program::Search(Search::Bfs { .. }) => {
                (self.summary.reached, self.summary.levels) = (Some(counted), Some(self.summary.supersteps));
            }
            Program::PageRank { .. } => {}
        }
        (self.summary, count(counts, 0))
    }
}

/// Returns a count that attempts of a stage have reported.
fn count(counts: &[u64], place: usize) -> u64 {
    counts.get(place).copied().unwrap_or(0)
}

/// Refuses files that are not text of edges: tables and other formats by their names, and files that are compressed, in the
/// format Matrix Market, or divided at other places than the ends of lines.
fn check_edges(asker: &Asker<'_>, whole: &DistributedFile) -> std::result::Result<(), Error> {
    let name = &whole.title;
    let ending = ending_of(whole);
    let is_text = EdgeFormat::of(&Input::new(format!("edges.{ending}"))) == EdgeFormat::Text || ending == "e";
    if !is_text || matches!(&*ending, "graph" | "metis") || whole.is_grouped {
        let what = format!(
            "a cluster reads edges as text, two ids on each line, and not '.{ending}': import it on one machine"
        );
        return Err(Error::unfit(name, what));
    }
    if whole.record_bytes.is_some() && whole.pieces.len() > 1 {
        let what = "its pieces end with records and not with lines: load it again without --record";
        return Err(Error::unfit(name, what));
    }
    let head = 0..(Compression::HEAD_BYTES as u64).max(32).min(whole.bytes());
    let head = read_from_nodes(asker.nodes, asker.context, whole, head, asker.options)?;
    check_plain(name, &head)?;
    check_edge_text(name, &head).map_err(|error| Error::unfit(name, error.to_string()))
}

/// The sizes of a job.
#[derive(Debug)]
struct Size {
    memory: JobMemory,
    /// The number of bytes from which on a map partition gets no more pieces.
    piece_bytes: u64,
    partitions: u32,
}

impl Size {
    fn of(
        asker: &Asker<'_>,
        edges: &[DistributedFile],
        program: Program,
    ) -> std::result::Result<Size, Error> {
        let memory = JobMemory::of(asker.nodes, asker.options, SLOT_BYTES_MIN)?;
        let has_more = program.is_symmetric() || program.is_weighted();
        let per_text = if has_more { MEMORY_PER_TEXT_OF_MORE } else { MEMORY_PER_TEXT };
        Size::planned(memory, edges.iter().map(DistributedFile::bytes).sum(), per_text)
    }

    /// Plans a job of `bytes` bytes of text. A partition takes about half of a slot.
    fn planned(memory: JobMemory, bytes: u64, per_text: u64) -> std::result::Result<Size, Error> {
        let JobMemory { nodes, memory_bytes, slots, slot_bytes } = memory;
        let in_memory = bytes.saturating_mul(2 * per_text);
        let needed = SLOT_BYTES_MIN.max(in_memory.div_ceil(PARTITIONS_MAX));
        if slot_bytes < needed {
            let what = format!(
                "a node gives the job {}, and {} of edges need {}: set --node-memory, or the --memory of the nodes",
                format_bytes(memory_bytes),
                format_bytes(bytes),
                format_bytes(inshore_stages::memory_bytes(needed, slots))
            );
            return Err(Error::unfit("a graph on a cluster", what));
        }
        let all_slots = nodes.max(1) * u64::from(slots);
        let partitions =
            in_memory.div_ceil(slot_bytes).max(all_slots * PARTITIONS_PER_SLOT).min(PARTITIONS_MAX);
        let piece_bytes = bytes.div_ceil(memory.partitions()).max(1);
        Ok(Size { memory, piece_bytes, partitions: partitions as u32 })
    }

    fn explained(&self, maps: usize) -> String {
        let JobMemory { nodes, slots, slot_bytes, .. } = self.memory;
        format!(
            "stages: map {maps} partitions of edges, {} partitions of vertices; {nodes} nodes with {slots} slots of {} each",
            self.partitions,
            format_bytes(slot_bytes)
        )
    }
}
