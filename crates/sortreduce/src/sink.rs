//! Sinks: the inputs of a sort-reduce, one for each pushing thread.

use std::sync::{Arc, atomic::Ordering};

use crate::{
    Config, Error, Operation, Result,
    forming::form::Formation,
    shared::{Method, SharedState},
    strategies::dense::Bins,
    strategies::front::Front,
    strategies::partition::Partitioner,
};

/// The number of records that a sink buffers before it scatters them. Most calls of [`Sink::push`] therefore take
/// only two stores.
const STAGED_RECORDS: usize = 256;
/// The minimum number of keys that [`Sink::push_all`] scatters directly. Fewer keys are buffered.
const SCATTERED_KEYS: usize = 64;

/// Takes the records that one thread pushes.
pub struct Sink<O: Operation> {
    shared: Arc<SharedState<O>>,
    /// The hash table that combines records first, if the strategy is hash-first.
    front: Option<Box<Front<O>>>,
    target: Target<O>,
    /// The number of records of the current unit that are in saved runs and not yet skipped.
    passed_over: u64,
    staged: usize,
    keys: Box<[O::Key; STAGED_RECORDS]>,
    values: Box<[O::Value]>,
}

/// The destination of the records, which depends on the strategy.
enum Target<O: Operation> {
    Dense(Bins<O::Key, O::Value>),
    Merge(Box<Formation<O>>),
    Partition(Box<Partitioner<O>>),
}

impl<O: Operation> Target<O> {
    /// Takes over the target of a finished sink, or creates a new target.
    fn new(shared: &SharedState<O>) -> Result<Self> {
        match &shared.method {
            Method::Dense { plan, .. } => Ok(Target::Dense(Bins::new(plan, shared.job.budget())?)),
            Method::Partition { plan, written, idle } => {
                let idle = idle.lock().expect("no panic under this lock").pop();
                let fresh = || {
                    let operation = shared.operation.clone();
                    Partitioner::new(&shared.job, shared.config.name, operation, plan, written.clone())
                };
                Ok(Target::Partition(Box::new(idle.map_or_else(fresh, Ok)?)))
            }
            Method::Merge { plan, state, .. } => {
                let idle = state.lock().expect("no panic under this lock").idle.pop();
                let fresh = || {
                    let Config { name, key_range, ref keep, .. } = shared.config;
                    let operation = shared.operation.clone();
                    Formation::new(&shared.job, name, operation, plan, key_range, keep.clone())
                };
                Ok(Target::Merge(Box::new(idle.map_or_else(fresh, Ok)?)))
            }
        }
    }

    #[inline(always)]
    fn push(
        &mut self,
        keys: &[O::Key],
        value_at: impl Fn(usize) -> O::Value,
        shared: &SharedState<O>,
    ) -> Result<()> {
        match self {
            Target::Dense(bins) => bins.push(keys, value_at, shared.dense()),
            Target::Merge(formation) => formation.push(keys, value_at),
            Target::Partition(partitioner) => partitioner.push(keys, value_at),
        }
    }
}

impl<O: Operation> Target<O> {
    /// Pushes records to the target. If the strategy is hash-first, the front (a hash table) first combines some of
    /// the records.
    #[inline(always)]
    fn push_behind(
        &mut self,
        front: &mut Option<Box<Front<O>>>,
        keys: &[O::Key],
        value_at: impl Fn(usize) -> O::Value,
        shared: &SharedState<O>,
    ) -> Result<()> {
        match front {
            None => self.push(keys, value_at, shared),
            Some(front) => front.push(keys, value_at, |keys, values| self.push(keys, |i| values[i], shared)),
        }
    }
}

impl<O: Operation> Sink<O> {
    /// Opens a sink. At most [`crate::Config::sinks`] sinks may exist at the same time.
    pub(crate) fn open(shared: Arc<SharedState<O>>) -> Result<Self> {
        let open = shared.sinks_open.fetch_add(1, Ordering::Relaxed);
        assert!(open < shared.config.sinks.max(1), "more than {} sinks", shared.config.sinks);
        let front = match shared.method {
            Method::Merge { slots: Some(slots), .. } => {
                Front::new(shared.operation.clone(), slots, shared.job.budget()).map(Some)
            }
            _ => Ok(None),
        };
        let both = front.map_err(Error::from).and_then(|front| Ok((front, Target::new(&shared)?)));
        let (front, target) = both.inspect_err(|_| shared.sink_finished())?;
        Ok(Sink {
            shared,
            front: front.map(Box::new),
            target,
            passed_over: 0,
            staged: 0,
            keys: Box::new([O::Key::default(); STAGED_RECORDS]),
            values: vec![O::Value::default(); STAGED_RECORDS].into_boxed_slice(),
        })
    }

