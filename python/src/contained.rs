//! Runs queries in a child process: another interpreter with a memory limit loads this extension.
//!
//! ```text
//!   interpreter                                     sys.executable -S -s -c "... _native.child_main(...)"
//!     run_in_child: query, tables, folder ─────────────►  opens the store, runs the query
//!        columns, facts ◄───────────────────────────── begun
//!        rows, a message at a time ◄────────────────── batch: waits until the previous one was taken
//!        facts, or the exception ◄──────────────────── the end
//! ```
//!
//! The other interpreter loads only the extension: no site packages, no pyarrow. docs/decisions/0034 lists
//! the rejected alternatives.

use std::{
    env,
    ffi::OsString,
    path::{Path, PathBuf},
};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use inshore::{
    child_process,
    kernel::{Failure, Reply, Task, TaskHandler},
    ops::{
        self, Attachments, Request, RowReceiver, Target,
        verbs::{NamedTable, Sql},
    },
    queries::reply_in_parts,
    sandbox::Helper,
    sql,
    store::{self, Execution},
};
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    error::PendingException,
    nodes::{Connection, Name},
};

/// The name of the child's task. The name includes the version, since another version may have been installed after
/// this version was loaded.
pub(crate) const KIND: &str = concat!("query of inshore ", env!("CARGO_PKG_VERSION"));
/// The program of the other interpreter; its arguments are the folder of the extension, and the limits.
const CODE: &str =
    "import sys; sys.path[:] = sys.argv[1:2]; import _native; _native.child_main(sys.argv[2:])";
/// The environment variable that names an interpreter other than the current one.
const INTERPRETER: &str = "INSHORE_PYTHON";

/// A query with its tables and its output.
#[derive(Serialize, Deserialize)]
pub(crate) struct QueryRequest {
    /// The request of the operation, without file names.
    pub request: Value,
    /// The tables, each with its files.
    pub tables: Vec<(String, Vec<Name>)>,
    /// The working folder, for relative file names.
    pub folder: Name,
    /// The output file for the rows.
    pub output: Option<Name>,
    /// The nodes that hold tables.
    pub nodes: Option<Connection>,
}

/// The outcome of a query in its process.
#[derive(Serialize, Deserialize)]
pub(crate) enum End {
    /// The answer, and the counters of the child's job.
    Done {
        summary: Value,
        report: Value,
    },
    Failed(PendingException),
}

/// The task that runs a complete query.
struct QueryHandler;

impl TaskHandler for QueryHandler {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn smallest_memory_bytes(&self) -> u64 {
        sql::smallest_memory_bytes()
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let asked: QueryRequest = serde_json::from_value(task.arguments)?;
        let job = Execution::Stored(task.job);
        let end = match answer(&job, asked, reply) {
            Ok(summary) => End::Done { summary, report: json!(job.report()) },
            // The parent process has ended.
            Err(ops::Error::Rows(failure)) => return Err(failure),
            Err(error) => End::Failed(PendingException::of(&error)),
        };
        Ok(serde_json::to_value(end)?)
    }
}

/// Sends rows to the parent process.
struct RowSender<'a>(&'a mut dyn Reply);

impl RowReceiver for RowSender<'_> {
    fn begin(&mut self, schema: &SchemaRef, _job: &Execution) -> ops::Result<()> {
        self.0.begun(schema).map_err(ops::Error::Rows)
    }

    fn batch(&mut self, batch: RecordBatch) -> ops::Result<()> {
        reply_in_parts(self.0, &batch).map_err(ops::Error::Rows)
    }
}

fn answer(job: &Execution, asked: QueryRequest, reply: &mut dyn Reply) -> ops::Result<Value> {
    let folder = asked.folder.path();
    env::set_current_dir(&folder).map_err(|error| store::Error::io("work in folder", &folder, error))?;
    let mut request = Request::<Sql>::from_json(&asked.request)?;
    for (name, paths) in asked.tables {
        let one = |path: Name| NamedTable { name: name.clone(), path: path.path() };
        request.operation.tables.extend(paths.into_iter().map(one));
    }
    request.output = asked.output.map(Name::path);
    let target = match asked.nodes {
        None => Target::Local,
        Some(connection) => connection.open_target()?,
    };
    let mut rows = RowSender(reply);
    let beside = Attachments { rows: Some(&mut rows), ..Attachments::default() };
    let done = request.plan(&target)?.run(job, beside)?;
    Ok(json!(done))
}

/// Returns the program that runs as the other interpreter.
pub(crate) fn helper(py: Python<'_>) -> PyResult<Helper> {
    let sys = py.import("sys")?;
    let is_frozen = sys.getattr("frozen").is_ok_and(|frozen| frozen.is_truthy().unwrap_or(true));
    let own = sys.getattr("executable")?.extract::<Option<PathBuf>>()?;
    let own = own.filter(|path| !is_frozen && !path.as_os_str().is_empty());
    let Some(program) = env::var_os(INTERPRETER).map(PathBuf::from).or(own) else {
        let what = format!(
            "this program is not a Python interpreter, which a query needs for its child process: set {INTERPRETER} to an interpreter of the same version"
        );
        return Err(PendingException::other(what).raise());
    };
    let extension: PathBuf = py.import("inshore._native")?.getattr("__file__")?.extract()?;
    let folder = extension.parent().unwrap_or(Path::new("/")).to_path_buf();
    let args = ["-S", "-s", "-c", CODE].map(OsString::from).into_iter().chain([folder.into_os_string()]);
    Ok(Helper::at(program).by_its_path().with_args(args))
}

/// Runs the task that the parent process sends, within these limits, and never returns.
#[pyfunction]
pub(crate) fn child_main(py: Python<'_>, limits: Vec<String>) {
    let limits: Vec<OsString> = limits.into_iter().map(OsString::from).collect();
    py.detach(|| child_process::child_main(&limits, &[&QueryHandler]))
}
