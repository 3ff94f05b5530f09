//! The files of a fragment, which arrive one after the other while the scan runs.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use inshore_tables::{Input, Result};

/// The files of a fragment, in no order. A scan asks for the next file when a thread has nothing else to read.
pub struct Feed {
    next: Mutex<Box<dyn Iterator<Item = Result<Input>> + Send>>,
    bytes: Option<u64>,
    leave: Arc<dyn Fn() + Send + Sync>,
}

impl Feed {
    /// Creates a feed of the files that `next` returns, with `bytes` bytes in total if known. The files have the
    /// columns of the fragment's table; CSV and JSON lines are told [their columns](Input::with_columns).
    pub fn new(next: impl Iterator<Item = Result<Input>> + Send + 'static, bytes: Option<u64>) -> Feed {
        Feed { next: Mutex::new(Box::new(next)), bytes, leave: Arc::new(|| {}) }
    }

    /// Creates a feed in which `leave` ends the wait for the next file, after a failure.
    #[must_use]
    pub fn left_by(mut self, leave: impl Fn() + Send + Sync + 'static) -> Feed {
        self.leave = Arc::new(leave);
        self
    }

    pub(crate) fn leave(&self) -> Arc<dyn Fn() + Send + Sync> {
        self.leave.clone()
    }

    pub(crate) fn next(&self) -> Option<Result<Input>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner).next()
    }

    pub(crate) fn bytes(&self) -> Option<u64> {
        self.bytes
    }
}

impl fmt::Debug for Feed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Feed").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}
