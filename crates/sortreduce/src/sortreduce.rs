//! The three nouns that a caller sees: [`SortReduce`], [`Sink`] and [`Sorted`].

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use inshore_store::Job;
use serde::Serialize;

use crate::{
    Block, Config, Error, Operation, Result, Strategy, choose,
    config::{DensePlan, MergePlan},
    dense::{Bins, Dense, Scan},
    form::{Formation, Formed},
    merge::{ChunkReader, Merge, Source},
    passes::merge_runs,
    run::run_bytes,
};

/// Sorts records by key and combines the values of equal keys, in memory of a given size.
///
/// One [`Sink`] for each producing thread takes the records in; [`SortReduce::finish`] gives them back sorted
/// and unique.
pub struct SortReduce<O: Operation>(Arc<Shared<O>>);

struct Shared<O: Operation> {
    job: Job,
    operation: O,
    config: Config,
    sinks_open: AtomicUsize,
    method: Method<O>,
}

enum Method<O: Operation> {
    Dense { dense: Dense<O>, plan: DensePlan },
    Merge { plan: MergePlan, state: Mutex<Forming<O>> },
}

/// What the sinks of a merging sort-reduce have done so far.
struct Forming<O: Operation> {
    /// Formations that no sink uses now. Their chunks are sorted.
    idle: Vec<Formation<O>>,
    formed: Formed,
}

/// Counters of a sort-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// How equal keys were brought together.
    pub strategy: Strategy,
    /// Records pushed.
    pub records_in: u64,
    /// Distinct keys handed out so far: all of them after the end.
    pub records_out: u64,
    /// Runs written while records came in; 0 where all fitted in memory.
    pub runs: u64,
    /// How many runs can be merged at once; 0 for dense.
    pub fan_in: usize,
    /// Merges that a record goes through at most, the last, streaming one included; 0 without runs.
    pub merge_passes: u32,
    /// Bytes of runs written in all passes.
    pub bytes_spilled: u64,
}

impl<O: Operation> SortReduce<O> {
    /// Begins a sort-reduce. The dense array is mapped now (not touched); chunks belong to the sinks.
    ///
    /// # Errors
    /// [`inshore_store::Error::BudgetTooSmall`] where `config.memory_bytes` is below
    /// [`crate::smallest_memory_bytes`], or below what a forced dense strategy needs;
    /// [`inshore_store::Error::OverBudget`] where the job's budget has less; [`Error::NoKeyRange`].
    pub fn new(job: &Job, operation: O, config: &Config) -> Result<Self> {
        let method = match choose(config, size_of::<O::Value>()) {
            Strategy::Dense => {
                let plan = dense_plan::<O>(config)?;
                let dense = Dense::new(config.name, operation.clone(), plan, job.budget())?;
                Method::Dense { dense, plan }
            }
            Strategy::Merge => {
                let plan = MergePlan::new::<O::Key, O::Value>(config)?;
                let state = Mutex::new(Forming { idle: Vec::new(), formed: Formed::default() });
                Method::Merge { plan, state }
            }
        };
        Ok(SortReduce(Arc::new(Shared {
            job: job.clone(),
            operation,
            config: config.clone(),
            sinks_open: AtomicUsize::new(0),
            method,
        })))
    }

    /// How equal keys are brought together.
    pub fn strategy(&self) -> Strategy {
        match self.0.method {
            Method::Dense { .. } => Strategy::Dense,
            Method::Merge { .. } => Strategy::Merge,
        }
    }

    /// A sink for one thread. Sinks may come one after the other; at most [`Config::sinks`] at the same time.
    ///
    /// # Errors
    /// [`inshore_store::Error::OverBudget`] where the job's budget has no memory for it.
    ///
    /// # Panics
    /// With more sinks at the same time than were configured.
    pub fn sink(&self) -> Result<Sink<O>> {
        let shared = &self.0;
        let open = shared.sinks_open.fetch_add(1, Ordering::Relaxed);
        assert!(open < shared.config.sinks.max(1), "more than {} sinks", shared.config.sinks);
        let target = shared.target().inspect_err(|_| {
            shared.sinks_open.fetch_sub(1, Ordering::Relaxed);
        })?;
        Ok(Sink {
            shared: shared.clone(),
            target,
            staged: 0,
            keys: Box::new([O::Key::default(); STAGED_RECORDS]),
            values: vec![O::Value::default(); STAGED_RECORDS].into_boxed_slice(),
        })
    }

