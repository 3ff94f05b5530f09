//! The graph algorithms. Each algorithm is an operation, whose fields are the options of the algorithm.

use std::path::{Path, PathBuf};
#[cfg(feature = "nodes")]
use std::time::Duration;

use inshore_graph::{
    self as graph, Answer, BetweennessOptions, BfsOptions, ClusteringOptions, CommunitiesOptions,
    ComponentsOptions, Graph, PageRankOptions, SsspOptions, Summary,
};
#[cfg(feature = "nodes")]
use inshore_nodes::DistributedFile;
use inshore_store::{Execution, Job};
use inshore_tables::TableWriter;
use serde::{Serialize, de::DeserializeOwned};

use super::{graphs::open, stores::only};
#[cfg(feature = "nodes")]
use crate::{
    error::Error,
    graph_stages::{self, GraphOnCluster, RowsTo},
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
    /// The function that runs the algorithm on a cluster, if there is one. Its input is a list of edges, not a graph.
    #[cfg(feature = "nodes")]
    const ON_CLUSTER: Option<OnCluster<Self>> = None;

    /// Checks that the options are supported on a cluster.
    ///
    /// # Errors
    /// Returns an error that names the refused option.
    fn check_on_cluster(&self) -> Result<()> {
        Ok(())
    }
}

/// An algorithm: a function of a graph, a job, and options.
pub type Run<Options> = fn(&Graph, &Job, &Options) -> graph::Result<Answer>;

/// An algorithm on a cluster: a function of nodes, a job, lists of edges, options, and the place of the rows.
#[cfg(feature = "nodes")]
pub type OnCluster<Options> =
    fn(&OnNodes, &Execution, &[DistributedFile], &Options, RowsTo<'_, '_>) -> Result<GraphOnCluster>;

impl Algorithm for PageRankOptions {
    const VERB: &'static str = "graph pagerank";
    const RUN: Run<Self> = graph::pagerank;
    #[cfg(feature = "nodes")]
    const ON_CLUSTER: Option<OnCluster<Self>> = Some(graph_stages::pagerank_on_cluster);

    #[cfg(feature = "nodes")]
    fn check_on_cluster(&self) -> Result<()> {
        let refused = |option, why| Err(refused::<Self>(option, why));
        if self.vertex_tolerance.is_some() {
            return refused(
                "vertex_tolerance",
                "a cluster computes plain iterations: set iterations or tolerance",
            );
        }
        check_resume::<Self>(self.resume)?;
        if self.iterations_max() > graph_stages::ITERATIONS_MAX {
            return refused("iterations", "the outputs of all iterations stay on the nodes: at most 100");
        }
        Ok(graph::check_options(self)?)
    }
}

/// Returns the error of an option that does not work on a cluster.
#[cfg(feature = "nodes")]
fn refused<A: Algorithm>(option: &'static str, why: &'static str) -> Error {
    Error::UnsupportedOption { operation: A::VERB, option, place: TargetKind::Cluster, why }
}

#[cfg(feature = "nodes")]
fn check_resume<A: Algorithm>(resume: Option<Duration>) -> Result<()> {
    match resume {
        Some(_) => Err(refused::<A>("resume", "a job on a cluster has no checkpoints")),
        None => Ok(()),
    }
}

impl Algorithm for BfsOptions {
    const VERB: &'static str = "graph bfs";
    const RUN: Run<Self> = graph::bfs;
    #[cfg(feature = "nodes")]
    const ON_CLUSTER: Option<OnCluster<Self>> = Some(graph_stages::bfs_on_cluster);

    #[cfg(feature = "nodes")]
    fn check_on_cluster(&self) -> Result<()> {
        check_resume::<Self>(self.resume)
    }
}

impl Algorithm for SsspOptions {
    const VERB: &'static str = "graph sssp";
    const RUN: Run<Self> = graph::sssp;
    #[cfg(feature = "nodes")]
    const ON_CLUSTER: Option<OnCluster<Self>> = Some(graph_stages::sssp_on_cluster);

    #[cfg(feature = "nodes")]
    fn check_on_cluster(&self) -> Result<()> {
        check_resume::<Self>(self.resume)
    }
}

impl Algorithm for ComponentsOptions {
    const VERB: &'static str = "graph components";
    const RUN: Run<Self> = graph::components;
    #[cfg(feature = "nodes")]
    const ON_CLUSTER: Option<OnCluster<Self>> = Some(graph_stages::components_on_cluster);

    #[cfg(feature = "nodes")]
    fn check_on_cluster(&self) -> Result<()> {
        check_resume::<Self>(self.resume)
    }
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
    #[cfg(feature = "nodes")]
    const PLACES: &'static [TargetKind] = match A::ON_CLUSTER {
        Some(_) => &[TargetKind::Local, TargetKind::Cluster],
        None => &[TargetKind::Local],
    };
    #[cfg(not(feature = "nodes"))]
    const PLACES: &'static [TargetKind] = &[TargetKind::Local];
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
            let unsupported =
                || Error::Unsupported { operation: context.operation, place: TargetKind::Cluster };
            let run = A::ON_CLUSTER.ok_or_else(unsupported)?;
            let edges = wholes(&on.nodes, context.inputs)?;
            let ran = run(on, job, &edges, self, (context.output, attachments.rows))?;
            let answer = AlgorithmAnswer { summary: ran.summary, vertices: ran.vertices };
            return Ok(Response::in_stages(answer, vec![ran.report]));
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
