//! Reads a CSV file as a source of record batches. Values are parsed directly into columns of the wanted types.
//!
//! The first record has the names of columns, unless [`Header`] says otherwise. Column types can be inferred from the
//! first rows ([`super::value_classes`]). These rows are kept in memory and returned before all later rows.

use arrow_array::{Array, RecordBatch, StringArray, builder::StringBuilder};
use arrow_schema::{Field, SchemaRef};
use inshore_store::Budget;

use super::{
    csv_records::Records,
    typed::{Column, TypeOrigin},
    value_classes::{ValueClasses, fraction, is_time},
};
use crate::{Error, Header, Input, Result, allowance::piece_limit, unique_names};

/// The number of rows from which types are inferred.
const SAMPLE_ROWS: usize = 1_000;

pub(super) struct CsvSource {
    name: String,
    names: Vec<String>,
    /// True if the caller stated whether the first record has the column names.
    is_named: bool,
    records: Records,
    /// True if the first record is a row of data that was not returned yet.
    has_row: bool,
    text_bytes_max: u64,
    /// For each wanted column, its position in a record and the origin of its type.
    columns: Vec<(usize, TypeOrigin)>,
    wanted: Option<SchemaRef>,
    sample: Option<Sample>,
    /// The origin of the type of each column of the file.
    origins: Vec<TypeOrigin>,
    /// True if the types fit all rows, or if the caller set them.
    is_known: bool,
}

/// The first rows of the file. `columns` has their values as text, and `lines` has the line on which each row begins.
struct Sample {
    columns: Vec<StringArray>,
    lines: Vec<u64>,
}

