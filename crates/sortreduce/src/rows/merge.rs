//! Merges sorted rows with a loser tree.
//!
//! Each leaf stores eight bytes of its row's key, from the end of the common prefix of all keys. Most comparisons
//! therefore need not read the rows. Rows with equal keys are ordered by the number of their leaf, which is the order
//! of the input.

use inshore_store::Job;
use serde::Serialize;

use super::{
    cursor::{Cursor, RowRun},
    order::{common_len, word_at},
    shape::{RowOperation, RowShape},
};
use crate::Result;

/// The counters of a sort of rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RowStats {
    /// The number of rows in the input.
    pub rows_in: u64,
    /// The number of rows that were returned.
    pub rows_out: u64,
    /// The number of bytes in the input.
    pub bytes_in: u64,
    /// The number of input rows that an interrupted sort had saved in runs.
    pub rows_kept: u64,
    /// The number of runs that were written during the input. The number is 0 if all rows fitted in memory.
    pub runs: u64,
    /// The total bytes of runs that were written in all passes.
    pub bytes_spilled: u64,
    /// The number of runs that can be merged at once.
    pub fan_in: usize,
    /// The largest number of merges that a row goes through, including the last merge. The number is 0 if there are
    /// no runs.
    pub merge_passes: u32,
}

/// Streams the sorted rows. Dropping the stream removes the runs and releases the memory.
pub struct SortedRows<S: RowShape, O: RowOperation> {
    tree: Tree<S>,
    job: Job,
    shape: S,
    operation: O,
    stats: RowStats,
    /// The merge level in the job's counters, and the number of rows that enter this level. The value is `None` if no
    /// runs are merged.
    level: Option<(u32, u64)>,
    /// The current output row, if the operation combines rows.
    current: Vec<u8>,
    has_current: bool,
    /// The number of bytes of the current row that were already returned.
    given: usize,
    ended: bool,
}

/// A part of the result; see [`super::RowSort::finish_in_parts`].
pub struct SortedPart<S: RowShape, O: RowOperation> {
    /// The number of result bytes before this part.
    pub start: u64,
    /// The stream of the part's rows.
    pub rows: SortedRows<S, O>,
}

impl<S: RowShape, O: RowOperation> SortedRows<S, O> {
    pub(crate) fn new(
        tree: Tree<S>,
        job: &Job,
        shape: S,
        operation: O,
        stats: RowStats,
        level: Option<(u32, u64)>,
    ) -> Self {
        let job = job.clone();
        let (current, has_current, given, ended) = (Vec::new(), false, 0, false);
        SortedRows { tree, job, shape, operation, stats, level, current, has_current, given, ended }
    }

    /// Fills `out` with the bytes of the next rows, and returns the number of bytes. The last row may be incomplete,
    /// and the next call continues with its rest. If the number is smaller than the length of `out`, the result has
    /// ended.
    ///
    /// # Errors
    /// - Returns [`inshore_store::Error::Io`] if a read fails.
    /// - Returns [`inshore_store::Error::Damaged`] if the checksum of a run does not match.
    /// - Returns [`inshore_store::Error::Cancelled`] if the job was cancelled.
    pub fn fill(&mut self, out: &mut [u8]) -> Result<usize> {
        self.job.check_cancelled()?;
        let mut filled = 0;
        while filled < out.len() && self.has_row()? {
            let row = self.row();
            let part = (row.len() - self.given).min(out.len() - filled);
            out[filled..filled + part].copy_from_slice(&row[self.given..self.given + part]);
            filled += part;
            self.given += part;
            if self.given == self.row().len() {
                self.next_row()?;
            }
        }
        Ok(filled)
    }

    /// Appends complete rows to `out` until `out` has at least `bytes` bytes. Appends nothing at the end of the
    /// result. A caller must not use both this function and [`SortedRows::fill`].
    ///
    /// # Errors
    /// Returns the errors of [`SortedRows::fill`].
    pub fn append(&mut self, out: &mut Vec<u8>, bytes: usize) -> Result<()> {
        self.job.check_cancelled()?;
        while out.len() < bytes && self.has_row()? {
            out.extend_from_slice(self.row());
            self.next_row()?;
        }
        Ok(())
    }

    /// Returns the current counters.
    pub fn stats(&self) -> RowStats {
        self.stats
    }

    #[inline]
    fn row(&self) -> &[u8] {
        if O::COMBINES { &self.current } else { self.tree.row() }
    }

    #[inline]
    fn has_row(&mut self) -> Result<bool> {
        if O::COMBINES && !self.has_current {
            self.combine()?;
        }
        let has = if O::COMBINES { self.has_current } else { !self.tree.is_empty() };
        if !has
            && !std::mem::replace(&mut self.ended, true)
            && let Some((level, rows_in)) = self.level
        {
            self.job.counters().add_level(level, rows_in, self.stats.rows_out);
        }
        Ok(has)
    }

