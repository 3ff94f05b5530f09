//! The search for the nearest neighbours of a batch of queries.
//!
//! One pass over the vectors answers as many queries as fit into the budget, with their neighbours. A larger batch is
//! split into blocks of queries, with one pass for each block ([`plan`]). During a pass, the queries stay in memory,
//! packed for the kernels ([`queries`]), while [`scan`] reads the vectors.

mod live;
mod plan;
mod queries;
mod scan;
mod shard;
mod source;

use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, RecordBatch, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use inshore_store::{Buffer, FileReader, Job};
use serde::Serialize;

pub use self::plan::{Estimates, Kernel, Plan};
pub use self::shard::{ShardSearch, shard_schema};
pub use self::source::Source;
pub(crate) use self::{
    live::among_live,
    queries::compared_value,
    shard::{send_tops, shard_tops},
    source::QueryRows,
};
use self::{
    queries::{Batch, Queries},
    scan::Pass,
};
use crate::{
    Error, Metric, Result, RowSet, Vectors, VectorsInfo,
    dataset::CHECK_BYTES,
    element::{Element, floats},
    filter::Filter,
    heaps::Tops,
    ids::Ids,
    live::live_bytes,
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
    /// The number of neighbours of each query. The answer has fewer if the dataset or the radius holds fewer vectors.
    pub k: u64,
    /// The metric.
    pub metric: Metric,
    /// The radius: the largest distance of a neighbour, or the smallest inner product.
    pub radius: Option<f64>,
    /// Excludes the vector with the id of a query from its neighbours, whatever their distance. For a dataset that is
    /// joined with itself.
    pub excludes_itself: bool,
    /// The vectors that may be answers, by default all. The set is one of numbers below the number of vectors.
    pub selection: Option<Arc<RowSet>>,
    /// The instruction set of the filter, for tests and measurements. The default is the best one of the processor. The
    /// choice does not change the answer.
    pub instructions: Option<Instructions>,
    /// The kernel that compares vectors, for tests and measurements. By default the number of queries determines it.
    pub kernel: Option<Kernel>,
}

impl Default for Search {
    /// Returns the ten nearest neighbours by Euclidean distance.
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
    /// [`Error::BadOption`].
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

    /// Checks that the selection is one of the vectors of this dataset.
    ///
    /// # Errors
    /// [`Error::BadOption`].
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

    /// Returns the largest number of neighbours that a query can have among `vectors` vectors, at least 1.
    pub(crate) fn neighbours(&self, vectors: u64) -> u64 {
        let among = match &self.selection {
            Some(selection) => selection.count(),
            None => vectors.saturating_sub(u64::from(self.excludes_itself)),
        };
        self.k.min(among).max(1)
    }

    /// Returns the number of vectors among which a query has all its neighbours, if it does not have fewer.
    pub(crate) fn needed(&self, vectors: u64) -> u64 {
        self.k.saturating_add(u64::from(self.excludes_itself)).min(vectors)
    }
}

/// Returns an empty heap for each of the queries with the ids `queries`, made by `new_top`.
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
    /// The number of pairs that the filter could not exclude, and whose exact distances were computed. The number
    /// depends on the order in which threads find neighbours; the answer does not.
    pub measured: u64,
    /// True if so few vectors were selected that a search in an index would cost more ([`crate::is_sparse`]).
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

/// Plans a search with the memory that is free in the budget of `job`.
///
/// # Errors
/// A bad option; queries of other dimensions; too little memory for one query.
pub fn plan<'a>(
    job: &Job,
    vectors: &VectorsInfo,
    queries: impl Into<Source<'a>>,
    search: &Search,
) -> Result<Plan> {
    plan_answer(job, vectors, queries.into(), search, live_bytes(vectors))
}

/// Plans a search beside the set of live rows, which will take so many bytes.
fn plan_answer(
    job: &Job,
    vectors: &VectorsInfo,
    source: Source<'_>,
    search: &Search,
    live_bytes: u64,
) -> Result<Plan> {
    let k = search.neighbours(vectors.live());
    let what = || format!("a search of {k} neighbours among {}", vectors.name);
    plan_beside(job, vectors, source, search, &Beside { entries: k, bytes: live_bytes, what: &what })
}

/// What a search keeps in memory beside blocks of vectors and queries.
pub(crate) struct Beside<'a> {
    /// The entries that are kept for each query.
    pub entries: u64,
    /// The bytes of memory that others use during the search.
    pub bytes: u64,
    /// Describes the search, for an error.
    pub what: &'a dyn Fn() -> String,
}

