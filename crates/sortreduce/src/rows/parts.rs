//! Splits a merge into parts, which several threads merge at the same time.
//!
//! ```text
//!   runs   [ ..a | a..m | m.. ]  [ .a | a....m | m... ]  [ ...a | a.m | m. ]     a, m: split keys
//!   parts    1: keys below a        2: a to below m         3: m and above       each part is a separate merge
//! ```
//!
//! A part consists of the rows between two split keys, from every run. Rows with equal keys are in the same part, in
//! their order. No row is added or lost. The start of a part in the result is therefore the sum of the bytes before
//! the split key in all runs. The split keys are the keys of a few sampled rows of each run. A bisection over the
//! blocks of each run finds the offset of each split key. No index is needed, so runs of an interrupted sort can be
//! split in the same way.
//!
//! The alternative is to divide the result into many blocks, and to let threads merge one block after the other. Each
//! block would then need a read from every run. With little memory, these reads would be smaller than a drive reads
//! efficiently.
//!
//! The search for a split key in a run takes about `2 * log2(blocks)` block reads. For 90 runs of 56 MiB, the split
//! takes 0.1 to 0.2 s.

use std::{cmp::Ordering, ops::Range, sync::Arc};

use inshore_store::{Buffer, Job};

use super::{
    arena::{Arena, ArenaPart},
    cursor::{RowRun, RowRunCursor},
    shape::RowShape,
};
use crate::Result;

/// The number of rows that are sampled from a run or an arena as candidates for split keys.
const SAMPLES: u64 = 7;

/// The sort order of keys.
#[derive(Clone)]
pub(super) struct KeyOrder<S> {
    pub shape: S,
    pub descending: bool,
}

impl<S: RowShape> KeyOrder<S> {
    fn compare(&self, a: &[u8], b: &[u8]) -> Ordering {
        if self.descending { b.cmp(a) } else { a.cmp(b) }
    }

    fn is_before(&self, row: &[u8], key: &[u8]) -> bool {
        self.compare(self.shape.key(row), key).is_lt()
    }

    /// Returns the keys that split the samples into `parts` parts of about equal bytes. Each sample consists of a key
    /// and the number of bytes that the sample represents.
    fn cuts(&self, mut sampled: Vec<(Vec<u8>, u64)>, parts: usize) -> Vec<Vec<u8>> {
        sampled.sort_by(|(a, _), (b, _)| self.compare(a, b));
        let all: u64 = sampled.iter().map(|(_, bytes)| bytes).sum();
        let (mut before, mut cuts) = (0, Vec::new());
        for (key, bytes) in sampled {
            if before * parts as u64 >= all * (cuts.len() as u64 + 1) && cuts.len() + 1 < parts {
                cuts.push(key);
            }
            before += bytes;
        }
        cuts
    }
}

/// Returns the ranges between consecutive cuts, from `start` to `end`.
fn ranges<T: Copy>(start: T, cuts: Vec<T>, end: T) -> Vec<Range<T>> {
    let starts = std::iter::once(start).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([end]);
    starts.zip(ends).map(|(start, end)| start..end).collect()
}

/// Splits runs into at most `parts` parts. Returns, for each run, the byte range of each part. There is only one part
/// if the start of a row cannot be found in the middle of a run.
pub(super) fn cut_runs<S: RowShape>(
    job: &Job,
    runs: &[RowRun],
    order: &KeyOrder<S>,
    parts: usize,
) -> Result<Vec<Vec<Range<u64>>>> {
    let mut probes = Vec::new();
    let mut sampled = Vec::new();
    for run in runs {
        let mut probe = Probe::new(job, run, order)?;
        let blocks = probe.run.blocks();
        for sample in 1..=SAMPLES {
            // The first block is never sampled. Its start is always the start of a row, so a shape that cannot find
            // rows elsewhere would return a sample. If there are no samples, runs are not split.
            let block = (blocks * sample / (SAMPLES + 1)).max(1);
            if let Some((_, key)) = probe.first_row_from(block)? {
                sampled.push((key, run.file.len() / SAMPLES));
            }
        }
        probes.push(probe);
    }
    let cuts = order.cuts(sampled, parts);
    let cut = |mut probe: Probe<'_, S>| -> Result<_> {
        let places = cuts.iter().map(|key| probe.first_not_before(key)).collect::<Result<_>>()?;
        Ok(ranges(0, places, probe.run.file.len()))
    };
    probes.into_iter().map(cut).collect()
}

