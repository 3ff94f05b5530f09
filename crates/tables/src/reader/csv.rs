//! A CSV file with a header as a source of batches.
//!
//! The `csv` crate grows a record for as long as its quote stays open, so the input below it stops at the size of
//! the largest record that is accepted. Values are parsed straight into columns of the wanted types.

use std::{
    io::{self, Read},
    sync::Arc,
};

use arrow_array::{
    Array, ArrayRef, Float32Array, Float64Array, Int32Array, Int64Array, RecordBatch, StringArray,
    UInt32Array, UInt64Array, builder::StringBuilder, cast::AsArray, make_array,
};
use arrow_buffer::NullBuffer;
use arrow_cast::cast::cast;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use csv::{ByteRecord, ErrorKind, Position, Reader, ReaderBuilder, Terminator};
use inshore_store::Budget;

use crate::{Bytes, Error, Input, Result, allowance::piece_limit};

const BUFFER_BYTES: usize = 64 << 10;
/// Rows that are looked at to guess what a column is.
const SAMPLE_ROWS: usize = 1_000;
/// What a value that does not fit what was guessed is told with.
const SAMPLED: &str = ", as in the first rows (or name the column as text)";

pub(super) struct CsvSource {
    name: String,
    names: Vec<String>,
    reader: Reader<Bounded>,
    record: ByteRecord,
    record_limit: u64,
    columns: Vec<usize>,
    wanted: Option<SchemaRef>,
    /// All columns of the first rows as text, where those were looked at.
    sample: Option<RecordBatch>,
    /// What a later value that does not fit is told with.
    sampled: &'static str,
}