/// Plans a search with the memory that is free in the budget of `job`, apart from that of `beside`.
///
/// # Errors
/// A bad option; queries of other dimensions; too little memory for one query.
pub(crate) fn plan_beside(
    job: &Job,
    vectors: &VectorsInfo,
    source: Source<'_>,
    search: &Search,
    beside: &Beside<'_>,
) -> Result<Plan> {
    search.check_selection(vectors)?;
    check_search(vectors, source, search)?;
    let budget = job.budget();
    let live = (vectors.removed > 0).then_some(vectors.live());
    let others_bytes = beside.bytes + Ids::bytes(vectors);
    let mut plan = Plan::new(&Estimates {
        vectors: vectors.vectors,
        dimensions: vectors.dimensions,
        element: vectors.element,
        metric: search.metric,
        selected: search.selection.as_ref().map(|selection| selection.count()).or(live),
        queries: source.count(),
        k: beside.entries,
        memory_bytes: budget.free_bytes().saturating_sub(others_bytes),
        threads: budget.threads(),
        reader_bytes: source.rows_bytes(),
    });
    budget.need(plan.smallest_bytes() + others_bytes, beside.what)?;
    if let Some(instructions) = search.instructions {
        plan.instructions = instructions;
    }
    if let (Some(kernel), true) = (search.kernel, plan.kernel != Kernel::Counts) {
        plan.kernel = kernel;
    }
    Ok(plan)
}

/// Checks that queries have the dimensions of the vectors.
///
/// # Errors
/// [`Error::BadFile`].
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

/// Checks the options of an exact search, and the dimensions of the queries, without I/O.
///
/// # Errors
/// A bad option; queries of other dimensions.
pub fn check_search<'a>(
    vectors: &VectorsInfo,
    queries: impl Into<Source<'a>>,
    search: &Search,
) -> Result<()> {
    search.check()?;
    search.metric.check(vectors.element)?;
    check_dimensions(queries.into(), vectors)
}

