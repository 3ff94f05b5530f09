//! A searcher keeps a dataset open, and in memory what all its searches need.
//!
//! ```text
//!   Searcher ─┬─ vectors and index, as they were when it was opened (a snapshot)
//!             ├─ the live rows, ids, center; directory and centroids of the index; all vectors, if that is wanted
//!             └─ slots ── begin ──► Call ── search, search_index ──► rows          a call that finds no slot waits
//! ```
//!
//! A *slot* is a share of the memory, so a call never fails because of another one. It keeps buffers from call to call.
//! A call gets all threads if no other call is running, and otherwise its share. [`search()`] and [`search_index`] are
//! the one call of a searcher that loads what this call needs.

use std::{
    sync::{Condvar, Mutex, MutexGuard, OnceLock},
    time::Duration,
};

use arrow_array::RecordBatch;
use inshore_store::{Cancel, CheckedFile, Job};

use crate::{
    Approximate, ApproximateSearched, Error, FoundInIndex, Result, Search, SearchIndex, Searched, Source,
    VectorFile, VectorIndex, Vectors,
    index::{LoadedLists, load_lists, search_in_lists},
    kept::Kept,
    lsh::search_lsh,
    search::{DatasetFacts, Means, plan_answer, search_with},
};

/// A call that waits for a slot checks its stop flag so often.
const TICK: Duration = Duration::from_millis(20);
/// A slot has at least so much memory if there are several: a pass with full blocks on each of two threads.
const SLOT_BYTES: u64 = 16 << 20;
/// The largest number of slots.
const SLOTS_MAX: usize = 64;
/// The memory that calls need beside vectors in memory.
const CALL_BYTES_MIN: u64 = 6 << 20;

/// The options of a [`Searcher`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SearcherOptions {
    /// Holds all vectors in memory: an exact search then runs at the speed of the memory. The lists of an index are held
    /// too if they take at most half of the memory that is left.
    pub in_memory: bool,
    /// The number of calls that run at once, each with an equal share of the memory; others wait. By default the number
    /// of threads, but each share is at least 16 MiB. With 1, a large batch of queries has all memory.
    pub calls: Option<usize>,
}

/// Answers searches of one dataset call after call, from any number of threads, without opening it again.
///
/// Calls see the dataset as it was when the searcher was opened, whatever other jobs change or remove meanwhile. The space
/// of what they remove is free for other data once the searcher is dropped.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use inshore_store::{Budget, Cancel, Store};
/// use inshore_vectors::{Search, Searcher, SearcherOptions, VectorFile, Vectors, import};
///
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("points.fbin");
/// # let words = [2u32.to_le_bytes(), 2u32.to_le_bytes()].concat();
/// # let values: Vec<u8> = [0.0f32, 0.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
/// # std::fs::write(&path, [words, values].concat())?;
/// let store = Store::open(folder.path().join("store"))?;
/// let job = store.job(Budget::new(24 << 20, 2), Cancel::default())?;
/// let points = VectorFile::open(&path)?;
/// import(&store, &job, "points", &points)?;
///
/// let options = SearcherOptions { in_memory: true, ..SearcherOptions::default() };
/// let searcher = Searcher::open(&job, Vectors::open(&store, "points")?, None, &options)?;
/// for _ in 0..3 {
///     let mut call = searcher.begin(&Cancel::default())?;
///     let found = call.search(&points, &Search { k: 1, ..Search::default() }, &mut |_rows| Ok(()))?;
///     assert_eq!(found.rows, 2);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Searcher {
    /// The job with the whole budget.
    job: Job,
    vectors: Vectors,
    index: Option<SearchIndex>,
    facts: OnceLock<DatasetFacts>,
    lists: LoadedLists,
    slots: Mutex<Vec<Slot>>,
    freed: Condvar,
    slot_count: usize,
    is_in_memory: bool,
}

/// The memory of a call.
struct Slot {
    job: Job,
    kept: Kept,
}

