//! An index of vectors that are spread over nodes.
//!
//! ```text
//!   shards ─► sample ─► one k-means ─► centroids ─┬─► a copy on each node
//!                                                 └─► each node: its own vectors of every list      (`build::shard`)
//!
//!   query ─► nearest lists, by all centroids ─► each node: its parts of these lists ─► merged
//! ```
//!
//! There is one set of centroids, and each shard has a part of every list. The client chooses the lists of a query by
//! the centroids and by the numbers of vectors of whole lists. The choice therefore depends on the index, the query,
//! k and the number of probes, and not on nodes and shards. Neither do the centroids: a vector is in the sample if a
//! number that follows from its id and the seed is small enough.
//!
//! - `centroids`: the centroids and the numbers of vectors, as bytes that are stored on nodes.
//! - `sample`: the vectors of a shard that are in the sample.
//! - `train`: the centroids of a sample.
//! - `probe`: the lists of queries.
//! - `search`: the nearest vectors in the lists of shards.

mod centroids;
mod probe;
mod sample;
mod search;
mod train;

pub use self::{
    centroids::{SpreadIndex, SpreadIndexInfo, SpreadIndexKind},
    probe::Prober,
    sample::{SamplePlan, plan_sample, sample_of_shard},
    search::{ListRequest, search_lists},
    train::train_lists,
};
