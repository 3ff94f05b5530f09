//! Reads chosen columns of a table as Arrow record batches, in bounded memory.
//!
//! The ending of the name chooses the format; standard input is CSV. Each format is a source that decodes batches
//! as they lie in the file, and [`slices`] cuts them to size and converts them to the types that the caller asked
//! for. CSV has no types of its own and is parsed into the wanted ones at once.
//!
//! Why the caller names the types: a graph wants its ids as `UInt64`, whatever a file stores them as, and
//! a value that does not fit must be refused where its row is still known.

mod csv;
mod ipc;
mod parquet;
mod parquet_pages;
mod slices;
#[cfg(test)]
mod tests;
mod thrift;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use arrow::{
    datatypes::{DataType, Field, Schema, SchemaRef},
    record_batch::RecordBatch,
};
use inshore_store::Budget;

use self::{
    csv::CsvSource,
    ipc::IpcSource,
    parquet::ParquetSource,
    slices::{Slices, is_readable_as},
};
use crate::{Error, Input, Result, allowance::piece_limit};

const READABLE: &str =
    ".parquet, .csv, .tsv or .arrow (.csv, .tsv and .arrow also with .gz or .zst after it)";

/// Reads chosen columns of a Parquet (`.parquet`), CSV with header (`.csv` with commas, `.tsv` with tabs) or Arrow
/// IPC (`.arrow`, file or stream) file.
pub struct TableReader {
    name: String,
    schema: SchemaRef,
    source: Source,
    slices: Slices,
    batch_rows: usize,
    first_row: u64,
    next_row: u64,
    failed: bool,
}

enum Source {
    Csv(Box<CsvSource>),
    Ipc(Box<IpcSource>),
    Parquet(Box<ParquetSource>),
}

/// The names of the columns of a table, in the order of the file.
///
/// Standard input is used up by this; see [`TableReader::open_with`] for a choice that looks at the names first.
///
/// # Errors
/// As [`TableReader::open`].
pub fn column_names(input: &Input, budget: &Budget) -> Result<Vec<String>> {
    without_panic(input.name(), || Ok(Source::open(input, budget)?.names()))
}

impl TableReader {
    /// Opens a table to read `columns`, in that order and as those types, in batches of at most `batch_rows` rows.
    ///
    /// Types may be `UInt64`, `Int64`, `UInt32`, `Int32`, `Float64`, `Float32` and `Utf8`. Batches come without
    /// nulls: a null is an error (see [`TableReader::open_with`] for columns that may have some). They hold fewer
    /// rows where strings are long (a quarter of the budget bounds a batch's strings).
    /// Memory beyond the batches: for Parquet a page and a dictionary of each column, for Arrow one record batch,
    /// for CSV a record. What exceeds 8 MiB of that is reserved in `budget`.
    ///
    /// # Errors
    /// [`Error::UnknownEnding`]; [`Error::NoColumn`] for a column that is not there or there twice;
    /// [`Error::Unsupported`] for a type that cannot be converted, and for Parquet that cannot be sought in
    /// (standard input, `.gz`); [`Error::TooLarge`] for a footer or header above a quarter of the budget;
    /// [`Error::Damaged`] and [`Error::Io`].
    pub fn open(
        input: &Input,
        columns: &[(&str, DataType)],
        batch_rows: usize,
        budget: &Budget,
    ) -> Result<Self> {
        let fields = columns.iter().map(|(name, kind)| Field::new(*name, kind.clone(), false)).collect();
        Self::open_with(input, batch_rows, budget, |_| Ok(fields))
    }

    /// As [`TableReader::open`], with columns that `choose` picks from the names in the file. So the header of
    /// standard input can be looked at too. A column may have nulls if its field is nullable; in CSV that is a
    /// field with nothing in it.
    ///
    /// # Errors
    /// As [`TableReader::open`], and what `choose` returns.
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
        let schema = Arc::new(Schema::new(choose(&names)?));
        let indices = find_columns(input.name(), &names, &schema)?;
        let mut source = source;
        without_panic(input.name(), || source.choose(input.name(), &indices, &schema, batch_rows))?;
        Ok(TableReader {
            name: input.name().to_string(),
            slices: Slices::new(input.name(), schema.clone(), batch_rows, piece_limit(budget)),
            schema,
            source,
            batch_rows,
            first_row: 0,
            next_row: 0,
            failed: false,
        })
    }

    /// The chosen columns, in the order and with the types that were asked for.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// The next rows, at least one; `None` at the end.
    ///
    /// # Errors
    /// [`Error::BadValue`] with the line (CSV) or the row and column (others) of a value that is null or does not
    /// fit its type; [`Error::TooLarge`] for a Parquet page, Arrow record batch or CSV record above a quarter of
    /// the budget; [`Error::Damaged`], [`Error::Unsupported`], [`Error::Io`], and [`Error::Store`] if there is not
    /// enough free in the budget for pages that are larger than usual. After an error there are no more rows, and
    /// every further call is an error.
    pub fn next_batch(&mut self) -> Result<Option<RecordBatch>> {
        if self.failed {
            return Err(Error::damaged(&self.name, "reading it has failed before"));
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
        if let Source::Csv(source) = &mut self.source {
            return source.next_batch(self.batch_rows);
        }
        loop {
            if let Some(slice) = self.slices.next_slice(self.next_row)? {
                return Ok(Some(slice));
            }
            let batch = match &mut self.source {
                Source::Ipc(source) => source.next_batch()?,
                Source::Parquet(source) => source.next_batch()?,
                Source::Csv(_) => unreachable!("CSV was returned above"),
            };
            match batch {
                Some(batch) => self.slices.refill(batch),
                None => return Ok(None),
            }
        }
    }

    /// The row of the file (counted from 0, without a header) that is the first of the batch given last.
    pub fn place(&self) -> u64 {
        self.first_row
    }

    /// How far into the file reading has come, to be compared with [`Input::compressed_bytes`].
    pub fn position(&self) -> u64 {
        match &self.source {
            Source::Csv(source) => source.position(),
            Source::Ipc(source) => source.position(),
            Source::Parquet(source) => source.position(),
        }
    }
}