    #[inline]
    fn next_row(&mut self) -> Result<()> {
        self.given = 0;
        self.stats.rows_out += 1;
        if O::COMBINES {
            self.has_current = false;
            Ok(())
        } else {
            self.tree.advance()
        }
    }

    /// Takes the next row, and combines all following rows with the same key into it.
    fn combine(&mut self) -> Result<()> {
        if self.tree.is_empty() {
            return Ok(());
        }
        self.current.clear();
        self.current.extend_from_slice(self.tree.row());
        self.has_current = true;
        self.tree.advance()?;
        while !self.tree.is_empty() && self.shape.key(self.tree.row()) == self.shape.key(&self.current) {
            self.operation.combine(&mut self.current, self.tree.row());
            self.tree.advance()?;
        }
        Ok(())
    }
}

/// A loser tree over cursors.
pub(crate) struct Tree<S> {
    shape: S,
    descending: bool,
    cursors: Vec<Cursor<S>>,
    /// Eight bytes of each leaf's key, or the largest word if the leaf has no more rows.
    words: Vec<u64>,
    ended: Vec<bool>,
    /// The length in bytes of the common prefix of all keys.
    common: usize,
    /// The number of the winning leaf (at index 0), followed by the number of the losing leaf at each inner node.
    losers: Vec<u32>,
    left: usize,
}

/// Returns the length in bytes of the common prefix of all keys in all runs.
pub(crate) fn common_of_runs(runs: &[RowRun]) -> usize {
    let Some(first) = runs.first() else { return 0 };
    let common =
        |run: &RowRun| run.facts.common.min(common_len(&run.facts.first_key, &first.facts.first_key));
    runs.iter().map(common).min().unwrap_or(0)
}

impl<S: RowShape> Tree<S> {
    /// Creates a tree over cursors, which must be in the order of the input. Each cursor must have a current row.
    pub fn new(cursors: Vec<Cursor<S>>, shape: S, descending: bool, common: usize) -> Self {
        let count = cursors.len();
        let mut tree = Tree {
            shape,
            descending,
            words: vec![0; count],
            ended: vec![false; count],
            cursors,
            common,
            losers: vec![u32::MAX; count.max(1)],
            left: count,
        };
        for leaf in 0..count {
            tree.load(leaf);
        }
        // Each leaf moves up, and swaps with losers that come first, until it reaches an empty node.
        for leaf in 0..count {
            let (mut climber, mut node) = (leaf as u32, (leaf + count) / 2);
            while node > 0 && tree.losers[node] != u32::MAX {
                if tree.is_before(tree.losers[node], climber) {
                    std::mem::swap(&mut climber, &mut tree.losers[node]);
                }
                node /= 2;
            }
            tree.losers[node] = climber;
        }
        tree
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.left == 0
    }

    /// Returns the first of all remaining rows. There must be at least one row.
    #[inline]
    pub fn row(&self) -> &[u8] {
        self.cursors[self.losers[0] as usize].row()
    }

    #[inline]
    fn load(&mut self, leaf: usize) {
        let key = self.shape.key(self.cursors[leaf].row());
        let word = word_at(key, self.common);
        self.words[leaf] = if self.descending { !word } else { word };
    }

    /// Moves to the next row in sorted order.
    #[inline]
    pub fn advance(&mut self) -> Result<()> {
        let leaf = self.losers[0] as usize;
        if self.cursors[leaf].advance()? {
            self.load(leaf);
        } else {
            self.words[leaf] = u64::MAX;
            self.ended[leaf] = true;
            self.left -= 1;
        }
        let mut winner = leaf as u32;
        let mut node = (leaf + self.cursors.len()) / 2;
        while node > 0 {
            let other = self.losers[node];
            if self.is_before(other, winner) {
                self.losers[node] = winner;
                winner = other;
            }
            node /= 2;
        }
        self.losers[0] = winner;
        Ok(())
    }

    #[inline]
    fn is_before(&self, a: u32, b: u32) -> bool {
        let (word_a, word_b) = (self.words[a as usize], self.words[b as usize]);
        if word_a != word_b { word_a < word_b } else { self.is_before_by_rest(a as usize, b as usize) }
    }

    fn is_before_by_rest(&self, a: usize, b: usize) -> bool {
        if self.ended[a] || self.ended[b] {
            return (self.ended[a], a) < (self.ended[b], b);
        }
        let key = |leaf: usize| {
            let key = self.shape.key(self.cursors[leaf].row());
            &key[self.common.min(key.len())..]
        };
        let order = if self.descending { key(b).cmp(key(a)) } else { key(a).cmp(key(b)) };
        order.then(a.cmp(&b)).is_lt()
    }
}
