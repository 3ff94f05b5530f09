//! The graph algorithms. Each algorithm is an operation, whose fields are the options of the algorithm.

use std::path::{Path, PathBuf};

use inshore_graph::{
    self as graph, Answer, BetweennessOptions, BfsOptions, ClusteringOptions, CommunitiesOptions,
    ComponentsOptions, Graph, PageRankOptions, SsspOptions, Summary,
};
use inshore_store::{Execution, Job};
use inshore_tables::TableWriter;
use serde::{Serialize, de::DeserializeOwned};

use super::{graphs::open, stores::only};
use crate::{
    error::Result,
    operation::{Attachments, DatasetOperation, NormalForm, RequestContext, RowOutput},
    target::Response,
    target_kind::TargetKind,
};

/// An algorithm on a graph of the local store. The types that implement this trait are the options of the
/// algorithms.
///
/// The rows go to the output file and to the receiver of rows. If neither exists, no rows are computed.
pub trait Algorithm: Serialize + DeserializeOwned {
    /// The name of the operation.
    const VERB: &'static str;
    /// The function that runs the algorithm.
    const RUN: Run<Self>;
}

/// An algorithm: a function of a graph, a job, and options.
pub type Run<Options> = fn(&Graph, &Job, &Options) -> graph::Result<Answer>;

impl Algorithm for PageRankOptions {
    const VERB: &'static str = "graph pagerank";
    const RUN: Run<Self> = graph::pagerank;
}

impl Algorithm for BfsOptions {
    const VERB: &'static str = "graph bfs";
    const RUN: Run<Self> = graph::bfs;
}

impl Algorithm for SsspOptions {
    const VERB: &'static str = "graph sssp";
    const RUN: Run<Self> = graph::sssp;
}

impl Algorithm for ComponentsOptions {
    const VERB: &'static str = "graph components";
    const RUN: Run<Self> = graph::components;
}

impl Algorithm for CommunitiesOptions {
    const VERB: &'static str = "graph communities";
    const RUN: Run<Self> = graph::communities;
}

impl Algorithm for ClusteringOptions {
    const VERB: &'static str = "graph clustering";
    const RUN: Run<Self> = graph::clustering;
}

impl Algorithm for BetweennessOptions {
    const VERB: &'static str = "graph betweenness";
    const RUN: Run<Self> = graph::betweenness;
}

/// The summary of a run of an algorithm.
#[derive(Clone, Debug, Default, Serialize)]
pub struct AlgorithmAnswer {
    /// The summary of the algorithm.
    #[serde(flatten)]
    pub summary: Summary,
    /// The number of vertices, which is also the number of rows.
    #[serde(skip)]
    pub vertices: u64,
}

impl<A: Algorithm> DatasetOperation for A {
    const VERB: &'static str = <A as Algorithm>::VERB;
    const FORM: NormalForm = NormalForm::Rows;
    type Answer = AlgorithmAnswer;

    fn check(&self, inputs: &[PathBuf], output: Option<&Path>, _place: TargetKind) -> Result<()> {
        only(<A as Algorithm>::VERB, inputs)?;
        Ok(output.map_or(Ok(()), TableWriter::check_path)?)
    }

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        mut attachments: Attachments<'_>,
    ) -> Result<Response<AlgorithmAnswer>> {
        let graph = open(context, context.stored(job)?, &attachments)?;
        let Answer { summary, mut rows } = A::RUN(&graph, context.stored(job)?, self)?;
        let receiver = attachments.rows.take();
        if context.output.is_some() || receiver.is_some() {
            let mut output = RowOutput::begin(context.output, receiver, rows.schema(), job)?;
            while let Some(batch) = rows.next_batch()? {
                output.batch(batch)?;
            }
            output.finish()?;
        }
        // The job's checkpoints are removed only after the rows are complete.
        rows.finish()?;
        Ok(Response::local(AlgorithmAnswer { summary, vertices: graph.vertices() }))
    }
}