impl CsvSource {
    pub fn open(input: &Input, separator: u8, budget: &Budget) -> Result<Self> {
        let bytes = input.open(budget)?;
        let record_limit = piece_limit(budget);
        let allowed = record_limit.saturating_add(BUFFER_BYTES as u64);
        let bounded = Bounded { inner: bytes, allowed, since_record: 0, total: 0, last: b'\n' };
        let reader = ReaderBuilder::new()
            .delimiter(separator)
            .has_headers(false)
            .flexible(true)
            // With its own idea of a line end the library counts the one of Windows a record late, and with it the
            // lines in our messages. So a carriage return is taken off here.
            .terminator(Terminator::Any(b'\n'))
            .buffer_capacity(BUFFER_BYTES)
            .from_reader(bounded);
        let mut source = CsvSource {
            name: input.name().to_string(),
            names: Vec::new(),
            reader,
            record: ByteRecord::new(),
            record_limit,
            columns: Vec::new(),
            wanted: None,
            sample: None,
            sampled: "",
        };
        source.read_header()?;
        Ok(source)
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn position(&self) -> u64 {
        self.reader.get_ref().inner.position()
    }

    pub fn choose(&mut self, columns: &[usize], wanted: &SchemaRef) {
        self.columns = columns.to_vec();
        self.wanted = Some(wanted.clone());
    }

    /// All columns with the types that the first rows suggest; those in `as_text` are text.
    pub fn inferred_fields(&mut self, as_text: &[usize]) -> Result<Vec<Field>> {
        let text = |name: &String| Field::new(name, DataType::Utf8, true);
        let all: Vec<Field> = self.names.iter().map(text).collect();
        self.choose(&(0..all.len()).collect::<Vec<_>>(), &Arc::new(Schema::new(all.clone())));
        let sample = self.next_batch(SAMPLE_ROWS)?;
        let infer = |(index, field): (usize, Field)| match &sample {
            Some(sample) if !as_text.contains(&index) => {
                let kind = inferred_type(sample.column(index).as_string::<i32>());
                field.with_data_type(kind)
            }
            _ => field,
        };
        let fields = all.into_iter().enumerate().map(infer).collect();
        (self.sample, self.sampled) = (sample, SAMPLED);
        Ok(fields)
    }

    /// All columns, as they are known to be.
    pub fn known_fields(&mut self, columns: &SchemaRef) -> Result<Vec<Field>> {
        let names = columns.fields().iter().map(|field| field.name());
        if !names.eq(&self.names) {
            let expected = columns.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>();
            let (expected, found) = (expected.join(", "), self.names.join(", "));
            return Err(Error::damaged(&self.name, format!("expected the columns {expected}, got {found}")));
        }
        self.sampled = SAMPLED;
        Ok(columns.fields().iter().map(|field| field.as_ref().clone()).collect())
    }

    /// The rows that were looked at, as what they were taken for.
    fn take_sample(&mut self, wanted: &SchemaRef) -> Option<Result<RecordBatch>> {
        let sample = self.sample.take()?;
        let convert = |(&index, field): (&usize, &Arc<Field>)| {
            cast(sample.column(index), field.data_type())
                .map_err(|error| Error::damaged(&self.name, error.to_string()))
        };
        let columns = self.columns.iter().zip(wanted.fields()).map(convert).collect::<Result<Vec<_>>>();
        let batch = columns.map(|columns| RecordBatch::try_new(wanted.clone(), columns));
        Some(batch.and_then(|batch| batch.map_err(|error| Error::damaged(&self.name, error.to_string()))))
    }

    fn read_header(&mut self) -> Result<()> {
        if !self.next_record()? {
            return Err(Error::damaged(
                &self.name,
                "expected a line with the names of the columns, got an empty file",
            ));
        }
        let name = |index: usize| {
            let field = self.field(index);
            let text = std::str::from_utf8(field).map(|text| text.trim().to_string());
            text.map_err(|_| Error::bad_line(&self.name, 1, "the name of a column in UTF-8", field))
        };
        self.names = (0..self.record.len()).map(name).collect::<Result<_>>()?;
        Ok(())
    }

    /// The next rows: at most `batch_rows`, and fewer where strings are long.
    pub fn next_batch(&mut self, batch_rows: usize) -> Result<Option<RecordBatch>> {
        let wanted = self.wanted.clone().expect("columns are chosen before batches are read");
        if let Some(sample) = self.take_sample(&wanted) {
            return sample.map(Some);
        }
        let mut columns: Vec<Column> = wanted.fields().iter().map(|field| Column::new(field)).collect();
        let (mut rows, mut text_bytes) = (0, 0);
        while rows < batch_rows && text_bytes < self.record_limit && self.next_record()? {
            self.check_length()?;
            for (column, &index) in columns.iter_mut().zip(&self.columns) {
                let field = self.field(index);
                text_bytes += column.push(field).ok_or_else(|| self.bad_field(index, column, field))?;
            }
            rows += 1;
        }
        if rows == 0 {
            return Ok(None);
        }
        let arrays = columns.into_iter().map(Column::finish).collect();
        Ok(Some(RecordBatch::try_new(wanted, arrays).expect("columns of equal length and the wanted types")))
    }

    /// Reads the next record that is not a blank line; false at the end.
    fn next_record(&mut self) -> Result<bool> {
        loop {
            self.reader.get_mut().since_record = 0;
            let start = self.reader.position().clone();
            match self.reader.read_byte_record(&mut self.record) {
                Ok(true) if self.is_blank(&start) => {}
                Ok(more) => return Ok(more),
                Err(error) => return Err(self.error(start.line(), error)),
            }
        }
    }

    /// Whether the record is a lone carriage return, which the library takes for a value. An empty value in quotes
    /// has more bytes than that; the bytes of blank lines before it are as many as these lines.
    fn is_blank(&self, start: &Position) -> bool {
        let end = self.reader.position();
        self.record.len() == 1
            && self.record.as_slice() == b"\r"
            && end.byte() - start.byte() == end.line() - start.line() + 1
    }

    fn check_length(&self) -> Result<()> {
        if self.record.len() == self.names.len() {
            return Ok(());
        }
        Err(Error::BadValue {
            place: format!("{}:{}", self.name, self.line()),
            expected: format!("{} fields as in the first line", self.names.len()),
            found: self.record.len().to_string(),
        })
    }

    /// A field of the record, without the carriage return of a Windows line end after the last one.
    fn field(&self, index: usize) -> &[u8] {
        let field = &self.record[index];
        if index + 1 == self.record.len() { field.strip_suffix(b"\r").unwrap_or(field) } else { field }
    }

    fn bad_field(&self, index: usize, column: &Column, field: &[u8]) -> Error {
        let expected = format!("{} in column '{}'{}", column.expected(), self.names[index], self.sampled);
        Error::bad_line(&self.name, self.line(), expected, field)
    }

    /// The line on which the record read last begins. The position that the library gives with it lies before any
    /// blank lines above, so it is counted back from where the record ends.
    fn line(&self) -> u64 {
        let end = self.reader.position();
        let bytes = self.reader.get_ref();
        let is_open_end = end.byte() == bytes.total && bytes.last != b'\n';
        let inside = memchr::memchr_iter(b'\n', self.record.as_slice()).count() as u64;
        end.line() - inside - u64::from(!is_open_end)
    }

    fn error(&self, line: u64, error: csv::Error) -> Error {
        match error.into_kind() {
            ErrorKind::Io(error) if error.kind() == io::ErrorKind::FileTooLarge => Error::TooLarge {
                place: format!("{}:{line}", self.name),
                what: "a CSV record (or an open quote)",
                bytes: self.reader.get_ref().since_record,
                limit: self.record_limit,
            },
            ErrorKind::Io(error) => Error::from_read(&self.name, error),
            other => Error::damaged(&self.name, format!("{other:?}")),
        }
    }
}

/// Whole numbers if all values are, numbers if all are, text otherwise. Nothing but nulls is text.
fn inferred_type(values: &StringArray) -> DataType {
    let all = |is: fn(&str) -> bool| values.null_count() < values.len() && values.iter().flatten().all(is);
    if all(|value| value.trim().parse::<i64>().is_ok()) {
        DataType::Int64
    } else if all(|value| value.trim().parse::<f64>().is_ok()) {
        DataType::Float64
    } else {
        DataType::Utf8
    }
}

/// Fails once more bytes than `allowed` are read for one record.
struct Bounded {
    inner: Bytes,
    allowed: u64,
    since_record: u64,
    total: u64,
    /// The last byte read.
    last: u8,
}

impl Read for Bounded {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.since_record > self.allowed {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let read = self.inner.read(buffer)?;
        self.since_record += read as u64;
        self.total += read as u64;
        self.last = buffer[..read].last().copied().unwrap_or(self.last);
        Ok(read)
    }
}

/// One column in the making.
struct Column {
    values: Values,
    /// Which rows have a value; only where null is allowed, which CSV writes as nothing.
    valid: Option<Vec<bool>>,
}

impl Column {
    fn new(field: &Field) -> Self {
        Column { values: Values::new(field.data_type()), valid: field.is_nullable().then(Vec::new) }
    }

