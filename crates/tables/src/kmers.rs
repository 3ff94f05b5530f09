//! Counts k-mers. A k-mer is a stretch of k consecutive bases, so a sequence has about as many k-mers as bases.
//!
//! ```text
//!   a reader ── blocks of bases ──► workers: codes of 2 bits a base ── SortReduce ──► one row for each k-mer
//! ```
//!
//! A code is a number with two bits for each base (A 0, C 1, G 2, T 3). The first base has the highest bits, so codes
//! have the same order as the text. A stretch and its reverse complement are the two strands of the same DNA. Unless
//! the user wants separate strands, a stretch counts as the smaller of its own code and the code of its reverse
//! complement (the canonical k-mer). A letter other than a base (such as N) ends a stretch.
//!
//! If a file of sequences is divided into pieces on several machines, each machine counts the k-mers within its pieces
//! ([`count_kmer_pieces`]). The client adds these counts, and counts the stretches that cross the borders of pieces
//! ([`kmer_codes`]). [`KmerWriter`] writes the table.
//!
//! # Cost
//!
//! The code updates take 2 ns for each base. [`SortReduce`] takes additional time. A stretch takes 12 bytes (20 if k is
//! larger than 32), unless the stretch is combined with an equal stretch in memory. These bytes are written once and
//! read once.

mod table;

use std::{
    marker::PhantomData,
    path::Path,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, sync_channel},
    },
    thread,
};

use inshore_sortreduce::{Choice, Config, Key, Operation, Sink, SortReduce, Sorted, smallest_memory_bytes};
use inshore_store::{Job, Keep};
use serde::Serialize;

pub use self::table::KmerWriter;
use crate::{
    Error, Input, Result, TableWriter,
    bases::{CODES, NOT_A_BASE},
    pieces::for_each_piece,
    resume,
    sequences::{PieceEnds, PieceStart, SequenceReader},
    sort::sort_memory,
};

/// The largest k. A code then has 126 bits.
pub const KMER_MAX: u32 = 63;
/// The maximum number of k-mers in one [`KmerAnswer`].
pub const KMER_BLOCK_ROWS: usize = 16 << 10;
const BLOCK_BYTES: usize = 256 << 10;

/// The options for counting k-mers.
#[derive(Clone, Copy, Debug)]
pub struct KmerOptions {
    /// The number of bases in a k-mer, from 1 to [`KMER_MAX`].
    pub k: u32,
    /// Counts a k-mer and its reverse complement as the same k-mer.
    pub canonical: bool,
    /// Writes only k-mers that occur at least this often.
    pub min_count: u32,
    /// Writes the codes of k-mers instead of their letters. With this option, k must be at most 32.
    pub codes: bool,
    /// Keeps finished sorted runs if the count is interrupted. Resumes an interrupted count that had the same options.
    pub resume: bool,
}

impl Default for KmerOptions {
    /// Counts canonical k-mers of 25 bases, and writes all of them as text.
    fn default() -> Self {
        KmerOptions { k: 25, canonical: true, min_count: 1, codes: false, resume: false }
    }
}

/// The counters that a count of k-mers returns.
#[derive(Clone, Debug, Default, Serialize)]
pub struct KmerSummary {
    /// The number of sequences read.
    pub sequences: u64,
    /// The number of letters in the sequences.
    pub bases: u64,
    /// The number of stretches of k consecutive bases.
    pub kmers: u64,
    /// The number of stretches in `kmers` that the sorted runs of an earlier, interrupted count already contained.
    pub kmers_kept: u64,
    /// The number of distinct k-mers.
    pub distinct: u64,
    /// The number of distinct k-mers that occur often enough to be written.
    pub written: u64,
    /// For each count, the number of distinct k-mers that occur this often. The first element is the number of k-mers
    /// that occur once. There are at most 256 elements, and the last element also counts all k-mers that occur more
    /// often.
    pub histogram: Vec<u64>,
    /// The number of sorted runs written to the store's scratch space.
    pub runs: u64,
    /// The number of bytes of the sorted runs that were written.
    pub bytes_spilled: u64,
    /// The estimated cost of each strategy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<Choice>,
}

