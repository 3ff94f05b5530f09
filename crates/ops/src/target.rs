//! This module defines the targets: the machines on which an operation runs.

#[cfg(feature = "nodes")]
use std::path::PathBuf;

#[cfg(feature = "nodes")]
use inshore_nodes::{DistributedFile, GatherReport, Nodes, RunOptions};
use serde::{Serialize, Serializer};
#[cfg(feature = "nodes")]
use serde_json::{Value, json};

#[cfg(feature = "nodes")]
use crate::error::{Error, Result};
use crate::target_kind::TargetKind;

/// The machines on which an operation runs.
#[derive(Clone, Debug)]
pub enum Target {
    /// The local machine, with its files and datasets.
    Local,
    /// Nodes, which store the data.
    #[cfg(feature = "nodes")]
    Nodes(OnNodes),
    /// A cluster of nodes. Operations that must bring rows together run in stages, and exchange the rows between nodes.
    #[cfg(feature = "nodes")]
    Cluster(OnNodes),
}

impl Target {
    /// The kind of this target.
    pub fn place(&self) -> TargetKind {
        match self {
            Target::Local => TargetKind::Local,
            #[cfg(feature = "nodes")]
            Target::Nodes(_) => TargetKind::Nodes,
            #[cfg(feature = "nodes")]
            Target::Cluster(_) => TargetKind::Cluster,
        }
    }

    /// Returns the nodes of this target, or `None` if the target is the local machine. An operation that exchanges no
    /// rows between nodes does the same work on the nodes of a cluster as on other nodes.
    #[cfg(feature = "nodes")]
    pub fn on_nodes(&self) -> Option<&OnNodes> {
        match self {
            Target::Local => None,
            Target::Nodes(on) | Target::Cluster(on) => Some(on),
        }
    }
}

/// A group of nodes, with the options of requests to these nodes.
#[cfg(feature = "nodes")]
#[derive(Clone, Debug)]
pub struct OnNodes {
    /// The client that sends requests to the nodes.
    pub nodes: Nodes,
    /// The options for partial answers, for the memory of tasks, and for the data that the client processes
    /// itself. If the client needs scratch space for such data, it uses the store of the job.
    pub options: RunOptions,
}

/// Finds the files of paths of the form `store:NAME`, `store:NAME/FILE`, or the same without `store:`.
///
/// # Errors
/// - Returns [`Error::BadName`] if the name is not valid for a dataset.
/// - Returns the errors of [`Nodes::catalog`] and [`inshore_nodes::Catalog::named`].
#[cfg(feature = "nodes")]
pub fn wholes(nodes: &Nodes, paths: &[PathBuf]) -> Result<Vec<DistributedFile>> {
    let catalog = nodes.catalog()?;
    let mut wholes = Vec::new();
    for path in paths {
        let named = path.to_str().ok_or_else(|| Error::BadName { path: path.clone() })?;
        wholes.extend(catalog.named(named.strip_prefix("store:").unwrap_or(named))?);
    }
    Ok(wholes)
}

/// The answer of an operation, with the cost report of the nodes.
#[derive(Debug)]
pub struct Response<A> {
    /// The typed answer: counts and names. Rows go to the output.
    pub answer: A,
    /// The cost report of the nodes. The value is `None` if the target is local.
    #[cfg(feature = "nodes")]
    pub nodes: Option<NodesWork>,
    /// The cost reports of jobs in stages. A query may run several of them.
    #[cfg(feature = "nodes")]
    pub jobs: Vec<inshore_stages::JobReport>,
}

/// The cost report of the nodes for one answer.
#[cfg(feature = "nodes")]
#[derive(Debug)]
pub struct NodesWork {
    /// The counters of each node, and the parts of files that were not read.
    pub gathered: GatherReport,
    /// The number of bytes sent between nodes and the client.
    pub bytes_moved: u64,
}

impl<A> Response<A> {
    /// Converts the answer, and keeps the cost report.
    pub fn map<B>(self, answer: impl FnOnce(A) -> B) -> Response<B> {
        Response {
            answer: answer(self.answer),
            #[cfg(feature = "nodes")]
            nodes: self.nodes,
            #[cfg(feature = "nodes")]
            jobs: self.jobs,
        }
    }

    /// Returns the response of an operation on the local machine.
    pub(crate) fn local(answer: A) -> Response<A> {
        Response {
            answer,
            #[cfg(feature = "nodes")]
            nodes: None,
            #[cfg(feature = "nodes")]
            jobs: Vec::new(),
        }
    }

    /// Returns the response of an operation on nodes.
    #[cfg(feature = "nodes")]
    pub(crate) fn on_nodes(answer: A, on: &OnNodes, gathered: GatherReport) -> Response<A> {
        let bytes_moved = on.nodes.bytes_in() + on.nodes.bytes_out();
        Response { answer, nodes: Some(NodesWork { gathered, bytes_moved }), jobs: Vec::new() }
    }

    /// Returns the response of an operation that ran in stages.
    #[cfg(feature = "nodes")]
    pub(crate) fn in_stages(answer: A, jobs: Vec<inshore_stages::JobReport>) -> Response<A> {
        Response { answer, nodes: None, jobs }
    }
}

/// Serializes the answer. If the target was nodes, the fields `nodes`, `missing`, `here` and `bytes_moved` are
/// added. If the operation ran jobs in stages, the field `jobs` is added.
impl<A: Serialize> Serialize for Response<A> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        #[cfg(feature = "nodes")]
        if self.nodes.is_some() || !self.jobs.is_empty() {
            let mut answer = serde_json::to_value(&self.answer).map_err(serde::ser::Error::custom)?;
            if let Some(NodesWork { gathered, bytes_moved }) = &self.nodes {
                answer = with_nodes(answer, gathered, *bytes_moved);
            }
            if !self.jobs.is_empty() {
                answer["jobs"] = json!(self.jobs);
            }
            return answer.serialize(serializer);
        }
        self.answer.serialize(serializer)
    }
}

/// Adds the cost report of the nodes to a summary in JSON.
#[cfg(feature = "nodes")]
pub fn with_nodes(mut summary: Value, gathered: &GatherReport, bytes_moved: u64) -> Value {
    summary["nodes"] = json!(gathered.nodes);
    summary["missing"] = json!(gathered.missing);
    if let Some(here) = &gathered.here {
        summary["here"] = json!(here);
    }
    summary["bytes_moved"] = json!(bytes_moved);
    summary
}
