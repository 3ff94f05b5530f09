//! Defines the searcher, which keeps a dataset open between searches. A searcher also keeps in memory the data that all
//! searches of the dataset need.
//!
//! ```text
//!   Searcher ─┬─ vectors and index: a snapshot from when the searcher was opened
//!             ├─ live rows, ids, center; directory and centroids of the index; all vectors if `in_memory` is set
//!             └─ slots ── begin ──► Call ── search, search_index ──► rows          a call waits until a slot is free
//! ```
//!
//! - A *call* is a use of the searcher by one thread of the caller. A call may run several searches in sequence.
//! - A *slot* is an equal share of the free memory. Each call holds one slot, so a call never fails because of the
//!   memory of another call. A slot keeps its buffers from call to call.
//!
//! A call uses all worker threads if no other call is running. Otherwise the call uses an equal share of the threads.
//! [`search()`] and [`search_index`] create a searcher for one call, which loads only the data that this call needs.

use std::sync::OnceLock;

use arrow_array::RecordBatch;
use inshore_store::{Cancel, CheckedFile, Job};

use crate::{
    Approximate, ApproximateSearched, Error, FoundInIndex, Result, Search, SearchIndex, Searched, Source,
    VectorFile, VectorIndex, Vectors,
    index::{LoadedLists, load_lists, search_in_lists},
    kept::Kept,
    lsh::search_lsh,
    search::{DatasetFacts, Means, plan_answer, search_with},
    slots::Slots,
};

/// The smallest memory of a slot in bytes, if the default number of slots is greater than one. A pass with full blocks
/// on two threads fits into this memory.
const SLOT_BYTES: u64 = 16 << 20;
/// The largest number of slots.
const SLOTS_MAX: usize = 64;
/// The number of bytes that must stay free for calls if all vectors are in memory.
const CALL_BYTES_MIN: u64 = 6 << 20;

/// The options of a [`Searcher`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SearcherOptions {
    /// Holds all vectors in memory. The memory bandwidth then limits an exact search, and flash does not. The inverted
    /// lists of an index are also held in memory if they take at most half of the memory that is left. The default is
    /// false.
    pub in_memory: bool,
    /// The largest number of concurrent calls. Each call has an equal share of the memory, and further calls wait. The
    /// default is the number of threads, or fewer if a share would be smaller than 16 MiB. If the number is 1, a large
    /// batch of queries can use all memory.
    pub calls: Option<usize>,
}

/// A searcher answers searches of one dataset without opening the dataset for each search. Any number of threads may
/// use a searcher concurrently.
///
/// Calls see a snapshot of the dataset from the time when the searcher was opened. Other jobs may change or remove the
/// dataset meanwhile. The flash space of removed data becomes free after the searcher is dropped.
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
    /// The job whose budget contains the memory of all slots.
    job: Job,
    vectors: Vectors,
    index: Option<SearchIndex>,
    facts: OnceLock<DatasetFacts>,
    lists: LoadedLists,
    slots: Slots<Slot>,
    /// The number of slots that the user asked for.
    calls: Option<usize>,
    is_in_memory: bool,
}

/// A slot: the share of the memory that one call uses.
struct Slot {
    job: Job,
    kept: Kept,
}

impl Searcher {
    /// Opens a searcher within the budget of `job`, and loads the data that all calls share.
    ///
    /// The cost is one read of the ids, the directory and the centroids. If [`SearcherOptions::in_memory`] is set, all
    /// vectors are read too. The centroids of lists stay in memory if they take less than half of the free memory. The
    /// same rule applies to the checksums of lists.
    ///
    /// # Errors
    /// - Returns [`Error::BadDataset`] if the dataset or the index is damaged.
    /// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
    ///   memory, or the job was cancelled. If the memory is too small for vectors in memory, the message states a size
    ///   that is enough.
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

