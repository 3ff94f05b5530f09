//! Answers queries from an index.
//!
//! ```text
//!   queries ─► packed ─► nearest lists of each ─┬─ single: a query ─► its lists, in flight ─► tiles ─► k nearest
//!                                               └─ batch: (list, query), sorted ─► list ─► tiles ─► k nearest of all
//! ```
//!
//! A query probes its nearest lists. If these lists have fewer than k vectors, the query probes further lists until
//! they have k vectors. The directory states how many vectors each list has, so the probed lists are known before any
//! list is read. Copies do not count, because each vector is the own vector of exactly one list. [`super::selected`]
//! describes searches among selected vectors.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use arrow_array::RecordBatch;
use inshore_store::{CheckedFile, Job};
use serde::Serialize;

use super::{
    Clustered,
    centroids::Finder,
    codes::{CodeScratch, ProbedList},
    compare::{Comparer, Members, Packed, Space},
    dataset::VectorIndex,
    info::CodedLists,
    loaded::{Lists, LoadedLists},
    parts::{Part, Piece},
    plan::{
        CodesInPlan, DEPTH, Estimates, FOUND_AT_ONCE, Held, ReadBySingle, Strategy, StrategyPlan,
        joined_bytes, span_bytes,
    },
    ranges::BUFFERS,
    recall::pack_next,
    round::{Near, Round, Selected},
    selected::probes_among,
    single::Worker,
    table::RecallTable,
    tail::compare_tail,
};
use crate::{
    Element, Error, Result, Search, Vectors, VectorsInfo,
    heaps::Tops,
    kept::Kept,
    pairs::{Pairs, PairsOfQueries},
    search::{AnswerRows, BATCH_ROWS, DatasetFacts, Means, QueryRows, Source, check_dimensions, new_tops},
    tiles::Instructions,
    topk::TopK,
};

/// The number of vectors that are estimated from codes in the time in which one vector is compared. It is a rate for
/// the choice between the strategies.
const CODES_AT_ONCE: f64 = 8.0;
/// The number of vectors that a query by codes is expected to measure.
const MEASURED_EXPECTED: f64 = 100.0;

/// The options of an approximate search.
#[derive(Clone, Debug, PartialEq)]
pub struct Approximate {
    /// The recall that a search is expected to reach according to the index's table of recall, between 0 and 1.
    pub recall: f64,
    /// The number of lists that each query probes. If the number is given, `recall` is ignored.
    pub probes: Option<u64>,
    /// The strategy. `None` chooses the strategy with the smaller estimated time.
    pub strategy: Option<Strategy>,
}

impl Default for Approximate {
    /// Returns the options for a recall of 0.95.
    fn default() -> Approximate {
        Approximate { recall: 0.95, probes: None, strategy: None }
    }
}

impl Approximate {
    /// Checks the options.
    ///
    /// # Errors
    /// Returns [`Error::BadOption`] if an option is out of range.
    pub fn check(&self) -> Result<()> {
        let bad = |option, found: String, expected: &str| {
            Err(Error::BadOption { option, found, expected: expected.to_string() })
        };
        match self.probes {
            Some(0) => bad("probes", "0".to_string(), "at least 1"),
            None if !(self.recall > 0.0 && self.recall <= 1.0) => {
                bad("recall", self.recall.to_string(), "above 0, and at most 1")
            }
            _ => Ok(()),
        }
    }
}