impl KmerOptions {
    /// Checks that `k` and the other options can be used together.
    ///
    /// # Errors
    /// Returns [`Error::Unsupported`] if an option is invalid or two options contradict each other. The error names the
    /// option.
    pub fn check(&self) -> Result<()> {
        let refuse = |what: String| Err(Error::unsupported("k-mers", what));
        if self.k == 0 || self.k > KMER_MAX {
            return refuse(format!("expected a k from 1 to {KMER_MAX}, got {}", self.k));
        }
        if self.codes && self.k > 32 {
            return refuse(format!("expected a k up to 32 for codes of 64 bits, got {}", self.k));
        }
        Ok(())
    }
}

/// Counts the k-mers of FASTA and FASTQ files, compressed or not, and writes a table with the columns kmer and count.
/// The rows have the alphabetical order of the k-mers. A count that exceeds 2^32 - 1 is written as 2^32 - 1.
///
/// # Errors
/// - Returns [`Error::Unsupported`] if k is invalid.
/// - Returns [`Error::BadValue`] or [`Error::Damaged`] if the input is neither FASTA nor FASTQ.
/// - Returns the errors of [`TableWriter::create`].
/// - Returns [`Error::Store`] if the budget is too small, the store fails or the job was cancelled.
pub fn count_kmers(job: &Job, inputs: &[Input], output: &Path, options: &KmerOptions) -> Result<KmerSummary> {
    options.check()?;
    TableWriter::check_path(output)?;
    match options.k {
        ..=32 => count::<u64>(job, inputs, output, options),
        _ => count::<u128>(job, inputs, output, options),
    }
}

/// A file of sequences, or a piece of such a file. A piece of FASTA ends with a complete line, and a piece of FASTQ
/// with a complete record.
#[derive(Clone, Debug)]
pub struct KmerPiece {
    /// The bytes of the piece, compressed or not.
    pub input: Input,
    /// The position in a file at which the bytes begin.
    pub begins: PieceStart,
}

/// Pieces whose k-mers are counted together. The next piece is requested after the previous piece was read completely.
pub struct KmerPieces<'a> {
    next: Box<dyn Iterator<Item = Result<KmerPiece>> + 'a>,
    bytes: Option<u64>,
    count_max: usize,
}

impl<'a> KmerPieces<'a> {
    /// Creates pieces from an iterator that returns at most `count_max` pieces. `bytes` is the total size of the pieces
    /// in bytes, if it is known.
    pub fn asked(
        next: impl Iterator<Item = Result<KmerPiece>> + 'a,
        bytes: Option<u64>,
        count_max: usize,
    ) -> KmerPieces<'a> {
        KmerPieces { next: Box::new(next), bytes, count_max }
    }

    /// Creates pieces from a list.
    pub fn of(pieces: Vec<KmerPiece>) -> KmerPieces<'a> {
        let bytes = pieces.iter().map(|piece| piece.input.compressed_bytes()).sum();
        let count_max = pieces.len();
        KmerPieces::asked(pieces.into_iter().map(Ok), bytes, count_max)
    }
}

