//! Near-duplicates: all pairs of vectors of a dataset within a distance, or groups of them.
//!
//! ```text
//!   vectors (queries) ─┐
//!   vectors ───────────┴─► search without heaps ─► pairs, sorted ─┬─► rows: id, duplicate, distance
//!                                                                └─► components ─► rows: id, group
//! ```
//!
//! A search with k neighbours would lose pairs of a vector that has more than k duplicates. So the search keeps no
//! heaps: each pair within the distance goes to a sort ([`pairs`](crate::pairs)), whose memory does not depend on the number of
//! pairs. Groups need only some of the pairs (`pairs/links.rs`).
//!
//! The exact search compares each pair of blocks once: a block of queries meets the vectors from its own first one on.

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
    /// The largest distance of near-duplicates, or the smallest inner product.
    pub radius: f64,
    /// Returns groups in the place of pairs.
    pub groups: bool,
}

impl Dedup {
    /// Checks the options.
    ///
    /// # Errors
    /// [`crate::Error::BadOption`].
    pub fn check(&self) -> Result<()> {
        self.search().check()
    }

    /// Returns the columns of the answer: `id`, `duplicate` and `distance`, or `id` and `group`.
    pub fn schema(&self) -> SchemaRef {
        let id = |name| Field::new(name, DataType::UInt64, false);
        let distance = Field::new("distance", DataType::Float32, false);
        let fields = match self.groups {
            true => vec![id("id"), id("group")],
            false => vec![id("id"), id("duplicate"), distance],
        };
        Arc::new(Schema::new(fields))
    }

    /// Returns the search: its k is of no use.
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
    /// The number of rows of the answer: pairs, or vectors that have a near-duplicate.
    pub rows: u64,
    /// The number of groups, if groups were asked for.
    pub groups: Option<u64>,
    /// The number of rows that were sorted: one for each pair, or two for each link between vectors if groups were
    /// asked for. Links connect the same vectors as pairs, and are fewer.
    pub sorted: u64,
    /// The number of pairs whose exact distances were computed.
    pub measured: u64,
    /// The recall by the table of the index, of a search in an index.
    pub recall_estimate: Option<f32>,
    /// The number of lists that each vector probed, of a search in an index, and the number of all lists.
    pub probes: Option<[u64; 2]>,
    /// The plan.
    pub plan: DedupPlan,
}

/// The plan of a search for near-duplicates.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum DedupPlan {
    /// All vectors are compared.
    Exact(Plan),
    /// Lists of an index are probed.
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

/// Plans an exact search for near-duplicates with the memory that is free in the budget of `job`.
///
/// # Errors
/// A bad option; too little memory.
pub fn plan_dedup(job: &Job, vectors: &Vectors, options: &Dedup) -> Result<Plan> {
    let free = job.budget().free_bytes();
    // A quarter of the memory sorts pairs, unless the search needs it.
    match plan_with(job, vectors, options, (free / 4).max(sort_bytes_min())) {
        Ok((plan, _)) => Ok(plan),
        Err(_) => Ok(plan_with(job, vectors, options, sort_bytes_min())?.0),
    }
}

/// Checks the options of a search in an index, without I/O.
///
/// # Errors
/// Bad options; an index for another metric.
pub fn check_dedup_index(
    vectors: &Vectors,
    index: &VectorIndex,
    options: &Dedup,
    approximate: &Approximate,
) -> Result<()> {
    check_index_search(index, vectors.info(), vectors, &options.search(), approximate)
}

/// Returns the smallest memory of a sort of pairs.
fn sort_bytes_min() -> u64 {
    smallest_row_memory_bytes(1)
}

/// Returns the memory that is in use beside a search.
fn beside_bytes(sort_bytes: u64) -> u64 {
    sort_bytes + Pairs::bytes()
}

fn plan_with(job: &Job, vectors: &Vectors, options: &Dedup, sort_bytes: u64) -> Result<(Plan, u64)> {
    let what = || format!("a search for near-duplicates in {}", vectors.info().name);
    // After the search, two sorts find components.
    job.budget().need(2 * sort_bytes + components_bytes() + answer_bytes(), what)?;
    let bytes = beside_bytes(sort_bytes) + DatasetFacts::bytes(vectors.info());
    let beside = Beside { entries: 0, bytes, what: &what };
    let means = Means { job, threads: job.budget().threads(), kept: &mut Kept::Nothing };
    let plan = plan_beside(&means, vectors.info(), Source::Stored(vectors), &options.search(), &beside)?;
    Ok((plan, sort_bytes))
}

/// Finds all pairs of vectors within a distance, or groups of vectors that such pairs connect. Passes the rows to
/// `each`.
///
/// - Pairs are rows `id`, `duplicate` and `distance`, with `id` < `duplicate`, in the order of both. Each pair appears
///   once, however many pairs a vector has.
/// - Groups are rows `id` and `group`, in the order of `id`: one for each vector that has a near-duplicate. The group
///   is the smallest id of the vectors that pairs connect. To keep one vector of each group, drop those whose id is not
///   their group.
///
/// With an index, the answer has the pairs of which one vector lies in a list that the other one probes.
///
/// The cost of the exact search is one multiplication for each two vectors and each dimension; for each block of
/// vectors that fits into the memory, the block and all later vectors are read once. Each pair is written to flash and
/// read a few times if the sort's quarter of the memory is too small for all pairs.
///
/// # Errors
/// A bad option; too little memory; I/O and damage; cancellation; the errors of `each`.
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

/// Compares all vectors.
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

/// Compares each vector with the lists that it probes.
fn near_in_index(
    job: &Job,
    vectors: &Vectors,
    (index, approximate): (&VectorIndex, &Approximate),
    options: &Dedup,
) -> Result<(Sorted, u64, Deduplicated)> {
    let what = || format!("a search for near-duplicates in the index of {}", vectors.info().name);
    job.budget().need(2 * sort_bytes_min() + components_bytes() + answer_bytes(), what)?;
    // The refusal of a search that needs more memory names a budget of which others take an eighth.
    let sort_bytes = (job.budget().free_bytes() / 8).max(sort_bytes_min());
    let pairs = Pairs::new(job, options.form(), (options.metric, options.radius), sort_bytes)?;
    let searched = pairs_of_index(job, vectors, index, &options.search(), approximate, &pairs)?;
    let mut found = found_of(vectors, searched.measured, DedupPlan::Approximate(searched.plan));
    found.recall_estimate = searched.recall_estimate;
    found.probes = Some([searched.probes, searched.lists]);
    Ok((pairs.finish()?, sort_bytes, found))
}

/// Returns the memory of a batch of rows of the answer, and of the rows from which it is made.
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

/// Writes the smallest id that is linked with each id: its group, or the id itself.
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
        // The first link of an id is that with the smallest id.
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
