//! This module collects sorted words with their counts in batches.

use std::{cmp::Reverse, collections::BinaryHeap, sync::Arc};

use arrow_array::{ArrayRef, RecordBatch, UInt64Array, builder::StringBuilder};

use super::{WordOptions, WordSummary, word_schema};

/// Collects words in batches, and records the most frequent words. Words must be added in ascending order.
#[derive(Debug)]
pub struct Tally {
    options: WordOptions,
    best: BinaryHeap<(Reverse<u64>, String)>,
    words: StringBuilder,
    counts: Vec<u64>,
    /// The size of the words and counts since the last batch, in bytes.
    bytes: usize,
    distinct: u64,
    written: u64,
}

impl Tally {
    /// Creates a tally without words.
    pub fn new(options: &WordOptions) -> Tally {
        Tally {
            options: *options,
            best: BinaryHeap::new(),
            words: StringBuilder::new(),
            counts: Vec::new(),
            bytes: 0,
            distinct: 0,
            written: 0,
        }
    }

    /// Adds a word with its total count. The word must follow all words added before.
    pub fn add(&mut self, word: &str, count: u64) {
        self.distinct += 1;
        if count < self.options.min_count {
            return;
        }
        self.words.append_value(word);
        self.counts.push(count);
        self.bytes += word.len() + 8;
        let (best, top) = (&mut self.best, self.options.top);
        let is_better = best.peek().is_none_or(|(least, last)| (Reverse(count), word) < (*least, last));
        if top > 0 && (best.len() < top || is_better) {
            if best.len() == top {
                best.pop();
            }
            best.push((Reverse(count), word.to_string()));
        }
    }

    /// Returns the number of words added since the last batch.
    pub fn len(&self) -> usize {
        self.counts.len()
    }

    /// Returns true if no words were added since the last batch.
    pub fn is_empty(&self) -> bool {
        self.counts.is_empty()
    }

    /// Returns the size of the words and counts since the last batch, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns the words added since the last batch.
    pub fn batch(&mut self) -> RecordBatch {
        self.written += self.counts.len() as u64;
        self.bytes = 0;
        let counts = UInt64Array::from(std::mem::take(&mut self.counts));
        let columns: Vec<ArrayRef> = vec![Arc::new(self.words.finish()), Arc::new(counts)];
        RecordBatch::try_new(word_schema(), columns).expect("columns of one length")
    }

    /// Writes to the summary how many distinct words were added and how many were returned, and which words are the
    /// most frequent.
    pub fn tell(self, summary: &mut WordSummary) {
        (summary.distinct, summary.written) = (self.distinct, self.written);
        let best = self.best.into_sorted_vec();
        summary.top = best.into_iter().map(|(Reverse(count), word)| (word, count)).collect();
    }
}
