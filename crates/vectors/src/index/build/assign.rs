//! Step 4: all vectors, sorted by their nearest list.

use std::{ops::Range, sync::Mutex};

use super::{
    Build,
    plan::{GROUPS_ASSIGNED, Memory, batch_rows, flash_bytes},
    sample::HeldOut,
    sort::{Sorted, push_row},
};
use crate::{
    Result, RowSet,
    heaps::{Nearest, Tops},
    index::{
        Clustered,
        centroids::Centroids,
        compare::{Comparer, Members, Packed},
        recall::{for_rows, pass_bytes},
    },
};

impl<T: Clustered> Build<'_, T> {
    /// Step 4: sorts the vectors of the rows `rows` by their lists, those of `live` only, and finds the neighbours of the
    /// held-out vectors meanwhile.
    pub(super) fn assign(
        &self,
        centroids: &Centroids<T>,
        held_out: &HeldOut<T>,
        rows: Range<u64>,
        live: Option<&RowSet>,
    ) -> Result<Sorted> {
        let (job, info, plan) = (self.job, self.info(), &self.plan);
        let dimensions = info.dimensions;
        let mut sorter = self.sorter("lists")?;
        let sink = Mutex::new(sorter.sink());
        let batch = batch_rows::<T>(dimensions) as usize;
        let members: Vec<u32> = (0..batch.max(held_out.ids.len()) as u32).collect();
        let bytes = Memory::of::<T>(job, info, plan).pass
            - pass_bytes::<T>(job, dimensions)
            - plan.threads as u64 * flash_bytes(plan, (dimensions * size_of::<T>()) as u64);
        let _memory = job.budget().reserve(bytes, "batches of vectors")?;
        let finders = (0..plan.threads).map(|_| centroids.finder(job)).collect::<Result<Vec<_>>>()?;
        let finders = Mutex::new(finders);
        job.start_phase("assigning", "vectors", rows.end - rows.start);
        let make = || {
            let finder =
                finders.lock().expect("no panic under this lock").pop().expect("one for each thread");
            let packed = Packed::<T>::with_capacity(dimensions, batch);
            (packed, finder, Comparer::<T>::new(dimensions), Nearest::default(), Vec::new())
        };
        for_rows::<T, _>(job, &self.vectors.file, (rows, dimensions), make, |state, first, rows| {
            let (packed, finder, comparer, nearest, out) = state;
            let heaps = Tops { first: 0, tops: &held_out.tops };
            let held = &members[..held_out.ids.len()];
            let queries = Members { packed: &held_out.packed, members: held, heaps: &heaps };
            comparer.compare(&self.exact, rows, |row| first + row as u64, &queries);
            for (number, rows) in rows.chunks(batch * dimensions).enumerate() {
                packed.clear();
                packed.extend(rows, &self.space);
                nearest.reset(packed.len());
                let queries = Members { packed, members: &members[..packed.len()], heaps: nearest };
                centroids.find(
                    job,
                    &self.space,
                    GROUPS_ASSIGNED.min(centroids.groups()),
                    &queries,
                    finder,
                )?;
                out.clear();
                for (row, elements) in rows.chunks_exact(dimensions).enumerate() {
                    let id = first + (number * batch + row) as u64;
                    if live.is_none_or(|live| live.contains(id)) {
                        push_row(out, nearest.id(row) as u32, id, elements);
                    }
                }
                sink.lock().expect("no panic under this lock").write(out)?;
            }
            Ok(())
        })?;
        let cut = sink.into_inner().expect("no panic under this lock").finish()?;
        debug_assert!(cut.is_empty());
        Ok(sorter.finish()?)
    }
}