    /// Ends the input and gives the result. Runs are merged here, with all the memory, until one merge is left;
    /// that one streams while the result is read.
    ///
    /// # Errors
    /// Those of writing and reading runs; [`inshore_store::Error::Cancelled`].
    ///
    /// # Panics
    /// Where a sink was not finished: its records would be missing.
    pub fn finish(self) -> Result<Sorted<O>> {
        let open = self.0.sinks_open.load(Ordering::Relaxed);
        assert!(open == 0, "{open} sinks were not finished");
        let mut shared = self.0;
        loop {
            match Arc::try_unwrap(shared) {
                Ok(shared) => return shared.finish(),
                // A sink counted itself finished and is about to let go in another thread.
                Err(again) => shared = again,
            }
            std::thread::yield_now();
        }
    }
}

fn dense_plan<O: Operation>(config: &Config) -> Result<DensePlan> {
    let (key_bytes, value_bytes) = (size_of::<O::Key>(), size_of::<O::Value>());
    let Some(key_range) = config.key_range else { return Err(Error::NoKeyRange { name: config.name }) };
    if let Some(plan) = DensePlan::new(config, key_bytes, value_bytes) {
        return Ok(plan);
    }
    let fits = |&bytes: &u64| {
        let config = Config { memory_bytes: bytes, ..config.clone() };
        DensePlan::new(&config, key_bytes, value_bytes).is_some()
    };
    let doubled = std::iter::successors(Some(config.memory_bytes.max(1)), |bytes| bytes.checked_mul(2));
    Err(inshore_store::Error::BudgetTooSmall {
        what: format!("the dense array of {} for {key_range} keys", config.name),
        given: config.memory_bytes,
        smallest: doubled.clone().find(fits).unwrap_or(u64::MAX),
    }
    .into())
}

impl<O: Operation> Shared<O> {
    /// What a new sink pushes to.
    fn target(&self) -> Result<Target<O>> {
        match &self.method {
            Method::Dense { plan, .. } => Ok(Target::Dense(Bins::new(plan, self.job.budget())?)),
            Method::Merge { plan, state } => {
                let idle = state.lock().expect("no panic under this lock").idle.pop();
                Ok(Target::Merge(Box::new(match idle {
                    Some(formation) => formation,
                    None => self.formation(plan)?,
                })))
            }
        }
    }

    fn formation(&self, plan: &MergePlan) -> Result<Formation<O>> {
        let Config { name, key_range, .. } = self.config;
        Formation::new(&self.job, name, self.operation.clone(), plan, key_range)
    }

    fn finish(self) -> Result<Sorted<O>> {
        let Shared { job, operation, config, method, .. } = self;
        match method {
            Method::Dense { dense, .. } => {
                let stats = Stats { records_in: dense.pushed(), ..Stats::new(Strategy::Dense) };
                let scan = Scan::new(dense, job.budget())?;
                Ok(Sorted { job, stats, level: Some(0), ended: false, source: From::Dense(scan) })
            }
            Method::Merge { plan, state } => {
                let state = state.into_inner().expect("no panic under this lock");
                if state.formed.runs_count == 0 {
                    finish_in_memory(job, operation, &plan, state)
                } else {
                    finish_on_flash(job, operation, &plan, &config, state)
                }
            }
        }
    }
}

/// No run was written: the sinks' chunks are merged where they lie. The slab fits in the memory of the sinks'
/// own sorters.
fn finish_in_memory<O: Operation>(
    job: Job,
    operation: O,
    plan: &MergePlan,
    state: Forming<O>,
) -> Result<Sorted<O>> {
    let mut stats = Stats::new(Strategy::Merge);
    stats.fan_in = plan.fan_in::<O::Key, O::Value>();
    stats.records_in = state.formed.records_pushed;
    let records = state.idle.iter().map(Formation::records_in_chunk).sum();
    job.counters().add_level(0, stats.records_in, records);
    let mut sorter = None;
    let mut sources = Vec::with_capacity(state.idle.len());
    for formation in state.idle {
        let (chunk, its_sorter) = formation.into_memory();
        sources.push(Source::Chunk(ChunkReader::new(chunk)));
        sorter.get_or_insert(its_sorter);
    }
    let sorter = match sorter {
        Some(sorter) => sorter,
        None => crate::sort::Sorter::new(operation, 1, job.budget())?,
    };
    let level = (sources.len() > 1).then_some(1);
    let merge = Merge::new(&job, sources, sorter);
    Ok(Sorted { job, stats, level, ended: false, source: From::Merge(merge) })
}

