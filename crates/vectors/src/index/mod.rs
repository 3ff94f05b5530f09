//! An index consists of inverted lists on flash. It answers a query approximately, with a few reads.
//!
//! The terms of this module:
//!
//! - a *list*: vectors near one *centroid*, contiguous in the file `lists`; every vector is in one list.
//! - a *group*: lists whose centroids are near each other, with a centroid of its own ([`centroids`]).
//! - to *probe* a list: to read it and to compare its vectors with the query.
//! - a *layer*: vectors that were added since, by the same lists, in a dataset of its own ([`layers`]).
//! - *recall*: the fraction of the k exact neighbours that are in an answer ([`recall`]).
//!
//! ```text
//!   vectors ─► samples ─► k-means of groups, then of lists ─► nearest list of each vector ─► sort by list ─► lists
//!
//!   query ─► nearest groups ─► nearest lists ─┬─ single: read these lists (with copies, if there are any), 16 reads in flight
//!                                             └─ batch: sort (list, query), read each list once for all its queries
//! ```
//!
//! Lists hold the vectors as they were imported, so distances are exact. The answer has the k nearest vectors of the
//! probed lists; ties go to the smaller id. The choice of the probed lists depends only on the index, the query, k and
//! the number of probes. It does not depend on the budget and the threads.
//!
//! An index may have a second file, `copies`, with the same lists enlarged by copies of the vectors near their borders
//! ([`Index::copies`]). The single strategy reads these, and needs about a quarter of the lists for the same recall. The
//! batch strategy would read each copy in vain. So the answers of the two strategies differ then, and there is a table of
//! recall for each.

mod batch;
mod build;
mod centroids;
mod compare;
mod dataset;
mod directory;
mod info;
mod kmeans;
mod layers;
mod parts;
mod plan;
mod query;
mod ranges;
mod recall;
mod round;
mod selected;
mod single;
mod spread;
mod table;
mod tail;

pub(crate) use self::{
    build::{extend_index, remove_unused_layers, rewrite_index},
    info::KIND as INDEX_KIND,
    layers::layer_names,
    query::pairs_of_index,
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub use self::{
    build::{
        BuildPlan, Built, COPIES_MAX, Index, build_index, plan_index, shard_lists_bytes, write_shard_lists,
    },
    dataset::VectorIndex,
    info::{CopiedLists, IndexInfo, index_name},
    plan::{Strategy, StrategyPlan},
    query::{Approximate, ApproximateSearched, check_index_search, search_index},
    recall::measure_recall,
    spread::{
        ListRequest, Prober, SamplePlan, SpreadIndex, SpreadIndexInfo, SpreadIndexKind, plan_sample,
        sample_of_shard, search_lists, train_lists,
    },
    table::{MeasuredOn, RecallPoint, RecallTable},
};
use crate::{Error, VectorsInfo, tiles::Tiled};

/// Returns the error for vectors whose element type cannot be indexed.
fn no_index_of(vectors: &VectorsInfo) -> Error {
    Error::BadDataset {
        name: vectors.name.clone(),
        what: "elements",
        found: vectors.element.to_string(),
        expected: "f32, u8 or i8, of which an index can be built".to_string(),
    }
}

/// The element types of which centroids can be made.
pub(crate) trait Clustered:
    Tiled + IntoBytes + FromBytes + Immutable + Send + PartialEq + std::fmt::Debug
{
    /// The largest element of a centroid that is a direction.
    const LARGEST: f64;

    /// Returns the element that is nearest to a number.
    fn nearest(value: f64) -> Self;
}

impl Clustered for f32 {
    const LARGEST: f64 = 1.0;

    fn nearest(value: f64) -> f32 {
        value as f32
    }
}

impl Clustered for u8 {
    const LARGEST: f64 = 255.0;

    fn nearest(value: f64) -> u8 {
        value.round() as u8
    }
}

impl Clustered for i8 {
    const LARGEST: f64 = 127.0;

    fn nearest(value: f64) -> i8 {
        value.round() as i8
    }
}
