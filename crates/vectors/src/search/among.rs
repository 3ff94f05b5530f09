//! Searches in which each query has candidates of its own: the vectors that an index proposes.
//!
//! ```text
//!   query ─► candidates ─► the blocks in which they lie, many reads in flight ─► exact distances ─► k nearest
//! ```
//!
//! The candidates of a query are a set of rows, as the selection of an exact search is. So each candidate is measured
//! once, whatever proposed it, by the code of the exact search, for all elements and metrics.

use arrow_array::RecordBatch;

use super::{AnswerRows, Beside, DatasetFacts, Means, Passes, Plan, Receiver, Search, Source, plan_beside};
use crate::{Result, RowSet, Vectors};

/// Proposes candidates for queries.
pub(crate) trait Candidates {
    /// Returns the candidates of the next query, whose elements are those of queries ([`crate::Element::queried`]).
    ///
    /// # Errors
    /// I/O and damage; cancellation.
    fn of_query(&mut self, query: &[u8]) -> Result<&RowSet>;
}

/// The result of a search among candidates.
pub(crate) struct AmongCandidates {
    /// The number of rows of the answer.
    pub rows: u64,
    /// The number of pairs whose exact distances were computed.
    pub measured: u64,
    pub plan: Plan,
}

/// Finds the nearest of its candidates for each query, and passes rows to `each`, in the order of the queries and
/// ranks. `expected` is the expected number of candidates. Removed vectors are no candidates.
///
/// # Errors
/// The errors of [`super::search()`]; the errors of `candidates`.
pub(crate) fn search_among(
    means: &mut Means<'_>,
    (vectors, facts): (&Vectors, &DatasetFacts),
    source: Source<'_>,
    search: &Search,
    (candidates, expected): (&mut dyn Candidates, u64),
    each: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<AmongCandidates> {
    let (job, info) = (means.job, vectors.info());
    let entries = search.neighbours(info.live());
    let what = || format!("a search of {entries} neighbours in the index of {}", info.name);
    let expected = Some(expected.max(entries));
    let bytes = facts.unread_bytes(vectors);
    let beside = Beside { entries, bytes, what: &what, candidates: expected };
    let plan = plan_beside(means, info, source, search, &beside)?;
    let mut answer = AnswerRows::new(search.metric, each);
    let passes = Passes { job, vectors, facts, source, search, plan: &plan };
    let measured = passes.run(means.kept, &mut Receiver::Among(&mut answer, candidates))?;
    answer.flush()?;
    Ok(AmongCandidates { rows: answer.rows, measured, plan })
}
