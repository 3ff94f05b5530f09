//! A sort-reduce as its caller sees it: sinks are made, the input ends, and the result is handed over.

use std::sync::{Arc, atomic::Ordering};

use inshore_store::Job;

use crate::{Config, Operation, Result, Sink, Sorted, Strategy, shared::Shared, strategies::cost::Choice};

/// Sorts records by key and combines the values of equal keys, in memory of a given size.
///
/// One [`Sink`] for each producing thread takes the records in; [`SortReduce::finish`] gives them back sorted
/// and unique.
pub struct SortReduce<O: Operation>(Arc<Shared<O>>);

impl<O: Operation> SortReduce<O> {
    /// Begins a sort-reduce. The dense array is mapped now (not touched); chunks belong to the sinks.
    ///
    /// # Errors
    /// [`inshore_store::Error::BudgetTooSmall`] where `config.memory_bytes` is below
    /// [`crate::smallest_memory_bytes`], or below what a forced dense strategy needs;
    /// [`inshore_store::Error::OverBudget`] where the job's budget has less; [`crate::Error::NoKeyRange`].
    pub fn new(job: &Job, operation: O, config: &Config) -> Result<Self> {
        Ok(SortReduce(Arc::new(Shared::new(job, operation, config)?)))
    }

    /// How equal keys are brought together.
    pub fn strategy(&self) -> Strategy {
        self.0.strategy()
    }

    /// How many records an interrupted sort-reduce before this one kept in runs: they are passed over when they are pushed.
    pub fn records_kept(&self) -> u64 {
        self.0.records_kept
    }

    /// Why that strategy: what each one was estimated to cost.
    pub fn choice(&self) -> &Choice {
        &self.0.choice
    }

    /// A sink for one thread. Sinks may come one after the other; at most [`Config::sinks`] at the same time.
    ///
    /// # Errors
    /// [`inshore_store::Error::OverBudget`] where the job's budget has no memory for it.
    ///
    /// # Panics
    /// With more sinks at the same time than were configured.
    pub fn sink(&self) -> Result<Sink<O>> {
        Sink::open(self.0.clone())
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

impl<O: Operation> std::fmt::Debug for SortReduce<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SortReduce").field("config", &self.0.config).finish_non_exhaustive()
    }
}
