//! A graph and the algorithms on it.

use std::{path::PathBuf, time::Duration};

use inshore::{
    graph::{
        self, BetweennessOptions, BfsOptions, ClusteringOptions, CommunitiesOptions, ComponentsOptions,
        PageRankOptions, SsspOptions, betweenness, bfs, clustering, communities, components, pagerank, sssp,
    },
    store,
};
use pyo3::prelude::*;

use crate::{
    error::whole,
    job::{self, Job, to_json},
    run::{Facts, Run, file, start},
};

/// A graph with its files open.
#[pyclass(frozen, module = "inshore._native")]
pub(crate) struct Graph(pub(crate) graph::Graph);

impl Graph {
    fn rows(
        &self,
        job: &Job,
        output: Option<PathBuf>,
        work: impl FnOnce(&graph::Graph, &store::Job) -> graph::Result<graph::Answer> + Send + 'static,
    ) -> PyResult<Run> {
        let (graph, stored) = (self.0.clone(), job.get()?);
        start(job.execution()?, output, Duration::MAX, move |_, out| {
            let mut answer = work(&graph, &stored)?;
            out.begin(answer.rows.schema(), stored.budget())?;
            while let Some(batch) = answer.rows.next_batch()? {
                out.batch(batch)?;
            }
            out.end()?;
            answer.rows.finish()?;
            Ok(Facts::of(&answer.summary))
        })
    }
}

/// Returns the interval of checkpoints, if the run can be resumed.
fn every(resume: bool) -> Option<Duration> {
    resume.then_some(Duration::from_secs(30))
}

#[pymethods]
impl Graph {
    /// Returns the properties of the graph, as JSON.
    #[getter]
    fn info(&self) -> PyResult<String> {
        to_json(self.0.info())
    }

    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    #[pyo3(signature = (job, iterations, damping, tolerance, vertex_tolerance, resume, output=None))]
    fn pagerank(
        &self,
        job: &Job,
        iterations: Option<&Bound<'_, PyAny>>,
        damping: f64,
        tolerance: f64,
        vertex_tolerance: Option<f64>,
        resume: bool,
        output: Option<PathBuf>,
    ) -> PyResult<Run> {
        let usual = vertex_tolerance.map_or_else(PageRankOptions::default, PageRankOptions::converging);
        let iterations = match iterations {
            Some(iterations) => whole("iterations", iterations)?,
            None => usual.iterations,
        };
        let options = PageRankOptions { iterations, damping, tolerance, resume: every(resume), ..usual };
        self.rows(job, output, move |graph, job| pagerank(graph, job, &options))
    }

    #[pyo3(signature = (job, source, resume, output=None))]
    fn bfs(
        &self,
        job: &Job,
        source: &Bound<'_, PyAny>,
        resume: bool,
        output: Option<PathBuf>,
    ) -> PyResult<Run> {
        let options = BfsOptions { resume: every(resume), ..BfsOptions::new(whole("source", source)?) };
        self.rows(job, output, move |graph, job| bfs(graph, job, &options))
    }

    #[pyo3(signature = (job, source, resume, output=None))]
    fn sssp(
        &self,
        job: &Job,
        source: &Bound<'_, PyAny>,
        resume: bool,
        output: Option<PathBuf>,
    ) -> PyResult<Run> {
        let options = SsspOptions { resume: every(resume), ..SsspOptions::new(whole("source", source)?) };
        self.rows(job, output, move |graph, job| sssp(graph, job, &options))
    }

    #[pyo3(signature = (job, iterations, resume, output=None))]
    fn communities(
        &self,
        job: &Job,
        iterations: &Bound<'_, PyAny>,
        resume: bool,
        output: Option<PathBuf>,
    ) -> PyResult<Run> {
        let options = CommunitiesOptions {
            iterations: whole("iterations", iterations)?,
            resume: every(resume),
            ..Default::default()
        };
        self.rows(job, output, move |graph, job| communities(graph, job, &options))
    }

    #[pyo3(signature = (job, output=None))]
    fn clustering(&self, job: &Job, output: Option<PathBuf>) -> PyResult<Run> {
        self.rows(job, output, move |graph, job| clustering(graph, job, &ClusteringOptions::default()))
    }

    #[pyo3(signature = (job, resume, output=None))]
    fn components(&self, job: &Job, resume: bool, output: Option<PathBuf>) -> PyResult<Run> {
        let options = ComponentsOptions { resume: every(resume), ..Default::default() };
        self.rows(job, output, move |graph, job| components(graph, job, &options))
    }

    #[pyo3(signature = (job, sources, seed, resume, output=None))]
    fn betweenness(
        &self,
        job: &Job,
        sources: &Bound<'_, PyAny>,
        seed: &Bound<'_, PyAny>,
        resume: bool,
        output: Option<PathBuf>,
    ) -> PyResult<Run> {
        let (sources, seed) = (whole("sources", sources)?, whole("seed", seed)?);
        let options = BetweennessOptions { sources, seed, resume: every(resume), ..Default::default() };
        self.rows(job, output, move |graph, job| betweenness(graph, job, &options))
    }

    /// Writes all edges to the file `path` and returns their number.
    fn export(&self, py: Python<'_>, job: &Job, path: PathBuf) -> PyResult<u64> {
        let graph = self.0.clone();
        job::run(py, &job.get()?, move |job| graph::export(&graph, job, &file(path)))
    }
}
