//! This module runs the fragments of a query that have several stages: joins, groups and windows over tables on the
//! nodes of a cluster.
//!
//! ```text
//!   client:  plan ─► fragment with stages ─► job in stages ─► rows of the last stage ─► rest of the plan
//!   node:    the same plan ─► its stage ─► map:   shards ─► rows by ranges of the exchange
//!                                          merge: one range of each exchange ─► rows by ranges, or the result
//! ```
//!
//! Each attempt runs its stage in a child process, with the memory of its slot (see [`child_process`]). Operators that exceed it continue on the node's drive. One
//! fragment of a query runs at a time, since each job holds memory and a queue slot of all nodes.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{self, BufRead, BufReader, Read},
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use arrow_array::{ArrayRef, RecordBatch, UInt32Array, cast::AsArray, types::UInt32Type};
use arrow_ipc::reader::StreamReader;
use arrow_schema::{ArrowError, DataType, Field, FieldRef, Schema};
use inshore_kernel::{
    Failure, FinalFailure, OpenedSource, Reply, Source, Sources, Task, TaskHandler, TaskSource,
};
use inshore_nodes::{DistributedFile, compact};
use inshore_sql::{
    Error, ExchangeRows, Fragment, FragmentInput, FragmentRows, Result, StageRows, run_stage,
    smallest_memory_bytes,
};
use inshore_stages::{
    DriverError, Error as StagesError, InputPartition, JobInput, JobStage, MapInputs, MergeInputs, Options,
    OutputWriter, RangeInput, ResultRows, StageTask, StageWork, StagesJob,
};
use inshore_store::{Context, Job, format_bytes};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{KIND, NodeTables, State, feed_of};
#[cfg(doc)]
use crate::child_process;
use crate::{
    child_process::ChildProcessWork,
    files::{Error as FileError, FileText, Files},
    job_memory::JobMemory,
};

/// The part of a slot for encoded rows that wait for their ranges.
const BUFFER_PART: u64 = 16;
/// The part of a slot that fetched ranges may take. Operators get the rest.
const FETCHED_PART: u64 = 8;
/// The interval at which a fragment that waits for another one checks for cancellation.
const LOOK: Duration = Duration::from_millis(50);

/// The memory of a slot to read ranges, of which each exchange has one open, and copied shards, in bytes.
const SENT_BYTES: u64 = 2 << 20;
/// The size of the buffer of a stream of rows, in bytes.
const STREAM_BUFFER_BYTES: usize = 64 << 10;

/// Returns the smallest memory of a slot: that of a query in a child process, and of the buffers beside it.
fn slot_bytes_min() -> u64 {
    QueryStages::in_child_process().smallest_memory_bytes() / 3 * 4
}

/// The arguments of a job.
#[derive(Serialize, Deserialize)]
struct StageArguments {
    fragment: Fragment,
    ranges: u32,
    /// The files of each table, by the path of the table.
    files: BTreeMap<String, Vec<FileText>>,
}

/// The task of an attempt.
#[derive(Serialize, Deserialize)]
struct StageRequest {
    #[serde(flatten)]
    of: StageArguments,
    stage: usize,
}

/// The code of an attempt, as a task that [`ChildProcessWork`](crate::child_process::ChildProcessWork) can run in a
/// child process. The sources are one stream for each stage that is broadcast to the stage, and then shards of a table, or
/// one stream for each exchange. The rows of the answer have one more column, the number of their range.
#[derive(Debug)]
pub struct QueryStages;

impl QueryStages {
    /// Returns the handler that runs stages in child processes.
    pub fn in_child_process() -> ChildProcessWork<QueryStages> {
        ChildProcessWork::new(QueryStages, inshore_sql::stack_bytes).with_sent_sources(SENT_BYTES)
    }
}

