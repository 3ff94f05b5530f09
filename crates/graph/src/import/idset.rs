//! The set of all ids, and the vertex number of each id: the index of the id in ascending order.

use std::sync::{
    Mutex,
    atomic::{AtomicU64, Ordering},
};

use inshore_sortreduce::{Config, Operation, Sink, SortReduce, prefetch};
use inshore_store::{Buffer, CheckedFile, DatasetBuilder, FileReader, FileWriter, Job, taken_bytes};

use crate::{Result, csr::Numbering, idfile};

/// Sorts ids that have no bit in the bitmap, as keys without a value.
#[derive(Clone)]
pub(super) struct DistinctIds;

impl Operation for DistinctIds {
    type Key = u64;
    type Value = ();
    fn combine(&self, _: (), _: ()) {}
}

/// Words of the bitmap are prefetched this number of keys ahead.
const AHEAD: usize = 24;
/// Size of a bitmap of all 32-bit ids.
const BITMAP_BYTES_MAX: u64 = 1 << (32 - 3);

/// The ids that were read so far. An id below a limit that the budget sets has a bit in a bitmap, and higher ids go
/// through sort-reduce.
pub(super) struct IdSet {
    bitmap: Buffer,
    high: SortReduce<DistinctIds>,
    high_sinks: Mutex<Vec<Sink<DistinctIds>>>,
}

impl IdSet {
    /// Creates a set. Half of `memory_bytes` goes to the bitmap, and half to the sort of higher ids. The bitmap is no
    /// larger than all 32-bit ids need.
    pub fn new(job: &Job, memory_bytes: u64) -> Result<IdSet> {
        let bitmap_bytes = ((memory_bytes / 2).next_power_of_two() / 2).min(BITMAP_BYTES_MAX);
        let sinks = super::log::lanes(job);
        let config = Config { memory_bytes: memory_bytes / 2, sinks, name: "ids", ..Config::default() };
        let high = SortReduce::new(job, DistinctIds, &config)?;
        let mut high_sinks = Vec::with_capacity(sinks);
        for _ in 0..sinks {
            high_sinks.push(high.sink()?);
        }
        let bitmap = Buffer::zeroed(job.budget(), bitmap_bytes as usize, "the set of ids")?;
        Ok(IdSet { bitmap, high, high_sinks: Mutex::new(high_sinks) })
    }

    /// Returns the largest amount of memory that [`IdSet::seal`] needs if all ids are in the bitmap.
    pub fn sealing_bytes(&self) -> u64 {
        taken_bytes(self.bitmap.len() / 2) as u64 + 2 * idfile::BLOCK_BYTES as u64
    }

    /// Creates the inserter of one thread.
    pub fn inserter(&self) -> IdInserter<'_> {
        let words = self.words();
        let high = self.high_sinks.lock().expect("no panic under this lock").pop();
        IdInserter { words, high: high.expect("a sink for each lane"), all_low: true }
    }

    fn words(&self) -> &[AtomicU64] {
        let words = self.bitmap.typed::<u64>();
        // SAFETY: AtomicU64 has the layout of u64. The bytes are only accessed through this view while inserters exist,
        // since inserters borrow the set. The set owns the buffer, whose memory is writable.
        unsafe { std::slice::from_raw_parts(words.as_ptr().cast::<AtomicU64>(), words.len()) }
    }

    /// Writes the ids in ascending order into the dataset (unless they are 0, 1, 2, ...), and prepares the numbering of
    /// ids.
    pub fn seal(self, job: &Job, builder: &mut DatasetBuilder) -> Result<SealedIdSet> {
        job.start_phase("numbering vertices", "vertices", 0);
        drop(self.high_sinks);
        let mut high = self.high.finish()?;
        let words = self.bitmap.typed::<u64>();
        let low_count: u64 = words.iter().map(|word| word.count_ones() as u64).sum();
        let low_min = words.iter().position(|word| *word != 0);
        let low_min = low_min.map(|at| at as u64 * 64 + words[at].trailing_zeros() as u64);
        let low_max = words.iter().rposition(|word| *word != 0);
        let low_max = low_max.map(|at| at as u64 * 64 + 63 - words[at].leading_zeros() as u64);
        let mut first_high = high.next_block()?.map(|block| block.keys.to_vec());
        if first_high.is_none() && low_max.is_none_or(|max| max + 1 == low_count) {
            let max = low_max.unwrap_or(0);
            return Ok(SealedIdSet { count: low_count, dense: true, min: 0, max, numbers: IdNumbers::Dense });
        }
        let mut file = builder.file("ids", idfile::BLOCK_BYTES, idfile::BLOCK_BYTES)?;
        write_bits(words, &mut file)?;
        let mut count = low_count;
        let mut max = low_max.unwrap_or(0);
        let min = low_min.or_else(|| first_high.as_ref().map(|keys| keys[0])).unwrap_or(0);
        let all_low = first_high.is_none();
        while let Some(keys) = first_high {
            count += keys.len() as u64;
            max = keys[keys.len() - 1];
            file.write(zerocopy::IntoBytes::as_bytes(&keys[..]))?;
            first_high = high.next_block()?.map(|block| block.keys.to_vec());
        }
        let file = builder.add_and_open(file)?;
        drop(high);
        let numbers = if all_low {
            IdNumbers::Bits(Ranks::new(job, self.bitmap)?)
        } else {
            drop(self.bitmap);
            IdNumbers::of_file(job, file)?
        };
        Ok(SealedIdSet { count, dense: false, min, max, numbers })
    }
}

