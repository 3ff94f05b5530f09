//! Targets: where an operation runs.

#[cfg(feature = "nodes")]
use std::path::PathBuf;

#[cfg(feature = "nodes")]
use inshore_neardata::nodes::{Gathered, Nodes, RunOptions, Whole};
use serde::{Serialize, Serializer};
#[cfg(feature = "nodes")]
use serde_json::{Value, json};

#[cfg(feature = "nodes")]
use crate::error::{Error, Result};
use crate::place::Place;

/// Where an operation runs.
#[derive(Clone, Debug)]
pub enum Target {
    /// This machine, over files and datasets here.
    Local,
    /// Nodes that have the data.
    #[cfg(feature = "nodes")]
    Nodes(OnNodes),
}

impl Target {
    /// The kind of this target.
    pub fn place(&self) -> Place {
        match self {
            Target::Local => Place::Local,
            #[cfg(feature = "nodes")]
            Target::Nodes(_) => Place::Nodes,
        }
    }
}

/// Nodes, and how they are asked.
#[cfg(feature = "nodes")]
#[derive(Clone, Debug)]
pub struct OnNodes {
    /// The client's end.
    pub nodes: Nodes,
    /// Partial answers, memory of tasks, and how far this machine helps. Where an operation may need flash, this machine helps on the
    /// store of the job.
    pub options: RunOptions,
}

/// The files that paths name: `store:NAME`, `store:NAME/FILE`, or without `store:`.
///
/// # Errors
/// [`Error::BadName`]; as [`Nodes::catalog`] and [`inshore_neardata::nodes::Catalog::named`].
#[cfg(feature = "nodes")]
pub fn wholes(nodes: &Nodes, paths: &[PathBuf]) -> Result<Vec<Whole>> {
    let catalog = nodes.catalog()?;
    let mut wholes = Vec::new();
    for path in paths {
        let named = path.to_str().ok_or_else(|| Error::BadName { path: path.clone() })?;
        wholes.extend(catalog.named(named.strip_prefix("store:").unwrap_or(named))?);
    }
    Ok(wholes)
}

/// An answer, and what nodes did for it.
#[derive(Debug)]
pub struct Done<A> {
    /// The typed answer: counts and names. Rows went to the output.
    pub answer: A,
    /// What nodes did, where the target was nodes.
    #[cfg(feature = "nodes")]
    pub nodes: Option<NodesDone>,
}

/// What nodes did for an answer.
#[cfg(feature = "nodes")]
#[derive(Debug)]
pub struct NodesDone {
    /// What each node did, and what was not read.
    pub gathered: Gathered,
    /// Bytes between nodes and this machine.
    pub bytes_moved: u64,
}

impl<A> Done<A> {
    /// The same with another answer.
    pub fn map<B>(self, answer: impl FnOnce(A) -> B) -> Done<B> {
        Done {
            answer: answer(self.answer),
            #[cfg(feature = "nodes")]
            nodes: self.nodes,
        }
    }

    /// An answer of this machine.
    pub(crate) fn here(answer: A) -> Done<A> {
        Done {
            answer,
            #[cfg(feature = "nodes")]
            nodes: None,
        }
    }

    /// An answer of nodes.
    #[cfg(feature = "nodes")]
    pub(crate) fn on_nodes(answer: A, on: &OnNodes, gathered: Gathered) -> Done<A> {
        let bytes_moved = on.nodes.bytes_in() + on.nodes.bytes_out();
        Done { answer, nodes: Some(NodesDone { gathered, bytes_moved }) }
    }
}

/// The answer as JSON; where the target was nodes, `nodes`, `missing`, `here` and `bytes_moved` stand beside its fields.
impl<A: Serialize> Serialize for Done<A> {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        #[cfg(feature = "nodes")]
        if let Some(NodesDone { gathered, bytes_moved }) = &self.nodes {
            let answer = serde_json::to_value(&self.answer).map_err(serde::ser::Error::custom)?;
            return with_nodes(answer, gathered, *bytes_moved).serialize(serializer);
        }
        self.answer.serialize(serializer)
    }
}

/// Adds what nodes did to a summary.
#[cfg(feature = "nodes")]
pub fn with_nodes(mut summary: Value, gathered: &Gathered, bytes_moved: u64) -> Value {
    summary["nodes"] = json!(gathered.nodes);
    summary["missing"] = json!(gathered.missing);
    if let Some(here) = &gathered.here {
        summary["here"] = json!(here);
    }
    summary["bytes_moved"] = json!(bytes_moved);
    summary
}
