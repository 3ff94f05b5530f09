//! Forms runs from the records that one thread pushes. This is the first phase of the merge strategy.

use inshore_store::{Job, Keep};

use crate::{
    Error, Key, Operation, Result,
    forming::chunk::Chunk,
    forming::scatter::BucketMap,
    forming::sort::{Sorter, WordOf},
    keys::record::key_max,
    keys::word::Word,
    plan::MergePlan,
    runs::keep::{self, Units},
    runs::{Run, RunWriter},
};

/// The number of keys in the sample from which the key distribution is estimated if no key range is configured.
const SAMPLE_KEYS: usize = 256;

/// The state of run formation: a chunk, its sorter, and the writer of its runs. A formation outlives the sink that
/// uses it, so that successive sinks can share one formation.
pub(crate) struct Formation<O: Operation> {
    job: Job,
    name: &'static str,
    plan: MergePlan,
    key_range: Option<u64>,
    chunk: Chunk<O::Key, O::Value>,
    sorter: Sorter<O>,
    writer: RunWriter<O::Key, O::Value>,
    state: ChunkState,
    /// True if the buckets suit the distribution of the pushed keys.
    map_suits: bool,
    /// The units of the input whose records are in the chunk, if runs are saved for a resumed sort-reduce.
    units: Option<Units>,
    /// The results that were not yet taken.
    pub done: FormationResult<O::Key>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkState {
    /// The chunk has no records, so its buckets may change.
    Empty,
    Filling,
    Sorted,
}

/// The results of run formation.
#[derive(Debug)]
pub(crate) struct FormationResult<K> {
    pub records_pushed: u64,
    pub records_in_runs: u64,
    pub runs: Vec<Run<K>>,
    pub runs_count: u64,
}

impl<K> Default for FormationResult<K> {
    fn default() -> Self {
        FormationResult { records_pushed: 0, records_in_runs: 0, runs: Vec::new(), runs_count: 0 }
    }
}

impl<K> FormationResult<K> {
    /// Adds the results of another formation.
    pub fn add(&mut self, other: FormationResult<K>) {
        self.records_pushed += other.records_pushed;
        self.records_in_runs += other.records_in_runs;
        self.runs_count += other.runs_count;
        self.runs.extend(other.runs);
    }
}

impl<O: Operation> Formation<O> {
    pub fn new(
        job: &Job,
        name: &'static str,
        operation: O,
        plan: &MergePlan,
        range: Option<u64>,
        keep: Option<Keep>,
    ) -> Result<Self> {
        let key_max = key_max::<O::Key>();
        let max = range.map_or(key_max, |range| key_max.min(range.saturating_sub(1).into()));
        let map = BucketMap::over(0.into(), max, plan.chunk.bucket_bits);
        Ok(Formation {
            job: job.clone(),
            name,
            plan: *plan,
            key_range: range,
            chunk: Chunk::new(plan.chunk, map, job.budget())?,
            sorter: Sorter::new(operation, plan.slab_records, job.budget())?,
            units: keep.is_some().then(Units::default),
            writer: RunWriter::new(job, name, keep, plan.block_bytes, plan.write_bytes)?,
            state: ChunkState::Empty,
            map_suits: range.is_some(),
            done: FormationResult::default(),
        })
    }

    /// Adds records to the chunk. Sorts a full chunk, and writes a run if the sort frees too few blocks.
    ///
    /// # Errors
    /// - Returns an error if a run cannot be written.
    /// - Returns [`inshore_store::Error::Cancelled`] if the job was cancelled.
    #[inline]
    pub fn push(&mut self, keys: &[O::Key], value_at: impl Fn(usize) -> O::Value) -> Result<()> {
        let mut done = 0;
        while done < keys.len() {
            if self.state != ChunkState::Filling {
                self.start_filling(keys)?;
            }
            let (taken, full) = self.chunk.push(&keys[done..], |i| value_at(done + i));
            done += taken;
            if let Some(units) = &mut self.units {
                units.add(taken as u64);
            }
            if full {
                self.make_room()?;
            }
        }
        self.done.records_pushed += keys.len() as u64;
        Ok(())
    }

    fn start_filling(&mut self, keys: &[O::Key]) -> Result<()> {
        match self.state {
            ChunkState::Empty if !self.map_suits => {
                self.chunk.clear(self.sampled_map(keys));
                self.map_suits = true;
            }
            ChunkState::Sorted if self.chunk.is_roomy() => self.chunk.open(),
            ChunkState::Sorted => self.write_run()?,
            _ => {}
        }
        self.state = ChunkState::Filling;
        Ok(())
    }

