//! Runs on flash: sorted, reduced sequences of records.
//!
//! ```text
//!   run file   [ run 0 | run 1 | ... ]              up to 256 runs of one thread; removed with its last run
//!   run        [ block | block | ... | block ]      all blocks equal, only the last one partly filled
//!   block      [ key * n | zeros | value * n | zeros ]   n = block_bytes / (key bytes + value bytes), less in
//!                                                        the last; values start where n whole keys end,
//!                                                        rounded up to their alignment
//! ```
//!
//! Numbers are little endian (the machine's order: scratch is never read by another). A block is also the unit
//! of checking (see `CheckedFile` of the store), so that no record straddles a check. Where a run begins and how
//! many records it has is kept in memory. Several runs share a file because a file takes whole extents
//! of 2 MiB and two buffers to write, and a budget of 64 MiB makes thousands of runs of a terabyte. The first key of each
//! block is kept in memory too, beside the block's checksum, so that a run can be read from any key on. A run that is kept
//! for another job has a file of its own, with its first keys behind the blocks.

use std::{marker::PhantomData, ops::Range, sync::Arc};

use inshore_store::{
    Buffer, CheckedFile, DatasetBuilder, FileReader, FileWriter, Job, Keep, PendingRead, Reservation,
};
use zerocopy::IntoBytes;

use crate::{
    Key, Result, Value,
    array::{typed, typed_mut},
    keyrange::KeyRange,
    record::record_bytes,
};

/// Runs in a file: more would hold back scratch space while runs are merged in several passes.
const RUNS_PER_FILE: usize = 256;

/// First keys for which memory is reserved at once.
const KEYS_STEP_BYTES: usize = 4096;

/// Bytes of memory for each block of a run on flash: a checksum and its first key.
pub(crate) const fn block_index_bytes<K>() -> usize {
    4 + size_of::<K>()
}

/// A run.
#[derive(Clone, Debug)]
pub(crate) struct Run<K> {
    file: CheckedFile,
    first_keys: Arc<FirstKeys<K>>,
    /// Its blocks in the file.
    blocks: Range<u64>,
    pub records: u64,
    /// How many merges it went through.
    pub level: u32,
}

/// The first key of each block of a file of runs.
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

    /// Hands back what is not needed, since nothing will be added.
    fn end(&mut self) -> Result<()> {
        self.keys.shrink_to_fit();
        Ok(self.reservation.resize((self.keys.len() * size_of::<K>()) as u64)?)
    }
}

impl<K: Key> Run<K> {
    /// Opens a run that was kept: so many blocks and records in `file`. `None` where that is no such run.
    ///
    /// # Errors
    /// I/O and damage; no memory for the first keys of its blocks.
    pub fn open_kept<V: Value>(
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
            && file.len() == keys_start.saturating_add(blocks.saturating_mul(size_of::<K>() as u64))
            && records.div_ceil(Layout::<K, V>::new(block_bytes).block_records as u64) == blocks;
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

    /// The first keys of its blocks.
    fn first_keys(&self) -> &[K] {
        &self.first_keys.keys[self.blocks.start as usize..self.blocks.end as usize]
    }

    /// About how many half blocks lie below a key: of the last block that begins below it, one half.
    pub fn halves_below(&self, key: K) -> u64 {
        (2 * self.first_keys().partition_point(|&first| first < key) as u64).saturating_sub(1)
    }

    /// How many of its blocks may hold keys of a range.
    pub fn blocks_in(&self, range: &KeyRange<K>) -> u64 {
        let blocks = self.part(range);
        (blocks.end - blocks.start) as u64
    }

    /// The blocks that may hold keys of a range, counted from its first.
    fn part(&self, range: &KeyRange<K>) -> Range<usize> {
        let keys = self.first_keys();
        range.blocks(keys.len(), |block| keys[block])
    }
}

/// Where things are in a block.
#[derive(Clone, Copy, Debug)]
struct Layout<K, V> {
    block_bytes: usize,
    block_records: usize,
    values_offset: usize,
    of: PhantomData<(K, V)>,
}

impl<K: Key, V: Value> Layout<K, V> {
    fn new(block_bytes: usize) -> Self {
        let mut block_records = block_bytes / record_bytes::<K, V>();
        let offset = |records: usize| (records * size_of::<K>()).next_multiple_of(align_of::<V>());
        while offset(block_records) + block_records * size_of::<V>() > block_bytes {
            block_records -= 1;
        }
        assert!(block_records > 0, "a block of {block_bytes} bytes holds no record");
        Layout { block_bytes, block_records, values_offset: offset(block_records), of: PhantomData }
    }

