//! Merges the neighbours that nodes found into the answer of a search.

use arrow_array::RecordBatch;

use crate::{
    Metric, Result,
    search::{AnswerRows, Row},
    topk::Entry,
};

/// Collects neighbours into the rows of an answer. The caller adds the neighbours of all nodes in the order of queries,
/// keys and ids. The answer contains the first k neighbours of each query.
pub struct MergedAnswer<'a> {
    rows: AnswerRows<'a>,
    k: u64,
    query: Option<u64>,
    rank: u64,
}

impl<'a> MergedAnswer<'a> {
    /// Begins an answer. `each` receives its rows.
    pub fn new(
        metric: Metric,
        k: u64,
        each: &'a mut dyn FnMut(RecordBatch) -> Result<()>,
    ) -> MergedAnswer<'a> {
        MergedAnswer { rows: AnswerRows::new(metric, each), k, query: None, rank: 0 }
    }

    /// Adds the next neighbour.
    ///
    /// # Errors
    /// Returns the errors of the receiver of rows.
    pub fn add(&mut self, query: u64, key: f64, id: u64) -> Result<()> {
        if self.query != Some(query) {
            (self.query, self.rank) = (Some(query), 0);
        }
        if self.rank == self.k {
            return Ok(());
        }
        self.rank += 1;
        self.rows.add(Row { query, rank: self.rank as u32, entry: Entry { key, id } })
    }

    /// Passes the last rows to the receiver. Returns the number of rows of the whole answer.
    ///
    /// # Errors
    /// Returns the errors of the receiver of rows.
    pub fn finish(mut self) -> Result<u64> {
        self.rows.flush()?;
        Ok(self.rows.rows)
    }
}
