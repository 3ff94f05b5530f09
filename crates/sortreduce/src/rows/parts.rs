//! Splits a merge into parts that several threads merge at the same time.
//!
//! ```text
//!   runs   [ ..a | a..m | m.. ]  [ .a | a....m | m... ]  [ ...a | a.m | m. ]
//!   parts        all up to a          all up to m            the rest            each a merge of its own
//! ```
//!
//! A part has the rows between two keys, of every run. Rows with equal keys stay together and in order. No row is added
//! or lost, so the start of a part in the result is the sum of the bytes before it in all runs. The split keys are
//! taken from a few sampled rows of each run. A bisection over the blocks of each run finds the offset of each split
//! key. No index is stored, so runs of an interrupted sort are split like others.
//!
//! The obvious alternative, blocks of a result that any thread merges in turn, reads a piece of every run for each
//! block. With little memory the pieces of runs would be smaller than a drive reads efficiently.
//!
//! Finding a split key in a run costs about `log2(blocks)` times two reads of a block; for 90 runs of 56 MiB, splitting
//! takes 0.1 to 0.2 s.

use std::{cmp::Ordering, ops::Range, sync::Arc};

use inshore_store::{Buffer, Job};

use super::{
    arena::{Arena, ArenaPart},
    cursor::{RowRun, RowRunCursor},
    shape::RowShape,
};
use crate::Result;

/// The number of rows sampled from a run or an arena as candidates for split keys.
const SAMPLES: u64 = 7;

/// Compares keys in the order of the sort.
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

    /// Returns the keys that split the samples into `parts` about equal parts. Each sample has a key and the number of
    /// bytes that the sample represents.
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

/// Returns the ranges between consecutive cuts.
fn ranges<T: Copy>(start: T, cuts: Vec<T>, end: T) -> Vec<Range<T>> {
    let starts = std::iter::once(start).chain(cuts.iter().copied());
    let ends = cuts.iter().copied().chain([end]);
    starts.zip(ends).map(|(start, end)| start..end).collect()
}

/// Splits runs into at most `parts` parts and returns, for each run, the byte range of each part. The result is one
/// part if the start of a row cannot be found in the middle of a run.
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
            // The first block is never a sample: its start is always the start of a row, so a shape that cannot find
            // rows elsewhere would yield a sample. A run without samples is not split.
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

/// Splits sorted arenas into at most `parts` parts and returns, for each arena, the indexes in its sorted order that
/// belong to each part, and the bytes of their rows.
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

/// Returns the first index in an arena's sorted order whose row is not before `key`.
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

/// Reads rows in the middle of a run.
struct Probe<'a, S> {
    job: &'a Job,
    run: &'a RowRun,
    order: &'a KeyOrder<S>,
    /// The buffer for a block; `None` during a read.
    block: Option<Buffer>,
}

impl<'a, S: RowShape> Probe<'a, S> {
    fn new(job: &'a Job, run: &'a RowRun, order: &'a KeyOrder<S>) -> Result<Probe<'a, S>> {
        let block = Buffer::zeroed(job.budget(), run.file.block_bytes(), "a block to cut a run at")?;
        Ok(Probe { job, run, order, block: Some(block) })
    }

    /// Returns the start and the key of the first row that begins in block `number` or later.
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

    /// Returns the start of the first row that is not before `key`, or the run's end if there is none.
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
