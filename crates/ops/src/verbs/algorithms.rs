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
#[cfg(feature = "nodes")]
use crate::{
    error::Error,
    graph_stages,
    target::{OnNodes, Target, wholes},
};
use crate::{
    error::Result,
    operation::{Attachments, DatasetOperation, NormalForm, RequestContext, RowOutput, is_dataset},
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
    /// The kinds of targets that can run the algorithm. On a cluster, the input is a list of edges, not a graph.
    const PLACES: &'static [TargetKind] = &[TargetKind::Local];

    /// Checks that the options are supported on a cluster.
    ///
    /// # Errors
    /// Returns an error that names the refused option.
    fn check_on_cluster(&self) -> Result<()> {
        Ok(())
    }

    /// Runs the algorithm on a cluster, if [`Algorithm::PLACES`] contains it.
    ///
    /// # Errors
    /// Returns the errors of the job and of the output.
    #[cfg(feature = "nodes")]
    fn run_on_cluster(
        &self,
        _on: &OnNodes,
        context: &RequestContext<'_>,
        _job: &Execution,
        _attachments: Attachments<'_>,
    ) -> Result<Response<AlgorithmAnswer>> {
        Err(Error::Unsupported { operation: context.operation, place: TargetKind::Cluster })
    }
}

/// An algorithm: a function of a graph, a job, and options.
pub type Run<Options> = fn(&Graph, &Job, &Options) -> graph::Result<Answer>;

impl Algorithm for PageRankOptions {
    const VERB: &'static str = "graph pagerank";
    const RUN: Run<Self> = graph::pagerank;
    #[cfg(feature = "nodes")]
    const PLACES: &'static [TargetKind] = &[TargetKind::Local, TargetKind::Cluster];

    #[cfg(feature = "nodes")]
    fn check_on_cluster(&self) -> Result<()> {
        let refused = |option, why| {
            Err(Error::UnsupportedOption {
                operation: <Self as Algorithm>::VERB,
                option,
                place: TargetKind::Cluster,
                why,
            })
        };
        if self.vertex_tolerance.is_some() {
            return refused(
                "vertex_tolerance",
                "a cluster computes plain iterations: set iterations or tolerance",
            );
        }
        if self.resume.is_some() {
            return refused("resume", "a job on a cluster has no checkpoints");
        }
        if self.iterations_max() > graph_stages::ITERATIONS_MAX {
            return refused("iterations", "the outputs of all iterations stay on the nodes: at most 100");
        }
        Ok(graph::check_options(self)?)
    }

    #[cfg(feature = "nodes")]
    fn run_on_cluster(
        &self,
        on: &OnNodes,
        context: &RequestContext<'_>,
        job: &Execution,
        attachments: Attachments<'_>,
    ) -> Result<Response<AlgorithmAnswer>> {
        let edges = wholes(&on.nodes, context.inputs)?;
        let receiver = attachments.rows;
        let ran = graph_stages::pagerank_on_cluster(on, job, &edges, self, context.output, receiver)?;
        let answer = AlgorithmAnswer { summary: ran.summary, vertices: ran.vertices };
        Ok(Response::in_stages(answer, vec![ran.report]))
    }
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
    const PLACES: &'static [TargetKind] = <A as Algorithm>::PLACES;
    const FORM: NormalForm = NormalForm::Rows;
    type Answer = AlgorithmAnswer;

    fn check(&self, inputs: &[PathBuf], output: Option<&Path>, place: TargetKind) -> Result<()> {
        only(<A as Algorithm>::VERB, inputs)?;
        if place == TargetKind::Cluster {
            self.check_on_cluster()?;
            if output.is_some_and(is_dataset) {
                return Ok(());
            }
        }
        Ok(output.map_or(Ok(()), TableWriter::check_path)?)
    }

    fn run(
        &self,
        context: &RequestContext<'_>,
        job: &Execution,
        mut attachments: Attachments<'_>,
    ) -> Result<Response<AlgorithmAnswer>> {
        #[cfg(feature = "nodes")]
        if let Target::Cluster(on) = context.target {
            return self.run_on_cluster(on, context, job, attachments);
        }
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
