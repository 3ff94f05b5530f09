//! The vectors of a spread file, of which each node has shards.
//!
//! ```text
//!   file of vectors ─► RowReader ─► bytes of the rows, cut into shards ─► nodes
//!   file of queries ─► QueryReader ─► each node: ShardSearch ─► MergedAnswer ─► rows: query, rank, id, distance
//! ```
//!
//! A shard holds the elements of its rows without gaps, as the file `vectors` of a dataset does, and ends with a row.
//! The map of the file has the [`VectorLayout`]. The id of a vector is the number of its row in the whole file: it
//! does not depend on the nodes. Shards have no center, which does not affect answers.

mod answer;
mod queries;
mod rows;

pub use self::{answer::MergedAnswer, queries::QueryReader, rows::RowReader};
