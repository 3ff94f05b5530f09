//! Encodes the columns of a Parquet table on several threads.
//!
//! ```text
//!   batches ──┬──► thread 0: columns 0, 2, ...  ┐
//!             └──► thread 1: columns 1, 3, ...  ┴─ at the end of a row group: all columns, in order ──► file
//! ```
//!
//! Columns are independent, so the file has the same bytes as with one thread.

use std::{
    sync::mpsc::{SyncSender, sync_channel},
    thread::{self, JoinHandle},
};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use inshore_store::NewFileWriter;
use parquet::{
    arrow::{
        ArrowWriter,
        arrow_writer::{ArrowColumnChunk, ArrowColumnWriter, ArrowRowGroupWriterFactory, compute_leaves},
    },
    errors::{ParquetError, Result},
    file::writer::SerializedFileWriter,
};

use super::ROW_GROUP_ROWS;

/// The number of batches that wait for a thread.
const QUEUE: usize = 2;

/// Writes a Parquet table column by column.
pub(super) struct ColumnsWriter {
    file: SerializedFileWriter<NewFileWriter>,
    factory: ArrowRowGroupWriterFactory,
    schema: SchemaRef,
    threads: usize,
    /// The number of the current row group.
    group: usize,
    /// The number of rows in the current row group.
    rows: usize,
    /// The threads that encode the current row group.
    encoders: Vec<EncoderThread>,
}

impl ColumnsWriter {
    /// Makes a table writer from a Parquet writer that has written nothing.
    pub fn new(
        writer: ArrowWriter<NewFileWriter>,
        schema: SchemaRef,
        threads: usize,
    ) -> Result<ColumnsWriter> {
        let (file, factory) = writer.into_serialized_writer()?;
        Ok(ColumnsWriter { file, factory, schema, threads, group: 0, rows: 0, encoders: Vec::new() })
    }

    /// Adds rows. Row groups must end where a batch ends.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        if self.encoders.is_empty() {
            self.begin_group()?;
        }
        if self.encoders.iter().any(|encoder| !encoder.send(batch)) {
            // The thread has ended because of an error, and its result contains the error.
            return self.end_group();
        }
        self.rows += batch.num_rows();
        if self.rows >= ROW_GROUP_ROWS { self.end_group() } else { Ok(()) }
    }

    /// Writes the remaining rows and the metadata of the file.
    pub fn finish(mut self) -> Result<()> {
        if !self.encoders.is_empty() {
            self.end_group()?;
        }
        self.file.finish().map(drop)
    }

    fn begin_group(&mut self) -> Result<()> {
        let mut encoders: Vec<_> = (0..self.threads).map(|_| Encoder::new(&self.schema)).collect();
        for (leaf, writer) in self.factory.create_column_writers(self.group)?.into_iter().enumerate() {
            let field = self.file.schema_descr().get_column_root_idx(leaf);
            encoders[field % self.threads].columns.push(LeafColumn { leaf, field, writer });
        }
        self.encoders = encoders.into_iter().map(EncoderThread::start).collect();
        Ok(())
    }

    fn end_group(&mut self) -> Result<()> {
        let ended: Vec<_> = self.encoders.drain(..).map(EncoderThread::end).collect();
        let mut chunks = Vec::new();
        for result in ended {
            chunks.extend(result?);
        }
        chunks.sort_unstable_by_key(|&(leaf, _)| leaf);
        let mut group = self.file.next_row_group()?;
        for (_, chunk) in chunks {
            chunk.append_to_row_group(&mut group)?;
        }
        group.close()?;
        (self.group, self.rows) = (self.group + 1, 0);
        Ok(())
    }
}

impl Drop for ColumnsWriter {
    fn drop(&mut self) {
        // All threads end before the table does. Their results are discarded with the table.
        self.encoders.drain(..).for_each(|encoder| _ = encoder.end());
    }
}

type Chunks = Vec<(usize, ArrowColumnChunk)>;

/// A thread that encodes some columns of a row group.
struct EncoderThread {
    batches: SyncSender<RecordBatch>,
    thread: JoinHandle<Result<Chunks>>,
}

impl EncoderThread {
    fn start(mut encoder: Encoder) -> EncoderThread {
        let (batches, queue) = sync_channel::<RecordBatch>(QUEUE);
        let work = move || {
            for batch in queue {
                encoder.write(&batch)?;
            }
            encoder.close()
        };
        EncoderThread { batches, thread: thread::spawn(work) }
    }

    /// Sends a batch to the thread. Returns `false` if the thread has failed.
    fn send(&self, batch: &RecordBatch) -> bool {
        self.batches.send(batch.clone()).is_ok()
    }

    fn end(self) -> Result<Chunks> {
        drop(self.batches);
        let panicked = |_| Err(ParquetError::General("encoding a column panicked".to_string()));
        self.thread.join().unwrap_or_else(panicked)
    }
}

struct Encoder {
    schema: SchemaRef,
    columns: Vec<LeafColumn>,
}

/// A leaf column of the schema with its writer, and the field that contains the leaf.
struct LeafColumn {
    leaf: usize,
    field: usize,
    writer: ArrowColumnWriter,
}

impl Encoder {
    fn new(schema: &SchemaRef) -> Encoder {
        Encoder { schema: schema.clone(), columns: Vec::new() }
    }

    fn write(&mut self, batch: &RecordBatch) -> Result<()> {
        for columns in self.columns.chunk_by_mut(|a, b| a.field == b.field) {
            let field = columns[0].field;
            let leaves = compute_leaves(self.schema.field(field), batch.column(field))?;
            for (column, leaf) in columns.iter_mut().zip(&leaves) {
                column.writer.write(leaf)?;
            }
        }
        Ok(())
    }

    fn close(self) -> Result<Chunks> {
        self.columns.into_iter().map(|column| Ok((column.leaf, column.writer.close()?))).collect()
    }
}
