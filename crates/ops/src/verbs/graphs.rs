//! The operations on graphs of the local store, except the algorithms.

use std::path::{Path, PathBuf};

use inshore_graph::{self as graph, Graph, GraphInfo, ImportOptions, Kronecker, check::CheckOptions};
use inshore_store::Execution;
use inshore_tables::Input;
use serde::{Deserialize, Serialize};

use super::stores::{RemoveAnswer, dataset_of, only, remove_dataset, remove_each};
use crate::{
    error::{Error, Result},
    operation::{Attachments, DatasetOperation, NormalForm, RequestContext},
    target::Response,
    target_kind::TargetKind,
};

/// Imports edges as a graph of the local store; see [`graph::import()`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportGraph {
    /// The name of the graph.
    pub name: String,
    /// The format of the inputs, and the choice of the edges to import.
    #[serde(default)]
    pub options: ImportOptions,
}

impl DatasetOperation for ImportGraph {
    const VERB: &'static str = "graph import";
    const FORM: NormalForm = NormalForm::Dataset;
    type Answer = GraphInfo;

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<GraphInfo>> {
        let job = context.stored(job)?;
        let inputs: Vec<Input> = context.inputs.iter().map(Input::new).collect();
        Ok(Response::local(graph::import(&job.store(), job, &self.name, &inputs, &self.options)?))
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
    /// Stores the incoming edges of each vertex, too.
    #[serde(default)]
    pub reverse: bool,
}

impl DatasetOperation for GenerateGraph {
    const VERB: &'static str = "graph generate";
    const FORM: NormalForm = NormalForm::Dataset;
    type Answer = GraphInfo;

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<GraphInfo>> {
        let job = context.stored(job)?;
        Ok(Response::local(graph::generate(&job.store(), job, &self.name, &self.kronecker, self.reverse)?))
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

impl DatasetOperation for ExportGraph {
    const VERB: &'static str = "graph export";
    const FORM: NormalForm = NormalForm::Bytes;
    type Answer = ExportAnswer;

    fn check(&self, inputs: &[PathBuf], output: Option<&Path>, _place: TargetKind) -> Result<()> {
        only(Self::VERB, inputs)?;
        output.map(drop).ok_or(Error::NoOutput { operation: Self::VERB })
    }

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<ExportAnswer>> {
        let (job, output) = (context.stored(job)?, context.output()?);
        let edges = graph::export(&open(context, job, &attachments)?, job, output)?;
        Ok(Response::local(ExportAnswer { edges }))
    }
}

/// Lists the graphs of the store; see [`graph::list`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ListGraphs {}

/// The graphs of a store.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct GraphsAnswer {
    /// The properties of each graph, by name.
    pub graphs: Vec<GraphInfo>,
}

impl DatasetOperation for ListGraphs {
    const VERB: &'static str = "graph ls";
    const FORM: NormalForm = NormalForm::Answer;
    type Answer = GraphsAnswer;

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<GraphsAnswer>> {
        Ok(Response::local(GraphsAnswer { graphs: graph::list(&context.stored(job)?.store())? }))
    }
}

/// Returns the properties of a graph, without reading its edges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DescribeGraph {}

impl DatasetOperation for DescribeGraph {
    const VERB: &'static str = "graph info";
    const FORM: NormalForm = NormalForm::Answer;
    type Answer = GraphInfo;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, _place: TargetKind) -> Result<()> {
        only(Self::VERB, inputs).map(drop)
    }

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<GraphInfo>> {
        Ok(Response::local(open(context, context.stored(job)?, &attachments)?.info().clone()))
    }
}

/// Removes the graphs that the inputs name. A dataset of another kind is not removed, which is an error. A damaged
/// graph is removed. If an input cannot be removed, the error is reported, and the other graphs are removed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RemoveGraphs {}

impl DatasetOperation for RemoveGraphs {
    const VERB: &'static str = "graph rm";
    const FORM: NormalForm = NormalForm::Answer;
    type Answer = RemoveAnswer;

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<RemoveAnswer>> {
        let store = context.stored(job)?.store();
        remove_each(context, &attachments, |name| match Graph::open(&store, name) {
            Err(error @ graph::Error::BadGraph { what: "kind", .. }) => Err(error.into()),
            _ => remove_dataset(context, job, name),
        })
    }
}

/// Checks the answer of a graph algorithm by a textbook algorithm in memory: see [`graph::check::check`]. The
/// input is the file with the answer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CheckGraph {
    /// The name of the graph.
    pub graph: String,
    /// The options with which the algorithm computed the answer.
    #[serde(default)]
    pub options: CheckOptions,
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CheckAnswer {
    /// True if the answer is correct.
    pub good: bool,
    /// The facts that were compared, or the difference that was found, as text.
    pub facts: Vec<String>,
}

impl DatasetOperation for CheckGraph {
    const VERB: &'static str = "graph check";
    const FORM: NormalForm = NormalForm::Answer;
    type Answer = CheckAnswer;

    fn check(&self, inputs: &[PathBuf], _output: Option<&Path>, _place: TargetKind) -> Result<()> {
        only(Self::VERB, inputs).map(drop)
    }

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<CheckAnswer>> {
        let job = context.stored(job)?;
        let graph = Graph::open(&job.store(), &self.graph)?;
        let answer = Input::new(only(Self::VERB, context.inputs)?);
        let checked = graph::check::check(&graph, job, &answer, &self.options)?;
        Ok(Response::local(CheckAnswer { good: checked.good, facts: checked.facts }))
    }
}

/// Returns the graph that the caller has open, or opens the graph of the request.
pub(super) fn open(
    context: &RequestContext<'_>,
    job: &inshore_store::Job,
    attachments: &Attachments<'_>,
) -> Result<Graph> {
    match attachments.graph {
        Some(graph) => Ok(graph.clone()),
        None => Ok(Graph::open(&job.store(), dataset_of(only(context.operation, context.inputs)?)?)?),
    }
}
