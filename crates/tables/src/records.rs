//! Sorts and combines records of a few 64-bit words. The traits of this module hide how many bits the key has, and how
//! many words the value has.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use inshore_sortreduce::{Config, Key, Sink, SortReduce, Sorted, Stats};
use inshore_store::Job;

use crate::{
    Result,
    words::{Combine, Words},
};

/// A sort-reduce of records with a key of up to 64 bits and up to [`crate::words::WORDS_MAX`] words of 64 bits.
pub(crate) trait Records: Send + Sync {
    /// Makes a sink for records. The configuration states how many sinks may exist at the same time.
    fn sink(&self) -> Result<Box<dyn RecordSink>>;
    /// Ends the input and returns the sorted records. All sinks must be finished before this call.
    fn finish(self: Box<Self>) -> Result<Box<dyn SortedRecords>>;
}

/// Takes the records that one thread pushes.
pub(crate) trait RecordSink: Send {
    /// Pushes records. Each element of `words` is a list with one word for each key.
    fn push(&mut self, keys: &[u64], words: &[Vec<u64>]) -> Result<()>;
    fn finish(self: Box<Self>) -> Result<()>;
}

/// The records in ascending order of their keys. Each key occurs once.
pub(crate) trait SortedRecords: Send {
    fn next_block(&mut self) -> Result<Option<RecordBlock>>;
    /// Returns true if a sum exceeded 64 bits. The results are then invalid.
    fn is_overflown(&self) -> bool;
    fn stats(&self) -> Stats;
}

/// A block of records in the order of their keys.
pub(crate) struct RecordBlock {
    pub keys: Vec<u64>,
    /// The words of the records. Each element is the list of one word of all records.
    pub words: Vec<Vec<u64>>,
}

/// Begins a sort-reduce. Keys have 32 bits if `is_narrow` is true, and otherwise 64 bits.
pub(crate) fn records(
    job: &Job,
    is_narrow: bool,
    combine: &[Combine],
    config: &Config,
) -> Result<Box<dyn Records>> {
    match (is_narrow, combine.len()) {
        (true, 0 | 1) => WordOperation::<u32, 1>::boxed(job, combine, config),
        (true, 2) => WordOperation::<u32, 2>::boxed(job, combine, config),
        (true, _) => WordOperation::<u32, 4>::boxed(job, combine, config),
        (false, 0 | 1) => WordOperation::<u64, 1>::boxed(job, combine, config),
        (false, 2) => WordOperation::<u64, 2>::boxed(job, combine, config),
        (false, _) => WordOperation::<u64, 4>::boxed(job, combine, config),
    }
}

struct WordOperation<K: Key, const N: usize>
where
    [u64; N]: Default,
{
    reduce: SortReduce<Words<K, N>>,
    /// How many words of a record the caller uses.
    words: usize,
    overflow: Arc<AtomicBool>,
}

impl<K: Key, const N: usize> WordOperation<K, N>
where
    [u64; N]: Default,
{
    fn boxed(job: &Job, combine: &[Combine], config: &Config) -> Result<Box<dyn Records>> {
        let overflow = Arc::new(AtomicBool::new(false));
        let reduce = SortReduce::new(job, Words::<K, N>::new(combine, None, &overflow), config)?;
        Ok(Box::new(WordOperation { reduce, words: combine.len(), overflow }))
    }
}

impl<K: Key, const N: usize> Records for WordOperation<K, N>
where
    [u64; N]: Default,
{
    fn sink(&self) -> Result<Box<dyn RecordSink>> {
        Ok(Box::new(self.reduce.sink()?))
    }

    fn finish(self: Box<Self>) -> Result<Box<dyn SortedRecords>> {
        let sorted = self.reduce.finish()?;
        Ok(Box::new(SortedOperation { sorted, words: self.words, overflow: self.overflow }))
    }
}

impl<K: Key, const N: usize> RecordSink for Sink<Words<K, N>>
where
    [u64; N]: Default,
{
    fn push(&mut self, keys: &[u64], words: &[Vec<u64>]) -> Result<()> {
        let keys: Vec<K> = keys.iter().map(|&key| K::from_u64(key)).collect();
        let unused = vec![0; if words.len() < N { keys.len() } else { 0 }];
        let columns: [&[u64]; N] = std::array::from_fn(|i| words.get(i).unwrap_or(&unused).as_slice());
        Ok(self.push_many(&keys, |row| columns.map(|words| words[row]))?)
    }

    fn finish(self: Box<Self>) -> Result<()> {
        Ok(Sink::finish(*self)?)
    }
}

struct SortedOperation<K: Key, const N: usize>
where
    [u64; N]: Default,
{
    sorted: Sorted<Words<K, N>>,
    words: usize,
    overflow: Arc<AtomicBool>,
}

impl<K: Key, const N: usize> SortedRecords for SortedOperation<K, N>
where
    [u64; N]: Default,
{
    fn next_block(&mut self) -> Result<Option<RecordBlock>> {
        let Some(block) = self.sorted.next_block()? else { return Ok(None) };
        let word = |i: usize| block.values.iter().map(|value| value[i]).collect();
        let keys = block.keys.iter().map(|key| key.to_u64()).collect();
        Ok(Some(RecordBlock { keys, words: (0..self.words).map(word).collect() }))
    }

    fn is_overflown(&self) -> bool {
        self.overflow.load(Ordering::Relaxed)
    }

    fn stats(&self) -> Stats {
        self.sorted.stats()
    }
}
