//! The answers of several nodes, each of them in order, as one in order.
//!
//! ```text
//!   A:  a c c f     ─┐
//!   B:  b c d       ─┼─►  a | b | c c c | d | f        runs of rows of one answer
//! ```
//!
//! Where a node is lost, others do its work anew, and what they say up to the last row that was taken of it is passed over. Rows that
//! compare as equal to that last one count: as many of them are passed over as were taken; or, where equal rows are sums that add up
//! ([`InOrder::ADDS_UP`]), all, since each of those who replace it has a share of the sum. So the same data give the same rows,
//! each of them once, as long as the work is one that gives the same rows wherever it is done.

use std::{cmp::Ordering, collections::BTreeMap, fmt::Debug, ops::Range};

use arrow_array::RecordBatch;

use super::{Error, Gathered, Result, Streams};

/// Rows of an answer, in order.
pub trait InOrder: Sized {
    /// What has to be known to read and compare them; nothing is `()`.
    type How: Debug;
    /// Whether an answer has each row once, with a number that adds up with those of other answers.
    const ADDS_UP: bool;

    /// The rows of a batch; `None` where it has none of this kind, or they are in no order.
    fn of_batch(batch: &RecordBatch, how: &Self::How) -> Option<Self>;

    /// How many there are.
    fn rows(&self) -> usize;

    /// How a row compares with one of these or of others.
    fn compare(&self, row: usize, other: &Self, other_row: usize) -> Ordering;

    /// A row alone, in memory of its own.
    fn alone(&self, row: usize) -> Self;
}

/// Answers as one. The memory of answers on their way is that of [`Streams`]; a batch of each, which is taken apart, is in it.
#[derive(Debug)]
pub struct Merged<R: InOrder> {
    streams: Streams,
    how: R::How,
    heads: Vec<Head<R>>,
    /// How far each stream had come that was lost.
    lost: BTreeMap<usize, Option<Behind<R>>>,
    /// Rows that are still to be passed over by those who replace a lost node: of those that equal its last one.
    repeated: Vec<u64>,
    /// Tasks that nodes set aside, since their answers were not taken while others waited.
    set_aside: usize,
}

/// So many times tasks are begun anew that were set aside. Where a node has no room for two tasks of a job at once, they would set each other
/// aside for ever.
const SET_ASIDE_MAX: usize = 4;
/// So many batches without rows may follow each other.
const EMPTY_MAX: usize = 1000;

/// Where a stream stands.
#[derive(Debug)]
struct Head<R> {
    rows: Option<R>,
    /// The first of them that was not passed over, and the one that comes next.
    first: usize,
    next: usize,
    last: Option<Last<R>>,
    behind: Option<Behind<R>>,
    /// True once its rows are asked for: not before it is known which are to be passed over.
    is_joined: bool,
    /// How many rows were taken or passed over of those that were left.
    gone: u64,
}

/// The last row that was taken of a stream, and how many that equal it were: taken or passed over.
#[derive(Debug)]
struct Last<R> {
    row: R,
    equal: u64,
}

/// What the one that is replaced had given.
#[derive(Debug)]
struct Behind<R> {
    row: R,
    /// Which of [`Merged::repeated`] counts the rows that equal it.
    repeated: usize,
    /// How many of them this stream has passed over.
    passed: u64,
    /// How many rows it had given or passed over: nobody who replaces it passes over more.
    gone: u64,
}

impl<R: InOrder> Behind<R> {
    /// The same for one who has passed over nothing.
    fn again(&self) -> Behind<R> {
        let Behind { row, repeated, gone, .. } = self;
        Behind { row: row.alone(0), repeated: *repeated, passed: 0, gone: *gone }
    }
}

impl<R> Default for Head<R> {
    fn default() -> Head<R> {
        Head { rows: None, first: 0, next: 0, last: None, behind: None, is_joined: false, gone: 0 }
    }
}

impl<R: InOrder> Merged<R> {
    /// Begins, which waits for the first rows of all.
    ///
    /// # Errors
    /// As [`Merged::next`].
    pub fn new(streams: Streams, how: R::How) -> Result<Merged<R>> {
        let (heads, lost, repeated) = (Vec::new(), BTreeMap::new(), Vec::new());
        let mut merged = Merged { streams, how, heads, lost, repeated, set_aside: 0 };
        merged.join()?;
        Ok(merged)
    }

    /// The next rows, all of one answer: the batch that has them, and which they are. Rows that compare as equal may come in
    /// several runs, in the order of answers; `None` at the end.
    ///
    /// # Errors
    /// [`Error::Missing`] where a part is on no node that answers; [`Error::Refused`] where all that have a part refuse the work;
    /// [`Error::SetAside`] where nodes did so again and again; an error of a node that was lost in the middle of its answer, where
    /// no other has what it had, even where a partial answer would do; [`Error::Deadline`]; [`Error::Store`] where the job was
    /// stopped.
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

