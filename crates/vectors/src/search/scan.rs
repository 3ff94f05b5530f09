//! A pass over the vectors: each block is read once, by one thread, for all queries of the pass.
//!
//! ```text
//!   block ─► subblocks ─► for each panel: limits ─► tiles ─► hits
//!                                           ▲                  │ measured in f64
//!                                           └── k-th best ◄────┘
//! ```

use std::{
    collections::VecDeque,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use inshore_store::{Buffer, CheckedFile, Job};
use zerocopy::IntoBytes;

use crate::{
    Element, Result,
    counts::Count,
    filter::{BlockFacts, Filter},
    heaps::Heaps,
    metric::{AT_ONCE, Metric},
    search::{
        Search,
        plan::{Kernel, Plan},
        queries::{Panel, Queries},
    },
    subblock::{HITS, HITS_MAX, Preparation, Subblock},
    tiles::{Hit, LANES_MAX, RowSum, Tiled, reaches},
    topk::Entry,
};

/// `Pass` is one pass over the vectors, shared by all threads.
pub(crate) struct Pass<'a, T: Tiled> {
    pub job: &'a Job,
    pub file: &'a CheckedFile,
    pub vectors: u64,
    /// The number of elements of a row: for bits, that of bytes.
    pub dimensions: usize,
    /// The elements on flash, and the bytes of a row there.
    pub element: Element,
    pub row_bytes: usize,
    pub plan: &'a Plan,
    pub search: &'a Search,
    pub filter: Filter,
    /// The center for l2, and zeros for the other metrics.
    pub center: &'a [T::Lane],
    pub queries: &'a Queries<T>,
    /// The place where near vectors go.
    pub heaps: &'a (dyn Heaps + Sync),
}

/// What the threads of a pass share and change.
#[derive(Default)]
struct Shared {
    next_block: AtomicU64,
    is_stopped: AtomicBool,
    measured: AtomicU64,
}

/// Scores that are compared with a limit at once.
const SCORES: usize = 32;

/// The memory of a thread.
struct Scratch<L> {
    preparation: Preparation<L>,
    candidates: Candidates,
    /// Rows of 16-bit floating-point numbers as f32.
    decoded: Vec<f32>,
    keys: Vec<f64>,
}

/// The pairs that may be near.
struct Candidates {
    hits: Vec<Hit>,
    /// Pairs that were measured.
    measured: u64,
}

