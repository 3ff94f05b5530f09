//! The single strategy: each thread answers one query after the other, with many reads in flight.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use inshore_store::{Buffer, PendingRead};

use super::{
    Clustered,
    centroids::Finder,
    compare::Comparer,
    plan::DEPTH,
    query::{Round, spans_of},
};
use crate::Result;

/// The reads of a query that follow each other are one read of at most so many bytes.
const JOINED_BYTES: u64 = 128 << 10;

/// Returns the bytes of a buffer for lists of one query that follow each other.
pub(super) fn joined_bytes(list_bytes_max: u64) -> usize {
    (list_bytes_max.max(JOINED_BYTES) as usize + (8 << 10)).next_multiple_of(4 << 10)
}

impl<T: Clustered> Round<'_, T> {
    /// Answers one query after the other on each thread. Returns the microseconds that each took.
    pub(super) fn single(&self) -> Result<Vec<u64>> {
        let next = AtomicU64::new(0);
        let work = || -> Result<Vec<u64>> {
            let mut finder = self.centroids.finder(self.job)?;
            let mut comparer = Comparer::<T>::new(self.centroids.dimensions);
            let bytes = joined_bytes(self.read.directory.list_bytes_max());
            let buffers = Buffer::zeroed(self.job.budget(), DEPTH * bytes, "lists")?;
            let mut spare = buffers.split(bytes);
            let mut times = Vec::new();
            loop {
                let query = next.fetch_add(1, Ordering::Relaxed);
                if query >= self.packed.len() as u64 {
                    self.measured.fetch_add(comparer.measured, Ordering::Relaxed);
                    return Ok(times);
                }
                self.job.check_cancelled()?;
                let started = Instant::now();
                self.answer(query as u32, &mut finder, &mut comparer, &mut spare)?;
                times.push(started.elapsed().as_micros() as u64);
                self.job.progress().add(1);
            }
        };
        let times = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..self.plan.threads).map(|_| scope.spawn(work)).collect();
            threads.into_iter().map(|thread| thread.join().expect("no panic")).collect::<Result<Vec<_>>>()
        })?;
        Ok(times.into_iter().flatten().collect())
    }

    fn answer(
        &self,
        query: u32,
        finder: &mut Finder<T>,
        comparer: &mut Comparer<T>,
        spare: &mut Vec<Buffer>,
    ) -> Result<()> {
        let mut lists = Vec::new();
        self.lists(query..query + 1, finder, &mut |_, found| lists.extend_from_slice(found))?;
        lists.sort_unstable();
        let mut spans = spans_of(self.read.directory, &lists, JOINED_BYTES, 0).into_iter();
        let (mut reads, mut places): (Vec<PendingRead>, Vec<Range<u32>>) = Default::default();
        let members = [query];
        loop {
            while !spare.is_empty()
                && let Some(span) = spans.next()
            {
                let buffer = spare.pop().expect("not empty");
                let bytes = self.read.directory.bytes_of(span.clone());
                reads.push(self.read.file.submit_read(self.job, bytes, buffer)?);
                places.push(span);
            }
            if reads.is_empty() {
                return Ok(());
            }
            let done = PendingRead::wait_any(&reads);
            let (read, span) = (reads.swap_remove(done), places.swap_remove(done));
            let (buffer, bytes) = read.wait()?;
            self.compare_lists(span, &buffer[bytes], comparer, |_| &members)?;
            spare.push(buffer);
        }
    }
}
