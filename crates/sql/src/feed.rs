//! Files that are named one after the other, as somebody gets to them.

use std::{
    fmt,
    sync::{Mutex, PoisonError},
};

use inshore_tables::{Input, Result};

/// The files of a fragment, in no order. The next one is asked for when a thread has nothing else to read.
pub struct Feed {
    next: Mutex<Box<dyn Iterator<Item = Result<Input>> + Send>>,
    bytes: Option<u64>,
}

impl Feed {
    /// Those that `next` gives, of `bytes` bytes together if that is known. Their columns are those of the fragment's table: CSV and JSON
    /// lines have to [say so](Input::with_columns).
    pub fn new(next: impl Iterator<Item = Result<Input>> + Send + 'static, bytes: Option<u64>) -> Feed {
        Feed { next: Mutex::new(Box::new(next)), bytes }
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
