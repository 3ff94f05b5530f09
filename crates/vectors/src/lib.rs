//! Finds nearest neighbours among vectors on flash, within a memory budget. Answers are exact, from one pass over the
//! data, or approximate, from an index.
//!
//! The main types:
//!
//! - [`VectorFile`]: a file of vectors in one of the usual formats, whose header has been checked.
//! - [`Vectors`]: a dataset of vectors in the store, which [`import()`] creates. [`VectorsInfo`] has its properties.
//! - [`import_table`]: imports a column of lists from Parquet or Arrow as vectors, and keeps the other columns.
//!   [`AnswerColumns`] adds these columns to answers, and [`add_table`] and [`upsert_table`] change the rows.
//! - [`RowSet`]: a set of rows, such as the vectors that a search may return.
//! - [`ContentRows`]: a source of vectors that are computed from images ([`Images`]) or documents. [`import_content`]
//!   and [`content_queries`] read it.
//! - [`Search`]: the options of a search. [`search()`] answers a batch of queries, and [`plan`] returns its plan.
//! - [`VectorIndex`]: an index with lists of vectors that are near each other, which [`build_index`] creates.
//!   [`search_index`] reads a few lists for each query. [`RecallTable`] has the fraction of the exact neighbours that
//!   these lists contain.
//! - [`Source`]: the queries of a search, from a file or from a dataset. A search with the queries of a dataset is a
//!   join.
//! - [`dedup()`]: finds all pairs of vectors whose distance is at most a given radius, or the groups that such pairs
//!   form.
//! - [`Metric`]: Euclidean distance, inner product, cosine, Hamming or Jaccard distance.
//!
//! ```text
//!   VectorFile ──import──► Vectors ─┐
//!   VectorFile or Vectors (queries) ┴─search──► rows: query, rank, id, distance
//!   Vectors ──────────────────────────dedup───► rows: id, duplicate, distance
//! ```
//!
//! # How a search works
//!
//! The queries of a batch stay in memory, and the vectors stream from flash once. For each block of vectors a blocked
//! matrix multiplication computes all products (module `tiles`), in f32 for floating-point vectors and in integers for
//! integer vectors. A bound of the rounding error decides which pairs can be neighbours (module `filter`). Exact
//! distances are computed only for these pairs, in f64 and in the order of the dimensions (module `metric`). The heap
//! of each query keeps its nearest vectors (module `topk`).
//!
//! The answer therefore equals the answer of brute force in f64 (for integers, in exact arithmetic). If two vectors
//! have the same distance, the smaller id comes first. Every budget, number of threads and processor gives the same
//! answer, bit for bit. A kernel that computes the exact distances of all pairs would be 2 to 8 times slower, since a
//! register holds half as many f64 as f32, and the order of additions would be fixed.
//!
//! # Example
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use inshore_store::{Budget, Cancel, Store};
//! use inshore_vectors::{Search, VectorFile, Vectors, import, search};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("points.fbin");
//! // Three vectors of two dimensions.
//! let words = [3u32.to_le_bytes(), 2u32.to_le_bytes()].concat();
//! let values: Vec<u8> = [0.0f32, 0.0, 3.0, 4.0, 1.0, 0.0].iter().flat_map(|x| x.to_le_bytes()).collect();
//! std::fs::write(&path, [words, values].concat())?;
//! let store = Store::open(folder.path().join("store"))?;
//! let job = store.job(Budget::new(16 << 20, 2), Cancel::default())?;
//! let file = VectorFile::open(&path)?;
//! import(&store, &job, "points", &file)?;
//!
//! let vectors = Vectors::open(&store, "points")?;
//! let options = Search { k: 2, ..Search::default() };
//! let mut rows = 0;
//! // The vectors are their own queries.
//! search(&job, &vectors, &file, &options, &mut |batch| {
//!     rows += batch.num_rows();
//!     Ok(())
//! })?;
//! assert_eq!(rows, 3 * 2);
//! # Ok(())
//! # }
//! ```
#![warn(missing_docs)]

mod byte_stream;
mod catalog;
mod changes;
mod columns;
mod content;
mod counts;
mod dataset;
mod dedup;
mod element;
mod error;
mod file;
mod filter;
mod heaps;
mod id_run;
mod ids;
mod import;
mod index;
mod index_kinds;
mod kept;
mod layout;
mod live;
mod lsh;
mod metric;
mod names;
mod npy;
mod pairs;
mod random;
mod read;
mod row_set;
mod search;
mod searcher;
mod shards;
mod slots;
mod subblock;
mod text;
mod tiles;
mod topk;

pub use catalog::{Description, ImportedFrom, describe, describe_lists, list, remove, remove_index};
pub use changes::{
    Changed, Compacted, IdList, OpenContent, ValueList, add_content, add_table, add_vectors, compact_vectors,
    remove_values, remove_vectors, upsert_table, upsert_vectors,
};
pub use columns::{
    AnswerColumns, ROW_COLUMN, SpreadTable, TableColumns, TableRows, columns_input, import_table,
    schema_with, taken_bytes,
};
pub use content::{
    CONSUMER_BYTES, Content, ContentRows, Files, Images, ImportedContent, RowBatch, Vocabulary,
    content_queries, each_row, import_content, list_files,
};
pub use dataset::{Vectors, VectorsInfo};
pub use dedup::{Dedup, DedupPlan, Deduplicated, check_dedup_index, dedup, plan_dedup};
pub use element::{BITS_MAX, DIMENSIONS_MAX, Element};
pub use error::{Error, Result};
pub use file::VectorFile;
pub use import::{Imported, import};
pub use index::{
    Approximate, ApproximateSearched, BuildPlan, Built, CODE_BITS, COPIES_MAX, CodedLists, CopiedLists,
    Index, IndexInfo, ListRequest, ListSelection, ListSizes, MeasuredOn, Prober, RecallPoint, RecallTable,
    SamplePlan, SpreadIndex, SpreadIndexInfo, SpreadIndexKind, Strategy, StrategyPlan, VectorIndex,
    build_index, check_index_search, check_measurement, has_enough_selected, measure_recall, plan_index,
    plan_sample, probes_among, resume_index, sample_of_shard, search_lists, shard_lists_bytes, train_lists,
    write_shard_lists,
};
pub use index_kinds::{FoundInIndex, SearchIndex};
pub use layout::{LayoutKind, VectorLayout};
pub use lsh::{
    BITS_OF_CODE_MAX, BUCKETS_MAX, Family, Lsh, LshBuilt, LshIndex, LshInfo, LshPlan, LshSearched,
    ManyCandidates, PROBES_MAX, TABLES_MAX, build_lsh, plan_lsh,
};
pub use metric::Metric;
pub use names::index_name;
pub use row_set::{RowSet, is_sparse};
pub use search::{
    Estimates, Kernel, Plan, Search, Searched, ShardSearch, Source, check_search, plan, schema, shard_schema,
};
pub use searcher::{Call, Searcher, SearcherOptions, search, search_index};
pub use shards::{MergedAnswer, QueryReader, RowReader};
pub use tiles::Instructions;