    fn keys<'a>(&self, block: &'a [u8], count: usize) -> &'a [K] {
        typed(block, count)
    }

    fn values<'a>(&self, block: &'a [u8], count: usize) -> &'a [V] {
        typed(&block[self.values_offset..], count)
    }
}

/// Writes runs, one after the other.
#[derive(Debug)]
pub(crate) struct RunWriter<K, V> {
    job: Job,
    name: &'static str,
    keep: Option<Keep>,
    write_bytes: usize,
    layout: Layout<K, V>,
    staging: Buffer,
    staged: usize,
    current: Option<OpenFile<K>>,
}

#[derive(Debug)]
struct OpenFile<K> {
    writer: FileWriter,
    /// The dataset that a kept run becomes.
    piece: Option<DatasetBuilder>,
    first_keys: FirstKeys<K>,
    /// First block, blocks, records and level of the runs in it.
    runs: Vec<(u64, u64, u64, u32)>,
}

impl<K: Key, V: Value> RunWriter<K, V> {
    /// Nothing is created before the first run. With `keep`, each run is ended by [`RunWriter::end_kept`].
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
            layout: Layout::new(block_bytes),
            staging: Buffer::zeroed(job.budget(), block_bytes, "a run's block")?,
            staged: 0,
            current: None,
        })
    }

    /// Begins a run.
    ///
    /// # Errors
    /// [`inshore_store::Error::Io`] where the file cannot be created; no memory for its buffers.
    pub fn begin(&mut self, level: u32) -> Result<()> {
        let file = match &mut self.current {
            Some(file) => file,
            None => self.current.insert(self.create()?),
        };
        file.runs.push((file.first_keys.keys.len() as u64, 0, 0, level));
        Ok(())
    }

    fn create(&self) -> Result<OpenFile<K>> {
        let (block, write) = (self.layout.block_bytes, self.write_bytes);
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
    /// Those of [`FileWriter::write`].
    pub fn append(&mut self, mut keys: &[K], mut values: &[V]) -> Result<()> {
        while !keys.is_empty() {
            let part = keys.len().min(self.layout.block_records - self.staged);
            let range = self.staged..self.staged + part;
            typed_mut::<K>(&mut self.staging, range.end)[range.clone()].copy_from_slice(&keys[..part]);
            let values_bytes = &mut self.staging[self.layout.values_offset..];
            typed_mut::<V>(values_bytes, range.end)[range].copy_from_slice(&values[..part]);
            self.staged += part;
            (keys, values) = (&keys[part..], &values[part..]);
            if self.staged == self.layout.block_records {
                self.write_block()?;
            }
        }
        Ok(())
    }

    fn write_block(&mut self) -> Result<()> {
        let file = self.current.as_mut().expect("a run was begun");
        file.first_keys.push(self.layout.keys(&self.staging, 1)[0])?;
        file.writer.write(&self.staging)?;
        let (_, blocks, records, _) = file.runs.last_mut().expect("a run was begun");
        *blocks += 1;
        *records += self.staged as u64;
        self.staging.fill(0);
        self.staged = 0;
        Ok(())
    }

    /// Ends the run; gives the file's runs if it has enough of them now.
    pub fn end(&mut self) -> Result<Vec<Run<K>>> {
        if self.staged > 0 {
            self.write_block()?;
        }
        match &self.current {
            Some(file) if file.runs.len() == RUNS_PER_FILE => self.finish(),
            _ => Ok(Vec::new()),
        }
    }

    /// Ends the run, and keeps it with a `state` that is made of its blocks and records; `None`: it is not kept.
    ///
    /// # Errors
    /// Those of [`FileWriter::write`] and [`Keep::commit`].
    pub fn end_kept(&mut self, state: impl FnOnce(u64, u64) -> Option<Vec<u8>>) -> Result<Vec<Run<K>>> {
        if self.staged > 0 {
            self.write_block()?;
        }
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

    /// Ends the file and gives its runs.
    ///
    /// # Errors
    /// [`inshore_store::Error::Io`] of a write that was still on its way.
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

/// Bytes on flash of a run of so many records.
pub(crate) fn run_bytes<K: Key, V: Value>(records: u64, block_bytes: usize) -> u64 {
    records.div_ceil(Layout::<K, V>::new(block_bytes).block_records as u64) * block_bytes as u64
}

/// Streams the records of a run in a range of keys, a block at a time, through two buffers: one is used while the other is being filled.
#[derive(Debug)]
pub(crate) struct RunReader<K, V> {
    job: Job,
    run: Run<K>,
    range: KeyRange<K>,
    layout: Layout<K, V>,
    /// Bytes of the file that were not yet asked for.
    unread: Range<u64>,
    ahead: Option<PendingRead>,
    current: Buffer,
    /// The current block in `current`, and what is left behind it.
    left: Range<usize>,
    position: usize,
    block_len: usize,
    /// Records in blocks after the current one that may be in the range.
    records_left: u64,
}

impl<K: Key, V: Value> RunReader<K, V> {
    /// Starts to read. Both buffers are of one size, a multiple of the run's block.
    pub fn new(job: &Job, run: Run<K>, range: KeyRange<K>, buffers: [Buffer; 2]) -> Result<Self> {
        let layout = Layout::<K, V>::new(run.file.block_bytes());
        let blocks = run.part(&range);
        let place = |block: usize| (run.blocks.start + block as u64) * layout.block_bytes as u64;
        let records = |block: usize| run.records.min((block * layout.block_records) as u64);
        assert!(buffers[0].len() >= layout.block_bytes, "a buffer smaller than a block");
        let [current, spare] = buffers;
        let mut reader = RunReader {
            job: job.clone(),
            layout,
            unread: place(blocks.start)..place(blocks.end),
            ahead: None,
            current,
            left: 0..0,
            position: 0,
            block_len: 0,
            records_left: records(blocks.end) - records(blocks.start),
            run,
            range,
        };
        reader.read_ahead(spare)?;
        reader.next_block()?;
        let skipped = range.skipped(reader.keys());
        reader.advance(skipped)?;
        Ok(reader)
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

    /// Goes to the next block; at the end of the run it has no records.
    fn next_block(&mut self) -> Result<()> {
        self.left.start += self.layout.block_bytes;
        if self.left.start >= self.left.end {
            self.left = 0..0;
            if let Some(pending) = self.ahead.take() {
                let (buffer, wanted) = pending.wait()?;
                let used = std::mem::replace(&mut self.current, buffer);
                self.left = wanted;
                self.read_ahead(used)?;
            }
        }
        self.position = 0;
        self.block_len = self.records_left.min(self.layout.block_records as u64) as usize;
        self.records_left -= self.block_len as u64;
        self.block_len = self.range.kept(self.keys());
        Ok(())
    }

    /// The records of the current block that were not taken yet; none at the end of the run only.
    #[inline]
    pub fn keys(&self) -> &[K] {
        &self.layout.keys(&self.current[self.left.start..], self.block_len)[self.position..]
    }

    /// Their values.
    #[inline]
    pub fn values(&self) -> &[V] {
        &self.layout.values(&self.current[self.left.start..], self.block_len)[self.position..]
    }

    /// Takes `count` records of those that [`RunReader::keys`] shows.
    ///
    /// # Errors
    /// [`inshore_store::Error::Io`] and [`inshore_store::Error::Damaged`] of the next block.
    pub fn advance(&mut self, count: usize) -> Result<()> {
        self.position += count;
        debug_assert!(self.position <= self.block_len);
        if self.position == self.block_len && count > 0 {
            self.next_block()?;
        }
        Ok(())
    }
}
