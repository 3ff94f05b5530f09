//! This module is the node's side of a sort.

use std::sync::Arc;

use arrow_array::{ArrayRef, BinaryArray, RecordBatch};
use arrow_buffer::{Buffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, Field, Schema};
use inshore_kernel::{Failure, Reply, Task, TaskHandler, TaskSource};
use inshore_store::{Job, Reservation};
use inshore_tables::{
    Error as TableError, FilePart, Input, Inputs, SortOptions, sorted_lines, sorted_records, sorted_table,
};
use serde_json::{Value, json};

use super::{
    Arguments, BATCH_BYTES, COPIES, KIND, RECORD_BYTES_MAX, ROW_BYTES_MAX, What, bytes::Shape, too_long,
};
use crate::files::{FileText, piece_of, text_of};

/// The task handler that sorts shards of files on a node.
#[derive(Debug)]
pub struct Sorts;

impl TaskHandler for Sorts {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> Result<Value, Failure> {
        let Task { job, arguments, mut sources } = task;
        let arguments: Arguments = serde_json::from_value(arguments)?;
        let Some(first) = sources.next().transpose()? else { return Ok(json!({})) };
        let (name, bytes) = (first.source.name().to_string(), sources.bytes());
        let (of_job, of_what) = (job.clone(), arguments.what.clone());
        let input = move |source: Result<TaskSource, Failure>| {
            let source = source?;
            match &of_what {
                What::Table { files, .. } => table(&of_job, &source, files),
                What::Lines | What::Records(..) => bytes_of(&of_job, &source),
            }
        };
        let of_name = name.clone();
        let unfit = move |failure: Failure| TableError::Unsupported {
            file: of_name.clone(),
            what: failure.to_string(),
        };
        // Rows with equal keys keep the order in which the task gets the shards.
        let inputs =
            std::iter::once(Ok(first)).chain(sources).map(move |source| input(source).map_err(&unfit));
        sort_pieces(&job, &name, arguments, Inputs::asked(inputs, Some(bytes)), reply)
    }
}

/// Sorts shards of files, and sends their rows in order to `reply`. Errors call the file `name`.
pub(super) fn sort_pieces(
    job: &Job,
    name: &str,
    arguments: Arguments,
    pieces: Inputs<'_>,
    reply: &mut dyn Reply,
) -> Result<Value, Failure> {
    let Arguments { what, descending, unique, row_bytes_max } = arguments;
    let options = SortOptions { descending, unique, resume: false };
    // This memory is reserved first, since the sort then takes all the free memory of the budget.
    let memory = job.budget().reserve(COPIES * BATCH_BYTES as u64, "buffered answers")?;
    let row_bytes_max = row_bytes_max.min(ROW_BYTES_MAX);
    let mut out = Out { reply, name: name.to_string(), row_bytes_max, memory, failed: None };
    let sorted = match what {
        What::Lines => {
            let each = &mut |block: &[u8]| out.rows(block, Shape::Lines);
            sorted_lines(job, pieces, options, BATCH_BYTES, each)
        }
        What::Records(record_bytes, key) => {
            let is_one = (1..=RECORD_BYTES_MAX).contains(&record_bytes);
            if !is_one || key.start > key.end || key.end > record_bytes {
                return Err("invalid request: a record size or key out of range".into());
            }
            let shape = Shape::records(record_bytes, &key);
            let each = &mut |block: &[u8]| out.rows(block, shape);
            sorted_records(job, pieces, (record_bytes, key), options, BATCH_BYTES, each)
        }
        What::Table { keys, known, is_carried, .. } => {
            let pieces = pieces.changed(|input| input.with_known(&known));
            let each = &mut |batch| out.columns(batch);
            sorted_table(job, pieces, (&keys, is_carried), options, BATCH_BYTES, each)
        }
    };
    match (out.failed, sorted) {
        (Some(failure), _) => Err(failure),
        (None, sorted) => Ok(serde_json::to_value(sorted?)?),
    }
}

fn number_of(source: &TaskSource) -> Result<u32, Failure> {
    u32::try_from(source.number)
        .map_err(|_| format!("invalid request: piece number {}", source.number).into())
}

/// Returns a shard of lines or records as an input.
pub(super) fn bytes_of(job: &Job, source: &TaskSource) -> Result<Input, Failure> {
    let part = FilePart { at: 0, ..piece_of(job, &source.source)? };
    let (name, bytes) = (source.source.name(), source.source.part_bytes());
    let input = Input::of_parts(name, "", bytes, vec![part]);
    Ok(input.numbered(number_of(source)?))
}

/// Returns a shard of a table as an input, with the footer or header line of its file.
fn table(job: &Job, source: &TaskSource, files: &[FileText]) -> Result<Input, Failure> {
    let text = text_of(files, source.whole)?;
    let parts = [Some(piece_of(job, &source.source)?), text.along()?].into_iter().flatten().collect();
    Ok(text.input(parts).numbered(number_of(source)?))
}

/// Receives the sorted rows, and sends them to `reply` in batches.
struct Out<'a> {
    reply: &'a mut dyn Reply,
    name: String,
    row_bytes_max: usize,
    memory: Reservation,
    failed: Option<Failure>,
}

impl Out<'_> {
    /// Sends a block of complete rows as one column.
    fn rows(&mut self, block: &[u8], shape: Shape) -> Result<(), TableError> {
        let (mut ends, mut end) = (vec![0], 0);
        while end < block.len() {
            let len = shape.row_len(&block[end..]);
            if len > self.row_bytes_max {
                return Err(too_long(&self.name, len, self.row_bytes_max));
            }
            end += len;
            ends.push(i32::try_from(end).expect("a batch and a row are below 2 GiB"));
        }
        self.hold(block.len())?;
        let offsets = OffsetBuffer::new(ScalarBuffer::from(ends));
        let rows: ArrayRef = Arc::new(BinaryArray::new(offsets, Buffer::from(block), None));
        let schema = Schema::new(vec![Field::new("row", DataType::Binary, false)]);
        self.send(RecordBatch::try_new(Arc::new(schema), vec![rows]).expect("one column"))
    }

    /// Sends rows of a table.
    fn columns(&mut self, batch: RecordBatch) -> Result<(), TableError> {
        let bytes = slice_bytes(&batch);
        // Only the last row of a batch can be long, since a batch ends with the row that reaches the batch size.
        let last = slice_bytes(&batch.slice(batch.num_rows().saturating_sub(1), 1.min(batch.num_rows())));
        if last > self.row_bytes_max {
            return Err(too_long(&self.name, last, self.row_bytes_max));
        }
        self.hold(bytes)?;
        self.send(batch)
    }

    /// Changes the reserved memory to that of a batch of this size.
    fn hold(&mut self, bytes: usize) -> Result<(), TableError> {
        let wanted = COPIES * bytes.max(BATCH_BYTES) as u64;
        if wanted != self.memory.bytes() {
            self.memory.resize(wanted)?;
        }
        Ok(())
    }

    fn send(&mut self, batch: RecordBatch) -> Result<(), TableError> {
        self.reply.batch(batch).map_err(|failure| {
            self.failed = Some(failure);
            TableError::Store(inshore_store::Error::Cancelled)
        })
    }
}

/// Returns the size of a batch's values in bytes. The rest of buffers that several batches share is not counted.
pub(super) fn slice_bytes(batch: &RecordBatch) -> usize {
    let bytes = |column: &ArrayRef| column.to_data().get_slice_memory_size().unwrap_or(usize::MAX);
    batch.columns().iter().map(bytes).fold(0, usize::saturating_add)
}
