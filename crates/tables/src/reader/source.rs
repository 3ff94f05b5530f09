//! Defines sources. A source reads batches of a table in one of the formats.

use std::{
    cell::Cell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use inshore_store::Budget;

use super::{
    csv::CsvSource,
    ipc::IpcSource,
    is_json,
    json::JsonSource,
    parquet::ParquetSource,
    typed::is_typed,
    types::{READABLE, check_type, plain_type},
};
use crate::{Error, Input, Result};

/// Options for reading columns.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReadOptions {
    pub(super) batch_rows: usize,
    /// The first columns, up to this number, are read as text from CSV or JSON lines, even if another type was guessed.
    pub(super) carried: usize,
    /// True if a member of JSON lines that is not a column is an error.
    pub(super) is_strict: bool,
    /// True if columns may be lists of numbers.
    pub(super) has_lists: bool,
}

pub(super) enum Source {
    Csv(Box<CsvSource>),
    Ipc(Box<IpcSource>),
    Json(Box<JsonSource>),
    Parquet(Box<ParquetSource>),
}

impl Source {
    /// Opens a table and finds the names and types of its columns.
    pub(super) fn open_described(
        input: &Input,
        as_text: &[String],
        budget: &Budget,
    ) -> Result<(Self, Vec<String>, Vec<Field>)> {
        let mut source = Source::open(input, budget)?;
        let names = source.names();
        let as_text: Vec<usize> = (0..names.len()).filter(|&index| as_text.contains(&names[index])).collect();
        let fields = source.stored_fields(&as_text, input)?;
        Ok((source, names, fields))
    }

    pub(super) fn open(input: &Input, budget: &Budget) -> Result<Self> {
        let ending = input.extension();
        if let Some(separator) = input.separator() {
            return CsvSource::open(input, separator, budget).map(Box::new).map(Source::Csv);
        }
        match &*ending {
            _ if is_json(&ending) => JsonSource::open(input, budget).map(Box::new).map(Source::Json),
            "arrow" => IpcSource::open(input, budget).map(Box::new).map(Source::Ipc),
            "parquet" => ParquetSource::open(input, budget).map(Box::new).map(Source::Parquet),
            _ => Err(Error::UnknownEnding {
                file: input.name().to_string(),
                ending,
                what: "read",
                expected: READABLE,
            }),
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        let of_schema = |schema: &Schema| schema.fields().iter().map(|field| field.name().clone()).collect();
        match self {
            Source::Csv(source) => source.names().to_vec(),
            Source::Ipc(source) => of_schema(source.schema()),
            Source::Json(source) => of_schema(source.schema()),
            Source::Parquet(source) => source.names(),
        }
    }

    /// Returns all columns with their stored types. Types with views or large offsets are replaced by their plain
    /// types.
    fn stored_fields(&mut self, as_text: &[usize], input: &Input) -> Result<Vec<Field>> {
        let plain = |field: &Arc<Field>| Field::new(field.name(), plain_type(field.data_type()), true);
        match self {
            Source::Csv(source) => match input.columns() {
                Some(columns) => source.known_fields(columns, input),
                None => source.inferred_fields(as_text),
            },
            Source::Ipc(source) => Ok(source.schema().fields().iter().map(plain).collect()),
            Source::Json(source) => {
                source.take_as_text(as_text);
                Ok(source.schema().fields().iter().map(plain).collect())
            }
            Source::Parquet(source) => Ok(source.schema().fields().iter().map(plain).collect()),
        }
    }

    /// Returns true if a column had no values in the first rows.
    pub(super) fn is_unseen(&self, column: usize) -> bool {
        match self {
            Source::Csv(source) => source.is_unseen(column),
            Source::Json(source) => source.is_unseen(column),
            Source::Ipc(_) | Source::Parquet(_) => false,
        }
    }

    pub(super) fn part(&mut self, number: usize, count: usize) {
        if let Source::Parquet(source) = self {
            source.take_part(number, count);
        }
    }

    pub(super) fn choose(
        &mut self,
        file: &str,
        columns: &[usize],
        wanted: &SchemaRef,
        options: ReadOptions,
    ) -> Result<()> {
        let check = |schema: &Schema| {
            columns.iter().zip(wanted.fields()).try_for_each(|(&column, wanted)| {
                check_type(file, schema.field(column), wanted.data_type(), options.has_lists)
            })
        };
        match self {
            Source::Csv(source) => {
                for field in wanted.fields().iter().filter(|field| !is_typed(field.data_type())) {
                    let text = Field::new(field.name(), DataType::Utf8, false);
                    check_type(file, &text, field.data_type(), false)?;
                }
                source.choose(columns, wanted, options.carried);
            }
            Source::Ipc(source) => {
                check(source.schema())?;
                source.choose(columns);
            }
            Source::Json(source) => {
                check(source.schema())?;
                source.choose(columns, wanted, options.carried, options.is_strict);
            }
            Source::Parquet(source) => {
                check(source.schema())?;
                source.choose(columns, options.batch_rows)?;
            }
        }
        Ok(())
    }
}

/// Runs a decoder on untrusted bytes.
///
/// The libraries check most bytes that they read. In some cases, they slice, add or assert before they check. For
/// example, a negative offset in a Parquet footer fails an assertion of the library. Such a panic means that the file
/// is damaged. Only this function catches it. After a panic the reader returns no more rows, so that half-changed state
/// is never used.
pub(super) fn without_panic<T>(file: &str, decode: impl FnOnce() -> Result<T>) -> Result<T> {
    // The panic's message is not printed, since it describes the decoder and does not help the user.
    let depth = CATCHING.replace(CATCHING.get() + 1);
    let decoded = catch_unwind(AssertUnwindSafe(decode));
    CATCHING.set(depth);
    decoded.unwrap_or_else(|_| Err(Error::damaged(file, "damaged: the decoder panicked")))
}

thread_local! {
    /// The number of nested decoders on this thread whose panics are caught.
    static CATCHING: Cell<u32> = const { Cell::new(0) };
}

/// Returns true if a decoder would catch a panic of this thread and report a damaged file. A panic hook should then
/// print nothing.
pub fn is_decoding() -> bool {
    CATCHING.get() > 0
}
