//! Writes the lists of an index again, with the centroids that the index has. Lists that have grown are split
//! (module `split`).

use std::sync::atomic::AtomicU64;

use inshore_store::{DatasetBuilder, Job, Store};

use super::{
    Build, COPIES_MAX, Index,
    plan::plan_beside,
    sample::HeldOut,
    split::{SPLIT_TIMES, planned_list_vectors, split_bytes},
};
use crate::{
    Element, Metric, Result, Vectors,
    index::{
        Clustered, IndexInfo, MeasuredOn, RecallPoint, RecallTable, VectorIndex, compare::Space, no_index_of,
    },
    search::center_of_vectors,
    tiles::Instructions,
};

/// An index that was written again and is not published yet.
pub(crate) struct RewrittenIndex {
    /// The new dataset. The caller must commit the dataset with the attributes of `info`.
    pub builder: DatasetBuilder,
    /// The properties of the index.
    pub info: IndexInfo,
    /// The number of lists that were split.
    pub split: u64,
}

/// Writes the lists of an index again, for all rows of `vectors`. The dataset of the vectors need not be published. A
/// list with more than [`SPLIT_TIMES`] times the planned number of vectors is split.
///
/// If no list is split, the function does the last two steps of a build. It needs no samples and no k-means. The new
/// table of recall has those points of the old table whose number of probes is less than the number of lists of the new
/// index.
///
/// If lists are split, the vectors are assigned twice: first to the old lists, then to the new ones. Recall is measured
/// again on held-out vectors. But if the old table was measured on queries of the user, the new table has the points
/// of the old table, with as many more probes as the index has more lists.
///
/// # Errors
/// Returns the errors of [`super::build_index`].
pub(crate) fn rewrite_index(
    store: &Store,
    job: &Job,
    vectors: &Vectors,
    index: &VectorIndex,
) -> Result<RewrittenIndex> {
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
) -> Result<RewrittenIndex> {
    let (info, rows) = (index.info(), vectors.info().vectors);
    // The ratio of the size of the largest list with copies to the size of an average list stays the same as in the old
    // index.
    let average = info.vectors.div_ceil(info.lists);
    let copies = info.copies.as_ref().map(|copies| (copies.list_vectors_max / average).clamp(2, COPIES_MAX));
    let codes = info.codes.as_ref().map(|codes| codes.bits);
    let options = |lists: u64| {
        let lists = Some(lists.min(rows));
        Index { metric: info.metric, lists, seed: info.seed, copies, codes }
    };
    let former = options(info.lists);
    let mut plan = plan_beside(job, vectors.info(), &former, |plan, memory| {
        let upper = index.upper_bytes().saturating_sub(memory.upper);
        split_bytes::<T>(plan, memory, info.dimensions) + upper
    })?;
    plan.lists = info.lists;
    let center = center_of_vectors(job, vectors, Metric::L2)?;
    let metric = if info.metric == Metric::Cosine { Metric::Cosine } else { Metric::L2 };
    let space = Space::<T>::new(metric, info.dimensions, &center, Instructions::best());
    let exact = Space::<T>::new(info.metric, info.dimensions, &center, Instructions::best());
    let mut build: Build<'_, T> = Build { job, vectors, options: &former, plan, space, exact, keep: None };
    let (_, centroids) = index.load::<T>(job, build.plan.holds_centroids)?;
    let counts_memory = job.budget().reserve(8 * info.lists, "the sizes of lists")?;
    let counts: Vec<AtomicU64> = (0..info.lists).map(|_| AtomicU64::new(0)).collect();
    let (sorted, _) = build.assign_counted(&centroids, &HeldOut::none(job)?, 0..rows, None, &counts)?;
    let counts: Vec<u64> = counts.into_iter().map(AtomicU64::into_inner).collect();
    let most = SPLIT_TIMES * planned_list_vectors(info);
    if counts.iter().all(|&count| count <= most) {
        let (builder, mut made) = build.write(store, sorted, centroids, HeldOut::none(job)?)?;
        made.sample = info.sample;
        replace_tables(&mut made, info, kept);
        return Ok(RewrittenIndex { builder, info: made, split: 0 });
    }
    let measures = info.recall.measured_on == MeasuredOn::HeldOutVectors;
    let ids = if measures { build.held_out_ids() } else { Vec::new() };
    let held_out_memory = build.reserve_held_out()?;
    let split = build.split(sorted, &centroids, info, &counts, &ids)?;
    drop((centroids, counts, counts_memory, held_out_memory));
    let (split_lists, sampled) = (split.split, split.sampled);
    let current = options(split.lists());
    build.options = &current;
    build.plan = plan_beside(job, vectors.info(), &current, |_, memory| {
        split.upper_bytes().saturating_sub(memory.upper)
    })?;
    build.plan.lists = split.lists();
    let held_out = match measures {
        true => build.held_out(ids, &split.held_out, build.reserve_held_out()?),
        false => HeldOut::none(job)?,
    };
    let centroids = split.centroids(job, info.dimensions, build.plan.holds_centroids)?;
    let (sorted, _) = build.assign(&centroids, &held_out, 0..rows, None)?;
    let (builder, mut made) = build.write(store, sorted, centroids, held_out)?;
    made.sample = info.sample + sampled;
    if !measures {
        replace_tables(&mut made, info, |old, lists| scaled(old, info.lists, lists));
    }
    Ok(RewrittenIndex { builder, info: made, split: split_lists })
}

