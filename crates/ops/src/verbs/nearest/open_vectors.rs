//! Keeps vectors open for many searches. Each search is a request of the operation `nearest query`.

use std::{
    sync::{Arc, Condvar, Mutex, MutexGuard},
    time::Duration,
};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use inshore_store::{Budget, Cancel, Job, Store};
use inshore_vectors::{
    self as vectors, AnswerColumns, Call, Element, Metric, RowSet, Search, SearchIndex, Searcher,
    SearcherOptions, Source, VectorFile, Vectors,
};
use serde::Serialize;

use super::{
    queries::for_elements,
    query::{Found, SearchVectors, answer},
};
use crate::{
    error::{Error, Result},
    operation::Operation,
};

/// The interval at which a call that waits for a refresh checks for cancellation. A refresh also checks at this
/// interval if searches are still running.
const TICK: Duration = Duration::from_millis(5);
/// The sets of selected vectors may take this fraction of the memory: one part of `SELECTIONS_SHARE` parts.
const SELECTIONS_SHARE: u64 = 16;
/// The largest number of sets of selected vectors that are kept.
const SELECTIONS_MAX: usize = 16;

/// Vectors of a store that stay open for searches from any number of threads.
///
/// Searches see a snapshot of the vectors and their index, from the time of [`OpenVectors::open`] or of the last
/// [`OpenVectors::refresh`]. The documentation of [`Searcher`] describes the memory and the threads of calls. The sets
/// of vectors that satisfy predicates are kept for later searches. These sets take at most a sixteenth of the memory.
pub struct OpenVectors {
    store: Store,
    name: String,
    options: OpenOptions,
    state: Mutex<State>,
    changed: Condvar,
}

/// The options of [`OpenVectors::open`].
#[derive(Clone, Copy, Debug)]
pub struct OpenOptions {
    /// The memory in bytes.
    pub memory_bytes: u64,
    /// The number of worker threads.
    pub threads: usize,
    /// The options of the searcher, which state the data in memory and the number of concurrent calls.
    pub searcher: SearcherOptions,
}

enum State {
    Open(Arc<Opened>),
    /// A refresh is replacing the snapshot.
    Changing,
    Closed,
}

/// A snapshot of the vectors, with the data that searches keep in memory.
struct Opened {
    searcher: Searcher,
    /// The error of an index that cannot be opened.
    index_error: Option<vectors::Error>,
    selections: Selections,
}

/// The neighbours that a search found.
#[derive(Debug)]
pub struct Neighbours {
    /// The statistics of the search.
    pub found: Found,
    /// The columns of the rows.
    pub schema: SchemaRef,
    /// The rows, in the order of the queries and then of the ranks.
    pub rows: Vec<RecordBatch>,
}

/// The properties of open vectors.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OpenInfo {
    /// The name of the vectors.
    pub name: String,
    /// The number of vectors that were not removed.
    pub vectors: u64,
    /// The number of dimensions of a vector.
    pub dimensions: usize,
    /// The element type of the vectors.
    pub element: Element,
    /// The metric of the index. `None` if the vectors have no index that can be opened.
    pub index: Option<Metric>,
    /// True if all vectors are in memory.
    pub in_memory: bool,
    /// The largest number of concurrent calls.
    pub calls: usize,
}

impl OpenVectors {
    /// Opens the vectors `name` of a store.
    ///
    /// # Errors
    /// Returns the errors of [`Vectors::open`] and of [`Searcher::open`]. An index that is damaged, or was built from
    /// other vectors, causes no error here. The error is returned by each search in the index.
    pub fn open(store: &Store, name: &str, options: OpenOptions, cancel: &Cancel) -> Result<OpenVectors> {
        let (store, name) = (store.clone(), name.to_string());
        let opened = Opened::of(&store, find(&store, &name)?, &options, cancel)?;
        let state = Mutex::new(State::Open(Arc::new(opened)));
        Ok(OpenVectors { store, name, options, state, changed: Condvar::new() })
    }

    /// Finds the nearest vectors of each query, as the operation `nearest query` does. Several threads may search
    /// concurrently. A search waits if the largest number of concurrent calls is running. `cancel` cancels the search
    /// or the wait.
    ///
    /// # Errors
    /// - Returns the errors of the operation [`SearchVectors`].
    /// - Returns [`Error::Request`] if the request names other vectors or asks for queries that are lines.
    /// - Returns [`vectors::Error::BadOption`] if the vectors are closed.
    pub fn search(
        &self,
        request: &SearchVectors,
        queries: VectorFile,
        cancel: &Cancel,
    ) -> Result<Neighbours> {
        request.check_options(SearchVectors::NAME, None)?;
        let refused = match request.lines {
            true => Some("lines: found true, expected queries that are vectors".to_string()),
            false if request.dataset != self.name => {
                Some(format!("dataset: found {:?}, expected {:?}, which is open", request.dataset, self.name))
            }
            false => None,
        };
        match refused {
            None => self.opened(cancel)?.search(request, queries, cancel),
            Some(what) => Err(Error::Request { operation: SearchVectors::NAME, what }),
        }
    }