/// A part of the result of [`count_kmer_pieces`].
#[derive(Debug)]
pub enum KmerAnswer<'a> {
    /// The first and last k - 1 letters of each piece, in the order of the pieces. The function passes this answer
    /// first, after it has read all pieces.
    Ends(Vec<PieceEnds>),
    /// K-mers with a k of at most 32, and their counts. An answer has at most [`KMER_BLOCK_ROWS`] k-mers, in the order
    /// of their codes.
    Short(KmerList<'a, u64>),
    /// K-mers with a k above 32, in the same form as [`KmerAnswer::Short`].
    Long(KmerList<'a, u128>),
}

/// Counts the k-mers that lie within pieces, and passes all of them to `each`. The caller counts the k-mers that cross
/// the borders of pieces, by calling [`kmer_codes`] with the first and last letters of the pieces. In the summary, the
/// number of distinct k-mers and the histogram are missing, since only the written table determines them.
///
/// The function uses the memory of the budget, and additional memory for [`KMER_BLOCK_ROWS`] codes and counts.
///
/// # Errors
/// Returns the errors of [`count_kmers`] and of `each`.
pub fn count_kmer_pieces(
    job: &Job,
    pieces: KmerPieces<'_>,
    options: &KmerOptions,
    each: impl FnMut(KmerAnswer<'_>) -> Result<()>,
) -> Result<KmerSummary> {
    options.check()?;
    match options.k {
        ..=32 => answer::<u64>(job, pieces, options, each),
        _ => answer::<u128>(job, pieces, options, each),
    }
}

/// Ascending codes, and their counts.
pub type KmerList<'a, C> = (&'a [C], &'a [u32]);

/// A number that holds the code of a k-mer, with 2 bits for each base.
pub trait KmerCode: Key {
    /// Returns the code as a number of 128 bits.
    fn wide(self) -> u128;

    /// Converts a number of 128 bits to a code. Returns `None` if the number does not fit.
    fn of_wide(wide: u128) -> Option<Self>;
}

/// Passes the code of every stretch of `k` bases in a text to the consumer, in slices of several codes. The codes have
/// the order of the stretches in the text. A letter other than a base ends a stretch.
///
/// # Errors
/// Returns the errors of the consumer.
pub fn kmer_codes(
    text: &[u8],
    (k, canonical): (u32, bool),
    give: impl FnMut(&[u128]) -> Result<()>,
) -> Result<()> {
    u128::stretches(text, k, canonical, give)
}

/// A code that can be computed from letters.
trait Code: KmerCode {
    /// Creates an answer from a list of these codes.
    fn answer(list: KmerList<'_, Self>) -> KmerAnswer<'_>;
    /// Passes the code of every stretch of `k` bases in a block to the consumer, in slices of several codes.
    fn stretches(
        block: &[u8],
        k: u32,
        canonical: bool,
        give: impl FnMut(&[Self]) -> Result<()>,
    ) -> Result<()>;
}

macro_rules! code {
    ($type:ty, $answer:path) => {
        impl KmerCode for $type {
            fn wide(self) -> u128 {
                self.into()
            }

            fn of_wide(wide: u128) -> Option<$type> {
                <$type>::try_from(wide).ok()
            }
        }

        impl Code for $type {
            fn answer(list: KmerList<'_, Self>) -> KmerAnswer<'_> {
                $answer(list)
            }

            fn stretches(
                block: &[u8],
                k: u32,
                canonical: bool,
                mut give: impl FnMut(&[Self]) -> Result<()>,
            ) -> Result<()> {
                const PIECE: usize = 2048;
                let mask = <$type>::MAX >> (<$type>::BITS - 2 * k);
                let high = 2 * (k - 1);
                let (mut forward, mut reverse, mut bases): ($type, $type, u32) = (0, 0, 0);
                let mut codes = [0; PIECE];
                for letters in block.chunks(PIECE) {
                    let mut count = 0;
                    for &letter in letters {
                        let base = CODES[letter as usize];
                        forward = (forward << 2 | (base & 3) as $type) & mask;
                        reverse = reverse >> 2 | ((3 - (base & 3)) as $type) << high;
                        bases = if base == NOT_A_BASE { 0 } else { bases + 1 };
                        codes[count] = if canonical { forward.min(reverse) } else { forward };
                        count += usize::from(bases >= k);
                    }
                    give(&codes[..count])?;
                }
                Ok(())
            }
        }
    };
}

code!(u64, KmerAnswer::Short);
code!(u128, KmerAnswer::Long);

/// Adds the counts of equal k-mers. A sum that exceeds 32 bits becomes the largest 32-bit number.
#[derive(Clone)]
struct AddCounts<K>(PhantomData<K>);

impl<K: Key> Operation for AddCounts<K> {
    type Key = K;
    type Value = u32;
    #[inline]
    fn combine(&self, a: u32, b: u32) -> u32 {
        a.saturating_add(b)
    }
}

/// Counts the k-mers of whole files, and writes the table.
fn count<K: Code>(job: &Job, inputs: &[Input], output: &Path, options: &KmerOptions) -> Result<KmerSummary> {
    let question = (options.k, options.canonical);
    let keep = resume::keep(options.resume, job, "count kmers of", question, inputs)?;
    let piece = |input: &Input| KmerPiece { input: input.clone(), begins: PieceStart::File };
    let pieces = KmerPieces::of(inputs.iter().map(piece).collect());
    let mut counted = CountedKmers::<K>::of(job, pieces, options, keep.clone())?;
    job.start_phase("writing k-mers", "k-mers", 0);
    let mut writer = KmerWriter::create(job, output, options);
    while let Some(block) = counted.sorted.next_block()? {
        writer.add(block.keys, block.values)?;
    }
    let summary = writer.finish(counted.finish())?;
    resume::finish(keep)?;
    Ok(summary)
}

/// Counts the k-mers of pieces, and passes the result to `each` in blocks.
fn answer<K: Code>(
    job: &Job,
    pieces: KmerPieces<'_>,
    options: &KmerOptions,
    mut each: impl FnMut(KmerAnswer<'_>) -> Result<()>,
) -> Result<KmerSummary> {
    let mut counted = CountedKmers::<K>::of(job, pieces, options, None)?;
    each(KmerAnswer::Ends(std::mem::take(&mut counted.ends)))?;
    let (mut codes, mut counts): (Vec<K>, Vec<u32>) = Default::default();
    while let Some(block) = counted.sorted.next_block()? {
        let (mut keys, mut values) = (block.keys, block.values);
        while !keys.is_empty() {
            let some = keys.len().min(KMER_BLOCK_ROWS - codes.len());
            codes.extend_from_slice(&keys[..some]);
            counts.extend_from_slice(&values[..some]);
            (keys, values) = (&keys[some..], &values[some..]);
            if codes.len() == KMER_BLOCK_ROWS {
                each(K::answer((&codes, &counts)))?;
                codes.clear();
                counts.clear();
            }
        }
    }
    if !codes.is_empty() {
        each(K::answer((&codes, &counts)))?;
    }
    Ok(counted.finish())
}

/// The distinct k-mers with their counts, in ascending order of their codes.
struct CountedKmers<K: Code> {
    sorted: Sorted<AddCounts<K>>,
    summary: KmerSummary,
    ends: Vec<PieceEnds>,
}

impl<K: Code> CountedKmers<K> {
    fn of(job: &Job, pieces: KmerPieces<'_>, options: &KmerOptions, keep: Option<Keep>) -> Result<Self> {
        let budget = job.budget();
        let threads = budget.threads();
        let sizes = pieces.bytes;
        let end_bytes = size_of::<PieceEnds>() + 2 * options.k as usize;
        let held = (BLOCK_BYTES * (3 * threads + 2) + pieces.count_max * end_bytes) as u64 + (6 << 20);
        let smallest = smallest_memory_bytes(threads, size_of::<K>() + 4);
        let config = Config {
            key_range: 1u64.checked_shl(2 * options.k).filter(|&range| range > 1),
            memory_bytes: sort_memory(budget, "counting k-mers", held, (15, 16), smallest)?,
            sinks: threads,
            // The estimate is one record for each byte of the files. An uncompressed file has about one record for each
            // letter. A compressed file has more records than bytes.
            expected_records: sizes,
            keep,
            name: "kmers",
            ..Config::default()
        };
        job.start_phase("counting", "bytes", sizes.unwrap_or(0));
        let reduce = SortReduce::new(job, AddCounts::<K>(PhantomData), &config)?;
        let choice = Some(reduce.choice().clone());
        let kmers_kept = reduce.records_kept();
        let ReadCounters { sequences, bases, ends } = push_all(job, pieces, options, threads, &reduce)?;
        let summary = KmerSummary { sequences, bases, kmers_kept, choice, ..KmerSummary::default() };
        Ok(CountedKmers { sorted: reduce.finish()?, summary, ends })
    }

    /// Returns the summary, once all k-mers were returned.
    fn finish(self) -> KmerSummary {
        let stats = self.sorted.stats();
        let (kmers, runs, bytes_spilled) = (stats.records_in, stats.runs, stats.bytes_spilled);
        KmerSummary { kmers, runs, bytes_spilled, ..self.summary }
    }
}

/// The counters of the reading thread.
struct ReadCounters {
    sequences: u64,
    bases: u64,
    ends: Vec<PieceEnds>,
}

/// Reads all pieces on this thread, and pushes their k-mers on all threads of the budget.
fn push_all<K: Code>(
    job: &Job,
    pieces: KmerPieces<'_>,
    options: &KmerOptions,
    threads: usize,
    reduce: &SortReduce<AddCounts<K>>,
) -> Result<ReadCounters> {
    let (send, queue) = sync_channel::<(u64, Vec<u8>)>(threads);
    let queue = Arc::new(Mutex::new(queue));
    thread::scope(|scope| {
        let work = || {
            let pushed = reduce.sink().map_err(Error::from).and_then(|sink| push(sink, &queue, options));
            // After a failure, the worker empties the queue, so that the reader does not wait for a worker that has
            // ended.
            pushed.inspect_err(|_| while queue.lock().expect("no panic under this lock").recv().is_ok() {})
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let read = || -> Result<ReadCounters> {
            // The receiver no longer exists only if a worker failed. The error of the worker is returned below.
            let stopped = || Error::Store(inshore_store::Error::Cancelled);
            let mut numbers = 0..;
            let emit = |block| {
                let number = numbers.next().expect("more numbers than blocks");
                send.send((number, block)).map_err(|_| stopped())
            };
            let mut sequences = SequenceReader::new(BLOCK_BYTES, options.k as usize - 1, emit);
            let mut ends = Vec::new();
            for piece in pieces.next {
                let KmerPiece { input, begins } = piece?;
                let input = input.stopped_by(job.cancel());
                sequences.begin(begins);
                for_each_piece(job, &input, true, |piece| sequences.take(input.name(), piece))?;
                ends.push(sequences.ends());
                sequences.end_file(input.name())?;
            }
            let (sequences, bases) = sequences.finish()?;
            Ok(ReadCounters { sequences, bases, ends })
        };
        let found = read();
        drop(send);
        let pushed = workers.into_iter().try_for_each(|worker| worker.join().expect("workers do not panic"));
        // If a worker and the reader failed, the worker's error is returned, since the reader failed only because the
        // worker ended.
        pushed.and(found)
    })
}

fn push<K: Code>(
    mut sink: Sink<AddCounts<K>>,
    queue: &Mutex<Receiver<(u64, Vec<u8>)>>,
    options: &KmerOptions,
) -> Result<()> {
    loop {
        let next = queue.lock().expect("no panic under this lock").recv();
        let Ok((number, block)) = next else { break };
        if sink.begin_unit(number)? {
            K::stretches(&block, options.k, options.canonical, |codes| Ok(sink.push_all(codes, 1)?))?;
        }
    }
    Ok(sink.finish()?)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use arrow_array::{cast::AsArray, types::UInt32Type};
    use arrow_schema::DataType;
    use inshore_store::{Budget, Cancel, Store};

    use super::*;
    use crate::TableReader;

    fn complement(text: &str) -> String {
        let other = |letter| match letter {
            'A' => 'T',
            'C' => 'G',
            'G' => 'C',
            _ => 'A',
        };
        text.chars().rev().map(other).collect()
    }

    /// Counts the k-mers of texts with a map, as a naive reference.
    fn naive(sequences: &[String], options: &KmerOptions) -> BTreeMap<String, u32> {
        let mut counts = BTreeMap::new();
        for sequence in sequences {
            let sequence = sequence.to_uppercase().replace('U', "T");
            for start in 0..(sequence.len() + 1).saturating_sub(options.k as usize) {
                let kmer = &sequence[start..start + options.k as usize];
                if kmer.bytes().all(|letter| b"ACGT".contains(&letter)) {
                    let other = complement(kmer);
                    let key = if options.canonical { other.min(kmer.to_string()) } else { kmer.to_string() };
                    *counts.entry(key).or_default() += 1;
                }
            }
        }
        counts.retain(|_, count| *count >= options.min_count);
        counts
    }

    fn sequences() -> Vec<String> {
        let mut state = 1u64;
        let mut below = |limit: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % limit
        };
        let mut all: Vec<String> = (0..60)
            .map(|_| (0..below(400)).map(|_| b"ACGTacgtNU"[below(10) as usize] as char).collect())
            .collect();
        // Some sequences are repeated, so that some k-mers occur often.
        all.push("ACGT".repeat(50));
        all.push("A".repeat(200));
        all.extend(all.clone().into_iter().skip(20).step_by(3));
        all
    }

    #[test]
    fn kmers_of_any_length_are_those_of_a_naive_count() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path().join("store")).unwrap();
        let (path, output) = (folder.path().join("reads.fa"), folder.path().join("counts.parquet"));
        let sequences = sequences();
        let text: String = sequences.iter().map(|sequence| format!(">x\n{sequence}\n")).collect();
        std::fs::write(&path, text).unwrap();
        for (k, canonical, min_count) in [
            (1, true, 1),
            (5, false, 2),
            (13, true, 1),
            (16, true, 1),
            (17, true, 2),
            (31, true, 1),
            (32, true, 1),
            (33, true, 1),
            (63, false, 1),
            (63, true, 2),
        ] {
            let options = KmerOptions { k, canonical, min_count, ..KmerOptions::default() };
            let job = store.job(Budget::new(16 << 20, 2), Cancel::default()).unwrap();
            let summary = count_kmers(&job, &[Input::new(&path)], &output, &options).unwrap();
            let expected = naive(&sequences, &options);
            let columns = [("kmer", DataType::Utf8), ("count", DataType::UInt32)];
            let budget = Budget::new(16 << 20, 1);
            let mut table = TableReader::open(&Input::new(&output), &columns, 1000, &budget).unwrap();
            let mut found = Vec::new();
            while let Some(batch) = table.next_batch().unwrap() {
                let kmers = batch.column(0).as_string::<i32>().iter().map(|kmer| kmer.unwrap().to_string());
                found
                    .extend(kmers.zip(batch.column(1).as_primitive::<UInt32Type>().values().iter().copied()));
            }
            assert_eq!(found, expected.clone().into_iter().collect::<Vec<_>>(), "k = {k}");
            assert_eq!(summary.written, expected.len() as u64);
            assert_eq!(summary.sequences, sequences.len() as u64);
            assert_eq!(summary.histogram.iter().sum::<u64>(), summary.distinct);
        }
        let job = store.job(Budget::new(16 << 20, 2), Cancel::default()).unwrap();
        for k in [0, 64] {
            let options = KmerOptions { k, ..KmerOptions::default() };
            assert!(count_kmers(&job, &[Input::new(&path)], &output, &options).is_err());
        }
    }
}
