//! Runs on flash, which are sorted sequences of records without equal keys.
//!
//! ```text
//!   run file   [ run 0 | run 1 | ... ]              up to 256 runs of one thread; removed after its last run
//!   run        [ block | block | ... | block ]      all blocks have the same size, see [`block`]
//! ```
//!
//! Numbers are little endian, which is the machine's byte order. A block is also the unit of checksums (see
//! `CheckedFile` of the store), so that no record has two checksums. Several runs share a file, since each file takes
//! complete extents of 2 MiB and two write buffers. With a budget of 64 MiB, a terabyte of input has thousands of
//! runs. The start and the number of records of each run are in memory. The first key and the checksum of each block
//! are also in memory, so that a run can be read from any key on. A run that is saved for a resumed job has its own
//! file. In such a file, the first keys follow the blocks.

pub(crate) mod block;
pub(crate) mod keep;
pub(crate) mod merge;
pub(crate) mod pack;
pub(crate) mod passes;

use std::{ops::Range, sync::Arc};

use inshore_store::{
    Buffer, CheckedFile, DatasetBuilder, FileReader, FileWriter, Job, Keep, PendingRead, Reservation,
};
use zerocopy::IntoBytes;

use crate::{
    Error, Key, Result, Value,
    keys::keyrange::KeyRange,
    keys::word::Word,
    runs::block::{BadBlock, BlockReader, BlockWriter},
};

/// The maximum number of runs per file. With more runs, a file would occupy scratch space for longer while its runs
/// are merged in several passes.
const RUNS_PER_FILE: usize = 256;

/// The bytes by which the reservation for first keys grows.
const KEYS_STEP_BYTES: usize = 4096;

/// Returns the bytes of memory per block of a run on flash. They are for the block's checksum and first key.
pub(crate) const fn block_index_bytes<K>() -> usize {
    4 + size_of::<K>()
}

/// A run on flash.
#[derive(Clone, Debug)]
pub(crate) struct Run<K> {
    file: CheckedFile,
    first_keys: Arc<FirstKeys<K>>,
    /// The range of the run's blocks in the file.
    blocks: Range<u64>,
    pub records: u64,
    /// The number of merges that the run went through.
    pub level: u32,
}

/// The first key of each block in a file of runs.
#[derive(Debug)]
struct FirstKeys<K> {
    keys: Vec<K>,
    reservation: Reservation,
}

impl<K: Key> FirstKeys<K> {
    fn push(&mut self, key: K) -> Result<()> {
        if (self.keys.len() + 1) * size_of::<K>() > self.reservation.bytes() as usize {
            self.reservation.resize(self.reservation.bytes() + KEYS_STEP_BYTES as u64)?;
        }
        self.keys.push(key);
        Ok(())
    }

    /// Releases the unused memory. No key may be added after this call.
    fn end(&mut self) -> Result<()> {
        self.keys.shrink_to_fit();
        Ok(self.reservation.resize((self.keys.len() * size_of::<K>()) as u64)?)
    }
}

impl<K: Key> Run<K> {
    /// Opens a saved run in `file`, which has `blocks` blocks and `records` records. Returns `None` if the length or
    /// the block size of the file does not match.
    ///
    /// # Errors
    /// Returns an error if the run cannot be read or is damaged, or if the budget has too little memory for the first
    /// keys of the blocks.
    pub fn open_kept(
        job: &Job,
        file: CheckedFile,
        blocks: u64,
        records: u64,
        block_bytes_max: usize,
    ) -> Result<Option<Run<K>>> {
        let block_bytes = file.block_bytes();
        let keys_start = blocks.saturating_mul(block_bytes as u64);
        let is_sound = block_bytes <= block_bytes_max
            && records > 0
            && blocks > 0
            && file.len() == keys_start.saturating_add(blocks.saturating_mul(size_of::<K>() as u64));
        if !is_sound {
            return Ok(None);
        }
        let keys_bytes = file.len() - keys_start;
        let reservation = job.budget().reserve(keys_bytes, "the first keys of blocks of runs")?;
        let mut keys = vec![K::default(); blocks as usize];
        let mut reader = FileReader::new(job, &file, keys_start..file.len(), block_bytes)?;
        let mut rest = keys.as_mut_slice().as_mut_bytes();
        while let Some(piece) = reader.next_piece()? {
            let (part, after) = rest.split_at_mut(piece.len());
            part.copy_from_slice(piece);
            rest = after;
        }
        let first_keys = Arc::new(FirstKeys { keys, reservation });
        Ok(Some(Run { file, first_keys, blocks: 0..blocks, records, level: 0 }))
    }