/// Adds ids to the set from one thread.
pub(super) struct IdInserter<'a> {
    words: &'a [AtomicU64],
    high: Sink<DistinctIds>,
    all_low: bool,
}

impl IdInserter<'_> {
    /// Adds an id. Returns `true` if the id is low: a low id has a bit in the bitmap.
    #[inline]
    pub fn insert(&mut self, id: u64) -> Result<bool> {
        let is_low = id / 64 < self.words.len() as u64;
        match is_low {
            true => self.set(id),
            false => {
                self.all_low = false;
                self.high.push(id, ())?;
            }
        }
        Ok(is_low)
    }

    #[inline(always)]
    fn set(&self, id: u64) {
        let (word, bit) = (&self.words[(id / 64) as usize], 1 << (id % 64));
        // Most ids are in the set already, and a load is cheaper than a locked operation.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Adds both 32-bit halves of each key if all of these ids are low. Otherwise returns `false`, and adds none of
    /// them.
    pub fn insert_low(&mut self, keys: &[u64]) -> bool {
        let halves = |key: &u64| ((key >> 32) as u32).max(*key as u32);
        let max = keys.iter().map(halves).max().unwrap_or(0);
        if u64::from(max) / 64 >= self.words.len() as u64 {
            return false;
        }
        let mut last = None;
        for (at, &key) in keys.iter().enumerate() {
            if let Some(&ahead) = keys.get(at + AHEAD) {
                prefetch(&self.words[(ahead >> 32) as usize / 64]);
                prefetch(&self.words[ahead as u32 as usize / 64]);
            }
            let source = key >> 32;
            if last != Some(source) {
                self.set(source);
                last = Some(source);
            }
            self.set(key & u64::from(u32::MAX));
        }
        true
    }

    /// Ends this thread's input. Returns `true` if all of its ids have a bit in the bitmap.
    pub fn finish(self) -> Result<bool> {
        self.high.finish()?;
        Ok(self.all_low)
    }
}

/// Writes the positions of the bits that are set, as ids.
fn write_bits(words: &[u64], file: &mut FileWriter) -> Result<()> {
    let mut staged: Vec<u64> = Vec::with_capacity(4096 + 64);
    for (at, &word) in words.iter().enumerate() {
        let mut left = word;
        while left != 0 {
            staged.push(at as u64 * 64 + left.trailing_zeros() as u64);
            left &= left - 1;
        }
        if staged.len() >= 4096 {
            file.write(zerocopy::IntoBytes::as_bytes(&staged[..]))?;
            staged.clear();
        }
    }
    Ok(file.write(zerocopy::IntoBytes::as_bytes(&staged[..]))?)
}

/// The set of all ids after the input has ended.
pub(super) struct SealedIdSet {
    pub count: u64,
    /// Tells whether the ids are 0, 1, 2, ...
    pub dense: bool,
    pub min: u64,
    pub max: u64,
    pub numbers: IdNumbers,
}

/// Maps ids to vertex numbers.
pub(super) enum IdNumbers {
    /// The ids are 0, 1, 2, ..., so the number of an id is the id itself.
    Dense,
    /// The number is the count of set bits before the id's bit.
    Bits(Ranks),
    /// The number is the index of the id among all ids, which are in memory.
    Array(Buffer),
    /// The ids do not fit in memory, so logs must first be numbered in bins. A lookup in this variant returns the
    /// number that the log then holds in place of the id.
    OnFlash(CheckedFile),
}

