//! Words counted where the text lies.
//!
//! Each node counts the words of its pieces and answers with all of them, in the order of their bytes; here the answers are
//! merged as they come, and equal words add up. Where a node is lost, others count its pieces anew, and what they say of
//! words up to the last one that was taken from the lost one is passed over: the same text gives the same counts.
//!
//! Where that is faster, this machine pulls pieces, too: it fetches and counts them, as if it were one node more.
//!
//! Cost: every different word of a node goes over the wire once, with its count.

use std::{cmp::Ordering, thread};

use arrow_array::{Array, RecordBatch, StringArray, UInt64Array, cast::AsArray, types::UInt64Type};
use inshore_kernel::{Error as ReadError, Opened, Reply, Source, Work};
use inshore_kernels::{CountsWords, Result, Tally, WordOptions, WordSummary};
use inshore_nodes::{
    Gathered, HelpPiece, HelpPieces, HelpWith, InOrder, Merged, Nodes, RunOptions, Streams, Whole,
    stream_with_help,
};
use inshore_store::{Context, Job};

use super::{failed, refuse_compressed};

/// Bytes of words and counts that are given at once.
const BATCH_BYTES: usize = 1 << 20;

/// A piece that this machine took over.
fn source_of(piece: inshore_nodes::Result<HelpPiece>) -> Source {
    match piece {
        Ok(piece) => Source::new(piece.title.clone(), |_| Ok(Opened::Stream(Box::new(piece)))),
        Err(error) => Source::new("a piece", |_| Err(ReadError::Stream(Box::new(error)))),
    }
}

/// Counts the words of files on nodes, as [`inshore_kernels::count_words`] does here.
///
/// Memory here: a batch of each node's answer; and half of what is free, where this machine counts some of it.
///
/// # Errors
/// As [`inshore_nodes::run_on_nodes`]; a node that is lost in the middle of its answer, whose pieces no other has, is an error even
/// where a partial answer would do: a part of them was counted.
pub fn count_words_on_nodes(
    nodes: &Nodes,
    context: &Context,
    wholes: &[Whole],
    options: &WordOptions,
    run: &RunOptions,
    each: impl FnMut(RecordBatch) -> Result<()>,
) -> Result<(WordSummary, Gathered)> {
    refuse_compressed(nodes, context, wholes, run).map_err(failed)?;
    let arguments = serde_json::to_value(options).expect("plain data");
    let with = HelpWith { by_threads: true, ..HelpWith::default() };
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

/// Adds up what nodes counted.
fn merge(
    context: &Context,
    streams: Streams,
    options: &WordOptions,
    mut each: impl FnMut(RecordBatch) -> Result<()>,
) -> Result<(WordSummary, Gathered)> {
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

/// Words in order, each once, and how often they occur.
struct Counted {
    words: StringArray,
    counts: UInt64Array,
}

impl InOrder for Counted {
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
