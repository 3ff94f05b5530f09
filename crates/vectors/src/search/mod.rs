//! The exact search for the nearest neighbours of a batch of queries.
//!
//! One pass over the vectors answers as many queries as fit into the memory budget together with their neighbours. A
//! larger batch is split into blocks of queries, with one pass for each block ([`plan`]). During a pass, the queries of
//! the block stay in memory, packed for the kernels ([`queries`]), while [`scan`] reads the vectors.

mod among;
mod dataset_facts;
mod plan;
mod queries;
mod scan;
mod shard;
mod source;

use std::sync::Arc;

use arrow_array::{
    ArrayRef, Float32Array, RecordBatch, UInt32Array, UInt64Array, cast::AsArray, types::UInt64Type,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use inshore_store::{Buffer, Job};
use serde::Serialize;

pub use self::plan::{Estimates, Kernel, Plan};
pub use self::shard::{ShardSearch, shard_schema};
pub use self::source::Source;
pub(crate) use self::{
    among::{Candidates, search_among},
    dataset_facts::{DatasetFacts, center_of_vectors},
    queries::compared_value,
    shard::{send_tops, shard_tops},
    source::{HeldRows, QueryRows},
};
use self::{
    queries::{Batch, Queries},
    scan::Pass,
};
use crate::{
    Error, Metric, Result, RowSet, Vectors, VectorsInfo,
    element::Element,
    filter::Filter,
    heaps::Tops,
    kept::Kept,
    metric::Measured,
    pairs::Pairs,
    tiles::{Instructions, Tiled},
    topk::{Entry, TopK},
};

/// The number of rows in a batch of the answer.
pub(crate) const BATCH_ROWS: usize = 8 << 10;

/// The options of a search.
#[derive(Clone, Debug, PartialEq)]
pub struct Search {
    /// The number of neighbours of each query. A query has fewer neighbours if the dataset has fewer vectors, or if
    /// fewer vectors lie within the radius around it.
    pub k: u64,
    /// The metric.
    pub metric: Metric,
    /// The largest distance of a neighbour. For the inner product, it is the smallest product. The value is `None` if
    /// the distance is not limited.
    pub radius: Option<f64>,
    /// If true, the vector with the same id as the query is never an answer, whatever its distance is. This option is
    /// for a dataset that is joined with itself.
    pub excludes_itself: bool,
    /// The row numbers of the vectors that may be answers. `None` selects all vectors. The length of the set must be
    /// the number of rows of the dataset.
    pub selection: Option<Arc<RowSet>>,
    /// The instruction set of the filter, for tests and measurements. By default the best instruction set of the
    /// processor is used. The choice does not change the answer.
    pub instructions: Option<Instructions>,
    /// The kernel that compares vectors, for tests and measurements. By default the number of queries determines it.
    pub kernel: Option<Kernel>,
}

impl Default for Search {
    /// Returns the options for the ten nearest neighbours by Euclidean distance.
    fn default() -> Search {
        Search {
            k: 10,
            metric: Metric::L2,
            radius: None,
            excludes_itself: false,
            selection: None,
            instructions: None,
            kernel: None,
        }
    }
}

impl Search {
    /// Checks the options.
    ///
    /// # Errors
    /// Returns [`Error::BadOption`] if an option is out of range.
    pub fn check(&self) -> Result<()> {
        let bad = |option, found: String, expected: &str| {
            Err(Error::BadOption { option, found, expected: expected.to_string() })
        };
        match self.radius {
            _ if self.k == 0 => bad("k", "0".to_string(), "at least 1"),
            Some(radius) if !radius.is_finite() => bad("radius", radius.to_string(), "a finite number"),
            Some(radius) if radius < 0.0 && self.metric != Metric::Ip => {
                bad("radius", radius.to_string(), "a distance, at least 0")
            }
            _ => Ok(()),
        }
    }

    /// Checks that the selection has the length of this dataset.
    ///
    /// # Errors
    /// Returns [`Error::BadOption`] if an option is out of range.
    pub(crate) fn check_selection(&self, vectors: &VectorsInfo) -> Result<()> {
        match &self.selection {
            Some(selection) if selection.len() != vectors.vectors => Err(Error::BadOption {
                option: "selection",
                found: format!("a set of {} vectors", selection.len()),
                expected: format!("one of the {} vectors of {}", vectors.vectors, vectors.name),
            }),
            _ => Ok(()),
        }
    }

    /// Returns the largest number of neighbours that a query can have among `vectors` vectors. The result is at least
    /// 1.
    pub(crate) fn neighbours(&self, vectors: u64) -> u64 {
        let among = match &self.selection {
            Some(selection) => selection.count(),
            None => vectors.saturating_sub(u64::from(self.excludes_itself)),
        };
        self.k.min(among).max(1)
    }

    /// Returns how many nearest vectors must be found so that they include the k neighbours of a query. This is k, or k
    /// + 1 if the query itself is excluded. The result is at most `vectors`.
    pub(crate) fn needed(&self, vectors: u64) -> u64 {
        self.k.saturating_add(u64::from(self.excludes_itself)).min(vectors)
    }
}

/// Returns an empty heap for each query. `queries` are the ids of the queries, and `new_top` creates a heap.
pub(crate) fn new_tops(
    search: &Search,
    vectors: u64,
    queries: &[u64],
    new_top: fn(usize, f64) -> TopK,
) -> Vec<TopK> {
    let k = search.neighbours(vectors) as usize;
    let bound = search.radius.map_or(f64::INFINITY, |radius| search.metric.key_within(radius));
    let top = |&id: &u64| match search.excludes_itself {
        true => new_top(k, bound).without(id),
        false => new_top(k, bound),
    };
    queries.iter().map(top).collect()
}

/// The statistics of a search.
#[derive(Clone, Debug, Serialize)]
pub struct Searched {
    /// The number of queries.
    pub queries: u64,
    /// The number of vectors with which each query was compared.
    pub vectors: u64,
    /// The number of dimensions of a vector.
    pub dimensions: usize,
    /// The element type of the vectors.
    pub element: Element,
    /// The number of rows of the answer.
    pub rows: u64,
    /// The number of pairs whose exact distances were computed, because the filter could not exclude them. This number
    /// depends on the order in which threads find neighbours. The answer does not depend on this order.
    pub measured: u64,
    /// True if so few vectors are selected that a search in an index would cost more than this exact search
    /// ([`crate::is_sparse`]).
    #[serde(skip)]
    pub is_sparse: bool,
    /// The plan.
    pub plan: Plan,
}

/// Returns the columns of an answer: `query`, `rank` (from 1), `id` and `distance`.
pub fn schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("query", DataType::UInt64, false),
        Field::new("rank", DataType::UInt32, false),
        Field::new("id", DataType::UInt64, false),
        Field::new("distance", DataType::Float32, false),
    ]))
}