    /// Returns a searcher for one call. The call has the whole budget of `job`, and loads the data that it needs.
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
            slots: Slots::new(vec![slot]),
            calls: None,
            is_in_memory: false,
        }
    }

    /// Reads all vectors into memory. Also reads the lists of the index if they take at most half of the memory that is
    /// left.
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

    /// Divides the free memory into slots. `calls` is the number of slots, or `None` for the default number.
    fn make_slots(&mut self, calls: Option<usize>) -> Result<()> {
        let budget = self.job.budget();
        let count = slots_of(calls, budget.threads(), budget.free_bytes());
        let bytes = budget.free_bytes() / count as u64;
        let slots = (0..count).map(|_| {
            let part = budget.part(bytes, budget.threads(), "a call of a searcher")?;
            Ok(Slot { job: self.job.within(part), kept: Kept::Nothing })
        });
        self.slots = Slots::new(slots.collect::<Result<_>>()?);
        self.calls = calls;
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

    /// Returns the largest number of concurrent calls.
    pub fn calls(&self) -> usize {
        self.slots.count()
    }

    /// Returns true if all vectors are in memory.
    pub fn is_in_memory(&self) -> bool {
        self.is_in_memory
    }

    /// Returns true if `vectors` and `index` are those of the searcher and no job has changed them since the searcher
    /// was opened.
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
            // Another thread may have set the facts meanwhile. Both threads have read the same facts.
            let _ = self.facts.set(DatasetFacts::read(job, &self.vectors)?);
        }
        Ok(self.facts.get().expect("just set"))
    }

    /// Begins a call. Waits until a slot is free. Calls that wait begin in the order in which they came. `cancel` also
    /// cancels the searches of the call.
    ///
    /// # Errors
    /// Returns [`Error::Store`] if `cancel` was cancelled during the wait.
    pub fn begin(&self, cancel: &Cancel) -> Result<Call<'_>> {
        let (slot, is_alone) = self.slots.take(cancel).ok_or(inshore_store::Error::Cancelled)?;
        let all = self.job.budget().threads();
        let threads = if is_alone { all } else { (all / self.slots.count()).max(1) };
        let job = slot.job.with_cancel(cancel.clone());
        Ok(Call { searcher: self, job, kept: slot.kept, threads })
    }

    /// Converts an error of a call. If a slot has too little memory, the converted error states the sizes of the whole
    /// budget, since users set this budget and not the size of a slot.
    fn error_of(&self, error: inshore_store::Error) -> inshore_store::Error {
        match error {
            inshore_store::Error::BudgetTooSmall { what, given: slot_bytes, smallest }
                if self.slots.count() > 1 || slot_bytes != self.job.budget().memory_bytes() =>
            {
                let budget = self.job.budget();
                let given = budget.memory_bytes();
                let others = given.saturating_sub(slot_bytes.saturating_mul(self.slots.count() as u64));
                let slots = |free| slots_of(self.calls, budget.threads(), free);
                let smallest = enough_for_slots((given, others), smallest, slots);
                inshore_store::Error::BudgetTooSmall { what, given, smallest }
            }
            error => error,
        }
    }
}

/// A call of a [`Searcher`]. The call holds a share of the searcher's memory until the call is dropped. A call may run
/// several searches in sequence.
pub struct Call<'a> {
    searcher: &'a Searcher,
    job: Job,
    kept: Kept,
    threads: usize,
}

impl Call<'_> {
    /// Returns the job of the call. Its budget is the share of the call. Callers use this job for work other than the
    /// search, such as reading the queries.
    pub fn job(&self) -> &Job {
        &self.job
    }

    /// Returns the searcher.
    pub fn searcher(&self) -> &Searcher {
        self.searcher
    }

    /// Frees the buffers that the slot kept from earlier calls. Callers use this method before other work that needs
    /// much memory.
    pub fn free_kept(&mut self) {
        self.kept = Kept::Nothing;
    }

    /// Converts an error of work within [`Call::job`]. If the share of the call has too little memory, the converted
    /// error states the sizes of the whole budget of the searcher. Searches convert their errors themselves.
    pub fn whole_budget(&self, error: inshore_store::Error) -> inshore_store::Error {
        self.searcher.error_of(error)
    }

    /// Finds the nearest vectors of each query. The answer is the same as that of [`search()`].
    ///
    /// # Errors
    /// Returns the errors of [`search()`].
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
                // A search that needs more memory than the budget has is refused before the facts are read.
                plan_answer(means, vectors.info(), source, search, DatasetFacts::bytes(vectors.info()))?;
            }
            let facts = searcher.facts(means.job)?;
            search_with(means, (vectors, facts), source, search, each)
        })
    }

    /// Finds near vectors of each query in the index. The answer is the same as that of [`SearchIndex::search`].
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
        find(&mut Means { job, threads: *threads, kept }).map_err(|error| match error {
            Error::Store(error) => self.searcher.error_of(error).into(),
            error => error,
        })
    }
}

impl Drop for Call<'_> {
    /// Returns the slot to the searcher.
    fn drop(&mut self) {
        // The next call of the slot has its own stop flag, so the slot must not keep the flag of this call.
        let job = self.job.with_cancel(self.searcher.job.cancel().clone());
        self.searcher.slots.give(Slot { job, kept: std::mem::take(&mut self.kept) });
    }
}

/// Returns the number of slots. `calls` is the number that the user asked for, or `None` for the default number.
fn slots_of(calls: Option<usize>, threads: usize, free_bytes: u64) -> usize {
    calls.unwrap_or_else(|| threads.min((free_bytes / SLOT_BYTES) as usize)).clamp(1, SLOTS_MAX)
}

