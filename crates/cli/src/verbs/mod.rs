//! The verbs of the command line, one file or folder for each noun.

#[cfg(feature = "nodes")]
pub mod cluster;
#[cfg(any(feature = "records", feature = "text"))]
pub mod count;
#[cfg(feature = "graph")]
pub mod graph;
#[cfg(feature = "wasm")]
pub mod kernel;
#[cfg(feature = "text")]
pub mod language;
pub mod manual;
#[cfg(feature = "vectors")]
pub mod nearest;
#[cfg(feature = "nodes")]
pub mod node;
#[cfg(feature = "text")]
pub mod pack;
#[cfg(feature = "text")]
pub mod search;
#[cfg(feature = "records")]
pub mod sort;
#[cfg(feature = "sql")]
pub mod sql;
pub mod store;