/// The statistics of an approximate search.
#[derive(Clone, Debug, Serialize)]
pub struct ApproximateSearched {
    /// The number of queries.
    pub queries: u64,
    /// The number of vectors that were not removed.
    pub vectors: u64,
    /// The number of dimensions of a vector.
    pub dimensions: usize,
    /// The element type of the vectors.
    pub element: Element,
    /// The number of rows of the answer.
    pub rows: u64,
    /// The number of lists that each query probes. A query probes more if these lists have fewer than k vectors.
    pub probes: u64,
    /// The number of lists of the index.
    pub lists: u64,
    /// The recall that the index's table of recall ([`super::RecallTable`]) states for this number of probes. The value
    /// is `None` if the table has no point with so few probes.
    pub recall_estimate: Option<f32>,
    /// The number of neighbours for which the table of recall was measured.
    pub recall_k: u32,
    /// The time at which the table of recall was measured, in seconds since 1970.
    pub recall_measured_seconds: u64,
    /// The number of compared pairs. A pair consists of a query and a vector in a list that the query probes.
    pub compared: u64,
    /// The number of pairs whose exact distance was computed.
    pub measured: u64,
    /// The number of vectors that may be answers. The value is `None` if all vectors may.
    pub selected: Option<u64>,
    /// The number of queries whose probed lists have too few selected vectors. Each of these queries was compared with
    /// all selected vectors.
    pub exhaustive: u64,
    /// The median and the 99th percentile of the times of the queries, in microseconds. The value is `None` with the
    /// batch strategy.
    pub latency_us: Option<[u64; 2]>,
    /// The plan.
    pub plan: StrategyPlan,
}

/// Finds near vectors of each query in the lists of an index. `each` receives the rows of the answer, sorted by query
/// and rank. Distances are exact.
///
/// # Errors
/// Returns the errors of [`crate::search_index`].
pub(crate) fn search_in_lists(
    means: &mut Means<'_>,
    (vectors, facts): (&Vectors, &DatasetFacts),
    (index, loaded): (&VectorIndex, &LoadedLists),
    source: Source<'_>,
    (search, approximate): (&Search, &Approximate),
    each: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<ApproximateSearched> {
    check_index_search(index, vectors.info(), source, search, approximate)?;
    let search = &*facts.among_live(means.job, vectors, search)?;
    let job = means.job;
    Probed { job, vectors, facts, index, loaded, source, search, approximate, pairs: None }
        .run_elements(means, each)
}

/// Finds pairs of vectors within the radius of `search`. A pair is found if one of its vectors lies in a list that the
/// other vector probes as a query.
///
/// # Errors
/// Returns the errors of [`crate::search_index`].
pub(crate) fn pairs_of_index(
    job: &Job,
    vectors: &Vectors,
    index: &VectorIndex,
    search: &Search,
    approximate: &Approximate,
    pairs: &Pairs,
) -> Result<ApproximateSearched> {
    let source = Source::Stored(vectors);
    check_index_search(index, vectors.info(), source, search, approximate)?;
    let facts = &DatasetFacts::read(job, vectors)?;
    let (search, loaded) = (&*facts.among_live(job, vectors, search)?, &LoadedLists::default());
    let mut means = Means { job, threads: job.budget().threads(), kept: &mut Kept::Nothing };
    Probed { job, vectors, facts, index, loaded, source, search, approximate, pairs: Some(pairs) }
        .run_elements(&mut means, &mut |_| unreachable!("pairs are no rows"))
}

/// Loads the parts of an index that searches need in memory. These are the directory and the centroids of groups. The
/// centroids of lists and the checksums of lists are loaded too, each if they take less than half of the free memory.
///
/// # Errors
/// - Returns [`Error::BadDataset`] if the index is damaged.
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
///   memory, or the job was cancelled.
pub(crate) fn load_lists(
    means: &Means<'_>,
    (vectors, facts): (&Vectors, &DatasetFacts),
    (index, loaded): (&VectorIndex, &LoadedLists),
    query: Source<'_>,
) -> Result<()> {
    let search = &Search { metric: index.info().metric, ..Search::default() };
    let approximate = &Approximate { strategy: Some(Strategy::Single), ..Approximate::default() };
    let job = means.job;
    let probed =
        Probed { job, vectors, facts, index, loaded, source: query, search, approximate, pairs: None };
    match vectors.info().element {
        Element::F32 => probed.preload::<f32>(means),
        Element::U8 => probed.preload::<u8>(means),
        Element::I8 => probed.preload::<i8>(means),
        Element::F16 | Element::Bf16 | Element::Bits => Err(super::no_index_of(vectors.info())),
    }
}

/// Checks the options of an approximate search. The check does no I/O.
///
/// # Errors
/// - Returns [`crate::Error::BadOption`] if an option is out of range.
/// - Returns [`crate::Error::BadOption`] if the index was built for another metric.
/// - Returns [`crate::Error::BadFile`] if the queries have another number of dimensions than the vectors.
pub fn check_index_search<'a>(
    index: &VectorIndex,
    vectors: &VectorsInfo,
    queries: impl Into<Source<'a>>,
    search: &Search,
    approximate: &Approximate,
) -> Result<()> {
    search.check()?;
    search.check_selection(vectors)?;
    approximate.check()?;
    check_dimensions(queries.into(), vectors)?;
    if search.metric != index.info().metric {
        return Err(Error::BadOption {
            option: "metric",
            found: search.metric.name().to_string(),
            expected: format!(
                "{}, for which the index of {} was built",
                index.info().metric.name(),
                vectors.name
            ),
        });
    }
    Ok(())
}

