//! Writes the lists of an index again, with the centroids that the index has.

use inshore_store::{DatasetBuilder, Job, Store};

use super::{Build, COPIES_MAX, Index, plan::plan_index, sample::HeldOut};
use crate::{
    Element, Metric, Result, Vectors,
    index::{Clustered, IndexInfo, RecallPoint, RecallTable, VectorIndex, compare::Space, no_index_of},
    search::center_of_vectors,
    tiles::Instructions,
};

/// Writes the lists of an index again, for all rows of `vectors`. The dataset of the vectors need not be published.
/// Returns the new dataset and the properties of the index. The caller must commit the dataset with these properties as
/// its attributes. The new table of recall has those points of the old table whose number of probes is less than the
/// number of lists of the new index.
///
/// The function does the last two steps of a build. It needs no samples and no k-means.
///
/// # Errors
/// Returns the errors of [`super::build_index`].
pub(crate) fn rewrite_index(
    store: &Store,
    job: &Job,
    vectors: &Vectors,
    index: &VectorIndex,
) -> Result<(DatasetBuilder, IndexInfo)> {
    match vectors.info().element {
        Element::F32 => rewrite::<f32>(store, job, vectors, index),
        Element::U8 => rewrite::<u8>(store, job, vectors, index),
        Element::I8 => rewrite::<i8>(store, job, vectors, index),
        Element::F16 | Element::Bf16 | Element::Bits => Err(no_index_of(vectors.info())),
    }
}

fn rewrite<T: Clustered>(
    store: &Store,
    job: &Job,
    vectors: &Vectors,
    index: &VectorIndex,
) -> Result<(DatasetBuilder, IndexInfo)> {
    let (info, rows) = (index.info(), vectors.info().vectors);
    // The ratio of the size of the largest list with copies to the size of an average list stays the same as in the old
    // index.
    let average = info.vectors.div_ceil(info.lists);
    let copies = info.copies.as_ref().map(|copies| (copies.list_vectors_max / average).clamp(2, COPIES_MAX));
    let codes = info.codes.as_ref().map(|codes| codes.bits);
    let lists = Some(info.lists.min(rows));
    let options = Index { metric: info.metric, lists, seed: info.seed, copies, codes };
    let mut plan = plan_index(job, vectors.info(), &options)?;
    (plan.lists, plan.list_sample) = (info.lists, info.sample);
    let (_, centroids) = index.load::<T>(job, plan.holds_centroids)?;
    let center = center_of_vectors(job, vectors, Metric::L2)?;
    let metric = if info.metric == Metric::Cosine { Metric::Cosine } else { Metric::L2 };
    let space = Space::<T>::new(metric, info.dimensions, &center, Instructions::best());
    let exact = space.clone();
    let build: Build<'_, T> = Build { job, vectors, options: &options, plan, space, exact, keep: None };
    let (sorted, _) = build.assign(&centroids, &HeldOut::none(job)?, 0..rows, None)?;
    let (builder, mut made) = build.write(store, sorted, centroids, HeldOut::none(job)?)?;
    made.recall = kept(&info.recall, made.lists);
    if let (Some(copies), Some(old)) = (&mut made.copies, &info.copies) {
        copies.recall = kept(&old.recall, made.lists);
    }
    if let (Some(codes), Some(old)) = (&mut made.codes, &info.codes) {
        codes.recall = kept(&old.recall, made.lists);
        // A search that probes all lists reads no codes.
        codes.recall.points.pop();
    }
    Ok((builder, made))
}

/// Returns the old table of recall, reduced to the points that are valid for an index of `lists` lists.
fn kept(old: &RecallTable, lists: u64) -> RecallTable {
    let mut points = old.points.clone();
    points.retain(|point| point.probes < lists);
    points.push(RecallPoint { probes: lists, recall: 1.0 });
    RecallTable { points, ..old.clone() }
}
