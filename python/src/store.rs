//! The store, and the creation of graphs in it.

use std::path::PathBuf;

use inshore::{
    graph::{self, EdgeFormat, ImportOptions, Kronecker},
    store::{self, default_store_path},
    tables::Input,
};
use pyo3::prelude::*;

use crate::{
    error::{to_python, whole},
    files::{self, Files},
    graph::Graph,
    job::{Job, run, to_json},
    run::file,
};

/// A folder of named graphs.
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Store(store::Store);

#[cfg(feature = "nodes")]
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

    /// Returns the properties of each graph, as a JSON list.
    fn graphs(&self, py: Python<'_>) -> PyResult<String> {
        to_json(&py.detach(|| graph::list(&self.0)).map_err(to_python)?)
    }

    /// Opens a graph.
    fn graph(&self, py: Python<'_>, name: &str) -> PyResult<Graph> {
        py.detach(|| graph::Graph::open(&self.0, name)).map(Graph).map_err(to_python)
    }

    /// Removes a graph.
    fn remove(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        py.detach(|| self.0.remove(name)).map_err(to_python)
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

    /// Imports edges from files.
    #[pyo3(signature = (
        job, name, paths, *, format=None, undirected=false, drop_loops=false, weighted=false, reverse=false,
        source_column=None, target_column=None, weight_column=None,
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn import_edges(
        &self,
        py: Python<'_>,
        job: &Job,
        name: String,
        paths: Vec<PathBuf>,
        format: Option<&str>,
        undirected: bool,
        drop_loops: bool,
        weighted: bool,
        reverse: bool,
        source_column: Option<String>,
        target_column: Option<String>,
        weight_column: Option<String>,
    ) -> PyResult<Graph> {
        let options = ImportOptions {
            undirected,
            drop_loops,
            weighted: weighted || weight_column.is_some(),
            reverse,
            format: format.map(read_format).transpose()?,
            source_column,
            target_column,
            weight_column,
        };
        let store = self.0.clone();
        let inputs: Vec<Input> = paths.into_iter().map(|path| Input::new(file(path))).collect();
        run(py, &job.get()?, move |job| {
            graph::import(&store, job, &name, &inputs, &options)?;
            graph::Graph::open(&store, &name)
        })
        .map(Graph)
    }

    /// Generates a graph by the rules of Graph500.
    #[pyo3(signature = (job, name, *, scale, edge_factor, seed, reverse))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn generate_kronecker(
        &self,
        py: Python<'_>,
        job: &Job,
        name: String,
        scale: &Bound<'_, PyAny>,
        edge_factor: &Bound<'_, PyAny>,
        seed: &Bound<'_, PyAny>,
        reverse: bool,
    ) -> PyResult<Graph> {
        let kronecker = Kronecker {
            scale: whole("scale", scale)?,
            edge_factor: whole("edge_factor", edge_factor)?,
            seed: whole("seed", seed)?,
        };
        let store = self.0.clone();
        run(py, &job.get()?, move |job| {
            graph::generate(&store, job, &name, &kronecker, reverse)?;
            graph::Graph::open(&store, &name)
        })
        .map(Graph)
    }
}

fn read_format(text: &str) -> PyResult<EdgeFormat> {
    text.parse().map_err(to_python)
}
