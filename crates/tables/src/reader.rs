//! Reads chosen columns of a table as Arrow record batches, in bounded memory.
//!
//! The extension of the name determines the format. Standard input is CSV. For each format, a source decodes batches of
//! any size. [`slices`] cuts these batches to size and converts them to the types that the caller requested. CSV has no
//! types of its own, so its values are parsed into the requested types directly.
//!
//! The caller passes the types for two reasons. A graph needs its ids as `UInt64`, whatever type the file has. A value
//! that does not fit must be refused while the number of its row is known.

mod csv;
mod csv_records;
mod delta;
#[cfg(test)]
mod guess_tests;
mod ipc;
#[cfg(feature = "json")]
mod json;
#[cfg(not(feature = "json"))]
#[path = "reader/json_absent.rs"]
mod json;
#[cfg(test)]
mod list_tests;
mod options;
mod parquet;
mod parquet_codecs;
mod parquet_needs;
mod parquet_pages;
mod parquet_windows;
mod slices;
mod source;
#[cfg(test)]
mod tests;
mod thrift;
mod typed;
mod types;
mod value_classes;

use std::{ops::Range, sync::Arc};

use ::parquet::file::metadata::ParquetMetaData;
use arrow_array::RecordBatch;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use inshore_store::Budget;

#[cfg(feature = "records")]
pub(crate) use self::options::with_exact_columns;
pub use self::options::{column_names, exact_columns, row_groups};
pub use self::parquet::GroupValues;
pub(crate) use self::parquet::read_schema;
pub use self::source::is_decoding;
pub use self::types::{is_readable, list_of_numbers};
use self::{
    options::find_columns,
    slices::BatchSlices,
    source::{ReadOptions, Source, without_panic},
};
use crate::{Error, Input, Result, allowance::piece_limit};

/// Reads chosen columns of a table file. The formats are Parquet (`.parquet`), CSV with header (`.csv` with commas,
/// `.tsv` with tabs), JSON lines (`.jsonl`, `.ndjson`, `.json`) and Arrow IPC (`.arrow`, file or stream).
pub struct TableReader {
    name: String,
    schema: SchemaRef,
    source: Source,
    slices: BatchSlices,
    batch_rows: usize,
    first_row: u64,
    next_row: u64,
    failed: bool,
    /// True if this reader has no rows to read, since the reader of part 0 returns all rows.
    ended: bool,
}

/// The description of a table, made before its rows are read.
#[derive(Clone, Debug)]
pub struct TableDescription {
    /// All columns.
    pub schema: SchemaRef,
    /// The columns of CSV and JSON lines that have no values in the first rows. The type of such a column is text,
    /// and any later value contradicts that guess.
    pub unseen: Vec<String>,
    /// The number of rows, if the file states it (Parquet).
    pub rows: Option<u64>,
    /// The number of row groups, if the format has row groups (Parquet).
    pub row_groups: Option<usize>,
}

/// A table whose columns are read as text.
#[cfg(feature = "records")]
pub(crate) struct TextTable {
    pub reader: TableReader,
    /// The number of columns of the file. Copies of key columns follow these columns.
    pub columns: usize,
    /// The position of each key column. The position is that of a column of the file, or that of a copy after the
    /// columns of the file.
    pub keys: Vec<usize>,
}

impl TableReader {
    /// Opens a table to read `columns`, in the given order and with the given types. A batch has at most `batch_rows`
    /// rows.
    ///
    /// Types may be `UInt64`, `Int64`, `UInt32`, `Int32`, `Float64`, `Float32` and `Utf8`. Batches have no nulls, and a
    /// null in the file is an error. [`TableReader::open_with`] can read columns with nulls. The strings of a batch are
    /// limited to about a quarter of the budget, so batches of long strings have fewer rows. In addition to the
    /// batches, a reader of Parquet takes memory for a page and a dictionary of each column. A reader of Arrow takes
    /// memory for one record batch, a reader of CSV for twice the size of a record, and a reader of JSON lines for two
    /// blocks of lines of at most 1 MiB. The memory of pages and record batches beyond 8 MiB is reserved from `budget`.
    ///
    /// # Errors
    /// - Returns [`Error::UnknownEnding`] if the extension of the name belongs to no format that can be read.
    /// - Returns [`Error::NoColumn`] if a column is missing in the file, or several columns have its name.
    /// - Returns [`Error::Unsupported`] if a stored type cannot be converted to the requested type, or if a Parquet
    ///   file does not allow random access (standard input, `.gz`).
    /// - Returns [`Error::TooLarge`] if a footer or header is larger than a quarter of the budget.
    /// - Returns [`Error::Damaged`] if the bytes of the file are damaged.
    /// - Returns [`Error::Io`] if the file cannot be opened or read.
    pub fn open(
        input: &Input,
        columns: &[(&str, DataType)],
        batch_rows: usize,
        budget: &Budget,
    ) -> Result<Self> {
        let fields = columns.iter().map(|(name, kind)| Field::new(*name, kind.clone(), false)).collect();
        Self::open_with(input, batch_rows, budget, |_| Ok(fields))
    }

