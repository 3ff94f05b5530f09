//! Where one thread pushes records.

use std::sync::Arc;

use crate::{Operation, Result, dense::Bins, form::Formation, sortreduce::Shared};

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

/// Where the records go.
pub(crate) enum Target<O: Operation> {
    Dense(Bins<O::Key, O::Value>),
    Merge(Box<Formation<O>>),
}

impl<O: Operation> Sink<O> {
    pub(crate) fn new(shared: Arc<Shared<O>>, target: Target<O>) -> Self {
        Sink {
            shared,
            target,
            staged: 0,
            keys: Box::new([O::Key::default(); STAGED_RECORDS]),
            values: vec![O::Value::default(); STAGED_RECORDS].into_boxed_slice(),
        }
    }

    /// Takes a record. Mostly it is only put aside; now and then bins are applied or a run is written.
    ///
    /// # Errors
    /// Those of writing a run; [`crate::Error::KeyOutOfRange`]; [`inshore_store::Error::Cancelled`]. After an error the
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
                shared.take_back(*formation);
            }
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
