//! Imports a table. One column of lists becomes the vectors, and the dataset keeps the other columns.

use std::{io, sync::Arc};

use arrow_array::{Array, ArrayRef, RecordBatch, UInt64Array, cast::AsArray};
use arrow_cast::{CastOptions, cast_with_options};
use arrow_schema::{DataType, Field, Schema};
use inshore_store::{FileWriter, Job, Store};
use inshore_tables::{Input, ParquetStream, TableReader, is_readable, list_of_numbers};

use super::{NAME_BYTES_MAX, ROW_COLUMN, unique};
use crate::{
    Error, Imported, Result, VectorsInfo,
    dataset::{COLUMNS, ID_COLUMN},
    element::{FileElement, aligned, bytes_of},
    import::VectorWriter,
    names::create_vectors,
};

/// The largest number of rows in a batch.
pub(crate) const BATCH_ROWS: usize = 4 << 10;
/// Vectors are checked in steps of about this number of bytes. A step has at least one vector.
pub(crate) const CHUNK_BYTES: usize = 256 << 10;
/// The size of the checksum blocks of the file `columns.parquet`, in bytes. The next constant is the size of the write
/// buffers of this file.
pub(crate) const COLUMNS_CHECK_BYTES: usize = 16 << 10;
pub(crate) const COLUMNS_BUFFER_BYTES: usize = 256 << 10;

/// The columns of a table that have a special role in an import.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TableColumns {
    /// The name of the column of vectors. Its values are lists of f32, f64, f16, u8, i8 or i32, all of the same length.
    /// The name may be `None` if the table has exactly one column of lists of numbers.
    pub vectors: Option<String>,
    /// The name of the column of ids, whose values are integers or text. Answers contain these values instead of row
    /// numbers. The values must be unique.
    pub id: Option<String>,
}

/// Imports the table `input`, a file of Parquet or Arrow, as the dataset `name`. The dataset keeps all columns that are
/// not nested. A job that ends before the commit leaves no dataset.
///
/// The function reads the table once and writes the dataset once. If there is a column of ids, the function also reads
/// and sorts the ids.
///
/// # Errors
/// - Returns [`Error::Table`] if a column does not exist, or if the table cannot be read.
/// - Returns [`Error::BadFile`] if the type of a column is not supported.
/// - Returns [`Error::BadFile`] if a list is null, has another length than the first list, or contains a value that is
///   not finite. The error names the row.
/// - Returns [`Error::BadFile`] if an id occurs twice.
/// - Returns [`Error::Store`] if the store already has the name, a write fails, the budget has too little free memory,
///   or the job was cancelled.
pub fn import_table(
    store: &Store,
    job: &Job,
    name: &str,
    input: &Input,
    columns: &TableColumns,
) -> Result<Imported> {
    let layout = Layout::of(job, input, columns)?;
    if let Some(id) = &layout.id {
        unique::check(job, input, id)?;
    }
    let buffers = VectorWriter::BUFFER_BYTES
        + ParquetStream::<DatasetFile>::MEMORY_BYTES
        + 2 * (COLUMNS_BUFFER_BYTES + COLUMNS_CHECK_BYTES) as u64;
    job.budget().need(buffers + 2 * CHUNK_BYTES as u64, || "importing a table with vectors".to_string())?;
    let names: Vec<String> =
        std::iter::once(layout.vectors.name()).chain(layout.kept.iter().map(Field::name)).cloned().collect();
    let mut reader = TableReader::open_lists(input, &names, BATCH_ROWS, job.budget())?;
    let mut lists = Lists::new(input.name(), layout.vectors.name(), layout.element);
    job.start_phase("importing", "vectors", reader.rows().unwrap_or(0));
    let Some(first) = reader.next_batch()? else { return Err(lists.bad(0, "no rows", "at least one")) };
    let dimensions = lists.dimensions(first.column(0))?;
    let _sums = job.budget().reserve(12 * dimensions as u64, "the mean of vectors")?;
    let mut builder = create_vectors(store, job, name)?;
    let mut writer = VectorWriter::new(&mut builder, layout.element.stored(), dimensions)?;
    let file = builder.file_with_buffers(COLUMNS, COLUMNS_CHECK_BYTES, COLUMNS_BUFFER_BYTES, 2)?;
    let mut kept = ParquetStream::new(DatasetFile(file), COLUMNS, layout.schema(), job.budget())?;
    lists.copy(job, (reader, first), dimensions, &mut kept, &mut |bytes| writer.add(bytes))?;
    let sums = writer.end(&mut builder)?;
    builder.add(kept.finish()?.0)?;
    sums.write(&mut builder)?;
    if let Some(id) = &layout.id {
        let mut writer = builder.file(ID_COLUMN, COLUMNS_CHECK_BYTES, COLUMNS_CHECK_BYTES)?;
        writer.write(id.name().as_bytes())?;
        builder.add(writer)?;
    }
    let info = VectorsInfo::new(name, sums.count, dimensions, layout.element.stored(), builder.bytes());
    builder.commit(&info.to_attributes())?;
    let columns = layout.kept.iter().map(|field| field.name().clone()).collect();
    Ok(Imported { info, rounded: lists.rounded, columns, left_out: layout.left_out })
}