/// Returns a size of the whole budget with which each slot has at least `slot_bytes` bytes. The size is larger than
/// `given` and a multiple of 1 MiB. `others` is the part of the budget `given` that slots do not have. `slots` returns
/// the number of slots that share so many bytes.
fn enough_for_slots((given, others): (u64, u64), slot_bytes: u64, slots: impl Fn(u64) -> usize) -> u64 {
    let budget_of = |count: u64| {
        // The caller of a searcher may keep up to a sixteenth of the budget.
        let grown = slot_bytes.saturating_mul(count).saturating_add(others).saturating_sub(given);
        given.saturating_add(grown).saturating_add(grown / 15).div_ceil(1 << 20).saturating_mul(1 << 20)
    };
    let is_enough = |budget: &u64| {
        let free = budget.saturating_sub(others).saturating_sub(budget.saturating_sub(given) / 16);
        *budget > given && free / slots(free) as u64 >= slot_bytes
    };
    // A larger budget may have more slots by default. With the largest number of slots, more memory is always enough.
    let most = SLOTS_MAX as u64;
    (1..most).map(budget_of).find(is_enough).unwrap_or_else(|| budget_of(most))
}

/// Returns a file in memory that contains one query of zeros.
fn zero_query(dimensions: usize) -> Result<VectorFile> {
    let text = format!("{{'descr': '|u1', 'fortran_order': False, 'shape': (1, {dimensions}), }}\n");
    let header = [b"\x93NUMPY\x01\x00", &(text.len() as u16).to_le_bytes()[..], text.as_bytes()].concat();
    VectorFile::in_memory("a query of zeros", [header, vec![0; dimensions]].concat())
}

impl SearchIndex {
    /// Finds near vectors of each query in the index. `each` receives the rows of the answer, sorted by query and rank.
    /// Distances are exact.
    ///
    /// # Errors
    /// - Returns the errors of [`SearchIndex::check`].
    /// - Returns [`Error::BadFile`] if a query has a value that is not finite, or that the elements of the vectors
    ///   cannot hold.
    /// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
    ///   memory, or the job was cancelled.
    /// - Returns the errors of `each`.
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
/// [`crate::Plan`] states the memory.
///
/// # Errors
/// - Returns the errors of [`crate::plan()`] and of `each`.
/// - Returns [`Error::BadFile`] if a query has a value that is not finite, or that the element type of the vectors
///   cannot represent.
/// - Returns [`Error::BadDataset`] if the dataset is damaged.
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
///   memory, or the job was cancelled.
pub fn search<'a>(
    job: &Job,
    vectors: &Vectors,
    queries: impl Into<Source<'a>>,
    search: &Search,
    each: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<Searched> {
    Searcher::for_one_call(job, vectors, None).begin(job.cancel())?.search(queries, search, each)
}

/// Finds near vectors of each query in the inverted lists of an index. Passes the rows of the answer to `each`, in the
/// order of the queries and then of the ranks. Distances are exact.
///
/// # Errors
/// - Returns the errors of [`crate::check_index_search`] and of `each`.
/// - Returns [`Error::BadFile`] if a query has a value that is not finite, or that the element type of the vectors
///   cannot represent.
/// - Returns [`Error::BadDataset`] if the dataset or the index is damaged.
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
///   memory, or the job was cancelled.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_that_is_enough_is_enough_for_the_slots_of_that_size() {
        const MIB: u64 = 1 << 20;
        // The cases state the number of calls, the threads, the given budget in MiB, the needed bytes of a slot, and the
        // budget that is enough in MiB.
        let cases = [
            (None, 2, 24, 24 * MIB, 25),
            // With 33 MiB, two calls have 16 MiB each.
            (None, 2, 33, 24 * MIB, 50),
            // With 50 MiB, three threads would have three calls.
            (None, 3, 33, 24 * MIB, 75),
            (None, 1, 20, 24 * MIB, 25),
            (Some(4), 2, 40, 24 * MIB, 100),
            (None, 64, 33, 100 * MIB, 6_825),
        ];
        for (calls, threads, given, slot_bytes, expected) in cases {
            let (given, others) = (given * MIB, 100 << 10);
            let slots = |free| slots_of(calls, threads, free);
            let enough = enough_for_slots((given, others), slot_bytes, slots);
            assert_eq!(enough, expected * MIB, "{calls:?} {threads} {given}");
            let free = enough - others - (enough - given) / 16;
            assert!(free / slots(free) as u64 >= slot_bytes);
        }
    }
}
