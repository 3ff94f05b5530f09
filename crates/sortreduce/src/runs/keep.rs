//! Saves runs of records, from which an interrupted sort-reduce resumes.
//!
//! The input is divided into units, and each unit is pushed by one sink. A unit is, for example, a range of a file or
//! a block of sequences. A run contains the records that its sink pushed since the sink's previous run. The run's
//! description lists these records by unit. A sink writes its runs one after the other, so runs contain the records
//! of a unit from its start up to some number. If the unit is pushed again, these records are skipped.
//!
//! ```text
//!   description   [ format | blocks | records | unit, from, to, 1 if the unit ends there | unit, ... ]      u64 each
//! ```

use std::collections::BTreeMap;

use inshore_store::{Job, Keep, ResumablePiece};

use crate::{Key, Result, runs::Run};

/// The records `from..to` of a unit. `is_end` is true if the unit has no more records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UnitSpan {
    pub unit: u64,
    pub from: u64,
    pub to: u64,
    pub is_end: bool,
}

/// Tracks the units of the records that one sink pushed since its last run.
#[derive(Debug, Default)]
pub(crate) struct Units {
    done: Vec<UnitSpan>,
    current: Option<UnitSpan>,
}

impl Units {
    pub fn begin(&mut self, unit: u64, from: u64) {
        self.end();
        self.current = Some(UnitSpan { unit, from, to: from, is_end: false });
    }

    pub fn end(&mut self) {
        self.done.extend(self.current.take().map(|span| UnitSpan { is_end: true, ..span }));
    }

    #[inline]
    pub fn add(&mut self, records: u64) {
        self.current.as_mut().expect("with Config::keep, Sink::begin_unit comes first").to += records;
    }

    /// Returns the spans of all records that were pushed since the last call.
    pub fn take(&mut self) -> Vec<UnitSpan> {
        let mut spans = std::mem::take(&mut self.done);
        if let Some(span) = &mut self.current {
            spans.push(*span);
            span.from = span.to;
        }
        spans
    }
}

/// The format version of blocks. Runs with another format are discarded.
const FORMAT: u64 = u64::from_le_bytes(*b"blocks 2");

/// Encodes a run's description: the format, the numbers of blocks and records, and the spans of units.
pub(crate) fn state(blocks: u64, records: u64, spans: &[UnitSpan]) -> Vec<u8> {
    let words = |span: &UnitSpan| [span.unit, span.from, span.to, span.is_end.into()];
    let words: Vec<u64> = [FORMAT, blocks, records].into_iter().chain(spans.iter().flat_map(words)).collect();
    encode(&words, &[])
}

fn parse(state: &[u8]) -> Option<(u64, u64, Vec<UnitSpan>)> {
    let ([format, blocks, records], mut rest) = decode(state)?;
    if format != FORMAT {
        return None;
    }
    let mut spans = Vec::new();
    while !rest.is_empty() {
        let ([unit, from, to, is_end], after) = decode(rest)?;
        spans.push(UnitSpan { unit, from, to, is_end: is_end != 0 });
        rest = after;
    }
    Some((blocks, records, spans))
}

/// The runs from which an interrupted sort-reduce resumes.
#[derive(Debug)]
pub(crate) struct ResumedRuns<K> {
    pub runs: Vec<Run<K>>,
    /// The number of pushed records that are in the runs.
    pub pushed: u64,
    pub covered: UnitCoverage,
}

impl<K> Default for ResumedRuns<K> {
    fn default() -> Self {
        ResumedRuns { runs: Vec::new(), pushed: 0, covered: UnitCoverage::default() }
    }
}

/// For each unit, how many records from its start are in runs, and whether these are all records of the unit.
#[derive(Debug, Default)]
pub(crate) struct UnitCoverage(BTreeMap<u64, (u64, bool)>);

impl UnitCoverage {
    pub fn records(&self, unit: u64) -> u64 {
        self.0.get(&unit).map_or(0, |&(records, _)| records)
    }

    pub fn is_whole(&self, unit: u64) -> bool {
        self.0.get(&unit).is_some_and(|&(_, is_whole)| is_whole)
    }