    /// Opens a table as [`TableReader::open`] does, with columns that `choose` selects. `choose` receives the column
    /// names of the file, so a caller can select columns of standard input without a second read. A column may have
    /// nulls if its field is nullable. In CSV, a null is an empty field.
    ///
    /// # Errors
    /// Returns the errors of [`TableReader::open`] and of `choose`.
    pub fn open_with(
        input: &Input,
        batch_rows: usize,
        budget: &Budget,
        choose: impl FnOnce(&[String]) -> Result<Vec<Field>>,
    ) -> Result<Self> {
        let batch_rows = batch_rows.max(1);
        let (source, names) = without_panic(input.name(), || {
            let source = Source::open(input, budget)?;
            let names = source.names();
            Ok((source, names))
        })?;
        let fields = choose(&names)?;
        let options = ReadOptions { batch_rows, carried: fields.len(), is_strict: false, has_lists: false };
        Self::chosen(input, source, &names, fields, options, budget)
    }

    fn chosen(
        input: &Input,
        mut source: Source,
        names: &[String],
        fields: Vec<Field>,
        options: ReadOptions,
        budget: &Budget,
    ) -> Result<Self> {
        let schema = Arc::new(Schema::new(fields));
        let indices = find_columns(input.name(), names, &schema)?;
        without_panic(input.name(), || source.choose(input.name(), &indices, &schema, options))?;
        let batch_rows = options.batch_rows;
        Ok(TableReader {
            name: input.name().to_string(),
            slices: BatchSlices::new(input.name(), schema.clone(), batch_rows, piece_limit(budget)),
            schema,
            source,
            batch_rows,
            first_row: 0,
            next_row: 0,
            failed: false,
            ended: false,
        })
    }

    /// Opens a table to read `columns` with their stored types, in the order of `columns`. Without `columns`, the
    /// reader returns all columns. Columns of any flat type can be read, with nulls. These types are numbers, decimals,
    /// text, bytes, dates, times and truth values. Every stored form of text is returned as `Utf8`, and every stored
    /// form of bytes as `Binary`.
    ///
    /// Types of CSV and JSON lines are guessed. A column has the narrowest type that keeps the meaning of the values in
    /// the first 1,000 rows (of JSON, at most in the first MiB). A column of whole numbers has the first of the types
    /// `Int64`, `UInt64` and `Decimal128(38, 0)` that holds all values. If any number has a decimal point or an
    /// exponent, the type is `Float64`. Truth values of JSON are `Boolean`. Other columns, and columns named in
    /// `as_text`, are `Utf8`. A later value of another type is an [`Error::Contradiction`], and no further rows are
    /// returned. [`exact_columns`] infers types from all rows. An empty field of CSV is null, as is a missing member of
    /// JSON lines.
    ///
    /// For a Parquet file [of parts](Input::of_parts), no row is read until the caller [names row
    /// groups](TableReader::read_row_groups).
    ///
    /// `part` is `(number, count)`. The rows of the table are divided into `count` parts, so that `count` threads can
    /// read one part each, and the reader returns the rows of part `number` (from 0). The parts are in the order of the
    /// rows. Parquet is divided by row groups. In other formats, part 0 has all rows.
    ///
    /// # Errors
    /// Returns the errors of [`TableReader::open`].
    pub fn open_stored(
        input: &Input,
        columns: Option<&[String]>,
        as_text: &[String],
        batch_rows: usize,
        budget: &Budget,
        part: (usize, usize),
    ) -> Result<Self> {
        Self::open_as_stored(input, columns, as_text, batch_rows, budget, part, false)
    }

