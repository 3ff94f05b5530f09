//! Queries on their way to Python.

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use inshore::{
    sql::{self, Query, Tables},
    store,
    tables::TableWriter,
};
use pyo3::{prelude::*, types::PyCapsule};

use crate::{
    answer::{Batch, file, schema_capsule},
    error::sql_to_python,
    job::{Job, run, to_json},
};

/// A query that runs, whose rows can be had once.
#[pyclass(frozen, module = "inshore._native", name = "Query")]
pub(crate) struct Asked {
    job: store::Job,
    schema: SchemaRef,
    running: Arc<Mutex<Running>>,
}

struct Running {
    /// `None` after the last row, after an error, and once closed: then the job's memory is handed back.
    query: Option<Query>,
    /// What was done, as JSON.
    summary: String,
}

impl Running {
    fn close(&mut self) {
        if let Some(query) = self.query.take() {
            self.summary = summary(&query);
        }
    }
}

fn summary(query: &Query) -> String {
    to_json(&query.report()).unwrap_or_default()
}

fn lock(running: &Mutex<Running>) -> MutexGuard<'_, Running> {
    running.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Starts a query; each table has a name and files, and `text` names columns of CSV and JSON lines that are text.
#[pyfunction]
pub(crate) fn query(
    py: Python<'_>,
    job: &Job,
    text: String,
    tables: Vec<(String, Vec<PathBuf>)>,
    as_text: Vec<String>,
    header: Option<bool>,
) -> PyResult<Asked> {
    let job = job.get()?;
    let start = move |job: &store::Job| {
        let mut all = Tables::default().with_text(&as_text).with_header(header.into());
        for (name, paths) in tables {
            let paths: Vec<PathBuf> = paths.into_iter().map(file).collect();
            all = all.with_files(&name, &paths);
        }
        Ok(Query::start(job, &text, all))
    };
    let query = run(py, &job, start)?.map_err(sql_to_python)?;
    let (schema, summary) = (query.schema().clone(), summary(&query));
    let running = Arc::new(Mutex::new(Running { query: Some(query), summary }));
    Ok(Asked { job, schema, running })
}

#[pymethods]
impl Asked {
    /// Facts about the run so far, as JSON.
    #[getter]
    fn summary(&self) -> String {
        lock(&self.running).summary.clone()
    }

    /// The columns, as Arrow's C schema.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.schema)
    }

    /// The next rows, some thousands at most; `None` at the end.
    fn next_batch(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        let running = self.running.clone();
        let next = move |_: &store::Job| {
            let mut running = lock(&running);
            let Some(query) = running.query.as_mut() else { return Ok(Ok(None)) };
            let next: sql::Result<Option<RecordBatch>> = query.next_batch();
            if !matches!(next, Ok(Some(_))) {
                running.close();
            }
            Ok(next)
        };
        let batch = run(py, &self.job, next)?.map_err(sql_to_python)?;
        Ok(batch.map(Batch::new))
    }

    /// Writes all rows to the file `path`, whose ending chooses the format, and gives their number.
    fn write(&self, py: Python<'_>, path: PathBuf) -> PyResult<u64> {
        let running = self.running.clone();
        let write = move |job: &store::Job| Ok(write(&mut lock(&running), job, file(path)));
        run(py, &self.job, write)?.map_err(sql_to_python)
    }

    /// Lets go of the rows that were not read.
    fn close(&self, py: Python<'_>) {
        py.detach(|| lock(&self.running).close());
    }
}

fn write(running: &mut Running, job: &store::Job, path: PathBuf) -> sql::Result<u64> {
    let query = running.query.as_mut().ok_or(store::Error::Cancelled)?;
    let written = match write_rows(query, job, &path) {
        // A row shows that columns of a table were guessed wrong: the file is written from its beginning.
        Err(sql::Error::Table(error)) if error.is_contradiction() => match query.begin_exactly() {
            Ok(true) => write_rows(query, job, &path),
            Ok(false) => Err(error.into()),
            Err(error) => Err(error),
        },
        written => written,
    };
    running.close();
    written
}

fn write_rows(query: &mut Query, job: &store::Job, path: &Path) -> sql::Result<u64> {
    let mut writer = TableWriter::create(path, query.schema().clone(), job.budget())?;
    while let Some(batch) = query.next_batch()? {
        writer.write(&batch)?;
    }
    Ok(writer.finish()?)
}
