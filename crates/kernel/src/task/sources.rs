//! Provides the sources of a task: a known list, or shards that arrive while the task works.

use super::{Failure, TaskSource};

/// An iterator over the sources of a task. The sources are a known list, or shards that the task receives while it
/// works. The task requests a source only when it needs one. Each request shows the sender of the shards how far the
/// task has progressed.
pub struct Sources {
    next: Box<dyn Iterator<Item = Result<TaskSource, Failure>> + Send>,
    bytes: u64,
    count_max: usize,
    leave: Box<dyn Fn() + Send + Sync>,
}

impl Sources {
    /// Creates sources from a known list.
    pub fn of(sources: Vec<TaskSource>) -> Sources {
        let bytes = sources.iter().map(|source| source.source.part_bytes()).sum();
        let count_max = sources.len();
        Sources::pulled(sources.into_iter().map(Ok), bytes, count_max)
    }

    /// Creates sources from an iterator that may block. The iterator returns at most `count_max` sources. Together, the
    /// sources have about `bytes` bytes.
    pub fn pulled(
        next: impl Iterator<Item = Result<TaskSource, Failure>> + Send + 'static,
        bytes: u64,
        count_max: usize,
    ) -> Sources {
        Sources { next: Box::new(next), bytes, count_max, leave: Box::new(|| {}) }
    }

    /// Sets the function that ends a blocking wait of the iterator for the next source.
    #[must_use]
    pub fn left_by(mut self, leave: impl Fn() + Send + Sync + 'static) -> Sources {
        self.leave = Box::new(leave);
        self
    }

    /// Returns the iterator, and the function that ends a blocking wait of the iterator for the next source.
    pub fn into_parts(
        self,
    ) -> (impl Iterator<Item = Result<TaskSource, Failure>> + Send + 'static, Box<dyn Fn() + Send + Sync>)
    {
        (self.next, self.leave)
    }

    /// Returns the number of bytes of all sources together. The number is an estimate if the sources arrive while the
    /// task works.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns an upper bound of the number of sources.
    pub fn count_max(&self) -> usize {
        self.count_max
    }
}

impl Iterator for Sources {
    type Item = Result<TaskSource, Failure>;

    fn next(&mut self) -> Option<Result<TaskSource, Failure>> {
        self.next.next()
    }
}

impl std::fmt::Debug for Sources {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Sources { bytes, count_max, .. } = self;
        f.debug_struct("Sources").field("bytes", bytes).field("count_max", count_max).finish_non_exhaustive()
    }
}
