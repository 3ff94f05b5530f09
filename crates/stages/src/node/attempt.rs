//! Runs the attempts of a job.

use std::sync::Arc;

use arrow_array::{BooleanArray, RecordBatch};
use inshore_kernel::{
    Failure, FinalFailure, Reply, Source, SourceOffset, Sources, Task, TaskHandler, TaskSource,
};
use inshore_nodes::protocol::PieceRequest;
use inshore_store::Job;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{
    ATTEMPT_KIND, RangeContent, RangeRequest,
    counters::End,
    fetch::{FetchError, FetchedRange, fetch},
    output::{OutputWriter, RangeBytes, RangeInput, StoredOutput},
    session::{Session, Sessions, Slot},
};
use crate::{
    FailureKind, FetchFailure, MapInputs, MergeInputs, StageTask,
    lists::{ListPart, Producer},
};

/// The request for an attempt.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AttemptRequest {
    /// The id of the session.
    pub session: String,
    /// The token of the attempt.
    pub token: u32,
    pub stage: u32,
    pub partition: u32,
    /// The parts of the lists of outputs that the node lacks.
    #[serde(default)]
    pub lists: Vec<ListPart>,
    /// The arguments of the stage.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub arguments: Value,
    pub work: WorkRequest,
    /// The outputs that the attempt reads.
    #[serde(default)]
    pub reads: StageReads,
}

/// The outputs of other stages that an attempt reads, which the node takes from its lists.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StageReads {
    /// The stages of which the attempt reads the range with the number of its partition.
    pub ranges: Vec<u32>,
    /// The stages of which the attempt reads the state of its partition, and the number of the range that is the state.
    pub states: Vec<(u32, u32)>,
    /// The stages of which the attempt reads range 0.
    pub broadcasts: Vec<u32>,
}

impl StageReads {
    fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.states.is_empty() && self.broadcasts.is_empty()
    }
}

/// The work of an attempt.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum WorkRequest {
    /// Read the pieces of the request, which this node holds.
    Map,
    /// Read pieces that another node holds.
    MapOf { node: usize, pieces: Vec<PieceRequest> },
    /// Merge ranges and read states.
    Merge,
    /// Delete the output of the attempt.
    Delete,
}

/// One range of outputs of a stage.
#[derive(Debug)]
struct RangeOf {
    range: u32,
    /// The outputs, in the order of the stage's partitions.
    producers: Vec<Producer>,
}

/// The result of an attempt: the summary of its task.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum AttemptResult {
    /// The size of all ranges, the checksum of their directory, the number of line feeds, the counts of the attempt, and
    /// the number of bytes that the attempt fetched from each other node.
    Finished {
        bytes: u64,
        checksum: u64,
        lines: u64,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        counts: Vec<u64>,
        fetched: Vec<(usize, u64)>,
    },
    Failed {
        kind: FailureKind,
        why: String,
    },
    FetchFailed {
        outputs: Vec<u32>,
        cause: FetchFailure,
    },
    Deleted,
    /// The attempt did not begin: the node lacks earlier parts of its lists.
    Behind,
}

/// The handler that runs attempts.
pub(super) struct Attempts(pub Sessions);

