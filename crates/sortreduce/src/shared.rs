//! The state that a sort-reduce and its sinks share: the strategy, idle memory, and the transition from input to
//! result.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use inshore_store::Job;

use crate::{
    Config, Error, Operation, Result, Sorted, Stats, Strategy,
    forming::form::{Formation, FormationResult},
    keys::record::RecordLayout,
    part::{ChunksPart, Part, RunsPart},
    plan::{DensePlan, MergePlan},
    runs::keep::{self, UnitCoverage},
    runs::merge::SortedChunk,
    runs::passes::merge_runs,
    sorted::Level,
    strategies::bins::BinsPart,
    strategies::cost::Choice,
    strategies::dense::{Dense, DensePart},
    strategies::front,
    strategies::partition::{BinnedRecords, Partitioner},
    strategies::partplan::PartitionPlan,
};

/// The state that a sort-reduce and its sinks share.
pub(crate) struct SharedState<O: Operation> {
    pub job: Job,
    pub operation: O,
    pub config: Config,
    pub choice: Choice,
    pub sinks_open: AtomicUsize,
    /// The number of records of each input unit that are in saved runs.
    covered: UnitCoverage,
    pub records_kept: u64,
    pub method: Method<O>,
}

/// The chosen strategy, with the state that its sinks share.
pub(crate) enum Method<O: Operation> {
    Dense {
        dense: Dense<O>,
        plan: DensePlan,
    },
    Partition {
        plan: PartitionPlan,
        /// The number of blocks that all sinks have written.
        written: Arc<AtomicUsize>,
        idle: Mutex<Vec<Partitioner<O>>>,
    },
    /// The merge strategy, or hash-first. `slots` is the number of slots in the hash table of each sink with
    /// hash-first.
    Merge {
        plan: MergePlan,
        slots: Option<usize>,
        state: Mutex<FormationProgress<O>>,
    },
}

/// The progress of run formation with the merge strategy.
pub(crate) struct FormationProgress<O: Operation> {
    /// The formations that no sink uses. Their chunks are sorted.
    pub idle: Vec<Formation<O>>,
    formed: FormationResult<O::Key>,
}

fn layout<O: Operation>(operation: &O) -> RecordLayout {
    RecordLayout {
        key_bytes: size_of::<O::Key>(),
        value_bytes: size_of::<O::Value>(),
        value_align: align_of::<O::Value>(),
        short_bits: operation.short_bits(),
    }
}

impl<O: Operation> Method<O> {
    fn dense(job: &Job, operation: O, config: &Config) -> Result<Self> {
        let bytes = (size_of::<O::Key>(), size_of::<O::Value>());
        let plan = DensePlan::new(config, bytes.0, bytes.1);
        let fits = |config: &Config| DensePlan::new(config, bytes.0, bytes.1).is_some();
        let plan = plan.map_or_else(|| Err(does_not_fit(Strategy::Dense, "array", config, fits)), Ok)?;
        Ok(Method::Dense { dense: Dense::new(config.name, operation, plan, job.budget())?, plan })
    }

    fn partition(operation: &O, config: &Config) -> Result<Self> {
        let plan = |config: &Config| PartitionPlan::new(config, layout(operation));
        let fits = |config: &Config| plan(config).is_some();
        let plan =
            plan(config).map_or_else(|| Err(does_not_fit(Strategy::Partition, "bins", config, fits)), Ok)?;
        Ok(Method::Partition { plan, written: Arc::default(), idle: Mutex::default() })
    }

    fn merge(config: &Config, slots: Option<usize>) -> Result<Self> {
        let plan = MergePlan::new::<O::Key, O::Value>(config)?;
        let state = Mutex::new(FormationProgress { idle: Vec::new(), formed: FormationResult::default() });
        Ok(Method::Merge { plan, slots, state })
    }

    /// Opens the saved runs of an interrupted sort-reduce. Returns the number of records pushed into them, and the
    /// input units that they cover.
    fn find_kept(&mut self, job: &Job, config: &Config) -> Result<(u64, UnitCoverage)> {
        let (Some(keep), Method::Merge { plan, state, .. }) = (&config.keep, self) else {
            return Ok((0, UnitCoverage::default()));
        };
        let found = keep::find::<O::Key>(job, keep, plan.block_bytes)?;
        let formed = &mut state.get_mut().expect("no panic under this lock").formed;
        formed.records_pushed = found.pushed;
        formed.records_in_runs = found.runs.iter().map(|run| run.records).sum();
        formed.runs_count = found.runs.len() as u64;
        formed.runs = found.runs;
        Ok((found.pushed, found.covered))
    }

