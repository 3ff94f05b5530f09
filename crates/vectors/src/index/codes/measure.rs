//! Measures how many neighbours searches by codes find.
//!
//! A neighbour whose list is probed is missed if its lower bound is above the k-th smallest distance, among the vectors
//! of all probed lists. A search in only the lists of the neighbours has the smallest k-th distance that is possible. A
//! neighbour that this search finds is therefore found with any number of probes that reaches its list, and one search
//! for each query is enough for all points of the table of recall. The recall may be a little higher for few probes.

use std::{
    collections::HashSet,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
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
    },
    topk::{Entry, TopK},
};

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

/// Answers queries from the lists of their exact neighbours by codes. `lists_of` has the lists of each neighbour. Returns
/// the same lists, and no lists for neighbours that are not found.
///
/// # Errors
/// Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
/// memory, or the job was cancelled.
pub(in crate::index) fn lists_of_found<'a, T: Clustered>(
    job: &Job,
    (codes, part, centroids): (&Codes, &Part, &Centroids<T>),
    (space, info): (&Space<T>, &IndexInfo),
    measured: &Measured<'_, T>,
    lists_of: &[Vec<&'a [u32]>],
) -> Result<Vec<Vec<&'a [u32]>>> {
    let &Measured { packed, neighbours, k, selected } = measured;
    let (shape, ids, probes) = (codes.shape, &Ids::default(), info.lists);
    let (list_vectors_max, chunk_bytes_max) = (info.list_vectors_max, part.chunk_bytes());
    let groups = centroids.groups_for(probes);
    let sizes = (list_vectors_max, chunk_bytes_max);
    let each = measure_bytes::<T>(&shape, (k as u64, probes), sizes) + centroids.finder_bytes(1, groups);
    let threads = (job.budget().free_bytes() / each).clamp(1, job.budget().threads() as u64);
    let (next, found) = (AtomicUsize::new(0), Mutex::new(lists_of.to_vec()));
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
            let queries = Members { packed, members: &members, heaps: &heaps };
            centroids.find(job, space, groups, &queries, &mut finder)?;
            let [near] = near;
            let lists: HashSet<u32> = lists_of[query].iter().copied().flatten().copied().collect();
            // The nearest list is that of the query itself, if the query is a vector of the dataset.
            let is_probed = |&(rank, entry): &(usize, Entry)| rank == 0 || lists.contains(&(entry.id as u32));
            let near = near.into_sorted().into_iter().enumerate().filter(is_probed);
            let mut probed: Vec<ProbedList> =
                near.map(|(_, entry)| ProbedList { list: entry.id as u32, key: entry.key }).collect();
            let top = [TopK::new(k, f64::INFINITY)];
            let heaps = &Tops { first: query, tops: &top };
            let search = CodeSearch { job, codes, part, space, packed, heaps, selected, ids, k };
            search.answer(query as u32, &mut probed, (&mut scratch, &mut comparer), &mut spare)?;
            let mut answer = HashSet::new();
            top[0].each(|entry| _ = answer.insert(entry.id));
            let mut found = found.lock().expect("no panic under this lock");
            for (lists, neighbour) in found[query].iter_mut().zip(&neighbours[query]) {
                if !answer.contains(neighbour) {
                    *lists = &[];
                }
            }
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    Ok(found.into_inner().expect("no panic under this lock"))
}