    /// Opens a table of Parquet or Arrow to read `columns` with their stored types, in the order of `columns`. Columns
    /// may be lists of numbers ([`list_of_numbers`]) besides the types that [`TableReader::open_stored`] reads. Nulls
    /// are returned as nulls. A batch of Parquet has fewer than `batch_rows` rows if lists are long. If all lists have
    /// equal lengths, the lists of a batch therefore take at most an eighth of the budget. A page of lists is refused
    /// if the page and its decoded numbers are larger than a quarter of the budget.
    ///
    /// # Errors
    /// Returns the errors of [`TableReader::open`].
    pub fn open_lists(input: &Input, columns: &[String], batch_rows: usize, budget: &Budget) -> Result<Self> {
        Self::open_as_stored(input, Some(columns), &[], batch_rows, budget, (0, 1), true)
    }

    fn open_as_stored(
        input: &Input,
        columns: Option<&[String]>,
        as_text: &[String],
        batch_rows: usize,
        budget: &Budget,
        (number, count): (usize, usize),
        has_lists: bool,
    ) -> Result<Self> {
        let batch_rows = batch_rows.max(1);
        let (source, names, fields) = without_panic(input.name(), || {
            let (mut source, names, fields) = Source::open_described(input, as_text, budget)?;
            let wanted = columns.map_or_else(|| names.clone(), <[String]>::to_vec);
            let find = |name: &String| names.iter().position(|other| other == name);
            let missing = |name: &String| Field::new(name, DataType::Null, true);
            let fields: Vec<Field> = wanted
                .iter()
                .map(|name| find(name).map_or_else(|| missing(name), |at| fields[at].clone()))
                .collect();
            match &mut source {
                // The caller later selects the row groups that this machine has.
                Source::Parquet(source) if input.is_of_parts() => source.take_groups(0..0),
                source => source.part(number, count),
            }
            Ok((source, names, fields))
        })?;
        let is_elsewhere = number > 0 && !matches!(source, Source::Parquet(_));
        let is_strict = columns.is_none() || input.has_whole_rows() && fields.len() >= names.len();
        let options = ReadOptions { batch_rows, carried: 0, is_strict, has_lists };
        let mut reader = Self::chosen(input, source, &names, fields, options, budget)?;
        reader.ended = is_elsewhere;
        if let Source::Parquet(source) = &reader.source {
            reader.next_row = source.first_row();
        }
        Ok(reader)
    }

    /// Opens CSV or JSON lines to read all columns as text, so that numbers keep their digits. If a column in `keys`
    /// has a type other than text, it is read a second time with this type. These copies follow the columns of the
    /// file. Returns `None` if the format of the table stores types.
    ///
    /// # Errors
    /// Returns the errors of [`TableReader::open_stored`].
    #[cfg(feature = "records")]
    pub(crate) fn open_carried(
        input: &Input,
        keys: &[&str],
        as_text: &[String],
        batch_rows: usize,
        budget: &Budget,
    ) -> Result<Option<TextTable>> {
        if !input.is_text() {
            return Ok(None);
        }
        let (source, names, fields) =
            without_panic(input.name(), || Source::open_described(input, as_text, budget))?;
        if let Some(nested) = fields.iter().find(|field| field.data_type().is_nested()) {
            return Err(types::unreadable(input.name(), nested, &DataType::Utf8));
        }
        let mut wanted: Vec<Field> =
            fields.iter().map(|field| Field::new(field.name(), DataType::Utf8, true)).collect();
        let columns = wanted.len();
        let mut places = Vec::new();
        for key in keys {
            let place = names.iter().position(|name| name == key).ok_or_else(|| Error::NoColumn {
                file: input.name().to_string(),
                column: key.to_string(),
                found: 0,
                columns: names.clone(),
            })?;
            if fields[place].data_type() == &DataType::Utf8 && !source.is_unseen(place) {
                places.push(place);
            } else {
                places.push(wanted.len());
                wanted.push(fields[place].clone());
            }
        }
        let options = ReadOptions {
            batch_rows: batch_rows.max(1),
            carried: columns,
            is_strict: true,
            has_lists: false,
        };
        let reader = Self::chosen(input, source, &names, wanted, options, budget)?;
        Ok(Some(TextTable { reader, columns, keys: places }))
    }

    /// Describes a table. The description has all columns with the types that [`TableReader::open_stored`] would
    /// return, including columns whose types cannot be read.
    ///
    /// # Errors
    /// Returns the errors of [`TableReader::open`].
    pub fn describe(input: &Input, as_text: &[String], budget: &Budget) -> Result<TableDescription> {
        without_panic(input.name(), || {
            let (source, names, fields) = Source::open_described(input, as_text, budget)?;
            let schema = Arc::new(Schema::new(fields));
            let unseen = (0..names.len()).filter(|&column| source.is_unseen(column));
            let unseen = unseen.map(|column| names[column].clone()).collect();
            let (rows, row_groups) = match &source {
                Source::Parquet(source) => (Some(source.rows()), Some(source.row_groups())),
                Source::Csv(_) | Source::Ipc(_) | Source::Json(_) => (None, None),
            };
            Ok(TableDescription { schema, unseen, rows, row_groups })
        })
    }