    /// Returns the size of the run on flash, in bytes.
    pub fn bytes(&self) -> u64 {
        (self.blocks.end - self.blocks.start) * self.file.block_bytes() as u64
    }

    /// Returns the first keys of the run's blocks.
    fn first_keys(&self) -> &[K] {
        &self.first_keys.keys[self.blocks.start as usize..self.blocks.end as usize]
    }

    /// Estimates how much of the run is below a key, in 256ths of a block. The keys of a block are assumed to be
    /// spread evenly up to the next block's first key. If the key is in the last block, half of that block is assumed
    /// to be below the key.
    pub fn below(&self, key: K) -> u64 {
        let firsts = self.first_keys();
        let begun = firsts.partition_point(|&first| first < key);
        let Some(&first) = begun.checked_sub(1).map(|last| &firsts[last]) else { return 0 };
        let part = firsts.get(begun).map_or(128, |next| {
            let (from, to) = (first.to_word(), next.to_word());
            // Low bits are dropped so that the product cannot overflow.
            let lost = (to - from).bits().saturating_sub(48);
            256 * ((key.to_word() - from) >> lost).low() / ((to - from) >> lost).low().max(1)
        });
        256 * (begun as u64 - 1) + part
    }

    /// Returns the number of blocks that may contain keys of a range.
    pub fn blocks_in(&self, range: &KeyRange<K>) -> u64 {
        let blocks = self.part(range);
        (blocks.end - blocks.start) as u64
    }

    /// Returns the indices of the blocks that may contain keys of a range, counted from the run's first block.
    fn part(&self, range: &KeyRange<K>) -> Range<usize> {
        let keys = self.first_keys();
        range.blocks(keys.len(), |block| keys[block])
    }
}

/// Writes runs, one after the other.
#[derive(Debug)]
pub(crate) struct RunWriter<K, V> {
    job: Job,
    name: &'static str,
    keep: Option<Keep>,
    write_bytes: usize,
    block: BlockWriter<K, V>,
    current: Option<OpenFile<K>>,
    /// The total bytes of all runs that were written.
    pub bytes: u64,
}

#[derive(Debug)]
struct OpenFile<K> {
    writer: FileWriter,
    /// The dataset as which the current run is saved, if runs are saved.
    piece: Option<DatasetBuilder>,
    first_keys: FirstKeys<K>,
    /// The first block, the number of blocks, the number of records and the level of each run in the file.
    runs: Vec<(u64, u64, u64, u32)>,
}

impl<K: Key> OpenFile<K> {
    fn take(&mut self, first_key: K, block: &[u8], in_block: usize, bytes: &mut u64) -> Result<()> {
        self.first_keys.push(first_key)?;
        self.writer.write(block)?;
        let (_, blocks, records, _) = self.runs.last_mut().expect("a run was begun");
        *blocks += 1;
        *records += in_block as u64;
        *bytes += block.len() as u64;
        Ok(())
    }
}

impl<K: Key, V: Value> RunWriter<K, V> {
    /// Creates a writer. The first run creates the file. With `keep`, the caller must end each run with
    /// [`RunWriter::end_kept`].
    pub fn new(
        job: &Job,
        name: &'static str,
        keep: Option<Keep>,
        block_bytes: usize,
        write_bytes: usize,
    ) -> Result<Self> {
        Ok(RunWriter {
            job: job.clone(),
            name,
            keep,
            write_bytes,
            block: BlockWriter::new(block_bytes, job.budget())?,
            current: None,
            bytes: 0,
        })
    }

    /// Begins a run.
    ///
    /// # Errors
    /// Returns [`inshore_store::Error::Io`] if the file cannot be created, or an error if the budget has too little
    /// memory for the file's buffers.
    pub fn begin(&mut self, level: u32) -> Result<()> {
        let file = match &mut self.current {
            Some(file) => file,
            None => self.current.insert(self.create()?),
        };
        file.runs.push((file.first_keys.keys.len() as u64, 0, 0, level));
        Ok(())
    }

