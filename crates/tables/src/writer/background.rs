//! Writes a table on its own thread, so that the source of the rows does not wait for encoding and compression.

use std::{
    path::{Path, PathBuf},
    sync::mpsc::{Receiver, SyncSender, sync_channel},
    thread::{self, JoinHandle},
};

use arrow_array::RecordBatch;
use arrow_schema::SchemaRef;
use inshore_store::Budget;

use super::TableWriter;
use crate::Result;

/// A [`TableWriter`] behind a queue of two batches.
pub(crate) struct BackgroundWriter {
    batches: Option<SyncSender<RecordBatch>>,
    thread: Option<JoinHandle<Result<u64>>>,
}

impl BackgroundWriter {
    /// Begins a table as [`TableWriter::create`] does; the first write, or the end, returns an error of that function.
    pub fn create(path: &Path, schema: SchemaRef, budget: &Budget) -> BackgroundWriter {
        let (batches, queue) = sync_channel(2);
        let (path, budget) = (path.to_path_buf(), budget.clone());
        let thread = thread::spawn(move || write_all(path, schema, &budget, &queue));
        BackgroundWriter { batches: Some(batches), thread: Some(thread) }
    }

    /// Hands a batch over.
    ///
    /// # Errors
    /// The errors are those of the writer.
    pub fn write(&mut self, batch: RecordBatch) -> Result<()> {
        let queue = self.batches.as_ref().expect("open until the end");
        match queue.send(batch) {
            Ok(()) => Ok(()),
            // The writer's thread has ended because of an error.
            Err(_) => self.join().map(|_| ()),
        }
    }

    /// Ends the table as [`TableWriter::finish`] does.
    pub fn finish(mut self) -> Result<u64> {
        if let Some(queue) = self.batches.take() {
            // A closed queue alone would look like a job that failed.
            let end = RecordBatch::new_empty(arrow_schema::Schema::empty().into());
            let _ = queue.send(end);
        }
        self.join()
    }

    fn join(&mut self) -> Result<u64> {
        self.batches = None;
        self.thread.take().map_or(Ok(0), |thread| thread.join().expect("the writer does not panic"))
    }
}

fn write_all(
    path: PathBuf,
    schema: SchemaRef,
    budget: &Budget,
    queue: &Receiver<RecordBatch>,
) -> Result<u64> {
    let mut writer = TableWriter::create(&path, schema, budget)?;
    for batch in queue {
        if batch.num_columns() == 0 {
            return writer.finish();
        }
        writer.write(&batch)?;
    }
    // The source of the rows failed: the table is dropped and leaves no file.
    Ok(0)
}

impl Drop for BackgroundWriter {
    fn drop(&mut self) {
        // The writer's error was returned, or another error came first.
        let _ = self.join();
    }
}