impl CsvSource {
    pub fn open(input: &Input, separator: u8, budget: &Budget) -> Result<Self> {
        let limit = piece_limit(budget);
        let records = Records::new(input.open(budget)?, separator, limit)?;
        let mut source = CsvSource {
            name: input.name().to_string(),
            names: Vec::new(),
            is_named: false,
            records,
            has_row: false,
            text_bytes_max: limit,
            columns: Vec::new(),
            wanted: None,
            sample: None,
            origins: Vec::new(),
            is_known: false,
        };
        source.read_header(input)?;
        source.origins = vec![TypeOrigin::Asked; source.names.len()];
        Ok(source)
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn position(&self) -> u64 {
        self.records.position()
    }

    /// Chooses columns and their types. The first `carried` columns of `columns` are read as text.
    pub fn choose(&mut self, columns: &[usize], wanted: &SchemaRef, carried: usize) {
        let origin = |(place, &column): (usize, &usize)| match place < carried {
            true => (column, TypeOrigin::Asked),
            false => (column, self.origins[column]),
        };
        self.columns = columns.iter().enumerate().map(origin).collect();
        self.wanted = Some(wanted.clone());
    }

    /// Returns true if a column had no values in the first rows.
    pub fn is_unseen(&self, column: usize) -> bool {
        self.origins[column] == TypeOrigin::Unseen
    }

    /// Returns all columns with the types that the first rows suggest. Columns in `as_text` are text.
    ///
    /// If the first record looks like a row of data, the result is an error. Without this check, the values of such a
    /// row would silently become column names.
    pub fn inferred_fields(&mut self, as_text: &[usize]) -> Result<Vec<Field>> {
        self.check_names()?;
        let sample = self.take_first_rows()?;
        let mut fields = Vec::new();
        for (index, name) in self.names.iter().enumerate() {
            let mut seen = ValueClasses::NOTHING;
            if as_text.contains(&index) {
                seen |= ValueClasses::TEXT;
            } else {
                sample.columns[index].iter().flatten().for_each(|value| seen |= ValueClasses::of_text(value));
                self.origins[index] = match seen == ValueClasses::NOTHING {
                    true if self.records.is_at_end() => TypeOrigin::Asked,
                    true => TypeOrigin::Unseen,
                    false => TypeOrigin::Guessed,
                };
            }
            fields.push(Field::new(name, seen.data_type(), true));
        }
        self.sample = Some(sample);
        Ok(fields)
    }

    /// Classifies all values of each column.
    pub fn scan(&mut self, check_cancelled: &dyn Fn() -> Result<()>) -> Result<Vec<(String, ValueClasses)>> {
        let mut all = vec![ValueClasses::NOTHING; self.names.len()];
        let mut rows = 0u64;
        while self.next_row()? {
            for (index, seen) in all.iter_mut().enumerate().filter(|(_, seen)| !seen.has(ValueClasses::TEXT))
            {
                let field = self.records.field(index);
                if !field.is_empty() {
                    *seen |= std::str::from_utf8(field).map_or(ValueClasses::TEXT, ValueClasses::of_text);
                }
            }
            rows += 1;
            if rows.is_multiple_of(1 << 14) {
                check_cancelled()?;
            }
        }
        Ok(self.names.iter().cloned().zip(all).collect())
    }

    fn take_first_rows(&mut self) -> Result<Sample> {
        let mut columns: Vec<StringBuilder> = self.names.iter().map(|_| StringBuilder::new()).collect();
        let (mut lines, mut text_bytes) = (Vec::new(), 0);
        while lines.len() < SAMPLE_ROWS && text_bytes < self.text_bytes_max && self.next_row()? {
            for (index, column) in columns.iter_mut().enumerate() {
                let field = self.records.field(index);
                let text = std::str::from_utf8(field).map_err(|_| {
                    let expected = format!("text in UTF-8 in column '{}'", self.names[index]);
                    Error::bad_line(&self.name, self.records.record_line(), expected, field)
                })?;
                text_bytes += text.len() as u64;
                column.append_option((!text.is_empty()).then_some(text));
            }
            lines.push(self.records.record_line());
        }
        Ok(Sample { columns: columns.iter_mut().map(StringBuilder::finish).collect(), lines })
    }

    /// Returns all columns with the types in `columns`. [`Input::with_columns`] has set these types.
    pub fn known_fields(&mut self, columns: &SchemaRef, input: &Input) -> Result<Vec<Field>> {
        let names = columns.fields().iter().map(|field| field.name());
        if !names.eq(&self.names) {
            let expected = columns.fields().iter().map(|field| field.name().as_str()).collect::<Vec<_>>();
            let (expected, found) = (expected.join(", "), self.names.join(", "));
            return Err(Error::damaged(&self.name, format!("expected the columns {expected}, got {found}")));
        }
        let origin =
            |name: &String| if input.is_unseen(name) { TypeOrigin::Unseen } else { TypeOrigin::Guessed };
        (self.origins, self.is_known) = (self.names.iter().map(origin).collect(), true);
        Ok(columns.fields().iter().map(|field| field.as_ref().clone()).collect())
    }

    fn read_header(&mut self, input: &Input) -> Result<()> {
        if !self.records.next_record()? {
            return Err(Error::damaged(
                &self.name,
                "expected a line with the names of the columns, got an empty file",
            ));
        }
        let fields = 0..self.records.len();
        if input.header() == Header::Absent {
            (self.has_row, self.is_named) = (true, true);
            self.names = fields.map(|index| format!("column_{}", index + 1)).collect();
            return self.check_returns();
        }
        let name = |index: usize| {
            let field = self.records.field(index);
            let text = std::str::from_utf8(field).map(|text| text.trim().to_string());
            text.map_err(|_| {
                Error::bad_line(
                    &self.name,
                    self.records.record_line(),
                    "the name of a column in UTF-8",
                    field,
                )
            })
        };
        self.names = fields.map(name).collect::<Result<_>>()?;
        self.is_named = input.header() == Header::Present;
        if self.is_named {
            self.names = unique_names(std::mem::take(&mut self.names));
        }
        self.check_returns()
    }

    /// Returns an error if lines end with a carriage return alone. The whole file would then be a single line.
    fn check_returns(&self) -> Result<()> {
        let is_joined = |&index: &usize| {
            !self.records.is_quoted(index) && memchr::memchr(b'\r', self.records.field(index)).is_some()
        };
        match (0..self.records.len()).find(is_joined) {
            None => Ok(()),
            Some(index) => Err(Error::bad_line(
                &self.name,
                self.records.record_line(),
                "lines that end with a line feed (tr '\\r' '\\n' converts carriage returns)",
                self.records.field(index),
            )),
        }
    }

    /// Returns an error if the first line looks like a row of data. This row would otherwise be lost.
    fn check_names(&self) -> Result<()> {
        if self.is_named {
            return Ok(());
        }
        let why = |(index, name): (usize, &String)| match name {
            name if name.is_empty() => Some("empty"),
            name if fraction(name).is_some() => Some("a number"),
            name if is_time(name) => Some("a date or a time"),
            name if self.names[..index].contains(name) => Some("a repeated name"),
            _ => None,
        };
        let Some((index, why)) =
            self.names.iter().enumerate().find_map(|(at, name)| Some((at, why((at, name))?)))
        else {
            return Ok(());
        };
        let (line, name) = (self.records.record_line(), crate::error::quote(self.names[index].as_bytes()));
        Err(Error::BadValue {
            place: format!("{}:{line}", self.name),
            expected: "the names of columns".to_string(),
            found: format!("{name} ({why}): --header yes reads the line as names, --header no as a row"),
        })
    }

    /// Returns the next rows, beginning with the rows of the sample. The result has at most `batch_rows` rows, and
    /// fewer if strings are long.
    pub fn next_batch(&mut self, batch_rows: usize) -> Result<Option<RecordBatch>> {
        let wanted = self.wanted.clone().expect("columns are chosen before batches are read");
        let mut columns: Vec<Column> = wanted
            .fields()
            .iter()
            .zip(&self.columns)
            .map(|(field, &(_, origin))| Column::new(field, origin))
            .collect();
        let rows = match self.sample.take() {
            Some(sample) => self.give_sample(&sample, &mut columns)?,
            None => self.give_rows(batch_rows, &mut columns)?,
        };
        if rows == 0 {
            return Ok(None);
        }
        let arrays = columns.into_iter().map(Column::finish).collect();
        Ok(Some(RecordBatch::try_new(wanted, arrays).expect("columns of equal length and the wanted types")))
    }

    fn give_sample(&self, sample: &Sample, columns: &mut [Column]) -> Result<usize> {
        for (column, &(index, origin)) in columns.iter_mut().zip(&self.columns) {
            let values = &sample.columns[index];
            for (row, &line) in sample.lines.iter().enumerate() {
                let field = if values.is_null(row) { "" } else { values.value(row) };
                let field = field.as_bytes();
                column
                    .push_text(field)
                    .ok_or_else(|| self.bad_field((index, origin), column, field, line))?;
            }
        }
        Ok(sample.lines.len())
    }

    fn give_rows(&mut self, batch_rows: usize, columns: &mut [Column]) -> Result<usize> {
        let (mut rows, mut text_bytes) = (0, 0);
        while rows < batch_rows && text_bytes < self.text_bytes_max && self.next_row()? {
            for (column, &(index, origin)) in columns.iter_mut().zip(&self.columns) {
                let field = self.records.field(index);
                text_bytes += column.push_text(field).ok_or_else(|| {
                    self.bad_field((index, origin), column, field, self.records.record_line())
                })?;
            }
            rows += 1;
        }
        Ok(rows)
    }

    /// Moves to the next row. Returns false at the end.
    fn next_row(&mut self) -> Result<bool> {
        if !std::mem::take(&mut self.has_row) && !self.records.next_record()? {
            return Ok(false);
        }
        if self.records.len() == self.names.len() {
            return Ok(true);
        }
        Err(Error::BadValue {
            place: format!("{}:{}", self.name, self.records.record_line()),
            expected: format!("{} fields as in the first line", self.names.len()),
            found: self.records.len().to_string(),
        })
    }

    fn bad_field(
        &self,
        (index, origin): (usize, TypeOrigin),
        column: &Column,
        field: &[u8],
        line: u64,
    ) -> Error {
        let expected = format!("{} in column '{}'", column.expected(), self.names[index]);
        match origin {
            TypeOrigin::Asked => Error::bad_line(&self.name, line, expected, field),
            TypeOrigin::Guessed | TypeOrigin::Unseen => Error::contradiction(
                &self.name,
                line,
                (&expected, self.is_known),
                Some(&self.names[index]),
                field,
            ),
        }
    }
}
