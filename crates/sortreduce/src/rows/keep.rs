//! Saves runs of rows, from which an interrupted sort resumes.
//!
//! A saved run records its span: the byte range of the input from which its rows came. If spans are contiguous from
//! the start of the input, their rows need not be sorted again. Since several threads write runs, an interruption may
//! lose an earlier run but not a later one. The runs after a lost run are discarded.

use std::{collections::BTreeMap, ops::Range};

use inshore_store::{Keep, ResumablePiece};

use super::{arena::RunFacts, cursor::RowRun, plan::RowPlan};
use crate::{
    Result,
    runs::keep::{decode, encode},
};

/// A byte range of the input.
pub(crate) type Span = Range<u64>;

/// The runs from which an interrupted sort resumes.
#[derive(Default)]
pub(crate) struct ResumedRowRuns {
    /// The runs in ascending order, each with the start of its span in the input.
    pub runs: Vec<(u64, RowRun)>,
    /// The number of input bytes whose rows are in the runs.
    pub bytes: u64,
    /// The number of input rows that are in the runs.
    pub rows_in: u64,
}

/// Encodes a run's description: its properties, its span of the input, and `rows_in`. The last is the number of rows
/// before equal keys were combined.
pub(crate) fn state(facts: &RunFacts, span: Span, rows_in: u64) -> Vec<u8> {
    let RunFacts { rows, row_bytes_max, common, ref first_key, level } = *facts;
    let words = [span.start, span.end, rows_in, rows, row_bytes_max as u64, common as u64, level as u64];
    encode(&words, first_key)
}

fn parse(state: &[u8]) -> Option<(RunFacts, Span, u64)> {
    let ([start, end, rows_in, rows, row_bytes_max, common, level], first_key) = decode(state)?;
    let (row_bytes_max, common) = (usize::try_from(row_bytes_max).ok()?, usize::try_from(common).ok()?);
    let (level, first_key) = (u32::try_from(level).ok()?, first_key.to_vec());
    let is_sound = start < end && rows > 0 && rows <= rows_in && common <= first_key.len();
    is_sound.then_some((RunFacts { rows, row_bytes_max, common, first_key, level }, start..end, rows_in))
}

/// Opens the runs whose spans are contiguous from the start of the input, and discards all other runs. Pieces without a
/// file `rows` are left as they are.
pub(crate) fn find(keep: &Keep, plan: &RowPlan) -> Result<ResumedRowRuns> {
    let mut by_start: BTreeMap<u64, (ResumablePiece, RowRun, Span, u64)> = BTreeMap::new();
    let mut useless = Vec::new();
    for piece in keep.pieces()? {
        // Pieces of another kind belong to the caller of the sort.
        let Some(file) = piece.dataset.file("rows") else { continue };
        let fits = |(facts, span, rows_in): (RunFacts, Span, u64)| {
            let fits = plan.can_read(file.block_bytes()) && facts.row_bytes_max <= plan.row_bytes_max;
            (fits && !by_start.contains_key(&span.start)).then_some((RowRun { file, facts }, span, rows_in))
        };
        match parse(&piece.state).and_then(fits) {
            Some((run, span, rows_in)) => {
                by_start.insert(span.start, (piece, run, span, rows_in));
            }
            None => useless.push(piece),
        }
    }
    let mut found = ResumedRowRuns::default();
    while let Some((_, run, span, rows_in)) = by_start.remove(&found.bytes) {
        found.runs.push((span.start, run));
        found.bytes = span.end;
        found.rows_in += rows_in;
    }
    useless.extend(by_start.into_values().map(|(piece, ..)| piece));
    keep.give_up(&useless)?;
    Ok(found)
}
