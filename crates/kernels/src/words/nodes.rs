//! Words counted where the text lies.
//!
//! Each node counts the words of its pieces and answers with all of them, in the order of their bytes; here the answers are
//! merged as they come, and equal words add up. Where a node is lost, others count its pieces anew, and what they say of
//! words up to the last one that was taken from the lost one is passed over: the same text gives the same counts.
//!
//! Cost: every different word of a node goes over the wire once, with its count.

use arrow::{
    array::{Array, AsArray, RecordBatch, StringArray, UInt64Array},
    datatypes::UInt64Type,
};
use inshore_neardata::{
    Error as ReadError, Failure, Reply, Task, Work,
    nodes::{self, Gathered, Nodes, RunOptions, Streams, Whole, stream_from_nodes},
};
use inshore_store::Job;
use serde_json::Value;

use super::{WordOptions, WordSummary, count_words, tally::Tally};
use crate::{Error, Result};

const KIND: &str = "count-words";
/// Bytes of words and counts that are given at once.
const BATCH_BYTES: usize = 1 << 20;

/// The work of counting words, for a node.
#[derive(Debug)]
pub struct CountsWords;

impl Work for CountsWords {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn work(&self, task: Task, reply: &mut dyn Reply) -> std::result::Result<Value, Failure> {
        let options: WordOptions = serde_json::from_value(task.arguments)?;
        // What is rare here may be frequent elsewhere.
        let options = WordOptions { min_count: 1, top: 0, table_bytes: None, ..options };
        let sources = task.sources.into_iter().map(|source| source.source);
        let summary = count_words(&task.job, sources, &options, |batch| {
            reply.batch(batch).map_err(|failure| Error::Read(ReadError::Stream(failure)))
        })?;
        Ok(serde_json::to_value(summary)?)
    }
}

/// Counts the words of files on nodes, as [`count_words`] does here.
///
/// Memory here: a batch of each node's answer.
///
/// # Errors
/// As [`nodes::run_on_nodes`]; a node that is lost in the middle of its answer, whose pieces no other has, is an error even
/// where a partial answer would do: a part of them was counted.
pub fn count_words_on_nodes(
    nodes: &Nodes,
    job: &Job,
    wholes: &[Whole],
    options: &WordOptions,
    run: &RunOptions,
    mut each: impl FnMut(RecordBatch) -> Result<()>,
) -> Result<(WordSummary, Gathered)> {
    let arguments = serde_json::to_value(options).expect("plain data");
    let streams = stream_from_nodes(nodes, job, (KIND, true), arguments, wholes, run).map_err(failed)?;
    let mut merge = Merge { heads: (0..streams.len()).map(|_| Head::default()).collect(), streams };
    for stream in 0..merge.heads.len() {
        merge.fill(stream)?;
    }
    let mut tally = Tally::new(options);
    let mut word = String::new();
    while let Some(count) = merge.next(&mut word)? {
        tally.add(&word, count);
        if tally.bytes() >= BATCH_BYTES {
            job.check_cancelled()?;
            each(tally.batch())?;
        }
    }
    if tally.len() > 0 {
        each(tally.batch())?;
    }
    let mut summary = WordSummary::default();
    for stream in 0..merge.heads.len() {
        let Some(told) = merge.streams.summary(stream) else { continue };
        let number = |name: &str| told[name].as_u64().unwrap_or(0);
        summary.bytes = summary.bytes.saturating_add(number("bytes"));
        summary.words = summary.words.saturating_add(number("words"));
        summary.spills = summary.spills.saturating_add(number("spills"));
        summary.runs = summary.runs.saturating_add(number("runs"));
        summary.bytes_spilled = summary.bytes_spilled.saturating_add(number("bytes_spilled"));
    }
    tally.tell(&mut summary);
    Ok((summary, merge.streams.finish()))
}

fn failed(error: nodes::Error) -> Error {
    match error {
        nodes::Error::Store(error) => Error::Store(error),
        error => Error::Read(ReadError::Stream(Box::new(error))),
    }
}

/// The answers of all nodes, in order of words.
struct Merge {
    streams: Streams,
    heads: Vec<Head>,
}

/// Where a stream stands.
#[derive(Default)]
struct Head {
    batch: Option<(StringArray, UInt64Array)>,
    row: usize,
    /// The last word that was taken from it, or from the lost one that it replaces.
    last: Option<String>,
}

impl Head {
    fn word(&self) -> Option<&str> {
        self.batch.as_ref().map(|(words, _)| words.value(self.row))
    }
}

impl Merge {
    /// The next word, and its count on all nodes.
    fn next(&mut self, word: &mut String) -> Result<Option<u64>> {
        let Some(least) = self.heads.iter().filter_map(Head::word).min() else { return Ok(None) };
        word.clear();
        word.push_str(least);
        let mut sum = 0;
        for stream in 0..self.heads.len() {
            let head = &mut self.heads[stream];
            if head.word() != Some(word) {
                continue;
            }
            let (words, counts) = head.batch.as_ref().expect("it has a word");
            sum = u64::saturating_add(sum, counts.value(head.row));
            head.row += 1;
            if head.row == words.len() {
                head.last = Some(word.clone());
                head.batch = None;
                self.fill(stream)?;
            }
        }
        Ok(Some(sum))
    }

    /// Gets the next words of a stream that has none left.
    fn fill(&mut self, stream: usize) -> Result<()> {
        loop {
            let head = &self.heads[stream];
            let why = match self.streams.next(stream) {
                Ok(None) => return Ok(()),
                Ok(Some(batch)) => match columns(&batch) {
                    Some((_, counts)) if counts.is_empty() => continue,
                    Some((words, counts)) => {
                        // What was taken from the one that was lost.
                        let last = head.last.as_deref();
                        let row =
                            (0..words.len()).find(|&row| last.is_none_or(|last| words.value(row) > last));
                        let Some(row) = row else { continue };
                        let head = &mut self.heads[stream];
                        (head.batch, head.row) = (Some((words, counts)), row);
                        return Ok(());
                    }
                    None => nodes::Error::BadAnswer {
                        node: String::new(),
                        what: "words that are none, or in no order".to_string(),
                    },
                },
                Err(error @ (nodes::Error::Store(_) | nodes::Error::Deadline { .. })) => {
                    return Err(failed(error));
                }
                Err(error) => error,
            };
            let missing = self.streams.missing();
            let new = self.streams.replace(stream, &why).map_err(failed)?;
            let last = self.heads[stream].last.clone();
            if self.streams.missing() > missing && last.is_some() {
                return Err(failed(why));
            }
            self.heads.resize_with(new.end, Head::default);
            for stream in new {
                self.heads[stream].last = last.clone();
                self.fill(stream)?;
            }
            return Ok(());
        }
    }
}

/// Words and counts of a batch, if that is what it has: without gaps, and the words in order.
fn columns(batch: &RecordBatch) -> Option<(StringArray, UInt64Array)> {
    let words = batch.columns().first()?.as_string_opt::<i32>()?.clone();
    let counts = batch.columns().get(1)?.as_primitive_opt::<UInt64Type>()?.clone();
    let is_ordered = (1..words.len()).all(|row| words.value(row - 1) < words.value(row));
    (words.null_count() == 0 && counts.null_count() == 0 && is_ordered).then_some((words, counts))
}
