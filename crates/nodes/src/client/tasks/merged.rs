//! Merges the sorted answers of several nodes.
//!
//! ```text
//!   A:  a c c f     ─┐
//!   B:  b c d       ─┼─►  a | b | c c c | d | f        runs of rows of one answer
//! ```
//!
//! If a node is lost, other nodes process its shards again. The client has already taken rows of the lost answer, so
//! the client skips the repeated rows up to the last row taken. Several rows may equal this last row. The client then
//! skips as many of these rows as it has taken. If equal rows are partial sums ([`OrderedRow::ADDS_UP`]), the client
//! skips all of them, since each replacement has a share of the sum. Losses of nodes therefore do not change the merged
//! rows, provided that the task is deterministic on every node.

use std::{cmp::Ordering, collections::BTreeMap, fmt::Debug, ops::Range};

use arrow_array::RecordBatch;

use crate::{Error, GatherReport, Result, Streams};

/// The rows of a batch of an answer, in order.
pub trait OrderedRow: Sized {
    /// The parameters for reading and comparing rows; `()` for none.
    type How: Debug;
    /// True if an answer contains each row once, with a number that is summed over the answers.
    const ADDS_UP: bool;

    /// Converts a batch to rows. Returns `None` if the batch has unexpected columns or its rows are not
    /// sorted.
    fn of_batch(batch: &RecordBatch, how: &Self::How) -> Option<Self>;

    /// Returns the number of rows.
    fn rows(&self) -> usize;

    /// Compares a row with a row of this or another batch.
    fn compare(&self, row: usize, other: &Self, other_row: usize) -> Ordering;

    /// Copies a single row to separate memory.
    fn alone(&self, row: usize) -> Self;
}

/// The merged answers. The memory for answers belongs to [`Streams`], and includes the current batch of each answer.
#[derive(Debug)]
pub struct Merged<R: OrderedRow> {
    streams: Streams,
    how: R::How,
    heads: Vec<StreamState<R>>,
    /// The position of each lost stream.
    lost: BTreeMap<usize, Option<ReplayPosition<R>>>,
    /// For each lost stream, the number of rows equal to its last row that the replacements still have to skip.
    repeated: Vec<u64>,
    /// The number of tasks that nodes set aside because their answers were not taken while other tasks waited.
    set_aside: usize,
}

/// The maximum number of restarts of tasks that were set aside. Without this limit, two tasks of a job could set each
/// other aside forever on a node that has room for only one of them.
const SET_ASIDE_MAX: usize = 4;
/// The maximum number of consecutive batches without rows.
const EMPTY_MAX: usize = 1000;

/// The state of a stream.
#[derive(Debug)]
struct StreamState<R> {
    rows: Option<R>,
    /// The index of the first row of the batch that was not skipped.
    first: usize,
    /// The index of the next row to take from the batch.
    next: usize,
    last: Option<LastRow<R>>,
    behind: Option<ReplayPosition<R>>,
    /// True once the rows of the stream were requested. The rows are requested only after the rows to skip
    /// are known.
    is_joined: bool,
    /// The number of rows taken or skipped in earlier batches.
    gone: u64,
}

/// The last row taken of a stream, and the number of rows taken or skipped that equal that row.
#[derive(Debug)]
struct LastRow<R> {
    row: R,
    equal: u64,
}

/// The position up to which the client took rows of the replaced stream.
#[derive(Debug)]
struct ReplayPosition<R> {
    row: R,
    /// The index in [`Merged::repeated`] of the count of rows equal to `row`.
    repeated: usize,
    /// The number of rows equal to `row` that this stream has skipped.
    passed: u64,
    /// The number of rows that the replaced stream had returned or skipped. Each replacement skips at most
    /// this number.
    gone: u64,
}

impl<R: OrderedRow> ReplayPosition<R> {
    /// Returns this position for a new stream, which has skipped no rows so far.
    fn again(&self) -> ReplayPosition<R> {
        let ReplayPosition { row, repeated, gone, .. } = self;
        ReplayPosition { row: row.alone(0), repeated: *repeated, passed: 0, gone: *gone }
    }
}

impl<R> Default for StreamState<R> {
    fn default() -> StreamState<R> {
        StreamState { rows: None, first: 0, next: 0, last: None, behind: None, is_joined: false, gone: 0 }
    }
}

