//! Does step 2 of a build: gathers a second, larger sample of the vectors, sorted by their nearest group.

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

use super::{
    Build,
    plan::{Memory, batch_rows},
    sort::{Sorted, push_row},
};
use crate::{
    Result,
    heaps::Nearest,
    index::{
        Clustered,
        compare::{Comparer, Members, Packed},
        recall::{for_vectors, pass_bytes},
    },
};

impl<T: Clustered> Build<'_, T> {
    /// Does step 2 of a build: sorts the second sample by group. Returns the sorted sample, and how many sampled
    /// vectors each group has.
    pub(super) fn gather(&self, upper: &[T]) -> Result<(Sorted, Vec<u64>)> {
        let (job, info, plan) = (self.job, self.info(), &self.plan);
        let dimensions = info.dimensions;
        let groups = upper.len() / dimensions;
        let mut sorter = self.sorter("sample", None)?;
        let sink = Mutex::new(sorter.sink());
        let counts: Vec<AtomicU64> = (0..groups).map(|_| AtomicU64::new(0)).collect();
        let sample = self.sample_draws(plan.list_sample);
        let batch = batch_rows::<T>(dimensions) as usize;
        let members: Vec<u32> = (0..batch as u32).collect();
        let bytes = Memory::of::<T>(job, info, plan).pass - pass_bytes::<T>(job, dimensions);
        let _memory = job.budget().reserve(bytes, "batches of vectors")?;
        job.start_phase("gathering a sample", "vectors", info.vectors);
        let make = || {
            let packed = Packed::<T>::with_capacity(dimensions, batch);
            (packed, Vec::with_capacity(batch), Comparer::new(dimensions), Nearest::default(), Vec::new())
        };
        for_vectors::<T, _>(
            job,
            &self.vectors.file,
            (info.vectors, dimensions),
            make,
            |state, first, rows| {
                let (packed, draws, comparer, nearest, out) = state;
                let mut flush = |packed: &mut Packed<T>, draws: &mut Vec<u64>| -> Result<()> {
                    nearest.reset(packed.len());
                    let queries = Members { packed, members: &members[..packed.len()], heaps: nearest };
                    comparer.compare(&self.space, upper, |row| row as u64, &queries);
                    out.clear();
                    for (row, draw) in draws.iter().enumerate() {
                        let group = nearest.id(row) as u32;
                        counts[group as usize].fetch_add(1, Ordering::Relaxed);
                        push_row(out, (group, 0), *draw, packed.row(row));
                    }
                    sink.lock().expect("no panic under this lock").write(out)?;
                    packed.clear();
                    draws.clear();
                    Ok(())
                };
                for (id, row) in (first..).zip(rows.chunks_exact(dimensions)) {
                    let draw = self.draw(id);
                    if sample.contain(draw) {
                        packed.extend(row, &self.space);
                        draws.push(draw);
                        if draws.len() == batch {
                            flush(packed, draws)?;
                        }
                    }
                }
                if draws.is_empty() { Ok(()) } else { flush(packed, draws) }
            },
        )?;
        let cut = sink.into_inner().expect("no panic under this lock").finish()?;
        debug_assert!(cut.is_empty());
        Ok((sorter.finish()?, counts.into_iter().map(AtomicU64::into_inner).collect()))
    }
}
