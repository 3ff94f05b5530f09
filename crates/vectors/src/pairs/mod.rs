//! Sorts the pairs of near vectors that a search finds, within a memory budget.
//!
//! ```text
//!   threads of a pass ─► Pairs ─► a sort on flash, which keeps each pair once ─► pairs in order
//! ```
//!
//! The number of pairs of a vector is not limited, since each pair goes to the sort at once, and no heap keeps pairs.

mod links;

use std::sync::{Mutex, MutexGuard};

use inshore_sortreduce::rows::{FixedRows, KeepFirst, RowConfig, RowSort, SortedRows};
use inshore_store::{Job, Reservation};

use self::links::BlockLinks;
use crate::{Error, Metric, Result, heaps::Heaps, topk::Entry};

/// The size, in bytes, of the two ids by which rows are sorted. The ids are big-endian, so that the order of the bytes
/// is the order of the ids.
pub(crate) const IDS_BYTES: usize = 16;
/// Rows are passed to the sort after this number of bytes was collected. One read of the sort returns about as many
/// bytes.
pub(crate) const ROWS_BYTES: usize = 64 << 10;

pub(crate) type Sorter = RowSort<FixedRows, KeepFirst>;
pub(crate) type Sorted = SortedRows<FixedRows, KeepFirst>;

/// Creates a sort of rows that begin with two ids. If several rows have equal ids, the sort keeps one of them.
pub(crate) fn sorter(job: &Job, name: &'static str, row_bytes: usize, memory_bytes: u64) -> Result<Sorter> {
    let config = RowConfig { memory_bytes, threads: 1, name, ..RowConfig::default() };
    Ok(RowSort::new(job, FixedRows::new(row_bytes, 0..IDS_BYTES), KeepFirst, &config)?)
}

/// Appends two ids.
pub(crate) fn push_ids(out: &mut Vec<u8>, one: u64, other: u64) {
    out.extend_from_slice(&one.to_be_bytes());
    out.extend_from_slice(&other.to_be_bytes());
}

/// Calls `each` with the two ids of each row, and with the other bytes of the row.
///
/// # Errors
/// - Returns the errors of `each`.
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, or the job was cancelled.
pub(crate) fn each_row(
    sorted: &mut Sorted,
    row_bytes: usize,
    mut each: impl FnMut(u64, u64, &[u8]) -> Result<()>,
) -> Result<()> {
    let mut rows = Vec::with_capacity(ROWS_BYTES + row_bytes);
    loop {
        rows.clear();
        sorted.append(&mut rows, ROWS_BYTES)?;
        if rows.is_empty() {
            return Ok(());
        }
        for row in rows.chunks_exact(row_bytes) {
            let id = |at: usize| u64::from_be_bytes(row[at..at + 8].try_into().expect("eight bytes"));
            each(id(0), id(8), &row[IDS_BYTES..])?;
        }
    }
}

/// The contents of a row of the sort.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Form {
    /// A row has the smaller id, the larger id, and the distance as f32.
    Distances,
    /// A row has both ids. For each pair there are two rows, one for each order of the ids. The search for connected
    /// components needs this form.
    Links,
}

impl Form {
    pub fn row_bytes(self) -> usize {
        match self {
            Form::Distances => IDS_BYTES + 4,
            Form::Links => IDS_BYTES,
        }
    }
}

/// Collects pairs from all threads of a search.
pub(crate) struct Pairs {
    metric: Metric,
    form: Form,
    /// A key that no near pair exceeds.
    bound: f64,
    state: Mutex<State>,
    _reservation: Reservation,
}

struct State {
    sort: Sorter,
    rows: Vec<u8>,
    /// The first error of the sort. After an error all later pairs are dropped.
    failure: Option<Error>,
}

