//! The operations `graph import`, `graph generate` and `graph export`.

use std::path::{Path, PathBuf};

use inshore_graph::{self as graph, Graph, GraphInfo, ImportOptions, Kronecker};
use inshore_store::Execution;
use inshore_tables::Input;
use serde::{Deserialize, Serialize};

use super::stores::{dataset_of, only};
use crate::{
    error::Result,
    operation::{Asked, Beside, NormalForm, Operation, StoreUse},
    place::Place,
    target::Done,
};

/// Imports edges as a graph of the local store; see [`graph::import()`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportGraph {
    /// The name of the graph.
    pub name: String,
    /// The format of the inputs, and the edges that are kept.
    #[serde(default)]
    pub options: ImportOptions,
}

impl Operation for ImportGraph {
    const NAME: &'static str = "graph import";
    const PLACES: &'static [Place] = &[Place::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Dataset;
    type Plan = ();
    type Answer = GraphInfo;

    fn plan(&self, _asked: &Asked<'_>) -> Result<()> {
        Ok(())
    }

    fn run(
        &self,
        (): (),
        asked: &Asked<'_>,
        job: &Execution,
        _beside: Beside<'_>,
    ) -> Result<Done<GraphInfo>> {
        let job = asked.stored(job)?;
        let inputs: Vec<Input> = asked.inputs.iter().map(Input::new).collect();
        Ok(Done::here(graph::import(&job.store(), job, &self.name, &inputs, &self.options)?))
    }
}

/// Generates a graph in the local store; see [`graph::generate`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GenerateGraph {
    /// The name of the graph.
    pub name: String,
    /// The size of the graph.
    pub kronecker: Kronecker,
    /// Keeps in-edges too.
    #[serde(default)]
    pub reverse: bool,
}

impl Operation for GenerateGraph {
    const NAME: &'static str = "graph generate";
    const PLACES: &'static [Place] = &[Place::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Dataset;
    type Plan = ();
    type Answer = GraphInfo;

    fn plan(&self, _asked: &Asked<'_>) -> Result<()> {
        Ok(())
    }

    fn run(
        &self,
        (): (),
        asked: &Asked<'_>,
        job: &Execution,
        _beside: Beside<'_>,
    ) -> Result<Done<GraphInfo>> {
        let job = asked.stored(job)?;
        Ok(Done::here(graph::generate(&job.store(), job, &self.name, &self.kronecker, self.reverse)?))
    }
}

/// Writes the edges of a graph to a file; see [`graph::export`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExportGraph {}

/// The summary of the written edges.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ExportAnswer {
    /// The number of edges.
    pub edges: u64,
}

impl Operation for ExportGraph {
    const NAME: &'static str = "graph export";
    const PLACES: &'static [Place] = &[Place::Local];
    const STORE: StoreUse = StoreUse::Here;
    const FORM: NormalForm = NormalForm::Bytes;
    type Plan = ();
    type Answer = ExportAnswer;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, _place: Place) -> Result<()> {
        only(Self::NAME, inputs).map(drop)
    }

    fn plan(&self, asked: &Asked<'_>) -> Result<()> {
        asked.output().map(drop)
    }

    fn run(
        &self,
        (): (),
        asked: &Asked<'_>,
        job: &Execution,
        beside: Beside<'_>,
    ) -> Result<Done<ExportAnswer>> {
        let (job, output) = (asked.stored(job)?, asked.output()?);
        let edges = graph::export(&open(asked, job, &beside)?, job, output)?;
        Ok(Done::here(ExportAnswer { edges }))
    }
}

/// Returns the graph that the caller has open, or opens the graph of the request.
pub(super) fn open(asked: &Asked<'_>, job: &inshore_store::Job, beside: &Beside<'_>) -> Result<Graph> {
    match beside.graph {
        Some(graph) => Ok(graph.clone()),
        None => Ok(Graph::open(&job.store(), dataset_of(only(asked.operation, asked.inputs)?)?)?),
    }
}
