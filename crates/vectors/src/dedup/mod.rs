//! Finds near-duplicates. These are all pairs of vectors of a dataset whose distance is at most the radius, or the
//! groups that such pairs form.
//!
//! ```text
//!   vectors (queries) ─┐
//!   vectors ───────────┴─► search without heaps ─► pairs, sorted ─┬─► rows: id, duplicate, distance
//!                                                                └─► components ─► rows: id, group
//! ```
//!
//! A search for k neighbours would lose pairs of a vector that has more than k duplicates. The search for
//! near-duplicates therefore keeps no heaps. Each pair within the radius goes to a sort ([`pairs`](crate::pairs)),
//! whose memory does not depend on the number of pairs. Groups need only some of the pairs (`pairs/links.rs`).
//!
//! The exact search compares each pair of vectors once, since a block of queries is compared only with its own vectors
//! and with later vectors.

mod components;

use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, RecordBatch, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use inshore_sortreduce::rows::smallest_row_memory_bytes;
use inshore_store::Job;
use serde::Serialize;

use self::components::{components, components_bytes};
use crate::{
    Approximate, Element, Metric, Plan, Result, Search, StrategyPlan, VectorIndex, Vectors,
    index::{check_index_search, pairs_of_index},
    kept::Kept,
    pairs::{Form, Pairs, ROWS_BYTES, Sorted, each_row},
    search::{BATCH_ROWS, Beside, DatasetFacts, Means, Source, pairs_of_all, plan_beside},
};

/// The options of a search for near-duplicates.
#[derive(Clone, Debug, PartialEq)]
pub struct Dedup {
    /// The metric.
    pub metric: Metric,
    /// The largest distance between near-duplicates. For the metric `ip`, it is the smallest inner product.
    pub radius: f64,
    /// If true, the answer has groups instead of pairs.
    pub groups: bool,
}

impl Dedup {
    /// Checks the options.
    ///
    /// # Errors
    /// Returns [`crate::Error::BadOption`] if an option is out of range.
    pub fn check(&self) -> Result<()> {
        self.search().check()
    }

    /// Returns the columns of the answer. They are `id`, `duplicate` and `distance` for pairs, and `id` and `group` for
    /// groups.
    pub fn schema(&self) -> SchemaRef {
        let id = |name| Field::new(name, DataType::UInt64, false);
        let distance = Field::new("distance", DataType::Float32, false);
        let fields = match self.groups {
            true => vec![id("id"), id("group")],
            false => vec![id("id"), id("duplicate"), distance],
        };
        Arc::new(Schema::new(fields))
    }

    /// Returns the options of the search. The search for near-duplicates ignores k.
    fn search(&self) -> Search {
        Search { k: 1, metric: self.metric, radius: Some(self.radius), ..Search::default() }
    }

    fn form(&self) -> Form {
        if self.groups { Form::Links } else { Form::Distances }
    }
}

/// The statistics of a search for near-duplicates.
#[derive(Clone, Debug, Serialize)]
pub struct Deduplicated {
    /// The number of vectors.
    pub vectors: u64,
    /// The number of dimensions of a vector.
    pub dimensions: usize,
    /// The element type of the vectors.
    pub element: Element,
    /// The number of rows of the answer. A row is a pair, or a vector that has a near-duplicate.
    pub rows: u64,
    /// The number of groups. The value is `None` if the answer has pairs.
    pub groups: Option<u64>,
    /// The number of rows that were sorted. If the answer has pairs, one row is sorted for each pair. If the answer has
    /// groups, two rows are sorted for each link. Links connect the same vectors as the pairs, but are fewer.
    pub sorted: u64,
    /// The number of pairs whose exact distances were computed.
    pub measured: u64,
    /// If the search used an index, the recall that the index's table of recall states.
    pub recall_estimate: Option<f32>,
    /// If the search used an index, the number of lists that each vector probed, and the number of all lists.
    pub probes: Option<[u64; 2]>,
    /// The plan.
    pub plan: DedupPlan,
}

/// The plan of a search for near-duplicates.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum DedupPlan {
    /// The plan of a search that compares all vectors.
    Exact(Plan),
    /// The plan of a search that probes lists of an index.
    Approximate(StrategyPlan),
}

impl std::fmt::Display for DedupPlan {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            DedupPlan::Exact(plan) => plan.fmt(out),
            DedupPlan::Approximate(plan) => plan.fmt(out),
        }
    }
}

