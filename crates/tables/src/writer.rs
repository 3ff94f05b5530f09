//! Writes record batches as Parquet, Arrow or CSV.
//!
//! The extension of the name determines the format. The bytes of the file depend only on the rows, and not on the
//! budget or the division into batches. Rows are therefore regrouped into batches of [`BATCH_ROWS`] and row groups of
//! [`ROW_GROUP_ROWS`]. The budget decides only whether finished pages wait in memory or in a file (see [`pages`]).

#[cfg(feature = "records")]
mod background;
mod columns;
mod growth;
mod pages;
mod stream;
#[cfg(test)]
mod tests;

use std::{ops::Range, path::Path, sync::Arc};

use arrow_array::{Array, ArrayRef, RecordBatch, cast::AsArray};
use arrow_csv::WriterBuilder;
use arrow_ipc::writer::FileWriter;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use arrow_select::coalesce::BatchCoalescer;
use inshore_store::{Budget, NewFile, NewFileWriter, Reservation};
use parquet::{
    arrow::{ArrowWriter, arrow_writer::ArrowWriterOptions},
    basic::{Compression, Encoding, ZstdLevel},
    file::properties::{EnabledStatistics, WriterProperties},
    schema::types::ColumnPath,
};

#[cfg(feature = "records")]
pub(crate) use self::background::BackgroundWriter;
pub use self::stream::{ParquetStream, stored_schema};
use self::{columns::ColumnsWriter, pages::PendingPages};
use crate::{Error, Result};

const WRITABLE: &str = ".parquet, .arrow or .csv, or - for CSV on standard output";

/// The number of rows that a format's encoder receives in one call, and the number of rows of a Parquet page. The
/// number was chosen by a measurement of a Parquet writer with three 8-byte columns and a budget of 8 MiB. With 8 Ki
/// rows, the writer took 1.5 MiB, of which 0.5 MiB were reserved, and zstd took about 1 MiB more. With 16 Ki rows, the
/// writer took 0.8 MiB more, and the file was 0.3 % smaller.
const BATCH_ROWS: usize = 8 << 10;
/// A batch ends after this number of bytes of text, even if it has fewer than [`BATCH_ROWS`] rows. The text in a
/// Parquet page exceeds this number by at most 1 MiB, so that readers with little memory can read the page.
const BATCH_TEXT_BYTES: usize = 2 << 20;
/// The number of rows of a Parquet row group. The writer keeps about 0.5 KB of metadata for each column of each row
/// group. A table of 10^10 rows therefore has 5 MB of metadata for each column, and a reader needs 5 MB of memory for
/// it.
const ROW_GROUP_ROWS: usize = 1 << 20;
/// The smallest budget in bytes in which several threads encode columns of Parquet. Several threads need memory for
/// more batches.
const THREADS_BUDGET_BYTES: u64 = 32 << 20;

/// Writes record batches to a file that appears complete or not at all.
pub struct TableWriter {
    // The order of these fields matters when the writer is dropped. `format` is dropped first, and may then still write
    // to the file. The temporary file is removed after that.
    format: Format,
    batches: BatchCoalescer,
    /// The number of rows in the batch that is not complete.
    open_rows: usize,
    /// The number of bytes of text in the batch that is not complete.
    open_text_bytes: usize,
    target: NewFile,
    rows: u64,
    _memory: Option<Reservation>,
}

enum Format {
    Csv(Box<arrow_csv::Writer<NewFileWriter>>),
    Ipc(Box<FileWriter<NewFileWriter>>),
    Parquet(Box<ArrowWriter<NewFileWriter>>),
    Columns(Box<ColumnsWriter>),
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Csv,
    Ipc,
    Parquet,
}

impl TableWriter {
    /// Begins a table at `path`. The extension determines the format: `.parquet`, `.arrow` (IPC file) or `.csv`. If the
    /// path is `-`, CSV is written to standard output. A device or pipe whose name has no known extension, such as
    /// `/dev/null`, also gets CSV.
    ///
    /// The file has no name before [`TableWriter::finish`], and an existing file stays unchanged until then. A writer
    /// of Parquet reserves a sixteenth of `budget` if this memory is free. It also uses memory that is not reserved. In
    /// a measurement with three numeric columns, this memory was about 2 MiB, and about 3 MiB with several threads.
    /// Several threads are used if the budget has at least 32 MiB. A writer of Parquet also needs scratch space in the
    /// folder of the file for one row group.
    ///
    /// # Errors
    /// - Returns the errors of [`TableWriter::check_path`] and [`NewFile::create`].
    /// - Returns [`inshore_store::Error::BadOutput`] if the format cannot hold the schema.
    pub fn create(path: impl AsRef<Path>, schema: SchemaRef, budget: &Budget) -> Result<TableWriter> {
        let path = path.as_ref();
        let kind = kind_of(path)?;
        let target = if path == Path::new("-") { NewFile::stdout()? } else { NewFile::create(path)? };
        TableWriter::to_target(target, kind, &schema, budget)
    }

