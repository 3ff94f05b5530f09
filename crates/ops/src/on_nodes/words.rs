//! This module counts words on the nodes that store the text.
//!
//! Each node counts the words of its shards and returns all counts, in the order of the words' bytes. The client
//! merges the answers and adds the counts of equal words. If a node is lost, other nodes count its shards again,
//! and the client skips the words up to the last word of the lost answer. This is correct since the same text
//! always has the same counts.
//!
//! The client can also fetch shards and count their words itself, if this makes the job faster.
//!
//! Cost: each node sends each of its distinct words once, with the count.

use std::{cmp::Ordering, thread};

use arrow_array::{Array, RecordBatch, StringArray, UInt64Array, cast::AsArray, types::UInt64Type};
use inshore_kernel::{Error as ReadError, OpenedSource, Reply, Source, TaskHandler};
use inshore_kernels::{CountsWords, Result, Tally, WordOptions, WordSummary};
use inshore_nodes::{
    DistributedFile, GatherReport, HelpOptions, HelpPiece, HelpPieces, Merged, Nodes, OrderedRow, RunOptions,
    Streams, stream_with_help,
};
use inshore_store::{Context, Job};

use super::{failed, refuse_compressed};

/// The size in bytes of the words and counts in a batch.
const BATCH_BYTES: usize = 1 << 20;

/// Returns a source that reads a shard which the client processes itself.
fn source_of(piece: inshore_nodes::Result<HelpPiece>) -> Source {
    match piece {
        Ok(piece) => Source::new(piece.title.clone(), |_| Ok(OpenedSource::Stream(Box::new(piece)))),
        Err(error) => Source::new("a piece", |_| Err(ReadError::Stream(Box::new(error)))),
    }
}

/// Counts the words of files on nodes. The result equals that of [`inshore_kernels::count_words`] for local files.
///
/// Memory of the client: a batch of each node's answer. If the client also counts words of some shards, half of
/// the free memory in addition.
///
/// # Errors
/// Returns the errors of [`inshore_nodes::run_on_nodes`]. If a node is lost while it sends its answer, and its shards
/// have no other replica, the result is an error even if partial answers are allowed, since a part of the node's words
/// was already counted.
pub fn count_words_on_nodes(
    nodes: &Nodes,
    context: &Context,
    wholes: &[DistributedFile],
    options: &WordOptions,
    run: &RunOptions,
    each: impl FnMut(RecordBatch) -> Result<()>,
) -> Result<(WordSummary, GatherReport)> {
    refuse_compressed(nodes, context, wholes, run).map_err(failed)?;
    let arguments = serde_json::to_value(options).expect("plain data");
    let with = HelpOptions { by_threads: true, ..HelpOptions::default() };
    thread::scope(|scope| {
        let asked =
            stream_with_help(nodes, context, (CountsWords.kind(), true), arguments, wholes, run, with);
        let (streams, help) = asked.map_err(failed)?;
        if let Some(help) = help {
            scope.spawn(|| {
                let count = |job: &Job, pieces: HelpPieces, reply: &mut dyn Reply| {
                    CountsWords::answer(job, pieces.map(source_of), *options, reply)
                };
                help.work(context, run.help_on.as_ref(), count);
            });
        }
        merge(context, streams, options, each)
    })
}

/// Merges the answers of the nodes, and adds the counts of equal words.
fn merge(
    context: &Context,
    streams: Streams,
    options: &WordOptions,
    mut each: impl FnMut(RecordBatch) -> Result<()>,
) -> Result<(WordSummary, GatherReport)> {
    let mut merged = Merged::<Counted>::new(streams, ()).map_err(failed)?;
    let mut tally = Tally::new(options);
    let (mut word, mut count) = (String::new(), 0u64);
    while let Some((counted, rows)) = merged.next().map_err(failed)? {
        for row in rows {
            let (next, more) = (counted.words.value(row), counted.counts.value(row));
            if next == word && count > 0 {
                count = count.saturating_add(more);
                continue;
            }
            if count > 0 {
                tally.add(&word, count);
            }
            word.clear();
            word.push_str(next);
            count = more;
        }
        if tally.bytes() >= BATCH_BYTES {
            context.check_cancelled()?;
            each(tally.batch())?;
        }
    }
    if count > 0 {
        tally.add(&word, count);
    }
    if !tally.is_empty() {
        each(tally.batch())?;
    }
    let mut summary = WordSummary {
        bytes: merged.told("bytes"),
        words: merged.told("words"),
        spills: merged.told("spills"),
        runs: merged.told("runs"),
        bytes_spilled: merged.told("bytes_spilled"),
        ..WordSummary::default()
    };
    tally.tell(&mut summary);
    Ok((summary, merged.finish()))
}

/// A batch of distinct words in order, with their counts.
struct Counted {
    words: StringArray,
    counts: UInt64Array,
}

impl OrderedRow for Counted {
    type How = ();
    const ADDS_UP: bool = true;

    fn of_batch(batch: &RecordBatch, _: &()) -> Option<Counted> {
        let words = batch.columns().first()?.as_string_opt::<i32>()?.clone();
        let counts = batch.columns().get(1)?.as_primitive_opt::<UInt64Type>()?.clone();
        let is_ordered = (1..words.len()).all(|row| words.value(row - 1) < words.value(row));
        let is_full = words.null_count() == 0 && counts.null_count() == 0;
        (is_full && is_ordered && counts.values().iter().all(|&count| count > 0))
            .then_some(Counted { words, counts })
    }

    fn rows(&self) -> usize {
        self.words.len()
    }

    fn compare(&self, row: usize, other: &Counted, other_row: usize) -> Ordering {
        self.words.value(row).cmp(other.words.value(other_row))
    }

    fn alone(&self, row: usize) -> Counted {
        Counted { words: vec![self.words.value(row)].into(), counts: vec![self.counts.value(row)].into() }
    }
}
