//! Measures the recall of searches by codes. The queries are answered in the same way as by a search.

use std::sync::{
    Mutex,
    atomic::{AtomicUsize, Ordering},
};

use inshore_store::{Buffer, Job};

use super::{CodeScratch, CodeSearch, Codes, ProbedList, shape::Shape};
use crate::{
    Result,
    heaps::Tops,
    ids::Ids,
    index::{
        Clustered,
        centroids::Centroids,
        compare::{Comparer, Members, Packed, Space},
        info::IndexInfo,
        parts::Part,
        plan::{DEPTH, joined_bytes},
        round::Selected,
        table::RecallPoint,
    },
    topk::TopK,
};

/// Searches by codes are measured from this recall of the lists on.
const RECALL_MIN: f32 = 0.5;

/// Returns the numbers of probes that are measured. They follow from the table of recall of the lists, since a search
/// by codes finds no neighbour whose list is not probed. Each second point is taken, because a measurement answers all
/// queries for each point.
pub(in crate::index) fn measured_points(lists: u64, points: &[RecallPoint]) -> Vec<u64> {
    let near = points.iter().filter(|point| point.recall >= RECALL_MIN && point.probes < lists);
    let all: Vec<u64> = near.map(|point| point.probes).collect();
    all.iter().rev().step_by(2).rev().copied().collect()
}

/// The queries of a measurement.
pub(in crate::index) struct Measured<'a, T: Clustered> {
    pub packed: &'a Packed<T>,
    /// The rows of the exact neighbours of each query.
    pub neighbours: &'a [Vec<u64>],
    /// The number of nearest vectors that a query finds. A query that is a vector of the dataset finds itself, too.
    pub k: usize,
    /// The rows that were not removed, or `None` if no row was removed.
    pub selected: Option<&'a Selected<'a>>,
}

/// Returns the memory, in bytes, of a thread that measures recall.
pub(in crate::index) fn measure_bytes<T: Clustered>(
    shape: &Shape,
    (k, probes): (u64, u64),
    (list_vectors_max, chunk_bytes_max): (u64, u64),
) -> u64 {
    let buffers = DEPTH * joined_bytes(shape.list_bytes(list_vectors_max).max(chunk_bytes_max));
    inshore_store::taken_bytes(buffers) as u64
        + CodeScratch::bytes(shape, k, list_vectors_max)
        + Comparer::<T>::bytes(shape.dimensions)
        + TopK::bytes(probes)
        + probes * size_of::<ProbedList>() as u64
        + TopK::bytes(k)
}

/// Measures the recall of searches by codes for each number of probes in `probes`.
///
/// # Errors
/// Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
/// memory, or the job was cancelled.
pub(in crate::index) fn measure_codes<T: Clustered>(
    job: &Job,
    (codes, part, centroids): (&Codes, &Part, &Centroids<T>),
    (space, info): (&Space<T>, &IndexInfo),
    measured: &Measured<'_, T>,
    probes: &[u64],
) -> Result<Vec<RecallPoint>> {
    let &Measured { packed, neighbours, k, selected } = measured;
    let (shape, ids) = (codes.shape, &Ids::default());
    let (list_vectors_max, chunk_bytes_max) = (info.list_vectors_max, part.chunk_bytes());
    let most = probes.last().copied().unwrap_or(1);
    let wanted: usize = neighbours.iter().map(Vec::len).sum();
    let sizes = (list_vectors_max, chunk_bytes_max);
    let each = measure_bytes::<T>(&shape, (k as u64, most), sizes)
        + centroids.finder_bytes(1, centroids.groups_for(most));
    let threads = (job.budget().free_bytes() / each).clamp(1, job.budget().threads() as u64);
    let mut points = Vec::new();
    for &probes in probes {
        let (groups, next, found) = (centroids.groups_for(probes), AtomicUsize::new(0), Mutex::new(0));
        let work = || -> Result<()> {
            let mut finder = centroids.finder(job)?;
            let bytes = joined_bytes(shape.list_bytes(list_vectors_max).max(chunk_bytes_max));
            let mut spare = Buffer::zeroed(job.budget(), DEPTH * bytes, "lists of codes")?.split(bytes);
            let mut scratch = CodeScratch::new(job, &shape, k as u64, list_vectors_max)?;
            let mut comparer = Comparer::<T>::new(shape.dimensions);
            loop {
                let query = next.fetch_add(1, Ordering::Relaxed);
                if query >= packed.len() {
                    return Ok(());
                }
                job.check_cancelled()?;
                let near = [TopK::new(probes as usize, f64::INFINITY)];
                let members = [query as u32];
                let heaps = Tops { first: query, tops: &near };
                centroids.find(
                    job,
                    space,
                    groups,
                    &Members { packed, members: &members, heaps: &heaps },
                    &mut finder,
                )?;
                let [near] = near;
                let of_entry =
                    |entry: crate::topk::Entry| ProbedList { list: entry.id as u32, key: entry.key };
                let mut probed: Vec<ProbedList> = near.into_sorted().into_iter().map(of_entry).collect();
                let top = [TopK::new(k, f64::INFINITY)];
                let heaps = &Tops { first: query, tops: &top };
                let search = CodeSearch { job, codes, part, space, packed, heaps, selected, ids, k };
                search.answer(query as u32, &mut probed, (&mut scratch, &mut comparer), &mut spare)?;
                let mut count = 0;
                top[0].each(|entry| count += usize::from(neighbours[query].contains(&entry.id)));
                *found.lock().expect("no panic under this lock") += count;
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        let found = found.into_inner().expect("no panic under this lock");
        points.push(RecallPoint { probes, recall: found as f32 / wanted.max(1) as f32 });
    }
    Ok(points)
}
