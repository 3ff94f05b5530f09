//! Builds an index: samples, k-means, assignment, and a sort by list.
//!
//! ```text
//!   1 sample   vectors ─► sample of all ─► k-means ─► upper centroids            one pass over the vectors
//!   2 gather   vectors ─► larger sample ─► nearest group ─► sort by group         one pass
//!   3 train    the sample of each group ─► k-means ─► the centroids of its lists
//!   4 assign   vectors ─► nearest list, by both levels ─► sort by list            one pass
//!   5 write    list by list: vectors, ids, centroid
//! ```
//!
//! The samples have a fixed size, and the second one goes through a sort, so that the same vectors, options and seed give
//! the same lists for every budget and number of threads. All of it streams: memory holds the first sample, then the
//! centroids, blocks of vectors and the buffers of a sort.
//!
//! A list has at most four times as many vectors as the average one. A larger cluster is cut into lists of one
//! centroid, which are probed together, so that no read grows with the number of equal vectors. A centroid that no
//! vector is nearest to has no list.
//!
//! With [`Index::copies`], step 4 sorts a vector into all lists that hold it (module `closure`), and step 5 writes a second
//! file from the same sort: each list with the copies that lie nearest to its centroid.
//!
//! # Cost
//!
//! Three reads of the vectors, one write and one read of the sort's runs (if they do not fit), one write of the lists, and
//! for each vector one multiplication for each dimension and centroid that it is compared with. It is compared with the
//! upper centroids, and with those of the groups that are nearest to it.

mod assign;
mod closure;
mod extend;
mod gather;
mod plan;
mod rewrite;
mod sample;
mod shard;
mod sort;
mod train;
mod write;

use inshore_store::{Job, Store};
use serde::Serialize;

pub(crate) use self::{
    extend::{extend_index, remove_unused_layers},
    rewrite::rewrite_index,
    sample::draw,
    shard::{LIST_ID_BYTES, shard_directory_bytes},
    sort::add_elements,
};
pub use self::{
    plan::{BuildPlan, plan_index},
    shard::{shard_lists_bytes, write_shard_lists},
};
use super::{Clustered, compare::Space, info::IndexInfo, no_index_of};
use crate::{Element, Metric, Result, Vectors, VectorsInfo, search::center_of_vectors, tiles::Instructions};

/// The options of an index.
#[derive(Clone, Debug, PartialEq)]
pub struct Index {
    /// The metric of the searches.
    pub metric: Metric,
    /// The number of lists. By default a list has 16 KiB on average, or 32 vectors if these are more.
    pub lists: Option<u64>,
    /// The number from which the samples follow.
    pub seed: u64,
    /// If given, the index has a second file of larger lists for the single strategy, which hold copies of the vectors near
    /// their borders. A list has up to this number of times the vectors of an average list, from 2 to [`COPIES_MAX`]; so the
    /// file takes up to about this number of times the bytes of the vectors. By default there are no copies.
    pub copies: Option<u64>,
}

/// The largest value of [`Index::copies`].
pub const COPIES_MAX: u64 = 16;

impl Default for Index {
    /// Returns lists of 16 KiB for Euclidean distances, without copies.
    fn default() -> Index {
        Index { metric: Metric::L2, lists: None, seed: 0, copies: None }
    }
}

/// The result of a build.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Built {
    /// The new index.
    #[serde(flatten)]
    pub info: IndexInfo,
    /// The plan.
    pub plan: BuildPlan,
}

/// Builds the index of `vectors`, or builds it again. A job that ends before the commit changes nothing.
///
/// # Errors
/// The errors of [`plan_index`]; I/O and damage; cancellation.
pub fn build_index(store: &Store, job: &Job, vectors: &Vectors, options: &Index) -> Result<Built> {
    let built = match vectors.info().element {
        Element::F32 => Build::<f32>::run(store, job, vectors, options),
        Element::U8 => Build::<u8>::run(store, job, vectors, options),
        Element::I8 => Build::<i8>::run(store, job, vectors, options),
        Element::F16 | Element::Bf16 | Element::Bits => Err(no_index_of(vectors.info())),
    }?;
    remove_unused_layers(store, &vectors.info().name)?;
    Ok(built)
}

/// The state of a build.
struct Build<'a, T: Clustered> {
    job: &'a Job,
    vectors: &'a Vectors,
    options: &'a Index,
    plan: BuildPlan,
    /// Where centroids are compared: by Euclidean distance, or by the cosine.
    space: Space<T>,
    /// Where vectors are compared.
    exact: Space<T>,
}

impl<T: Clustered> Build<'_, T> {
    fn run(store: &Store, job: &Job, vectors: &Vectors, options: &Index) -> Result<Built> {
        let plan = plan_index(job, vectors.info(), options)?;
        job.progress().tell(|| format!("index: {plan}"));
        let dimensions = vectors.info().dimensions;
        let metric = if options.metric == Metric::Cosine { Metric::Cosine } else { Metric::L2 };
        let instructions = Instructions::best();
        let center = center_of_vectors(job, vectors, Metric::L2)?;
        let space = Space::<T>::new(metric, dimensions, &center, instructions);
        let exact = Space::<T>::new(options.metric, dimensions, &center, instructions);
        let build: Build<'_, T> = Build { job, vectors, options, plan, space, exact };
        let (held_out, upper) = build.sample()?;
        let upper_memory = job.budget().reserve(
            build.plan.groups * 32 + upper.len() as u64 * size_of::<T>() as u64,
            "centroids of groups",
        )?;
        let (sorted, counts) = build.gather(&upper)?;
        let centroids = build.train(upper, sorted, &counts, upper_memory)?;
        let sorted = build.assign(&centroids, &held_out, 0..vectors.info().vectors, None)?;
        let (builder, info) = build.write(store, sorted, centroids, held_out)?;
        builder.commit(&info.to_attributes())?;
        Ok(Built { info, plan: build.plan })
    }

    fn info(&self) -> &VectorsInfo {
        self.vectors.info()
    }

    fn row_bytes(&self) -> usize {
        self.info().row_bytes()
    }
}
