//! Reads a table for an import into nodes. The vectors and the other columns are read separately, since they become two
//! spread files.
//!
//! ```text
//!   docs.parquet ─┬─ embedding ─► TableRows, twice: checked and counted, then sent ─► shards of vectors
//!                 └─ title, year ─► write_columns ─► Parquet, in which each row group has rows of one shard
//! ```

use std::{
    io::{self, Read, Write},
    sync::Arc,
};

use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use arrow_schema::Field;
use inshore_store::{Job, Reservation};
use inshore_tables::{Input, ParquetStream, TableReader};

use super::{
    TableColumns,
    import::{BATCH_ROWS, CHUNK_BYTES, Layout, Lists},
    unique,
};
use crate::{Error, Imported, Result, VectorLayout, byte_stream::ByteStream, element::aligned};

/// A table that is imported into nodes.
pub struct SpreadTable {
    job: Job,
    input: Input,
    columns: Layout,
    layout: VectorLayout,
    vectors: u64,
    rounded: u64,
}

impl SpreadTable {
    /// Opens a table, and checks all its vectors. If there is a column of ids, also checks that the ids are unique.
    ///
    /// # Errors
    /// Returns the errors of [`crate::import_table`] for a table that cannot be imported.
    pub fn open(job: &Job, input: &Input, columns: &TableColumns) -> Result<SpreadTable> {
        let columns = Layout::of(job, input, columns)?;
        if let Some(id) = &columns.id {
            unique::check(job, input, id)?;
        }
        let mut rows = TableRows::new(job, input, &columns)?;
        job.start_phase("checking vectors", "vectors", rows.reader.rows().unwrap_or(0));
        let mut checked = 0;
        let mut bytes = std::mem::take(&mut rows.stream.pending);
        while rows.fill(&mut bytes)? {
            job.progress().add(rows.row - checked);
            checked = rows.row;
            bytes.clear();
        }
        let TableRows { dimensions, row: vectors, rounded, .. } = rows;
        let layout = VectorLayout::new(columns.element.stored(), dimensions);
        Ok(SpreadTable { job: job.clone(), input: input.clone(), columns, layout, vectors, rounded })
    }

    /// Returns the layout of the vectors.
    pub fn layout(&self) -> VectorLayout {
        self.layout
    }

    /// Returns the name of the column of ids. Returns `None` if the ids are the numbers of the vectors.
    pub fn id_column(&self) -> Option<&str> {
        self.columns.id.as_ref().map(|id| id.name().as_str())
    }

    /// Returns the number of vectors.
    pub fn vectors(&self) -> u64 {
        self.vectors
    }

    /// Begins to read the elements of all vectors as a stream of bytes.
    ///
    /// # Errors
    /// Returns the errors of [`SpreadTable::open`].
    pub fn rows(&self) -> Result<TableRows> {
        TableRows::new(&self.job, &self.input, &self.columns)
    }

    /// Writes the columns that are kept, and the column of row numbers, as Parquet to `out`. Each row group has rows of
    /// one shard of `shard_rows` vectors. Returns for each shard the number of row groups up to its end.
    ///
    /// # Errors
    /// - Returns [`Error::BadFile`] if the table has another number of rows than before.
    /// - Returns [`Error::Table`] if the table cannot be read, or a write fails.
    /// - Returns [`Error::Store`] if the budget has too little free memory or the job was cancelled.
    pub fn write_columns<W: Write + Send>(&self, out: W, shard_rows: u64) -> Result<Vec<usize>> {
        let (schema, budget) = (self.columns.schema(), self.job.budget());
        let mut kept = ParquetStream::new(out, "the columns of the vectors", schema.clone(), budget)?;
        let names: Vec<String> = self.columns.kept.iter().map(Field::name).cloned().collect();
        self.job.start_phase("writing columns", "rows", self.vectors);
        let mut ends = Vec::new();
        let mut write = |columns: &[ArrayRef], rows: u64| -> Result<()> {
            let mut place = 0;
            while place < rows {
                let first = kept.rows();
                let count = (rows - place).min(shard_rows - first % shard_rows).min(BATCH_ROWS as u64);
                let slice = |column: &ArrayRef| column.slice(place as usize, count as usize);
                let numbers = UInt64Array::from_iter_values(first..first + count);
                let columns = columns.iter().map(slice).chain([Arc::new(numbers) as ArrayRef]);
                let batch = RecordBatch::try_new(schema.clone(), columns.collect());
                kept.write(&batch.expect("columns as they were asked for"))?;
                if kept.rows() % shard_rows == 0 || kept.rows() == self.vectors {
                    ends.push(kept.end_group()?);
                }
                place += count;
            }
            self.job.progress().add(rows);
            Ok(())
        };
        let mut rows = 0;
        if names.is_empty() {
            write(&[], self.vectors)?;
            rows = self.vectors;
        } else {
            let mut reader = TableReader::open_lists(&self.input, &names, BATCH_ROWS, budget)?;
            while let Some(batch) = reader.next_batch()? {
                self.job.check_cancelled()?;
                rows += batch.num_rows() as u64;
                write(batch.columns(), batch.num_rows() as u64)?;
            }
        }
        kept.finish()?;
        match rows == self.vectors {
            true => Ok(ends),
            false => Err(Error::BadFile {
                file: self.input.name().to_string(),
                place: "the table".to_string(),
                found: format!("{rows} rows"),
                expected: format!("{}, as when it was read first", self.vectors),
            }),
        }
    }