    /// Plans the hash-first strategy. The hash tables of the sinks take a part of the memory, and the rest is for
    /// merging.
    fn hash_first(operation: &O, config: &Config) -> Result<Self> {
        let fits = |bytes| front::plan(&Config { memory_bytes: bytes, ..config.clone() }, layout(operation));
        let Some((slots, fronts)) = fits(config.memory_bytes) else {
            let what = format!("sorting {} with {} sinks behind tables", config.name, config.sinks);
            let doubled =
                std::iter::successors(Some(config.memory_bytes.max(1)), |bytes| bytes.checked_mul(2));
            let smallest = doubled.clone().find(|&bytes| fits(bytes).is_some()).unwrap_or(u64::MAX);
            let given = config.memory_bytes;
            return Err(inshore_store::Error::BudgetTooSmall { what, given, smallest }.into());
        };
        Self::merge(&Config { memory_bytes: config.memory_bytes - fronts, ..config.clone() }, Some(slots))
    }
}

/// Creates the error for a forced strategy that has no key range or too little memory. In the second case, the error
/// contains a sufficient memory size.
fn does_not_fit(strategy: Strategy, what: &str, config: &Config, fits: impl Fn(&Config) -> bool) -> Error {
    let Some(key_range) = config.key_range else { return Error::NoKeyRange { name: config.name, strategy } };
    let fits = |&bytes: &u64| fits(&Config { memory_bytes: bytes, ..config.clone() });
    let doubled = std::iter::successors(Some(config.memory_bytes.max(1)), |bytes| bytes.checked_mul(2));
    inshore_store::Error::BudgetTooSmall {
        what: format!("the {strategy} {what} of {} for {key_range} keys", config.name),
        given: config.memory_bytes,
        smallest: doubled.clone().find(fits).unwrap_or(u64::MAX),
    }
    .into()
}

impl<O: Operation> SharedState<O> {
    /// Chooses the strategy, and opens the saved runs of an interrupted sort-reduce.
    pub fn new(job: &Job, operation: O, config: &Config) -> Result<Self> {
        let profile = job.store().drive_profile();
        let mut choice = Choice::new(config, layout(&operation), profile.as_ref());
        if config.keep.is_some() && choice.strategy != Strategy::Dense {
            choice.strategy = Strategy::Merge;
        }
        let mut method = match choice.strategy {
            Strategy::Dense => Method::dense(job, operation.clone(), config)?,
            Strategy::Partition => Method::partition(&operation, config)?,
            Strategy::Merge => Method::merge(config, None)?,
            Strategy::HashFirst => Method::hash_first(&operation, config)?,
        };
        let (records_kept, covered) = method.find_kept(job, config)?;
        Ok(SharedState {
            covered,
            records_kept,
            job: job.clone(),
            operation,
            config: config.clone(),
            choice,
            sinks_open: AtomicUsize::new(0),
            method,
        })
    }

    /// Returns the strategy that is used.
    pub fn strategy(&self) -> Strategy {
        match self.method {
            Method::Dense { .. } => Strategy::Dense,
            Method::Partition { .. } => Strategy::Partition,
            Method::Merge { slots: None, .. } => Strategy::Merge,
            Method::Merge { slots: Some(_), .. } => Strategy::HashFirst,
        }
    }

    /// Returns the number of a unit's records that are in saved runs, and whether these are all records of the unit.
    pub fn covered(&self, unit: u64) -> (u64, bool) {
        (self.covered.records(unit), self.covered.is_whole(unit))
    }

    pub fn dense(&self) -> &Dense<O> {
        match &self.method {
            Method::Dense { dense, .. } => dense,
            _ => unreachable!("a sink with bins belongs to a dense sort-reduce"),
        }
    }

    /// Records that one more sink has finished.
    pub fn sink_finished(&self) {
        self.sinks_open.fetch_sub(1, Ordering::Release);
    }

    /// Stores a finished sink's bins, for use by the next sink or at the end of the input.
    pub fn take_partitioner(&self, partitioner: Partitioner<O>) {
        let Method::Partition { idle, .. } = &self.method else {
            unreachable!("a sink with a partitioner belongs to a partitioning sort-reduce")
        };
        idle.lock().expect("no panic under this lock").push(partitioner);
    }

