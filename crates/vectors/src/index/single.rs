//! The single strategy. Each thread answers one query after the other, with many reads in flight.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use inshore_store::{Buffer, PendingRead};

use super::{
    Clustered,
    centroids::Finder,
    compare::Comparer,
    parts::{Part, Piece},
    plan::{DEPTH, JOINED_BYTES, joined_bytes},
    round::Round,
};
use crate::Result;

impl<T: Clustered> Round<'_, T> {
    /// Answers one query after the other on each thread. Returns the time of each query, in microseconds.
    pub(super) fn single(&self) -> Result<Vec<u64>> {
        let next = AtomicU64::new(0);
        let work = || -> Result<Vec<u64>> {
            let mut finder = self.centroids.finder(self.job)?;
            let mut comparer = Comparer::<T>::new(self.centroids.dimensions);
            let bytes = joined_bytes(self.chunk_bytes_max());
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
        let mut pieces: Vec<(&Part, Piece)> = Vec::new();
        self.lists(query..query + 1, finder, &mut |_, lists, near| {
            self.count_compared(lists, near);
            for (part, lists) in self.lists_of_parts(lists, near) {
                let mut lists = lists.to_vec();
                lists.sort_unstable();
                pieces.extend(part.pieces(&lists, JOINED_BYTES, 0).into_iter().map(|piece| (part, piece)));
            }
        })?;
        let mut pieces = pieces.into_iter();
        let (mut reads, mut places): (Vec<PendingRead>, Vec<(&Part, Piece)>) = Default::default();
        let members = [query];
        loop {
            while !spare.is_empty()
                && let Some((part, piece)) = pieces.next()
            {
                let buffer = spare.pop().expect("not empty");
                reads.push(part.file.submit_read(self.job, part.bytes_of(&piece), buffer)?);
                places.push((part, piece));
            }
            if reads.is_empty() {
                return Ok(());
            }
            let done = PendingRead::wait_any(&reads);
            let (read, (part, piece)) = (reads.swap_remove(done), places.swap_remove(done));
            let (buffer, bytes) = read.wait()?;
            self.compare_piece(part, &piece, &buffer[bytes], comparer, |_| &members)?;
            spare.push(buffer);
        }
    }
}
