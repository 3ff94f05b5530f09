//! Does step 3 of a build: trains the centroids of the lists, group by group.

use inshore_store::{CheckedFile, FileWriter, Reservation};
use zerocopy::IntoBytes;

use super::{
    Build,
    plan::{CHECK_BYTES, ITERATIONS, Memory, SMALL_BUFFER_BYTES, group_lists_max, group_rows_max},
    sort::{Entries, KEY_BYTES, Sorted, add_elements, key_of},
};
use crate::{
    Result,
    index::{
        Clustered,
        centroids::{Centroids, Lower},
        kmeans,
    },
};

impl<T: Clustered> Build<'_, T> {
    /// Does step 3 of a build: trains the centroids of the lists of each group. A group to which no sampled vector
    /// belongs is dropped.
    pub(super) fn train(
        &self,
        upper: Vec<T>,
        mut sorted: Sorted,
        counts: &[u64],
        upper_memory: Reservation,
    ) -> Result<Centroids<T>> {
        let (job, info, plan) = (self.job, self.info(), &self.plan);
        let dimensions = info.dimensions;
        let memory = Memory::of::<T>(job, info, plan).training;
        let _memory = job.budget().reserve(memory - 2 * SMALL_BUFFER_BYTES as u64, "samples of groups")?;
        let mut lower = Growing::new(self)?;
        let sampled: u64 = counts.iter().sum();
        let (mut kept, mut firsts) = (Vec::with_capacity(upper.len()), vec![0u32]);
        let rows_max = group_rows_max::<T>(plan, dimensions) as usize;
        let mut groups = Groups::new(&mut sorted, dimensions, rows_max);
        job.start_phase("training lists", "groups", counts.len() as u64);
        loop {
            let mut some = Vec::with_capacity(plan.threads);
            while some.len() < plan.threads
                && let Some(group) = groups.next()?
            {
                some.push(group);
            }
            if some.is_empty() {
                break;
            }
            let trained: Vec<Vec<T>> = std::thread::scope(|scope| {
                let train = |group: &(u32, Vec<T>)| {
                    let share = counts[group.0 as usize] as f64 / sampled as f64 * plan.lists as f64;
                    let lists = (share.round() as u64).clamp(1, group_lists_max(plan)) as usize;
                    let stop = || job.check_cancelled().is_err();
                    kmeans::train(&self.space, &group.1, lists, ITERATIONS, 1, &stop)
                };
                let threads: Vec<_> = some.iter().map(|group| scope.spawn(move || train(group))).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            job.check_cancelled()?;
            for ((group, _), centroids) in some.iter().zip(&trained) {
                kept.extend_from_slice(&upper[*group as usize * dimensions..][..dimensions]);
                lower.add(centroids)?;
                let lists = (centroids.len() / dimensions) as u32;
                firsts.push(firsts[firsts.len() - 1] + lists);
            }
            job.progress().add(some.len() as u64);
        }
        let lower = lower.finish()?;
        Ok(Centroids { dimensions, upper: kept, firsts, lower, _reservation: upper_memory })
    }
}

/// The lower centroids (those of lists) while they are trained.
enum Growing<T> {
    Memory(Vec<T>, Reservation),
    Flash(Box<FileWriter>),
}

impl<T: Clustered> Growing<T> {
    fn new(build: &Build<'_, T>) -> Result<Growing<T>> {
        let (job, plan) = (build.job, &build.plan);
        if !plan.holds_centroids {
            let name = job.scratch_name("centroids");
            return Ok(Growing::Flash(Box::new(FileWriter::create(
                job,
                &name,
                CHECK_BYTES,
                SMALL_BUFFER_BYTES,
            )?)));
        }
        // The number of lists of a group is rounded and is at least 1, so all groups together may have more lists than
        // planned.
        let most = plan.lists + plan.groups;
        let memory = job.budget().reserve(most * build.row_bytes() as u64, "centroids of lists")?;
        Ok(Growing::Memory(Vec::with_capacity(most as usize * build.info().dimensions), memory))
    }

    fn add(&mut self, rows: &[T]) -> Result<()> {
        match self {
            Growing::Memory(all, _) => all.extend_from_slice(rows),
            Growing::Flash(file) => file.write(rows.as_bytes())?,
        }
        Ok(())
    }

    fn finish(self) -> Result<Lower<T>> {
        Ok(match self {
            Growing::Memory(all, memory) => Lower::Memory(all, memory),
            Growing::Flash(file) => {
                let file: CheckedFile = file.finish()?;
                Lower::Flash(file)
            }
        })
    }
}

/// Reads the sorted sample, one group at a time.
struct Groups<'a, T> {
    entries: Entries<'a>,
    /// The largest number of elements that are read of a group.
    elements_max: usize,
    _elements: std::marker::PhantomData<T>,
}

impl<'a, T: Clustered> Groups<'a, T> {
    fn new(sorted: &'a mut Sorted, dimensions: usize, rows_max: usize) -> Self {
        let entries = Entries::new(sorted, dimensions * size_of::<T>());
        Groups { entries, elements_max: rows_max * dimensions, _elements: std::marker::PhantomData }
    }

    /// Returns the next group, and the elements of at most `rows_max` of its rows. The rows of a group are in random
    /// order.
    fn next(&mut self) -> Result<Option<(u32, Vec<T>)>> {
        let mut found: Option<(u32, Vec<T>)> = None;
        while let Some(entry) = self.entries.peek()? {
            let (group, ..) = key_of(entry);
            if found.as_ref().is_some_and(|(last, _)| *last != group) {
                break;
            }
            let (_, rows) = found.get_or_insert_with(|| (group, Vec::new()));
            if rows.len() < self.elements_max {
                add_elements(rows, &entry[KEY_BYTES..]);
            }
            self.entries.advance();
        }
        Ok(found)
    }
}
