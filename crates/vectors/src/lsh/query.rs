//! Answers queries from hash tables.
//!
//! ```text
//!   query ─► values ─► probes ─► buckets, 16 reads in flight ─► rows, each once ─► exact search among these rows
//! ```
//!
//! Rows that were added after the build are candidates of each query. If a query has fewer than k candidates, it probes
//! twice as many buckets, and if the largest number of probes is not enough, all vectors are its candidates.

use std::{cell::Cell, ops::Range};

use arrow_array::RecordBatch;
use inshore_store::Job;
use serde::Serialize;

use super::{
    buckets::Buckets,
    dataset::LshIndex,
    functions::{Functions, Values},
    probes::Probes,
};
use crate::{
    Approximate, Element, Error, Plan, Result, RowSet, Search, Source, Vectors, VectorsInfo,
    index::probes_among,
    search::{Candidates, DatasetFacts, Means, check_dimensions, search_among},
};

/// A query that probes more buckets than these is compared with all vectors.
pub const PROBES_MAX: u64 = 4096;
/// Buckets that are read together.
pub(super) const AT_ONCE: usize = 64;

/// Facts about a search in hash tables.
#[derive(Clone, Debug, Serialize)]
pub struct LshSearched {
    /// Queries.
    pub queries: u64,
    /// Vectors of the dataset.
    pub vectors: u64,
    /// Dimensions of a vector.
    pub dimensions: usize,
    /// Elements of the vectors.
    pub element: Element,
    /// Rows of the answer.
    pub rows: u64,
    /// Buckets that each query probes; more where these have fewer than k vectors.
    pub probes: u64,
    /// Buckets of all tables.
    pub buckets: u64,
    /// The recall by the table of the index; `None` if fewer buckets are probed than the table has.
    pub recall_estimate: Option<f32>,
    /// The time when the table was measured, in seconds since 1970.
    pub recall_measured_seconds: u64,
    /// Pairs of a query and a candidate.
    pub compared: u64,
    /// Pairs that were measured exactly.
    pub measured: u64,
    /// Vectors that may be answers, if not all.
    pub selected: Option<u64>,
    /// Queries that were compared with all vectors, since their buckets have fewer than k.
    pub exhaustive: u64,
    /// The plan of the search among candidates.
    pub plan: Plan,
}

/// Checks the options of a search in hash tables, without I/O.
///
/// # Errors
/// Bad options; tables for another metric; queries of other dimensions.
pub(crate) fn check_lsh_search(
    index: &LshIndex,
    vectors: &VectorsInfo,
    queries: Source<'_>,
    search: &Search,
    approximate: &Approximate,
) -> Result<()> {
    search.check()?;
    search.check_selection(vectors)?;
    approximate.check()?;
    check_dimensions(queries, vectors)?;
    let bad = |option, found: String, expected: String| Err(Error::BadOption { option, found, expected });
    if let Some(strategy) = approximate.strategy {
        let expected = "none: hash tables are searched in one way".to_string();
        return bad("strategy", strategy.to_string(), expected);
    }
    let built = index.info().metric;
    match search.metric == built {
        true => Ok(()),
        false => {
            let expected = format!("{}, for which the index of {} was built", built.name(), vectors.name);
            bad("metric", search.metric.name().to_string(), expected)
        }
    }
}

/// Finds near vectors of each query among the vectors of its buckets, and passes rows to `each`, in the order of the
/// queries and ranks. Distances are exact.
///
/// # Errors
/// The errors of [`check_lsh_search`]; a query with a value that is not finite, or that the elements of the vectors
/// cannot hold; too little memory; I/O and damage; cancellation; the errors of `each`.
pub(crate) fn search_lsh(
    means: &mut Means<'_>,
    (vectors, facts): (&Vectors, &DatasetFacts),
    index: &LshIndex,
    source: Source<'_>,
    (search, approximate): (&Search, &Approximate),
    each: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<LshSearched> {
    let job = means.job;
    check_lsh_search(index, vectors.info(), source, search, approximate)?;
    let search = &*facts.among_live(job, vectors, search)?;
    let (info, all) = (index.info(), index.info().shape().all_buckets());
    let among_all =
        approximate.probes.unwrap_or_else(|| info.recall.probes_for(approximate.recall, all)).min(all);
    let probes = match (approximate.probes, &search.selection) {
        (None, Some(selection)) => probes_among(selection, among_all, all),
        _ => among_all,
    };
    let is_all = probes >= all || probes > PROBES_MAX;
    let expected = expected_candidates(index, vectors, probes, is_all);
    let mut tables = Tables::open(job, vectors, index, search, (probes, is_all))?;
    job.progress()
        .tell(|| format!("search: {probes} of {all} buckets, about {expected} candidates for each query"));
    let found = search_among(means, (vectors, facts), source, search, (&mut tables, expected), each)?;
    Ok(LshSearched {
        queries: source.count(),
        vectors: vectors.info().live(),
        dimensions: info.dimensions,
        element: info.element,
        rows: found.rows,
        probes,
        buckets: all,
        // The buckets for a selection were chosen for the same recall.
        recall_estimate: if is_all { Some(1.0) } else { info.recall.recall_of(among_all) },
        recall_measured_seconds: info.recall.measured_seconds,
        compared: tables.compared,
        measured: found.measured,
        selected: search.selection.as_ref().map(|selection| selection.count()),
        exhaustive: tables.exhaustive,
        plan: found.plan,
    })
}

/// Returns the number of candidates that a query is expected to have.
fn expected_candidates(index: &LshIndex, vectors: &Vectors, probes: u64, is_all: bool) -> u64 {
    let (info, rows) = (index.info(), vectors.info().vectors);
    let of_buckets = (probes.min(PROBES_MAX) * info.vectors).div_ceil(info.buckets);
    if is_all { rows } else { (of_buckets + (rows - info.vectors)).min(rows) }
}

/// Tells whether the directory of an index stays in memory: if it takes at most a quarter of what is free.
pub(super) fn holds_directory(job: &Job, index: &LshIndex) -> bool {
    Buckets::bytes(&index.buckets, true) <= job.budget().free_bytes() / 4
}

/// The tables in a search: candidates of one query after the other.
struct Tables<'a> {
    job: &'a Job,
    functions: Functions,
    buckets: Buckets,
    /// The elements of queries.
    element: Element,
    /// The vectors that may be answers, if not all.
    selection: Option<&'a RowSet>,
    /// Rows in no bucket.
    later: Range<u64>,
    probes: u64,
    /// True if all vectors are candidates.
    is_all: bool,
    /// The number of candidates that a query needs.
    needed: u64,
    candidates: RowSet,
    values: Values,
    compared: u64,
    exhaustive: u64,
    _reservation: inshore_store::Reservation,
}