    /// Returns the properties of the snapshot that searches see.
    ///
    /// # Errors
    /// - Returns [`vectors::Error::BadOption`] if the vectors are closed.
    /// - Returns [`inshore_store::Error::Cancelled`] if `cancel` was cancelled.
    pub fn info(&self, cancel: &Cancel) -> Result<OpenInfo> {
        let opened = self.opened(cancel)?;
        let (searcher, info) = (&opened.searcher, opened.searcher.vectors().info());
        Ok(OpenInfo {
            name: self.name.clone(),
            vectors: info.live(),
            dimensions: info.dimensions,
            element: info.element,
            index: searcher.index().map(SearchIndex::metric),
            in_memory: searcher.is_in_memory(),
            calls: searcher.calls(),
        })
    }

    /// Opens the vectors again if the vectors or their index have changed. Returns true if they have changed. The
    /// refresh waits for running searches, and later searches wait for the refresh.
    ///
    /// # Errors
    /// - Returns the errors of [`Vectors::open`], for example if the vectors were removed. Searches then continue to
    ///   use the old snapshot.
    /// - Returns the errors of [`Searcher::open`]. The vectors are closed after such an error.
    /// - Returns [`vectors::Error::BadOption`] if the vectors are closed.
    /// - Returns [`inshore_store::Error::Cancelled`] if `cancel` was cancelled.
    pub fn refresh(&self, cancel: &Cancel) -> Result<bool> {
        let found = find(&self.store, &self.name)?;
        if self.opened(cancel)?.searcher.is_of(&found.vectors, found.index.as_ref()) {
            return Ok(false);
        }
        let opened = self.take_alone(cancel)?;
        // The new snapshot needs the memory of the old snapshot.
        drop(opened);
        match Opened::of(&self.store, found, &self.options, cancel) {
            Ok(opened) => {
                self.set(State::Open(Arc::new(opened)));
                Ok(true)
            }
            Err(error) => {
                self.set(State::Closed);
                Err(error)
            }
        }
    }

    /// Closes the vectors. Running searches continue to their end. The memory becomes free when the last of these
    /// searches has ended.
    pub fn close(&self) {
        let mut state = self.lock();
        while let State::Changing = *state {
            state = self.changed.wait(state).expect("no panic under this lock");
        }
        let old = std::mem::replace(&mut *state, State::Closed);
        drop(state);
        // The snapshot is dropped without the lock, since the release of much memory takes time.
        drop(old);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic under this lock")
    }

    fn set(&self, new: State) {
        *self.lock() = new;
        self.changed.notify_all();
    }

    /// Waits until no refresh is running. Returns the locked state.
    fn settled(&self, cancel: &Cancel) -> Result<MutexGuard<'_, State>> {
        let mut state = self.lock();
        while let State::Changing = *state {
            check(cancel)?;
            state = self.changed.wait_timeout(state, TICK).expect("no panic under this lock").0;
        }
        Ok(state)
    }

    fn opened(&self, cancel: &Cancel) -> Result<Arc<Opened>> {
        match &*self.settled(cancel)? {
            State::Open(opened) => Ok(opened.clone()),
            _ => Err(self.closed()),
        }
    }

    /// Waits until no search uses the snapshot, and then returns the snapshot. Other calls wait from the beginning of
    /// this wait.
    fn take_alone(&self, cancel: &Cancel) -> Result<Opened> {
        let mut state = self.settled(cancel)?;
        let mut opened = match std::mem::replace(&mut *state, State::Changing) {
            State::Open(opened) => opened,
            other => {
                *state = other;
                return Err(self.closed());
            }
        };
        drop(state);
        loop {
            opened = match Arc::try_unwrap(opened) {
                Ok(opened) => return Ok(opened),
                Err(opened) => opened,
            };
            if let Err(error) = check(cancel) {
                self.set(State::Open(opened));
                return Err(error);
            }
            std::thread::sleep(TICK);
        }
    }

    fn closed(&self) -> Error {
        vectors::Error::BadOption {
            option: "the searcher",
            found: "closed".to_string(),
            expected: format!("an open one: open the vectors {} again", self.name),
        }
        .into()
    }
}