    /// Describes the vectors that were imported as `name`.
    ///
    /// # Errors
    /// Returns the errors of [`VectorLayout::info`].
    pub fn imported(self, name: &str) -> Result<Imported> {
        let info = self.layout.info(name, self.vectors * self.layout.row_bytes() as u64)?;
        let columns = self.columns.kept.iter().map(|field| field.name().clone()).collect();
        Ok(Imported { info, rounded: self.rounded, columns, left_out: self.columns.left_out })
    }
}

/// A reader of the vectors of a table. The stream contains the stored elements of all vectors, in order and without
/// gaps. The reader checks the vectors as [`crate::import_table`] does.
pub struct TableRows {
    job: Job,
    lists: Lists,
    reader: TableReader,
    dimensions: usize,
    chunk: Vec<u64>,
    chunk_rows: usize,
    /// The lists that were read, and the number of those that were passed on.
    batch: Option<(ArrayRef, usize)>,
    stream: ByteStream,
    /// The number of vectors so far.
    row: u64,
    rounded: u64,
    _memory: Reservation,
}

impl TableRows {
    fn new(job: &Job, input: &Input, columns: &Layout) -> Result<TableRows> {
        let name = columns.vectors.name().clone();
        let mut reader =
            TableReader::open_lists(input, std::slice::from_ref(&name), BATCH_ROWS, job.budget())?;
        let lists = Lists::new(input.name(), &name, columns.element);
        let Some(first) = reader.next_batch()? else { return Err(lists.bad(0, "no rows", "at least one")) };
        let dimensions = lists.dimensions(first.column(0))?;
        let row_bytes = columns.element.stored().row_bytes(dimensions);
        let chunk_rows = (CHUNK_BYTES / row_bytes).max(1);
        // The memory is that of a chunk and of the same bytes in the stream.
        let memory =
            job.budget().reserve(2 * (chunk_rows * row_bytes) as u64, "vectors that are imported")?;
        Ok(TableRows {
            job: job.clone(),
            lists,
            reader,
            dimensions,
            chunk: aligned(chunk_rows * row_bytes),
            chunk_rows,
            batch: Some((first.column(0).clone(), 0)),
            stream: ByteStream::new(Vec::with_capacity(chunk_rows * row_bytes)),
            row: 0,
            rounded: 0,
            _memory: memory,
        })
    }

    /// Returns the error that ended the stream. Returns `None` if the table was read without an error.
    pub fn error(self) -> Option<Error> {
        self.stream.into_error()
    }

    /// Appends the bytes of the next vectors to `pending`. Returns false after the last vector.
    fn fill(&mut self, pending: &mut Vec<u8>) -> Result<bool> {
        self.job.check_cancelled()?;
        let (column, place) = loop {
            match self.batch.take() {
                Some((column, place)) if place < column.len() => break (column, place),
                _ => match self.reader.next_batch()? {
                    Some(batch) => self.batch = Some((batch.column(0).clone(), 0)),
                    None => return Ok(false),
                },
            }
        };
        let rows = self.chunk_rows.min(column.len() - place);
        let TableRows { lists, chunk, .. } = self;
        let some = column.slice(place, rows);
        let shape = (self.dimensions, self.chunk_rows);
        lists.each_chunk(self.row, &some, shape, chunk, &mut |bytes| {
            pending.extend_from_slice(bytes);
            Ok(())
        })?;
        self.rounded = self.lists.rounded;
        self.row += rows as u64;
        self.batch = Some((column, place + rows));
        Ok(true)
    }
}

impl Read for TableRows {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let mut stream = std::mem::take(&mut self.stream);
        let read = stream.read(out, |pending| self.fill(pending).map(drop));
        self.stream = stream;
        read
    }
}
