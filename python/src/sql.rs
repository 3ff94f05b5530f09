//! Runs queries in child processes, and passes their rows to Python.

use std::{env, path::PathBuf, time::Duration};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use inshore::{
    child_process::run_in_child,
    kernel::{Failure, Reply},
    query_process::{describe_end, limits},
    sandbox::{ChildFailure, Helper, WorkerEnd},
    store::{self, Budget},
};
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::{
    contained::{End, KIND, QueryRequest, helper},
    error::{PendingException, to_python},
    job::Job,
    nodes::{Name, Nodes},
    run::{RowQueue, Run, RunFacts, file, start},
};

/// The counters of a job that come from the query's process.
const OF_PROCESS: [&str; 7] = [
    "memory_reserved_bytes_max",
    "memory_resident_bytes_max",
    "direct_io",
    "io",
    "drive_floor",
    "phases",
    "levels",
];

/// Passes rows on. The process waits until the rows are taken.
struct RowForwarder<'a> {
    out: &'a mut RowQueue,
    budget: &'a Budget,
}

impl Reply for RowForwarder<'_> {
    fn begun(&mut self, columns: &SchemaRef) -> Result<(), Failure> {
        Ok(self.out.begin(columns, self.budget)?)
    }

    fn batch(&mut self, batch: RecordBatch) -> Result<(), Failure> {
        Ok(self.out.batch(batch)?)
    }
}

/// Returns the names of the tables that a query reads; see [`inshore::sql::table_names`].
#[pyfunction]
pub(crate) fn table_names(py: Python<'_>, query: &str) -> Vec<String> {
    py.detach(|| inshore::sql::table_names(query))
}

/// Starts the query of a request; each of `tables` has a name and files. With an `output`, the process writes
/// the rows to that file.
pub(crate) fn query(
    py: Python<'_>,
    job: &Job,
    request: Value,
    tables: Vec<(String, Vec<PathBuf>)>,
    output: Option<PathBuf>,
    nodes: Option<&Nodes>,
) -> PyResult<Run> {
    let name = |path: PathBuf| Name::of(&file(path));
    let folder = env::current_dir();
    let folder =
        folder.map_err(|error| to_python(store::Error::io("find out", "the working folder", error)))?;
    let asked = QueryRequest {
        request,
        tables: tables
            .into_iter()
            .map(|(table, paths)| (table, paths.into_iter().map(name).collect()))
            .collect(),
        folder: Name::of(&folder),
        output: output.map(name),
        nodes: nodes.map(Nodes::connection),
    };
    let (stored, helper) = (job.get()?, helper(py)?);
    start(job.execution()?, None, Duration::MAX, move |_, out| ask(&stored, &helper, asked, out))
}

/// Runs a query in a child process, and passes its rows on.
fn ask(
    job: &store::Job,
    helper: &Helper,
    asked: QueryRequest,
    out: &mut RowQueue,
) -> Result<RunFacts, PendingException> {
    let limits = limits(job.budget());
    let mut passing = RowForwarder { out, budget: job.budget() };
    let end = run_in_child(helper, limits, job, KIND, json!(asked), &mut passing);
    let end = end.map_err(|failure| raised(failure, job.budget().memory_bytes()))?;
    let unexpected =
        |error| PendingException::other(format!("the query's process sent an invalid result: {error}"));
    match serde_json::from_value(end).map_err(unexpected)? {
        End::Done { summary, report } => {
            // The other counters are those of this process.
            let mut own = json!(job.report());
            for key in OF_PROCESS {
                if let Some(value) = report.get(key) {
                    own[key] = value.clone();
                }
            }
            Ok(RunFacts { summary, report: Some(own) })
        }
        End::Failed(raised) => Err(raised),
    }
}

fn raised(failure: Failure, budget_bytes: u64) -> PendingException {
    let failure = match failure.downcast::<store::Error>() {
        Ok(error) => return PendingException::of(&*error),
        Err(failure) => failure,
    };
    match failure.downcast::<ChildFailure>() {
        Ok(end) => match end.end() {
            WorkerEnd::TooLarge(doing) => {
                let doing = if doing.is_empty() { "reading the rows" } else { doing };
                PendingException::budget(describe_end(&WorkerEnd::TooLarge(doing.to_string()), budget_bytes))
            }
            WorkerEnd::Exited(_) => PendingException::other(format!("the query failed: {end}")),
            other => PendingException::other(describe_end(other, budget_bytes)),
        },
        Err(failure) => PendingException::other(format!("the query failed: {failure}")),
    }
}