impl Pairs {
    /// Creates a sort with `sort_bytes` bytes of the budget, and reserves the memory of [`Pairs::bytes`] in addition.
    ///
    /// # Errors
    /// Returns [`Error::Store`] if the budget has too little free memory.
    pub fn new(job: &Job, form: Form, (metric, radius): (Metric, f64), sort_bytes: u64) -> Result<Pairs> {
        let reservation = job.budget().reserve(Pairs::bytes(), "pairs of vectors")?;
        let sort = sorter(job, "pairs", form.row_bytes(), sort_bytes)?;
        let rows = Vec::with_capacity(ROWS_BYTES + 2 * IDS_BYTES);
        let state = Mutex::new(State { sort, rows, failure: None });
        Ok(Pairs { metric, form, bound: metric.key_within(radius), state, _reservation: reservation })
    }

    /// Returns the memory of [`Pairs`], in bytes, without the memory of the sort.
    pub fn bytes() -> u64 {
        (ROWS_BYTES + 2 * IDS_BYTES) as u64 + BlockLinks::bytes()
    }

    /// Returns the receiver of the pairs of some queries. The queries are vectors of the searched dataset, and `ids`
    /// are their ids. If `only_larger` is true, a pair is dropped if the query has the larger of the two ids, because
    /// the search also finds the pair with the other vector as the query.
    pub fn of_queries<'a>(&'a self, ids: &'a [u64], only_larger: bool) -> PairsOfQueries<'a> {
        let links = (self.form == Form::Links).then(|| Mutex::new(BlockLinks::new(ids)));
        PairsOfQueries { pairs: self, ids, only_larger, links }
    }

    /// Ends the input, and returns the pairs in ascending order of their ids.
    ///
    /// # Errors
    /// Returns [`Error::Store`] if an I/O operation fails or the job was cancelled.
    pub fn finish(self) -> Result<Sorted> {
        let State { mut sort, rows, failure } = self.state.into_inner().expect("no panic under this lock");
        if let Some(error) = failure {
            return Err(error);
        }
        sort.write(&rows)?;
        Ok(sort.finish()?)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Returns the error of the sort, if there is one.
    fn check(&self) -> Result<()> {
        self.state().failure.take().map_or(Ok(()), Err)
    }

    fn add(&self, one: u64, other: u64, key: f64) {
        let (smaller, larger) = (one.min(other), one.max(other));
        let mut state = self.state();
        let State { sort, rows, failure } = &mut *state;
        push_ids(rows, smaller, larger);
        match self.form {
            Form::Distances => rows.extend_from_slice(&(self.metric.distance(key) as f32).to_le_bytes()),
            Form::Links => push_ids(rows, larger, smaller),
        }
        if rows.len() >= ROWS_BYTES {
            if failure.is_none() {
                *failure = sort.write(rows).err().map(Error::from);
            }
            rows.clear();
        }
    }
}

/// The receiver of the pairs of some queries. It takes the place of their heaps.
pub(crate) struct PairsOfQueries<'a> {
    pairs: &'a Pairs,
    ids: &'a [u64],
    only_larger: bool,
    /// The connected components of the queries, if the pairs are reduced to links.
    links: Option<Mutex<BlockLinks<'a>>>,
}

impl PairsOfQueries<'_> {
    /// Adds the links between queries of the block to the sort.
    ///
    /// # Errors
    /// Returns [`Error::Store`] if an I/O operation fails or the job was cancelled.
    pub fn finish(self) -> Result<()> {
        if let Some(links) = self.links {
            let links = links.into_inner().expect("no panic under this lock");
            links.each(|one, other| self.pairs.add(one, other, 0.0));
        }
        self.pairs.check()
    }
}

impl Heaps for PairsOfQueries<'_> {
    fn bound(&self, _query: usize) -> f64 {
        self.pairs.bound
    }

    fn push(&self, query: usize, entry: Entry) {
        let id = self.ids[query];
        if entry.id == id || (self.only_larger && entry.id < id) {
            return;
        }
        if let Some(links) = &self.links {
            let mut links = links.lock().expect("no panic under this lock");
            if !links.connect(query as u32, entry.id) {
                return;
            }
        }
        self.pairs.add(id, entry.id, entry.key);
    }

    fn check(&self) -> Result<()> {
        self.pairs.check()
    }
}
