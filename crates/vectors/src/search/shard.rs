//! Searches the shards of a spread file that one node stores. A *spread file* is a file whose parts, the *shards*, are
//! distributed over several nodes.
//!
//! ```text
//!   queries ─► packed ─┐
//!   shard 0 ─► scan ───┤
//!   shard 3 ─► scan ───┼─► a heap for each query ─► rows (query, key, id), in this order
//!   shard 6 ─► scan ───┘
//! ```
//!
//! The caller passes one shard after the other. The heaps stay from shard to shard, so the search in a shard begins
//! with the bounds of the earlier shards. The rows contain keys in the place of distances. A key is a number by which
//! the exact search orders neighbours, and it is not rounded. So the merge of the rows of several nodes breaks ties as
//! a search in one dataset does. The merge is correct because the k smallest entries of a union are among the k
//! smallest entries of its parts.

use std::{fs, sync::Arc};

use arrow_array::{ArrayRef, Float64Array, RecordBatch, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use inshore_store::{CheckedFile, Job, Reservation};

use super::{
    BATCH_ROWS, Beside, DatasetFacts, Means, Passes, Receiver, Search, Source, check_search, new_tops,
    plan_beside,
};
use crate::{
    Element, Error, Result, RowSet, VectorFile, VectorLayout, Vectors,
    kept::Kept,
    topk::{Entry, TopK},
};

/// A search for the nearest vectors of some queries in several shards, one shard after the other.
#[derive(Debug)]
pub struct ShardSearch {
    job: Job,
    layout: VectorLayout,
    queries: VectorFile,
    search: Search,
    tops: Vec<TopK>,
    vectors: u64,
    measured: u64,
    _memory: Reservation,
}

/// Returns the schema of the rows that [`ShardSearch::finish`] passes on. The columns are `query`, `key` and `id`.
/// Queries are numbered from 0.
pub fn shard_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![
        Field::new("query", DataType::UInt64, false),
        Field::new("key", DataType::Float64, false),
        Field::new("id", DataType::UInt64, false),
    ]))
}

impl ShardSearch {
    /// Begins a search. `queries` contains the elements of the queries, as [`crate::QueryReader`] returns them.
    ///
    /// The heaps take 16 bytes of memory for each query and neighbour. The search in a shard uses the memory that is
    /// left.
    ///
    /// # Errors
    /// - Returns [`Error::BadOption`] if an option is out of range, or if there are 2^32 queries or more.
    /// - Returns [`Error::BadFile`] if there is no query.
    /// - Returns [`Error::Store`] if an I/O operation fails or the budget has too little free memory.
    pub fn new(job: &Job, layout: VectorLayout, queries: &[u8], search: Search) -> Result<ShardSearch> {
        layout.check()?;
        let queries = write_queries(job, layout, queries)?;
        let info = layout.info("a shard", layout.row_bytes() as u64)?;
        check_search(&info, &queries, &search)?;
        let (tops, memory) = shard_tops(job, &search, queries.count())?;
        let job = job.clone();
        Ok(ShardSearch { job, layout, queries, search, tops, vectors: 0, measured: 0, _memory: memory })
    }

    /// Compares the vectors of a shard with all queries. The ids of the vectors are consecutive and begin with
    /// `first_id`.
    ///
    /// # Errors
    /// - Returns [`Error::BadDataset`] if the length of the file is not a multiple of the size of a vector.
    /// - Returns [`Error::BadFile`] if a query has a value that is not finite.
    /// - Returns [`Error::Store`] if an I/O operation fails, stored bytes are damaged, the budget has too little free
    ///   memory for one query, or the job was cancelled.
    pub fn add(&mut self, file: &CheckedFile, first_id: u64) -> Result<()> {
        self.add_rows(file, first_id, None)
    }

    /// Compares the selected vectors of a shard with all queries. `selection` is the bitmap of the selected vectors of
    /// all shards ([`RowSet::to_bytes`]), which are identified by their ids.
    ///
    /// The set of the shard's selected vectors takes one bit of memory for each vector of the shard.
    ///
    /// # Errors
    /// Returns the errors of [`ShardSearch::add`].
    pub fn add_selected(&mut self, file: &CheckedFile, first_id: u64, selection: &[u8]) -> Result<()> {
        let rows = self.layout.info(file.name(), file.len())?.vectors;
        let selected = RowSet::part_of_bytes(self.job.budget(), selection, first_id, rows)?;
        if selected.is_empty() { Ok(()) } else { self.add_rows(file, first_id, Some(Arc::new(selected))) }
    }

