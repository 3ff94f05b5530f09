//! Builds an index. A build samples the vectors, trains centroids with k-means, assigns each vector to the list of its
//! nearest centroid, and sorts the vectors by list.
//!
//! ```text
//!   1 sample   vectors ─► sample of all ─► k-means ─► upper centroids            one pass over the vectors
//!   2 gather   vectors ─► larger sample ─► nearest group ─► sort by group         one pass
//!   3 train    the sample of each group ─► k-means ─► the centroids of its lists
//!   4 assign   vectors ─► nearest list, by both levels ─► sort by list            one pass
//!   5 write    list by list: vectors, ids, centroid
//! ```
//!
//! The lists depend only on the vectors, the options and the seed, not on the budget and the number of threads. The
//! sizes of the samples do not depend on them either, and a sort determines the order of the second sample. The build
//! streams its data. The memory holds the first sample, and later the centroids, blocks of vectors and the buffers of a
//! sort.
//!
//! A list has at most four times as many vectors as an average list. A larger cluster is cut into several lists with
//! the same centroid, which are probed together. A read is therefore bounded even if many vectors are equal. A centroid
//! that is not the nearest one of any vector has no list.
//!
//! With [`Index::copies`], the sort of step 4 has a row for each list that holds a vector (module `closure`). Step 5
//! writes a second file from this sort. In this file, each list is followed by the copies that lie nearest to its
//! centroid.
//!
//! With [`Index::codes`], step 5 also computes a code of each vector from its list's centroid, and writes a second file
//! of lists, which holds the codes. Lists then have more vectors, so that a list of codes fills a read.
//!
//! # Cost
//!
//! A build reads the vectors three times and writes the lists once. If the sort does not fit in memory, its runs are
//! written and read once. The build computes one multiplication for each vector, each dimension and each centroid with
//! which the vector is compared. A vector is compared with all upper centroids, and with the centroids of the lists in
//! the groups nearest to it.

mod assign;
mod closure;
mod extend;
mod gather;
mod kept;
mod plan;
mod rewrite;
mod sample;
mod shard;
mod sort;
mod split;
mod train;
mod turns;
mod write;

use inshore_store::{Job, Keep, Store};
use serde::Serialize;

use self::sample::HeldOut;
pub(crate) use self::{
    extend::{extend_index, remove_unused_layers},
    plan::RECALL_K,
    rewrite::{RewrittenIndex, rewrite_index},
    sample::draw,
    shard::{LIST_ID_BYTES, shard_directory_bytes},
    sort::add_elements,
    split::{SPLIT_TIMES, planned_list_vectors},
};
pub use self::{
    plan::{BuildPlan, plan_index},
    shard::{shard_lists_bytes, write_shard_lists},
};
use super::{Clustered, centroids::Centroids, compare::Space, info::IndexInfo, no_index_of};
use crate::{
    Element, Metric, Result, Vectors, VectorsInfo, names::check_index_place, search::center_of_vectors,
    tiles::Instructions,
};

/// The options of the build of an index.
#[derive(Clone, Debug, PartialEq)]
pub struct Index {
    /// The metric of the searches that will use the index.
    pub metric: Metric,
    /// The number of lists. By default the average list has 16 KiB, or 32 vectors if 32 vectors have more bytes.
    pub lists: Option<u64>,
    /// The seed that determines which vectors are sampled.
    pub seed: u64,
    /// The size of a list with copies, as a multiple of the average list, from 2 to [`COPIES_MAX`]. If the size is
    /// given, the index has a second file for the single strategy. In this file, each list also has copies of those
    /// vectors of other lists that lie near its border, until the list has `copies` times as many vectors as an average
    /// list. The file takes up to about `copies` times the bytes of the vectors. The default is `None`, which builds no
    /// copies.
    pub copies: Option<u64>,
    /// The number of bits for each dimension in the codes of the vectors: 1, 2 or 4. If the number is given, the index
    /// has a second file for the single strategy, with a code in the place of each vector. A query by codes measures
    /// only those vectors exactly whose distance may be small enough. The default is `None`, which builds no codes. An
    /// index has copies or codes, but not both.
    pub codes: Option<u32>,
}

/// The largest value of [`Index::copies`].
pub const COPIES_MAX: u64 = 16;