/// The role of each column of a table.
pub(crate) struct Layout {
    pub vectors: Field,
    pub element: FileElement,
    pub id: Option<Field>,
    /// The columns that the dataset keeps, including the column of ids.
    pub kept: Vec<Field>,
    pub left_out: Vec<String>,
}

impl Layout {
    /// Finds the columns of the table `input`.
    ///
    /// # Errors
    /// Returns [`Error::Table`] or [`Error::BadFile`] if a column does not exist or has a type that is not supported.
    pub fn of(job: &Job, input: &Input, columns: &TableColumns) -> Result<Layout> {
        let described = TableReader::describe(input, &[], job.budget())?;
        let fields = described.schema.fields();
        let names: Vec<String> = fields.iter().map(|field| field.name().clone()).collect();
        let bad = |place: String, found: String, expected: String| Error::BadFile {
            file: input.name().to_string(),
            place,
            found,
            expected,
        };
        let find = |name: &String| -> Result<Field> {
            let mut found = fields.iter().filter(|field| field.name() == name);
            match (found.next(), found.count()) {
                (Some(field), 0) => Ok(field.as_ref().clone()),
                (field, others) => Err(Error::Table(inshore_tables::Error::NoColumn {
                    file: input.name().to_string(),
                    column: name.clone(),
                    found: usize::from(field.is_some()) + others,
                    columns: names.clone(),
                })),
            }
        };
        let vectors = match &columns.vectors {
            Some(name) => find(name)?,
            None => {
                let lists = fields.iter().filter(|field| list_of_numbers(field.data_type()).is_some());
                let lists: Vec<&Field> = lists.map(AsRef::as_ref).collect();
                match lists[..] {
                    [field] => field.clone(),
                    [] => {
                        let expected = "a column of lists of numbers".to_string();
                        return Err(bad("the columns".to_string(), names.join(", "), expected));
                    }
                    _ => {
                        let found: Vec<&str> = lists.iter().map(|field| field.name().as_str()).collect();
                        let expected = "the name of the column of vectors (--column)".to_string();
                        let found = format!("several columns of lists: {}", found.join(", "));
                        return Err(bad("the columns".to_string(), found, expected));
                    }
                }
            }
        };
        let element = element_of(vectors.data_type()).ok_or_else(|| {
            let expected = "lists of f32, f64, f16, u8, i8 or i32".to_string();
            bad(format!("column '{}'", vectors.name()), vectors.data_type().to_string(), expected)
        })?;
        let id = columns.id.as_ref().map(find).transpose()?;
        if let Some(id) = &id {
            let kind = id.data_type();
            if !kind.is_integer() && *kind != DataType::Utf8 || id.name().len() > NAME_BYTES_MAX {
                let expected = "integers or text, as ids are".to_string();
                return Err(bad(format!("column '{}'", id.name()), kind.to_string(), expected));
            }
        }
        if names.iter().any(|name| name == ROW_COLUMN) {
            let expected = "another name: it is that of the vector's number".to_string();
            return Err(bad("the columns".to_string(), format!("one called {ROW_COLUMN}"), expected));
        }
        let others = fields.iter().filter(|field| field.name() != vectors.name());
        let (kept, left_out): (Vec<_>, Vec<_>) = others.partition(|field| is_readable(field.data_type()));
        Ok(Layout {
            vectors,
            element,
            id,
            kept: kept.into_iter().map(|field| field.as_ref().clone()).collect(),
            left_out: left_out.into_iter().map(|field| field.name().clone()).collect(),
        })
    }

