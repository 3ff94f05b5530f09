//! This module runs WebAssembly kernels on nodes. It defines the task that a node runs, and the client's function
//! that merges the answers of the nodes.

use std::sync::{Arc, Mutex};

use arrow_array::{Array, ArrayRef, BinaryArray, RecordBatch, cast::AsArray};
use arrow_schema::{DataType, Field, Schema};
use inshore_kernel::{
    Error as ReadError, Event, Failure, Next, Portable, Reply, RequiredRight, Task, TaskHandler, answer_parts,
};
use inshore_nodes::{
    DistributedFile, Error as NodesError, GatherReport, Nodes, RunOptions, run_on_nodes, stream_from_nodes,
};
use inshore_sandbox::WasmResult;
use inshore_store::Context;
use serde::Deserialize;
use serde_json::Value;

use super::{Error, Output, Result, WASM, WasmKernel, WasmSummary, instances::State, module::parsed};
use crate::on_nodes::refuse_compressed;

/// The maximum number of bytes of a state in one message.
const BATCH_BYTES: usize = 1 << 20;

impl From<NodesError> for Error {
    fn from(error: NodesError) -> Error {
        Error::Read(match error {
            NodesError::Store(error) => ReadError::Store(error),
            error => ReadError::Stream(Box::new(error)),
        })
    }
}

/// Runs a kernel on the nodes that store the files. The result equals that of [`super::run_wasm`] for local files.
///
/// # Errors
/// Returns the errors of [`super::run_wasm`] and of the nodes.
pub fn run_wasm_on_nodes(
    nodes: &Nodes,
    job: &Context,
    kernel: &WasmKernel,
    wholes: &[DistributedFile],
    options: &RunOptions,
    output: Output<'_>,
) -> Result<(WasmSummary, GatherReport)> {
    refuse_compressed(nodes, job, wholes, options)?;
    if kernel.check()? == WasmResult::InOrder {
        let mut summary = WasmSummary::default();
        let gathered = run_on_nodes(nodes, job, kernel, wholes, options, |event: Event<'_, WasmKernel>| {
            if let Some(part) = event.part {
                let part = part?;
                summary.output_bytes += part.len() as u64;
                output(&part).map_err(Error::Write)?;
            }
            Ok::<_, Error>(Next::Go)
        })?;
        return Ok((summary, gathered));
    }
    // The client starts one instance, which merges the states of all nodes.
    let job = &job.within(job.budget().part(job.budget().free_bytes() / 2, 1, "merging states of nodes")?);
    kernel.prepare(job)?;
    let limit = kernel.prepared().limits.memory_bytes;
    let mut last = kernel.take(&kernel.prepared().instances[0])?.expect("just started");
    let mut summary = WasmSummary::default();
    let mut streams = stream_from_nodes(nodes, job, (WASM, true), kernel.arguments(), wholes, options)?;
    let mut stream = 0;
    while stream < streams.len() {
        let mut state =
            State { bytes: Vec::new(), memory: job.budget().reserve(0, "the state of a kernel")? };
        let why = loop {
            match streams.next(stream) {
                Ok(Some(batch)) => {
                    let bytes = state_of(&batch).ok_or_else(|| NodesError::BadAnswer {
                        node: streams.node(stream).to_string(),
                        what: "expected the state of a kernel".to_string(),
                    })?;
                    state.add(bytes, limit).map_err(|error| kernel.too_much(error, limit))?;
                }
                Ok(None) => break None,
                // Repeating the task on another node would not help: the module, the client's memory or the
                // deadline caused the error.
                Err(
                    error @ (NodesError::Store(_) | NodesError::Deadline { .. } | NodesError::Refused { .. }),
                ) => return Err(error.into()),
                Err(error) => break Some(error),
            }
        };
        match why {
            // The partial state is discarded, and another node repeats the task from the beginning.
            Some(error) => streams.replace(stream, &error)?,
            // A stream without a summary belongs to a task that got no shard, so there is no state to merge.
            None => {
                if let Some(told) = streams.summary(stream) {
                    let told = WasmSummary::deserialize(told).unwrap_or_default();
                    last.merge(&state.bytes).map_err(|source| kernel.failed(source))?;
                    summary.add_other(told);
                }
            }
        }
        stream += 1;
    }
    kernel.finish(*last, output, &mut summary)?;
    Ok((summary, streams.finish()))
}

/// The task handler that runs a WebAssembly module. The client sends the module or its name.
#[derive(Clone, Copy, Debug)]
pub struct WebAssembly;

impl TaskHandler for WebAssembly {
    fn kind(&self) -> &'static str {
        WASM
    }

    fn needs(&self) -> RequiredRight {
        RequiredRight::WebAssembly
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> std::result::Result<Value, Failure> {
        let Task { job, arguments, sources } = task;
        let kernel = WasmKernel::requested(&parsed(&arguments)?, Some(&job))?;
        let result = kernel.prepare(&job)?.result;
        let summary = match result {
            WasmResult::InOrder => {
                answer_parts(&job, &kernel, sources, reply)?;
                kernel.end().unwrap_or_default()
            }
            WasmResult::State => {
                let no_source = Mutex::new(None);
                let sources = sources.map_while(|source| match source {
                    Ok(source) => Some(source.source),
                    Err(failure) => {
                        *no_source.lock().expect("no panic under this lock") = Some(failure);
                        None
                    }
                });
                kernel.read(&job, sources, &mut |_| Ok(()))?;
                if let Some(failure) = no_source.into_inner().expect("no panic under this lock") {
                    return Err(failure);
                }
                let (mut last, mut summary) = kernel.merge(&job)?;
                let state = kernel.state(&job, &mut last)?;
                summary.add(&last.end().map_err(|source| kernel.failed(source))?);
                state.bytes.chunks(BATCH_BYTES).try_for_each(|piece| reply.batch(batch(piece)))?;
                summary
            }
        };
        job.check_cancelled()?;
        Ok(serde_json::to_value(summary)?)
    }
}

fn batch(bytes: &[u8]) -> RecordBatch {
    let schema = Arc::new(Schema::new(vec![Field::new("state", DataType::Binary, false)]));
    let column: ArrayRef = Arc::new(BinaryArray::from(vec![bytes]));
    RecordBatch::try_new(schema, vec![column]).expect("one column")
}

/// Returns the bytes of a state in a batch. Returns `None` if the batch is not one row of bytes.
fn state_of(batch: &RecordBatch) -> Option<&[u8]> {
    let column = batch.columns().first()?.as_binary_opt::<i32>()?;
    (column.len() == 1).then(|| column.value(0))
}

impl WasmSummary {
    fn add_other(&mut self, other: WasmSummary) {
        self.instances += other.instances;
        self.cpu_seconds += other.cpu_seconds;
        self.memory_bytes_max = self.memory_bytes_max.max(other.memory_bytes_max);
        self.log.push_str(&other.log);
        self.protections = other.protections;
    }
}