impl<R: OrderedRow> Merged<R> {
    /// Begins to merge and waits for the first rows of all streams.
    ///
    /// # Errors
    /// Returns the errors of [`Merged::next`].
    pub fn new(streams: Streams, how: R::How) -> Result<Merged<R>> {
        let (heads, lost, repeated) = (Vec::new(), BTreeMap::new(), Vec::new());
        let mut merged = Merged { streams, how, heads, lost, repeated, set_aside: 0 };
        merged.join()?;
        Ok(merged)
    }

    /// Returns the next run of rows of one answer: the batch, and the range of rows in the batch. Equal rows
    /// may be returned in several runs, in the order of answers. Returns `None` at the end.
    ///
    /// # Errors
    /// - Returns [`Error::Missing`] if no reachable node has a part.
    /// - Returns [`Error::Refused`] if all holders of a part refuse the task.
    /// - Returns [`Error::SetAside`] if nodes set tasks aside repeatedly.
    /// - Returns the error of a node that was lost in the middle of its answer if no other node has its data. This
    ///   error is returned even if a partial answer is allowed.
    /// - Returns [`Error::Deadline`] if the deadline passes before the call has finished.
    /// - Returns [`Error::Store`] if the job was stopped.
    #[expect(clippy::should_implement_trait, reason = "what it gives is borrowed")]
    pub fn next(&mut self) -> Result<Option<(&R, Range<usize>)>> {
        self.refill()?;
        let Some((least, other)) = self.least_two() else { return Ok(None) };
        let head = &self.heads[least];
        let rows = head.rows.as_ref().expect("it has a row");
        let mut end = head.next + 1;
        match other.map(|other| (other, &self.heads[other])) {
            None => end = rows.rows(),
            Some((other, beside)) => {
                let bound = beside.rows.as_ref().expect("it has a row");
                let comes_first = |row| match rows.compare(row, bound, beside.next) {
                    Ordering::Less => true,
                    Ordering::Equal => least < other,
                    Ordering::Greater => false,
                };
                while end < rows.rows() && comes_first(end) {
                    end += 1;
                }
            }
        }
        let head = &mut self.heads[least];
        let run = head.next..end;
        head.next = end;
        Ok(self.heads[least].rows.as_ref().map(|rows| (rows, run)))
    }

    /// Returns the batch with the next row, or `None` at the end.
    ///
    /// # Errors
    /// Returns the errors of [`Self::next`].
    pub fn first(&mut self) -> Result<Option<&R>> {
        self.refill()?;
        let least = self.least_two().map(|(least, _)| least);
        Ok(least.and_then(|least| self.heads[least].rows.as_ref()))
    }

    /// Finds the smallest of the last rows of all current batches, and returns all rows up to this row. The result has
    /// each batch with the range of these rows. If an answer contains each row once ([`OrderedRow::ADDS_UP`]), all
    /// later rows are greater than the returned rows. Returns an empty list at the end.
    ///
    /// This method suits answers whose rows alternate, for which [`Self::next`] returns short runs.
    ///
    /// # Errors
    /// Returns the errors of [`Self::next`].
    pub fn next_together(&mut self) -> Result<Vec<(&R, Range<usize>)>> {
        self.refill()?;
        let last = |head: &StreamState<R>| head.rows.as_ref().map(|rows| rows.rows() - 1);
        let lasts = self.heads.iter().filter_map(|head| Some((head.rows.as_ref()?, last(head)?)));
        let Some((bound, row)) = lasts
            .min_by(|(rows, row), (others, other)| rows.compare(*row, others, *other))
            .map(|(rows, row)| (rows.alone(row), 0))
        else {
            return Ok(Vec::new());
        };
        let mut all = Vec::with_capacity(self.heads.len());
        for head in &mut self.heads {
            let Some(rows) = &head.rows else { continue };
            let first = head.next;
            let (mut end, mut beyond) = (first, rows.rows());
            while end < beyond {
                let middle = end + (beyond - end) / 2;
                match rows.compare(middle, &bound, row) {
                    Ordering::Greater => beyond = middle,
                    _ => end = middle + 1,
                }
            }
            if first < end {
                head.next = end;
                all.push((rows, first..end));
            }
        }
        Ok(all)
    }