impl TaskHandler for Attempts {
    fn kind(&self) -> &'static str {
        ATTEMPT_KIND
    }

    fn takes_slot(&self) -> bool {
        false
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let AttemptRequest { session, token, stage, partition, lists, arguments, work, reads } =
            serde_json::from_value(task.arguments)?;
        let session = self.0.get(&session).ok_or("the session of the attempt has ended")?;
        if let WorkRequest::Delete = work {
            session.delete(token);
            return Ok(json!(AttemptResult::Deleted));
        }
        check(&work, session.nodes.addresses().count())?;
        let has_all = session.take_lists(&lists, !reads.is_empty(), task.job.cancel())?;
        if !lists.is_empty() {
            drop(lists);
            // The driver then knows that the lists have arrived.
            reply.batch(RecordBatch::try_from_iter([(
                "lists",
                Arc::new(BooleanArray::from(vec![has_all])) as _,
            )])?)?;
        }
        if !reads.is_empty() && !has_all {
            return Ok(json!(AttemptResult::Behind));
        }
        let slot = session.begin_attempt(token, task.job.cancel())?;
        let of = (stage, partition, &arguments);
        let mut counted = session.counters.start(matches!(work, WorkRequest::Merge));
        let result = match run(&session, &slot, of, (work, reads), task.sources) {
            Ok((mut output, fetched)) => {
                let (bytes, checksum, lines) = (output.bytes(), output.checksum, output.lines);
                let counts = std::mem::take(&mut output.counts);
                session.add(token, Arc::new(output));
                counted.end(End::Done);
                AttemptResult::Finished { bytes, checksum, lines, counts, fetched }
            }
            Err(FetchError::Missing(outputs, cause)) => {
                counted.end(End::Missing);
                AttemptResult::FetchFailed { outputs, cause }
            }
            Err(FetchError::Failed(failure)) => {
                task.job.check_cancelled()?;
                counted.end(End::Failed);
                let kind = match failure.downcast_ref() {
                    Some(inshore_store::Error::NoSpace { .. }) => FailureKind::DiskFull,
                    _ if failure.is::<FinalFailure>() => FailureKind::Fatal,
                    _ => FailureKind::Retryable,
                };
                AttemptResult::Failed { kind, why: failure.to_string() }
            }
        };
        Ok(json!(result))
    }
}

/// The number of bytes that were fetched from each other node.
type Fetches = Vec<(usize, u64)>;

/// Checks the nodes and the pieces that a request names.
fn check(work: &WorkRequest, nodes: usize) -> Result<(), Failure> {
    let is_valid = match work {
        WorkRequest::Map | WorkRequest::Merge | WorkRequest::Delete => true,
        WorkRequest::MapOf { node, pieces } => {
            *node < nodes && pieces.iter().all(|piece| piece.from <= piece.to)
        }
    };
    is_valid.then_some(()).ok_or_else(|| "invalid request: work of unknown nodes or pieces".into())
}

/// Returns the outputs that an attempt reads: ranges, states and broadcasts.
fn listed(session: &Session, partition: u32, reads: StageReads) -> Result<[Vec<RangeOf>; 3], Failure> {
    let listed = |stage, range, only| -> Result<RangeOf, Failure> {
        Ok(RangeOf { range, producers: session.listed_outputs(stage, only)? })
    };
    let StageReads { ranges, states, broadcasts } = reads;
    let ranges = ranges.into_iter().map(|stage| listed(stage, partition, None));
    let states = states.into_iter().map(|(stage, range)| listed(stage, range, Some(partition)));
    let broadcasts = broadcasts.into_iter().map(|stage| listed(stage, 0, None));
    Ok([
        ranges.collect::<Result<_, _>>()?,
        states.collect::<Result<_, _>>()?,
        broadcasts.collect::<Result<_, _>>()?,
    ])
}

fn run(
    session: &Session,
    slot: &Slot,
    (stage, partition, stage_arguments): (u32, u32, &Value),
    (work, reads): (WorkRequest, StageReads),
    sources: Sources,
) -> Result<(StoredOutput, Fetches), FetchError> {
    let job = &slot.job;
    let task = StageTask { job, arguments: &session.arguments, stage, stage_arguments, partition };
    let reads = listed(session, partition, reads)?;
    let count = reads.iter().flatten().map(|range| range.producers.len() as u64).sum();
    let kept_bytes = session.work.kept_bytes(job.budget().memory_bytes(), count);
    let mut fetched = Fetches::new();
    let mut fetch_all = |ranges: Vec<RangeOf>| {
        let fetch = |range| inputs(session, job, range, kept_bytes, &mut fetched);
        ranges.into_iter().map(fetch).collect::<Result<Vec<Vec<RangeInput>>, FetchError>>()
    };
    let [ranges, states, broadcasts] = reads;
    let (broadcasts, ranges) = (fetch_all(broadcasts)?, fetch_all(ranges)?);
    let states = fetch_all(states)?.into_iter().flatten().collect();
    let mut output = writer(session, job)?;
    match work {
        WorkRequest::Map | WorkRequest::Delete => {
            session.work.map(&task, MapInputs { sources, broadcasts }, &mut output)?;
        }
        WorkRequest::MapOf { node, pieces } => {
            let bytes = pieces.iter().map(|piece| piece.to - piece.from).sum();
            let sources = Sources::of(copied(session, job, node, pieces)?);
            fetched.push((node, bytes));
            session.work.map(&task, MapInputs { sources, broadcasts }, &mut output)?;
        }
        WorkRequest::Merge => {
            session.work.merge(&task, MergeInputs { ranges, states, broadcasts }, &mut output)?;
        }
    }
    Ok((output.finish()?, fetched))
}