/// Replaces the tables of recall of the index `made` by those of the index `old`, which `change` adapts to the number
/// of lists of `made`.
fn replace_tables(made: &mut IndexInfo, old: &IndexInfo, change: impl Fn(&RecallTable, u64) -> RecallTable) {
    made.recall = change(&old.recall, made.lists);
    if let (Some(copies), Some(old)) = (&mut made.copies, &old.copies) {
        copies.recall = change(&old.recall, made.lists);
    }
    if let (Some(codes), Some(old)) = (&mut made.codes, &old.codes) {
        codes.recall = change(&old.recall, made.lists);
        // A search that probes all lists reads no codes.
        codes.recall.points.pop();
    }
}

/// Returns the old table of recall, reduced to the points that are valid for an index of `lists` lists.
fn kept(old: &RecallTable, lists: u64) -> RecallTable {
    let mut points = old.points.clone();
    points.retain(|point| point.probes < lists);
    points.push(RecallPoint { probes: lists, recall: 1.0 });
    RecallTable { points, ..old.clone() }
}

/// Returns the old table of recall for an index that has `lists` lists in the place of `former` lists. The same share
/// of the lists is probed for the same recall.
fn scaled(old: &RecallTable, former: u64, lists: u64) -> RecallTable {
    let probes = |point: &RecallPoint| (point.probes * lists.max(former)).div_ceil(former);
    let points = old.points.iter().map(|point| RecallPoint { probes: probes(point), ..*point });
    kept(&RecallTable { points: points.collect(), ..old.clone() }, lists)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_a_split_index_probes_the_same_share_of_the_lists() {
        let point = |(probes, recall)| RecallPoint { probes, recall };
        let table = |points: &[(u64, f32)]| {
            let points = points.iter().copied().map(point).collect();
            RecallTable { measured_seconds: 5, ..RecallTable::new(10, 7, MeasuredOn::Queries, points) }
        };
        let old = table(&[(1, 0.5), (2, 0.6), (3, 0.75), (8, 1.0)]);
        assert_eq!(scaled(&old, 8, 12), table(&[(2, 0.5), (3, 0.6), (5, 0.75), (12, 1.0)]));
        assert_eq!(scaled(&old, 8, 8), old);
        // If lists without vectors are left out, the number of probes stays.
        assert_eq!(scaled(&old, 8, 3), table(&[(1, 0.5), (2, 0.6), (3, 1.0)]));
    }
}