impl Searcher {
    /// Opens a searcher within the budget of `job`, and loads what calls share.
    ///
    /// The cost is one read of ids, directory and centroids; with [`SearcherOptions::in_memory`] also of all vectors.
    /// The centroids of lists and the checksums of lists stay in memory if each of them takes less than half of what is
    /// free then.
    ///
    /// # Errors
    /// Too little memory: for vectors in memory, the error names the size that is enough; I/O and damage; cancellation.
    pub fn open(
        job: &Job,
        vectors: Vectors,
        index: Option<SearchIndex>,
        options: &SearcherOptions,
    ) -> Result<Searcher> {
        let mut searcher = Searcher::new(job, vectors, index);
        if options.in_memory {
            searcher.hold()?;
        }
        let facts = searcher.facts(&searcher.job)?;
        if let Some(SearchIndex::Lists(index)) = &searcher.index {
            let query = zero_query(searcher.vectors.info().dimensions)?;
            let means = Means { job, threads: job.budget().threads(), kept: &mut Kept::Nothing };
            load_lists(&means, (&searcher.vectors, facts), (index, &searcher.lists), Source::File(&query))?;
        }
        searcher.make_slots(options.calls)?;
        Ok(searcher)
    }

    /// Returns a searcher for one call with the budget of `job`, which loads what the call needs.
    pub fn for_one_call(job: &Job, vectors: &Vectors, index: Option<&SearchIndex>) -> Searcher {
        Searcher::new(job, vectors.clone(), index.cloned())
    }

    fn new(job: &Job, vectors: Vectors, index: Option<SearchIndex>) -> Searcher {
        let slot = Slot { job: job.clone(), kept: Kept::Nothing };
        Searcher {
            job: job.clone(),
            vectors,
            index,
            facts: OnceLock::new(),
            lists: LoadedLists::default(),
            slots: Mutex::new(vec![slot]),
            freed: Condvar::new(),
            slot_count: 1,
            is_in_memory: false,
        }
    }

    /// Reads all vectors into memory, and the lists of the index if half of the memory that is left has room for them.
    fn hold(&mut self) -> Result<()> {
        let (job, budget) = (&self.job, self.job.budget());
        let name = &self.vectors.info().name;
        let others = DatasetFacts::bytes(self.vectors.info())
            + self.index.as_ref().map_or(0, SearchIndex::directory_bytes)
            + CALL_BYTES_MIN;
        let needed = CheckedFile::held_bytes(self.vectors.file.len()) + others;
        budget.need(needed, || format!("a search in {name}, held in memory,"))?;
        job.start_phase("reading vectors", "bytes", self.vectors.file.len());
        self.vectors.file = self.vectors.file.hold(job, |read| job.progress().add(read))?;
        if let Some(SearchIndex::Lists(index)) = &mut self.index {
            let lists = index.single_file();
            if CheckedFile::held_bytes(lists.len()) <= budget.free_bytes().saturating_sub(others) / 2 {
                job.start_phase("reading lists", "bytes", lists.len());
                *lists = lists.hold(job, |read| job.progress().add(read))?;
            }
        }
        self.is_in_memory = true;
        Ok(())
    }

    /// Divides the memory that is left among slots.
    fn make_slots(&mut self, calls: Option<usize>) -> Result<()> {
        let budget = self.job.budget();
        let wanted =
            calls.unwrap_or_else(|| budget.threads().min((budget.free_bytes() / SLOT_BYTES) as usize));
        self.slot_count = wanted.clamp(1, SLOTS_MAX);
        let bytes = budget.free_bytes() / self.slot_count as u64;
        let slots = (0..self.slot_count).map(|_| {
            let part = budget.part(bytes, budget.threads(), "a call of a searcher")?;
            Ok(Slot { job: self.job.within(part), kept: Kept::Nothing })
        });
        self.slots = Mutex::new(slots.collect::<Result<_>>()?);
        Ok(())
    }

    /// Returns the vectors.
    pub fn vectors(&self) -> &Vectors {
        &self.vectors
    }

    /// Returns the index, if the searcher was opened with one.
    pub fn index(&self) -> Option<&SearchIndex> {
        self.index.as_ref()
    }

    /// Returns the number of calls that can run at once.
    pub fn calls(&self) -> usize {
        self.slot_count
    }

