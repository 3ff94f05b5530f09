//! The search for the nearest neighbours of a batch of queries.
//!
//! One pass over the vectors answers as many queries as fit into the budget, with their neighbours. A larger batch is
//! split into blocks of queries, with one pass for each block ([`plan`]). During a pass, the queries stay in memory,
//! packed for the kernels ([`queries`]), while [`scan`] reads the vectors.

mod plan;
mod queries;
mod scan;

use std::sync::Arc;

use arrow_array::{ArrayRef, Float32Array, RecordBatch, UInt32Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use inshore_store::{Buffer, FileReader, Job};
use serde::Serialize;

pub use self::plan::{Estimates, Kernel, Plan};
pub(crate) use self::queries::compared_value;
use self::{
    queries::{Batch, Queries},
    scan::Pass,
};
use crate::{
    Error, Metric, Result, RowSet, VectorFile, Vectors, VectorsInfo,
    changes::{among_live, live_bytes},
    element::{Element, floats},
    filter::Filter,
    ids::Ids,
    import::CHECK_BYTES,
    metric::Measured,
    tiles::{Instructions, Tiled},
    topk::Entry,
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
        Search { k: 10, metric: Metric::L2, radius: None, selection: None, instructions: None, kernel: None }
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
pub fn plan(job: &Job, vectors: &VectorsInfo, queries: &VectorFile, search: &Search) -> Result<Plan> {
    plan_beside(job, vectors, queries, search, live_bytes(vectors))
}

/// Plans a search beside the set of live rows, which will take so many bytes.
fn plan_beside(
    job: &Job,
    vectors: &VectorsInfo,
    queries: &VectorFile,
    search: &Search,
    live_bytes: u64,
) -> Result<Plan> {
    search.check()?;
    search.check_selection(vectors)?;
    search.metric.check(vectors.element)?;
    check_dimensions(queries, vectors)?;
    let budget = job.budget();
    let live = (vectors.removed > 0).then_some(vectors.live());
    let changes_bytes = live_bytes + Ids::bytes(vectors);
    let mut plan = Plan::new(&Estimates {
        vectors: vectors.vectors,
        dimensions: vectors.dimensions,
        element: vectors.element,
        metric: search.metric,
        selected: search.selection.as_ref().map(|selection| selection.count()).or(live),
        queries: queries.count(),
        k: search.k,
        memory_bytes: budget.free_bytes().saturating_sub(changes_bytes),
        threads: budget.threads(),
        reader_bytes: queries.rows_bytes(false),
    });
    budget.need(plan.smallest_bytes() + changes_bytes, || {
        format!("a search of {} neighbours among {}", search.k.min(vectors.vectors), vectors.name)
    })?;
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
pub(crate) fn check_dimensions(queries: &VectorFile, vectors: &VectorsInfo) -> Result<()> {
    let is_bits = |element| element == Element::Bits;
    if is_bits(queries.element()) != is_bits(vectors.element) {
        return Err(Error::BadFile {
            file: queries.path().display().to_string(),
            place: "the elements".to_string(),
            found: queries.element().to_string(),
            expected: format!("{}, as the vectors of {}", vectors.element, vectors.name),
        });
    }
    if queries.dimensions() == vectors.dimensions {
        return Ok(());
    }
    Err(Error::BadFile {
        file: queries.path().display().to_string(),
        place: "vector 0".to_string(),
        found: format!("{} dimensions", queries.dimensions()),
        expected: format!("{}, as the vectors of {}", vectors.dimensions, vectors.name),
    })
}

/// Finds the nearest vectors of each query, and passes rows to `each`, in the order of the queries and ranks.
///
/// The cost is one read of all vectors for each pass, and one multiplication for each query, vector and dimension.
/// Memory: see [`Plan`].
///
/// # Errors
/// The errors of [`plan()`]; a query with a value that is not finite, or that the elements of the vectors cannot hold;
/// I/O and damage; cancellation; the errors of `each`.
pub fn search(
    job: &Job,
    vectors: &Vectors,
    queries: &VectorFile,
    search: &Search,
    each: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<Searched> {
    plan(job, vectors.info(), queries, search)?;
    let search = &*among_live(job, vectors, search)?;
    match vectors.info().element {
        Element::F32 | Element::F16 | Element::Bf16 => {
            search_elements::<f32>(job, vectors, queries, search, each)
        }
        Element::U8 | Element::Bits => search_elements::<u8>(job, vectors, queries, search, each),
        Element::I8 => search_elements::<i8>(job, vectors, queries, search, each),
    }
}

fn search_elements<T: Tiled>(
    job: &Job,
    vectors: &Vectors,
    file: &VectorFile,
    search: &Search,
    each: &mut dyn FnMut(RecordBatch) -> Result<()>,
) -> Result<Searched> {
    let info = vectors.info();
    let plan = plan_beside(job, info, file, search, 0)?;
    let ids = Ids::read(job, vectors)?;
    let row_elements = info.element.queried().row_bytes(info.dimensions) / size_of::<T>();
    let buffer_bytes = plan.threads * plan.buffers * plan.block_bytes;
    let buffers = Buffer::zeroed(job.budget(), buffer_bytes, "blocks of vectors")?;
    let mut buffers = buffers.split(plan.block_bytes);
    let others = plan.fixed_bytes.saturating_sub(inshore_store::taken_bytes(buffer_bytes) as u64);
    let _others = job.budget().reserve(others, "a search")?;
    // The kernel computes differences from the elements themselves, and needs no center.
    let center = match plan.kernel {
        Kernel::Tiles => center_of(job, vectors, search.metric, &mut buffers)?,
        Kernel::Rows => vec![0.0; row_elements],
        Kernel::Counts => Vec::new(),
    };
    let filter = Filter::new(search.metric, row_elements, f32::norm(&center), T::IS_INTEGER);
    let filter = if plan.kernel == Kernel::Rows { filter.of_row_sums() } else { filter };
    let batch = Batch { file, info, search, center: &center, plan: &plan };
    let center_lanes: Vec<T::Lane> = center.iter().map(|&c| T::star(c.into())).collect();
    let mut rows = file.rows(job, 0, false)?;
    let mut answer = AnswerRows::new(search.metric, each);
    let mut measured = 0;
    job.start_phase("searching", "vectors", info.vectors * plan.passes);
    let mut first = 0;
    while first < file.count() {
        let end = file.count().min(first + plan.queries_per_pass);
        let memory = (end - first) * plan.query_bytes;
        let memory = job.budget().reserve(memory, "queries and their neighbours")?;
        let queries = Queries::<T>::read(&mut rows, first..end, &batch, memory)?;
        let pass = Pass {
            job,
            file: &vectors.file,
            vectors: info.vectors,
            dimensions: row_elements,
            element: info.element,
            row_bytes: info.row_bytes(),
            plan: &plan,
            search,
            selection: search.selection.as_deref(),
            ids: &ids,
            filter,
            center: &center_lanes,
            queries: &queries,
        };
        let (returned, pairs) = pass.run(buffers)?;
        buffers = returned;
        measured += pairs;
        for (query, top) in (first..end).zip(queries.tops) {
            for (rank, entry) in (1..).zip(top.into_sorted()) {
                answer.add(Row { query, rank, entry })?;
            }
        }
        first = end;
    }
    answer.flush()?;
    Ok(Searched {
        queries: file.count(),
        vectors: plan.selected.unwrap_or(info.vectors),
        dimensions: info.dimensions,
        element: info.element,
        rows: answer.rows,
        measured,
        is_sparse: search.selection.as_deref().is_some_and(crate::is_sparse),
        plan,
    })
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