    /// Returns the chosen columns, in the order and with the types that were requested.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns the next rows, at least one. Returns `None` at the end.
    ///
    /// # Errors
    /// - Returns [`Error::BadValue`] if a value is null or does not fit the type that the caller requested. The error
    ///   names the line (CSV, JSON lines) or the row and the column (other formats).
    /// - Returns [`Error::Contradiction`] if a value does not fit a type that was guessed from the first rows.
    /// - Returns [`Error::TooLarge`] if a Parquet page, an Arrow record batch or a CSV record is larger than a quarter
    ///   of the budget.
    /// - Returns [`Error::Damaged`] if the bytes of the file are damaged.
    /// - Returns [`Error::Unsupported`] if the file uses a feature that is not supported.
    /// - Returns [`Error::Io`] if the file cannot be read.
    /// - Returns [`Error::Store`] if the budget has too little free memory for pages that are larger than usual.
    ///
    /// After an error, every further call returns an error.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        if self.failed {
            return Err(Error::damaged(&self.name, "an earlier read failed"));
        }
        if self.ended {
            return Ok(None);
        }
        let name = self.name.clone();
        let batch = without_panic(&name, || self.decode());
        self.failed = batch.is_err();
        let batch = batch?;
        self.first_row = self.next_row;
        self.next_row += batch.as_ref().map_or(0, |batch| batch.num_rows() as u64);
        Ok(batch)
    }

    fn decode(&mut self) -> Result<Option<RecordBatch>> {
        match &mut self.source {
            Source::Csv(source) => return source.next_batch(self.batch_rows),
            Source::Json(source) => return source.next_batch(self.batch_rows),
            Source::Ipc(_) | Source::Parquet(_) => {}
        }
        loop {
            if let Some(slice) = self.slices.next_slice(self.next_row)? {
                return Ok(Some(slice));
            }
            let batch = match &mut self.source {
                Source::Ipc(source) => source.next_batch()?,
                Source::Parquet(source) => source.next_batch()?,
                Source::Csv(_) | Source::Json(_) => unreachable!("they were returned above"),
            };
            match batch {
                Some(batch) => self.slices.refill(batch),
                None => return Ok(None),
            }
        }
    }

    /// Returns the number of the row in the file with which the last returned batch begins. Rows are counted from 0,
    /// without a header.
    pub fn place(&self) -> u64 {
        self.first_row
    }

    /// Returns how many rows this reader will return, if the file states their number before the rows are read
    /// (Parquet). Otherwise returns `None`.
    pub fn rows(&self) -> Option<u64> {
        match &self.source {
            Source::Parquet(source) => Some(source.rows()),
            Source::Csv(_) | Source::Ipc(_) | Source::Json(_) => None,
        }
    }

    /// Returns the smallest and the largest value of each column in `columns`, according to the statistics of a Parquet
    /// file. The columns must contain whole numbers, dates or times. The result for a column without statistics is
    /// `None`. The statistics may be wrong.
    ///
    /// # Errors
    /// - Returns [`Error::Io`] if the operating system refuses an operation on the file.
    /// - Returns [`Error::Damaged`] if the bytes of the file are damaged.
    pub fn ranges_of(&self, columns: &[&str]) -> Result<Vec<Option<(i128, i128)>>> {
        let Source::Parquet(source) = &self.source else { return Ok(vec![None; columns.len()]) };
        let names = source.names();
        let places: Vec<_> =
            columns.iter().map(|column| names.iter().position(|name| name == column)).collect();
        without_panic(&self.name, || source.ranges_of(&places))
    }

    /// Returns how many row groups the table has. Row groups can be read one by one, in any order. Returns `None` for
    /// formats without row groups (all but Parquet).
    pub fn row_groups(&self) -> Option<usize> {
        match &self.source {
            Source::Parquet(source) => Some(source.row_groups()),
            Source::Csv(_) | Source::Ipc(_) | Source::Json(_) => None,
        }
    }

    /// Returns how many rows each row group has. Returns `None` for formats without row groups.
    pub fn row_group_rows(&self) -> Option<Vec<u64>> {
        match &self.source {
            Source::Parquet(source) => Some(source.rows_of_groups()),
            Source::Csv(_) | Source::Ipc(_) | Source::Json(_) => None,
        }
    }

    /// Returns the byte range of a row group in the file. Returns `None` for formats without row groups.
    ///
    /// # Errors
    /// Returns [`Error::Damaged`] if the bytes of the file are damaged.
    pub fn row_group_bytes(&self, group: usize) -> Result<Option<Range<u64>>> {
        let Source::Parquet(source) = &self.source else { return Ok(None) };
        without_panic(&self.name, || source.bytes_of(group)).map(Some)
    }

    /// Returns the byte ranges of the chosen columns of a row group. The result is empty for formats without row
    /// groups.
    ///
    /// # Errors
    /// Returns [`Error::Damaged`] if the bytes of the file are damaged.
    pub fn row_group_chunks(&self, group: usize) -> Result<Vec<Range<u64>>> {
        let Source::Parquet(source) = &self.source else { return Ok(Vec::new()) };
        without_panic(&self.name, || source.chunks_of(group))
    }

    /// Restricts all further reads to these row groups. Reading begins with the first row of the first group.
    ///
    /// # Errors
    /// - Returns [`Error::Unsupported`] if the format has no row groups.
    /// - Returns [`Error::Damaged`] if the footer of the file is damaged.
    pub fn read_row_groups(&mut self, groups: Range<usize>) -> Result<()> {
        let Source::Parquet(source) = &mut self.source else {
            return Err(Error::unsupported(&self.name, "it has no row groups"));
        };
        without_panic(&self.name, || source.restart(groups))?;
        self.slices.forget();
        (self.next_row, self.ended) = (source.first_row(), false);
        Ok(())
    }

    /// Returns, for each column, the statistics that a Parquet file has about its row groups: the smallest value, the
    /// largest value and the number of nulls. The result for a column without statistics, or whose type has no order,
    /// is `None`.
    ///
    /// # Errors
    /// - Returns [`Error::Io`] if the operating system refuses an operation on the file.
    /// - Returns [`Error::Damaged`] if the bytes of the file are damaged.
    pub fn group_values(&self, columns: &[String]) -> Result<Vec<Option<GroupValues>>> {
        let Source::Parquet(source) = &self.source else { return Ok(vec![None; columns.len()]) };
        let names = source.names();
        let places =
            columns.iter().map(|wanted| names.iter().position(|name| name == wanted)).collect::<Vec<_>>();
        without_panic(&self.name, || source.group_values(&places))
    }

    /// Hints to the operating system that the chosen columns of a row group will be read soon, while another row
    /// group is decoded. The hint has an effect for uncompressed Parquet files only.
    pub fn will_read_row_group(&self, group: usize) {
        if let Source::Parquet(source) = &self.source {
            source.will_read(group);
        }
    }

    /// Returns how many bytes of the file, before decompression, were read so far. [`Input::compressed_bytes`] is the
    /// total.
    pub fn position(&self) -> u64 {
        match &self.source {
            Source::Csv(source) => source.position(),
            Source::Ipc(source) => source.position(),
            Source::Json(source) => source.position(),
            Source::Parquet(source) => source.position(),
        }
    }
}

