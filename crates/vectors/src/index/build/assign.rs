//! Does step 4 of a build: finds the nearest list of each vector, and sorts the vectors by list.

use std::{
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use super::{
    Build,
    closure::{CANDIDATES, Closure},
    plan::{GROUPS_ASSIGNED, Memory, batch_rows, flash_bytes},
    sample::HeldOut,
    sort::{KEY_BYTES, Sorted, key_of, push_row},
    turns::{Turns, Writer},
};
use crate::{
    Result, RowSet,
    heaps::{Nearest, Tops},
    index::{
        Clustered,
        centroids::{Centroids, Finder, Lower},
        compare::{Comparer, Members, Packed},
        recall::{Blocks, for_rows, pass_bytes},
    },
    topk::{Entry, TopK},
};

/// The memory in which a thread finds the lists of a batch of vectors.
struct Scratch<'a, T: Clustered> {
    packed: Packed<T>,
    finder: Finder<T>,
    /// Compares the vectors with the held-out vectors, on which recall is measured.
    comparer: Comparer<T>,
    /// The nearest list of each vector. It is used if the index has no copies.
    nearest: Nearest,
    /// The nearest lists of each vector. They are used if the index has copies.
    tops: Vec<TopK>,
    entries: Vec<Entry>,
    chosen: Vec<(u32, f64)>,
    /// Rows that are ready for the sort.
    out: Vec<u8>,
    _writer: Option<Writer<'a>>,
}

/// A block of rows. The lists of all rows in a block are found together.
struct Block<'a, T> {
    /// The positions of the rows in the block, counted from 0.
    members: &'a [u32],
    /// The row number, in the dataset, of the first row of the block.
    first: u64,
    rows: &'a [T],
    /// The rows of the dataset that were not removed, or `None` if no row was removed.
    live: Option<&'a RowSet>,
}

impl<'a, T> Block<'a, T> {
    /// Returns the rows of the block that were not removed. An item has the position in the block, the row number in
    /// the dataset, and the elements.
    fn live_rows(&self, dimensions: usize) -> impl Iterator<Item = (usize, u64, &'a [T])> {
        let (first, live) = (self.first, self.live);
        let rows = self.rows.chunks_exact(dimensions).enumerate();
        let numbered = rows.map(move |(row, elements)| (row, first + row as u64, elements));
        numbered.filter(move |(_, id, _)| live.is_none_or(|live| live.contains(*id)))
    }
}