/// Begins an output. It takes the memory of the session, since it outlives the slot.
fn writer(session: &Session, job: &Job) -> inshore_store::Result<OutputWriter> {
    let job = session.job.with_cancel(job.cancel().clone());
    OutputWriter::create(&job, &job.scratch_name("output"))
}

/// Returns one range of each output, in the order of producer partitions. Fetches the ranges of other nodes first, from
/// one node after the other, beginning after this node, so that the load spreads over the nodes.
fn inputs(
    session: &Session,
    job: &Job,
    RangeOf { range, producers }: RangeOf,
    kept_bytes: u64,
    fetched: &mut Fetches,
) -> Result<Vec<RangeInput>, FetchError> {
    let nodes = session.nodes.addresses().count();
    let mut found: Vec<(usize, RangeBytes)> = Vec::with_capacity(producers.len());
    for step in 1..nodes {
        let node = (session.own + step) % nodes;
        let of_node: Vec<(usize, &Producer)> =
            producers.iter().enumerate().filter(|(_, producer)| producer.node as usize == node).collect();
        if of_node.is_empty() {
            continue;
        }
        let outputs = of_node.iter().map(|(_, producer)| (producer.token, producer.checksum)).collect();
        let tokens: Vec<u32> = of_node.iter().map(|(_, producer)| producer.token).collect();
        let content = RangeContent::Outputs { outputs, range };
        let request = RangeRequest { session: session.id.clone(), content };
        let got = fetch(session, job, node, &request, (tokens.len(), &tokens), kept_bytes)?;
        fetched.push((node, got.iter().map(|range| range.bytes).sum()));
        let places = of_node.iter().map(|(place, _)| *place);
        found.extend(places.zip(got.into_iter().map(|range| range.stored)));
    }
    for (place, producer) in
        producers.iter().enumerate().filter(|(_, producer)| producer.node as usize == session.own)
    {
        let Some(output) = session.output(producer.token, producer.checksum) else {
            return Err(FetchError::Missing(vec![producer.token], FetchFailure::Gone));
        };
        found.push((place, RangeBytes::File(output.file.clone(), output.range(range))));
    }
    found.sort_by_key(|(place, _)| *place);
    Ok(found.into_iter().map(|(_, bytes)| RangeInput(bytes)).collect())
}

/// Copies pieces of another node to scratch.
fn copied(
    session: &Session,
    job: &Job,
    node: usize,
    pieces: Vec<PieceRequest>,
) -> Result<Vec<TaskSource>, FetchError> {
    // An empty piece has no row, and takes no file.
    let pieces: Vec<PieceRequest> = pieces.into_iter().filter(|piece| piece.from < piece.to).collect();
    let content = RangeContent::Pieces(pieces.clone());
    let request = RangeRequest { session: session.id.clone(), content };
    let fetched = fetch(session, job, node, &request, (pieces.len(), &[]), u64::MAX)?;
    let source = |(piece, fetched): (PieceRequest, FetchedRange)| {
        let PieceRequest { number, whole, from, to, offset, lines, .. } = piece;
        match fetched.stored {
            RangeBytes::File(file, _) if fetched.bytes == to - from => {
                let source = Source::dataset(job, file).behind(SourceOffset { offset, lines });
                Ok(TaskSource { number, whole, source, stored: None })
            }
            _ => Err(format!("received {} bytes of a piece, expected {}", fetched.bytes, to - from).into()),
        }
    };
    Ok(pieces.into_iter().zip(fetched).map(source).collect::<Result<_, Failure>>()?)
}
