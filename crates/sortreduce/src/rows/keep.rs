//! Runs of rows that outlive an interrupted sort.
//!
//! A kept run says which bytes of the input its rows were, so the runs whose spans join up from the start of the input
//! are what a sort need not do again. Where several threads write runs, one may be lost that lies before another: what
//! lies behind the gap is given up.

use std::{collections::BTreeMap, ops::Range};

use inshore_store::{Keep, KeptPiece};

use super::{arena::RunFacts, cursor::Run, plan::RowPlan};
use crate::{
    Result,
    runs::keep::{decode, encode},
};

/// Bytes of the input.
pub(crate) type Span = Range<u64>;

/// What an interrupted sort left.
#[derive(Default)]
pub(crate) struct Found {
    /// By where in the input they begin.
    pub runs: Vec<(u64, Run)>,
    /// Bytes of the input that are in them.
    pub bytes: u64,
    /// Rows that were in those bytes.
    pub rows_in: u64,
}

/// What a run says of itself: `rows_in` rows of `span`, before any were combined.
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

/// Opens the runs that join up from the start of the input, and gives up all others.
pub(crate) fn find(keep: &Keep, plan: &RowPlan) -> Result<Found> {
    let mut by_start: BTreeMap<u64, (KeptPiece, Run, Span, u64)> = BTreeMap::new();
    let mut useless = Vec::new();
    for piece in keep.pieces()? {
        let fits = |(facts, span, rows_in): (RunFacts, Span, u64)| {
            let file = piece.dataset.file("rows")?;
            let fits = plan.can_read(file.block_bytes()) && facts.row_bytes_max <= plan.row_bytes_max;
            (fits && !by_start.contains_key(&span.start)).then_some((Run { file, facts }, span, rows_in))
        };
        match parse(&piece.state).and_then(fits) {
            Some((run, span, rows_in)) => {
                by_start.insert(span.start, (piece, run, span, rows_in));
            }
            None => useless.push(piece),
        }
    }
    let mut found = Found::default();
    while let Some((_, run, span, rows_in)) = by_start.remove(&found.bytes) {
        found.runs.push((span.start, run));
        found.bytes = span.end;
        found.rows_in += rows_in;
    }
    useless.extend(by_start.into_values().map(|(piece, ..)| piece));
    keep.give_up(&useless)?;
    Ok(found)
}