impl TaskHandler for QueryStages {
    fn kind(&self) -> &'static str {
        "sql-stage"
    }

    fn smallest_memory_bytes(&self) -> u64 {
        smallest_memory_bytes()
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> std::result::Result<Value, Failure> {
        let Task { job, arguments, mut sources } = task;
        let StageRequest { of: StageArguments { fragment, ranges, files }, stage } =
            serde_json::from_value(arguments)?;
        let broadcasts = fragment.stages().get(stage).map_or(0, |stage| stage.broadcasts.len());
        let exchange = |source: std::result::Result<TaskSource, Failure>| exchange_rows(&job, source?);
        let broadcasts: Vec<ExchangeRows> =
            sources.by_ref().take(broadcasts).map(exchange).collect::<std::result::Result<_, Failure>>()?;
        let has_broadcasts = !broadcasts.is_empty();
        let input = match fragment.path_of(stage) {
            Some(path) => {
                let files =
                    files.get(path).ok_or("the request does not describe the table of the stage")?.clone();
                let known =
                    fragment.known_of(stage).ok_or("the fragment does not describe its table")?.clone();
                StageRows::Files(feed_of(&job, files, known, sources)?)
            }
            None => StageRows::Exchanges(sources.map(exchange).collect::<std::result::Result<_, Failure>>()?),
        };
        let mut failed = None;
        let each = |range: u32, batch: RecordBatch| {
            with_range(&batch, range).map_err(Failure::from).and_then(|batch| reply.batch(batch)).map_err(
                |failure| {
                    failed = Some(failure);
                    Error::Store(inshore_store::Error::Cancelled)
                },
            )
        };
        let ran = run_stage(&job, &fragment, (stage, ranges), (input, broadcasts), each);
        match (failed, ran) {
            (Some(failure), _) => Err(failure),
            // Rows that are broadcast must fit in the memory of each slot.
            (None, Err(error)) if error.is_final() || has_broadcasts && error.is_of_memory() => {
                Err(FinalFailure(error.to_string()).into())
            }
            // By an error of the store, a node sees that its disk is full.
            (None, Err(Error::Store(error))) => Err(error.into()),
            (None, ran) => Ok(serde_json::to_value(ran?)?),
        }
    }
}

/// Reads the rows of an exchange: Arrow IPC streams, one after the other.
fn exchange_rows(job: &Job, source: TaskSource) -> std::result::Result<ExchangeRows, Failure> {
    let bytes = source.source.open(job).1?.into_stream()?.ok_or("an exchange is a stream")?;
    let bytes = SharedStream(Arc::new(Mutex::new(BufReader::with_capacity(STREAM_BUFFER_BYTES, bytes))));
    let mut open: Option<StreamReader<SharedStream>> = None;
    let mut next = move || -> std::result::Result<Option<RecordBatch>, ArrowError> {
        loop {
            if let Some(batch) = open.as_mut().and_then(Iterator::next) {
                return batch.map(Some);
            }
            // The reader has read its stream up to the end, and no further.
            open = None;
            if bytes.is_at_end()? {
                return Ok(None);
            }
            open = Some(StreamReader::try_new(bytes.clone(), None)?);
        }
    };
    let failed =
        |error: ArrowError| Error::Internal(format!("the rows of an exchange cannot be read: {error}"));
    Ok(Box::new(std::iter::from_fn(move || next().map_err(failed).transpose())))
}

/// The bytes of an exchange, which several readers read one after the other.
#[derive(Clone)]
struct SharedStream(Arc<Mutex<BufReader<Box<dyn Read + Send>>>>);

impl SharedStream {
    fn is_at_end(&self) -> io::Result<bool> {
        Ok(self.0.lock().expect("no panic under this lock").fill_buf()?.is_empty())
    }
}

impl Read for SharedStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.0.lock().expect("no panic under this lock").read(out)
    }
}

/// Adds the number of the range as a column.
fn with_range(batch: &RecordBatch, range: u32) -> std::result::Result<RecordBatch, ArrowError> {
    let batch = compact(batch.clone());
    let schema = batch.schema();
    let fields = schema.fields().iter().cloned();
    let fields: Vec<FieldRef> =
        fields.chain([Arc::new(Field::new("range", DataType::UInt32, false))]).collect();
    let numbers: ArrayRef = Arc::new(UInt32Array::from(vec![range; batch.num_rows()]));
    let columns = batch.columns().iter().cloned().chain([numbers]).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns)
}

/// Writes rows with the number of their range to an output.
struct RangeWriter<'a>(&'a mut OutputWriter);

impl Reply for RangeWriter<'_> {
    fn batch(&mut self, batch: RecordBatch) -> std::result::Result<(), Failure> {
        let numbers = batch.columns().last().and_then(|numbers| numbers.as_primitive_opt::<UInt32Type>());
        let Some(&range) = numbers.ok_or("rows of a stage without a range")?.values().first() else {
            return Ok(());
        };
        let columns: Vec<usize> = (0..batch.num_columns() - 1).collect();
        self.0.batch(range, &batch.project(&columns)?)
    }
}

