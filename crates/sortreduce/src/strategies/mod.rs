//! The four strategies of a sort-reduce.

pub(crate) mod bins;
pub(crate) mod cost;
pub(crate) mod dense;
pub(crate) mod front;
pub(crate) mod partition;
pub(crate) mod partplan;
pub(crate) mod table;

use serde::{Deserialize, Serialize};

/// The ways in which a sort-reduce brings equal keys together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// An array in memory, with an element for every possible key.
    Dense,
    /// Bins of key ranges on flash, each of which is accumulated in memory.
    Partition,
    /// Sorted runs on flash, which are merged.
    Merge,
    /// Merging, after a table in the cache has combined popular keys.
    #[serde(rename = "hash-first")]
    HashFirst,
}

impl Strategy {
    /// All strategies.
    pub const ALL: [Strategy; 4] =
        [Strategy::Dense, Strategy::Partition, Strategy::Merge, Strategy::HashFirst];
}

impl std::fmt::Display for Strategy {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Strategy::Dense => "dense",
            Strategy::Partition => "partition",
            Strategy::Merge => "merge",
            Strategy::HashFirst => "hash-first",
        })
    }
}