impl<T: Tiled> Pass<'_, T> {
    /// Runs the pass with the buffers of all threads. Returns the buffers, and the number of measured pairs.
    ///
    /// # Errors
    /// I/O and damage; cancellation.
    pub fn run(&self, buffers: Vec<Buffer>) -> Result<(Vec<Buffer>, u64)> {
        let (shared, failure, returned) = (Shared::default(), Mutex::new(None), Mutex::new(Vec::new()));
        let mut buffers = buffers.into_iter();
        std::thread::scope(|scope| {
            for _ in 0..self.plan.threads {
                let spare: Vec<Buffer> = buffers.by_ref().take(super::plan::BUFFERS).collect();
                let (shared, failure, returned) = (&shared, &failure, &returned);
                scope.spawn(move || match self.work(shared, spare) {
                    Ok(spare) => returned.lock().expect("no panic under this lock").extend(spare),
                    Err(error) => {
                        shared.is_stopped.store(true, Ordering::Relaxed);
                        failure.lock().expect("no panic under this lock").get_or_insert(error);
                    }
                });
            }
        });
        if let Some(error) = failure.into_inner().expect("no panic under this lock") {
            return Err(error);
        }
        let mut all = returned.into_inner().expect("no panic under this lock");
        all.extend(buffers);
        Ok((all, shared.measured.into_inner()))
    }

    /// Searches blocks until none is left, and returns the buffers.
    fn work(&self, shared: &Shared, mut spare: Vec<Buffer>) -> Result<Vec<Buffer>> {
        let rows = self.plan.subblock_rows;
        let is_counted = self.plan.kernel == Kernel::Counts;
        let is_widened = T::IS_INTEGER && self.plan.kernel == Kernel::Tiles;
        let mut scratch = Scratch {
            preparation: Preparation::with_capacity(
                if is_counted { 0 } else { rows },
                if is_widened { rows * T::stride(self.dimensions) } else { 0 },
            ),
            // As many bytes as scales and shifts.
            keys: Vec::with_capacity(if is_counted { rows } else { 0 }),
            decoded: Vec::with_capacity(if self.is_decoded() { rows * self.dimensions } else { 0 }),
            candidates: Candidates { hits: Vec::with_capacity(HITS_MAX), measured: 0 },
        };
        let (block_rows, row_bytes) = (self.plan.block_rows as u64, self.row_bytes as u64);
        let blocks = self.vectors.div_ceil(block_rows);
        let mut ahead = VecDeque::new();
        let mut free = Vec::new();
        loop {
            while let Some(buffer) = spare.pop() {
                let block = shared.next_block.fetch_add(1, Ordering::Relaxed);
                if block >= blocks {
                    free.push(buffer);
                    continue;
                }
                let first = block * block_rows;
                let range = first * row_bytes..self.vectors.min(first + block_rows) * row_bytes;
                ahead.push_back((first, self.file.submit_read(self.job, range, buffer)?));
            }
            let Some((first, pending)) = ahead.pop_front() else { break };
            self.job.check_cancelled()?;
            let (buffer, wanted) = pending.wait()?;
            if shared.is_stopped.load(Ordering::Relaxed) {
                break;
            }
            let bytes = &buffer[wanted];
            self.search_block(first, bytes, &mut scratch);
            self.job.progress().add((bytes.len() / self.row_bytes) as u64);
            spare.push(buffer);
        }
        shared.measured.fetch_add(scratch.candidates.measured, Ordering::Relaxed);
        Ok(free)
    }

    fn is_decoded(&self) -> bool {
        matches!(self.element, Element::F16 | Element::Bf16)
    }

    fn search_block(&self, first: u64, bytes: &[u8], scratch: &mut Scratch<T::Lane>) {
        let part_rows = self.plan.subblock_rows;
        for (number, bytes) in bytes.chunks(part_rows * self.row_bytes).enumerate() {
            let first = first + (number * part_rows) as u64;
            if let Some(count) = Count::of(self.search.metric, self.element == Element::Bits) {
                self.search_counts(count, (first, bytes), scratch);
                continue;
            }
            let Scratch { preparation, candidates, decoded, .. } = scratch;
            decoded.clear();
            let bytes = match self.is_decoded() {
                true => {
                    self.element.decode(bytes, decoded);
                    decoded.as_bytes()
                }
                false => bytes,
            };
            let rows = T::rows(bytes);
            match self.plan.kernel {
                Kernel::Rows => self.search_rows((first, rows), preparation, candidates),
                Kernel::Tiles | Kernel::Counts => {
                    let subblock =
                        preparation.prepare(self.plan.instructions, &self.filter, self.center, rows);
                    for panel in &self.queries.panels {
                        self.search_panel(panel, (first, rows), &subblock, candidates);
                    }
                }
            }
        }
    }

    /// Counts the distances of some rows and one query after the other.
    fn search_counts(&self, count: Count, (first, bytes): (u64, &[u8]), scratch: &mut Scratch<T::Lane>) {
        for query in 0..self.queries.count() {
            scratch.keys.clear();
            count.keys(self.plan.instructions, self.queries.bytes(query), bytes, &mut scratch.keys);
            scratch.candidates.measured += scratch.keys.len() as u64;
            for (id, &key) in (first..).zip(&scratch.keys) {
                let is_within = |radius| self.search.metric.is_within(key, radius);
                if key <= self.heaps.bound(query) && self.search.radius.is_none_or(is_within) {
                    self.heaps.push(query, Entry { key, id });
                }
            }
        }
    }

    /// Compares some rows with a panel of queries.
    fn search_panel(
        &self,
        panel: &Panel<T::Lane>,
        rows: (u64, &[T]),
        subblock: &Subblock<'_, T>,
        candidates: &mut Candidates,
    ) {
        let mut limits = [f32::INFINITY; LANES_MAX];
        let lanes = panel.lanes.min(self.queries.count() - panel.first);
        for (lane, limit) in limits[..lanes].iter_mut().enumerate() {
            *limit = self.limit(panel.first + lane, &subblock.facts);
        }
        let mut at = 0;
        while at < subblock.count() {
            at = subblock.hits(at, &panel.elements, &limits[..panel.lanes], &mut candidates.hits);
            if candidates.hits.len() >= HITS || at == subblock.count() {
                self.measure(panel.first, rows, &mut limits[..lanes], &subblock.facts, candidates);
            }
        }
    }

    /// Compares some rows with one query after the other.
    fn search_rows(
        &self,
        (first, rows): (u64, &[T]),
        preparation: &mut Preparation<T::Lane>,
        candidates: &mut Candidates,
    ) {
        let (instructions, metric) = (self.plan.instructions, self.search.metric);
        let (facts, sum) = match metric {
            // The limit of a sum of differences does not depend on the block.
            Metric::L2 => (BlockFacts { norm: 0.0, norm_min: 0.0, shift: 0.0 }, RowSum::Differences),
            _ => {
                let facts = preparation.describe(instructions, &self.filter, self.center, rows);
                (facts, RowSum::Products)
            }
        };
        for panel in &self.queries.panels {
            // No metric needs the shifts here.
            let Preparation { scales, shifts: scores, .. } = preparation;
            scores.clear();
            T::row_sums(instructions, sum, rows, &panel.elements, scores);
            match metric {
                Metric::L2 => scores.iter_mut().for_each(|score| *score = -*score),
                Metric::Ip | Metric::Hamming | Metric::Jaccard => {}
                Metric::Cosine => {
                    scores.iter_mut().zip(scales).for_each(|(score, scale)| *score *= *scale);
                }
            }
            let mut limits = [self.limit(panel.first, &facts)];
            for (part, some) in scores.chunks(SCORES).enumerate() {
                // One test without branches, which is false for nearly all parts.
                if !some.iter().fold(false, |any, &score| any | reaches(score, limits[0])) {
                    continue;
                }
                for (row, &score) in (part * SCORES..).zip(some) {
                    if reaches(score, limits[0]) {
                        candidates.hits.push(Hit { row: row as u32, lane: 0, score });
                    }
                }
                if candidates.hits.len() >= HITS {
                    self.measure(panel.first, (first, rows), &mut limits, &facts, candidates);
                }
            }
            self.measure(panel.first, (first, rows), &mut limits, &facts, candidates);
        }
    }

    fn limit(&self, query: usize, facts: &BlockFacts) -> f32 {
        self.filter.limit(&self.queries.facts[query], facts, self.heaps.bound(query))
    }

    /// Measures all hits exactly, adds them to the best neighbours, and raises the limits.
    fn measure(
        &self,
        first_query: usize,
        (first, rows): (u64, &[T]),
        limits: &mut [f32],
        facts: &BlockFacts,
        candidates: &mut Candidates,
    ) {
        let (queries, metric) = (self.queries, self.search.metric);
        // Limits rose since some hits were found. A lane without a query can be hit by a NaN.
        let may_be_near =
            |hit: &Hit| limits.get(hit.lane as usize).is_some_and(|limit| reaches(hit.score, *limit));
        candidates.hits.retain(may_be_near);
        for hits in candidates.hits.chunks(AT_ONCE) {
            // A group that is not full repeats its last pair.
            let pair = |number: usize| hits[number.min(hits.len() - 1)];
            let query = |number: usize| first_query + pair(number).lane as usize;
            let row = |number: usize| &rows[pair(number).row as usize * self.dimensions..][..self.dimensions];
            let keys = T::keys(
                metric,
                std::array::from_fn(|number| queries.row(query(number))),
                std::array::from_fn(row),
                std::array::from_fn(|number| queries.facts[query(number)].norm),
            );
            for (number, hit) in hits.iter().enumerate() {
                let (key, query) = (keys[number], query(number));
                let is_within = self.search.radius.is_none_or(|radius| metric.is_within(key, radius));
                if key <= self.heaps.bound(query) && is_within {
                    self.heaps.push(query, Entry { key, id: first + u64::from(hit.row) });
                }
            }
        }
        candidates.measured += candidates.hits.len() as u64;
        for hit in &candidates.hits {
            limits[hit.lane as usize] = self.limit(first_query + hit.lane as usize, facts);
        }
        candidates.hits.clear();
    }
}