/// Returns the query and the id of each row of an answer.
pub(crate) fn pairs_of_answer(batch: &RecordBatch) -> impl Iterator<Item = (u64, u64)> {
    let column = |number: usize| batch.column(number).as_primitive::<UInt64Type>().values().iter().copied();
    column(0).zip(column(2))
}

/// Plans a search. The plan uses the memory that is free in the budget of `job`.
///
/// # Errors
/// - Returns [`crate::Error::BadOption`] if an option is out of range.
/// - Returns [`crate::Error::BadFile`] if the queries have another number of dimensions than the vectors.
/// - Returns [`crate::Error::Store`] if the budget has too little free memory for one query.
pub fn plan<'a>(
    job: &Job,
    vectors: &VectorsInfo,
    queries: impl Into<Source<'a>>,
    search: &Search,
) -> Result<Plan> {
    let means = Means { job, threads: job.budget().threads(), kept: &mut Kept::Nothing };
    plan_answer(&means, vectors, queries.into(), search, DatasetFacts::bytes(vectors))
}

/// The memory and threads of a search.
pub(crate) struct Means<'a> {
    pub job: &'a Job,
    /// The largest number of worker threads.
    pub threads: usize,
    /// The memory that an earlier search has kept.
    pub kept: &'a mut Kept,
}

/// Plans a search beside others, which will take so many bytes.
pub(crate) fn plan_answer(
    means: &Means<'_>,
    vectors: &VectorsInfo,
    source: Source<'_>,
    search: &Search,
    bytes: u64,
) -> Result<Plan> {
    let k = search.neighbours(vectors.live());
    let what = || format!("a search of {k} neighbours among {}", vectors.name);
    let beside = Beside { entries: k, bytes, what: &what, candidates: None };
    plan_beside(means, vectors, source, search, &beside)
}

/// Memory that is in use during a search in addition to the blocks of vectors and the queries.
pub(crate) struct Beside<'a> {
    /// The number of heap entries that are kept for each query.
    pub entries: u64,
    /// The bytes of memory that other structures use during the search.
    pub bytes: u64,
    /// Returns a description of the search, for an error.
    pub what: &'a dyn Fn() -> String,
    /// The expected number of candidates, if each query has its own. A pass answers one query then.
    pub candidates: Option<u64>,
}