    /// Adds a field and says how many bytes of text it took; `None` if it is not of the type.
    fn push(&mut self, field: &[u8]) -> Option<u64> {
        if let Some(valid) = &mut self.valid {
            valid.push(!field.is_empty());
            if field.is_empty() {
                self.values.push_default();
                return Some(0);
            }
        }
        self.values.push(field)
    }

    fn expected(&self) -> &'static str {
        self.values.expected()
    }

    fn finish(self) -> ArrayRef {
        let array = self.values.finish();
        let Some(valid) = self.valid else { return array };
        let data = array.into_data().into_builder().nulls(Some(NullBuffer::from(valid)));
        make_array(data.build().expect("a validity for each value"))
    }
}

/// Values of one column.
enum Values {
    UInt64(Vec<u64>),
    Int64(Vec<i64>),
    UInt32(Vec<u32>),
    Int32(Vec<i32>),
    Float64(Vec<f64>),
    Float32(Vec<f32>),
    Utf8(StringBuilder),
}

impl Values {
    fn new(kind: &DataType) -> Self {
        match kind {
            DataType::UInt64 => Values::UInt64(Vec::new()),
            DataType::Int64 => Values::Int64(Vec::new()),
            DataType::UInt32 => Values::UInt32(Vec::new()),
            DataType::Int32 => Values::Int32(Vec::new()),
            DataType::Float64 => Values::Float64(Vec::new()),
            DataType::Float32 => Values::Float32(Vec::new()),
            DataType::Utf8 => Values::Utf8(StringBuilder::new()),
            other => unreachable!("{other} is refused when the table is opened"),
        }
    }

    /// Adds a field and says how many bytes of text it took; `None` if it is not of the type.
    fn push(&mut self, field: &[u8]) -> Option<u64> {
        fn parse<T: std::str::FromStr>(values: &mut Vec<T>, field: &str) -> Option<u64> {
            values.push(field.trim().parse().ok()?);
            Some(0)
        }
        let field = std::str::from_utf8(field).ok()?;
        match self {
            Values::UInt64(values) => parse(values, field),
            Values::Int64(values) => parse(values, field),
            Values::UInt32(values) => parse(values, field),
            Values::Int32(values) => parse(values, field),
            Values::Float64(values) => parse(values, field),
            Values::Float32(values) => parse(values, field),
            Values::Utf8(values) => {
                values.append_value(field);
                Some(field.len() as u64)
            }
        }
    }

    /// Adds something where there is no value.
    fn push_default(&mut self) {
        match self {
            Values::UInt64(values) => values.push(0),
            Values::Int64(values) => values.push(0),
            Values::UInt32(values) => values.push(0),
            Values::Int32(values) => values.push(0),
            Values::Float64(values) => values.push(0.0),
            Values::Float32(values) => values.push(0.0),
            Values::Utf8(values) => values.append_value(""),
        }
    }

    fn expected(&self) -> &'static str {
        match self {
            Values::UInt64(_) => "a whole number from 0 to 2^64-1",
            Values::Int64(_) => "a whole number from -2^63 to 2^63-1",
            Values::UInt32(_) => "a whole number from 0 to 2^32-1",
            Values::Int32(_) => "a whole number from -2^31 to 2^31-1",
            Values::Float64(_) | Values::Float32(_) => "a number",
            Values::Utf8(_) => "text in UTF-8",
        }
    }

    fn finish(self) -> ArrayRef {
        match self {
            Values::UInt64(values) => Arc::new(UInt64Array::from(values)),
            Values::Int64(values) => Arc::new(Int64Array::from(values)),
            Values::UInt32(values) => Arc::new(UInt32Array::from(values)),
            Values::Int32(values) => Arc::new(Int32Array::from(values)),
            Values::Float64(values) => Arc::new(Float64Array::from(values)),
            Values::Float32(values) => Arc::new(Float32Array::from(values)),
            Values::Utf8(mut values) => Arc::new(values.finish()),
        }
    }
}
