//! The lists of an index are written again, by the centroids that the index has.

use inshore_store::{DatasetBuilder, Job, Store};

use super::{Build, COPIES_MAX, Index, plan::plan_index, sample::HeldOut};
use crate::{
    Element, Metric, Result, Vectors,
    index::{Clustered, IndexInfo, RecallPoint, RecallTable, VectorIndex, compare::Space, no_index_of},
    search::center_of_vectors,
    tiles::Instructions,
};

/// Writes the lists of an index again, for all rows of `vectors`, which may be vectors that are not published yet. The
/// result is to be committed with the attributes of its properties. The table of recall stays, for as many lists as there are.
///
/// The cost is that of the last two steps of a build: no samples and no k-means.
///
/// # Errors
/// The errors of [`super::build_index`].
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
    // Lists hold as many copies as before, relative to the vectors of an average list.
    let average = info.vectors.div_ceil(info.lists);
    let copies = info.copies.as_ref().map(|copies| (copies.list_vectors_max / average).clamp(2, COPIES_MAX));
    let options = Index { metric: info.metric, lists: Some(info.lists.min(rows)), seed: info.seed, copies };
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
    Ok((builder, made))
}

/// Returns a table of recall for `lists` lists.
fn kept(old: &RecallTable, lists: u64) -> RecallTable {
    let mut points = old.points.clone();
    points.retain(|point| point.probes < lists);
    points.push(RecallPoint { probes: lists, recall: 1.0 });
    RecallTable { points, ..old.clone() }
}
