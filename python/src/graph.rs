//! Wraps a graph for Python.

use inshore::graph;
use pyo3::prelude::*;

use crate::job::to_json;

/// A graph with its files open, which [`operate`](crate::operation::operate) takes.
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Graph(pub(crate) graph::Graph);

#[pymethods]
impl Graph {
    /// Returns the properties of the graph, as JSON.
    #[getter]
    fn info(&self) -> PyResult<String> {
        to_json(self.0.info())
    }
}