/// The stages of queries. `H` is [`QueryStages`], or the same in a child process.
#[derive(Debug)]
pub struct StageQueries<H>(pub H);

impl<H: TaskHandler> StageQueries<H> {
    fn run(
        &self,
        task: &StageTask<'_>,
        broadcasts: Vec<Vec<RangeInput>>,
        sources: Sources,
        output: &mut OutputWriter,
    ) -> std::result::Result<(), Failure> {
        let broadcasts = exchange_sources(task.job, broadcasts);
        let (bytes, count_max) = (sources.bytes(), broadcasts.len() + sources.count_max());
        let (sources, leave) = sources.into_parts();
        let sources = broadcasts.into_iter().map(Ok).chain(sources);
        let sources = Sources::pulled(sources, bytes, count_max).left_by(leave);
        output.set_buffer(task.job, task.job.budget().memory_bytes() / BUFFER_PART)?;
        let mut arguments = task.arguments.clone();
        arguments["stage"] = task.stage.into();
        let task = Task { job: task.job.clone(), arguments, sources };
        self.0.work(task, &mut RangeWriter(output)).map(drop)
    }
}

impl<H: TaskHandler> StageWork for StageQueries<H> {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn kept_bytes(&self, slot_bytes: u64, _: u64) -> u64 {
        slot_bytes - slot_bytes / FETCHED_PART
    }

    fn map(
        &self,
        task: &StageTask<'_>,
        MapInputs { sources, broadcasts }: MapInputs,
        output: &mut OutputWriter,
    ) -> std::result::Result<(), Failure> {
        self.run(task, broadcasts, sources, output)
    }

    fn merge(
        &self,
        task: &StageTask<'_>,
        MergeInputs { ranges, broadcasts, .. }: MergeInputs,
        output: &mut OutputWriter,
    ) -> std::result::Result<(), Failure> {
        self.run(task, broadcasts, Sources::of(exchange_sources(task.job, ranges)), output)
    }
}

/// Returns a source for each stage whose ranges an attempt reads.
fn exchange_sources(job: &Job, exchanges: Vec<Vec<RangeInput>>) -> Vec<TaskSource> {
    let source = |(number, ranges): (usize, Vec<RangeInput>)| {
        let job = job.clone();
        let source = Source::new("an exchange", move |context| {
            let job = job.within(context.budget().clone());
            Ok(OpenedSource::Stream(Box::new(RangesInTurn { job, rest: ranges.into(), open: None })))
        });
        TaskSource { number: number as u64, whole: number as u64, source, stored: None }
    };
    exchanges.into_iter().enumerate().map(source).collect()
}

/// The bytes of ranges, one after the other. A range is opened when the one before it has ended.
struct RangesInTurn {
    job: Job,
    rest: VecDeque<RangeInput>,
    open: Option<Box<dyn Read + Send>>,
}

impl Read for RangesInTurn {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(open) = &mut self.open {
                match open.read(out)? {
                    0 if !out.is_empty() => self.open = None,
                    read => return Ok(read),
                }
            }
            let Some(next) = self.rest.pop_front() else { return Ok(0) };
            self.open = next.open_bytes(&self.job).map_err(io::Error::other)?;
        }
    }
}

/// The permission to run a job, of which a query has one at a time.
struct Turn(Arc<(Mutex<State>, Condvar)>);

impl Turn {
    fn wait(state: &Arc<(Mutex<State>, Condvar)>, job: &Job) -> Result<Turn> {
        let mut own = state.0.lock().expect("no panic under this lock");
        while own.has_job {
            job.check_cancelled().map_err(inshore_store::Error::from)?;
            own = state.1.wait_timeout(own, LOOK).expect("no panic under this lock").0;
        }
        own.has_job = true;
        Ok(Turn(state.clone()))
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.0.lock().expect("no panic under this lock").has_job = false;
        self.0.1.notify_all();
    }
}