    /// Combines spans, which must be contiguous from the start of each unit. Returns `None` if a span is missing.
    fn of(mut spans: Vec<UnitSpan>) -> Option<UnitCoverage> {
        let mut covered: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
        spans.sort_unstable_by_key(|span| (span.unit, span.from, span.to));
        for UnitSpan { unit, from, to, is_end } in spans {
            let (records, is_whole) = covered.entry(unit).or_default();
            if from != *records || to < from || *is_whole {
                return None;
            }
            (*records, *is_whole) = (to, is_end);
        }
        Some(UnitCoverage(covered))
    }
}

/// Opens all saved runs. If a run between others is missing because it was removed, all runs are discarded.
///
/// # Errors
/// Returns an error if a run cannot be read or is damaged, or if the budget has too little memory for the first keys of
/// the blocks.
pub(crate) fn find<K: Key>(job: &Job, keep: &Keep, block_bytes: usize) -> Result<ResumedRuns<K>> {
    let pieces = keep.pieces()?;
    match open::<K>(job, &pieces, block_bytes)? {
        Some(found) => Ok(found),
        None => {
            keep.give_up(&pieces)?;
            Ok(ResumedRuns::default())
        }
    }
}

fn open<K: Key>(job: &Job, pieces: &[ResumablePiece], block_bytes: usize) -> Result<Option<ResumedRuns<K>>> {
    let (mut found, mut all) = (ResumedRuns::default(), Vec::new());
    for piece in pieces {
        let Some(((blocks, records, spans), file)) = parse(&piece.state).zip(piece.dataset.file("records"))
        else {
            return Ok(None);
        };
        let Some(run) = Run::open_kept(job, file, blocks, records, block_bytes)? else {
            return Ok(None);
        };
        found.runs.push(run);
        found.pushed += spans.iter().map(|span| span.to.saturating_sub(span.from)).sum::<u64>();
        all.extend(spans);
    }
    let Some(covered) = UnitCoverage::of(all) else { return Ok(None) };
    found.covered = covered;
    Ok(Some(found))
}

/// Encodes a run's description, which consists of 64-bit words and further bytes.
pub(crate) fn encode(words: &[u64], rest: &[u8]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).chain(rest.iter().copied()).collect()
}

/// Returns the first `N` words and the bytes after them. Returns `None` if there are fewer words.
pub(crate) fn decode<const N: usize>(state: &[u8]) -> Option<([u64; N], &[u8])> {
    let (words, rest) = state.split_at_checked(N * 8)?;
    let (words, _) = words.as_chunks::<8>();
    Some((std::array::from_fn(|i| u64::from_le_bytes(words[i])), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_say_what_was_pushed_since_the_last_run() {
        let mut units = Units::default();
        units.begin(7, 0);
        units.add(5);
        units.begin(9, 3);
        units.add(2);
        let span = |unit, from, to, is_end| UnitSpan { unit, from, to, is_end };
        let first = units.take();
        assert_eq!(first, [span(7, 0, 5, true), span(9, 3, 5, false)]);
        let said = state(4, 100, &first);
        assert_eq!(parse(&said), Some((4, 100, first)));
        // A description with another format version is not accepted.
        assert_eq!(parse(&said[8..]), None);
        units.add(1);
        units.end();
        assert_eq!(units.take(), [span(9, 5, 6, true)]);
        assert!(units.take().is_empty());
    }

    #[test]
    fn a_gap_between_runs_is_found() {
        let span = |from, to, is_end| UnitSpan { unit: 3, from, to, is_end };
        let covered = UnitCoverage::of(vec![span(5, 9, true), span(0, 5, false)]).unwrap();
        assert_eq!((covered.records(3), covered.is_whole(3), covered.records(4)), (9, true, 0));
        assert!(UnitCoverage::of(vec![span(0, 5, false), span(6, 9, true)]).is_none());
        assert!(UnitCoverage::of(vec![span(0, 5, true), span(5, 9, true)]).is_none());
        assert!(UnitCoverage::of(vec![span(5, 9, true)]).is_none());
        // An empty unit counts as complete after it has ended.
        assert!(UnitCoverage::of(vec![span(0, 0, true)]).unwrap().is_whole(3));
    }
}