    /// Tells whether all vectors are in memory.
    pub fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }

    /// Tells whether vectors and index are those of the searcher: no job has changed them since.
    pub fn is_of(&self, vectors: &Vectors, index: Option<&SearchIndex>) -> bool {
        let is_same_index = match (self.index(), index) {
            (None, None) => true,
            (Some(one), Some(other)) => one.is_same(other),
            _ => false,
        };
        (self.vectors.id(), self.vectors.info()) == (vectors.id(), vectors.info()) && is_same_index
    }

    fn facts(&self, job: &Job) -> Result<&DatasetFacts> {
        if self.facts.get().is_none() {
            // Another thread may have read them meanwhile.
            let _ = self.facts.set(DatasetFacts::read(job, &self.vectors)?);
        }
        Ok(self.facts.get().expect("just set"))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().expect("no panic under this lock")
    }

    /// Begins a call, which waits until one of the slots is free.
    ///
    /// # Errors
    /// Cancellation by `cancel`, which also ends the searches of the call.
    pub fn begin(&self, cancel: &Cancel) -> Result<Call<'_>> {
        let mut slots = self.lock();
        loop {
            let is_alone = slots.len() == self.slot_count;
            if let Some(slot) = slots.pop() {
                let all = self.job.budget().threads();
                let threads = if is_alone { all } else { (all / self.slot_count).max(1) };
                let job = slot.job.with_cancel(cancel.clone());
                return Ok(Call { searcher: self, job, kept: slot.kept, threads });
            }
            if cancel.is_cancelled() {
                return Err(inshore_store::Error::Cancelled.into());
            }
            slots = self.freed.wait_timeout(slots, TICK).expect("no panic under this lock").0;
        }
    }

    /// Returns the error of a call that has too little memory with sizes of the whole budget.
    fn error_of(&self, error: Error) -> Error {
        match error {
            Error::Store(inshore_store::Error::BudgetTooSmall { what, given, smallest })
                if self.slot_count > 1 || given != self.job.budget().memory_bytes() =>
            {
                let missing = smallest.saturating_sub(given).saturating_mul(self.slot_count as u64);
                let given = self.job.budget().memory_bytes();
                let smallest = given.saturating_add(missing);
                inshore_store::Error::BudgetTooSmall { what, given, smallest }.into()
            }
            error => error,
        }
    }
}

/// One call of a [`Searcher`], with a share of its memory until it is dropped. A call may search several times, one search
/// after the other.
pub struct Call<'a> {
    searcher: &'a Searcher,
    job: Job,
    kept: Kept,
    threads: usize,
}

impl Call<'_> {
    /// Returns the job of the call, for what belongs to it beside the search: its budget is that of the call.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Returns the searcher.
    pub fn searcher(&self) -> &Searcher {
        self.searcher
    }

    /// Gives back the memory that was kept from earlier calls, for work beside the search that needs much.
    pub fn free_kept(&mut self) {
        self.kept = Kept::Nothing;
    }

    /// Finds the nearest vectors of each query: the answer is that of [`search()`].
    ///
    /// # Errors
    /// The errors of [`search()`].
    pub fn search<'s>(
        &mut self,
        queries: impl Into<Source<'s>>,
        search: &Search,
        each: &mut dyn FnMut(RecordBatch) -> Result<()>,
    ) -> Result<Searched> {
        let (searcher, source) = (self.searcher, queries.into());
        self.find(&mut |means| {
            let vectors = &searcher.vectors;
            if searcher.facts.get().is_none() {
                // A search that cannot work is refused before anything is read.
                plan_answer(means, vectors.info(), source, search, DatasetFacts::bytes(vectors.info()))?;
            }
            let facts = searcher.facts(means.job)?;
            search_with(means, (vectors, facts), source, search, each)
        })
    }

    /// Finds near vectors of each query in the index. The answer is that of [`SearchIndex::search`].
    ///
    /// # Errors
    /// - Returns [`Error::NoIndex`] if the searcher has no index.
    /// - Returns the errors of [`SearchIndex::search`].
    pub fn search_index<'s>(
        &mut self,
        queries: impl Into<Source<'s>>,
        search: &Search,
        approximate: &Approximate,
        each: &mut dyn FnMut(RecordBatch) -> Result<()>,
    ) -> Result<FoundInIndex> {
        let (searcher, source) = (self.searcher, queries.into());
        let name = || searcher.vectors.info().name.clone();
        let index = searcher.index.as_ref().ok_or_else(|| Error::NoIndex { name: name() })?;
        self.find(&mut |means| {
            let vectors = (&searcher.vectors, searcher.facts(means.job)?);
            let options = (search, approximate);
            match index {
                SearchIndex::Lists(index) => {
                    let lists = (index, &searcher.lists);
                    search_in_lists(means, vectors, lists, source, options, each).map(FoundInIndex::Lists)
                }
                SearchIndex::Tables(index) => {
                    search_lsh(means, vectors, index, source, options, each).map(FoundInIndex::Tables)
                }
            }
        })
    }

    fn find<R>(&mut self, find: &mut dyn FnMut(&mut Means<'_>) -> Result<R>) -> Result<R> {
        let Call { job, threads, kept, .. } = self;
        find(&mut Means { job, threads: *threads, kept }).map_err(|error| self.searcher.error_of(error))
    }
}