    /// Starts a unit of the input. All records that are pushed until the next call belong to this unit. One sink must
    /// push the whole unit, in the same order at every attempt. Units are needed only with [`crate::Config::keep`].
    /// Returns `false` if all records of the unit are in saved runs, so that the caller need not push them.
    ///
    /// # Errors
    /// Returns the errors of [`Sink::push`].
    pub fn begin_unit(&mut self, unit: u64) -> Result<bool> {
        self.flush()?;
        let (records, is_whole) = self.shared.covered(unit);
        if let Target::Merge(formation) = &mut self.target {
            formation.end_unit();
            if !is_whole {
                formation.begin_unit(unit, records);
            }
        }
        self.passed_over = records;
        Ok(!is_whole)
    }

    /// Pushes a record. Most calls only buffer the record. Some calls also apply or write bins, or write a run.
    ///
    /// # Errors
    /// - Returns an error if a run cannot be written.
    /// - Returns [`crate::Error::KeyOutOfRange`] if a key is not below the upper bound of keys.
    /// - Returns [`inshore_store::Error::Cancelled`] if the job was cancelled.
    ///
    /// After an error, the sink can only be dropped.
    #[inline]
    pub fn push(&mut self, key: O::Key, value: O::Value) -> Result<()> {
        self.keys[self.staged] = key;
        self.values[self.staged] = value;
        self.staged += 1;
        if self.staged == STAGED_RECORDS { self.flush() } else { Ok(()) }
    }

    /// Pushes one value for many keys, such as a vertex's message to all its neighbours.
    ///
    /// # Errors
    /// Returns the errors of [`Sink::push`].
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
        self.push_to_target(keys, |_| value)
    }

    /// Pushes many records, which is faster than one call per record. `value_at` returns the value for the key with
    /// the given index.
    ///
    /// # Errors
    /// Returns the errors of [`Sink::push`].
    #[inline(never)]
    pub fn push_many(&mut self, keys: &[O::Key], value_at: impl Fn(usize) -> O::Value) -> Result<()> {
        self.flush()?;
        self.push_to_target(keys, value_at)
    }

    #[inline(always)]
    fn push_to_target(&mut self, keys: &[O::Key], value_at: impl Fn(usize) -> O::Value) -> Result<()> {
        let first = self.pass_over(keys.len());
        let Sink { front, target, shared, .. } = self;
        target.push_behind(front, &keys[first..], |i| value_at(first + i), shared)
    }

    #[inline(never)]
    fn flush(&mut self) -> Result<()> {
        let staged = self.pass_over(self.staged)..self.staged;
        let Sink { front, target, shared, .. } = self;
        let (keys, values) = (&self.keys[staged.clone()], &self.values[staged]);
        self.staged = 0;
        target.push_behind(front, keys, |i| values[i], shared)
    }

    /// Skips those of the next `records` records that are in saved runs, and returns the number of skipped records.
    fn pass_over(&mut self, records: usize) -> usize {
        let passed_over = self.passed_over.min(records as u64);
        self.passed_over -= passed_over;
        passed_over as usize
    }

    /// Ends the input of this thread. This call sorts the records that are still in memory, so that all threads sort
    /// in parallel.
    ///
    /// # Errors
    /// Returns the errors of [`Sink::push`].
    pub fn finish(mut self) -> Result<()> {
        self.flush()?;
        let Sink { shared, front, mut target, .. } = self;
        let mut combined = 0;
        if let Some(mut front) = front {
            front.empty(&mut |keys, values| target.push(keys, |i| values[i], &shared))?;
            combined = front.combined;
        }
        shared.job.check_cancelled()?;
        match target {
            Target::Dense(bins) => bins.finish(shared.dense())?,
            Target::Merge(mut formation) => {
                formation.end_unit();
                formation.sort()?;
                formation.done.records_pushed += combined;
                shared.take_back(*formation);
            }
            Target::Partition(partitioner) => shared.take_partitioner(*partitioner),
        }
        shared.sink_finished();
        Ok(())
    }
}

impl<O: Operation> std::fmt::Debug for Sink<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sink").field("config", &self.shared.config).finish_non_exhaustive()
    }
}
