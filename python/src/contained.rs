//! Queries in a process of their own: this extension in another interpreter, which has a limit of memory.
//!
//! ```text
//!   interpreter                                     sys.executable -S -s -c "... _native.work_apart(...)"
//!     run_apart: query, tables, folder ─────────────►  opens the store, runs the query
//!        columns, facts ◄───────────────────────────── begun
//!        rows, a message at a time ◄────────────────── batch: waits until the one before it was taken
//!        facts, or the exception ◄──────────────────── the end
//! ```
//!
//! The other interpreter loads nothing but the extension: no site packages, no pyarrow. See docs/decisions/0034 for what else there was.

use std::{
    collections::HashMap,
    env,
    ffi::OsString,
    os::unix::ffi::{OsStrExt, OsStringExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow_schema::{Schema, SchemaRef};
use inshore::{
    apart,
    neardata::{Failure, Reply, Task, Work},
    queries::reply_in_parts,
    sandbox::Helper,
    sql::{self, Query, Tables},
    store,
    tables::TableWriter,
};
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::Raised;

/// Its name, and of which version: another one may have been installed since this one was loaded.
pub(crate) const KIND: &str = concat!("query of inshore ", env!("CARGO_PKG_VERSION"));
/// The code of the other interpreter: its arguments are the folder of the extension, and the limits.
const CODE: &str =
    "import sys; sys.path[:] = sys.argv[1:2]; import _native; _native.work_apart(sys.argv[2:])";
/// The facts of a query that begins, in the metadata of its columns.
const FACTS: &str = "inshore.facts";
/// Names the interpreter, where it is not that of this process.
const INTERPRETER: &str = "INSHORE_PYTHON";

/// A question.
#[derive(Serialize, Deserialize)]
pub(crate) struct Asked {
    pub text: String,
    /// Each with its files.
    pub tables: Vec<(String, Vec<Name>)>,
    pub as_text: Vec<String>,
    pub header: Option<bool>,
    /// Where names of files begin.
    pub folder: Name,
    /// The file for the rows.
    pub output: Option<Name>,
}

/// A name of a file: any bytes.
#[derive(Serialize, Deserialize)]
pub(crate) struct Name(Vec<u8>);

impl Name {
    pub(crate) fn of(path: &Path) -> Name {
        Name(path.as_os_str().as_bytes().to_vec())
    }

    fn path(self) -> PathBuf {
        OsString::from_vec(self.0).into()
    }
}

/// Facts about a query.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Facts {
    pub summary: Value,
    /// The report of its job in the other process.
    pub report: Value,
    /// Rows that were written to the file.
    pub written: u64,
}

impl Facts {
    fn of(query: &Query, job: &store::Job) -> Facts {
        Facts { summary: json!(query.report()), report: json!(job.report()), written: 0 }
    }

    /// These columns with the facts of a query that begins.
    fn with(&self, columns: &SchemaRef) -> SchemaRef {
        let text = serde_json::to_string(self).expect("plain facts");
        let metadata = columns.metadata().clone().into_iter().chain([(FACTS.to_string(), text)]);
        Arc::new(Schema::new_with_metadata(columns.fields().clone(), metadata.collect::<HashMap<_, _>>()))
    }

    /// The columns without the facts, and these.
    pub(crate) fn taken(columns: &SchemaRef) -> Option<(SchemaRef, Facts)> {
        let mut metadata = columns.metadata().clone();
        let facts = serde_json::from_str(&metadata.remove(FACTS)?).ok()?;
        Some((Arc::new(Schema::new_with_metadata(columns.fields().clone(), metadata)), facts))
    }
}

/// How a query ended in its process.
#[derive(Serialize, Deserialize)]
pub(crate) enum End {
    Done(Facts),
    Failed(Raised),
}

/// The work of running a whole query.
struct Queries;

impl Work for Queries {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn smallest_memory_bytes(&self) -> u64 {
        sql::smallest_memory_bytes()
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let asked: Asked = serde_json::from_value(task.arguments)?;
        let end = match answer(&task.job, asked, reply) {
            Ok(facts) => End::Done(facts),
            Err(Stopped::Query(error)) => End::Failed(Raised::of_sql(error)),
            Err(Stopped::Reply(failure)) => return Err(failure),
        };
        Ok(serde_json::to_value(end)?)
    }
}

/// Why a query did not come to its end.
enum Stopped {
    Query(sql::Error),
    /// There is nobody to answer.
    Reply(Failure),
}

impl From<sql::Error> for Stopped {
    fn from(error: sql::Error) -> Stopped {
        Stopped::Query(error)
    }
}

fn answer(job: &store::Job, asked: Asked, reply: &mut dyn Reply) -> Result<Facts, Stopped> {
    let folder = asked.folder.path();
    env::set_current_dir(&folder)
        .map_err(|error| sql::Error::Store(store::Error::io("work in folder", &folder, error)))?;
    let mut tables = Tables::default().with_text(&asked.as_text).with_header(asked.header.into());
    for (name, paths) in asked.tables {
        let paths: Vec<PathBuf> = paths.into_iter().map(Name::path).collect();
        tables = tables.with_files(&name, &paths);
    }
    let mut query = Query::start(job, &asked.text, tables)?;
    let columns = Facts::of(&query, job).with(query.schema());
    reply.begun(&columns).map_err(Stopped::Reply)?;
    let written = match asked.output {
        Some(path) => write(&mut query, job, &path.path())?,
        None => {
            while let Some(batch) = query.next_batch()? {
                reply_in_parts(reply, &batch).map_err(Stopped::Reply)?;
            }
            0
        }
    };
    Ok(Facts { written, ..Facts::of(&query, job) })
}

fn write(query: &mut Query, job: &store::Job, path: &Path) -> sql::Result<u64> {
    match write_rows(query, job, path) {
        // A row shows that columns of a table were guessed wrong: the file is written from its beginning.
        Err(sql::Error::Table(error)) if error.is_contradiction() => match query.begin_exactly() {
            Ok(true) => write_rows(query, job, path),
            Ok(false) => Err(error.into()),
            Err(error) => Err(error),
        },
        written => written,
    }
}

fn write_rows(query: &mut Query, job: &store::Job, path: &Path) -> sql::Result<u64> {
    let mut writer = TableWriter::create(path, query.schema().clone(), job.budget())?;
    while let Some(batch) = query.next_batch()? {
        writer.write(&batch)?;
    }
    Ok(writer.finish()?)
}

/// Names the program that becomes the other interpreter.
pub(crate) fn helper(py: Python<'_>) -> PyResult<Helper> {
    let sys = py.import("sys")?;
    let is_frozen = sys.getattr("frozen").is_ok_and(|frozen| frozen.is_truthy().unwrap_or(true));
    let own = sys.getattr("executable")?.extract::<Option<PathBuf>>()?;
    let own = own.filter(|path| !is_frozen && !path.as_os_str().is_empty());
    let Some(program) = env::var_os(INTERPRETER).map(PathBuf::from).or(own) else {
        let what = format!(
            "this program is no Python that could be started once more for a query: {INTERPRETER} has to name one, of the same version"
        );
        return Err(Raised::other(what).raise());
    };
    let extension: PathBuf = py.import("inshore._native")?.getattr("__file__")?.extract()?;
    let folder = extension.parent().unwrap_or(Path::new("/")).to_path_buf();
    let args = ["-S", "-s", "-c", CODE].map(OsString::from).into_iter().chain([folder.into_os_string()]);
    Ok(Helper::at(program).by_its_path().with_args(args))
}

/// Works for another process of ours, which started this one with these limits, and never returns.
#[pyfunction]
pub(crate) fn work_apart(py: Python<'_>, limits: Vec<String>) {
    let limits: Vec<OsString> = limits.into_iter().map(OsString::from).collect();
    py.detach(|| apart::apart_main(&limits, &[&Queries]))
}