impl Drop for Call<'_> {
    /// Frees the slot.
    fn drop(&mut self) {
        // The stop flag of the call ends with it.
        let job = self.job.with_cancel(self.searcher.job.cancel().clone());
        self.searcher.lock().push(Slot { job, kept: std::mem::take(&mut self.kept) });
        self.searcher.freed.notify_one();
    }
}

/// Returns a file of one query of zeros.
fn zero_query(dimensions: usize) -> Result<VectorFile> {
    let text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': (1, {dimensions}), }}\n");
    let header = [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat();
    VectorFile::in_memory("a query of zeros", [header, vec![0; dimensions]].concat())
}

impl SearchIndex {
    /// Finds near vectors of each query, and passes rows to `each`, in the order of the queries and ranks. Distances
    /// are exact.
    ///
    /// # Errors
    /// The errors of [`SearchIndex::check`]; a query with a value that is not finite, or that the elements of the
    /// vectors cannot hold; too little memory; I/O and damage; cancellation; the errors of `each`.
    pub fn search<'a>(
        &self,
        job: &Job,
        vectors: &Vectors,
        queries: impl Into<Source<'a>>,
        (search, approximate): (&Search, &Approximate),
        each: &mut dyn FnMut(RecordBatch) -> Result<()>,
    ) -> Result<FoundInIndex> {
        let searcher = Searcher::for_one_call(job, vectors, Some(self));
        searcher.begin(job.cancel())?.search_index(queries, search, approximate, each)
    }
}

/// Finds the nearest vectors of each query, and passes rows to `each`, in the order of the queries and ranks.
///
/// The cost is one read of all vectors for each pass, and one multiplication for each query, vector and dimension.
/// Memory: see [`crate::Plan`].
///
/// # Errors
/// The errors of [`crate::plan()`]; a query with a value that is not finite, or that the elements of the vectors cannot
/// hold; I/O and damage; cancellation; the errors of `each`.
pub fn search<'a>(
    job: &Job,
    vectors: &Vectors,
    queries: impl Into<Source<'a>>,
    search: &Search,
    each: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<Searched> {
    Searcher::for_one_call(job, vectors, None).begin(job.cancel())?.search(queries, search, each)
}

/// Finds near vectors of each query in the lists of an index, and passes rows to `each`, in the order of the queries and
/// ranks. Distances are exact.
///
/// # Errors
/// Bad options; an index for another metric; a query with a value that is not finite, or that the elements of the vectors
/// cannot hold; too little memory; I/O and damage; cancellation; the errors of `each`.
pub fn search_index<'a>(
    job: &Job,
    vectors: &Vectors,
    index: &VectorIndex,
    queries: impl Into<Source<'a>>,
    search: &Search,
    approximate: &Approximate,
    each: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<ApproximateSearched> {
    let index = SearchIndex::Lists(index.clone());
    match index.search(job, vectors, queries, (search, approximate), each)? {
        FoundInIndex::Lists(found) => Ok(found),
        FoundInIndex::Tables(_) => unreachable!("the index has lists"),
    }
}
