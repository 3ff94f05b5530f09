//! Writes Parquet to any writer, such as a file of a dataset, in small row groups.

use std::io::Write;

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use inshore_store::{Budget, Reservation};
use parquet::{
    arrow::{ArrowWriter, arrow_writer::ArrowWriterOptions},
    errors::ParquetError,
};

use super::{TextLengths, needs_words, parquet_properties};
use crate::{Error, Result};

/// A row group ends with the row that reaches one of these limits.
const GROUP_ROWS: usize = 64 << 10;
const GROUP_BYTES: usize = 4 << 20;

/// Writes a table of flat columns as Parquet to the writer `W`. Row groups have at most 64 Ki rows and about 4 MiB, so
/// that a reader of a few rows reads few other rows ([`crate::TableReader::read_row_groups`]).
///
/// Row groups depend on the rows only, not on the division into batches. The writer reserves
/// [`ParquetStream::MEMORY_BYTES`] bytes. It also takes about 0.5 KB for the metadata of each column of each row group.
pub struct ParquetStream<W: Write + Send> {
    writer: ArrowWriter<W>,
    schema: SchemaRef,
    name: String,
    open_rows: usize,
    open_bytes: usize,
    rows: u64,
    _memory: Reservation,
}

impl<W: Write + Send> ParquetStream<W> {
    /// The memory, in bytes, that a writer reserves. It holds the compressed pages of a row group, and one page of each
    /// column.
    pub const MEMORY_BYTES: u64 = 2 * GROUP_BYTES as u64;

    /// Begins a table in `out`. `name` names the table in errors.
    ///
    /// # Errors
    /// - Returns [`inshore_store::Error::OverBudget`] if the budget has too little free memory.
    /// - Returns an error that names the table if Parquet cannot hold the schema.
    pub fn new(out: W, name: &str, schema: SchemaRef, budget: &Budget) -> Result<ParquetStream<W>> {
        let memory = budget.reserve(Self::MEMORY_BYTES, "writing columns")?;
        let options = ArrowWriterOptions::new()
            .with_properties(parquet_properties(&schema))
            .with_skip_arrow_metadata(!schema.fields().iter().any(|field| needs_words(field)));
        let writer = ArrowWriter::try_new_with_options(out, schema.clone(), options)
            .map_err(|error| failed(name, error))?;
        let name = name.to_string();
        Ok(ParquetStream { writer, schema, name, open_rows: 0, open_bytes: 0, rows: 0, _memory: memory })
    }

    /// Returns how many rows were written so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Adds rows.
    ///
    /// # Errors
    /// - Returns an error if the columns of the batch are not those of the schema.
    /// - Returns the errors of the writer `W`.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        let batch = RecordBatch::try_new(self.schema.clone(), batch.columns().to_vec())
            .map_err(|error| Error::damaged(&self.name, error.to_string()))?;
        let texts = TextLengths::of(&batch);
        let fixed: usize =
            batch.columns().iter().map(|column| column.data_type().primitive_width().unwrap_or(4)).sum();
        let mut start = 0;
        while start < batch.num_rows() {
            let left = GROUP_BYTES.saturating_sub(self.open_bytes);
            let rows = (GROUP_ROWS - self.open_rows)
                .min(left.div_ceil(fixed.max(1)).max(1))
                .min(batch.num_rows() - start);
            let (rows, text_bytes) = texts.rows_within(start..start + rows, left.max(1));
            let written = self.writer.write(&batch.slice(start, rows));
            written.map_err(|error| failed(&self.name, error))?;
            start += rows;
            self.rows += rows as u64;
            self.open_rows += rows;
            self.open_bytes += rows * fixed + text_bytes;
            if self.open_rows == GROUP_ROWS || self.open_bytes >= GROUP_BYTES {
                self.end_group()?;
            }
        }
        Ok(())
    }

    /// Ends the row group, so that the next row begins another one. Returns the number of row groups so far.
    ///
    /// # Errors
    /// Returns the errors of the writer `W`.
    pub fn end_group(&mut self) -> Result<usize> {
        if self.open_rows > 0 {
            self.writer.flush().map_err(|error| failed(&self.name, error))?;
            (self.open_rows, self.open_bytes) = (0, 0);
        }
        Ok(self.writer.flushed_row_groups().len())
    }

    /// Writes the remaining rows and the footer, and returns the writer.
    ///
    /// # Errors
    /// Returns the errors of the writer `W`.
    pub fn finish(self) -> Result<W> {
        self.writer.into_inner().map_err(|error| failed(&self.name, error))
    }
}

