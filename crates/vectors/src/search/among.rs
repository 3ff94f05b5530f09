//! Runs searches in which each query has its own candidates. A candidate is a vector that an index proposes for the
//! query.
//!
//! ```text
//!   query ─► candidates ─► the blocks of the candidates, many reads in flight ─► exact distances ─► k nearest
//! ```
//!
//! The candidates of a query are a set of rows, as the selection of an exact search is. So the code of the exact search
//! compares the candidates, for all element types and metrics. The distance of a candidate is computed once, even if
//! several parts of an index propose the candidate.

use arrow_array::RecordBatch;

use super::{AnswerRows, Beside, DatasetFacts, Means, Passes, Plan, Receiver, Search, Source, plan_beside};
use crate::{Result, RowSet, Vectors};

/// A source of candidates for queries.
pub(crate) trait Candidates {
    /// Returns the candidates of the next query. [`crate::Element::queried`] gives the element type of `query`.
    ///
    /// # Errors
    /// - Returns [`crate::Error::BadDataset`] if the index is damaged.
    /// - Returns [`crate::Error::Store`] if an I/O operation fails, stored bytes are damaged, or the job was cancelled.
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

/// Finds for each query the nearest vectors among its candidates. Passes the rows of the answer to `each`, in the order
/// of the queries and then of the ranks. `expected` is the expected number of candidates of a query. `candidates` must
/// not propose removed vectors.
///
/// # Errors
/// Returns the errors of [`super::search()`] and of `candidates`.
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