/// Finds the nearest vectors of each query, and passes rows to `each`, in the order of the queries and ranks.
///
/// The cost is one read of all vectors for each pass, and one multiplication for each query, vector and dimension.
/// Memory: see [`Plan`].
///
/// # Errors
/// The errors of [`plan()`]; a query with a value that is not finite, or that the elements of the vectors cannot hold;
/// I/O and damage; cancellation; the errors of `each`.
pub fn search<'a>(
    job: &Job,
    vectors: &Vectors,
    queries: impl Into<Source<'a>>,
    search: &Search,
    each: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<Searched> {
    let (info, source) = (vectors.info(), queries.into());
    plan(job, info, source, search)?;
    let search = &*among_live(job, vectors, search)?;
    let plan = plan_answer(job, info, source, search, 0)?;
    let mut answer = AnswerRows::new(search.metric, each);
    let passes = Passes { job, vectors, source, search, plan: &plan };
    let measured = passes.run(&mut Receiver::Answer(&mut answer))?;
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

/// Finds all pairs of vectors of a dataset within the radius of `search`, which has the live vectors, and returns the
/// number of pairs whose exact distances were computed. Each pair of vectors is compared once.
///
/// # Errors
/// I/O and damage; cancellation.
pub(crate) fn pairs_of_all(
    job: &Job,
    vectors: &Vectors,
    search: &Search,
    plan: &Plan,
    pairs: &Pairs,
) -> Result<u64> {
    let source = Source::Stored(vectors);
    Passes { job, vectors, source, search, plan }.run(&mut Receiver::Pairs(pairs))
}

/// Receives the near vectors that passes find.
enum Receiver<'a, 'b> {
    /// Keeps the nearest vectors of each query.
    Answer(&'a mut AnswerRows<'b>),
    /// Keeps all pairs of a query, which is a vector of the dataset, and a later vector.
    Pairs(&'a Pairs),
    /// Keeps the nearest vectors of each query in heaps of the caller, one for each query of the source.
    Tops(&'a [TopK]),
}

/// All passes of a search.
struct Passes<'a> {
    job: &'a Job,
    vectors: &'a Vectors,
    source: Source<'a>,
    search: &'a Search,
    plan: &'a Plan,
}

impl Passes<'_> {
    /// Runs all passes, and returns the number of pairs whose exact distances were computed.
    fn run(&self, receiver: &mut Receiver<'_, '_>) -> Result<u64> {
        match self.vectors.info().element {
            Element::F32 | Element::F16 | Element::Bf16 => self.run_elements::<f32>(receiver),
            Element::U8 | Element::Bits => self.run_elements::<u8>(receiver),
            Element::I8 => self.run_elements::<i8>(receiver),
        }
    }

    fn run_elements<T: Tiled>(&self, receiver: &mut Receiver<'_, '_>) -> Result<u64> {
        let Passes { job, vectors, source, search, plan } = *self;
        let info = vectors.info();
        let ids = Ids::read(job, vectors)?;
        let row_elements = info.element.queried().row_bytes(info.dimensions) / size_of::<T>();
        let buffer_bytes = plan.threads * plan.buffers * plan.block_bytes;
        let buffers = Buffer::zeroed(job.budget(), buffer_bytes, "blocks of vectors")?;
        let mut buffers = buffers.split(plan.block_bytes);
        let elsewhere = inshore_store::taken_bytes(buffer_bytes) as u64 + source.rows_bytes();
        let others = plan.fixed_bytes.saturating_sub(elsewhere);
        let _others = job.budget().reserve(others, "a search")?;
        // The kernel computes differences from the elements themselves, and needs no center.
        let center = match plan.kernel {
            Kernel::Tiles => center_of(job, vectors, search.metric, &mut buffers)?,
            Kernel::Rows => vec![0.0; row_elements],
            Kernel::Counts => Vec::new(),
        };
        let filter = Filter::new(search.metric, row_elements, f32::norm(&center), T::IS_INTEGER);
        let filter = if plan.kernel == Kernel::Rows { filter.of_row_sums() } else { filter };
        let batch = Batch { source, info, metric: search.metric, center: &center, plan };
        let center_lanes: Vec<T::Lane> = center.iter().map(|&c| T::star(c.into())).collect();
        let mut rows = source.rows(job)?;
        let (mut first, mut measured) = (0, 0);
        self.start_phase(receiver);
        while first < source.count() {
            let end = source.count().min(first + plan.queries_per_pass);
            let memory = (end - first) * plan.query_bytes;
            let memory = job.budget().reserve(memory, "queries and their neighbours")?;
            let queries = Queries::<T>::read(&mut rows, first..end, &batch, memory)?;
            let mut run = |heaps, only_later| {
                let pass = Pass {
                    job,
                    file: &vectors.file,
                    vectors: info.vectors,
                    selection: search.selection.as_deref(),
                    ids: &ids,
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
                    run(&Tops { first: 0, tops: &tops }, None)?;
                    answer.add_all(&queries.ids, tops)?;
                }
                Receiver::Tops(tops) => {
                    run(&Tops { first: 0, tops: &tops[first as usize..end as usize] }, None)?;
                }
                Receiver::Pairs(pairs) => {
                    // Later rows have larger ids, unless vectors were replaced.
                    let near = pairs.of_queries(&queries.ids, ids.are_rows());
                    run(&near, Some(first))?;
                    near.finish()?;
                }
            }
            first = end;
        }
        Ok(measured)
    }

    /// Announces the number of vectors that all passes read.
    fn start_phase(&self, receiver: &Receiver<'_, '_>) {
        let (plan, vectors) = (self.plan, self.vectors.info().vectors);
        let first_row = |pass: u64| match receiver {
            Receiver::Answer(_) | Receiver::Tops(_) => 0,
            Receiver::Pairs(_) => scan::first_row(plan, pass * plan.queries_per_pass),
        };
        let read = (0..plan.passes).map(|pass| vectors - first_row(pass)).sum();
        self.job.start_phase("searching", "vectors", read);
    }
}

/// Returns the center of the data for a metric that uses it, and otherwise zeros.
fn center_of(job: &Job, vectors: &Vectors, metric: Metric, buffers: &mut Vec<Buffer>) -> Result<Vec<f32>> {
    let mut center = Vec::with_capacity(vectors.info().dimensions);
    if let (Some(file), Metric::L2) = (&vectors.center, metric) {
        let spare = std::mem::take(buffers);
        let mut reader = FileReader::with_buffers(job, file, 0..file.len(), spare)?;
        while let Some(piece) = reader.next_piece()? {
            center.extend_from_slice(floats(piece));
        }
        *buffers = reader.into_buffers()?;
    }
    center.resize(vectors.info().dimensions, 0.0);
    Ok(center)
}

/// Returns the center of the data. The call allocates its own buffers.
pub(crate) fn center_of_vectors(job: &Job, vectors: &Vectors, metric: Metric) -> Result<Vec<f32>> {
    let buffers = Buffer::zeroed(job.budget(), 2 * CHECK_BYTES, "the center of the vectors")?;
    center_of(job, vectors, metric, &mut buffers.split(CHECK_BYTES))
}

pub(crate) struct Row {
    pub query: u64,
    pub rank: u32,
    pub entry: Entry,
}

/// `AnswerRows` collects rows into batches.
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

    /// Adds the entries of heaps, whose queries have the ids `queries`.
    pub fn add_all(&mut self, queries: &[u64], tops: Vec<TopK>) -> Result<()> {
        for (&query, top) in queries.iter().zip(tops) {
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