    fn make_room(&mut self) -> Result<()> {
        self.chunk.sort(&mut self.sorter, &self.job)?;
        if self.chunk.is_roomy() {
            self.chunk.open();
            return Ok(());
        }
        self.write_run()
    }

    /// Starts a unit. The records that are pushed after this call belong to `unit`, and their numbers in the unit
    /// start at `from`.
    pub fn begin_unit(&mut self, unit: u64, from: u64) {
        if let Some(units) = &mut self.units {
            units.begin(unit, from);
        }
    }

    /// Ends the current unit, which has no more records.
    pub fn end_unit(&mut self) {
        if let Some(units) = &mut self.units {
            units.end();
        }
    }

    /// Sorts the records in the chunk, and combines equal keys.
    ///
    /// # Errors
    /// Returns [`inshore_store::Error::Cancelled`] if the job was cancelled.
    pub fn sort(&mut self) -> Result<()> {
        if self.state == ChunkState::Filling {
            self.chunk.sort(&mut self.sorter, &self.job)?;
            self.state = ChunkState::Sorted;
        }
        Ok(())
    }

    /// Writes a sorted chunk as a run.
    fn write_run(&mut self) -> Result<()> {
        self.job.check_cancelled()?;
        let records = self.chunk.sorted_records();
        let _span = tracing::debug_span!("run", records).entered();
        self.writer.begin(0)?;
        for (keys, values) in self.chunk.sorted_blocks() {
            self.writer.append(keys, values)?;
            if self.writer.bytes > self.plan.spilled_bytes_max {
                return Err(self.too_many_runs());
            }
        }
        self.done.records_in_runs += records;
        self.done.runs_count += 1;
        let ended = match &mut self.units {
            None => self.writer.end()?,
            Some(units) => {
                let spans = units.take();
                let is_sound = self.sorter.operation().is_sound();
                let state = |blocks, records| is_sound.then(|| keep::state(blocks, records, &spans));
                self.writer.end_kept(state)?
            }
        };
        self.done.runs.extend(ended);
        let map = if self.key_range.is_some() { self.chunk.map() } else { self.learned_map() };
        self.chunk.clear(map);
        self.state = ChunkState::Empty;
        Ok(())
    }

    /// Creates the error for too many runs. The number of blocks is limited, since checksums and first keys of all
    /// blocks are in memory.
    fn too_many_runs(&self) -> Error {
        let (spilled, memory) = (self.writer.bytes, self.plan.memory_bytes as u64);
        Error::TooManyRuns { name: self.name, spilled, memory, enough: None }
    }

    /// Returns the number of records in a sorted chunk, if no run was written.
    pub fn records_in_chunk(&self) -> u64 {
        self.chunk.sorted_records()
    }

    /// Writes the records of a sorted chunk as the last run, and releases the memory. Returns the results that were
    /// not yet taken.
    ///
    /// # Errors
    /// Returns an error if a run cannot be written.
    pub fn finish(mut self) -> Result<FormationResult<O::Key>> {
        if self.state == ChunkState::Sorted {
            self.write_run()?;
        }
        self.done.runs.extend(self.writer.finish()?);
        Ok(self.done)
    }

    /// Returns the sorted chunk. All records must be in memory.
    pub fn into_chunk(self) -> Chunk<O::Key, O::Value> {
        self.chunk
    }

    /// Chooses buckets from a sample of the first keys. A bad choice only makes the sort slower.
    fn sampled_map(&self, keys: &[O::Key]) -> BucketMap<WordOf<O>> {
        let mut sample: Vec<_> = keys.iter().take(SAMPLE_KEYS).map(|key| key.to_word()).collect();
        sample.sort_unstable();
        let eighth = sample.len() / 8;
        self.spread(sample[eighth], sample[sample.len() - 1 - eighth], 2)
    }

    /// Chooses buckets from the keys in the sorted chunk. The first and the last 64th of the blocks are ignored as
    /// outliers.
    fn learned_map(&self) -> BucketMap<WordOf<O>> {
        let blocks = self.chunk.sorted_block_numbers();
        let first_key = |number: usize| self.chunk.numbered_block(blocks[number]).0[0].to_word();
        let outer = blocks.len() / 64;
        self.spread(first_key(outer), first_key(blocks.len() - 1 - outer), 4)
    }

    /// Returns buckets for keys that are mostly in `low..=high`. Both ends are extended by the width of this range
    /// divided by `2^margin_bits`.
    fn spread(&self, low: WordOf<O>, high: WordOf<O>, margin_bits: u32) -> BucketMap<WordOf<O>> {
        let margin = (high - low) >> margin_bits;
        let high = high.saturating_add(margin).min(key_max::<O::Key>());
        BucketMap::over(low.saturating_sub(margin), high, self.chunk.bucket_bits())
    }
}