impl Default for Index {
    /// Returns the options for lists of 16 KiB and Euclidean distances, without copies and codes.
    fn default() -> Index {
        Index { metric: Metric::L2, lists: None, seed: 0, copies: None, codes: None }
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
    /// The number of vectors, including copies, in the finished runs of the interrupted build from which this build
    /// resumed. The number is 0 if the interrupted build kept only the centroids. `None` if the build used no kept
    /// work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed: Option<u64>,
    /// The reason why the build did not use the kept work of an interrupted build. `None` if there was no unused work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unused: Option<String>,
}

/// Builds the index of `vectors`, or builds it again. The new index replaces an old one at the commit. A job that ends
/// earlier changes nothing.
///
/// # Errors
/// - Returns the errors of [`plan_index`].
/// - Returns [`crate::Error::BadDataset`] if the dataset with the name of the index is no index.
/// - Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, or the job was cancelled.
pub fn build_index(store: &Store, job: &Job, vectors: &Vectors, options: &Index) -> Result<Built> {
    build(store, job, vectors, options, false)
}

/// Builds the index as [`build_index`] does, and keeps the finished work of the build. The work consists of the trained
/// centroids and of the vectors that are already sorted by list. If the build is interrupted, a later build of the same
/// vectors with the same options resumes from the kept work, with any budget and any number of threads. The resumed
/// build creates the same index. The work stays in the store until such a build is complete or [`Store::remove_kept`]
/// removes the work.
///
/// # Errors
/// - Returns [`inshore_store::Error::InUse`] if another build of the same vectors with the same options is running.
/// - Returns the errors of [`build_index`].
pub fn resume_index(store: &Store, job: &Job, vectors: &Vectors, options: &Index) -> Result<Built> {
    build(store, job, vectors, options, true)
}

fn build(store: &Store, job: &Job, vectors: &Vectors, options: &Index, resumes: bool) -> Result<Built> {
    let built = match vectors.info().element {
        Element::F32 => Build::<f32>::run(store, job, vectors, options, resumes),
        Element::U8 => Build::<u8>::run(store, job, vectors, options, resumes),
        Element::I8 => Build::<i8>::run(store, job, vectors, options, resumes),
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
    /// The space in which vectors are compared with centroids: Euclidean distance, or the cosine.
    space: Space<T>,
    /// The space in which vectors are compared with held-out vectors, by the metric of the index.
    exact: Space<T>,
    /// The place where the build keeps its finished work. `None` if the build keeps no work.
    keep: Option<Keep>,
}

impl<T: Clustered> Build<'_, T> {
    fn run(store: &Store, job: &Job, vectors: &Vectors, options: &Index, resumes: bool) -> Result<Built> {
        let plan = plan_index(job, vectors.info(), options)?;
        check_index_place(store, &vectors.info().name)?;
        job.progress().tell(|| format!("index: {plan}"));
        let dimensions = vectors.info().dimensions;
        let metric = if options.metric == Metric::Cosine { Metric::Cosine } else { Metric::L2 };
        let instructions = Instructions::best();
        let center = center_of_vectors(job, vectors, Metric::L2)?;
        let space = Space::<T>::new(metric, dimensions, &center, instructions);
        let exact = Space::<T>::new(options.metric, dimensions, &center, instructions);
        let mut build: Build<'_, T> = Build { job, vectors, options, plan, space, exact, keep: None };
        build.keep = resumes.then(|| build.keep(store)).transpose()?;
        let kept = build.keep.as_ref().map(|keep| build.trained(keep)).transpose()?.flatten();
        let (is_resumed, mut unused) = (kept.is_some(), None);
        let (held_out, centroids) = match kept {
            Some(trained) => trained,
            None => {
                if let Some(keep) = &build.keep {
                    unused = build.unused_work(store, keep)?;
                }
                build.train_all()?
            }
        };
        let (sorted, rows) = build.assign(&centroids, &held_out, 0..vectors.info().vectors, None)?;
        let (builder, info) = build.write(store, sorted, centroids, held_out)?;
        builder.commit(&info.to_attributes())?;
        build.keep.as_ref().map_or(Ok(()), Keep::finish)?;
        Ok(Built { info, plan: build.plan, resumed: is_resumed.then_some(rows), unused })
    }

    /// Trains the centroids. Also keeps the centroids if the build keeps its work.
    fn train_all(&self) -> Result<(HeldOut<T>, Centroids<T>)> {
        let (held_out, upper) = self.sample()?;
        let upper_memory = self.job.budget().reserve(
            self.plan.groups * 32 + upper.len() as u64 * size_of::<T>() as u64,
            "centroids of groups",
        )?;
        let (sorted, counts) = self.gather(&upper)?;
        let centroids = self.train(upper, sorted, &counts, upper_memory)?;
        if let Some(keep) = &self.keep {
            self.keep_trained(keep, &centroids, &held_out)?;
        }
        Ok((held_out, centroids))
    }

    fn info(&self) -> &VectorsInfo {
        self.vectors.info()
    }

    fn row_bytes(&self) -> usize {
        self.info().row_bytes()
    }
}
