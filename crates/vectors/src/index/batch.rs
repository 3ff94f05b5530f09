//! The batch strategy reads each list once, for all queries of a round that probe the list. A round is a group of
//! queries that are answered together.

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

use super::{
    Clustered,
    compare::Comparer,
    plan::{FOUND_AT_ONCE, SPAN_BYTES, span_bytes},
    ranges::Ranges,
    round::Round,
};
use crate::Result;

/// Two probed lists are read together if the gap between them has at most this number of bytes. The lists in the gap
/// are read, too, but not used.
const GAP_BYTES: u64 = 32 << 10;

impl<T: Clustered> Round<'_, T> {
    /// Answers all queries of the round together. Each probed list is read once.
    pub(super) fn batch(&self) -> Result<()> {
        let mut pairs = self.pairs()?;
        pairs.sort_unstable();
        let lists: Vec<u32> = {
            let mut lists: Vec<u32> = Vec::new();
            for &(list, _) in &pairs {
                if lists.last() != Some(&list) {
                    lists.push(list);
                }
            }
            lists
        };
        let queries: Vec<u32> = pairs.iter().map(|pair| pair.1).collect();
        for part in self.parts {
            let pieces = part.pieces(&lists, SPAN_BYTES, GAP_BYTES);
            let ranges = Ranges {
                job: self.job,
                file: &part.file,
                threads: self.plan.threads,
                buffer_bytes: span_bytes(self.chunk_bytes_max()),
                range: |number: u64| pieces.get(number as usize).map(|piece| part.bytes_of(piece)),
            };
            let make = || Comparer::<T>::new(self.centroids.dimensions);
            let comparers = ranges.each(make, |comparer, number, bytes| {
                let piece = &pieces[number as usize];
                self.compare_piece(part, piece, bytes, comparer, |list| {
                    let start = pairs.partition_point(|pair| pair.0 < list);
                    let len = pairs[start..].iter().take_while(|pair| pair.0 == list).count();
                    &queries[start..start + len]
                })
            })?;
            let measured = comparers.iter().map(|comparer| comparer.measured).sum();
            self.measured.fetch_add(measured, Ordering::Relaxed);
        }
        self.job.progress().add(self.packed.len() as u64);
        Ok(())
    }

    /// Returns all pairs of a list and a query that probes the list.
    fn pairs(&self) -> Result<Vec<(u32, u32)>> {
        let count = self.packed.len() as u64;
        let all = Mutex::new(Vec::with_capacity((count * self.probes) as usize));
        let next = AtomicU64::new(0);
        let work = || -> Result<()> {
            let mut finder = self.centroids.finder(self.job)?;
            loop {
                let first = next.fetch_add(FOUND_AT_ONCE, Ordering::Relaxed);
                if first >= count {
                    return Ok(());
                }
                self.job.check_cancelled()?;
                let members = first as u32..count.min(first + FOUND_AT_ONCE) as u32;
                self.lists(members, &mut finder, &mut |query, near| {
                    self.count_compared(near);
                    let mut all = all.lock().expect("no panic under this lock");
                    all.extend(near.lists.iter().map(|&list| (list, query)));
                })?;
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.plan.threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        Ok(all.into_inner().expect("no panic under this lock"))
    }
}
