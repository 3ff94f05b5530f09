//! The driver's part of a job: its sizes, its stages, and its result.

use std::path::Path;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use inshore_graph::{EdgeFormat, PageRankOptions, RankArithmetic, Summary, check_edge_text};
use inshore_nodes::{DistributedFile, read_from_nodes};
use inshore_stages::{InputPartition, JobInput, JobReport, JobStage, Options, StageWork, StagesJob};
use inshore_store::{Execution, format_bytes};
use inshore_tables::{Compression, Input};

use super::{
    Arguments, ITERATIONS_MAX, ROWS, StageGraphs,
    supersteps::{CHANGE, EDGES, ITERATIONS, result_fields},
};
use crate::{
    error::Result,
    files::{Asker, Error, check_plain, ending_of},
    job_memory::JobMemory,
    operation::{RowOutput, RowReceiver, explain_files},
    sorting::dataset_name,
    target::OnNodes,
};

/// The number of partitions for each slot of the cluster. With more of them, the last attempts of a stage end at more
/// equal times; with fewer of them, more messages are combined before they are sent.
const PARTITIONS_PER_SLOT: u64 = 2;
/// The largest number of partitions. Each of them writes a range for each other one, in each superstep.
const PARTITIONS_MAX: u64 = 512;
/// The memory of a partition as a multiple of the bytes of its text. An edge of 8 characters takes 32 bytes: its pair of
/// ids, and its target as a vertex.
const MEMORY_PER_TEXT: u64 = 4;
/// The smallest slot in bytes: for blocks of lines, readers and writers.
const SLOT_BYTES_MIN: u64 = 4 << 20;

/// The answer of a job.
#[derive(Debug)]
pub struct PageRankOnCluster {
    /// The summary. A result in a dataset has no change of the last iteration.
    pub summary: Summary,
    /// The number of vertices.
    pub vertices: u64,
    /// The cost of the stages.
    pub report: JobReport,
}

/// Computes the ranks of the vertices of a graph on a cluster. `edges` are lists of edges as text. The rows go to a file,
/// to `receiver`, or to a dataset (`store:NAME`) as lines of CSV, whose pieces stay on the nodes that made them. They
/// equal those of an import of the same edges and of [`inshore_graph::pagerank`].
///
/// The options `resume` and `vertex_tolerance` are not supported; the caller refuses them.
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
    output: Option<&Path>,
    receiver: Option<&mut dyn RowReceiver>,
) -> Result<PageRankOnCluster> {
    let asker = &Asker { nodes: &on.nodes, options: &on.options, context: job };
    edges.iter().try_for_each(|whole| check_edges(asker, whole))?;
    if let Some(plan) = explain_files(on, edges) {
        job.progress().tell(|| plan);
    }
    let dataset = output.and_then(dataset_name);
    if let Some(name) = dataset {
        inshore_stages::check_name(&on.nodes, job, name).map_err(Error::from)?;
    }
    let size = Size::of(asker, edges)?;
    let inputs = InputPartition::of_files(edges, size.piece_bytes);
    let mut inputs = inputs.map_err(|why| Error::unfit("a graph on a cluster", why))?;
    if inputs.is_empty() {
        inputs.push(InputPartition::empty(0..on.nodes.addresses().count()));
    }
    job.progress().tell(|| size.explained(inputs.len()));
    let arguments = Arguments {
        partitions: size.partitions,
        iterations: options.iterations_max(),
        damping: options.damping,
        tolerance: options.tolerance,
        to_csv: dataset.is_some(),
        names: edges.iter().map(|whole| whole.title.clone()).collect(),
    };
    let stages_job = StagesJob {
        kind: StageGraphs.kind(),
        stages: stages(&arguments, inputs),
        arguments: serde_json::to_value(&arguments).expect("plain data"),
        slots: size.memory.slots,
        slot_bytes: size.memory.slot_bytes,
        options: Options::default(),
    };
    let finished = inshore_stages::run(&on.nodes, job, &stages_job).map_err(Error::from)?;
    let report = finished.report().clone();
    let strategy = format!("{} partitions in stages", size.partitions);
    let mut summary =
        Summary { supersteps: arguments.iterations, state: "nodes", strategy, ..Summary::default() };
    let empty = || inshore_graph::Error::Empty { inputs: arguments.names.join(", ") };
    if let Some(name) = dataset {
        let vertices = finished.lines().saturating_sub(1);
        if vertices == 0 {
            return Err(empty().into());
        }
        job.start_phase("writing", "bytes", finished.bytes());
        finished.publish(job, name, None).map_err(Error::from)?;
        return Ok(PageRankOnCluster { summary, vertices, report });
    }
    let schema: SchemaRef = Schema::new(result_fields()).into();
    let rows = finished.into_rows(job).map(|batch| batch.map_err(Error::from));
    let (mut vertices, mut receiver, mut begun) = (0, receiver, None);
    for batch in rows {
        let batch = batch?;
        vertices += batch.num_rows() as u64;
        tell(&mut summary, &batch);
        if batch.num_rows() == 0 {
            continue;
        }
        let rows = match &mut begun {
            Some(rows) => rows,
            none => none.insert(RowOutput::begin(output, receiver.take(), &schema, job)?),
        };
        rows.batch(batch)?;
    }
    match begun {
        Some(rows) => rows.finish()?,
        None => return Err(empty().into()),
    }
    Ok(PageRankOnCluster { summary, vertices, report })
}

