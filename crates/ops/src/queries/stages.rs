//! This module runs the fragments of a query that have several stages: joins, groups and windows over tables on the
//! nodes of a cluster.
//!
//! ```text
//!   client:  plan ─► fragment with stages ─► job in stages ─► rows of the last stage ─► rest of the plan
//!   node:    the same plan ─► its stage ─► map:   shards ─► rows by ranges of the exchange
//!                                          merge: one range of each exchange ─► rows by ranges, or the result
//! ```
//!
//! Each attempt runs its stage with the memory of its slot. Operators that exceed it continue on the node's drive. One
//! fragment of a query runs at a time, since each job holds memory and a queue slot of all nodes.

use std::{
    collections::BTreeMap,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};

use arrow_array::RecordBatch;
use inshore_kernel::{Failure, Sources};
use inshore_nodes::{DistributedFile, compact};
use inshore_sql::{
    Error, Fragment, FragmentInput, FragmentRows, Result, StageRows, run_stage, smallest_memory_bytes,
};
use inshore_stages::{
    DriverError, InputPartition, JobInput, JobStage, MergeInputs, Options, OutputWriter, RangeInput,
    ResultRows, StageTask, StageWork, StagesJob,
};
use inshore_store::{Context, Job, format_bytes};
use serde::{Deserialize, Serialize};

use super::{NodeTables, State, feed_of};
use crate::{
    files::{Error as FileError, FileText, Files},
    job_memory::JobMemory,
};

/// The part of a slot for encoded rows that wait for their ranges.
const BUFFER_PART: u64 = 16;
/// The part of a slot that fetched ranges may take. Operators get the rest.
const FETCHED_PART: u64 = 8;
/// The interval at which a fragment that waits for another one checks for cancellation.
const LOOK: Duration = Duration::from_millis(50);

/// Returns the smallest memory of a slot: that of a query and of its buffers.
fn slot_bytes_min() -> u64 {
    smallest_memory_bytes() / 4 * 5
}

/// The arguments of a job.
#[derive(Serialize, Deserialize)]
struct StageArguments {
    fragment: Fragment,
    ranges: u32,
    /// The files of each table, by the path of the table.
    files: BTreeMap<String, Vec<FileText>>,
}

impl StageArguments {
    fn of(task: &StageTask<'_>) -> std::result::Result<StageArguments, Failure> {
        Ok(serde_json::from_value(task.arguments.clone())?)
    }

    /// Runs a stage, and writes its rows to the output of its attempt.
    fn run(
        &self,
        task: &StageTask<'_>,
        input: StageRows,
        output: &mut OutputWriter,
    ) -> std::result::Result<(), Failure> {
        output.set_buffer(task.job, task.job.budget().memory_bytes() / BUFFER_PART)?;
        let mut failed = None;
        let each = |range: u32, batch: RecordBatch| {
            output.batch(range, &compact(batch)).map_err(|failure| {
                failed = Some(failure);
                Error::Store(inshore_store::Error::Cancelled)
            })
        };
        let ran = run_stage(task.job, &self.fragment, (task.stage as usize, self.ranges), input, each);
        match (failed, ran) {
            (Some(failure), _) => Err(failure),
            // By an error of the store, a node sees that its disk is full.
            (None, Err(Error::Store(error))) => Err(error.into()),
            (None, ran) => Ok(ran.map(drop)?),
        }
    }
}

/// The code of the stages of queries.
#[derive(Debug)]
pub struct QueryStages;

impl StageWork for QueryStages {
    fn kind(&self) -> &'static str {
        "sql"
    }

    fn kept_bytes(&self, slot_bytes: u64, _: u64) -> u64 {
        slot_bytes - slot_bytes / FETCHED_PART
    }

    fn map(
        &self,
        task: &StageTask<'_>,
        input: Sources,
        output: &mut OutputWriter,
    ) -> std::result::Result<(), Failure> {
        let arguments = StageArguments::of(task)?;
        let (fragment, stage) = (&arguments.fragment, task.stage as usize);
        let files = fragment.path_of(stage).and_then(|path| arguments.files.get(path));
        let files = files.ok_or("the request does not describe the table of the stage")?.clone();
        let known = fragment.known_of(stage).ok_or("the fragment does not describe its table")?.clone();
        let feed = feed_of(task.job, files, known, input)?;
        arguments.run(task, StageRows::Files(feed), output)
    }

    fn merge(
        &self,
        task: &StageTask<'_>,
        inputs: MergeInputs,
        output: &mut OutputWriter,
    ) -> std::result::Result<(), Failure> {
        let rows = inputs.ranges.into_iter().map(|ranges| rows_of(task.job.clone(), ranges)).collect();
        StageArguments::of(task)?.run(task, StageRows::Exchanges(rows), output)
    }
}

/// Reads ranges one after the other. A range is opened when the one before it has ended.
fn rows_of(job: Job, ranges: Vec<RangeInput>) -> Box<dyn Iterator<Item = Result<RecordBatch>> + Send> {
    let of_store = |failure: Failure| match failure.downcast::<inshore_store::Error>() {
        Ok(error) => Error::Store(*error),
        Err(failure) => Error::Internal(format!("a range of an exchange cannot be read: {failure}")),
    };
    let rows = ranges.into_iter().flat_map(move |range| {
        let (reader, error) = match range.open(&job) {
            Ok(reader) => (Some(reader), None),
            Err(failure) => (None, Some(Err(failure))),
        };
        reader.into_iter().flatten().chain(error)
    });
    Box::new(rows.map(move |batch| batch.map_err(of_store)))
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
        let ran = inshore_stages::run(&self.nodes, job, &stages_job);
        let finished = ran.map_err(|error| Error::from(FileError::from(error)))?;
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
            Ok(JobStage { name: stage.name.clone(), input, ranges })
        };
        let stages =
            fragment.stages().iter().enumerate().map(stage).collect::<std::result::Result<_, FileError>>()?;
        let texts = files.into_iter().map(|(path, files)| (path, files.texts.clone())).collect();
        let arguments = StageArguments { fragment: fragment.clone(), ranges, files: texts };
        Ok(StagesJob {
            kind: QueryStages.kind(),
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
