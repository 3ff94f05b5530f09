//! Rows on their way to Python.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard},
};

use arrow_array::{
    Array, RecordBatch, StructArray,
    ffi::{FFI_ArrowSchema, to_ffi},
};
use arrow_schema::SchemaRef;
use inshore::{
    graph::{self, Rows},
    store,
    tables::TableWriter,
};
use pyo3::{exceptions::PyValueError, prelude::*, types::PyCapsule};

use crate::{
    error::to_python,
    job::{run, to_json},
};

/// What an algorithm found: facts, and rows that can be had once.
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Answer {
    summary: String,
    schema: SchemaRef,
    /// `None` after the last row, after an error, and once closed: then the job's memory is handed back.
    rows: Mutex<Option<Rows>>,
}

impl Answer {
    pub(crate) fn new(answer: graph::Answer) -> PyResult<Answer> {
        Ok(Answer {
            summary: to_json(&answer.summary)?,
            schema: answer.rows.schema().clone(),
            rows: Mutex::new(Some(answer.rows)),
        })
    }

    fn rows(&self) -> MutexGuard<'_, Option<Rows>> {
        self.rows.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[pymethods]
impl Answer {
    /// Facts about the run, as JSON.
    #[getter]
    fn summary(&self) -> &str {
        &self.summary
    }

    /// The columns, as Arrow's C schema.
    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        schema_capsule(py, &self.schema)
    }

    /// The next rows, some thousands at most; `None` at the end.
    fn next_batch(&self, py: Python<'_>) -> PyResult<Option<Batch>> {
        py.detach(|| {
            let mut slot = self.rows();
            let Some(rows) = slot.as_mut() else { return Ok(None) };
            let next = rows.next_batch();
            if matches!(next, Ok(Some(_))) {
                return next;
            }
            let rows = slot.take();
            next?;
            rows.map_or(Ok(()), Rows::finish)?;
            Ok(None)
        })
        .map(|batch: Option<RecordBatch>| batch.map(Batch))
        .map_err(to_python)
    }

    /// Writes all rows to the file `path`, whose ending chooses the format, and gives their number.
    fn write(&self, py: Python<'_>, path: PathBuf) -> PyResult<u64> {
        let Some(rows) = py.detach(|| self.rows().take()) else {
            return Err(to_python(store::Error::Cancelled));
        };
        let job = rows.job().clone();
        run(py, &job, move |job| write(rows, job, file(path)))
    }

    /// Lets go of the rows that were not read.
    fn close(&self, py: Python<'_>) {
        py.detach(|| *self.rows() = None);
    }
}

/// Columns as Arrow's C schema.
pub(crate) fn schema_capsule<'py>(py: Python<'py>, schema: &SchemaRef) -> PyResult<Bound<'py, PyCapsule>> {
    let schema = FFI_ArrowSchema::try_from(schema.as_ref()).map_err(arrow_error)?;
    PyCapsule::new_with_value(py, schema, c"arrow_schema")
}

fn write(mut rows: Rows, job: &store::Job, path: PathBuf) -> graph::Result<u64> {
    let mut writer = TableWriter::create(&path, rows.schema().clone(), job.budget())?;
    let mut count = 0;
    while let Some(batch) = rows.next_batch()? {
        job.check_cancelled()?;
        count += batch.num_rows() as u64;
        writer.write(&batch)?;
    }
    writer.finish()?;
    rows.finish()?;
    Ok(count)
}

/// Some rows; `pyarrow.record_batch` and others take them without a copy.
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Batch(RecordBatch);

#[cfg(any(feature = "sql", feature = "text"))]
impl Batch {
    pub(crate) fn new(rows: RecordBatch) -> Batch {
        Batch(rows)
    }

    #[cfg(feature = "text")]
    pub(crate) fn rows(&self) -> &RecordBatch {
        &self.0
    }
}

#[pymethods]
impl Batch {
    /// Arrow's C schema and array. The capsules own what they hold, and share the buffers with this batch.
    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_array__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<(Bound<'py, PyCapsule>, Bound<'py, PyCapsule>)> {
        // The protocol lets a producer ignore the wish for other types.
        let _ = requested_schema;
        let (array, schema) = to_ffi(&StructArray::from(self.0.clone()).into_data()).map_err(arrow_error)?;
        Ok((
            PyCapsule::new_with_value(py, schema, c"arrow_schema")?,
            PyCapsule::new_with_value(py, array, c"arrow_array")?,
        ))
    }
}

fn arrow_error(error: arrow_schema::ArrowError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Refuses a path that no table can be written to, before hours of work and not after them.
#[pyfunction]
pub(crate) fn check_output(path: PathBuf) -> PyResult<()> {
    TableWriter::check_path(&file(path)).map_err(to_python)
}

/// A path as Python means it: `-` is a file of that name, not a standard stream.
pub(crate) fn file(path: PathBuf) -> PathBuf {
    if path == Path::new("-") { PathBuf::from("./-") } else { path }
}
