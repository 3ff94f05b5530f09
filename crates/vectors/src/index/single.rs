//! Implements the single strategy. Each thread answers one query after the other, with many reads in flight.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Instant,
};

use inshore_store::{Buffer, PendingRead};

use super::{
    Clustered,
    centroids::Finder,
    codes::{CodeScratch, CodeSearch, Codes, ProbedList},
    compare::Comparer,
    parts::{Part, Piece},
    plan::{DEPTH, JOINED_BYTES, joined_bytes},
    round::Round,
};
use crate::Result;

/// The buffers and scratch memory of a thread that answers one query after the other.
pub(super) struct Worker<T: Clustered> {
    finder: Finder<T>,
    comparer: Comparer<T>,
    spare: Vec<Buffer>,
    /// The memory for searches by codes, if there are any.
    coded: Option<CodeScratch>,
}

impl<T: Clustered> Worker<T> {
    /// Returns the number of bytes that the worker has reserved.
    pub fn bytes(&self) -> u64 {
        let buffers = self.spare.iter().map(|buffer| buffer.len()).sum();
        let coded = self.coded.as_ref().map_or(0, CodeScratch::reserved_bytes);
        inshore_store::taken_bytes(buffers) as u64 + self.finder.bytes() + coded
    }
}

impl<T: Clustered> Round<'_, T> {
    /// Answers all queries of the round, one query after the other on each thread. Returns the time of each query in
    /// microseconds. `workers` contains the workers of earlier rounds, and this function adds missing workers. After an
    /// error, `workers` is empty.
    pub(super) fn single(&self, workers: &mut Vec<Worker<T>>) -> Result<Vec<u64>> {
        if self.codes.is_none() {
            // The plan of a search without codes has no memory for them.
            workers.iter_mut().for_each(|worker| worker.coded = None);
        }
        let threads = self.plan.threads.min(self.packed.len()).max(1);
        while workers.len() < threads {
            workers.push(self.worker()?);
        }
        let next = AtomicU64::new(0);
        let times = match &mut workers[..threads] {
            [worker] => self.work(worker, &next),
            workers => std::thread::scope(|scope| {
                let threads: Vec<_> = workers
                    .iter_mut()
                    .map(|worker| {
                        let next = &next;
                        scope.spawn(move || self.work(worker, next))
                    })
                    .collect();
                let times: Vec<_> =
                    threads.into_iter().map(|thread| thread.join().expect("no panic")).collect();
                times.into_iter().collect::<Result<Vec<_>>>().map(|times| times.concat())
            }),
        };
        if times.is_err() {
            // A worker that failed has lost the buffers of its reads in flight.
            workers.clear();
        }
        times
    }

    fn worker(&self) -> Result<Worker<T>> {
        let bytes = joined_bytes(self.read_bytes_max());
        let buffers = Buffer::zeroed(self.job.budget(), DEPTH * bytes, "lists")?;
        let comparer = Comparer::<T>::new(self.centroids.dimensions);
        let (finder, spare) = (self.centroids.finder(self.job)?, buffers.split(bytes));
        Ok(Worker { finder, comparer, spare, coded: None })
    }

    /// Answers queries until no query is left. `next` is the number of the next query, which all threads share. Returns
    /// the time of each answered query in microseconds.
    fn work(&self, worker: &mut Worker<T>, next: &AtomicU64) -> Result<Vec<u64>> {
        let mut times = Vec::new();
        loop {
            let query = next.fetch_add(1, Ordering::Relaxed);
            if query >= self.packed.len() as u64 {
                self.measured.fetch_add(std::mem::take(&mut worker.comparer.measured), Ordering::Relaxed);
                return Ok(times);
            }
            self.job.check_cancelled()?;
            let started = Instant::now();
            self.answer(query as u32, worker)?;
            times.push(started.elapsed().as_micros() as u64);
            self.job.progress().add(1);
        }
    }

    fn answer(&self, query: u32, worker: &mut Worker<T>) -> Result<()> {
        let Worker { finder, comparer, spare, coded } = worker;
        let mut pieces: Vec<(&Part, Piece)> = Vec::new();
        let mut probed: Vec<ProbedList> = Vec::new();
        self.lists(query..query + 1, finder, &mut |_, near| {
            self.count_compared(near);
            let mut parts = self.lists_of_parts(near);
            if self.codes.is_some()
                && let Some((_, lists)) = parts.next()
            {
                probed.extend(lists.iter().zip(near.keys).map(|(&list, &key)| ProbedList { list, key }));
            }
            for (part, lists) in parts {
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
                break;
            }
            let done = PendingRead::wait_any(&reads);
            let (read, (part, piece)) = (reads.swap_remove(done), places.swap_remove(done));
            let (buffer, bytes) = read.wait()?;
            self.compare_piece(part, &piece, &buffer[bytes], comparer, |_| &members)?;
            spare.push(buffer);
        }
        // The vectors of layers are compared before, so that the candidates among the codes do not depend on the order
        // of reads.
        match self.codes {
            Some(codes) => self.search_codes(codes, (query, &mut probed), comparer, (coded, spare)),
            None => Ok(()),
        }
    }

    /// Searches the lists `probed` of the first part by their codes.
    fn search_codes(
        &self,
        codes: &Codes,
        (query, probed): (u32, &mut [ProbedList]),
        comparer: &mut Comparer<T>,
        (coded, spare): (&mut Option<CodeScratch>, &mut Vec<Buffer>),
    ) -> Result<()> {
        let scratch = match coded {
            Some(scratch) if scratch.is_for(self.needed) => scratch,
            _ => {
                // The memory of an earlier search for fewer neighbours is freed before.
                *coded = None;
                let most = self.index.info().list_vectors_max;
                coded.insert(CodeScratch::new(self.job, &codes.shape, self.needed as u64, most)?)
            }
        };
        let search = CodeSearch {
            job: self.job,
            codes,
            part: &self.parts[0],
            space: self.space,
            packed: self.packed,
            heaps: &self.heaps,
            selected: self.selected.as_ref(),
            ids: self.ids,
            k: self.needed,
        };
        search.answer(query, probed, (scratch, comparer), spare)
    }
}
