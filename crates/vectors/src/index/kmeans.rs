//! k-means on a sample in memory.
//!
//! The method is Lloyd's iteration. In each step, each row is assigned to its nearest centroid, and each centroid moves
//! to the mean of its rows. A centroid has the element type of the data, so that tiles can compare centroids in the
//! same way as vectors. The elements of a centroid are the rounded mean. A centroid without rows moves to a row of the
//! largest cluster. Under the cosine metric, a centroid has the direction of the sum of its rows, after each row is
//! scaled to length 1.
//!
//! The result depends only on the rows and their order, not on the number of threads. Several threads assign rows to
//! centroids, but one thread adds the rows, in their order.

use super::{
    Clustered,
    compare::{Comparer, Members, Packed, Space},
};
use crate::{heaps::Nearest, metric::Metric};

/// The number of rows that are packed for tiles at a time.
const BLOCK_ROWS: usize = 1024;

/// Returns the memory, in bytes, of each thread of [`train`].
pub(crate) fn thread_bytes<T: Clustered>(dimensions: usize) -> u64 {
    let each = Packed::<T>::bytes_each(dimensions) + Nearest::bytes_each() + 8;
    Comparer::<T>::bytes(dimensions) + BLOCK_ROWS as u64 * each
}

/// Returns the memory, in bytes, of the sums and labels of [`train`].
pub(crate) fn sums_bytes<T: Clustered>(dimensions: usize, rows: u64, count: u64) -> u64 {
    count * dimensions as u64 * (8 + size_of::<T>() as u64) + rows * 4 + count * 16
}

/// Returns `count` centroids of `rows`. If there are fewer rows than `count`, each row is a centroid.
pub(crate) fn train<T: Clustered>(
    space: &Space<T>,
    rows: &[T],
    count: usize,
    iterations: usize,
    threads: usize,
    stop: &(dyn Fn() -> bool + Sync),
) -> Vec<T> {
    let dimensions = space.dimensions;
    let number = rows.len() / dimensions;
    let count = count.min(number);
    // The first centroids are rows at equal distances in the sample. The order of the sample is random, or that of the
    // data.
    let first = |centroid: usize| &rows[centroid * number / count * dimensions..][..dimensions];
    let mut centroids: Vec<T> = (0..count).flat_map(|centroid| first(centroid).iter().copied()).collect();
    if count == number {
        return centroids;
    }
    let mut labels = vec![0u32; number];
    let mut sums = vec![0.0f64; count * dimensions];
    for _ in 0..iterations {
        if stop() {
            break;
        }
        assign(space, rows, &centroids, &mut labels, threads);
        let mut counts = vec![0u64; count];
        sums.fill(0.0);
        for (row, &label) in rows.chunks_exact(dimensions).zip(&labels) {
            let scale = match space.metric {
                Metric::Cosine => {
                    Some(T::norm(row)).filter(|norm| *norm > 0.0).map_or(0.0, |norm| 1.0 / norm)
                }
                _ => 1.0,
            };
            counts[label as usize] += 1;
            let sums = &mut sums[label as usize * dimensions..][..dimensions];
            sums.iter_mut().zip(row).for_each(|(sum, &x)| *sum += x.value() * scale);
        }
        for (centroid, out) in centroids.chunks_exact_mut(dimensions).enumerate() {
            let sums = &sums[centroid * dimensions..][..dimensions];
            if counts[centroid] > 0 {
                let scale = match space.metric {
                    Metric::Cosine => {
                        let most = sums.iter().fold(0.0f64, |most, sum| most.max(sum.abs()));
                        if most > 0.0 { T::LARGEST / most } else { 0.0 }
                    }
                    _ => 1.0 / counts[centroid] as f64,
                };
                out.iter_mut().zip(sums).for_each(|(out, sum)| *out = T::nearest(sum * scale));
            }
        }
        refill(rows, &labels, &mut counts, &mut centroids, dimensions);
    }
    centroids
}

/// Moves each centroid without rows to a row of the largest cluster.
fn refill<T: Clustered>(
    rows: &[T],
    labels: &[u32],
    counts: &mut [u64],
    centroids: &mut [T],
    dimensions: usize,
) {
    for empty in 0..counts.len() {
        if counts[empty] > 0 {
            continue;
        }
        let most = counts.iter().copied().max().unwrap_or(0);
        if most < 2 {
            return;
        }
        let largest = counts.iter().position(|count| *count == most).expect("the maximum");
        // The row depends on the number of the empty centroid, so that several empty centroids get different rows of
        // one cluster. When a cluster gives away a row, its count is halved, so that a later empty centroid may choose
        // another cluster.
        let nth = (empty % most as usize).max(1) - 1;
        let mut members = labels.iter().enumerate().filter(|(_, label)| **label as usize == largest);
        if let Some((row, _)) = members.nth(nth) {
            centroids[empty * dimensions..][..dimensions]
                .copy_from_slice(&rows[row * dimensions..][..dimensions]);
        }
        counts[empty] = most / 2;
        counts[largest] = most - most / 2;
    }
}

/// Finds the nearest centroid of each row, and writes its number to `labels`.
pub(crate) fn assign<T: Clustered>(
    space: &Space<T>,
    rows: &[T],
    centroids: &[T],
    labels: &mut [u32],
    threads: usize,
) {
    let dimensions = space.dimensions;
    let each = labels.len().div_ceil(threads).next_multiple_of(BLOCK_ROWS);
    let work = |rows: &[T], labels: &mut [u32]| {
        let mut packed = Packed::<T>::with_capacity(dimensions, BLOCK_ROWS);
        let (mut comparer, mut nearest) = (Comparer::new(dimensions), Nearest::default());
        let members: Vec<u32> = (0..BLOCK_ROWS as u32).collect();
        for (rows, labels) in rows.chunks(BLOCK_ROWS * dimensions).zip(labels.chunks_mut(BLOCK_ROWS)) {
            packed.clear();
            packed.extend(rows, space);
            nearest.reset(labels.len());
            let queries = Members { packed: &packed, members: &members[..labels.len()], heaps: &nearest };
            comparer.compare(space, centroids, |row| row as u64, &queries);
            labels.iter_mut().enumerate().for_each(|(row, label)| *label = nearest.id(row) as u32);
        }
    };
    if each >= labels.len() {
        return work(rows, labels);
    }
    std::thread::scope(|scope| {
        for (rows, labels) in rows.chunks(each * dimensions).zip(labels.chunks_mut(each)) {
            let work = &work;
            scope.spawn(move || work(rows, labels));
        }
    });
}