/// Plans an exact search for near-duplicates. The plan uses the memory that is free in the budget of `job`.
///
/// # Errors
/// - Returns [`crate::Error::BadOption`] if an option is out of range.
/// - Returns [`crate::Error::Store`] if the budget has too little free memory.
pub fn plan_dedup(job: &Job, vectors: &Vectors, options: &Dedup) -> Result<Plan> {
    let free = job.budget().free_bytes();
    // The sort of pairs gets a quarter of the free memory. If the search then has too little memory, the sort gets the
    // smallest memory with which it works.
    match plan_with(job, vectors, options, (free / 4).max(sort_bytes_min())) {
        Ok((plan, _)) => Ok(plan),
        Err(_) => Ok(plan_with(job, vectors, options, sort_bytes_min())?.0),
    }
}

/// Checks the options of a search for near-duplicates in an index, without I/O.
///
/// # Errors
/// - Returns [`crate::Error::BadOption`] if an option is out of range.
/// - Returns [`crate::Error::BadOption`] if the index was built for another metric.
pub fn check_dedup_index(
    vectors: &Vectors,
    index: &VectorIndex,
    options: &Dedup,
    approximate: &Approximate,
) -> Result<()> {
    check_index_search(index, vectors.info(), vectors, &options.search(), approximate)
}

/// Returns the smallest memory, in bytes, in which a sort of pairs works.
fn sort_bytes_min() -> u64 {
    smallest_row_memory_bytes(1)
}

/// Returns the memory, in bytes, that the sort of pairs and the answer take in addition to the memory of the search.
fn beside_bytes(sort_bytes: u64) -> u64 {
    sort_bytes + Pairs::bytes()
}

fn plan_with(job: &Job, vectors: &Vectors, options: &Dedup, sort_bytes: u64) -> Result<(Plan, u64)> {
    let what = || format!("a search for near-duplicates in {}", vectors.info().name);
    // After the search for pairs, the search for components holds two sorts in memory at a time.
    job.budget().need(2 * sort_bytes + components_bytes() + answer_bytes(), what)?;
    let bytes = beside_bytes(sort_bytes) + DatasetFacts::bytes(vectors.info());
    let beside = Beside { entries: 0, bytes, what: &what, candidates: None };
    let means = Means { job, threads: job.budget().threads(), kept: &mut Kept::Nothing };
    let plan = plan_beside(&means, vectors.info(), Source::Stored(vectors), &options.search(), &beside)?;
    Ok((plan, sort_bytes))
}

