//! Cuts decoded batches into batches of bounded size and of the wanted types.
//!
//! Numbers of any stored type are converted to the requested type, value by value with a check. An error names the
//! file, the row and the column of a value that does not fit, such as a negative id, an id above 2^32 for 32 bits, a
//! text that is not a number, or a null. A floating-point column is refused for whole numbers, since truncation would
//! give wrong answers.

use arrow_array::{Array, ArrayRef, RecordBatch, cast::AsArray, new_null_array};
use arrow_cast::{CastOptions, can_cast_types, cast::cast_with_options, display::array_value_to_string};
use arrow_schema::{DataType, SchemaRef};

use crate::{Error, Result};

/// Returns true if a column of type `stored` can be read as the type `wanted`.
pub(super) fn is_readable_as(stored: &DataType, wanted: &DataType) -> bool {
    let is_text = matches!(stored, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View);
    let is_whole = stored.is_integer()
        || matches!(
            stored,
            DataType::Boolean | DataType::Date32 | DataType::Date64 | DataType::Timestamp(..)
        );
    let is_number = stored.is_floating() || matches!(stored, DataType::Decimal128(..));
    let is_bytes =
        |kind: &DataType| matches!(kind, DataType::Binary | DataType::LargeBinary | DataType::BinaryView);
    let kinds_fit = match wanted {
        kind if is_bytes(kind) => is_bytes(stored),
        kind if kind.is_integer() => is_text || is_whole || matches!(stored, DataType::Decimal128(_, 0)),
        kind if kind.is_floating() => is_text || stored.is_integer() || is_number,
        DataType::Utf8 => is_text || is_whole || is_number,
        _ => false,
    };
    *stored == DataType::Null || kinds_fit && can_cast_types(stored, wanted)
}

/// A decoded batch, which is returned in slices.
pub(super) struct BatchSlices {
    name: String,
    schema: SchemaRef,
    batch_rows: usize,
    /// The limit, in bytes, on the total length of the strings in a slice of several rows. The strings of a single row
    /// may be longer.
    text_bytes_max: u64,
    batch: Option<RecordBatch>,
    next: usize,
}

impl BatchSlices {
    pub fn new(name: &str, schema: SchemaRef, batch_rows: usize, text_bytes_max: u64) -> Self {
        BatchSlices { name: name.to_string(), schema, batch_rows, text_bytes_max, batch: None, next: 0 }
    }

    pub fn refill(&mut self, batch: RecordBatch) {
        (self.batch, self.next) = (Some(batch), 0);
    }

    /// Drops the rows that have not been returned.
    pub fn forget(&mut self) {
        self.batch = None;
    }

    /// Returns the next slice. `first_row` is the row of the file at which the slice begins. Returns `None` at the end
    /// of the batch.
    pub fn next_slice(&mut self, first_row: u64) -> Result<Option<RecordBatch>> {
        let Some(batch) = self.batch.take_if(|batch| self.next < batch.num_rows()) else {
            self.batch = None;
            return Ok(None);
        };
        let rows = self.rows_that_fit(&batch);
        let slice = batch.slice(self.next, rows);
        self.next += rows;
        self.batch = Some(batch);
        let columns =
            (0..slice.num_columns()).map(|column| self.convert(column, slice.column(column), first_row));
        let columns = columns.collect::<Result<_>>()?;
        let batch = RecordBatch::try_new(self.schema.clone(), columns);
        batch.map(Some).map_err(|error| Error::damaged(&self.name, error.to_string()))
    }

    fn rows_that_fit(&self, batch: &RecordBatch) -> usize {
        let rows = self.batch_rows.min(batch.num_rows() - self.next);
        let texts: Vec<&ArrayRef> = batch.columns().iter().filter(|array| is_text(array)).collect();
        if texts.is_empty() {
            return rows;
        }
        let mut bytes = 0;
        let fits = |row: &usize| {
            bytes += texts.iter().map(|array| text_length(array, *row)).sum::<u64>();
            bytes <= self.text_bytes_max
        };
        (self.next..self.next + rows).take_while(fits).count().max(1)
    }

    fn convert(&self, column: usize, stored: &ArrayRef, first_row: u64) -> Result<ArrayRef> {
        let wanted = self.schema.field(column).data_type();
        let bad = |row: usize, found: String| Error::BadValue {
            place: format!(
                "{}: row {}, column '{}'",
                self.name,
                first_row + row as u64,
                self.schema.field(column).name()
            ),
            expected: format!("a value of type {wanted}"),
            found,
        };
        if stored.data_type() == &DataType::Null && !stored.is_empty() {
            return match self.schema.field(column).is_nullable() {
                true => Ok(new_null_array(wanted, stored.len())),
                false => Err(bad(0, "null".to_string())),
            };
        }
        if !self.schema.field(column).is_nullable()
            && let Some(row) = first_null(stored, None)
        {
            return Err(bad(row, "null".to_string()));
        }
        if stored.data_type() == wanted {
            return Ok(stored.clone());
        }
        // A value that cannot be converted becomes null, and the error names the first row with such a null.
        let options = CastOptions { safe: true, ..CastOptions::default() };
        let converted = cast_with_options(stored, wanted, &options)
            .map_err(|error| Error::damaged(&self.name, error.to_string()))?;
        if let Some(row) = first_null(&converted, Some(stored)) {
            let found = array_value_to_string(stored, row).unwrap_or_default();
            return Err(bad(row, crate::error::quote(found.as_bytes())));
        }
        Ok(converted)
    }
}

fn first_null(array: &ArrayRef, unless_null_in: Option<&ArrayRef>) -> Option<usize> {
    if array.null_count() == 0 {
        return None;
    }
    (0..array.len()).find(|&row| array.is_null(row) && unless_null_in.is_none_or(|other| !other.is_null(row)))
}

fn is_text(array: &ArrayRef) -> bool {
    matches!(array.data_type(), DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View)
}

fn text_length(array: &ArrayRef, row: usize) -> u64 {
    match array.data_type() {
        DataType::Utf8 => array.as_string::<i32>().value_length(row) as u64,
        DataType::LargeUtf8 => array.as_string::<i64>().value_length(row) as u64,
        _ => array.as_string_view().views()[row] as u32 as u64,
    }
}
