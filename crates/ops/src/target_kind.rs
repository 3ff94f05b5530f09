//! This module defines the kinds of targets.

use std::fmt::{self, Display, Formatter};

/// The kind of a [`Target`](crate::Target).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// The local machine: [`Target::Local`](crate::Target::Local).
    Local,
    /// Nodes: `Target::Nodes`.
    Nodes,
    /// A cluster of nodes: `Target::Cluster`.
    Cluster,
}

impl TargetKind {
    /// All kinds of targets.
    pub const ALL: [TargetKind; 3] = [TargetKind::Local, TargetKind::Nodes, TargetKind::Cluster];

    /// The kinds of targets that consist of nodes.
    pub const ON_NODES: [TargetKind; 2] = [TargetKind::Nodes, TargetKind::Cluster];

    /// Returns true if the target consists of nodes.
    pub fn is_on_nodes(self) -> bool {
        TargetKind::ON_NODES.contains(&self)
    }
}

impl Display for TargetKind {
    fn fmt(&self, text: &mut Formatter<'_>) -> fmt::Result {
        text.write_str(match self {
            TargetKind::Local => "this machine",
            TargetKind::Nodes => "nodes",
            TargetKind::Cluster => "a cluster",
        })
    }
}