/// Converts an error of the library. If the library's error contains an error that the writer `W` returned, the result
/// is that error.
fn failed(name: &str, error: ParquetError) -> Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<std::io::Error>() {
            Ok(error) => error
                .downcast::<inshore_store::Error>()
                .map_or_else(|error| inshore_store::Error::io("write", name, error).into(), Error::Store),
            Err(other) => Error::damaged(name, other.to_string()),
        },
        error => Error::damaged(name, error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::{Int64Array, StringArray};
    use arrow_schema::{DataType, Field, Schema};
    use inshore_store::Budget;

    use super::*;
    use crate::{Input, TableReader};

    #[test]
    fn row_groups_end_where_rows_or_bytes_reach_a_limit() {
        let schema = Arc::new(Schema::new(vec![
            Field::new("n", DataType::Int64, true),
            Field::new("t", DataType::Utf8, true),
        ]));
        let budget = Budget::new(64 << 20, 1);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        // The table has 100,000 short texts, followed by 100 texts of 100 kB.
        let text = |row: i64| if row < 100_000 { format!("{row}") } else { "x".repeat(100_000) };
        for batch_rows in [1000i64, 33_367] {
            let file = std::fs::File::create(&path).unwrap();
            let mut stream = ParquetStream::new(file, "t", schema.clone(), &budget).unwrap();
            let rows: Vec<i64> = (0..100_100).collect();
            for rows in rows.chunks(batch_rows as usize) {
                let columns: [Arc<dyn arrow_array::Array>; 2] = [
                    Arc::new(Int64Array::from(rows.to_vec())),
                    Arc::new(StringArray::from_iter_values(rows.iter().map(|&row| text(row)))),
                ];
                stream.write(&RecordBatch::try_new(schema.clone(), columns.to_vec()).unwrap()).unwrap();
            }
            assert_eq!(stream.rows(), 100_100);
            stream.finish().unwrap();
            assert_eq!(budget.reserved_bytes(), 0);
            let mut reader =
                TableReader::open_stored(&Input::new(&path), None, &[], 8192, &budget, (0, 1)).unwrap();
            // The first row group has 65,536 rows. The second one has the other short texts and 38 long texts, which
            // are up to 4 MiB. The third one has 42 long texts, and the last one has the rest.
            let mut groups = Vec::new();
            for group in 0..reader.row_groups().unwrap() {
                reader.read_row_groups(group..group + 1).unwrap();
                groups.push(reader.rows().unwrap());
            }
            assert_eq!(groups.iter().sum::<u64>(), 100_100);
            assert_eq!(groups[0], 65_536);
            assert_eq!(groups.len(), 4, "{groups:?}");
            reader.read_row_groups(0..groups.len()).unwrap();
            let mut row = 0;
            while let Some(batch) = reader.next_batch().unwrap() {
                let numbers: &Int64Array = batch.column(0).as_any().downcast_ref().unwrap();
                let texts: &StringArray = batch.column(1).as_any().downcast_ref().unwrap();
                for place in 0..batch.num_rows() {
                    assert_eq!((numbers.value(place), texts.value(place)), (row, &*text(row)));
                    row += 1;
                }
            }
            assert_eq!(row, 100_100);
        }
    }

    #[test]
    fn a_row_group_can_be_ended_before_its_limit() {
        let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true)]));
        let budget = Budget::new(64 << 20, 1);
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.parquet");
        let file = std::fs::File::create(&path).unwrap();
        let mut stream = ParquetStream::new(file, "t", schema.clone(), &budget).unwrap();
        let mut write = |rows: i64| {
            let numbers = Arc::new(Int64Array::from_iter_values(0..rows));
            stream.write(&RecordBatch::try_new(schema.clone(), vec![numbers]).unwrap()).unwrap();
            stream.end_group().unwrap()
        };
        // A row group without rows is not written.
        assert_eq!([write(10), write(0), write(70_000), write(5)], [1, 1, 3, 4]);
        stream.finish().unwrap();
        let input = Input::new(&path);
        let reader = TableReader::open_stored(&input, None, &[], 8192, &budget, (0, 1)).unwrap();
        assert_eq!(reader.row_group_rows().unwrap(), [10, 65_536, 4464, 5]);
    }
}
