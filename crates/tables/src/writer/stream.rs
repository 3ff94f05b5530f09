//! Writes Parquet to any writer, such as a file of a dataset, in small row groups. A table of this kind can grow
//! ([`super::growth`]).

use std::io::Write;

use arrow_array::RecordBatch;
use arrow_schema::{Schema, SchemaRef};
use inshore_store::{Budget, Reservation};
use parquet::{
    arrow::{ArrowWriter, arrow_writer::ArrowWriterOptions},
    errors::ParquetError,
};

use super::{TextLengths, growth::FormerTable, needs_words, parquet_properties};
use crate::{Error, Input, Result, TableReader, reader::read_schema};

/// A row group ends with the row that reaches one of these limits.
const GROUP_ROWS: usize = 64 << 10;
const GROUP_BYTES: usize = 4 << 20;
/// The number of rows that are copied in one step from the last row group of a table that grows.
const COPY_ROWS: usize = 4 << 10;

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
    /// The table to which the rows are appended.
    former: Option<FormerTable>,
    memory: Reservation,
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
        let writer = ArrowWriter::try_new_with_options(out, schema.clone(), options(&schema))
            .map_err(|error| failed(name, error))?;
        let (name, former) = (name.to_string(), None);
        Ok(ParquetStream { writer, schema, name, open_rows: 0, open_bytes: 0, rows: 0, former, memory })
    }

    /// Begins to append rows to the table `former`, which a writer of this type made. `begin` returns the writer of the
    /// file. Its argument is the number of bytes of the file that stay, and the writer writes behind these bytes.
    ///
    /// The last row group of the table is written again, so that the row groups are those of a table that was written
    /// at once. The writer also reserves memory for the metadata of the table.
    ///
    /// # Errors
    /// - Returns the errors of [`ParquetStream::new`], of [`ParquetStream::write`] and of `begin`.
    /// - Returns an error if the table cannot be read, or if another writer made it.
    pub fn append(
        former: &Input,
        name: &str,
        budget: &Budget,
        begin: impl FnOnce(u64) -> inshore_store::Result<W>,
    ) -> Result<ParquetStream<W>> {
        let table = FormerTable::of(former, budget)?;
        let out = begin(table.kept_bytes)?;
        let mut stream = ParquetStream::new(out, name, table.schema.clone(), budget)?;
        stream.memory.resize(Self::MEMORY_BYTES + table.memory_bytes)?;
        stream.rows = table.kept_rows();
        let last = table.kept_groups();
        if table.has_last {
            let mut reader = TableReader::open_stored(former, None, &[], COPY_ROWS, budget, (0, 1))?;
            reader.read_row_groups(last..last + 1)?;
            while let Some(batch) = reader.next_batch()? {
                stream.write(&batch)?;
            }
        }
        stream.former = Some(table);
        Ok(stream)
    }

    /// Returns the columns of the table.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Returns how many rows the table has so far, with those of the table to which rows are appended.
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
            let rows = (GROUP_ROWS - self.open_rows).min(batch.num_rows() - start);
            let left = GROUP_BYTES - self.open_bytes;
            let (rows, bytes) = texts.rows_within(start..start + rows, fixed, left);
            let written = self.writer.write(&batch.slice(start, rows));
            written.map_err(|error| failed(&self.name, error))?;
            start += rows;
            self.rows += rows as u64;
            self.open_rows += rows;
            self.open_bytes += bytes;
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
        let ParquetStream { mut writer, name, former, .. } = self;
        let fail = |error| failed(&name, error);
        let Some(former) = former else { return writer.into_inner().map_err(fail) };
        writer.flush().map_err(fail)?;
        let groups = writer.flushed_row_groups().to_vec();
        let mut out = writer.into_inner().map_err(fail)?;
        let footer = former.footer(groups).map_err(fail)?;
        out.write_all(&footer).map_err(|error| fail(error.into()))?;
        Ok(out)
    }
}