    fn add_rows(&mut self, file: &CheckedFile, first_id: u64, selection: Option<Arc<RowSet>>) -> Result<()> {
        let info = self.layout.info(file.name(), file.len())?;
        let vectors = Vectors::shard(info, first_id, file)?;
        self.vectors += selection.as_ref().map_or(vectors.info().vectors, |selected| selected.count());
        let search = Search { selection, ..self.search.clone() };
        let (job, search, source) = (&self.job, &search, Source::File(&self.queries));
        // The memory of the heaps is already reserved.
        let what = || format!("a search in {}", file.name());
        let beside = Beside { entries: 0, bytes: 0, what: &what, candidates: None };
        let mut kept = Kept::Nothing;
        let means = Means { job, threads: job.budget().threads(), kept: &mut kept };
        let facts = DatasetFacts::read(job, &vectors)?;
        let plan = plan_beside(&means, vectors.info(), source, search, &beside)?;
        let passes = Passes { job, vectors: &vectors, facts: &facts, source, search, plan: &plan };
        self.measured += passes.run(&mut kept, &mut Receiver::Tops(&self.tops))?;
        Ok(())
    }

    /// Returns the number of vectors with which each query was compared, and the number of pairs whose exact distances
    /// were computed.
    pub fn counts(&self) -> (u64, u64) {
        (self.vectors, self.measured)
    }

    /// Passes the nearest vectors of each query to `each`, in the order of queries, keys and ids. The rows have the
    /// columns of [`shard_schema`].
    ///
    /// # Errors
    /// Returns the errors of `each`.
    pub fn finish<E>(
        self,
        each: impl FnMut(RecordBatch) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        send_tops(self.tops, each)
    }
}

/// Returns an empty heap for each query, and the reservation of the memory of all heaps.
pub(crate) fn shard_tops(job: &Job, search: &Search, queries: u64) -> Result<(Vec<TopK>, Reservation)> {
    // No budget has memory for more neighbours than `u32::MAX`.
    let k = search.k.min(u64::from(u32::MAX));
    let bytes = queries.saturating_mul(TopK::bytes(k) + size_of::<u64>() as u64);
    job.budget().need(bytes, || format!("{k} neighbours of each of {queries} queries"))?;
    let memory = job.budget().reserve(bytes, "neighbours")?;
    let numbers: Vec<u64> = (0..queries).collect();
    Ok((new_tops(&Search { k, ..search.clone() }, u64::MAX, &numbers, TopK::new), memory))
}

/// Passes the entries of heaps to `each`, in the order of queries, keys and ids.
pub(crate) fn send_tops<E>(
    tops: Vec<TopK>,
    mut each: impl FnMut(RecordBatch) -> std::result::Result<(), E>,
) -> std::result::Result<(), E> {
    let mut rows: Vec<(u64, Entry)> = Vec::with_capacity(BATCH_ROWS);
    for (query, top) in (0..).zip(tops) {
        for entry in top.into_sorted() {
            rows.push((query, entry));
            if rows.len() == BATCH_ROWS {
                each(batch_of(&rows))?;
                rows.clear();
            }
        }
    }
    if rows.is_empty() { Ok(()) } else { each(batch_of(&rows)) }
}

fn batch_of(rows: &[(u64, Entry)]) -> RecordBatch {
    let columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.0))),
        Arc::new(Float64Array::from_iter_values(rows.iter().map(|row| row.1.key))),
        Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.1.id))),
    ];
    RecordBatch::try_new(shard_schema(), columns).expect("columns of the schema's types")
}

/// Writes queries to a file in the job's scratch folder, and opens the file as a file of vectors. So the checks of such
/// files also apply to these queries.
fn write_queries(job: &Job, layout: VectorLayout, queries: &[u8]) -> Result<VectorFile> {
    let element = layout.element.queried();
    let ending = match element {
        Element::U8 => "u8bin",
        Element::I8 => "i8bin",
        Element::Bits => "b1bin",
        Element::F32 | Element::F16 | Element::Bf16 => "fbin",
    };
    let count = queries.len() / element.row_bytes(layout.dimensions);
    let count = u32::try_from(count).map_err(|_| Error::BadOption {
        option: "queries",
        found: count.to_string(),
        expected: "fewer than 2^32".to_string(),
    })?;
    let path = job.scratch_path(&format!("{}.{ending}", job.scratch_name("queries")));
    let head = [count.to_le_bytes(), (layout.dimensions as u32).to_le_bytes()].concat();
    let written = fs::write(&path, [&head[..], queries].concat());
    written.map_err(|error| inshore_store::Error::io("write", &path, error))?;
    VectorFile::open(&path)
}