    fn create(&self) -> Result<OpenFile<K>> {
        let (block, write) = (self.block.block_bytes(), self.write_bytes);
        let mut piece = self.keep.as_ref().map(|keep| keep.begin(&self.job)).transpose()?;
        let writer = match &mut piece {
            None => FileWriter::create(&self.job, self.name, block, write)?,
            Some(piece) => piece.file("records", block, write)?,
        };
        let reservation = self.job.budget().reserve(0, "the first keys of blocks of runs")?;
        let first_keys = FirstKeys { keys: Vec::new(), reservation };
        Ok(OpenFile { writer, piece, first_keys, runs: Vec::with_capacity(RUNS_PER_FILE) })
    }

    /// Appends records to the run.
    ///
    /// # Errors
    /// Returns the errors of [`FileWriter::write`].
    pub fn append(&mut self, keys: &[K], values: &[V]) -> Result<()> {
        let RunWriter { block, current, bytes, .. } = self;
        let file = current.as_mut().expect("a run was begun");
        block.append(keys, values, &mut |key, block: &[u8], records| file.take(key, block, records, bytes))
    }

    fn end_block(&mut self) -> Result<()> {
        let RunWriter { block, current, bytes, .. } = self;
        let file = current.as_mut().expect("a run was begun");
        block.end(&mut |key, block: &[u8], records| file.take(key, block, records, bytes))
    }

    /// Ends the run. If the file then has the maximum number of runs, ends the file and returns its runs.
    pub fn end(&mut self) -> Result<Vec<Run<K>>> {
        self.end_block()?;
        match &self.current {
            Some(file) if file.runs.len() == RUNS_PER_FILE => self.finish(),
            _ => Ok(Vec::new()),
        }
    }

    /// Ends the run, and saves it with the description that `state` computes from its numbers of blocks and records.
    /// If `state` returns `None`, the run is not saved for a resumed job.
    ///
    /// # Errors
    /// Returns the errors of [`FileWriter::write`] and [`Keep::commit`].
    pub fn end_kept(&mut self, state: impl FnOnce(u64, u64) -> Option<Vec<u8>>) -> Result<Vec<Run<K>>> {
        self.end_block()?;
        let file = self.current.as_mut().expect("a run was begun");
        let (_, blocks, records, _) = file.runs[0];
        let piece = file.piece.take().zip(self.keep.as_ref());
        let (mut piece, keep) = piece.expect("a writer that keeps");
        let OpenFile { mut writer, first_keys, runs, .. } = self.current.take().expect("a run was begun");
        writer.write(first_keys.keys.as_bytes())?;
        let file = piece.add_and_open(writer)?;
        if let Some(state) = state(blocks, records) {
            keep.commit(piece, &state)?;
        }
        Self::runs_of(file, first_keys, runs)
    }

    /// Ends the file and returns its runs.
    ///
    /// # Errors
    /// Returns [`inshore_store::Error::Io`] if a write that was still in flight failed.
    pub fn finish(&mut self) -> Result<Vec<Run<K>>> {
        match self.current.take() {
            Some(OpenFile { writer, first_keys, runs, .. }) => {
                Self::runs_of(writer.finish()?, first_keys, runs)
            }
            None => Ok(Vec::new()),
        }
    }

    fn runs_of(
        file: CheckedFile,
        mut first_keys: FirstKeys<K>,
        runs: Vec<(u64, u64, u64, u32)>,
    ) -> Result<Vec<Run<K>>> {
        first_keys.end()?;
        let first_keys = Arc::new(first_keys);
        let run = |(start, blocks, records, level)| Run {
            file: file.clone(),
            first_keys: first_keys.clone(),
            blocks: start..start + blocks,
            records,
            level,
        };
        Ok(runs.into_iter().map(run).collect())
    }
}

/// Streams the records of a run whose keys are in a range.
#[derive(Debug)]
pub(crate) struct RunReader<K, V> {
    blocks: RunBlocks<K>,
    range: KeyRange<K>,
    records: BlockReader<K, V>,
    /// True if no more records follow the current records.
    is_last: bool,
}