impl Source {
    fn open(input: &Input, budget: &Budget) -> Result<Self> {
        let ending = input.extension();
        match (input.path(), &*ending) {
            (None, _) | (_, "csv") => CsvSource::open(input, b',', budget).map(Box::new).map(Source::Csv),
            (_, "tsv") => CsvSource::open(input, b'\t', budget).map(Box::new).map(Source::Csv),
            (_, "arrow") => IpcSource::open(input, budget).map(Box::new).map(Source::Ipc),
            (_, "parquet") => ParquetSource::open(input, budget).map(Box::new).map(Source::Parquet),
            _ => Err(Error::UnknownEnding {
                file: input.name().to_string(),
                ending,
                what: "read",
                expected: READABLE,
            }),
        }
    }

    fn names(&self) -> Vec<String> {
        let of_schema = |schema: &Schema| schema.fields().iter().map(|field| field.name().clone()).collect();
        match self {
            Source::Csv(source) => source.names().to_vec(),
            Source::Ipc(source) => of_schema(source.schema()),
            Source::Parquet(source) => of_schema(source.schema()),
        }
    }

    fn choose(&mut self, file: &str, columns: &[usize], wanted: &SchemaRef, batch_rows: usize) -> Result<()> {
        let check = |schema: &Schema| {
            columns
                .iter()
                .zip(wanted.fields())
                .try_for_each(|(&column, wanted)| check_type(file, schema.field(column), wanted.data_type()))
        };
        match self {
            Source::Csv(source) => {
                for field in wanted.fields() {
                    check_type(file, &Field::new(field.name(), DataType::Utf8, false), field.data_type())?;
                }
                source.choose(columns, wanted);
            }
            Source::Ipc(source) => {
                check(source.schema())?;
                source.choose(columns);
            }
            Source::Parquet(source) => {
                check(source.schema())?;
                source.choose(columns, batch_rows)?;
            }
        }
        Ok(())
    }
}

fn find_columns(file: &str, names: &[String], wanted: &Schema) -> Result<Vec<usize>> {
    if wanted.fields().is_empty() {
        return Err(Error::unsupported(file, "no column is chosen"));
    }
    let find = |field: &Arc<Field>| {
        let mut found = names.iter().enumerate().filter(|(_, name)| *name == field.name());
        match (found.next(), found.count()) {
            (Some((index, _)), 0) => Ok(index),
            (first, more) => Err(Error::NoColumn {
                file: file.to_string(),
                column: field.name().clone(),
                found: usize::from(first.is_some()) + more,
                columns: names.to_vec(),
            }),
        }
    };
    wanted.fields().iter().map(find).collect()
}

fn check_type(file: &str, stored: &Field, wanted: &DataType) -> Result<()> {
    use DataType::{Float32, Float64, Int32, Int64, UInt32, UInt64, Utf8};
    let is_wanted = matches!(wanted, UInt64 | Int64 | UInt32 | Int32 | Float64 | Float32 | Utf8);
    if is_wanted && is_readable_as(stored.data_type(), wanted) {
        return Ok(());
    }
    let (name, kind) = (stored.name(), stored.data_type());
    Err(Error::unsupported(
        file,
        format!("column '{name}' has type {kind}, which cannot be read as {wanted}"),
    ))
}

/// Runs a decoder on bytes that nobody vouches for.
///
/// The libraries check most of what they read, but here and there slice, add or assert first (a negative offset in
/// a Parquet footer is an assertion of theirs). Such a panic is damage of the file like any other. This is the one
/// place where it is caught; the reader gives nothing more after it, so that no half-changed state is used.
fn without_panic<T>(file: &str, decode: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        Err(Error::damaged(file, format!("damaged in a way that the decoder did not expect: {text}")))
    })
}