/// Returns the metadata of a plain Parquet file, with all statistics. The caller must reserve the memory.
///
/// # Errors
/// - Returns [`Error::TooLarge`] if the footer is larger than a quarter of the budget.
/// - Returns [`Error::Damaged`] if the footer is damaged.
/// - Returns [`Error::Io`] if the file cannot be read.
pub(crate) fn whole_metadata(input: &Input, budget: &Budget) -> Result<ParquetMetaData> {
    without_panic(input.name(), || parquet::whole_metadata(input, budget))
}

/// Returns the separator of fields in a file with this [extension](Input::extension). Returns `None` for formats other
/// than CSV.
pub fn separator(ending: &str) -> Option<u8> {
    match ending {
        "csv" => Some(b','),
        "tsv" => Some(b'\t'),
        _ => None,
    }
}

fn is_json(ending: &str) -> bool {
    matches!(ending, "jsonl" | "ndjson" | "json")
}

impl Input {
    /// Returns the separator of fields. Returns `None` for formats other than CSV.
    fn separator(&self) -> Option<u8> {
        if self.is_stdin() { Some(b',') } else { separator(&self.extension()) }
    }

    /// Returns true if the table is CSV.
    pub fn is_csv(&self) -> bool {
        self.separator().is_some()
    }

    /// Returns true if the table is CSV or JSON lines. The columns of these formats have no types.
    pub fn is_text(&self) -> bool {
        self.is_csv() || is_json(&self.extension())
    }
}
