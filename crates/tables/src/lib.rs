//! Reads and writes files of records within a memory budget. The formats are Parquet, CSV, Arrow and text, compressed
//! or not.
//!
//! The main types are:
//!
//! - [`Input`]: a source of records, such as a path, standard input, a dataset, or a stream. An opened input returns
//!   [`Bytes`], which decompress gzip, zstd, bzip2 and lz4.
//! - [`LineBlocks`]: cuts [`Bytes`] into blocks of whole lines, to be parsed by many threads.
//! - [`TableReader`]: reads chosen columns of a table (Parquet, CSV, TSV, JSON lines, Arrow) as Arrow record batches.
//! - [`TableWriter`]: writes record batches as Parquet, Arrow or CSV. The file appears complete or not at all.
//! - [`NewFile`]: a file that appears complete or not at all, for other formats.
//!
//! ```text
//!   Input ── Bytes ──┬── LineBlocks ── blocks of lines
//!                    ├── CSV, JSON, Arrow ──┐
//!     └── Parquet (seeks) ───────────────────┴── TableReader ── RecordBatch ── TableWriter ── NewFile
//! ```
//!
//! Memory is bounded because sizes are checked *before* memory is allocated for them. The size of a Parquet page, an
//! Arrow record batch, a CSV record, a line or a zstd window is compared with a quarter of the budget. A larger size
//! causes an error that names the page, batch, record, line or window and its size. The libraries that decode
//! (`parquet`, `arrow`, `zstd`, `flate2`) allocate first and check later. A check in this crate therefore precedes each
//! call of these libraries.
//!
//! ```
//! # fn main() -> inshore_tables::Result<()> {
//! use inshore_store::Budget;
//! use inshore_tables::{Input, TableReader};
//! use arrow_schema::DataType;
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("edges.csv");
//! std::fs::write(&path, "src,dst,weight\n1,2,0.5\n2,3,0.25\n").unwrap();
//! let budget = Budget::new(64 << 20, 1);
//! let columns = [("src", DataType::UInt64), ("dst", DataType::UInt64)];
//! let mut table = TableReader::open(&Input::new(&path), &columns, 4096, &budget)?;
//! let batch = table.next_batch()?.unwrap();
//! assert_eq!((batch.num_rows(), batch.num_columns()), (2, 2));
//! assert!(table.next_batch()?.is_none());
//! # Ok(())
//! # }
//! ```
#![warn(missing_docs)]

mod allowance;
#[cfg(feature = "records")]
mod bases;
mod error;
mod floats;
mod input;
#[cfg(feature = "records")]
mod kmers;
mod lines;
mod names;
#[cfg(feature = "records")]
mod pieces;
mod reader;
#[cfg(feature = "records")]
mod records;
#[cfg(feature = "records")]
mod reduce;
#[cfg(feature = "records")]
mod resume;
#[cfg(feature = "records")]
mod row_codec;
#[cfg(feature = "records")]
mod sequences;
#[cfg(feature = "records")]
mod sort;
mod stored;
mod table_metadata;
mod unpack;
#[cfg(feature = "records")]
mod words;
mod writer;

pub use error::{Error, LINE_BYTES_MAX, Result};
pub use floats::{normal_floats, one_nan};
pub use input::{Bytes, Header, Input, ahead_bytes};
pub use inshore_store::NewFile;
#[cfg(feature = "records")]
pub use kmers::{
    KMER_BLOCK_ROWS, KMER_MAX, KmerAnswer, KmerCode, KmerList, KmerOptions, KmerPiece, KmerPieces,
    KmerSummary, KmerWriter, count_kmer_pieces, count_kmers, kmer_codes,
};
pub use lines::{LineBlock, LineBlocks, cut_line};
pub use names::unique_names;
pub use reader::{
    GroupValues, TableDescription, TableReader, column_names, exact_columns, is_decoding, is_readable,
    list_of_numbers, row_groups, separator,
};
#[cfg(feature = "records")]
pub use reduce::{
    Aggregate, Fold, Function, NumberConfig, NumberGroups, NumberState, ReduceOptions, ReduceSummary,
    SortedGroups, reduce,
};
#[cfg(feature = "records")]
pub use row_codec::RowCodec;
#[cfg(feature = "records")]
pub use sequences::{PieceEnds, PieceStart};
#[cfg(feature = "records")]
pub use sort::{
    Inputs, NumberColumn, NumberSink, NumberSort, NumberSortConfig, SortKey, SortOptions, SortSummary,
    SortedNumbers, TableLayout, check_output_space, check_space, is_packed_by_name, sort_columns, sort_lines,
    sort_records, sort_table, sorted_lines, sorted_records, sorted_table,
};
pub use stored::{FilePart, PartBytes};
pub use table_metadata::TableMetadata;
pub use unpack::{Compression, GzipMembers, Lz4Frames};
pub use writer::{ParquetStream, TableWriter, stored_schema};
