//! The four strategies of a sort-reduce, and the cost model that chooses among them.

pub(crate) mod bins;
pub(crate) mod cost;
pub(crate) mod dense;
pub(crate) mod front;
pub(crate) mod partition;
pub(crate) mod partplan;
pub(crate) mod table;

use serde::{Deserialize, Serialize};

/// The strategies by which a sort-reduce finds and combines equal keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Strategy {
    /// An array in memory has an element for every possible key.
    Dense,
    /// Records are written to bins of key ranges on flash, and each bin is then combined in memory.
    Partition,
    /// Sorted runs are written to flash and merged.
    Merge,
    /// A hash table in the cache combines popular keys, and the remaining records are merged as with `Merge`.
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
