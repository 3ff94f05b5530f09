//! The interface of a sort-reduce: the caller creates sinks, ends the input, and takes the result.

use std::sync::{Arc, atomic::Ordering};

use inshore_store::Job;

use crate::{
    Config, Operation, Result, Sink, Sorted, Strategy, shared::SharedState, strategies::cost::Choice,
};

/// Sorts records by key and combines the values of equal keys, in memory of a given size.
///
/// Each producing thread pushes its records into its own [`Sink`]; [`SortReduce::finish`] returns the records sorted
/// and unique.
pub struct SortReduce<O: Operation>(Arc<SharedState<O>>);

impl<O: Operation> SortReduce<O> {
    /// Begins a sort-reduce. The dense array is allocated here but not touched; chunks belong to the sinks.
    ///
    /// # Errors
    /// [`inshore_store::Error::BudgetTooSmall`] if `config.memory_bytes` is below [`crate::smallest_memory_bytes`], or
    /// below what a forced strategy needs; [`inshore_store::Error::OverBudget`] if the job's budget has less memory
    /// than that; [`crate::Error::NoKeyRange`].
    pub fn new(job: &Job, operation: O, config: &Config) -> Result<Self> {
        Ok(SortReduce(Arc::new(SharedState::new(job, operation, config)?)))
    }

    /// Returns the strategy.
    pub fn strategy(&self) -> Strategy {
        self.0.strategy()
    }

    /// Returns the number of records that an interrupted sort-reduce kept in runs. Kept records are skipped when they
    /// are pushed again.
    pub fn records_kept(&self) -> u64 {
        self.0.records_kept
    }

    /// Returns the reason for the strategy: the estimated cost of each strategy.
    pub fn choice(&self) -> &Choice {
        &self.0.choice
    }

    /// Creates a sink for one thread. Any number of sinks may follow each other; at most [`Config::sinks`] may exist at
    /// the same time.
    ///
    /// # Errors
    /// [`inshore_store::Error::OverBudget`] if the job's budget has no memory for the sink.
    ///
    /// # Panics
    /// If more sinks exist at the same time than were configured.
    pub fn sink(&self) -> Result<Sink<O>> {
        Sink::open(self.0.clone())
    }

    /// Ends the input and returns the result. Runs are merged here, with all the memory and as many threads as there
    /// were sinks, until one merge is left. The last merge runs while the result is read, as one stream or in parts
    /// ([`Sorted::split`]).
    ///
    /// # Errors
    /// Errors of writing and reading runs; [`inshore_store::Error::Cancelled`].
    ///
    /// # Panics
    /// If a sink was not finished, since its records would be missing.
    pub fn finish(self) -> Result<Sorted<O>> {
        let open = self.0.sinks_open.load(Ordering::Acquire);
        assert!(open == 0, "{open} sinks were not finished");
        let mut shared = self.0;
        loop {
            match Arc::try_unwrap(shared) {
                Ok(shared) => return shared.finish(),
                // Another thread has finished its sink and is about to drop its reference.
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