    /// Gets the next batch of each stream whose batch is used up.
    fn refill(&mut self) -> Result<()> {
        for stream in 0..self.heads.len() {
            if self.heads[stream].is_used_up() {
                self.heads[stream].leave_batch();
                self.fill(stream)?;
            }
        }
        self.join()
    }

    /// Gets the first rows of each new stream. If the new stream replaces a lost stream, the position of the lost
    /// stream must be known first.
    fn join(&mut self) -> Result<()> {
        let mut stream = 0;
        while stream < self.streams.len() {
            self.heads.resize_with(self.heads.len().max(stream + 1), StreamState::default);
            let behind = match self.streams.origin(stream) {
                _ if self.heads[stream].is_joined => None,
                None => Some(None),
                Some(origin) => {
                    self.lost.get(&origin).map(|behind| behind.as_ref().map(ReplayPosition::again))
                }
            };
            stream += 1;
            let Some(behind) = behind else { continue };
            let head = &mut self.heads[stream - 1];
            (head.behind, head.is_joined) = (behind, true);
            self.fill(stream - 1)?;
            // If this stream is lost, earlier streams may depend on its position.
            if self.lost.contains_key(&(stream - 1)) {
                stream = 0;
            }
        }
        Ok(())
    }

    /// Returns the stream with the next row, and the stream with the row after that.
    fn least_two(&self) -> Option<(usize, Option<usize>)> {
        let comes_before = |stream: usize, than: usize| {
            let (head, other) = (&self.heads[stream], &self.heads[than]);
            let rows = head.rows.as_ref().zip(other.rows.as_ref());
            rows.is_some_and(|(rows, others)| rows.compare(head.next, others, other.next).is_lt())
        };
        let mut least: Option<(usize, Option<usize>)> = None;
        for stream in (0..self.heads.len()).filter(|&stream| self.heads[stream].rows.is_some()) {
            least = Some(match least {
                None => (stream, None),
                Some((first, _)) if comes_before(stream, first) => (stream, Some(first)),
                Some((first, second)) => match second {
                    Some(second) if !comes_before(stream, second) => (first, Some(second)),
                    _ => (first, Some(stream)),
                },
            });
        }
        least
    }

    /// Gets the next batch of a stream without a batch.
    fn fill(&mut self, stream: usize) -> Result<()> {
        let mut empty = 0;
        loop {
            let why = match self.streams.next(stream) {
                Ok(None) => return Ok(()),
                Ok(Some(batch)) => match R::of_batch(&batch, &self.how) {
                    Some(rows) if rows.rows() == 0 && empty < EMPTY_MAX => {
                        empty += 1;
                        continue;
                    }
                    Some(rows) if rows.rows() == 0 => self.bad(stream, "too many empty answers"),
                    Some(rows) if !self.heads[stream].goes_on_with(&rows) => {
                        self.bad(stream, "rows out of order")
                    }
                    Some(rows) => match self.pass_over(stream, &rows) {
                        None => self.bad(stream, "rows that differ from those of the replica before"),
                        Some(first) if first == rows.rows() => continue,
                        Some(first) => {
                            let head = &mut self.heads[stream];
                            (head.rows, head.first, head.next) = (Some(rows), first, first);
                            return Ok(());
                        }
                    },
                    None => self.bad(stream, "invalid rows, or rows out of order"),
                },
                Err(error @ (Error::Store(_) | Error::Deadline { .. })) => return Err(error),
                Err(error) => error,
            };
            return self.replace(stream, why);
        }
    }

    fn bad(&self, stream: usize, what: &str) -> Error {
        Error::BadAnswer { node: self.streams.node(stream).to_string(), what: what.to_string() }
    }

    /// Returns the index of the first row that the replaced stream had not returned. Returns `None` if the new stream
    /// would skip more rows than the replaced stream had returned or skipped.
    fn pass_over(&mut self, stream: usize, rows: &R) -> Option<usize> {
        let head = &mut self.heads[stream];
        let Some(behind) = &mut head.behind else { return Some(0) };
        let left = &mut self.repeated[behind.repeated];
        for row in 0..rows.rows() {
            match rows.compare(row, &behind.row, 0) {
                Ordering::Less => {}
                Ordering::Equal if R::ADDS_UP => {}
                Ordering::Equal if *left > 0 => {
                    *left -= 1;
                    behind.passed += 1;
                }
                _ => return Some(row),
            }
            head.gone += 1;
            if head.gone > behind.gone {
                return None;
            }
        }
        Some(rows.rows())
    }