/// Vectors and their index in the store.
struct FoundVectors {
    vectors: Vectors,
    index: Option<SearchIndex>,
    index_error: Option<vectors::Error>,
}

fn find(store: &Store, name: &str) -> Result<FoundVectors> {
    let vectors = Vectors::open(store, name)?;
    let (index, index_error) = match SearchIndex::open(store, &vectors) {
        Ok(index) => (index, None),
        Err(error @ vectors::Error::BadDataset { .. }) => (None, Some(error)),
        Err(error) => return Err(error.into()),
    };
    Ok(FoundVectors { vectors, index, index_error })
}

fn check(cancel: &Cancel) -> Result<()> {
    if cancel.is_cancelled() { Err(inshore_store::Error::Cancelled.into()) } else { Ok(()) }
}

impl Opened {
    fn of(store: &Store, found: FoundVectors, options: &OpenOptions, cancel: &Cancel) -> Result<Opened> {
        let FoundVectors { vectors, index, index_error } = found;
        let job = store.job(Budget::new(options.memory_bytes, options.threads), cancel.clone())?;
        let selections = Selections::new(&job, &vectors)?;
        let searcher = Searcher::open(&job, vectors, index, &options.searcher)?;
        Ok(Opened { searcher, index_error, selections })
    }

    fn search(&self, request: &SearchVectors, queries: VectorFile, cancel: &Cancel) -> Result<Neighbours> {
        let vectors = self.searcher.vectors();
        let queries = for_elements(queries, vectors.info().element)?;
        let mut call = self.searcher.begin(cancel)?;
        let job = call.job().clone();
        let selection = match &request.predicate {
            None => None,
            Some(predicate) => match self.selections.get(predicate) {
                Some(kept) => Some(kept),
                None => {
                    call.free_kept();
                    let made =
                        request.selection(&job, vectors).map_err(|error| whole_budget(&call, error))?;
                    let made = made.map(Arc::new);
                    made.map(|made| self.selections.keep(predicate, made)).transpose()?
                }
            },
        };
        let open = || match &self.index_error {
            Some(error) => Err(again(error).into()),
            None => Ok(self.searcher.index()),
        };
        let approximate = request.approximate_in(open, selection.as_deref())?.map(|index| index.1);
        let mut columns = AnswerColumns::open(&job, vectors, &request.select)?;
        let schema = columns.as_ref().map_or_else(vectors::schema, |columns| columns.schema().clone());
        let (mut rows, options) = (Vec::new(), Search { selection, ..request.options() });
        let mut give = |batch| {
            rows.push(batch);
            Ok(())
        };
        let options = (&options, approximate.as_ref());
        let found = answer(&mut call, Source::File(&queries), options, &mut columns, &mut give)?;
        Ok(Neighbours { found, schema, rows })
    }
}

/// Converts an error of the selection within a call. If the share of the call has too little memory, the converted error
/// states the sizes of the whole budget.
fn whole_budget(call: &Call<'_>, error: Error) -> Error {
    match error {
        Error::Store(error) => call.whole_budget(error).into(),
        #[cfg(feature = "sql")]
        Error::Sql(inshore_sql::Error::Store(error)) => call.whole_budget(error).into(),
        error => error,
    }
}

/// Returns a copy of an error, which each search in the index returns.
fn again(error: &vectors::Error) -> vectors::Error {
    match error {
        vectors::Error::BadDataset { name, what, found, expected } => {
            let (name, found, expected) = (name.clone(), found.clone(), expected.clone());
            vectors::Error::BadDataset { name, what, found, expected }
        }
        other => vectors::Error::Rows(other.to_string().into()),
    }
}

/// A cache of the sets of vectors that satisfy predicates. The cache evicts the least recently used set first.
struct Selections {
    /// The part of the memory that the cache may use.
    budget: Budget,
    /// The text of each predicate and its set. The most recently used set is the last one.
    kept: Mutex<Vec<(String, Arc<RowSet>)>>,
}

