//! A graph and the algorithms on it.

use std::{path::PathBuf, time::Duration};

use inshore::graph::{
    self, BetweennessOptions, BfsOptions, ClusteringOptions, CommunitiesOptions, ComponentsOptions,
    PageRankOptions, SsspOptions, betweenness, bfs, clustering, communities, components, pagerank, sssp,
};
use pyo3::prelude::*;

use crate::{
    answer::{Answer, file},
    error::whole,
    job::{Job, run, to_json},
};

/// A graph with its files open.
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Graph(pub(crate) graph::Graph);

impl Graph {
    fn answer(
        &self,
        py: Python<'_>,
        job: &Job,
        work: impl FnOnce(&graph::Graph, &inshore::store::Job) -> graph::Result<graph::Answer> + Send + 'static,
    ) -> PyResult<Answer> {
        let graph = self.0.clone();
        Answer::new(run(py, &job.get()?, move |job| work(&graph, job))?)
    }
}

/// How often what was done is kept.
fn every(resume: bool) -> Option<Duration> {
    resume.then_some(Duration::from_secs(30))
}

#[pymethods]
impl Graph {
    /// What is known of it, as JSON.
    #[getter]
    fn info(&self) -> PyResult<String> {
        to_json(self.0.info())
    }

    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn pagerank(
        &self,
        py: Python<'_>,
        job: &Job,
        iterations: Option<&Bound<'_, PyAny>>,
        damping: f64,
        tolerance: f64,
        vertex_tolerance: Option<f64>,
        resume: bool,
    ) -> PyResult<Answer> {
        let usual = vertex_tolerance.map_or_else(PageRankOptions::default, PageRankOptions::converging);
        let iterations = match iterations {
            Some(iterations) => whole("iterations", iterations)?,
            None => usual.iterations,
        };
        let options = PageRankOptions { iterations, damping, tolerance, resume: every(resume), ..usual };
        self.answer(py, job, move |graph, job| pagerank(graph, job, &options))
    }

    fn bfs(&self, py: Python<'_>, job: &Job, source: &Bound<'_, PyAny>, resume: bool) -> PyResult<Answer> {
        let options = BfsOptions { resume: every(resume), ..BfsOptions::new(whole("source", source)?) };
        self.answer(py, job, move |graph, job| bfs(graph, job, &options))
    }

    fn sssp(&self, py: Python<'_>, job: &Job, source: &Bound<'_, PyAny>, resume: bool) -> PyResult<Answer> {
        let options = SsspOptions { resume: every(resume), ..SsspOptions::new(whole("source", source)?) };
        self.answer(py, job, move |graph, job| sssp(graph, job, &options))
    }

    fn communities(
        &self,
        py: Python<'_>,
        job: &Job,
        iterations: &Bound<'_, PyAny>,
        resume: bool,
    ) -> PyResult<Answer> {
        let options = CommunitiesOptions {
            iterations: whole("iterations", iterations)?,
            resume: every(resume),
            ..Default::default()
        };
        self.answer(py, job, move |graph, job| communities(graph, job, &options))
    }

    fn clustering(&self, py: Python<'_>, job: &Job) -> PyResult<Answer> {
        self.answer(py, job, move |graph, job| clustering(graph, job, &ClusteringOptions::default()))
    }

    fn components(&self, py: Python<'_>, job: &Job, resume: bool) -> PyResult<Answer> {
        let options = ComponentsOptions { resume: every(resume), ..Default::default() };
        self.answer(py, job, move |graph, job| components(graph, job, &options))
    }

    fn betweenness(
        &self,
        py: Python<'_>,
        job: &Job,
        sources: &Bound<'_, PyAny>,
        seed: &Bound<'_, PyAny>,
        resume: bool,
    ) -> PyResult<Answer> {
        let (sources, seed) = (whole("sources", sources)?, whole("seed", seed)?);
        let options = BetweennessOptions { sources, seed, resume: every(resume), ..Default::default() };
        self.answer(py, job, move |graph, job| betweenness(graph, job, &options))
    }

    /// Writes all edges to the file `path` and gives their number.
    fn export(&self, py: Python<'_>, job: &Job, path: PathBuf) -> PyResult<u64> {
        let graph = self.0.clone();
        run(py, &job.get()?, move |job| graph::export(&graph, job, &file(path)))
    }
}