    /// Lets other nodes process the shards of a lost node. The new streams [join](Self::join) later.
    fn replace(&mut self, stream: usize, why: Error) -> Result<()> {
        self.set_aside += usize::from(matches!(why, Error::SetAside { .. }));
        if self.set_aside > SET_ASIDE_MAX {
            return Err(why);
        }
        let missing = self.streams.missing();
        // If one node refuses, other nodes usually refuse too: the cause is the data or the request, and the
        // refusal is more specific than a missing part.
        let is_refused = matches!(why, Error::Refused { .. });
        match self.streams.replace(stream, &why) {
            Ok(()) => {}
            Err(_) if is_refused => return Err(why),
            Err(error) => return Err(error),
        }
        let head = &mut self.heads[stream];
        let last = head.last.take();
        let behind = head.behind.take();
        // A replacement skips at most as many rows as this stream took or skipped, or still had to skip.
        let gone = head.gone.max(behind.as_ref().map_or(0, |behind| behind.gone));
        let was_taken = last.is_some() || behind.is_some();
        if self.streams.missing() > missing && was_taken {
            let what = format!("{why}, after a part of its answer was used");
            return Err(Error::Missing { what });
        }
        let from = match (last, behind) {
            (Some(LastRow { row, equal }), _) => {
                self.repeated.push(equal);
                Some((row, self.repeated.len() - 1))
            }
            // No row of this stream was taken, so the replacement has to skip all rows that this stream had to skip.
            (None, Some(behind)) => {
                self.repeated[behind.repeated] += behind.passed;
                Some((behind.row, behind.repeated))
            }
            (None, None) => None,
        };
        let behind = from.map(|(row, repeated)| ReplayPosition { row, repeated, passed: 0, gone });
        self.lost.insert(stream, behind);
        Ok(())
    }

    /// Returns the summaries at the ends of all streams.
    pub fn summaries(&self) -> impl Iterator<Item = &serde_json::Value> {
        (0..self.heads.len()).filter_map(|stream| self.streams.summary(stream))
    }

    /// Returns the summary of each stream that ended, with the address of its node.
    pub fn summaries_by_node(&self) -> impl Iterator<Item = (&str, &serde_json::Value)> {
        let summary = |stream| Some((self.streams.node(stream), self.streams.summary(stream)?));
        (0..self.heads.len()).filter_map(summary)
    }

    /// Returns the sum of the field `name` over all summaries. Values that are not numbers count as 0.
    pub fn told(&self, name: &str) -> u64 {
        self.summaries().filter_map(|told| told[name].as_u64()).fold(0, u64::saturating_add)
    }

    /// Ends the merge and returns the costs.
    pub fn finish(self) -> GatherReport {
        self.streams.finish()
    }
}

impl<R: OrderedRow> StreamState<R> {
    fn is_used_up(&self) -> bool {
        self.rows.as_ref().is_some_and(|rows| self.next == rows.rows())
    }

    /// Records the last row of a fully used batch and drops the batch.
    fn leave_batch(&mut self) {
        let rows = self.rows.take().expect("it was given");
        let end = rows.rows() - 1;
        let row = rows.alone(end);
        let taken = self.first..end + 1;
        self.gone += taken.len() as u64;
        let equal = taken.clone().rev().take_while(|&other| rows.compare(other, &row, 0).is_eq()).count();
        let reaches_back = equal == taken.len();
        let before = match (&self.last, &self.behind) {
            (Some(last), _) if reaches_back && last.row.compare(0, &row, 0).is_eq() => last.equal,
            (None, Some(behind)) if reaches_back && behind.row.compare(0, &row, 0).is_eq() => behind.passed,
            _ => 0,
        };
        self.last = Some(LastRow { row, equal: equal as u64 + before });
    }

    /// Returns true if the rows follow the last row in order.
    fn goes_on_with(&self, rows: &R) -> bool {
        self.last.as_ref().is_none_or(|last| rows.compare(0, &last.row, 0).is_ge())
    }
}
