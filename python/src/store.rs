//! Wraps the store for Python.

use std::path::PathBuf;

use inshore::{
    graph,
    store::{self, default_store_path},
};
use pyo3::prelude::*;

use crate::{
    error::to_python,
    files::{self, Files},
    graph::Graph,
    job::Job,
};

/// A folder of named graphs.
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Store(store::Store);

#[cfg(any(feature = "nodes", feature = "vectors"))]
impl Store {
    /// Returns the underlying store.
    pub(crate) fn get(&self) -> store::Store {
        self.0.clone()
    }
}

#[pymethods]
impl Store {
    #[new]
    #[pyo3(signature = (path=None))]
    fn new(py: Python<'_>, path: Option<PathBuf>) -> PyResult<Store> {
        let Some(path) = path.or_else(default_store_path) else {
            return Err(to_python(graph::Error::BadOption {
                option: "path",
                found: "None, and neither INSHORE_STORE nor HOME is set".into(),
                expected: "a folder".into(),
            }));
        };
        py.detach(|| store::Store::open(path)).map(Store).map_err(to_python)
    }

    /// Returns the folder of the store.
    #[getter]
    fn path(&self) -> PathBuf {
        self.0.path().to_path_buf()
    }

    /// Opens a graph.
    fn graph(&self, py: Python<'_>, name: &str) -> PyResult<Graph> {
        py.detach(|| graph::Graph::open(&self.0, name)).map(Graph).map_err(to_python)
    }

    /// Starts a job.
    #[pyo3(signature = (memory=None, threads=None))]
    fn job(&self, memory: Option<&Bound<'_, PyAny>>, threads: Option<&Bound<'_, PyAny>>) -> PyResult<Job> {
        Job::start(&self.0, memory, threads)
    }

    /// Returns name, number, kind and size of each dataset, as a JSON list.
    fn datasets(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| files::datasets(&self.0))
    }

    /// Returns the properties of a dataset and its files, as JSON.
    fn dataset_files(&self, py: Python<'_>, name: &str) -> PyResult<String> {
        py.detach(|| files::files(&self.0, name))
    }

    /// Starts a job that reads and writes files of datasets.
    #[pyo3(signature = (memory=None))]
    fn files(&self, memory: Option<&Bound<'_, PyAny>>) -> PyResult<Files> {
        Files::start(&self.0, memory)
    }
}