impl<'a> Tables<'a> {
    fn open(
        job: &'a Job,
        vectors: &Vectors,
        index: &LshIndex,
        search: &'a Search,
        (probes, is_all): (u64, bool),
    ) -> Result<Tables<'a>> {
        let (rows, budget) = (vectors.info().vectors, job.budget());
        let shape = index.info().shape();
        let smallest = shape.memory_bytes() + Buckets::bytes(&index.buckets, false) + RowSet::bytes(rows);
        budget.need(smallest, || format!("a search in the index of {}", index.info().name))?;
        let functions = index.functions(job)?;
        let reserved = Values::bytes(&shape) + Probes::bytes(&functions, PROBES_MAX) + 16 * AT_ONCE as u64;
        let selection = search.selection.as_deref();
        let among = selection.map_or(vectors.info().live(), RowSet::count);
        Ok(Tables {
            job,
            functions,
            buckets: Buckets::open(job, &index.buckets, index.info(), holds_directory(job, index))?,
            element: vectors.info().element.queried(),
            selection,
            later: index.info().vectors..rows,
            probes,
            is_all,
            needed: search.needed(rows).min(among),
            candidates: RowSet::empty(budget, rows)?,
            values: Values::default(),
            compared: 0,
            exhaustive: 0,
            _reservation: budget.reserve(reserved, "the probes of a query")?,
        })
    }

    /// Makes all vectors that may be answers candidates.
    fn take_all(&mut self) -> u64 {
        self.candidates.insert_all();
        if let Some(selection) = self.selection {
            self.candidates.intersect(selection);
        }
        self.candidates.count()
    }

    /// Takes the candidates from as many buckets as are needed, and returns their number; `None` if they are too few.
    fn take_from_buckets(&mut self) -> Result<Option<u64>> {
        let Tables {
            job,
            functions,
            buckets,
            selection,
            later,
            candidates,
            values,
            needed,
            probes: first_probes,
            ..
        } = self;
        let count = Cell::new(0);
        let mut take = |row: u64| {
            if selection.is_none_or(|selection| selection.contains(row)) && !candidates.contains(row) {
                candidates.insert(row);
                count.set(count.get() + 1);
            }
        };
        later.clone().for_each(&mut take);
        let mut sequence = Probes::new(functions, values);
        let (mut probed, mut wanted) = (0, *first_probes);
        let mut some = Vec::with_capacity(AT_ONCE);
        while probed < wanted {
            some.clear();
            some.extend(sequence.by_ref().take(AT_ONCE.min((wanted - probed) as usize)));
            buckets.each(job, &some, &mut |_, row| take(row))?;
            probed += some.len() as u64;
            if some.is_empty() {
                break;
            }
            if probed == wanted && count.get() < *needed {
                wanted = (2 * wanted).min(PROBES_MAX);
            }
        }
        Ok(Some(count.get()).filter(|count| *count >= *needed))
    }
}

impl Candidates for Tables<'_> {
    fn of_query(&mut self, query: &[u8]) -> Result<&RowSet> {
        self.candidates.clear();
        let count = match self.is_all {
            true => self.take_all(),
            false => {
                self.functions.evaluate(self.element, query, &mut self.values);
                match self.take_from_buckets()? {
                    Some(count) => count,
                    None => {
                        self.exhaustive += 1;
                        self.take_all()
                    }
                }
            }
        };
        self.compared += count;
        Ok(&self.candidates)
    }
}