    /// Returns the schema of the file `columns.parquet`. The file has the columns that the dataset keeps, and the
    /// column of row numbers.
    pub fn schema(&self) -> Arc<Schema> {
        let row = Field::new(ROW_COLUMN, DataType::UInt64, false);
        Arc::new(Schema::new(self.kept.iter().cloned().chain([row]).collect::<Vec<_>>()))
    }
}

/// Returns the element type of the lists of a column. Returns `None` if vectors cannot have this type.
fn element_of(lists: &DataType) -> Option<FileElement> {
    match list_of_numbers(lists)? {
        DataType::Float32 => Some(FileElement::F32),
        DataType::Float64 => Some(FileElement::F64),
        DataType::Float16 => Some(FileElement::F16),
        DataType::UInt8 => Some(FileElement::U8),
        DataType::Int8 => Some(FileElement::I8),
        DataType::Int32 => Some(FileElement::I32),
        _ => None,
    }
}

/// Checks the lists of a column, and converts them to vectors.
pub(crate) struct Lists {
    pub input: String,
    pub column: String,
    pub element: FileElement,
    /// The number of elements that were rounded so far.
    pub rounded: u64,
}

impl Lists {
    pub fn new(input: &str, column: &str, element: FileElement) -> Lists {
        Lists { input: input.to_string(), column: column.to_string(), element, rounded: 0 }
    }

    /// Copies the rows of a table from the batch `first` on. `each` receives the elements of the lists in chunks, and
    /// `kept` receives the other columns and the numbers of the rows. The first column of the table has the lists, and
    /// the others have the order of the columns of `kept`.
    ///
    /// # Errors
    /// - Returns [`Error::BadFile`] if a list is null, has other dimensions, or contains a value that is not finite.
    /// - Returns the errors of `each`, of the reader and of the writer.
    pub fn copy(
        &mut self,
        job: &Job,
        (mut reader, first): (TableReader, RecordBatch),
        dimensions: usize,
        kept: &mut ParquetStream<DatasetFile>,
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        let row_bytes = self.element.stored().row_bytes(dimensions);
        let chunk_rows = (CHUNK_BYTES / row_bytes).max(1);
        let chunk_bytes = chunk_rows * row_bytes;
        let _work = job.budget().reserve(chunk_bytes as u64, "vectors that are imported")?;
        let mut chunk = aligned(chunk_bytes);
        let (schema, start, mut next) = (kept.schema().clone(), kept.rows(), Some(first));
        while let Some(batch) = next {
            job.check_cancelled()?;
            let first = kept.rows();
            let shape = (dimensions, chunk_rows);
            self.each_chunk(first - start, batch.column(0), shape, &mut chunk, each)?;
            let numbers = UInt64Array::from_iter_values(first..first + batch.num_rows() as u64);
            let columns = batch.columns()[1..].iter().zip(schema.fields());
            let columns = columns.map(|(column, field)| self.as_stored(column, field));
            let mut columns = columns.collect::<Result<Vec<_>>>()?;
            columns.push(Arc::new(numbers));
            let batch =
                RecordBatch::try_new(schema.clone(), columns).expect("columns as they were asked for");
            kept.write(&batch)?;
            job.progress().add(batch.num_rows() as u64);
            next = reader.next_batch()?;
        }
        Ok(())
    }

    /// Converts a column to the type with which the dataset stores it. The types differ only if Parquet has no
    /// counterpart of the type of the column.
    fn as_stored(&self, column: &ArrayRef, field: &Field) -> Result<ArrayRef> {
        if column.data_type() == field.data_type() {
            return Ok(column.clone());
        }
        let options = CastOptions { safe: false, ..CastOptions::default() };
        cast_with_options(column, field.data_type(), &options).map_err(|error| Error::BadFile {
            file: self.input.clone(),
            place: format!("column '{}'", field.name()),
            found: error.to_string(),
            expected: field.data_type().to_string(),
        })
    }

