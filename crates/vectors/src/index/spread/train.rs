//! Trains the centroids of a spread index on a sample in memory. The training has two levels: it first trains the
//! centroids of groups, and then the centroids of the lists of each group.

use inshore_store::Context;
use zerocopy::IntoBytes;

use super::{
    SamplePlan,
    centroids::{SpreadIndex, SpreadIndexInfo, SpreadIndexKind, coarse},
};
use crate::{
    Element, Index, MeasuredOn, RecallTable, Result, VectorsInfo,
    element::{aligned, bytes_of},
    heaps::Nearest,
    index::{
        Clustered,
        compare::{Comparer, Members, Packed, Space},
        kmeans, no_index_of,
    },
    layout::LAYOUT_VERSION,
};

const ITERATIONS: usize = 8;
/// The number of groups whose lists are compared with a vector to find the nearest list. The plan of a build in one
/// store uses the same number.
const GROUPS_ASSIGNED: u64 = 8;
/// The number of vectors that are compared with centroids at once.
const BATCH_ROWS: usize = 1024;

/// Trains centroids on the vectors of a sample. `sample` contains the elements of these vectors by ascending ids. The
/// caller must set the numbers of vectors of the lists, the ids of the datasets and the recall of the returned index.
///
/// The memory consists of two copies of the sample, the sums of k-means and the centroids.
///
/// # Errors
/// - Returns [`crate::Error::BadDataset`] if the element type of the vectors is not `f32`, `u8` or `i8`.
/// - Returns [`crate::Error::Store`] if the budget has too little free memory or the job was cancelled.
pub fn train_lists(
    context: &Context,
    vectors: &VectorsInfo,
    options: &Index,
    plan: &SamplePlan,
    sample: &[u8],
) -> Result<SpreadIndex> {
    match vectors.element {
        Element::F32 => train::<f32>(context, vectors, options, plan, sample),
        Element::U8 => train::<u8>(context, vectors, options, plan, sample),
        Element::I8 => train::<i8>(context, vectors, options, plan, sample),
        Element::F16 | Element::Bf16 | Element::Bits => Err(no_index_of(vectors)),
    }
}

fn train<T: Clustered>(
    context: &Context,
    vectors: &VectorsInfo,
    options: &Index,
    plan: &SamplePlan,
    sample: &[u8],
) -> Result<SpreadIndex> {
    let dimensions = vectors.dimensions;
    let rows = (sample.len() / vectors.row_bytes()) as u64;
    let lists = plan.lists.min(rows);
    let groups = (((lists * GROUPS_ASSIGNED) as f64).sqrt().ceil() as u64).min(lists.div_ceil(4)).max(1);
    let threads = context.budget().threads();
    let sums = kmeans::sums_bytes::<T>(dimensions, rows, lists.max(groups));
    let bytes = 2 * sample.len() as u64
        + sums
        + (threads as u64 + 1) * kmeans::thread_bytes::<T>(dimensions)
        + 2 * (lists + groups) * vectors.row_bytes() as u64;
    context.budget().need(bytes, || format!("training the centroids of {} lists", plan.lists))?;
    let _memory = context.budget().reserve(bytes, "the training of centroids")?;
    let mut memory = aligned(sample.len());
    let held = bytes_of(&mut memory, sample.len());
    held.copy_from_slice(sample);
    let held = T::rows(held);
    let space = coarse::<T>(options.metric, dimensions);
    let stop = || context.check_cancelled().is_err();
    let upper = kmeans::train(&space, held, groups as usize, ITERATIONS, threads, &stop);
    let mut members: Vec<Vec<T>> = vec![Vec::new(); upper.len() / dimensions];
    for (row, group) in held.chunks_exact(dimensions).zip(nearest(&space, &upper, held)) {
        members[group as usize].extend_from_slice(row);
    }
    let (mut kept, mut lower, mut firsts) = (Vec::new(), Vec::new(), vec![0u32]);
    for (group, rows_of_group) in members.iter().enumerate().filter(|(_, rows)| !rows.is_empty()) {
        let share = (rows_of_group.len() / dimensions) as f64 / rows as f64 * lists as f64;
        let count = (share.round() as usize).max(1);
        lower.extend(kmeans::train(&space, rows_of_group, count, ITERATIONS, threads, &stop));
        kept.extend_from_slice(&upper[group * dimensions..][..dimensions]);
        firsts.push((lower.len() / dimensions) as u32);
    }
    context.check_cancelled()?;
    let info = SpreadIndexInfo {
        kind: SpreadIndexKind::VectorIndex,
        version: LAYOUT_VERSION,
        element: vectors.element,
        dimensions,
        metric: options.metric,
        vectors: vectors.vectors,
        lists: (lower.len() / dimensions) as u64,
        groups: (kept.len() / dimensions) as u64,
        seed: options.seed,
        sample: rows,
        vectors_id: String::new(),
        lists_id: String::new(),
        recall: RecallTable::new(0, 0, MeasuredOn::HeldOutVectors, Vec::new()),
    };
    debug_assert_eq!(kept.as_bytes().len() as u64, info.groups * vectors.row_bytes() as u64);
    Ok(SpreadIndex::of_centroids(info, &kept, &lower, firsts))
}

/// Returns the nearest centroid of each row.
fn nearest<T: Clustered>(space: &Space<T>, centroids: &[T], rows: &[T]) -> Vec<u64> {
    let dimensions = space.dimensions;
    let members: Vec<u32> = (0..BATCH_ROWS as u32).collect();
    let (mut comparer, mut heaps) = (Comparer::new(dimensions), Nearest::default());
    let mut packed = Packed::with_capacity(dimensions, BATCH_ROWS);
    let mut found = Vec::with_capacity(rows.len() / dimensions);
    for rows in rows.chunks(BATCH_ROWS * dimensions) {
        packed.clear();
        packed.extend(rows, space);
        heaps.reset(packed.len());
        let queries = Members { packed: &packed, members: &members[..packed.len()], heaps: &heaps };
        comparer.compare(space, centroids, |row| row as u64, &queries);
        found.extend((0..packed.len()).map(|row| heaps.id(row)));
    }
    found
}