impl IdNumbers {
    fn of_file(job: &Job, file: CheckedFile) -> Result<IdNumbers> {
        // The ids get at most half of the memory, since sorting the edges needs the rest.
        let wanted = file.len().next_multiple_of(2 << 20);
        if wanted > job.budget().free_bytes() / 2 {
            return Ok(IdNumbers::OnFlash(file));
        }
        Ok(IdNumbers::Array(load(job, &file, 0..file.len())?))
    }

    /// Returns the number of `id`, which must be in the set.
    #[inline]
    pub fn number(&self, id: u64) -> u32 {
        match self {
            IdNumbers::Dense | IdNumbers::OnFlash(_) => id as u32,
            IdNumbers::Bits(ranks) => ranks.view().number(id as u32),
            IdNumbers::Array(ids) => place(ids.typed::<u64>(), id),
        }
    }
}

/// Returns the index of `id` among ascending `ids`.
#[inline]
pub(super) fn place(ids: &[u64], id: u64) -> u32 {
    ids.partition_point(|&known| known < id) as u32
}

/// Reads a byte range of an ids file.
pub(super) fn load(job: &Job, file: &CheckedFile, range: std::ops::Range<u64>) -> Result<Buffer> {
    let len = (range.end - range.start) as usize;
    let mut ids = Buffer::zeroed(job.budget(), len, "ids of vertices")?;
    let mut reader = FileReader::new(job, file, range, idfile::BLOCK_BYTES)?;
    let mut at = 0;
    while let Some(piece) = reader.next_piece()? {
        ids[at..at + piece.len()].copy_from_slice(piece);
        at += piece.len();
    }
    Ok(ids)
}

/// A bitmap with the number of set bits before every word, up to the last word that is not zero.
///
/// A lookup misses the nearest caches, so a word and its number of bits are adjacent if memory allows. A lookup then
/// reads only one cache line.
pub(super) struct Ranks {
    bits: Buffer,
    /// The number of set bits before each word. The value is `None` if each number is stored next to its word.
    counts: Option<Buffer>,
}

impl Ranks {
    /// Counts the bits before each word, in at most half as much memory as the bitmap has.
    fn new(job: &Job, bitmap: Buffer) -> Result<Ranks> {
        let words = bitmap.typed::<u64>();
        let used = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        let is_beside = used * size_of::<[u64; 2]>() <= bitmap.len() / 2;
        let mut total = 0;
        let mut before = |word: &u64| {
            let before = total;
            total += word.count_ones();
            before
        };
        if is_beside {
            let mut pairs = Buffer::zeroed(job.budget(), used * size_of::<[u64; 2]>(), "counts of ids")?;
            for (pair, word) in pairs.typed_mut::<[u64; 2]>().iter_mut().zip(words) {
                *pair = [*word, before(word).into()];
            }
            return Ok(Ranks { bits: pairs, counts: None });
        }
        let mut counts = Buffer::zeroed(job.budget(), used * 4, "counts of ids")?;
        for (count, word) in counts.typed_mut::<u32>().iter_mut().zip(words) {
            *count = before(word);
        }
        Ok(Ranks { bits: bitmap, counts: Some(counts) })
    }

    /// Returns a view for lookups.
    pub fn view(&self) -> RankView<'_> {
        let words = self.bits.typed::<u64>();
        match &self.counts {
            None => RankView {
                words,
                counts: self.bits.typed::<u32>(),
                word_step: 2,
                count_step: 4,
                first_count: 2,
            },
            Some(counts) => {
                RankView { words, counts: counts.typed::<u32>(), word_step: 1, count_step: 1, first_count: 0 }
            }
        }
    }
}

/// The words of [`Ranks`] and the numbers of bits before them, each at a fixed stride.
#[derive(Clone, Copy)]
pub(super) struct RankView<'a> {
    words: &'a [u64],
    counts: &'a [u32],
    word_step: usize,
    count_step: usize,
    first_count: usize,
}

impl Numbering for RankView<'_> {
    #[inline(always)]
    fn number(&self, id: u32) -> u32 {
        let at = id as usize / 64;
        let below = self.words[at * self.word_step] & ((1 << (id % 64)) - 1);
        self.counts[at * self.count_step + self.first_count] + below.count_ones()
    }

    #[inline(always)]
    fn prefetch(&self, id: u32) {
        let at = id as usize / 64;
        prefetch(&self.words[at * self.word_step]);
        prefetch(&self.counts[at * self.count_step + self.first_count]);
    }
}