impl Selections {
    /// Creates an empty cache. The cache reserves memory only if the vectors have columns and a set fits into the
    /// cache.
    fn new(job: &Job, vectors: &Vectors) -> Result<Selections> {
        let each = RowSet::bytes(vectors.info().vectors);
        let most = job.budget().memory_bytes() / SELECTIONS_SHARE;
        let bytes = match vectors::columns_input(job, vectors) {
            Ok(_) if each <= most => most.min(each * SELECTIONS_MAX as u64),
            _ => 0,
        };
        let budget = job.budget().part(bytes, 1, "sets of vectors")?;
        Ok(Selections { budget, kept: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<(String, Arc<RowSet>)>> {
        self.kept.lock().expect("no panic under this lock")
    }

    fn get(&self, predicate: &str) -> Option<Arc<RowSet>> {
        let mut kept = self.lock();
        let place = kept.iter().position(|(text, _)| text == predicate)?;
        let found = kept.remove(place);
        let set = found.1.clone();
        kept.push(found);
        Some(set)
    }

    /// Adds a copy of a set to the cache, and evicts other sets if necessary. Returns the copy, or `set` if the copy
    /// does not fit into the cache.
    fn keep(&self, predicate: &str, set: Arc<RowSet>) -> Result<Arc<RowSet>> {
        let bytes = RowSet::bytes(set.len());
        if bytes > self.budget.memory_bytes() {
            return Ok(set);
        }
        let mut kept = self.lock();
        while !kept.is_empty() && (self.budget.free_bytes() < bytes || kept.len() >= SELECTIONS_MAX) {
            kept.remove(0);
        }
        // The copy may still fail, since another search may use an evicted set and thus its memory.
        let Ok(copy) = set.copied(&self.budget) else { return Ok(set) };
        let copy = Arc::new(copy);
        kept.push((predicate.to_string(), copy.clone()));
        Ok(copy)
    }
}

#[cfg(all(test, feature = "sql"))]
mod tests {
    use std::sync::Arc;

    use arrow_array::{ArrayRef, FixedSizeListArray, Int32Array, UInt8Array};
    use arrow_schema::{DataType, Field};
    use inshore_tables::Input;
    use inshore_vectors::{TableColumns, import_table};
    use parquet::arrow::ArrowWriter;

    use super::*;

    /// Returns a store with the vectors `points`, which have a column `year`.
    fn store_of_points(folder: &std::path::Path) -> Store {
        let item = Arc::new(Field::new("item", DataType::UInt8, false));
        let values = UInt8Array::from_iter_values(0..200);
        let columns: [(&str, ArrayRef); 2] = [
            ("embedding", Arc::new(FixedSizeListArray::new(item, 2, Arc::new(values), None))),
            ("year", Arc::new(Int32Array::from_iter_values(1950..2050))),
        ];
        let batch = RecordBatch::try_from_iter(columns).unwrap();
        let path = folder.join("points.parquet");
        let file = std::fs::File::create(&path).unwrap();
        let mut writer = ArrowWriter::try_new(file, batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.close().unwrap();
        let store = Store::open(folder.join("store")).unwrap();
        let job = store.job(Budget::new(32 << 20, 1), Cancel::default()).unwrap();
        import_table(&store, &job, "points", &Input::new(path), &TableColumns::default()).unwrap();
        store
    }

    /// Searches with a predicate in a budget.
    fn search(store: &Store, memory_bytes: u64, (threads, calls): (usize, Option<usize>)) -> Result<u64> {
        let request = serde_json::json!({ "dataset": "points", "k": 3, "where": "year >= 2000" });
        let request: SearchVectors = serde_json::from_value(request).unwrap();
        let searcher = SearcherOptions { calls, ..SearcherOptions::default() };
        let options = OpenOptions { memory_bytes, threads, searcher };
        let open = OpenVectors::open(store, "points", options, &Cancel::default())?;
        let header =
            b"\x93NUMPY\x01\x00\x3a\x00{'descr': '|u1', 'fortran_order': False, 'shape': (1, 2)}\n\x07\x07";
        let queries = VectorFile::in_memory("queries", header.to_vec()).unwrap();
        let found = open.search(&request, queries, &Cancel::default())?;
        assert_eq!(found.found.rows(), 3);
        Ok(found.rows[0].num_rows() as u64)
    }

    /// A call needs 24 MiB for the query over the columns.
    #[test]
    fn a_predicate_in_too_small_a_budget_is_refused_with_a_whole_budget_that_is_enough() {
        let folder = tempfile::tempdir().unwrap();
        let store = store_of_points(folder.path());
        for (memory_bytes, threads, calls) in
            [(24 << 20, 2, None), (33 << 20, 2, None), (33 << 20, 3, None), (40 << 20, 1, Some(4))]
        {
            let error = search(&store, memory_bytes, (threads, calls)).unwrap_err();
            let Error::Store(inshore_store::Error::BudgetTooSmall { given, smallest, .. }) = error else {
                panic!("{error:?}");
            };
            assert_eq!(given, memory_bytes);
            assert!(smallest > given && smallest < 6 * given, "{smallest}");
            assert_eq!(search(&store, smallest, (threads, calls)).unwrap(), 3);
        }
    }
}
