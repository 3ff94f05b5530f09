//! From sinks to the result: who holds what, and when memory changes hands.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use inshore_store::Job;

use crate::{
    Config, Error, Operation, Result, Sink, Sorted, Stats, Strategy, choose,
    dense::{Bins, Dense, DensePart},
    form::{Formation, Formed},
    merge::SortedChunk,
    part::{ChunksPart, Part, RunsPart},
    passes::merge_runs,
    plan::{DensePlan, MergePlan},
    run::run_bytes,
    sink::Target,
    sorted::Level,
};

/// Sorts records by key and combines the values of equal keys, in memory of a given size.
///
/// One [`Sink`] for each producing thread takes the records in; [`SortReduce::finish`] gives them back sorted
/// and unique.
pub struct SortReduce<O: Operation>(Arc<Shared<O>>);

/// What a sort-reduce and its sinks share.
pub(crate) struct Shared<O: Operation> {
    pub job: Job,
    operation: O,
    pub config: Config,
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
    formed: Formed<O::Key>,
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
        Ok(Sink::new(shared.clone(), target))
    }

    /// Ends the input and gives the result. Runs are merged here, with all the memory and as many threads as there were
    /// sinks, until one merge is left; that one streams while the result is read, whole or in parts
    /// ([`Sorted::split`]).
    ///
    /// # Errors
    /// Those of writing and reading runs; [`inshore_store::Error::Cancelled`].
    ///
    /// # Panics
    /// Where a sink was not finished: its records would be missing.
    pub fn finish(self) -> Result<Sorted<O>> {
        let open = self.0.sinks_open.load(Ordering::Acquire);
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
                let level = Level::Pushed(stats.records_in);
                Ok(Sorted::new(job, stats, level, Part::Dense(DensePart::new(dense))))
            }
            Method::Merge { plan, state } => {
                let state = state.into_inner().expect("no panic under this lock");
                if state.formed.runs_count == 0 {
                    Ok(finish_in_memory(job, operation, &plan, state))
                } else {
                    finish_on_flash(job, operation, &plan, &config, state)
                }
            }
        }
    }
}

/// No run was written: the sinks' chunks are merged where they lie.
fn finish_in_memory<O: Operation>(job: Job, operation: O, plan: &MergePlan, state: Forming<O>) -> Sorted<O> {
    let mut stats = Stats::new(Strategy::Merge);
    stats.fan_in = plan.fan_in::<O::Key, O::Value>();
    stats.records_in = state.formed.records_pushed;
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
    state: Forming<O>,
) -> Result<Sorted<O>> {
    let mut formed = state.formed;
    for formation in state.idle {
        formed.add(formation.finish()?);
    }
    job.counters().add_level(0, formed.records_pushed, formed.records_in_runs);
    let mut stats = Stats::new(Strategy::Merge);
    stats.fan_in = plan.fan_in::<O::Key, O::Value>();
    stats.records_in = formed.records_pushed;
    stats.runs = formed.runs_count;
    let bytes = |records| run_bytes::<O::Key, O::Value>(records, plan.block_bytes);
    stats.bytes_spilled = formed.runs.iter().map(|run| bytes(run.records)).sum();
    let merged = merge_runs(&job, config.name, &operation, plan, config.sinks.max(1), formed.runs)?;
    stats.bytes_spilled += merged.bytes_written;
    stats.merge_passes = merged.level + 1;
    let part = Part::Runs(RunsPart::new(operation, *plan, merged.runs, 1));
    Ok(Sorted::new(job, stats, Level::Merge(stats.merge_passes), part))
}

impl<O: Operation> Shared<O> {
    pub fn dense(&self) -> &Dense<O> {
        match &self.method {
            Method::Dense { dense, .. } => dense,
            Method::Merge { .. } => unreachable!("a sink with bins belongs to a dense sort-reduce"),
        }
    }

    /// Counts a sink as finished.
    pub fn sink_finished(&self) {
        self.sinks_open.fetch_sub(1, Ordering::Release);
    }

    /// Keeps a sink's formation for the next sink or the end.
    pub fn take_back(&self, mut formation: Formation<O>) {
        let Method::Merge { state, .. } = &self.method else {
            unreachable!("a sink with a chunk belongs to a merging sort-reduce")
        };
        let mut state = state.lock().expect("no panic under this lock");
        state.formed.add(std::mem::take(&mut formation.done));
        state.idle.push(formation);
    }
}

impl<O: Operation> std::fmt::Debug for SortReduce<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SortReduce").field("config", &self.0.config).finish_non_exhaustive()
    }
}