    fn to_target(target: NewFile, kind: Kind, schema: &Schema, budget: &Budget) -> Result<TableWriter> {
        // The metadata of a schema is dropped. Its order, and therefore the bytes of the file, would differ from run to
        // run.
        let schema = Arc::new(Schema::new(schema.fields().clone()));
        let wanted = if kind == Kind::Parquet { budget.memory_bytes() / 16 } else { 0 };
        let memory = budget.reserve(wanted, "Parquet pages that wait to be written").ok();
        let out = target.writer()?;
        let format = match kind {
            Kind::Csv => {
                let mut writer = WriterBuilder::new().with_header(true).build(out);
                // The first batch writes the header, and an empty table has a header too.
                let empty = RecordBatch::new_empty(schema.clone());
                writer.write(&empty).map_err(|error| target.error(error))?;
                Format::Csv(Box::new(writer))
            }
            Kind::Ipc => {
                let writer = FileWriter::try_new(out, &schema).map_err(|error| target.error(error))?;
                Format::Ipc(Box::new(writer))
            }
            Kind::Parquet => {
                let held = memory.as_ref().map_or(0, Reservation::bytes);
                let pages = PendingPages::new(held, target.folder());
                let options = ArrowWriterOptions::new()
                    .with_properties(parquet_properties(&schema))
                    .with_skip_arrow_metadata(!schema.fields().iter().any(|field| needs_words(field)))
                    .with_page_store_factory(Arc::new(pages));
                let writer = ArrowWriter::try_new_with_options(out, schema.clone(), options)
                    .map_err(|error| target.error(error))?;
                let roomy = budget.memory_bytes() >= THREADS_BUDGET_BYTES;
                match if roomy { budget.threads().min(schema.fields().len()) } else { 1 } {
                    0 | 1 => Format::Parquet(Box::new(writer)),
                    threads => {
                        let writer = ColumnsWriter::new(writer, schema.clone(), threads);
                        Format::Columns(Box::new(writer.map_err(|error| target.error(error))?))
                    }
                }
            }
        };
        let batches = BatchCoalescer::new(schema, BATCH_ROWS);
        Ok(TableWriter {
            format,
            batches,
            open_rows: 0,
            open_text_bytes: 0,
            target,
            rows: 0,
            _memory: memory,
        })
    }

    /// Adds rows. The rows are copied, so the memory of `batch` is not kept.
    ///
    /// The call fails if the disk is full, or if the columns are not those of the schema ([`NewFile::error`]). After an
    /// error, the table cannot be finished, and the caller drops the writer.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let batch = RecordBatch::try_new(self.batches.schema(), batch.columns().to_vec())
            .map_err(|error| self.target.error(error))?;
        // The batch is copied in slices. If a large batch was regrouped in one step, all of it would be copied.
        let texts = TextLengths::of(&batch);
        let mut start = 0;
        while start < batch.num_rows() {
            // A batch does not cross the end of a row group.
            let group_rows = ROW_GROUP_ROWS - (self.rows % ROW_GROUP_ROWS as u64) as usize;
            let rows = (BATCH_ROWS - self.open_rows).min(group_rows).min(batch.num_rows() - start);
            let (rows, text_bytes) =
                texts.rows_within(start..start + rows, 0, BATCH_TEXT_BYTES - self.open_text_bytes);
            let piece = batch.slice(start, rows);
            self.batches.push_batch(piece).map_err(|error| self.target.error(error))?;
            start += rows;
            self.rows += rows as u64;
            self.open_rows += rows;
            self.open_text_bytes += text_bytes;
            if self.open_rows == BATCH_ROWS || self.open_text_bytes >= BATCH_TEXT_BYTES || rows == group_rows
            {
                (self.open_rows, self.open_text_bytes) = (0, 0);
                self.batches.finish_buffered_batch().map_err(|error| self.target.error(error))?;
            }
            self.write_completed()?;
        }
        Ok(())
    }

    fn write_completed(&mut self) -> Result<()> {
        while let Some(batch) = self.batches.next_completed_batch() {
            match &mut self.format {
                Format::Csv(writer) => writer.write(&batch).map_err(|error| self.target.error(error))?,
                Format::Ipc(writer) => writer.write(&batch).map_err(|error| self.target.error(error))?,
                Format::Parquet(writer) => writer.write(&batch).map_err(|error| self.target.error(error))?,
                Format::Columns(writer) => writer.write(&batch).map_err(|error| self.target.error(error))?,
            }
        }
        Ok(())
    }

    /// Writes the remaining rows, makes the file durable and gives the file its name. Returns the number of rows.
    ///
    /// # Errors
    /// Returns the errors of [`NewFile::publish`]. The temporary file is then removed, and an earlier file at the path
    /// is still there. The only exception is an error of the last step, which makes the new name durable.
    pub fn finish(mut self) -> Result<u64> {
        self.batches.finish_buffered_batch().map_err(|error| self.target.error(error))?;
        self.write_completed()?;
        match self.format {
            Format::Csv(writer) => _ = writer.into_inner(),
            Format::Ipc(mut writer) => writer.finish().map_err(|error| self.target.error(error))?,
            Format::Parquet(writer) => _ = writer.into_inner().map_err(|error| self.target.error(error))?,
            Format::Columns(writer) => writer.finish().map_err(|error| self.target.error(error))?,
        }
        self.target.publish()?;
        Ok(self.rows)
    }

    /// Returns true if a table that is written to `path` is CSV.
    pub fn writes_csv(path: &Path) -> bool {
        matches!(kind_of(path), Ok(Kind::Csv))
    }

    /// Checks that a table can be written to `path`. The extension must be known, and the folder must be writable. To
    /// check this, the function creates a file in the folder and removes it. A job calls this function before its work,
    /// which may take hours.
    ///
    /// # Errors
    /// - Returns [`Error::UnknownEnding`] if no format that can be written has the extension of `path`. The error lists
    ///   the valid extensions.
    /// - Returns [`inshore_store::Error::Io`] or [`inshore_store::Error::BadOutput`] if no file can be created at
    ///   `path`.
    pub fn check_path(path: &Path) -> Result<()> {
        kind_of(path)?;
        Ok(NewFile::check(path)?)
    }
}

