//! A pass over the vectors. One thread reads each block once, and compares it with all queries of the pass. A *hit* is
//! a pair whose approximate score reaches the limit of the query. Only hits are measured exactly.
//!
//! ```text
//!   block ─► subblocks ─► for each panel: limits ─► tiles ─► hits
//!                                           ▲                  │ measured in f64
//!                                           └── k-th best ◄────┘
//! ```

use std::{
    collections::VecDeque,
    ops::Range,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use inshore_store::{Buffer, CheckedFile, Job};
use zerocopy::IntoBytes;

use crate::{
    Element, Result, RowSet,
    counts::Count,
    filter::{BlockFacts, Filter},
    heaps::SharedHeaps,
    ids::Ids,
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

/// One pass over the vectors. All threads share it.
pub(crate) struct Pass<'a, T: Tiled> {
    pub job: &'a Job,
    pub file: &'a CheckedFile,
    pub vectors: u64,
    /// The number of elements of a row. A row of bits has one element for each byte.
    pub dimensions: usize,
    /// The element type on flash. The next field is the number of bytes of a row on flash.
    pub element: Element,
    pub row_bytes: usize,
    pub plan: &'a Plan,
    pub search: &'a Search,
    /// The row numbers of the vectors that may be answers. The value is `None` if all vectors may.
    pub selection: Option<&'a RowSet>,
    pub ids: &'a Ids,
    pub filter: Filter,
    /// The center for L2, and zeros for the other metrics.
    pub center: &'a [T::Lane],
    pub queries: &'a Queries<T>,
    /// The receiver of near vectors.
    pub heaps: SharedHeaps<'a>,
    /// The number of the first query of the pass, if the queries are the live vectors of the dataset, in the order of
    /// their rows. The pass then finds only pairs of a query and a row after the query's own row. If the queries are
    /// other vectors, the value is `None`. Since rows of removed vectors are skipped, the row number of a query is at
    /// least the number of the query.
    pub only_later: Option<u64>,
}

/// The state that the threads of a pass share.
#[derive(Default)]
struct Shared {
    next_block: AtomicU64,
    is_stopped: AtomicBool,
    measured: AtomicU64,
}

/// This number of scores is compared with a limit in one step.
const SCORES: usize = 32;
/// The number of queries that are compared by counts with a subblock between two checks for cancellation.
const COUNTS_BETWEEN_CHECKS: usize = 16;

/// The scratch memory of a thread.
struct Scratch<L> {
    preparation: Preparation<L>,
    candidates: Candidates,
    /// The rows of a subblock as f32, if the elements on flash are f16 or bf16.
    decoded: Vec<f32>,
    keys: Vec<f64>,
    /// For each row of a subblock, the difference between its row number and that of the first row of the block. The
    /// list is used only if some vectors are not selected.
    offsets: Vec<u32>,
}

/// The row numbers of the vectors in a subblock.
#[derive(Clone, Copy)]
struct Numbers<'a> {
    first: u64,
    /// For each row, the difference between its row number and `first`. The value is `None` if the rows are adjacent.
    offsets: Option<&'a [u32]>,
}

impl Numbers<'_> {
    fn of(&self, row: usize) -> u64 {
        self.first + self.offsets.map_or(row as u64, |offsets| offsets[row].into())
    }
}

/// The hits of a thread, and the number of pairs that it has measured.
struct Candidates {
    hits: Vec<Hit>,
    /// The number of pairs that were measured exactly.
    measured: u64,
}

/// Returns the number of the first row in the block that contains the row `first`. A pass over the rows from `first` on
/// starts with this row.
pub(crate) fn first_row(plan: &Plan, first: u64) -> u64 {
    first / plan.block_rows as u64 * plan.block_rows as u64
}