impl<T: Clustered> Build<'_, T> {
    /// Does step 4 of a build. The function assigns the rows `rows` to lists and sorts them by list. If `live` is
    /// given, rows outside `live` are left out. The pass also finds the exact neighbours of the held-out vectors, which
    /// are the vectors on which recall is measured.
    pub(super) fn assign(
        &self,
        centroids: &Centroids<T>,
        held_out: &HeldOut<T>,
        rows: Range<u64>,
        live: Option<&RowSet>,
    ) -> Result<(Sorted, u64)> {
        self.assign_counted(centroids, held_out, rows, live, &[])
    }

    /// Assigns rows as [`Self::assign`] does, and adds the number of vectors of each list to `counts`. If `counts` is
    /// empty, nothing is counted.
    pub(super) fn assign_counted(
        &self,
        centroids: &Centroids<T>,
        held_out: &HeldOut<T>,
        rows: Range<u64>,
        live: Option<&RowSet>,
        counts: &[AtomicU64],
    ) -> Result<(Sorted, u64)> {
        let (job, info, plan) = (self.job, self.info(), &self.plan);
        let dimensions = info.dimensions;
        let mut sorter = self.sorter("lists", self.keep.as_ref())?;
        let kept = sorter.bytes_kept() / (KEY_BYTES + self.row_bytes()) as u64;
        // With copies, the number of lists of a vector is not known before its lists are found. So no vector can be
        // skipped.
        let passed_over = if self.options.copies.is_some() { 0 } else { kept };
        let sink = Mutex::new(sorter.sink());
        let batch = batch_rows::<T>(dimensions) as usize;
        let members: Vec<u32> = (0..batch.max(held_out.ids.len()) as u32).collect();
        let bytes = Memory::of::<T>(job, info, plan).pass
            - pass_bytes::<T>(job, dimensions)
            - plan.threads as u64 * flash_bytes(plan, (dimensions * size_of::<T>()) as u64);
        let _memory = job.budget().reserve(bytes, "batches of vectors")?;
        let finders = (0..plan.threads).map(|_| centroids.finder(job)).collect::<Result<Vec<_>>>()?;
        let finders = Mutex::new(finders);
        let closure = self.closure(centroids);
        job.start_phase("assigning", "vectors", rows.end - rows.start);
        // Finished runs must contain a prefix of the vectors. So the threads pass vectors to the sort in row order.
        let turns = self.keep.is_some().then(|| Turns::new(rows.start));
        let make = || {
            let finder =
                finders.lock().expect("no panic under this lock").pop().expect("one for each thread");
            let heaps = if closure.is_some() { batch } else { 0 };
            Scratch {
                packed: Packed::<T>::with_capacity(dimensions, batch),
                finder,
                comparer: Comparer::<T>::new(dimensions),
                nearest: Nearest::default(),
                tops: (0..heaps).map(|_| TopK::new(CANDIDATES, f64::INFINITY)).collect(),
                entries: Vec::with_capacity(CANDIDATES),
                chosen: Vec::with_capacity(CANDIDATES),
                out: Vec::new(),
                _writer: turns.as_ref().map(Writer),
            }
        };
        let blocks = Blocks { rows, dimensions, rows_max: batch as u64 };
        for_rows::<T, _>(job, &self.vectors.file, blocks, make, |scratch, first, rows| {
            let heaps = Tops { first: 0, tops: &held_out.tops };
            let held = &members[..held_out.ids.len()];
            let queries = Members { packed: &held_out.packed, members: held, heaps: &heaps };
            scratch.comparer.compare(&self.exact, rows, |row| first + row as u64, &queries);
            let end = first + (rows.len() / dimensions) as u64;
            scratch.out.clear();
            if end > passed_over {
                scratch.packed.clear();
                scratch.packed.extend(rows, &self.space);
                let block = Block { members: &members[..scratch.packed.len()], first, rows, live };
                match &closure {
                    None => self.assign_each(centroids, &block, scratch)?,
                    Some(closure) => self.copy_each(centroids, closure, &block, scratch)?,
                }
            }
            if !counts.is_empty() {
                let keys = scratch.out.chunks_exact(KEY_BYTES + self.row_bytes()).map(key_of);
                let own = keys.filter(|(_, order, _)| *order == 0);
                own.for_each(|(list, ..)| _ = counts[list as usize].fetch_add(1, Ordering::Relaxed));
            }
            let write = || {
                let mut sink = sink.lock().expect("no panic under this lock");
                match end > passed_over {
                    true => sink.write(&scratch.out)?,
                    false => sink.pass_over((end - first) * (KEY_BYTES + self.row_bytes()) as u64),
                }
                Ok(())
            };
            match &turns {
                Some(turns) => turns.write(job, first..end, write),
                None => write(),
            }
        })?;
        let cut = sink.into_inner().expect("no panic under this lock").finish()?;
        debug_assert!(cut.is_empty());
        Ok((sorter.finish()?, kept))
    }

    /// Returns the rule that decides which lists hold copies of a vector. Returns `None` if the index has no copies.
    /// For an index with copies, all centroids are in memory.
    fn closure<'a>(&self, centroids: &'a Centroids<T>) -> Option<Closure<'a, T>> {
        match &centroids.lower {
            Lower::Memory(all, _) if self.options.copies.is_some() => {
                let (metric, dimensions) = (self.space.metric, self.space.dimensions);
                Some(Closure { metric, dimensions, centroids: all })
            }
            _ => None,
        }
    }

    /// For each vector of the block, appends one row with the vector's nearest list to the sort.
    fn assign_each(
        &self,
        centroids: &Centroids<T>,
        block: &Block<'_, T>,
        scratch: &mut Scratch<'_, T>,
    ) -> Result<()> {
        let Scratch { packed, finder, nearest, out, .. } = scratch;
        nearest.reset(packed.len());
        let queries = Members { packed, members: block.members, heaps: nearest };
        centroids.find(self.job, &self.space, groups_assigned(centroids), &queries, finder)?;
        for (row, id, elements) in block.live_rows(self.space.dimensions) {
            push_row(out, (nearest.id(row) as u32, 0), id, elements);
        }
        Ok(())
    }

    /// For each vector of the block, appends one row to the sort for each list that holds the vector. A row contains a
    /// number by which the vectors of a list are ordered. This number is 0 in the nearest list, which owns the vector.
    /// In the other lists, the number rises with the distance of the vector from the list's centroid.
    fn copy_each(
        &self,
        centroids: &Centroids<T>,
        closure: &Closure<'_, T>,
        block: &Block<'_, T>,
        scratch: &mut Scratch<'_, T>,
    ) -> Result<()> {
        let Scratch { packed, finder, tops, entries, chosen, out, .. } = scratch;
        tops.iter().for_each(|top| top.reset(f64::INFINITY));
        let queries = Members { packed, members: block.members, heaps: &Tops { first: 0, tops } };
        centroids.find(self.job, &self.space, groups_assigned(centroids), &queries, finder)?;
        for (row, id, elements) in block.live_rows(self.space.dimensions) {
            entries.clear();
            tops[row].each(|entry| entries.push(*entry));
            entries.sort_unstable();
            closure.choose(entries, chosen);
            for (place, &(list, square)) in chosen.iter().enumerate() {
                // The bits of a non-negative float, read as an integer, have the same order as the floats.
                let order = if place == 0 { 0 } else { (square as f32).to_bits().max(1) };
                push_row(out, (list, order), id, elements);
            }
        }
        Ok(())
    }
}

fn groups_assigned<T: Clustered>(centroids: &Centroids<T>) -> u64 {
    GROUPS_ASSIGNED.min(centroids.groups())
}