/// Splits sorted arenas into at most `parts` parts. Returns, for each arena, the index range of each part in the
/// arena's sorted order, and the bytes of the part's rows.
pub(super) fn cut_arenas<S: RowShape>(
    arenas: &[(Arc<Arena>, ArenaPart)],
    order: &KeyOrder<S>,
    parts: usize,
) -> Vec<Vec<(Range<usize>, u64)>> {
    let mut sampled = Vec::new();
    for (arena, part) in arenas {
        for sample in 1..=SAMPLES {
            let row = arena.row((part.rows as u64 * sample / (SAMPLES + 1)) as usize);
            sampled.push((order.shape.key(row).to_vec(), arena.filled as u64 / SAMPLES));
        }
    }
    let cuts = order.cuts(sampled, parts);
    let cut = |(arena, part): &(Arc<Arena>, ArenaPart)| {
        let places = cuts.iter().map(|key| first_not_before(arena, part.rows, order, key)).collect();
        let with_bytes = |places: Range<usize>| {
            let bytes = places.clone().map(|place| arena.row(place).len() as u64).sum();
            (places, bytes)
        };
        ranges(0, places, part.rows).into_iter().map(with_bytes).collect()
    };
    arenas.iter().map(cut).collect()
}

/// Returns the index of the first row in an arena's sorted order that is not before `key`.
fn first_not_before<S: RowShape>(arena: &Arena, rows: usize, order: &KeyOrder<S>, key: &[u8]) -> usize {
    let (mut low, mut high) = (0, rows);
    while low < high {
        let middle = low.midpoint(high);
        if order.is_before(arena.row(middle), key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low
}

/// Reads single rows in the middle of a run.
struct Probe<'a, S> {
    job: &'a Job,
    run: &'a RowRun,
    order: &'a KeyOrder<S>,
    /// The buffer for a block. `None` during a read.
    block: Option<Buffer>,
}

impl<'a, S: RowShape> Probe<'a, S> {
    fn new(job: &'a Job, run: &'a RowRun, order: &'a KeyOrder<S>) -> Result<Probe<'a, S>> {
        let block = Buffer::zeroed(job.budget(), run.file.block_bytes(), "a block to cut a run at")?;
        Ok(Probe { job, run, order, block: Some(block) })
    }

    /// Returns the offset and the key of the first row that begins in block `number` or later.
    fn first_row_from(&mut self, number: u64) -> Result<Option<(u64, Vec<u8>)>> {
        let Some(start) = self.start_from(number)? else { return Ok(None) };
        let row = self.cursor(start)?;
        Ok(Some((start, self.order.shape.key(row.row()).to_vec())))
    }

    fn start_from(&mut self, number: u64) -> Result<Option<u64>> {
        if number == 0 {
            return Ok(Some(0));
        }
        let (len, block_bytes) = (self.run.file.len(), self.run.file.block_bytes() as u64);
        for start in (number * block_bytes..len).step_by(block_bytes as usize) {
            let buffer = self.block.take().expect("given back below");
            let range = start..(start + block_bytes).min(len);
            let (block, wanted) = self.run.file.submit_read(self.job, range, buffer)?.wait()?;
            let found = self.order.shape.row_start(start, &block[wanted]);
            self.block = Some(block);
            if let Some(place) = found {
                return Ok(Some(start + place as u64));
            }
        }
        Ok(None)
    }

    fn cursor(&self, start: u64) -> Result<RowRunCursor<S>> {
        let file = &self.run.file;
        RowRunCursor::new(
            self.job,
            self.run,
            start..file.len(),
            self.order.shape.clone(),
            (file.block_bytes(), 2),
        )
    }

    /// Returns the offset of the first row that is not before `key`, or the run's end if there is no such row.
    fn first_not_before(&mut self, key: &[u8]) -> Result<u64> {
        // The bisection finds the last block whose first row is before the key.
        let (mut low, mut high) = (0, self.run.blocks());
        let mut start = 0;
        while low < high {
            let middle = low.midpoint(high);
            match self.first_row_from(middle)? {
                Some((place, found)) if self.order.compare(&found, key).is_lt() => {
                    (low, start) = (middle + 1, place);
                }
                _ => high = middle,
            }
        }
        let mut cursor = self.cursor(start)?;
        while self.order.is_before(cursor.row(), key) {
            start += cursor.row().len() as u64;
            if !cursor.advance()? {
                break;
            }
        }
        Ok(start)
    }
}
