//! Implements an index of inverted lists for vectors that are spread over nodes. A *shard* is a part of the vectors,
//! and each shard is stored on one node.
//!
//! ```text
//!   shards ─► sample ─► one k-means ─► centroids ─┬─► a copy on each node
//!                                                 └─► each node: its own vectors of every list      (`build::shard`)
//!
//!   query ─► nearest lists, by all centroids ─► each node: its parts of these lists ─► merged
//! ```
//!
//! All shards use the same centroids, and each shard contains a part of every list. The client chooses the lists of a
//! query by the centroids and by the numbers of vectors of whole lists. So the choice depends on the index, the query,
//! k and the number of probes, and not on the nodes and shards. The centroids do not depend on the nodes and shards
//! either. A vector is in the sample if a pseudo-random number, which depends only on its id and the seed, is below a
//! bound.
//!
//! - `centroids` defines the stored form of the centroids and of the numbers of vectors.
//! - `sample` chooses the sampled vectors of a shard.
//! - `train` trains the centroids on a sample.
//! - `probe` chooses the lists that queries probe.
//! - `search` finds the nearest vectors in the lists of shards.

mod centroids;
mod probe;
mod sample;
mod search;
mod train;

pub use self::{
    centroids::{SpreadIndex, SpreadIndexInfo, SpreadIndexKind},
    probe::Prober,
    sample::{SamplePlan, plan_sample, sample_of_shard},
    search::{ListRequest, ListSelection, search_lists},
    train::train_lists,
};