impl NodeTables {
    /// Runs a fragment with stages, and returns the rows of its last stage.
    pub(super) fn run_stages(&self, job: &Job, fragment: Fragment) -> Result<Box<dyn FragmentRows>> {
        let turn = Turn::wait(&self.state, job)?;
        let stages_job = self.stages_job(&fragment).map_err(Error::from)?;
        let finished = inshore_stages::run(&self.nodes, job, &stages_job).map_err(|error| {
            let has_broadcasts = fragment.stages().iter().any(|stage| stage.is_broadcast);
            match error {
                // The query runs again without broadcasts.
                DriverError::Stages { error: error @ StagesError::Failed { .. }, .. } if has_broadcasts => {
                    Error::Memory(error.to_string())
                }
                error => Error::from(FileError::from(error)),
            }
        })?;
        self.state.0.lock().expect("no panic under this lock").jobs.push(finished.report().clone());
        let context: &Context = job;
        Ok(Box::new(StagedRows { rows: finished.into_rows(context), _turn: turn }))
    }

    /// Plans the job of a fragment.
    fn stages_job(&self, fragment: &Fragment) -> std::result::Result<StagesJob, FileError> {
        let memory = JobMemory::of(&self.nodes, &self.options, slot_bytes_min())?;
        if memory.slot_bytes < slot_bytes_min() {
            let what = format!(
                "a node gives the job {}, and {} is enough: set --node-memory, or the --memory of the nodes",
                format_bytes(memory.memory_bytes),
                format_bytes(inshore_stages::memory_bytes(slot_bytes_min(), 1))
            );
            return Err(FileError::unfit("a query on a cluster", what));
        }
        let mut files: BTreeMap<String, Arc<Files>> = BTreeMap::new();
        for stage in 0..fragment.stages().len() {
            let Some(path) = fragment.path_of(stage) else { continue };
            let described = self.described(path);
            let described = described.ok_or_else(|| FileError::unfit(path, "the table was not described"))?;
            files.insert(path.to_string(), described);
        }
        let bytes = |files: &Files| files.wholes.iter().map(DistributedFile::bytes).sum::<u64>();
        let all_bytes: u64 = files.values().map(|files| bytes(files)).sum();
        let ranges = u32::try_from(memory.ranges_of_any(all_bytes)).expect("a few thousand at most");
        let stage = |(number, stage): (usize, &inshore_sql::FragmentStage)| {
            let input = match &stage.input {
                FragmentInput::Table(_) => {
                    let path = fragment.path_of(number).unwrap_or_default();
                    let files = &files[path];
                    let part_bytes = bytes(files).div_ceil(memory.partitions()).max(1);
                    let inputs = InputPartition::of_files(&files.wholes, part_bytes);
                    let mut inputs = inputs.map_err(|why| FileError::unfit(path, why))?;
                    if inputs.is_empty() {
                        inputs.push(InputPartition::empty(0..self.nodes.addresses().count()));
                    }
                    JobInput::Pieces(inputs)
                }
                FragmentInput::Exchanges(of) => JobInput::Exchange {
                    ranges: of.iter().map(|&of| of as u32).collect(),
                    states: Vec::new(),
                },
            };
            let broadcasts = stage.broadcasts.iter().map(|&of| of as u32).collect();
            let ranges = if stage.is_broadcast { 1 } else { ranges };
            Ok(JobStage { name: stage.name.clone(), input, broadcasts, ranges, arguments: Value::Null })
        };
        let stages =
            fragment.stages().iter().enumerate().map(stage).collect::<std::result::Result<_, FileError>>()?;
        let texts = files.into_iter().map(|(path, files)| (path, files.texts.clone())).collect();
        let arguments = StageArguments { fragment: fragment.clone(), ranges, files: texts };
        Ok(StagesJob {
            kind: KIND,
            arguments: serde_json::to_value(&arguments).expect("plain data"),
            stages,
            slots: memory.slots,
            slot_bytes: memory.slot_bytes,
            options: Options::default(),
        })
    }
}

/// The rows of the last stage.
struct StagedRows {
    // The rows are dropped before the turn ends, since they hold the memory of the nodes.
    rows: ResultRows,
    _turn: Turn,
}

impl FragmentRows for StagedRows {
    fn next_within(&mut self, _wait: Duration) -> Result<Option<Option<RecordBatch>>> {
        match self.rows.next().transpose() {
            Ok(batch) => Ok(Some(batch)),
            Err(
                error @ (DriverError::OutputLost { .. }
                | DriverError::Nodes(inshore_nodes::Error::Lost { .. })),
            ) => Err(Error::Interrupted(error.to_string())),
            Err(error) => Err(failed_job(error)),
        }
    }
}

fn failed_job(error: DriverError) -> Error {
    FileError::from(error).into()
}