impl<K: Key, V: Value> RunReader<K, V> {
    /// Creates a reader, and starts to read. Both buffers must have the same size, a multiple of the run's block
    /// size.
    pub fn new(job: &Job, run: Run<K>, range: KeyRange<K>, buffers: [Buffer; 2]) -> Result<Self> {
        let records = BlockReader::new(run.file.block_bytes(), job.budget())?;
        let blocks = RunBlocks::new(job, run, &range, buffers)?;
        let mut reader = RunReader { blocks, range, records, is_last: false };
        reader.fill()?;
        loop {
            let keys = reader.keys();
            let (skipped, count) = (range.skipped(keys), keys.len());
            reader.advance(skipped)?;
            if skipped < count || count == 0 {
                return Ok(reader);
            }
        }
    }

    /// Adds records from the current block and the next blocks, until there are enough current records.
    fn fill(&mut self) -> Result<()> {
        while self.records.is_low() && !self.is_last {
            let filled = if self.records.has_more() {
                self.records.fill(self.blocks.current())
            } else if self.blocks.advance()? {
                self.records.begin(self.blocks.current())
            } else {
                self.is_last = true;
                return Ok(());
            };
            filled.map_err(|BadBlock| Error::DamagedRun { file: self.blocks.run.file.name().to_string() })?;
            let (kept, shown) = (self.range.kept(self.keys()), self.keys().len());
            if kept < shown {
                self.records.cut(kept);
                self.is_last = true;
            }
        }
        Ok(())
    }

    /// Returns the keys of the current records. The slice is empty only at the end of the run.
    #[inline]
    pub fn keys(&self) -> &[K] {
        self.records.keys(self.blocks.current())
    }

    /// Returns the values that belong to [`RunReader::keys`].
    #[inline]
    pub fn values(&self) -> &[V] {
        self.records.values(self.blocks.current())
    }

    /// Removes the first `count` current records, and reads more records if few are left.
    ///
    /// # Errors
    /// Returns [`inshore_store::Error::Io`], [`inshore_store::Error::Damaged`] or [`Error::DamagedRun`] if the next
    /// block cannot be read.
    #[inline]
    pub fn advance(&mut self, count: usize) -> Result<()> {
        self.records.take(count);
        if self.records.is_low() && !self.is_last { self.fill() } else { Ok(()) }
    }
}

/// Reads the blocks of a run that may contain keys of a range. There are two buffers, one of which is used while the
/// other is filled.
#[derive(Debug)]
struct RunBlocks<K> {
    job: Job,
    run: Run<K>,
    /// The byte range of the file that is not yet requested.
    unread: Range<u64>,
    ahead: Option<PendingRead>,
    buffer: Buffer,
    /// The byte range in `buffer` of the current block and all later blocks.
    left: Range<usize>,
}

impl<K: Key> RunBlocks<K> {
    /// Starts to read. The first call of [`RunBlocks::advance`] moves to the first block.
    fn new(job: &Job, run: Run<K>, range: &KeyRange<K>, [buffer, spare]: [Buffer; 2]) -> Result<Self> {
        let block_bytes = run.file.block_bytes();
        assert!(buffer.len() >= block_bytes, "a buffer smaller than a block");
        let place = |block: usize| (run.blocks.start + block as u64) * block_bytes as u64;
        let part = run.part(range);
        let unread = place(part.start)..place(part.end);
        let mut blocks = RunBlocks { job: job.clone(), run, unread, ahead: None, buffer, left: 0..0 };
        blocks.read_ahead(spare)?;
        Ok(blocks)
    }

    fn read_ahead(&mut self, buffer: Buffer) -> Result<()> {
        if self.unread.is_empty() {
            return Ok(());
        }
        let end = self.unread.end.min(self.unread.start + buffer.len() as u64);
        let range = self.unread.start..end;
        self.unread.start = end;
        self.ahead = Some(self.run.file.submit_read(&self.job, range, buffer)?);
        Ok(())
    }

    /// Moves to the next block. Returns `false` if there is no next block.
    fn advance(&mut self) -> Result<bool> {
        self.left.start += self.run.file.block_bytes();
        if self.left.start >= self.left.end {
            self.left = 0..0;
            let Some(pending) = self.ahead.take() else { return Ok(false) };
            let (buffer, wanted) = pending.wait()?;
            let used = std::mem::replace(&mut self.buffer, buffer);
            self.left = wanted;
            self.read_ahead(used)?;
        }
        Ok(true)
    }

    /// Returns the current block.
    #[inline]
    fn current(&self) -> &[u8] {
        &self.buffer[self.left.start..][..self.run.file.block_bytes()]
    }
}