/// Adds the facts in the schema of result rows to a summary.
fn tell(summary: &mut Summary, batch: &RecordBatch) {
    let schema = batch.schema_ref();
    let fact = |name: &str| schema.metadata().get(name).and_then(|value| value.parse::<u64>().ok());
    let Some((iterations, change)) = fact(ITERATIONS).zip(fact(CHANGE)) else { return };
    summary.supersteps = u32::try_from(iterations).unwrap_or(ITERATIONS_MAX);
    summary.last_change = (iterations > 0).then(|| RankArithmetic::to_f64(change));
    summary.edges_traversed = fact(EDGES).unwrap_or(0) * iterations;
}

/// Returns the stages of a job: see the parent module.
pub(super) fn stages(arguments: &Arguments, inputs: Vec<InputPartition>) -> Vec<JobStage> {
    let exchange = |name: String, input: (Vec<u32>, Vec<u32>)| JobStage {
        name,
        input: JobInput::Exchange { ranges: input.0, states: input.1 },
        broadcasts: Vec::new(),
        ranges: arguments.partitions,
    };
    let map = JobStage {
        name: "map".into(),
        input: JobInput::Pieces(inputs),
        broadcasts: Vec::new(),
        ranges: arguments.partitions,
    };
    let mut stages = vec![map, exchange("rows".into(), (vec![0], vec![]))];
    let collect = arguments.collect();
    for stage in ROWS + 1..=collect {
        let before = stage - 1;
        let states = if before == ROWS { vec![ROWS] } else { vec![ROWS, before] };
        // The totals of rows have the samples of ids, at which the result is divided.
        let is_last = stage == collect && before != ROWS;
        let ranges = if is_last { vec![ROWS, before] } else { vec![before] };
        let name = if stage == collect { "collect".into() } else { format!("superstep {}", before - ROWS) };
        stages.push(exchange(name, (ranges, states)));
    }
    stages.push(JobStage { ranges: 0, ..exchange("result".into(), (vec![collect], vec![])) });
    stages
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
    fn of(asker: &Asker<'_>, edges: &[DistributedFile]) -> std::result::Result<Size, Error> {
        let memory = JobMemory::of(asker.nodes, asker.options, SLOT_BYTES_MIN)?;
        Size::planned(memory, edges.iter().map(DistributedFile::bytes).sum())
    }

    /// Plans a job of `bytes` bytes of text. A partition takes about half of a slot.
    fn planned(memory: JobMemory, bytes: u64) -> std::result::Result<Size, Error> {
        let JobMemory { nodes, memory_bytes, slots, slot_bytes } = memory;
        let in_memory = bytes.saturating_mul(2 * MEMORY_PER_TEXT);
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
