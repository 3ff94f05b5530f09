//! Converts files of vectors and queries for spread files. A *spread file* consists of *shards*, which are distributed
//! over nodes.
//!
//! ```text
//!   file of vectors ─► RowReader ─► bytes of the rows, cut into shards ─► nodes
//!   file of queries ─► QueryReader ─► each node: ShardSearch ─► MergedAnswer ─► rows: query, rank, id, distance
//! ```
//!
//! A shard contains the elements of its rows without gaps, as the file `vectors` of a dataset does. No row is split
//! between two shards. The map of the spread file contains the [`VectorLayout`](crate::VectorLayout). The id of a
//! vector is its row number in the whole spread file, so the id does not depend on the nodes. Shards store no center of
//! the vectors. The center affects only the speed of a search, and not the answers.

mod answer;
mod queries;
mod rows;

pub use self::{answer::MergedAnswer, queries::QueryReader, rows::RowReader};