    /// Stores a finished sink's formation, for use by the next sink or at the end of the input.
    pub fn take_back(&self, mut formation: Formation<O>) {
        let Method::Merge { state, .. } = &self.method else {
            unreachable!("a sink with a chunk belongs to a merging sort-reduce")
        };
        let mut state = state.lock().expect("no panic under this lock");
        state.formed.add(std::mem::take(&mut formation.done));
        state.idle.push(formation);
    }

    /// Ends the input and returns the result.
    pub fn finish(self) -> Result<Sorted<O>> {
        let SharedState { job, operation, config, method, .. } = self;
        match method {
            Method::Dense { dense, .. } => {
                let stats = Stats { records_in: dense.pushed(), ..Stats::new(Strategy::Dense) };
                let level = Level::Pushed(stats.records_in);
                Ok(Sorted::new(job, stats, level, Part::Dense(DensePart::new(dense))))
            }
            Method::Partition { plan, idle, .. } => {
                finish_bins(job, operation, plan, idle.into_inner().expect("no panic under this lock"))
            }
            Method::Merge { plan, slots, state } => {
                let state = state.into_inner().expect("no panic under this lock");
                let strategy = if slots.is_some() { Strategy::HashFirst } else { Strategy::Merge };
                let mut stats = Stats::new(strategy);
                stats.fan_in = plan.fan_in::<O::Key, O::Value>();
                stats.records_in = state.formed.records_pushed;
                if state.formed.runs_count == 0 {
                    Ok(finish_in_memory(job, operation, &plan, state, stats))
                } else {
                    finish_on_flash(job, operation, &plan, &config, state, stats)
                }
            }
        }
    }
}

/// Returns a result that reads bins from flash and from memory.
fn finish_bins<O: Operation>(
    job: Job,
    operation: O,
    plan: PartitionPlan,
    idle: Vec<Partitioner<O>>,
) -> Result<Sorted<O>> {
    let mut stats = Stats::new(Strategy::Partition);
    stats.records_in = idle.iter().map(|partitioner| partitioner.records).sum();
    let sinks = idle.into_iter().map(Partitioner::finish).collect::<Result<Vec<_>>>()?;
    let blocks: usize = sinks.iter().map(BinnedRecords::blocks_len).sum();
    stats.bytes_spilled = (blocks * plan.block_bytes) as u64;
    stats.merge_passes = u32::from(blocks > 0);
    job.counters().add_level(0, stats.records_in, stats.records_in);
    Ok(Sorted::new(job, stats, Level::Merge(1), Part::Bins(BinsPart::new(operation, plan, sinks))))
}

/// Returns a result that merges the sinks' chunks in memory. No run may have been written.
fn finish_in_memory<O: Operation>(
    job: Job,
    operation: O,
    plan: &MergePlan,
    state: FormationProgress<O>,
    stats: Stats,
) -> Sorted<O> {
    let records = state.idle.iter().map(Formation::records_in_chunk).sum();
    job.counters().add_level(0, stats.records_in, records);
    let chunk = |formation: Formation<O>| Arc::new(SortedChunk::new(formation.into_chunk()));
    let chunks: Vec<_> = state.idle.into_iter().map(chunk).collect();
    let level = if chunks.len() > 1 { Level::Merge(1) } else { Level::None };
    Sorted::new(job, stats, level, Part::Chunks(ChunksPart::new(operation, chunks, plan.slab_records)))
}

fn finish_on_flash<O: Operation>(
    job: Job,
    operation: O,
    plan: &MergePlan,
    config: &Config,
    state: FormationProgress<O>,
    mut stats: Stats,
) -> Result<Sorted<O>> {
    let mut formed = state.formed;
    // The last chunks of the sinks are written in parallel.
    let last: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            state.idle.into_iter().map(|formation| scope.spawn(|| formation.finish())).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    for last in last {
        formed.add(last.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
    }
    job.counters().add_level(0, formed.records_pushed, formed.records_in_runs);
    stats.runs = formed.runs_count;
    stats.bytes_spilled = formed.runs.iter().map(|run| run.bytes()).sum();
    let merged = merge_runs(&job, config.name, &operation, plan, config.sinks.max(1), formed.runs)?;
    stats.bytes_spilled += merged.bytes_written;
    stats.merge_passes = merged.level + 1;
    let part = Part::Runs(RunsPart::new(operation, *plan, merged.runs, 1));
    Ok(Sorted::new(job, stats, Level::Merge(stats.merge_passes), part))
}
