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

/// A [`TableWriter`] on its own thread, behind a queue of two batches.
pub(crate) struct BackgroundWriter {
    batches: Option<SyncSender<RecordBatch>>,
    thread: Option<JoinHandle<Result<u64>>>,
}

impl BackgroundWriter {
    /// Begins a table as [`TableWriter::create`] does. An error of [`TableWriter::create`] is returned by a later
    /// write, or by `finish`.
    pub fn create(path: &Path, schema: SchemaRef, budget: &Budget) -> BackgroundWriter {
        let (batches, queue) = sync_channel(2);
        let (path, budget) = (path.to_path_buf(), budget.clone());
        let thread = thread::spawn(move || write_all(path, schema, &budget, &queue));
        BackgroundWriter { batches: Some(batches), thread: Some(thread) }
    }

    /// Passes a batch to the writer's thread.
    ///
    /// # Errors
    /// Returns the errors of [`TableWriter::create`] and [`TableWriter::write`].
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
            // An empty batch marks the end of the table. A queue that is closed without an empty batch means that the
            // job failed.
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
    // The source of the rows failed, so the table is dropped and leaves no file.
    Ok(0)
}

impl Drop for BackgroundWriter {
    fn drop(&mut self) {
        // The writer's error was returned already, or is less important than an earlier error.
        let _ = self.join();
    }
}