/// A search in an index, with its options.
struct Probed<'a> {
    job: &'a Job,
    vectors: &'a Vectors,
    facts: &'a DatasetFacts,
    index: &'a VectorIndex,
    loaded: &'a LoadedLists,
    source: Source<'a>,
    search: &'a Search,
    approximate: &'a Approximate,
    /// The receiver of all near pairs. The value is `None` if the search returns the nearest vectors of each query
    /// instead.
    pairs: Option<&'a Pairs>,
}

/// The spaces in which vectors are compared. A space is a metric together with facts about the data.
struct Spaces<T: Clustered> {
    /// The space in which queries are compared with centroids.
    coarse: Space<T>,
    /// The space in which queries are compared with vectors. Only vectors within the radius of the search are near.
    space: Space<T>,
}

/// The counts, summed over all rounds.
#[derive(Default)]
struct Counts {
    compared: u64,
    measured: u64,
    exhaustive: u64,
    times_us: Vec<u64>,
}

impl Counts {
    /// Returns the median and the 99th percentile of the times of the queries, in microseconds.
    fn latency_us(mut self) -> Option<[u64; 2]> {
        self.times_us.sort_unstable();
        let last = self.times_us.len().checked_sub(1)?;
        let at = |share: f64| self.times_us[(last as f64 * share).round() as usize];
        Some([at(0.5), at(0.99)])
    }
}