fn finish_on_flash<O: Operation>(
    job: Job,
    operation: O,
    plan: &MergePlan,
    config: &Config,
    state: Forming<O>,
) -> Result<Sorted<O>> {
    let mut formed = state.formed;
    for formation in state.idle {
        formed.add(formation.finish()?);
        check_sums::<O>(&formed, plan, config)?;
    }
    job.counters().add_level(0, formed.records_pushed, formed.records_in_runs);
    let mut stats = Stats::new(Strategy::Merge);
    stats.fan_in = plan.fan_in::<O::Key, O::Value>();
    stats.records_in = formed.records_pushed;
    stats.runs = formed.runs_count;
    let bytes = |records| run_bytes::<O::Key, O::Value>(records, plan.block_bytes);
    stats.bytes_spilled = formed.runs.iter().map(|run| bytes(run.records)).sum();
    let merging = merge_runs(&job, config.name, operation, plan, formed.runs)?;
    stats.bytes_spilled += merging.bytes_written;
    stats.merge_passes = merging.level;
    Ok(Sorted { job, stats, level: Some(merging.level), ended: false, source: From::Merge(merging.merge) })
}

/// Checksums of all runs may take half of what is set aside for them; merged runs have the other half.
fn check_sums<O: Operation>(formed: &Formed, plan: &MergePlan, config: &Config) -> Result<()> {
    let spilled = formed.records_in_runs * crate::record::record_bytes::<O::Key, O::Value>() as u64;
    let sums = spilled / plan.block_bytes as u64 * 4;
    if sums > plan.sums_bytes as u64 / 2 {
        return Err(Error::TooManyRuns { name: config.name, spilled, memory: config.memory_bytes });
    }
    Ok(())
}

impl Formed {
    fn add(&mut self, other: Formed) {
        self.records_pushed += other.records_pushed;
        self.records_in_runs += other.records_in_runs;
        self.runs_count += other.runs_count;
        self.runs.extend(other.runs);
    }
}

impl Stats {
    fn new(strategy: Strategy) -> Stats {
        Stats {
            strategy,
            records_in: 0,
            records_out: 0,
            runs: 0,
            fan_in: 0,
            merge_passes: 0,
            bytes_spilled: 0,
        }
    }
}

/// Records that a sink collects before it scatters them: what [`Sink::push`] costs is two stores.
const STAGED_RECORDS: usize = 256;
/// Fewer keys than this are staged by [`Sink::push_all`], more are scattered at once.
const SCATTERED_KEYS: usize = 64;

/// Where one thread puts its records.
pub struct Sink<O: Operation> {
    shared: Arc<Shared<O>>,
    target: Target<O>,
    staged: usize,
    keys: Box<[O::Key; STAGED_RECORDS]>,
    values: Box<[O::Value]>,
}

enum Target<O: Operation> {
    Dense(Bins<O::Key, O::Value>),
    Merge(Box<Formation<O>>),
}

impl<O: Operation> Sink<O> {
    /// Takes a record. Mostly it is only put aside; now and then bins are applied or a run is written.
    ///
    /// # Errors
    /// Those of writing a run; [`Error::KeyOutOfRange`]; [`inshore_store::Error::Cancelled`]. After an error the
    /// sink can only be dropped.
    #[inline]
    pub fn push(&mut self, key: O::Key, value: O::Value) -> Result<()> {
        self.keys[self.staged] = key;
        self.values[self.staged] = value;
        self.staged += 1;
        if self.staged == STAGED_RECORDS { self.flush() } else { Ok(()) }
    }

    /// Takes one value for many keys: a vertex's message to all its neighbours.
    ///
    /// # Errors
    /// Those of [`Sink::push`].
    #[inline]
    pub fn push_all(&mut self, keys: &[O::Key], value: O::Value) -> Result<()> {
        if keys.len() >= SCATTERED_KEYS {
            return self.scatter(keys, value);
        }
        let mut keys = keys;
        while !keys.is_empty() {
            let part = keys.len().min(STAGED_RECORDS - self.staged);
            let range = self.staged..self.staged + part;
            self.keys[range.clone()].copy_from_slice(&keys[..part]);
            self.values[range].fill(value);
            self.staged += part;
            keys = &keys[part..];
            if self.staged == STAGED_RECORDS {
                self.flush()?;
            }
        }
        Ok(())
    }

