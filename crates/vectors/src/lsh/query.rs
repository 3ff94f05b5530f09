//! Answers queries from hash tables.
//!
//! ```text
//!   query ─► values ─► probes ─► buckets, 16 reads in flight ─► rows, each once ─► exact search among these rows
//! ```
//!
//! A *probe* is the read of one bucket, and a *candidate* is a row whose exact distance from the query is computed.
//! Rows that were added after the build are candidates of each query. If a query has fewer than k candidates, the query
//! probes twice as many buckets, up to [`PROBES_MAX`]. If these buckets are not enough either, all vectors are
//! candidates of the query. If most vectors are expected to be candidates, the search is exact ([`super::choice`]).

use std::{cell::Cell, ops::Range};

use arrow_array::RecordBatch;
use inshore_store::Job;
use serde::Serialize;

use super::{
    buckets::Buckets,
    choice::{ManyCandidates, PROBES_MAX, SearchEstimates},
    dataset::LshIndex,
    functions::{Functions, Values},
    probes::Probes,
};
use crate::{
    Approximate, Element, Error, Plan, Result, RowSet, Search, Source, Vectors, VectorsInfo,
    index::probes_among,
    search::{Candidates, DatasetFacts, Means, check_dimensions, search_among, search_with},
};

/// The largest number of buckets that one call of [`Buckets::each`] reads.
pub(super) const AT_ONCE: usize = 64;

/// Facts about a search in hash tables.
#[derive(Clone, Debug, Serialize)]
pub struct LshSearched {
    /// The number of queries.
    pub queries: u64,
    /// The number of vectors of the dataset, without removed vectors.
    pub vectors: u64,
    /// The number of dimensions of a vector.
    pub dimensions: usize,
    /// The element type of the vectors.
    pub element: Element,
    /// The number of rows of the answer.
    pub rows: u64,
    /// The number of buckets that each query probes. A query probes more buckets if these contain fewer than k vectors.
    pub probes: u64,
    /// The number of buckets of all tables.
    pub buckets: u64,
    /// The recall that the table of recall of the index states for the number of probes. `None` if the table has no
    /// entry for so few probes.
    pub recall_estimate: Option<f32>,
    /// The number of neighbours for which the table of recall was measured.
    pub recall_k: u32,
    /// The time when the table of recall was measured, in seconds since 1970.
    pub recall_measured_seconds: u64,
    /// The number of pairs of a query and a candidate.
    pub compared: u64,
    /// The number of pairs whose exact distance was computed.
    pub measured: u64,
    /// The number of vectors that may be answers. `None` if all vectors may be answers.
    pub selected: Option<u64>,
    /// The number of queries that were compared with all vectors because their buckets contained fewer than k vectors.
    pub exhaustive: u64,
    /// The reason why the answer is exact. `None` if the answer is that of the hash tables.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exact_because: Option<ManyCandidates>,
    /// The plan of the search among candidates, or of the exact search.
    pub plan: Plan,
}

/// Checks the options of a search in hash tables. The check does no I/O.
///
/// # Errors
/// - Returns [`Error::BadOption`] if an option is out of range, if a strategy is set, if the selection belongs to other
///   vectors, or if the tables were built for another metric.
/// - Returns [`Error::BadFile`] if the queries do not have the dimensions and the element type that the vectors need.
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

