//! The numbers of nodes, partitions and attempts.

use std::fmt;

/// The number of a node. Memory is reserved in the order of these numbers, so all jobs of a cluster must number the
/// nodes in the same way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u32);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}", self.0)
    }
}

/// A partition of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartitionId {
    /// The number of the stage, counted from 0 in the order of the plan.
    pub stage: u32,
    /// The number of the partition, counted from 0.
    pub partition: u32,
}

impl fmt::Display for PartitionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "partition {} of stage {}", self.partition, self.stage)
    }
}

/// The token of an attempt, unique within its job. The driver and the nodes put the job's id and this token into
/// requests and into the names of scratch files, so that no byte of one attempt is taken for that of another attempt.
/// The token is a number, not a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptToken(pub(crate) u32);

impl fmt::Display for AttemptToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "attempt {}", self.0)
    }
}