    #[inline(never)]
    fn scatter(&mut self, keys: &[O::Key], value: O::Value) -> Result<()> {
        match &mut self.target {
            Target::Dense(bins) => bins.push(keys, |_| value, self.shared.dense()),
            Target::Merge(formation) => formation.push(keys, |_| value),
        }
    }

    #[inline(never)]
    fn flush(&mut self) -> Result<()> {
        let (keys, values) = (&self.keys[..self.staged], &self.values[..self.staged]);
        self.staged = 0;
        match &mut self.target {
            Target::Dense(bins) => bins.push(keys, |i| values[i], self.shared.dense()),
            Target::Merge(formation) => formation.push(keys, |i| values[i]),
        }
    }

    /// Ends this thread's input. What is left in memory is sorted here, so that threads do it side by side.
    ///
    /// # Errors
    /// Those of [`Sink::push`].
    pub fn finish(mut self) -> Result<()> {
        self.flush()?;
        let Sink { shared, target, .. } = self;
        shared.job.check_cancelled()?;
        match target {
            Target::Dense(bins) => bins.finish(shared.dense())?,
            Target::Merge(mut formation) => {
                formation.sort()?;
                shared.take_back(*formation)?;
            }
        }
        shared.sinks_open.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

impl<O: Operation> Shared<O> {
    fn dense(&self) -> &Dense<O> {
        match &self.method {
            Method::Dense { dense, .. } => dense,
            Method::Merge { .. } => unreachable!("a sink with bins belongs to a dense sort-reduce"),
        }
    }

    /// Keeps a sink's formation for the next sink or the end.
    fn take_back(&self, mut formation: Formation<O>) -> Result<()> {
        let Method::Merge { plan, state } = &self.method else {
            unreachable!("a sink with a chunk belongs to a merging sort-reduce")
        };
        let mut state = state.lock().expect("no panic under this lock");
        state.formed.add(std::mem::take(&mut formation.done));
        check_sums::<O>(&state.formed, plan, &self.config)?;
        state.idle.push(formation);
        Ok(())
    }
}

/// The result: sorted, unique records, block by block. Dropping it removes the runs and hands the memory back.
pub struct Sorted<O: Operation> {
    job: Job,
    stats: Stats,
    /// The level of the streaming merge (0: a dense scan) in the job's counters; none where nothing is merged.
    level: Option<u32>,
    ended: bool,
    source: From<O>,
}

enum From<O: Operation> {
    Dense(Scan<O>),
    Merge(Merge<O>),
}

impl<O: Operation> Sorted<O> {
    /// The next records: one or more, up to some ten thousand; `None` at the end.
    ///
    /// # Errors
    /// [`inshore_store::Error::Io`], [`inshore_store::Error::Damaged`], [`inshore_store::Error::Cancelled`].
    pub fn next_block(&mut self) -> Result<Option<Block<'_, O::Key, O::Value>>> {
        self.job.check_cancelled()?;
        let (block, records_in) = match &mut self.source {
            From::Dense(scan) => (scan.next_block(), self.stats.records_in),
            From::Merge(merge) => {
                let records_in = merge.records_in;
                (merge.next_block()?, records_in)
            }
        };
        match block {
            Some(block) => self.stats.records_out += block.keys.len() as u64,
            None if !self.ended => {
                self.ended = true;
                if let Some(level) = self.level {
                    self.job.counters().add_level(level, records_in, self.stats.records_out);
                }
            }
            None => {}
        }
        Ok(block)
    }

    /// Counters.
    pub fn stats(&self) -> Stats {
        self.stats
    }
}

impl<O: Operation> std::fmt::Debug for SortReduce<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SortReduce").field("config", &self.0.config).finish_non_exhaustive()
    }
}

impl<O: Operation> std::fmt::Debug for Sink<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sink").field("config", &self.shared.config).finish_non_exhaustive()
    }
}

impl<O: Operation> std::fmt::Debug for Sorted<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sorted").field("stats", &self.stats).finish_non_exhaustive()
    }
}