fn options(schema: &Schema) -> ArrowWriterOptions {
    ArrowWriterOptions::new()
        .with_properties(parquet_properties(schema))
        .with_skip_arrow_metadata(!schema.fields().iter().any(|field| needs_words(field)))
}

/// Returns the columns `schema` with the types with which readers return them from a table that [`ParquetStream`]
/// wrote. Some types have no counterpart in Parquet. For example, times in seconds are returned as whole numbers.
///
/// # Errors
/// Returns an error that names the table `name` if Parquet cannot hold the schema.
pub fn stored_schema(name: &str, schema: &SchemaRef) -> Result<Schema> {
    let fail = |error| failed(name, error);
    let writer = ArrowWriter::try_new_with_options(std::io::sink(), schema.clone(), options(schema));
    let metadata = writer.and_then(ArrowWriter::close).map_err(fail)?;
    read_schema(metadata.file_metadata()).map_err(fail)
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
    use arrow_schema::{DataType, Field, Schema, TimeUnit};
    use inshore_store::Budget;

    use super::*;
    use crate::{Input, TableReader};

    const MEMORY: u64 = 64 << 20;

    /// Returns the rows with these numbers. Every fifth text is null, and some are long.
    fn batch_of(schema: &SchemaRef, rows: std::ops::Range<i64>) -> RecordBatch {
        let text = |row: i64| (row % 5 > 0).then(|| format!("text {row} {}", "x".repeat(row as usize % 700)));
        let texts: StringArray = rows.clone().map(text).collect();
        let numbers = Int64Array::from_iter_values(rows);
        RecordBatch::try_new(schema.clone(), vec![Arc::new(numbers), Arc::new(texts)]).unwrap()
    }

    fn write(path: &std::path::Path, schema: &SchemaRef, rows: std::ops::Range<i64>) {
        let budget = Budget::new(MEMORY, 1);
        let file = std::fs::File::create(path).unwrap();
        let mut stream = ParquetStream::new(file, "t", schema.clone(), &budget).unwrap();
        stream.write(&batch_of(schema, rows)).unwrap();
        stream.finish().unwrap();
    }

    /// Writes the table `from` with more rows to the file `to`. Returns the number of bytes that stayed.
    fn append(from: &std::path::Path, to: &std::path::Path, rows: std::ops::Range<i64>) -> Result<u64> {
        let (budget, mut stayed) = (Budget::new(MEMORY, 1), 0);
        let mut stream = ParquetStream::append(&Input::new(from), "t", &budget, |kept| {
            stayed = kept;
            std::fs::write(to, &std::fs::read(from).unwrap()[..kept as usize]).unwrap();
            Ok(std::fs::OpenOptions::new().append(true).open(to).unwrap())
        })?;
        assert_eq!(stream.rows(), rows.start as u64);
        stream.write(&batch_of(&stream.schema().clone(), rows.clone()))?;
        assert_eq!(stream.rows(), rows.end as u64);
        stream.finish()?;
        assert_eq!(budget.reserved_bytes(), 0);
        Ok(stayed)
    }

    fn schema() -> SchemaRef {
        let fields = [Field::new("n", DataType::Int64, false), Field::new("t", DataType::Utf8, true)];
        Arc::new(Schema::new(fields.to_vec()))
    }

    #[test]
    fn a_table_that_grew_has_the_row_groups_of_a_table_that_was_written_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = |number: usize| folder.path().join(format!("t{number}.parquet"));
        let (schema, budget) = (schema(), Budget::new(MEMORY, 1));
        let ends = [3, 4, 5_000, 30_000, 30_001, 70_000];
        write(&path(0), &schema, 0..ends[0]);
        for (number, pair) in ends.windows(2).enumerate() {
            let stayed = append(&path(number), &path(number + 1), pair[0]..pair[1]).unwrap();
            assert_eq!(stayed > 0, pair[0] >= 30_000, "{pair:?}");
            write(&folder.path().join("whole.parquet"), &schema, 0..pair[1]);
            let open = |path: &std::path::Path| {
                TableReader::open_stored(&Input::new(path), None, &[], 8192, &budget, (0, 1)).unwrap()
            };
            let mut reader = open(&path(number + 1));
            let whole = open(&folder.path().join("whole.parquet"));
            assert_eq!(reader.row_group_rows(), whole.row_group_rows(), "{pair:?}");
            let names = ["n".to_string(), "t".to_string()];
            let statistics = |reader: &TableReader| format!("{:?}", reader.group_values(&names).unwrap());
            assert_eq!(statistics(&reader), statistics(&whole));
            let mut row = 0;
            while let Some(batch) = reader.next_batch().unwrap() {
                let end = row + batch.num_rows() as i64;
                assert_eq!(batch.columns(), batch_of(&schema, row..end).columns());
                row = end;
            }
            assert_eq!(row, pair[1]);
        }
        assert!(whole_groups(&path(ends.len() - 1)) > 3);
    }

    /// Reads a file with the reader of the library, and returns the number of row groups.
    fn whole_groups(path: &std::path::Path) -> usize {
        use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
        let file = std::fs::File::open(path).unwrap();
        let builder = ParquetRecordBatchReaderBuilder::try_new(file).unwrap();
        let groups = builder.metadata().num_row_groups();
        let rows: usize = builder.build().unwrap().map(|batch| batch.unwrap().num_rows()).sum();
        assert_eq!(rows, 70_000);
        groups
    }

    #[test]
    fn rows_are_appended_only_to_a_table_of_this_writer() {
        let folder = tempfile::tempdir().unwrap();
        let (from, to) = (folder.path().join("a.parquet"), folder.path().join("b.parquet"));
        std::fs::write(&from, b"no Parquet").unwrap();
        assert!(append(&from, &to, 0..3).is_err());
        // Another writer calls the root of its schema by another name.
        let properties = ArrowWriterOptions::new().with_schema_root("other".to_string());
        let file = std::fs::File::create(&from).unwrap();
        let mut writer = ArrowWriter::try_new_with_options(file, schema(), properties).unwrap();
        writer.write(&batch_of(&schema(), 0..3)).unwrap();
        writer.close().unwrap();
        let error = append(&from, &to, 3..5).unwrap_err().to_string();
        assert!(error.contains("types that the writer of this table does not use"), "{error}");
    }

    #[test]
    fn types_without_a_counterpart_in_parquet_are_returned_as_numbers() {
        let kinds = [
            (DataType::Date64, DataType::Int64),
            (DataType::Timestamp(TimeUnit::Second, None), DataType::Int64),
            (DataType::Time32(TimeUnit::Second), DataType::Int32),
            (
                DataType::Timestamp(TimeUnit::Microsecond, None),
                DataType::Timestamp(TimeUnit::Microsecond, None),
            ),
            (DataType::UInt8, DataType::UInt8),
            (DataType::Utf8, DataType::Utf8),
        ];
        let fields =
            (0..kinds.len()).map(|number| Field::new(format!("c{number}"), kinds[number].0.clone(), true));
        let schema: SchemaRef = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        let stored = stored_schema("t", &schema).unwrap();
        let found: Vec<_> = stored.fields().iter().map(|field| field.data_type().clone()).collect();
        assert_eq!(found, kinds.map(|kind| kind.1));
        // Arrow's own description of the columns restores the types, and is needed for a duration.
        let duration = Field::new("d", DataType::Duration(TimeUnit::Second), true);
        let schema =
            Schema::new(schema.fields().iter().cloned().chain([Arc::new(duration)]).collect::<Vec<_>>());
        assert_eq!(stored_schema("t", &Arc::new(schema.clone())).unwrap().fields(), schema.fields());
    }

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
            // The first row group has 65,536 rows. The second one has the other short texts and 37 long texts, which
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
