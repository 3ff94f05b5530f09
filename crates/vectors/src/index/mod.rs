//! An index of this module consists of inverted lists on flash. It answers a query approximately, with a few reads.
//!
//! The terms of this module:
//!
//! - A *list* holds the vectors near one *centroid*. The vectors of a list are contiguous in the file `lists`. Every
//!   vector is in one list.
//! - A *group* consists of lists whose centroids are near each other. A group has a centroid of its own
//!   ([`centroids`]).
//! - A query *probes* a list if the list is read and its vectors are compared with the query.
//! - A *layer* is a dataset of its own with vectors that were added after the build, sorted by the lists of the index
//!   ([`layers`]).
//! - The *recall* of an answer is the fraction of the k exact neighbours that the answer contains ([`recall`]).
//!
//! ```text
//!   vectors ─► samples ─► k-means of groups, then of lists ─► nearest list of each vector ─► sort by list ─► lists
//!
//!   query ─► nearest groups ─► nearest lists ─┬─ single: read these lists (with copies, if there are any), 16 reads in flight
//!                                             └─ batch: sort (list, query), read each list once for all its queries
//! ```
//!
//! Lists hold the vectors as they were imported, so distances are exact. The answer has the k nearest vectors of the
//! probed lists. If two vectors have the same distance, the smaller id comes first. The index, the query, k and the
//! number of probes determine which lists are probed. The memory budget and the number of threads have no influence.
//!
//! An index may have a second file, `copies`, with the same lists enlarged by copies of the vectors near their borders
//! ([`Index::copies`]). The single strategy reads the lists of `copies`, and needs about a quarter of the lists for the
//! same recall. The batch strategy reads the lists without copies. For many queries it reads most lists in any case,
//! and copies would only add bytes. The answers of the two strategies therefore differ for an index with copies, and
//! such an index has a table of recall for each strategy.
//!
//! An index may have codes of its vectors instead ([`Index::codes`], module `codes`). The single strategy estimates
//! distances from codes, and measures only the vectors that may be among the k nearest. The bounds of the estimates
//! hold with a high probability, so an answer may lack a neighbour whose list is probed.

mod batch;
mod build;
mod centroids;
mod codes;
mod compare;
mod dataset;
mod directory;
mod info;
mod kmeans;
mod layers;
mod loaded;
mod parts;
mod plan;
mod query;
mod ranges;
mod recall;
mod round;
mod selected;
mod single;
mod sizes;
mod spread;
mod stored_recall;
mod table;
mod tail;

pub(crate) use self::{
    build::{RECALL_K, RewrittenIndex, extend_index, remove_unused_layers, rewrite_index},
    info::id_bytes,
    layers::layer_names,
    loaded::LoadedLists,
    query::{load_lists, pairs_of_index, search_in_lists},
    ranges::Ranges,
    recall::{ENOUGH as RECALL_ENOUGH, commit_table, for_vectors, grid as recall_grid, pass_bytes},
    sizes::list_sizes,
    stored_recall::{StoredRecall, bad, points_to_bytes},
};
use zerocopy::{FromBytes, Immutable, IntoBytes};

pub use self::{
    build::{
        BuildPlan, Built, COPIES_MAX, Index, build_index, plan_index, resume_index, shard_lists_bytes,
        write_shard_lists,
    },
    codes::shape::CODE_BITS,
    dataset::VectorIndex,
    info::{CodedLists, CopiedLists, IndexInfo},
    plan::{Strategy, StrategyPlan},
    query::{Approximate, ApproximateSearched, check_index_search},
    recall::{check_measurement, measure_recall},
    selected::{has_enough_selected, probes_among},
    sizes::ListSizes,
    spread::{
        ListRequest, ListSelection, Prober, SamplePlan, SpreadIndex, SpreadIndexInfo, SpreadIndexKind,
        plan_sample, sample_of_shard, search_lists, train_lists,
    },
    table::{MeasuredOn, RecallPoint, RecallTable},
};
use crate::{Element, Error, VectorsInfo, tiles::Tiled};

/// Returns the error for vectors of an element type for which no index can be built.
fn no_index_of(vectors: &VectorsInfo) -> Error {
    Error::BadDataset {
        name: vectors.name.clone(),
        what: "elements",
        found: vectors.element.to_string(),
        expected: format!("f32, u8 or i8, of which lists can be built: {}", tables_instead(vectors.element)),
    }
}

/// Advises hash tables for vectors or a metric for which inverted lists cannot be built.
fn tables_instead(element: Element) -> &'static str {
    match element {
        Element::Bits => "`nearest index --lsh --metric hamming` builds hash tables in a local store",
        _ => "`nearest index --lsh` builds hash tables in a local store",
    }
}

/// An element type for which centroids can be computed. These types are `f32`, `u8` and `i8`.
pub(crate) trait Clustered:
    Tiled + IntoBytes + FromBytes + Immutable + Send + PartialEq + std::fmt::Debug
{
    /// The largest value of an element. Under the cosine metric, a centroid is a direction. It is scaled so that its
    /// largest element has this value.
    const LARGEST: f64;

    /// Returns the element whose value is nearest to `value`.
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