/// The lengths of the texts and byte strings of a batch.
struct TextLengths<'a>(Vec<&'a ArrayRef>);

impl TextLengths<'_> {
    fn of(batch: &RecordBatch) -> TextLengths<'_> {
        let is_text = |array: &&ArrayRef| {
            let kind = array.data_type();
            kind.is_string() || kind.is_binary() && !matches!(kind, DataType::FixedSizeBinary(_))
        };
        TextLengths(batch.columns().iter().filter(is_text).collect())
    }

    /// Counts rows from the beginning of `rows` until they together have at least `bytes_max` bytes. A row has the bytes
    /// of its texts and `row_bytes` other bytes. Returns the number of these rows, and their bytes. If all rows together
    /// have fewer bytes, all rows are counted.
    fn rows_within(&self, rows: Range<usize>, row_bytes: usize, bytes_max: usize) -> (usize, usize) {
        let mut bytes = 0;
        if self.0.is_empty() && row_bytes == 0 {
            return (rows.len(), bytes);
        }
        for row in rows.clone() {
            bytes += row_bytes + self.0.iter().map(|array| text_length(array, row)).sum::<usize>();
            if bytes >= bytes_max {
                return (row + 1 - rows.start, bytes);
            }
        }
        (rows.len(), bytes)
    }
}

fn text_length(array: &ArrayRef, row: usize) -> usize {
    match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().value_length(row) as usize,
        DataType::LargeUtf8 => array.as_string::<i64>().value_length(row) as usize,
        DataType::Binary => array.as_binary::<i32>().value_length(row) as usize,
        DataType::LargeBinary => array.as_binary::<i64>().value_length(row) as usize,
        DataType::Utf8View => array.as_string_view().views()[row] as u32 as usize,
        DataType::BinaryView => array.as_binary_view().views()[row] as u32 as usize,
        _ => 0,
    }
}

/// Returns true if Parquet's own types cannot express the column's type. This is the case for times with a time zone
/// other than UTC, and for durations.
fn needs_words(field: &Field) -> bool {
    match field.data_type() {
        DataType::Timestamp(_, Some(zone)) => &**zone != "UTC",
        DataType::Duration(_) => true,
        _ => false,
    }
}

fn kind_of(path: &Path) -> Result<Kind> {
    if path == Path::new("-") {
        return Ok(Kind::Csv);
    }
    let ending = path.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
    match &*ending {
        "csv" => Ok(Kind::Csv),
        "arrow" => Ok(Kind::Ipc),
        "parquet" => Ok(Kind::Parquet),
        _ if NewFile::is_in_place(path) => Ok(Kind::Csv),
        _ => {
            let file = path.display().to_string();
            Err(Error::UnknownEnding { file, ending, what: "written", expected: WRITABLE })
        }
    }
}

/// Chooses the encodings of a Parquet file. Whole numbers are stored as differences, since ids are usually sorted. In a
/// measurement, differences of sorted ids took 0.33 bytes for each value with zstd. Plain values took 1.04 bytes with
/// zstd and 4.01 bytes with Snappy. Differences of unsorted ids took hardly more than plain values. Level 1 of zstd was
/// as fast as Snappy (0.35 s for 4 Mi rows of an id, a component and a rank), and its file was a tenth smaller.
/// Floating-point values are stored plain. BYTE_STREAM_SPLIT would save a sixth of their bytes, but not every reader
/// supports this encoding.
fn parquet_properties(schema: &Schema) -> WriterProperties {
    let mut properties = WriterProperties::builder()
        .set_created_by(concat!("inshore ", env!("CARGO_PKG_VERSION")).to_string())
        .set_compression(Compression::ZSTD(ZstdLevel::try_new(1).expect("level 1 exists")))
        .set_dictionary_enabled(false)
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_offset_index_disabled(true)
        .set_data_page_row_count_limit(BATCH_ROWS)
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS));
    for field in schema.fields().iter().filter(|field| field.data_type().is_integer()) {
        let column = ColumnPath::new(vec![field.name().clone()]);
        properties = properties.set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
    }
    properties.build()
}
