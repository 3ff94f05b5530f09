//! A source of the files of a fragment (the part of a query that remote machines run). The files arrive one after the
//! other while the scan runs.

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
};

use inshore_tables::{Input, Result};

/// A source of the files of a fragment, in any order. A scan requests the next file when a thread has nothing left to
/// read.
pub struct Feed {
    next: Mutex<Box<dyn Iterator<Item = Result<Input>> + Send>>,
    bytes: Option<u64>,
    leave: Arc<dyn Fn() + Send + Sync>,
}

impl Feed {
    /// Creates a feed of the files that `next` returns. `bytes` is the total bytes of the files, if known. The files
    /// must have the columns of the fragment's table. For CSV and JSON Lines files, the caller sets the columns with
    /// [`Input::with_columns`].
    pub fn new(next: impl Iterator<Item = Result<Input>> + Send + 'static, bytes: Option<u64>) -> Feed {
        Feed { next: Mutex::new(Box::new(next)), bytes, leave: Arc::new(|| {}) }
    }

    /// Sets the function that is called after a failure. `leave` must end the wait for the next file.
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