/// Finds all pairs of vectors whose distance is at most the radius, or the groups of vectors that such pairs connect.
/// `each` receives the rows of the answer.
///
/// - Pairs are rows `id`, `duplicate` and `distance`, with `id` < `duplicate`, sorted by `id` and `duplicate`. Each
///   pair appears once. The number of pairs of a vector is not limited.
/// - Groups are rows `id` and `group`, sorted by `id`, with one row for each vector that has a near-duplicate. `group`
///   is the smallest id in the group of the vector. A caller that keeps one vector of each group drops the vectors
///   whose `id` is not their `group`.
///
/// If an index is given, the answer has those pairs of which one vector lies in a list that the other vector probes.
///
/// The exact search computes one multiplication for each pair of vectors and each dimension. The vectors are divided
/// into blocks of queries that fit into the memory. For each block, the vectors of the block and all later vectors are
/// read once. The sort has a quarter of the memory. If this quarter is too small for all pairs, each pair is written to
/// flash and read again a few times.
///
/// # Errors
/// - Returns [`crate::Error::BadOption`] if an option is out of range.
/// - Returns the errors of `each`.
/// - Returns [`crate::Error::Store`] if the budget has too little free memory, a read or write fails, stored bytes are
///   damaged, or the job was cancelled.
pub fn dedup(
    job: &Job,
    vectors: &Vectors,
    index: Option<(&VectorIndex, &Approximate)>,
    options: &Dedup,
    each: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<Deduplicated> {
    options.check()?;
    options.metric.check(vectors.info().element)?;
    let (sorted, sort_bytes, mut found) = match index {
        Some((index, approximate)) => near_in_index(job, vectors, (index, approximate), options)?,
        None => near_in_all(job, vectors, options)?,
    };
    found.sorted = sorted.stats().rows_in;
    let _memory = job.budget().reserve(answer_bytes(), "rows of the answer")?;
    match options.groups {
        true => write_groups(components(job, sorted, sort_bytes)?, options, &mut found, each)?,
        false => {
            job.start_phase("writing pairs", "pairs", 0);
            write_pairs(sorted, options, &mut found, each)?;
        }
    }
    Ok(found)
}

fn found_of(vectors: &Vectors, measured: u64, plan: DedupPlan) -> Deduplicated {
    let info = vectors.info();
    Deduplicated {
        vectors: info.live(),
        dimensions: info.dimensions,
        element: info.element,
        rows: 0,
        groups: None,
        sorted: 0,
        measured,
        recall_estimate: None,
        probes: None,
        plan,
    }
}

/// Finds near pairs by comparing all vectors.
fn near_in_all(job: &Job, vectors: &Vectors, options: &Dedup) -> Result<(Sorted, u64, Deduplicated)> {
    let free = job.budget().free_bytes();
    let large = plan_with(job, vectors, options, (free / 4).max(sort_bytes_min()));
    let (plan, sort_bytes) = large.or_else(|_| plan_with(job, vectors, options, sort_bytes_min()))?;
    let pairs = Pairs::new(job, options.form(), (options.metric, options.radius), sort_bytes)?;
    let search = options.search();
    let facts = DatasetFacts::read(job, vectors)?;
    let search = &*facts.among_live(job, vectors, &search)?;
    let measured = pairs_of_all(job, (vectors, &facts), search, &plan, &pairs)?;
    Ok((pairs.finish()?, sort_bytes, found_of(vectors, measured, DedupPlan::Exact(plan))))
}

/// Finds near pairs by comparing each vector with the vectors of the lists that it probes.
fn near_in_index(
    job: &Job,
    vectors: &Vectors,
    (index, approximate): (&VectorIndex, &Approximate),
    options: &Dedup,
) -> Result<(Sorted, u64, Deduplicated)> {
    let what = || format!("a search for near-duplicates in the index of {}", vectors.info().name);
    job.budget().need(2 * sort_bytes_min() + components_bytes() + answer_bytes(), what)?;
    // An eighth of the free memory is used, because the error of [`inshore_store::Budget::need`] assumes that other
    // reservations take an eighth of the memory that it demands.
    let sort_bytes = (job.budget().free_bytes() / 8).max(sort_bytes_min());
    let pairs = Pairs::new(job, options.form(), (options.metric, options.radius), sort_bytes)?;
    let searched = pairs_of_index(job, vectors, index, &options.search(), approximate, &pairs)?;
    let mut found = found_of(vectors, searched.measured, DedupPlan::Approximate(searched.plan));
    found.recall_estimate = searched.recall_estimate;
    found.probes = Some([searched.probes, searched.lists]);
    Ok((pairs.finish()?, sort_bytes, found))
}

/// Returns the memory, in bytes, that a batch of the answer takes, together with the rows from which the batch is made.
fn answer_bytes() -> u64 {
    2 * BATCH_ROWS as u64 * 20 + (ROWS_BYTES + 32) as u64
}

fn write_pairs(
    mut pairs: Sorted,
    options: &Dedup,
    found: &mut Deduplicated,
    each: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<()> {
    let schema = options.schema();
    let mut columns = (Vec::new(), Vec::new(), Vec::new());
    let mut flush = |(ids, duplicates, distances): &mut (Vec<u64>, Vec<u64>, Vec<f32>)| -> Result<()> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(UInt64Array::from(std::mem::take(ids))),
            Arc::new(UInt64Array::from(std::mem::take(duplicates))),
            Arc::new(Float32Array::from(std::mem::take(distances))),
        ];
        each(RecordBatch::try_new(schema.clone(), columns).expect("columns of the schema's types"))
    };
    each_row(&mut pairs, Form::Distances.row_bytes(), |id, duplicate, distance| {
        columns.0.push(id);
        columns.1.push(duplicate);
        columns.2.push(f32::from_le_bytes(distance.try_into().expect("four bytes")));
        found.rows += 1;
        if columns.0.len() == BATCH_ROWS { flush(&mut columns) } else { Ok(()) }
    })?;
    if columns.0.is_empty() { Ok(()) } else { flush(&mut columns) }
}

/// Writes a row for each id that has a link. The group of an id is the smaller of two ids: the id itself, and the
/// smallest id that is linked with it.
fn write_groups(
    mut links: Sorted,
    options: &Dedup,
    found: &mut Deduplicated,
    each: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<()> {
    let schema = options.schema();
    let (mut ids, mut groups) = (Vec::new(), Vec::new());
    let mut flush = |ids: &mut Vec<u64>, groups: &mut Vec<u64>| -> Result<()> {
        let columns: Vec<ArrayRef> = vec![
            Arc::new(UInt64Array::from(std::mem::take(ids))),
            Arc::new(UInt64Array::from(std::mem::take(groups))),
        ];
        each(RecordBatch::try_new(schema.clone(), columns).expect("columns of the schema's types"))
    };
    let (mut last, mut count) = (None, 0);
    each_row(&mut links, Form::Links.row_bytes(), |id, other, _| {
        // The links are sorted, so the first link of an id leads to the smallest linked id.
        if last.replace(id) == Some(id) {
            return Ok(());
        }
        ids.push(id);
        groups.push(id.min(other));
        found.rows += 1;
        count += u64::from(id < other);
        if ids.len() == BATCH_ROWS { flush(&mut ids, &mut groups) } else { Ok(()) }
    })?;
    found.groups = Some(count);
    if ids.is_empty() { Ok(()) } else { flush(&mut ids, &mut groups) }
}
