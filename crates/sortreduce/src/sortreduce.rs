//! The interface of a sort-reduce, with which the caller creates sinks, ends the input, and gets the result.

use std::sync::{Arc, atomic::Ordering};

use inshore_store::Job;

use crate::{
    Config, Operation, Result, Sink, Sorted, Strategy, shared::SharedState, strategies::cost::Choice,
};

/// Sorts records by key, and combines the values of equal keys, within a memory budget.
///
/// Each thread that produces records pushes them into its own [`Sink`]. [`SortReduce::finish`] returns the records
/// sorted, with each key once.
pub struct SortReduce<O: Operation>(Arc<SharedState<O>>);

impl<O: Operation> SortReduce<O> {
    /// Starts a sort-reduce. With the dense strategy, this call allocates the array but does not touch its memory.
    /// The memory of other strategies is allocated when sinks are created.
    ///
    /// # Errors
    /// Returns [`inshore_store::Error::BudgetTooSmall`] if `config.memory_bytes` is below
    /// [`crate::smallest_memory_bytes`], or too small for a forced strategy. Returns
    /// [`inshore_store::Error::OverBudget`] if the job's budget has less free memory. Returns
    /// [`crate::Error::NoKeyRange`] if a forced strategy needs a key range.
    pub fn new(job: &Job, operation: O, config: &Config) -> Result<Self> {
        Ok(SortReduce(Arc::new(SharedState::new(job, operation, config)?)))
    }

    /// Returns the strategy that is used.
    pub fn strategy(&self) -> Strategy {
        self.0.strategy()
    }

    /// Returns the number of records that an interrupted sort-reduce saved in runs. These records are skipped when
    /// they are pushed again.
    pub fn records_kept(&self) -> u64 {
        self.0.records_kept
    }

    /// Returns the reason for the choice of the strategy: the estimated cost of each strategy.
    pub fn choice(&self) -> &Choice {
        &self.0.choice
    }

    /// Creates a sink for one thread. At most [`Config::sinks`] sinks may exist at the same time, but any number of
    /// sinks one after the other.
    ///
    /// # Errors
    /// Returns [`inshore_store::Error::OverBudget`] if the job's budget has too little memory for the sink.
    ///
    /// # Panics
    /// The function panics if more sinks exist at the same time than were configured.
    pub fn sink(&self) -> Result<Sink<O>> {
        Sink::open(self.0.clone())
    }

    /// Ends the input and returns the result. If there are many runs, this call merges runs until one merge remains.
    /// The merges use all of the memory, and as many threads as [`Config::sinks`]. The last merge runs while the
    /// result is read, as one stream or in parts ([`Sorted::split`]).
    ///
    /// # Errors
    /// - Returns an error if a run cannot be written or read.
    /// - Returns [`inshore_store::Error::Cancelled`] if the job was cancelled.
    ///
    /// # Panics
    /// The function panics if a sink was not finished, since the records of that sink would be missing.
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