impl<T: Tiled> Pass<'_, T> {
    /// Runs the pass with the buffers of all threads. Returns the buffers, and the number of pairs that were measured
    /// exactly.
    ///
    /// # Errors
    /// Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, or the job was cancelled.
    pub fn run(&self, buffers: Vec<Buffer>) -> Result<(Vec<Buffer>, u64)> {
        let first_row = self.only_later.map_or(0, |first| first_row(self.plan, first));
        let first_block = first_row / self.plan.block_rows as u64;
        let shared = Shared { next_block: AtomicU64::new(first_block), ..Shared::default() };
        let (failure, returned) = (Mutex::new(None), Mutex::new(Vec::new()));
        let mut buffers = buffers.into_iter();
        let search = |spare: Vec<Buffer>| match self.work(&shared, spare) {
            Ok(spare) => returned.lock().expect("no panic under this lock").extend(spare),
            Err(error) => {
                shared.is_stopped.store(true, Ordering::Relaxed);
                failure.lock().expect("no panic under this lock").get_or_insert(error);
            }
        };
        let mut spare = || buffers.by_ref().take(self.plan.buffers).collect();
        match self.plan.threads {
            1 => search(spare()),
            threads => std::thread::scope(|scope| {
                for _ in 0..threads {
                    let (search, spare) = (&search, spare());
                    scope.spawn(move || search(spare));
                }
            }),
        }
        if let Some(error) = failure.into_inner().expect("no panic under this lock") {
            return Err(error);
        }
        let mut all = returned.into_inner().expect("no panic under this lock");
        all.extend(buffers);
        Ok((all, shared.measured.into_inner()))
    }

    /// Searches blocks until no block is left. Returns the buffers of the thread.
    fn work(&self, shared: &Shared, mut spare: Vec<Buffer>) -> Result<Vec<Buffer>> {
        let rows = self.plan.subblock_rows;
        let is_counted = self.plan.kernel == Kernel::Counts;
        let is_widened = T::IS_INTEGER && self.plan.kernel == Kernel::Tiles;
        let mut scratch = Scratch {
            preparation: Preparation::with_capacity(
                if is_counted { 0 } else { rows },
                if is_widened { rows * T::stride(self.dimensions) } else { 0 },
            ),
            // The keys take as many bytes as the scales and the shifts. Counts need no scales and no shifts.
            keys: Vec::with_capacity(if is_counted { rows } else { 0 }),
            offsets: Vec::with_capacity(if self.selection.is_some() { rows } else { 0 }),
            decoded: Vec::with_capacity(if self.is_decoded() { rows * self.dimensions } else { 0 }),
            candidates: Candidates { hits: Vec::with_capacity(HITS_MAX), measured: 0 },
        };
        let row_bytes = self.row_bytes as u64;
        let mut ahead = VecDeque::new();
        let mut free = Vec::new();
        loop {
            while let Some(buffer) = spare.pop() {
                let Some(rows) = self.next_rows(shared)? else {
                    free.push(buffer);
                    continue;
                };
                let range = rows.start * row_bytes..rows.end * row_bytes;
                ahead.push_back((rows, self.file.submit_read(self.job, range, buffer)?));
            }
            let Some((rows, pending)) = ahead.pop_front() else { break };
            self.job.check_cancelled()?;
            let (mut buffer, wanted) = pending.wait()?;
            if shared.is_stopped.load(Ordering::Relaxed) {
                break;
            }
            let found = (rows.end - rows.start) as usize;
            self.search_block(rows, &mut buffer[wanted], &mut scratch)?;
            self.heaps.check()?;
            self.job.progress().add(found as u64);
            spare.push(buffer);
        }
        shared.measured.fetch_add(scratch.candidates.measured, Ordering::Relaxed);
        Ok(free)
    }

    /// Returns the rows of the next block, from its first to its last selected row. Blocks without selected rows are
    /// skipped. Returns `None` after the last block.
    fn next_rows(&self, shared: &Shared) -> Result<Option<Range<u64>>> {
        let block_rows = self.plan.block_rows as u64;
        loop {
            let first = shared.next_block.fetch_add(1, Ordering::Relaxed) * block_rows;
            if first >= self.vectors {
                return Ok(None);
            }
            let rows = first..self.vectors.min(first + block_rows);
            let Some(selection) = self.selection else { return Ok(Some(rows)) };
            self.job.check_cancelled()?;
            let bounds = selection.bounds_in(rows.clone());
            let read = bounds.as_ref().map_or(0, |bounds| bounds.end - bounds.start);
            self.job.progress().add(rows.end - rows.start - read);
            if bounds.is_some() {
                return Ok(bounds);
            }
            self.pass_over(shared, selection, rows.end);
        }
    }

    /// Skips the blocks without selected rows that follow row `row`.
    fn pass_over(&self, shared: &Shared, selection: &RowSet, row: u64) {
        let block_rows = self.plan.block_rows as u64;
        let end = self.vectors.div_ceil(block_rows);
        let next = selection.first_from(row).map_or(end, |row| row / block_rows);
        let before = shared.next_block.fetch_max(next, Ordering::Relaxed);
        let row_of = |block: u64| self.vectors.min(block * block_rows);
        self.job.progress().add(row_of(next).saturating_sub(row_of(before)));
    }

    /// Returns the number of queries with which `rows` rows are compared.
    fn compared(&self, numbers: Numbers<'_>, rows: usize) -> usize {
        let all = self.queries.count();
        match self.only_later {
            // The row number of query `i` is at least `first + i`. If `first + i` is at least the number of the last
            // row, no row can be later than the query.
            Some(first) => all.min(numbers.of(rows - 1).saturating_sub(first) as usize),
            None => all,
        }
    }

    fn is_decoded(&self) -> bool {
        matches!(self.element, Element::F16 | Element::Bf16)
    }

    /// Searches the rows `rows`, whose bytes are `bytes`. If a selection exists, the selected rows are first moved to
    /// the front of `bytes`.
    ///
    /// The search checks for cancellation within a block, since a block takes seconds if the pass has many queries.
    fn search_block(&self, rows: Range<u64>, bytes: &mut [u8], scratch: &mut Scratch<T::Lane>) -> Result<()> {
        let Range { start: first, .. } = rows;
        let part_rows = self.plan.subblock_rows;
        let Some(selection) = self.selection else {
            for (number, bytes) in bytes.chunks(part_rows * self.row_bytes).enumerate() {
                let numbers = Numbers { first: first + (number * part_rows) as u64, offsets: None };
                self.search_subblock(numbers, bytes, scratch)?;
            }
            return Ok(());
        };
        let count =
            move_together(bytes, self.row_bytes, selection.rows_in(rows.clone()).map(|row| row - first));
        let mut offsets = std::mem::take(&mut scratch.offsets);
        let mut selected = selection.rows_in(rows).map(|row| (row - first) as u32);
        for bytes in bytes[..count * self.row_bytes].chunks(part_rows * self.row_bytes) {
            offsets.clear();
            offsets.extend(selected.by_ref().take(bytes.len() / self.row_bytes));
            self.search_subblock(Numbers { first, offsets: Some(&offsets) }, bytes, scratch)?;
        }
        scratch.offsets = offsets;
        Ok(())
    }

    /// Compares the rows of a subblock with all queries of the pass.
    fn search_subblock(
        &self,
        numbers: Numbers<'_>,
        bytes: &[u8],
        scratch: &mut Scratch<T::Lane>,
    ) -> Result<()> {
        if let Some(count) = Count::of(self.search.metric, self.element == Element::Bits) {
            return self.search_counts(count, (numbers, bytes), scratch);
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
            Kernel::Rows => self.search_rows((numbers, rows), preparation, candidates),
            Kernel::Tiles | Kernel::Counts => {
                let subblock = preparation.prepare(self.plan.instructions, &self.filter, self.center, rows);
                let compared = self.compared(numbers, subblock.count());
                for panel in self.queries.panels.iter().take_while(|panel| panel.first < compared) {
                    self.job.check_cancelled()?;
                    self.search_panel(panel, (numbers, rows), &subblock, candidates);
                }
            }
        }
        Ok(())
    }

    /// Compares rows with one query after the other, by counts.
    fn search_counts(
        &self,
        count: Count,
        (numbers, bytes): (Numbers<'_>, &[u8]),
        scratch: &mut Scratch<T::Lane>,
    ) -> Result<()> {
        for query in 0..self.compared(numbers, bytes.len() / self.row_bytes) {
            if query % COUNTS_BETWEEN_CHECKS == 0 {
                self.job.check_cancelled()?;
            }
            scratch.keys.clear();
            count.keys(self.plan.instructions, self.queries.bytes(query), bytes, &mut scratch.keys);
            scratch.candidates.measured += scratch.keys.len() as u64;
            for (row, &key) in scratch.keys.iter().enumerate() {
                let is_within = |radius| self.search.metric.is_within(key, radius);
                if key <= self.heaps.bound(query) && self.search.radius.is_none_or(is_within) {
                    self.heaps.push(query, Entry { key, id: self.ids.id(numbers.of(row)) });
                }
            }
        }
        Ok(())
    }

    /// Compares the rows of a subblock with a panel of queries.
    fn search_panel(
        &self,
        panel: &Panel<T::Lane>,
        rows: (Numbers<'_>, &[T]),
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

    /// Compares rows with one query after the other, by sums over the dimensions.
    fn search_rows(
        &self,
        (numbers, rows): (Numbers<'_>, &[T]),
        preparation: &mut Preparation<T::Lane>,
        candidates: &mut Candidates,
    ) {
        let (instructions, metric) = (self.plan.instructions, self.search.metric);
        let (facts, sum) = match metric {
            // The limit for a sum of squared differences does not depend on the block, so these facts are zeros.
            Metric::L2 => (BlockFacts { norm: 0.0, norm_min: 0.0, shift: 0.0 }, RowSum::Differences),
            _ => {
                let facts = preparation.describe(instructions, &self.filter, self.center, rows);
                (facts, RowSum::Products)
            }
        };
        for panel in &self.queries.panels {
            // No metric needs the shifts in this function, so the scores take their memory.
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
                // This test has no branches, and is false for nearly all parts.
                if !some.iter().fold(false, |any, &score| any | reaches(score, limits[0])) {
                    continue;
                }
                for (row, &score) in (part * SCORES..).zip(some) {
                    if reaches(score, limits[0]) {
                        candidates.hits.push(Hit { row: row as u32, lane: 0, score });
                    }
                }
                if candidates.hits.len() >= HITS {
                    self.measure(panel.first, (numbers, rows), &mut limits, &facts, candidates);
                }
            }
            self.measure(panel.first, (numbers, rows), &mut limits, &facts, candidates);
        }
    }

    fn limit(&self, query: usize, facts: &BlockFacts) -> f32 {
        self.filter.limit(&self.queries.facts[query], facts, self.heaps.bound(query))
    }

    /// Measures all hits exactly, passes near vectors to the heaps, raises the limits, and clears the hits.
    fn measure(
        &self,
        first_query: usize,
        (numbers, rows): (Numbers<'_>, &[T]),
        limits: &mut [f32],
        facts: &BlockFacts,
        candidates: &mut Candidates,
    ) {
        let (queries, metric) = (self.queries, self.search.metric);
        // The limits may have risen after some hits were found. A NaN can be a hit in a lane without a query.
        let may_be_near =
            |hit: &Hit| limits.get(hit.lane as usize).is_some_and(|limit| reaches(hit.score, *limit));
        candidates.hits.retain(may_be_near);
        for hits in candidates.hits.chunks(AT_ONCE) {
            // If fewer hits than `AT_ONCE` are left, the last hit fills the rest of the group.
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
                    self.heaps.push(query, Entry { key, id: self.ids.id(numbers.of(hit.row as usize)) });
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

/// Moves the selected rows to the front of `bytes`. The numbers of the rows must ascend. Returns the number of selected
/// rows.
fn move_together(bytes: &mut [u8], row_bytes: usize, selected: impl Iterator<Item = u64>) -> usize {
    let mut count = 0;
    for row in selected {
        let row = row as usize;
        if row != count {
            bytes.copy_within(row * row_bytes..(row + 1) * row_bytes, count * row_bytes);
        }
        count += 1;
    }
    count
}