    /// The batch whose row comes next; `None` at the end.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub fn first(&mut self) -> Result<Option<&R>> {
        self.refill()?;
        let least = self.least_two().map(|(least, _)| least);
        Ok(least.and_then(|least| self.heads[least].rows.as_ref()))
    }

    /// The next rows of all answers, up to the least of the last rows that are here: the batches that have some of them, and which they are. What comes
    /// later is greater than all of these, where an answer has each row once ([`InOrder::ADDS_UP`]). Nothing at the end.
    ///
    /// For answers whose rows take turns: [`Self::next`] gives runs that are short there.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub fn next_together(&mut self) -> Result<Vec<(&R, Range<usize>)>> {
        self.refill()?;
        let last = |head: &Head<R>| head.rows.as_ref().map(|rows| rows.rows() - 1);
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

    /// Gets the next rows of all streams that have none left.
    fn refill(&mut self) -> Result<()> {
        for stream in 0..self.heads.len() {
            if self.heads[stream].is_used_up() {
                self.heads[stream].leave_batch();
                self.fill(stream)?;
            }
        }
        self.join()
    }

    /// Gets the first rows of all streams that are new, once it is known what those had given whom they replace.
    fn join(&mut self) -> Result<()> {
        let mut stream = 0;
        while stream < self.streams.len() {
            self.heads.resize_with(self.heads.len().max(stream + 1), Head::default);
            let behind = match self.streams.origin(stream) {
                _ if self.heads[stream].is_joined => None,
                None => Some(None),
                Some(origin) => self.lost.get(&origin).map(|behind| behind.as_ref().map(Behind::again)),
            };
            stream += 1;
            let Some(behind) = behind else { continue };
            let head = &mut self.heads[stream - 1];
            (head.behind, head.is_joined) = (behind, true);
            self.fill(stream - 1)?;
            // If it is lost, streams before this one may wait for that.
            if self.lost.contains_key(&(stream - 1)) {
                stream = 0;
            }
        }
        Ok(())
    }

    /// The stream whose row comes next, and the one whose row comes then.
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

    /// Gets the next rows of a stream that has none left.
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
                    Some(rows) if rows.rows() == 0 => self.bad(stream, "nothing, again and again"),
                    Some(rows) if !self.heads[stream].goes_on_with(&rows) => {
                        self.bad(stream, "rows that are in no order")
                    }
                    Some(rows) => match self.pass_over(stream, &rows) {
                        None => self.bad(stream, "other rows than the node before it"),
                        Some(first) if first == rows.rows() => continue,
                        Some(first) => {
                            let head = &mut self.heads[stream];
                            (head.rows, head.first, head.next) = (Some(rows), first, first);
                            return Ok(());
                        }
                    },
                    None => self.bad(stream, "rows that are none, or in no order"),
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

    /// The first of some rows that the one that was replaced had not given; `None` where it cannot have given so many.
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

    /// Asks others for all that a lost node was asked for, who [join](Self::join) later.
    fn replace(&mut self, stream: usize, why: Error) -> Result<()> {
        self.set_aside += usize::from(matches!(why, Error::SetAside { .. }));
        if self.set_aside > SET_ASIDE_MAX {
            return Err(why);
        }
        let missing = self.streams.missing();
        // What one node refuses, others mostly do too: it is the data's fault, or the request's, and says more than that something is missing.
        let is_refused = matches!(why, Error::Refused { .. });
        match self.streams.replace(stream, &why) {
            Ok(()) => {}
            Err(_) if is_refused => return Err(why),
            Err(error) => return Err(error),
        }
        let head = &mut self.heads[stream];
        let last = head.last.take();
        let behind = head.behind.take();
        // Whoever comes now passes over no more than this one did, or would have to.
        let gone = head.gone.max(behind.as_ref().map_or(0, |behind| behind.gone));
        let was_taken = last.is_some() || behind.is_some();
        if self.streams.missing() > missing && was_taken {
            let what = format!("{why}, and a part of its answer was taken");
            return Err(Error::Missing { what });
        }
        let from = match (last, behind) {
            (Some(Last { row, equal }), _) => {
                self.repeated.push(equal);
                Some((row, self.repeated.len() - 1))
            }
            // Nothing of it was taken: whoever comes now passes over the same.
            (None, Some(behind)) => {
                self.repeated[behind.repeated] += behind.passed;
                Some((behind.row, behind.repeated))
            }
            (None, None) => None,
        };
        let behind = from.map(|(row, repeated)| Behind { row, repeated, passed: 0, gone });
        self.lost.insert(stream, behind);
        Ok(())
    }

    /// What the works of all streams said at their ends.
    pub fn summaries(&self) -> impl Iterator<Item = &serde_json::Value> {
        (0..self.heads.len()).filter_map(|stream| self.streams.summary(stream))
    }

    /// The sum of what they said under a name: 0 where that is no number.
    pub fn told(&self, name: &str) -> u64 {
        self.summaries().filter_map(|told| told[name].as_u64()).fold(0, u64::saturating_add)
    }

    /// What it all cost.
    pub fn finish(self) -> Gathered {
        self.streams.finish()
    }
}

impl<R: InOrder> Head<R> {
    fn is_used_up(&self) -> bool {
        self.rows.as_ref().is_some_and(|rows| self.next == rows.rows())
    }

    /// Remembers the last row of a batch, all of which was given, and leaves the batch.
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
        self.last = Some(Last { row, equal: equal as u64 + before });
    }

    /// Whether rows come behind the last one.
    fn goes_on_with(&self, rows: &R) -> bool {
        self.last.as_ref().is_none_or(|last| rows.compare(0, &last.row, 0).is_ge())
    }
}
