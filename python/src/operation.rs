//! Starts the run of an operation from a request in JSON, a target and a job.

use std::{
    path::PathBuf,
    sync::{Arc, Mutex},
    time::Duration,
};

use arrow_array::{RecordBatch, StringArray, UInt64Array};
use arrow_schema::{DataType, Field, Schema};
use inshore::{graph, store::Execution, tables};
use inshore_ops::{self as ops, Attachments, Names, Target, named};
use pyo3::{exceptions::PyValueError, prelude::*};
use serde_json::Value;

#[cfg(not(feature = "nodes"))]
use crate::absent::Nodes;
#[cfg(feature = "nodes")]
use crate::nodes::Nodes;
use crate::{
    error::{PendingException, to_python},
    graph::Graph,
    job::Job,
    run::{RowQueue, Run, RunFacts, file, start},
};

/// The longest wait for compression to stop after a signal: zstd works on a block of 32 MiB for ten seconds
/// or more without a check.
const STOP_PATIENCE: Duration = Duration::from_millis(800);

/// Starts an operation, locally or on nodes. `inputs` and `output` are not part of the request; `tables` are the named
/// tables of a query with their files, and `graph` is the open graph of the input. With `skip`, unreadable inputs are
/// skipped; otherwise the first one ends the run.
#[pyfunction]
#[pyo3(signature = (
    job, request, *, inputs, output=None, tables=None, nodes=None, graph=None, skip=false,
))]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn operate(
    py: Python<'_>,
    job: &Job,
    request: &str,
    inputs: Vec<PathBuf>,
    output: Option<PathBuf>,
    tables: Option<Vec<(String, Vec<PathBuf>)>>,
    nodes: Option<&Nodes>,
    graph: Option<&Graph>,
    skip: bool,
) -> PyResult<Run> {
    let request: Value =
        serde_json::from_str(request).map_err(|error| PyValueError::new_err(error.to_string()))?;
    let entry = named(&request).map_err(|error| unknown(&request, error))?;
    #[cfg(feature = "sql")]
    if entry.name == "sql" {
        return crate::sql::query(py, job, request, tables.unwrap_or_default(), output, nodes);
    }
    let _ = (py, tables);
    let inputs = inputs.into_iter().map(file).collect();
    let gives_best = entry.name == "count words" && request["top"].as_u64() > Some(0);
    // The run writes the output of operations that return rows; all other operations write their own output.
    let is_algorithm = graph.is_some() && entry.name != "graph export";
    let (of_run, output) = match gives_best || is_algorithm || entry.name == "search" {
        true => (output, None),
        false => (None, output.map(file)),
    };
    let names = Names { inputs, output };
    #[cfg(feature = "nodes")]
    let target = nodes.map_or(Target::Local, Nodes::target);
    #[cfg(not(feature = "nodes"))]
    let target = nodes.map_or(Target::Local, |_| Target::Local);
    let patience = match entry.name {
        "compress" | "decompress" => STOP_PATIENCE,
        _ => Duration::MAX,
    };
    let graph = graph.map(|graph| graph.0.clone());
    start(job.execution()?, of_run, patience, move |job, out| {
        let answer = work(entry, &request, names, &target, graph.as_ref(), job, out, skip)?;
        if gives_best {
            give_best(&answer["top"], job, out)?;
        }
        Ok(RunFacts::of(&answer))
    })
}

/// Runs an operation. The first input that fails ends the operation, unless such inputs are skipped.
#[expect(clippy::too_many_arguments, reason = "all of them come from one call")]
fn work(
    entry: &ops::Entry,
    request: &Value,
    names: Names,
    target: &Target,
    graph: Option<&graph::Graph>,
    job: &Execution,
    out: &mut RowQueue,
    skip: bool,
) -> Result<Value, PendingException> {
    let first = Mutex::new(None);
    let skips = out.skips();
    let failed = |error: &ops::Error| {
        // If the run is closed, the skipped input cannot be reported, and the operation ends.
        let is_told = skip && skips(error.to_string()).is_ok();
        if !is_told {
            first
                .lock()
                .expect("no panic under this lock")
                .get_or_insert_with(|| PendingException::of(error));
            job.cancel().cancel();
        }
    };
    let beside = Attachments { failed: Some(&failed), rows: Some(out), graph, ..Attachments::default() };
    let answer = entry.run_named(request, names, target, job, beside);
    match first.into_inner().expect("no panic under this lock") {
        Some(raised) => Err(raised),
        None => Ok(answer?),
    }
}

/// Sends the most frequent words of the answer, pairs of word and count, as rows.
fn give_best(best: &Value, job: &Execution, out: &mut RowQueue) -> tables::Result<()> {
    let pairs = best.as_array().into_iter().flatten();
    let (words, counts): (Vec<&str>, Vec<u64>) =
        pairs.filter_map(|pair| Some((pair[0].as_str()?, pair[1].as_u64()?))).unzip();
    let field = |name, kind| Field::new(name, kind, false);
    let schema = Arc::new(Schema::new(vec![field("word", DataType::Utf8), field("count", DataType::UInt64)]));
    let columns = vec![Arc::new(StringArray::from(words)) as _, Arc::new(UInt64Array::from(counts)) as _];
    let rows = RecordBatch::try_new(schema.clone(), columns).expect("two columns of one length");
    out.begin(&schema, job.budget())?;
    out.batch(rows)?;
    out.end()
}

/// Returns the exception for an operation that this build lacks.
fn unknown(request: &Value, error: ops::Error) -> PyErr {
    #[cfg(not(feature = "full"))]
    if let Some(error) = request["operation"].as_str().and_then(crate::absent::lacking) {
        return error;
    }
    let _ = request;
    to_python(error)
}