/// Plans a search. The plan uses the free memory in the budget of `job`, except for the memory that `beside` needs.
///
/// # Errors
/// - Returns [`crate::Error::BadOption`] if an option is out of range.
/// - Returns [`crate::Error::BadFile`] if the queries have another number of dimensions than the vectors.
/// - Returns [`crate::Error::Store`] if the budget has too little free memory for one query.
pub(crate) fn plan_beside(
    means: &Means<'_>,
    vectors: &VectorsInfo,
    source: Source<'_>,
    search: &Search,
    beside: &Beside<'_>,
) -> Result<Plan> {
    search.check_selection(vectors)?;
    check_search(vectors, source, search)?;
    let (budget, kept_bytes) = (means.job.budget(), means.kept.bytes());
    let live = (vectors.removed > 0).then_some(vectors.live());
    let mut plan = Plan::new(&Estimates {
        vectors: vectors.vectors,
        dimensions: vectors.dimensions,
        element: vectors.element,
        metric: search.metric,
        selected: beside.candidates.or(search.selection.as_ref().map(|selection| selection.count())).or(live),
        queries: if beside.candidates.is_some() { 1 } else { source.count() },
        k: beside.entries,
        memory_bytes: (budget.free_bytes() + kept_bytes).saturating_sub(beside.bytes),
        threads: means.threads,
        reader_bytes: source.rows_bytes(),
    });
    budget.need((plan.smallest_bytes() + beside.bytes).saturating_sub(kept_bytes), beside.what)?;
    if beside.candidates.is_some() {
        plan.passes = source.count();
    }
    if let Some(instructions) = search.instructions {
        plan.instructions = instructions;
    }
    if let (Some(kernel), true) = (search.kernel, plan.kernel != Kernel::Counts) {
        plan.kernel = kernel;
    }
    Ok(plan)
}

/// Checks that queries have as many dimensions as the vectors, and that either both or neither are vectors of bits.
///
/// # Errors
/// Returns [`Error::BadFile`] if the dimensions or the element types do not match.
pub(crate) fn check_dimensions(source: Source<'_>, vectors: &VectorsInfo) -> Result<()> {
    let is_bits = |element| element == Element::Bits;
    if is_bits(source.element()) != is_bits(vectors.element) {
        return Err(Error::BadFile {
            file: source.name(),
            place: "the elements".to_string(),
            found: source.element().to_string(),
            expected: format!("{}, as the vectors of {}", vectors.element, vectors.name),
        });
    }
    if source.dimensions() == vectors.dimensions {
        return Ok(());
    }
    Err(Error::BadFile {
        file: source.name(),
        place: "vector 0".to_string(),
        found: format!("{} dimensions", source.dimensions()),
        expected: format!("{}, as the vectors of {}", vectors.dimensions, vectors.name),
    })
}

/// Checks the options of an exact search and the dimensions of the queries. The check does no I/O.
///
/// # Errors
/// - Returns [`Error::BadOption`] if an option is out of range.
/// - Returns [`Error::BadFile`] if the queries do not have the dimensions and the element type that the vectors need.
pub fn check_search<'a>(
    vectors: &VectorsInfo,
    queries: impl Into<Source<'a>>,
    search: &Search,
) -> Result<()> {
    search.check()?;
    search.metric.check(vectors.element)?;
    check_dimensions(queries.into(), vectors)
}