/// Finds near vectors of each query among the vectors in the buckets that the query probes. Passes the rows of the
/// answer to `each`, in the order of the queries and then of the ranks. Distances are exact.
///
/// # Errors
/// - Returns the errors of [`check_lsh_search`] and of `each`.
/// - Returns [`Error::BadFile`] if a query has a value that is not finite, or that the element type of the vectors
///   cannot represent.
/// - Returns [`Error::BadDataset`] if the tables are damaged.
/// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
///   memory, or the job was cancelled.
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
    let among = facts.among_live(job, vectors, search)?;
    let (info, all, rows) = (index.info(), index.info().shape().all_buckets(), vectors.info().vectors);
    let among_all =
        approximate.probes.unwrap_or_else(|| info.recall.probes_for(approximate.recall, all)).min(all);
    let probes = match (approximate.probes, &among.selection) {
        (None, Some(selection)) => probes_among(selection, among_all, all),
        _ => among_all,
    };
    let (eligible, unlisted) = SearchEstimates::vectors_among(among.selection.as_deref(), info.vectors, rows);
    let needed = among.needed(rows).min(eligible);
    let estimates =
        SearchEstimates { vectors: eligible, unlisted, tables: info.tables, buckets: all, probes, needed };
    let exact_because = estimates.exact_because();
    let selected = among.selection.as_ref().map(|selection| selection.count());
    let sets = (vectors, facts);
    let found = match &exact_because {
        Some(reason) => {
            job.progress().tell(|| format!("search: {reason}, so the answer is exact"));
            // The exact search makes the selection of live vectors again.
            drop(among);
            let found = search_with(means, sets, source, search, each)?;
            let compared = source.count() * eligible;
            FoundRows {
                rows: found.rows,
                measured: found.measured,
                compared,
                exhaustive: 0,
                plan: found.plan,
            }
        }
        None => {
            let expected = estimates.candidates();
            let mut tables = Tables::open(job, vectors, index, &among, (probes, needed))?;
            job.progress().tell(|| {
                format!("search: {probes} of {all} buckets, about {expected} candidates for each query")
            });
            let found = search_among(means, sets, source, &among, (&mut tables, expected), each)?;
            let Tables { compared, exhaustive, .. } = tables;
            FoundRows { rows: found.rows, measured: found.measured, compared, exhaustive, plan: found.plan }
        }
    };
    Ok(LshSearched {
        queries: source.count(),
        vectors: vectors.info().live(),
        dimensions: info.dimensions,
        element: info.element,
        rows: found.rows,
        probes,
        buckets: all,
        // If there is a selection, more buckets are probed so that the recall is that of `among_all` probes without
        // one.
        recall_estimate: if exact_because.is_some() { Some(1.0) } else { info.recall.recall_of(among_all) },
        recall_k: info.recall.k,
        recall_measured_seconds: info.recall.measured_seconds,
        compared: found.compared,
        measured: found.measured,
        selected,
        exhaustive: found.exhaustive,
        exact_because,
        plan: found.plan,
    })
}

/// The counts of a search, which is exact or among candidates. [`LshSearched`] describes the fields.
struct FoundRows {
    rows: u64,
    measured: u64,
    compared: u64,
    exhaustive: u64,
    plan: Plan,
}

/// Returns true if a search holds the directory of an index in memory. The condition is that the directory takes at
/// most a quarter of the free memory.
pub(super) fn holds_directory(job: &Job, index: &LshIndex) -> bool {
    Buckets::bytes(&index.buckets, true) <= job.budget().free_bytes() / 4
}

/// The tables during a search. They compute the candidates of one query after the other.
struct Tables<'a> {
    job: &'a Job,
    functions: Functions,
    buckets: Buckets,
    /// The element type of queries.
    element: Element,
    /// The vectors that may be answers. `None` if all vectors may be answers.
    selection: Option<&'a RowSet>,
    /// The rows that were added after the build. No bucket contains them.
    later: Range<u64>,
    /// The number of buckets that a query probes first.
    probes: u64,
    /// The number of candidates that a query needs.
    needed: u64,
    candidates: RowSet,
    values: Values,
    /// The number of candidates of all queries so far.
    compared: u64,
    /// The number of queries so far whose buckets contained too few candidates.
    exhaustive: u64,
    _reservation: inshore_store::Reservation,
}

impl<'a> Tables<'a> {
    fn open(
        job: &'a Job,
        vectors: &Vectors,
        index: &LshIndex,
        search: &'a Search,
        (probes, needed): (u64, u64),
    ) -> Result<Tables<'a>> {
        let (rows, budget) = (vectors.info().vectors, job.budget());
        let shape = index.info().shape();
        let smallest = shape.memory_bytes() + Buckets::bytes(&index.buckets, false) + RowSet::bytes(rows);
        budget.need(smallest, || format!("a search in the index of {}", index.info().name))?;
        let functions = index.functions(job)?;
        let reserved = Values::bytes(&shape) + Probes::bytes(&functions, PROBES_MAX) + 16 * AT_ONCE as u64;
        let selection = search.selection.as_deref();
        Ok(Tables {
            job,
            functions,
            buckets: Buckets::open(job, &index.buckets, index.info(), holds_directory(job, index))?,
            element: vectors.info().element.queried(),
            selection,
            later: index.info().vectors..rows,
            probes,
            needed,
            candidates: RowSet::empty(budget, rows)?,
            values: Values::default(),
            compared: 0,
            exhaustive: 0,
            _reservation: budget.reserve(reserved, "the probes of a query")?,
        })
    }

    /// Makes all vectors that may be answers candidates. Returns their number.
    fn take_all(&mut self) -> u64 {
        self.candidates.insert_all();
        if let Some(selection) = self.selection {
            self.candidates.intersect(selection);
        }
        self.candidates.count()
    }

    /// Takes the candidates from as many buckets as are needed, up to [`PROBES_MAX`]. Returns the number of candidates,
    /// or `None` if there are too few.
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
        self.functions.evaluate(self.element, query, &mut self.values);
        let count = match self.take_from_buckets()? {
            Some(count) => count,
            None => {
                self.exhaustive += 1;
                self.take_all()
            }
        };
        self.compared += count;
        Ok(&self.candidates)
    }
}