    /// Returns the error of a value in the row `row` of the table.
    pub fn bad(&self, row: u64, found: impl ToString, expected: impl ToString) -> Error {
        Error::BadFile {
            file: self.input.clone(),
            place: format!("row {row}, column '{}'", self.column),
            found: found.to_string(),
            expected: expected.to_string(),
        }
    }

    /// Returns the length of the first list, which is the number of dimensions.
    ///
    /// # Errors
    /// Returns [`Error::BadFile`] if the list is null, or if vectors cannot have this number of dimensions.
    pub fn dimensions(&self, column: &ArrayRef) -> Result<usize> {
        if column.is_null(0) {
            return Err(self.bad(0, "null", "a list of numbers"));
        }
        let (dimensions, most) = (list_len(column, 0), self.element.stored().dimensions_max());
        match (1..=most).contains(&dimensions) {
            true => Ok(dimensions),
            false => Err(self.bad(0, format!("{dimensions} dimensions"), format!("1 to {most}"))),
        }
    }

    /// Checks the lists of a batch, and passes their elements to `each`, in chunks of at most `chunk_rows` lists.
    /// `first` is the row number of the first list.
    pub fn each_chunk(
        &mut self,
        first: u64,
        column: &ArrayRef,
        (dimensions, chunk_rows): (usize, usize),
        chunk: &mut [u64],
        each: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        for row in 0..column.len() {
            let number = first + row as u64;
            if column.is_null(row) {
                return Err(self.bad(number, "null", "a list of numbers"));
            }
            let found = list_len(column, row);
            if found != dimensions {
                let expected = format!("{dimensions}, as in row 0");
                return Err(self.bad(number, format!("{found} dimensions"), expected));
            }
        }
        // All lists have the same length and none is null, so the numbers of all lists are adjacent.
        let values = numbers(column, dimensions);
        let element_bytes = self.element.row_bytes(1);
        if let Some(place) =
            values.nulls().and_then(|nulls| (0..nulls.len()).find(|&place| nulls.is_null(place)))
        {
            let expected = format!("a number in dimension {}", place % dimensions);
            return Err(self.bad(first + (place / dimensions) as u64, "null", expected));
        }
        let data = values.to_data();
        let raw =
            &data.buffers()[0].as_slice()[data.offset() * element_bytes..][..data.len() * element_bytes];
        for (number, raw) in raw.chunks(chunk_rows * dimensions * element_bytes).enumerate() {
            let rows = raw.len() / (dimensions * element_bytes);
            let stored = bytes_of(chunk, rows * self.element.stored().row_bytes(dimensions));
            self.rounded += self.element.store(raw, stored).map_err(|(index, found)| {
                let row = first + (number * chunk_rows + index / dimensions) as u64;
                let expected = format!("{} in dimension {}", self.element.expected(), index % dimensions);
                self.bad(row, found, expected)
            })?;
            each(stored)?;
        }
        Ok(())
    }
}

/// Returns the length of a list. The list must not be null.
fn list_len(column: &ArrayRef, row: usize) -> usize {
    match column.data_type() {
        DataType::List(_) => column.as_list::<i32>().value_length(row) as usize,
        DataType::LargeList(_) => column.as_list::<i64>().value_length(row) as usize,
        _ => column.as_fixed_size_list().value_length() as usize,
    }
}

/// Returns the numbers of all lists of a column. All lists must have the same length, and none may be null.
fn numbers(column: &ArrayRef, dimensions: usize) -> ArrayRef {
    let (values, start) = match column.data_type() {
        DataType::List(_) => {
            let lists = column.as_list::<i32>();
            (lists.values(), lists.value_offsets()[0] as usize)
        }
        DataType::LargeList(_) => {
            let lists = column.as_list::<i64>();
            (lists.values(), lists.value_offsets()[0] as usize)
        }
        _ => {
            let lists = column.as_fixed_size_list();
            (lists.values(), lists.value_offset(0) as usize)
        }
    };
    values.slice(start, column.len() * dimensions)
}

/// A file of a dataset that implements [`io::Write`]. An error of the store is wrapped in the [`io::Error`] of the
/// writer.
pub(crate) struct DatasetFile(pub FileWriter);

impl io::Write for DatasetFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(io::Error::other)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
