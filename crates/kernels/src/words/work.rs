//! Counts words as a task on a node.

use inshore_kernel::{Error as ReadError, Failure, Reply, Source, Task, TaskHandler};
use inshore_store::Job;
use serde_json::Value;

use super::{WordOptions, count_words};
use crate::{Error, texts::source_of_task};

const KIND: &str = "count-words";

/// The handler of the task that counts words on a node.
#[derive(Debug)]
pub struct CountsWords;

impl TaskHandler for CountsWords {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> std::result::Result<Value, Failure> {
        let Task { job, arguments, sources } = task;
        CountsWords::answer(&job, sources.map(source_of_task), serde_json::from_value(arguments)?, reply)
    }
}

impl CountsWords {
    /// Counts the words of sources, and sends all words and counts with `reply`.
    ///
    /// # Errors
    /// Returns the errors of [`count_words`] and of `reply`.
    pub fn answer(
        job: &Job,
        sources: impl Iterator<Item = Source> + Send,
        options: WordOptions,
        reply: &mut dyn Reply,
    ) -> std::result::Result<Value, Failure> {
        // All words are returned, since a word that is rare on this node may be frequent on other nodes.
        let options = WordOptions { min_count: 1, top: 0, table_bytes: None, ..options };
        let summary = count_words(job, sources, &options, |batch| {
            reply.batch(batch).map_err(|failure| Error::Read(ReadError::Stream(failure)))
        })?;
        Ok(serde_json::to_value(summary)?)
    }
}
