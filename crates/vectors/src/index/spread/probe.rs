//! Chooses the lists that queries probe. The choice compares each query with the centroids of all lists.

use inshore_store::Context;

use super::centroids::{SpreadIndex, coarse};
use crate::{
    Element, Result,
    element::{aligned, bytes_of},
    heaps::Tops,
    index::{
        Clustered,
        build::add_elements,
        compare::{Comparer, Members, Packed, Space},
    },
    topk::TopK,
};

/// The number of queries whose lists are found together.
const BATCH: usize = 256;

/// A `Prober` finds the lists that queries probe.
#[derive(Debug)]
pub struct Prober<'a> {
    index: &'a SpreadIndex,
    /// The number of lists that a query probes. A query probes more lists if these contain fewer than `needed` vectors.
    pub probes: u64,
    /// The smallest number of vectors that the probed lists of a query contain together, unless a query probes all
    /// lists.
    pub needed: u64,
}

impl<'a> Prober<'a> {
    /// Creates a prober that chooses `probes` lists for each query. If these contain fewer than `needed` vectors, the
    /// prober chooses more lists.
    pub fn new(index: &'a SpreadIndex, probes: u64, needed: u64) -> Prober<'a> {
        Prober { index, probes: probes.min(index.info.lists), needed: needed.min(index.info.vectors) }
    }

    /// Returns the lists of each query, the nearest list first. `queries` contains elements of the type of the vectors.
    ///
    /// The memory consists of the centroids, two copies of the queries, and the numbers of the lists of each query.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if the budget has too little free memory or the job was cancelled.
    pub fn lists(&self, context: &Context, queries: &[u8]) -> Result<Vec<Vec<u32>>> {
        match self.index.info.element {
            Element::F32 => self.find::<f32>(context, queries),
            Element::I8 => self.find::<i8>(context, queries),
            // The check of the description refuses the last three types.
            Element::U8 | Element::F16 | Element::Bf16 | Element::Bits => self.find::<u8>(context, queries),
        }
    }

    fn find<T: Clustered>(&self, context: &Context, queries: &[u8]) -> Result<Vec<Vec<u32>>> {
        let info = &self.index.info;
        let count = queries.len() / info.layout().row_bytes();
        let bytes = self.index.lower.len() as u64
            + queries.len() as u64
            + count as u64 * (Packed::<T>::bytes_each(info.dimensions) + 4 * self.probes + 32)
            + BATCH as u64 * TopK::bytes(self.probes)
            + Comparer::<T>::bytes(info.dimensions);
        let _memory = context.budget().reserve(bytes, "the lists of queries")?;
        let space = coarse::<T>(info.metric, info.dimensions);
        let mut centroids: Vec<T> = Vec::with_capacity(self.index.lower.len() / size_of::<T>());
        add_elements(&mut centroids, &self.index.lower);
        let mut memory = aligned(queries.len());
        let rows = bytes_of(&mut memory, queries.len());
        rows.copy_from_slice(queries);
        let mut packed = Packed::<T>::with_capacity(info.dimensions, count);
        packed.extend(T::rows(rows), &space);
        let (mut found, mut left) = (vec![Vec::new(); count], (0..count as u32).collect::<Vec<_>>());
        let mut nearest = self.probes;
        while !left.is_empty() {
            let mut again = Vec::new();
            for members in left.chunks(BATCH) {
                context.check_cancelled()?;
                self.nearest(&space, &centroids, (&packed, members), nearest, |query, lists| {
                    match self.enough_of(lists, nearest) {
                        Some(lists) => found[query as usize] = lists,
                        None => again.push(query),
                    }
                });
            }
            left = again;
            nearest = nearest.saturating_mul(4).min(info.lists);
        }
        Ok(found)
    }

    /// Passes the `count` nearest lists of each of the queries `members` to `each`. `members` is ascending.
    fn nearest<T: Clustered>(
        &self,
        space: &Space<T>,
        centroids: &[T],
        (packed, members): (&Packed<T>, &[u32]),
        count: u64,
        mut each: impl FnMut(u32, Vec<u32>),
    ) {
        let (first, last) = (members[0], members[members.len() - 1]);
        let tops: Vec<TopK> = (first..=last).map(|_| TopK::new(count as usize, f64::INFINITY)).collect();
        let heaps = Tops { first: first as usize, tops: &tops };
        let queries = Members { packed, members, heaps: &heaps };
        Comparer::new(space.dimensions).compare(space, centroids, |row| row as u64, &queries);
        for (query, top) in (first..).zip(tops) {
            if members.binary_search(&query).is_ok() {
                each(query, top.into_sorted().iter().map(|entry| entry.id as u32).collect());
            }
        }
    }

    /// Truncates the nearest lists of a query to the lists that the query probes. Returns `None` if the query needs
    /// more lists than the `nearest` lists.
    fn enough_of(&self, mut lists: Vec<u32>, nearest: u64) -> Option<Vec<u32>> {
        let (mut vectors, mut taken) = (0u64, 0);
        for &list in &lists {
            if taken as u64 >= self.probes && vectors >= self.needed {
                break;
            }
            vectors = vectors.saturating_add(self.index.counts[list as usize]);
            taken += 1;
        }
        let is_enough = vectors >= self.needed || nearest >= self.index.info.lists;
        lists.truncate(taken);
        is_enough.then_some(lists)
    }
}