/// Finds the nearest vectors of each query. Passes the rows of the answer to `each`, in the order of the queries and
/// then of the ranks.
///
/// Each pass reads all vectors once. The search computes one multiplication for each query, vector and dimension.
/// [`Plan`] describes the memory.
///
/// # Errors
/// Returns the errors of [`crate::search()`].
pub(crate) fn search_with(
    means: &mut Means<'_>,
    (vectors, facts): (&Vectors, &DatasetFacts),
    source: Source<'_>,
    search: &Search,
    each: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<Searched> {
    let (job, info) = (means.job, vectors.info());
    let search = &*facts.among_live(job, vectors, search)?;
    let mut plan = plan_answer(means, info, source, search, facts.unread_bytes(vectors))?;
    if vectors.file.is_held() {
        plan = plan.in_memory(info.row_bytes());
    }
    let mut answer = AnswerRows::new(search.metric, each);
    let passes = Passes { job, vectors, facts, source, search, plan: &plan };
    let measured = passes.run(means.kept, &mut Receiver::Answer(&mut answer))?;
    answer.flush()?;
    Ok(Searched {
        queries: source.count(),
        vectors: plan.selected.unwrap_or(info.vectors),
        dimensions: info.dimensions,
        element: info.element,
        rows: answer.rows,
        measured,
        is_sparse: search.selection.as_deref().is_some_and(crate::is_sparse),
        plan,
    })
}

/// Finds all pairs of vectors of a dataset whose distance is at most the radius of `search`. The selection of `search`
/// must be the live vectors. Each pair of vectors is compared once. Returns for how many pairs the exact distance was
/// computed.
///
/// # Errors
/// Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, or the job was cancelled.
pub(crate) fn pairs_of_all(
    job: &Job,
    (vectors, facts): (&Vectors, &DatasetFacts),
    search: &Search,
    plan: &Plan,
    pairs: &Pairs,
) -> Result<u64> {
    let source = Source::Stored(vectors);
    let passes = Passes { job, vectors, facts, source, search, plan };
    passes.run(&mut Kept::Nothing, &mut Receiver::Pairs(pairs))
}

/// The receiver of the near vectors that passes find.
enum Receiver<'a, 'b> {
    /// Keeps the nearest vectors of each query.
    Answer(&'a mut AnswerRows<'b>),
    /// Keeps the nearest candidates of each query. A pass answers one query.
    Among(&'a mut AnswerRows<'b>, &'a mut dyn Candidates),
    /// Keeps all pairs of a query and a vector with a larger number. The queries are vectors of the dataset.
    Pairs(&'a Pairs),
    /// Keeps the nearest vectors of each query in heaps of the caller. There is one heap for each query of the source.
    Tops(&'a [TopK]),
}

/// All passes of a search.
struct Passes<'a> {
    job: &'a Job,
    vectors: &'a Vectors,
    facts: &'a DatasetFacts,
    source: Source<'a>,
    search: &'a Search,
    plan: &'a Plan,
}

impl Passes<'_> {
    /// Runs all passes. Returns the number of pairs whose exact distances were computed.
    fn run(&self, kept: &mut Kept, receiver: &mut Receiver<'_, '_>) -> Result<u64> {
        match self.vectors.info().element {
            Element::F32 | Element::F16 | Element::Bf16 => self.run_elements::<f32>(kept, receiver),
            Element::U8 | Element::Bits => self.run_elements::<u8>(kept, receiver),
            Element::I8 => self.run_elements::<i8>(kept, receiver),
        }
    }

    fn run_elements<T: Tiled>(&self, kept: &mut Kept, receiver: &mut Receiver<'_, '_>) -> Result<u64> {
        let Passes { job, vectors, facts, source, search, plan } = *self;
        let info = vectors.info();
        let row_elements = info.element.queried().row_bytes(info.dimensions) / size_of::<T>();
        let count = plan.threads * plan.buffers;
        let buffer_bytes = count * plan.block_bytes;
        let mut buffers = match kept.take_blocks(count, plan.block_bytes) {
            Some(buffers) => buffers,
            None => Buffer::zeroed(job.budget(), buffer_bytes, "blocks of vectors")?.split(plan.block_bytes),
        };
        let elsewhere = inshore_store::taken_bytes(buffer_bytes) as u64 + source.rows_bytes();
        let others = plan.fixed_bytes.saturating_sub(elsewhere);
        let _others = job.budget().reserve(others, "a search")?;
        // Sums over rows use the elements themselves, without a center, so `Kernel::Rows` has a center of zeros.
        let center = match plan.kernel {
            Kernel::Tiles => facts.center(job, vectors, search.metric)?,
            Kernel::Rows => vec![0.0; row_elements],
            Kernel::Counts => Vec::new(),
        };
        let filter = Filter::new(search.metric, row_elements, f32::norm(&center), T::IS_INTEGER);
        let filter = if plan.kernel == Kernel::Rows { filter.of_row_sums() } else { filter };
        let batch = Batch { job, source, info, metric: search.metric, center: &center, plan };
        let center_lanes: Vec<T::Lane> = center.iter().map(|&c| T::star(c.into())).collect();
        let mut rows = source.rows(job)?;
        let (mut first, mut measured) = (0, 0);
        self.start_phase(receiver);
        while first < source.count() {
            let end = source.count().min(first + plan.queries_per_pass);
            let memory = (end - first) * plan.query_bytes;
            let memory = job.budget().reserve(memory, "queries and their neighbours")?;
            let queries = Queries::<T>::read(&mut rows, first..end, &batch, memory)?;
            let mut run = |heaps, selection, only_later| {
                let pass = Pass {
                    job,
                    file: &vectors.file,
                    vectors: info.vectors,
                    selection,
                    ids: &facts.ids,
                    dimensions: row_elements,
                    element: info.element,
                    row_bytes: info.row_bytes(),
                    plan,
                    search,
                    filter,
                    center: &center_lanes,
                    queries: &queries,
                    heaps,
                    only_later,
                };
                let (returned, pairs) = pass.run(std::mem::take(&mut buffers))?;
                buffers = returned;
                measured += pairs;
                Ok::<_, Error>(())
            };
            match receiver {
                Receiver::Answer(answer) => {
                    let tops = new_tops(search, info.live(), &queries.ids, TopK::new);
                    run(&Tops { first: 0, tops: &tops }, search.selection.as_deref(), None)?;
                    answer.add_all(job, &queries.ids, tops)?;
                }
                Receiver::Among(answer, candidates) => {
                    let tops = new_tops(search, info.live(), &queries.ids, TopK::new);
                    let among = candidates.of_query(queries.bytes(0))?;
                    run(&Tops { first: 0, tops: &tops }, Some(among), None)?;
                    answer.add_all(job, &queries.ids, tops)?;
                }
                Receiver::Tops(tops) => {
                    run(
                        &Tops { first: 0, tops: &tops[first as usize..end as usize] },
                        search.selection.as_deref(),
                        None,
                    )?;
                }
                Receiver::Pairs(pairs) => {
                    // If ids are row numbers, a later row has a larger id. If vectors were replaced, a later row may
                    // have a smaller id.
                    let near = pairs.of_queries(&queries.ids, facts.ids.are_rows());
                    run(&near, search.selection.as_deref(), Some(first))?;
                    near.finish()?;
                }
            }
            first = end;
        }
        *kept = Kept::Blocks(buffers);
        Ok(measured)
    }

    /// Starts the phase of the job's progress, with the number of vectors that all passes together read.
    fn start_phase(&self, receiver: &Receiver<'_, '_>) {
        let (plan, vectors) = (self.plan, self.vectors.info().vectors);
        let first_row = |pass: u64| match receiver {
            Receiver::Answer(_) | Receiver::Among(..) | Receiver::Tops(_) => 0,
            Receiver::Pairs(_) => scan::first_row(plan, pass * plan.queries_per_pass),
        };
        let read = (0..plan.passes).map(|pass| vectors - first_row(pass)).sum();
        self.job.start_phase("searching", "vectors", read);
    }
}

pub(crate) struct Row {
    pub query: u64,
    pub rank: u32,
    pub entry: Entry,
}

/// Collects rows of the answer into batches.
pub(crate) struct AnswerRows<'a> {
    each: &'a mut dyn FnMut(RecordBatch) -> Result<()>,
    metric: Metric,
    schema: SchemaRef,
    pending: Vec<Row>,
    pub rows: u64,
}

impl<'a> AnswerRows<'a> {
    pub fn new(metric: Metric, each: &'a mut dyn FnMut(RecordBatch) -> Result<()>) -> AnswerRows<'a> {
        AnswerRows { each, metric, schema: schema(), pending: Vec::new(), rows: 0 }
    }

    pub fn add(&mut self, row: Row) -> Result<()> {
        self.pending.push(row);
        if self.pending.len() == BATCH_ROWS { self.flush() } else { Ok(()) }
    }

    /// Adds the entries of heaps as rows. `queries` are the ids of the queries to which the heaps belong.
    ///
    /// # Errors
    /// Returns [`Error::Store`] if the job was cancelled, and the errors of the receiver of the rows.
    pub fn add_all(&mut self, job: &Job, queries: &[u64], tops: Vec<TopK>) -> Result<()> {
        for (&query, top) in queries.iter().zip(tops) {
            job.check_cancelled()?;
            for (rank, entry) in (1..).zip(top.into_sorted()) {
                self.add(Row { query, rank, entry })?;
            }
        }
        Ok(())
    }

    pub fn flush(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let rows = &self.pending;
        let distance = |row: &Row| self.metric.distance(row.entry.key) as f32;
        let columns: Vec<ArrayRef> = vec![
            Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.query))),
            Arc::new(UInt32Array::from_iter_values(rows.iter().map(|row| row.rank))),
            Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.entry.id))),
            Arc::new(Float32Array::from_iter_values(rows.iter().map(distance))),
        ];
        let batch =
            RecordBatch::try_new(self.schema.clone(), columns).expect("columns of the schema's types");
        self.rows += batch.num_rows() as u64;
        self.pending.clear();
        (self.each)(batch)
    }
}