impl Probed<'_> {
    /// Returns true if a strategy reads the lists with copies.
    fn reads_copies(&self, strategy: Strategy) -> bool {
        strategy == Strategy::Single && self.index.info().copies.is_some()
    }

    /// Returns the codes that a strategy reads. The single strategy reads lists in place of codes if the codes are not
    /// expected to reach the recall, if all lists are probed, and if pairs are collected.
    fn codes(&self, strategy: Strategy) -> Option<&CodedLists> {
        let info = self.index.info();
        let codes = info.codes.as_deref().filter(|_| strategy == Strategy::Single && self.pairs.is_none())?;
        let probes = match self.approximate.probes {
            Some(probes) => probes,
            None => codes.recall.probes_for(self.approximate.recall, info.lists),
        };
        (probes < info.lists).then_some(codes)
    }

    /// Returns the table of recall for the lists that a strategy reads.
    fn table(&self, strategy: Strategy) -> &RecallTable {
        let info = self.index.info();
        match (&info.copies, self.codes(strategy)) {
            (Some(copies), _) if self.reads_copies(strategy) => &copies.recall,
            (_, Some(codes)) => &codes.recall,
            _ => &info.recall,
        }
    }

    /// Returns how many lists each query probes in layers. Layers have no copies. For the same recall, the single
    /// strategy must therefore probe as many lists in layers as the batch strategy does.
    fn layer_probes(&self, strategy: Strategy) -> u64 {
        let probes = self.probes(strategy);
        match self.index.layers.is_empty() {
            true => probes,
            false => self.probes(Strategy::Batch).max(probes),
        }
    }

    /// Returns how many lists each query probes.
    fn probes(&self, strategy: Strategy) -> u64 {
        let probes = self.probes_among_all(strategy);
        match (self.approximate.probes, &self.search.selection) {
            (None, Some(selection)) => probes_among(selection, probes, self.index.info().lists),
            _ => probes,
        }
    }

    /// Returns how many lists each query probes if all vectors may be answers.
    fn probes_among_all(&self, strategy: Strategy) -> u64 {
        let lists = self.index.info().lists;
        let wanted = self.approximate.probes;
        wanted.unwrap_or_else(|| self.table(strategy).probes_for(self.approximate.recall, lists)).min(lists)
    }

    fn estimates<T: Clustered>(&self, means: &Means<'_>) -> Estimates {
        let (info, index) = (self.index.info(), self.index);
        let (budget, loaded) = (self.job.budget(), self.loaded.get::<T>());
        let unless_loaded = |bytes: u64| if loaded.is_some() { 0 } else { bytes };
        let probes = self.probes(Strategy::Batch);
        let single_probes = self.probes(Strategy::Single);
        let k = self.search.neighbours(self.vectors.info().live());
        let row_bytes = (info.dimensions * size_of::<T>()) as u64;
        let entry_bytes = info.entry_bytes() as u64;
        let list_bytes_max = Part::chunk_bytes_max(index, false);
        let code_list_bytes =
            info.shape_of_codes().map_or(0, |shape| shape.list_bytes(info.list_vectors_max));
        let read_bytes_max = Part::chunk_bytes_max(index, info.copies.is_some());
        let own_vectors = info.vectors as f64 / info.lists as f64;
        let copies = info.copies.as_ref().map(|copies| {
            let list_vectors = copies.vectors as f64 / info.lists as f64;
            let list_bytes = list_vectors * entry_bytes as f64;
            ReadBySingle { probes: single_probes, list_bytes, list_vectors, measured: 0.0 }
        });
        let shape = self.codes(Strategy::Single).and_then(|_| info.shape_of_codes());
        let coded = shape.map(|shape| ReadBySingle {
            probes: single_probes,
            list_bytes: own_vectors * shape.entry_bytes() as f64,
            list_vectors: own_vectors / CODES_AT_ONCE,
            measured: MEASURED_EXPECTED.max(2.0 * k as f64),
        });
        let code_thread_bytes = shape.map_or(0, |shape| {
            let k = self.search.needed(self.vectors.info().vectors);
            CodeScratch::bytes(&shape, k, info.list_vectors_max)
                + single_probes * size_of::<ProbedList>() as u64
        });
        let codes = shape.zip(info.codes.as_ref()).map(|(shape, codes)| CodesInPlan {
            file_bytes: codes.bytes,
            fixed_bytes: shape.fixed_bytes(),
            query_bytes: (single_probes as f64 * own_vectors) as u64 * shape.entry_bytes(),
            stays: false,
        });
        // A group has about √N of the N lists. The largest groups have several times as many.
        let group = (8 * info.lists.div_ceil(info.groups)).min(info.lists);
        let finder = 2 * Comparer::<T>::bytes(info.dimensions) + 16 * (group * row_bytes + (16 << 10));
        let pending = |probes: u64| {
            let groups = (info.groups).min(64 + 16 * probes);
            TopK::bytes(probes) + 16 * probes + 16 * groups + 64
        };
        let heap_bytes = if info.copies.is_some() { TopK::distinct_bytes(k) } else { TopK::bytes(k) };
        Estimates {
            queries: self.source.count(),
            probes,
            lists: info.lists,
            list_bytes: own_vectors * info.entry_bytes() as f64,
            list_vectors: own_vectors,
            single: copies.or(coded),
            codes,
            dimensions: info.dimensions,
            memory_bytes: budget.free_bytes() + means.kept.bytes(),
            threads: means.threads,
            fixed_bytes: unless_loaded(index.directory_bytes())
                + self.facts.unread_bytes(self.vectors)
                + self.source.rows_bytes()
                + 2 * BATCH_ROWS as u64 * 24
                + row_bytes * 4
                + self.search.selection.as_ref().map_or(0, |selection| Selected::bytes(selection, row_bytes))
                + (64 << 10),
            lower_bytes: unless_loaded(index.lower_bytes()),
            checks_bytes: unless_loaded(index.single_files().map(CheckedFile::headers_bytes).sum()),
            held: loaded.map(|lists| Held {
                centroids: lists.centroids.are_in_memory(),
                checks: lists.checks.is_some(),
                codes: lists.codes_are_in_memory(),
            }),
            single_thread_bytes: finder
                + inshore_store::taken_bytes(DEPTH * joined_bytes(read_bytes_max.max(code_list_bytes)))
                    as u64
                + code_thread_bytes
                + pending(self.layer_probes(Strategy::Single))
                + (4 << 10),
            batch_thread_bytes: finder
                + inshore_store::taken_bytes(BUFFERS * span_bytes(list_bytes_max)) as u64
                + 64 * (probes + 16),
            query_bytes: Packed::<T>::bytes_each(info.dimensions) + heap_bytes + 24 + Selected::QUERY_BYTES,
            batch_query_bytes: probes * 8 + 8,
            batch_bytes: FOUND_AT_ONCE.min(self.source.count()) * pending(probes) * means.threads as u64,
            forced: self.approximate.strategy,
        }
    }

    fn run<T: Clustered>(
        &self,
        means: &mut Means<'_>,
        each: &mut dyn FnMut(RecordBatch) -> Result<()>,
    ) -> Result<ApproximateSearched> {
        let (job, info) = (self.job, self.index.info());
        let estimates = self.estimates::<T>(means);
        let plan = self.plan::<T>(&estimates, means.kept.bytes())?;
        let mut workers = means.kept.take_workers::<Worker<T>>();
        match plan.strategy {
            Strategy::Single => workers.truncate(plan.threads),
            Strategy::Batch => workers.clear(),
        }
        let (lists, spaces) = (self.lists::<T>(&plan)?, self.spaces::<T>()?);
        let query_bytes = match plan.strategy {
            Strategy::Single => estimates.query_bytes,
            Strategy::Batch => estimates.query_bytes + estimates.batch_query_bytes,
        };
        let _answer = job.budget().reserve(2 * BATCH_ROWS as u64 * 24, "rows of the answer")?;
        let mut rows = self.source.rows(job)?;
        let mut answer = AnswerRows::new(self.search.metric, each);
        let mut counts = Counts::default();
        let mut first = 0;
        job.start_phase("searching", "queries", self.source.count());
        while first < self.source.count() {
            let end = self.source.count().min(first + plan.queries_at_once);
            let _memory =
                job.budget().reserve((end - first) * query_bytes, "queries and their neighbours")?;
            let round = (lists, &spaces, &plan);
            let (ids, tops) = self.round(round, first..end, &mut rows, &mut workers, &mut counts)?;
            answer.add_all(job, &ids, tops)?;
            first = end;
        }
        answer.flush()?;
        let kept_bytes = workers.iter().map(Worker::bytes).sum();
        *means.kept = Kept::Workers(Box::new(workers), kept_bytes);
        let probes = self.probes(plan.strategy);
        Ok(ApproximateSearched {
            queries: self.source.count(),
            vectors: self.vectors.info().live(),
            dimensions: info.dimensions,
            element: info.element,
            rows: answer.rows,
            probes,
            lists: info.lists,
            recall_estimate: match probes == info.lists {
                true => Some(1.0),
                // A search among selected vectors probes more lists to reach the same recall. The table is therefore
                // read at the number of probes that a search among all vectors would have.
                false => self.table(plan.strategy).recall_of(self.probes_among_all(plan.strategy)),
            },
            recall_k: self.table(plan.strategy).k,
            recall_measured_seconds: self.table(plan.strategy).measured_seconds,
            compared: counts.compared,
            measured: counts.measured,
            selected: self.search.selection.as_ref().map(|selection| selection.count()),
            exhaustive: counts.exhaustive,
            latency_us: counts.latency_us(),
            plan,
        })
    }

    fn run_elements(
        &self,
        means: &mut Means<'_>,
        each: &mut dyn FnMut(RecordBatch) -> Result<()>,
    ) -> Result<ApproximateSearched> {
        match self.vectors.info().element {
            Element::F32 => self.run::<f32>(means, each),
            Element::U8 => self.run::<u8>(means, each),
            Element::I8 => self.run::<i8>(means, each),
            Element::F16 | Element::Bf16 | Element::Bits => Err(super::no_index_of(self.vectors.info())),
        }
    }

    /// Chooses the strategy. The memory is that which is free in the budget of the job, and the `kept_bytes` of memory
    /// that an earlier call has kept.
    fn plan<T: Clustered>(&self, estimates: &Estimates, kept_bytes: u64) -> Result<StrategyPlan> {
        let (job, info) = (self.job, self.index.info());
        let plan = match self.loaded.get::<T>() {
            Some(lists) => StrategyPlan::new(estimates, lists.drive.as_ref()),
            None => StrategyPlan::new(estimates, job.store().drive_profile().as_ref()),
        };
        job.budget().need(plan.smallest_bytes.saturating_sub(kept_bytes), || {
            let k = self.search.neighbours(self.vectors.info().live());
            format!("a search of {k} neighbours in the index of {}", info.name)
        })?;
        job.progress().tell(|| format!("search: {plan}"));
        Ok(plan)
    }

    /// Loads the parts of the index and the center of the vectors for later searches.
    fn preload<T: Clustered>(&self, means: &Means<'_>) -> Result<()> {
        let mut estimates = self.estimates::<T>(means);
        if let Some(codes) = &mut estimates.codes {
            codes.stays = true;
        }
        let plan = self.plan::<T>(&estimates, means.kept.bytes())?;
        let with_copies = self.reads_copies(plan.strategy);
        let lists = self.lists::<T>(&plan)?;
        lists.parts(self.job, self.index, with_copies)?;
        lists.codes(self.job, self.index, plan.holds_codes == Some(true))?;
        self.facts.center(self.job, self.vectors, self.search.metric).map(drop)
    }

    /// Returns the parts of the index that all queries need. Reads these parts if they are not loaded.
    fn lists<T: Clustered>(&self, plan: &StrategyPlan) -> Result<&Lists<T>> {
        let held = (plan.holds_centroids, plan.holds_checks);
        self.loaded.get_or_load(|| Lists::read(self.job, self.index, held))
    }

    /// Returns the spaces in which vectors are compared.
    fn spaces<T: Clustered>(&self) -> Result<Spaces<T>> {
        let (metric, dimensions) = (self.search.metric, self.index.info().dimensions);
        let center = self.facts.center(self.job, self.vectors, metric)?;
        let instructions = self.search.instructions.unwrap_or_else(Instructions::best);
        let coarse = Space::<T>::new(metric, dimensions, &center, instructions);
        let space = coarse.within(self.search.radius);
        Ok(Spaces { coarse, space })
    }

    /// Reads the queries with these numbers and answers them. Returns the ids of the queries and the nearest vectors of
    /// each. If pairs are collected, the nearest vectors are empty.
    fn round<T: Clustered>(
        &self,
        (lists, spaces, plan): (&Lists<T>, &Spaces<T>, &StrategyPlan),
        numbers: Range<u64>,
        rows: &mut QueryRows,
        workers: &mut Vec<Worker<T>>,
        counts: &mut Counts,
    ) -> Result<(Vec<u64>, Vec<TopK>)> {
        let info = self.index.info();
        let parts = lists.parts(self.job, self.index, self.reads_copies(plan.strategy))?;
        let k = self.search.needed(self.vectors.info().vectors);
        let count = (numbers.end - numbers.start) as usize;
        let mut packed = Packed::<T>::with_capacity(info.dimensions, count);
        let mut ids = Vec::with_capacity(count);
        for number in numbers {
            pack_next(rows, (self.source, number), self.vectors, &spaces.space, &mut packed, &mut ids)?;
        }
        // A vector comes once with each list that holds it. A sort of pairs keeps each pair once.
        let has_copies = parts.iter().any(Part::has_copies);
        let new_top = if has_copies { TopK::distinct } else { TopK::new };
        let tops = match self.pairs {
            Some(_) => Vec::new(),
            None => new_tops(self.search, self.vectors.info().live(), &ids, new_top),
        };
        let heaps = Tops { first: 0, tops: &tops };
        let pairs = self.pairs.map(|pairs| pairs.of_queries(&ids, false));
        let selection = self.search.selection.as_deref();
        let round = Round {
            job: self.job,
            vectors: self.vectors,
            selected: selection.map(|selection| Selected::new(selection, count)),
            ids: &self.facts.ids,
            index: self.index,
            parts,
            centroids: &lists.centroids,
            codes: match self.codes(plan.strategy) {
                Some(_) => lists.codes(self.job, self.index, plan.holds_codes == Some(true))?,
                None => None,
            },
            space: &spaces.space,
            coarse: &spaces.coarse,
            plan,
            probes: self.probes(plan.strategy),
            layer_probes: self.layer_probes(plan.strategy),
            k: k.min(info.vectors),
            needed: k as usize,
            packed: &packed,
            tops: &tops,
            heaps: pairs.as_ref().map_or(&heaps, |pairs| pairs),
            compared: AtomicU64::new(0),
            measured: AtomicU64::new(0),
        };
        match plan.strategy {
            Strategy::Single => counts.times_us.extend(round.single(workers)?),
            Strategy::Batch => round.batch()?,
        }
        let tail = self.index.end()..self.vectors.info().vectors;
        if !tail.is_empty() {
            compare_tail(&round, tail)?;
        }
        if let (Some(selected), None) = (&round.selected, self.pairs) {
            counts.exhaustive += selected.complete(&round, k)?;
        }
        counts.compared += round.compared.into_inner();
        counts.measured += round.measured.into_inner();
        pairs.map_or(Ok(()), PairsOfQueries::finish)?;
        Ok((ids, tops))
    }
}

impl<T: Clustered> Round<'_, T> {
    /// Finds the lists that each of the queries `members` probes. `each` receives the queries in no particular order.
    pub(super) fn lists(
        &self,
        members: Range<u32>,
        finder: &mut Finder<T>,
        each: &mut dyn FnMut(u32, &Near<'_>),
    ) -> Result<()> {
        let mut left: Vec<u32> = members.collect();
        let mut probes = self.probes.max(self.layer_probes);
        let (mut lists, mut keys) = (Vec::new(), Vec::new());
        // The loop repeats only for the few queries whose lists have fewer than k vectors.
        while let (Some(&first), Some(&last)) = (left.first(), left.last()) {
            let groups = self.centroids.groups_for(probes);
            let tops: Vec<TopK> = (first..=last).map(|_| TopK::new(probes as usize, f64::INFINITY)).collect();
            let heaps = Tops { first: first as usize, tops: &tops };
            let queries = Members { packed: self.packed, members: &left, heaps: &heaps };
            self.centroids.find(self.job, self.coarse, groups, &queries, finder)?;
            let mut again = Vec::new();
            for (query, top) in (first..).zip(tops) {
                if left.binary_search(&query).is_err() {
                    continue;
                }
                let nearest = top.into_sorted();
                lists.clear();
                lists.extend(nearest.iter().map(|entry| entry.id as u32));
                keys.clear();
                keys.extend(nearest.iter().map(|entry| entry.key));
                match self.enough_of(&mut lists) {
                    None if probes < self.centroids.lists() => again.push(query),
                    near => {
                        let (lists, in_first) = (&*lists, near.unwrap_or(lists.len()));
                        each(query, &Near { lists, keys: &keys[..lists.len()], in_first });
                    }
                }
            }
            left = again;
            probes = (probes * 4).min(self.centroids.lists());
        }
        Ok(())
    }

    /// Truncates the nearest lists of a query to the lists that the query probes. Returns how many of them the query
    /// probes in the first part of the index. Returns `None` if the lists have fewer than k vectors.
    fn enough_of(&self, lists: &mut Vec<u32>) -> Option<usize> {
        let (mut vectors, mut near, mut all) = (0, 0, 0);
        for &list in &*lists {
            let is_near = (all as u64) < self.probes || vectors < self.k;
            if !is_near && all as u64 >= self.layer_probes {
                break;
            }
            let parts = if is_near { self.parts } else { &self.parts[1..] };
            vectors += parts.iter().map(|part| part.own_count(list)).sum::<u64>();
            all += 1;
            near = if is_near { all } else { near };
        }
        lists.truncate(all);
        if vectors < self.k {
            return None;
        }
        Some(near)
    }

    /// Returns each part of the index with the lists that a query probes in this part.
    pub(super) fn lists_of_parts<'l>(&self, near: &Near<'l>) -> impl Iterator<Item = (&Part, &'l [u32])> {
        let Near { lists, in_first, .. } = *near;
        self.parts.iter().enumerate().map(move |(number, part)| match number {
            0 => (part, &lists[..in_first]),
            _ => (part, lists),
        })
    }

    /// Counts the vectors in the probed lists of a query, and adds their number to the count of compared pairs.
    pub(super) fn count_compared(&self, near: &Near<'_>) {
        let count = |(part, lists): (&Part, &[u32])| -> u64 {
            lists.iter().map(|&list| part.directory.count(list)).sum()
        };
        let compared = self.lists_of_parts(near).map(count).sum();
        self.compared.fetch_add(compared, Ordering::Relaxed);
    }

    /// Returns the size, in bytes, of the largest chunk in any part of the index.
    pub(super) fn chunk_bytes_max(&self) -> u64 {
        Part::chunk_bytes_max(self.index, self.parts[0].has_copies())
    }

    /// Returns the size, in bytes, of the largest read of the single strategy.
    pub(super) fn read_bytes_max(&self) -> u64 {
        let info = self.index.info();
        let codes = info.shape_of_codes().map_or(0, |shape| shape.list_bytes(info.list_vectors_max));
        codes.max(self.chunk_bytes_max())
    }

    /// Compares each list of a piece with the queries that probe the list.
    pub(super) fn compare_piece<'m>(
        &self,
        part: &Part,
        piece: &Piece,
        bytes: &[u8],
        comparer: &mut Comparer<T>,
        members_of: impl Fn(u32) -> &'m [u32],
    ) -> Result<()> {
        part.each_chunk::<T>(piece, bytes, |list, vectors, counts| {
            let members = members_of(list);
            if members.is_empty() {
                return Ok(());
            }
            let queries = Members { packed: self.packed, members, heaps: &self.heaps };
            match &self.selected {
                None => {
                    comparer.compare(self.space, vectors.rows, |row| self.ids.id(vectors.row(row)), &queries);
                }
                Some(selected) => {
                    selected.compare(self.space, (vectors, self.ids), counts, comparer, &queries);
                }
            }
            Ok(())
        })?;
        self.heaps.check()
    }
}
