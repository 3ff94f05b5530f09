//! How memory is divided among arenas, and later among the readers of runs.

use inshore_store::{Error, Keep, PAGE_BYTES};

use super::shape::RowShape;
use crate::{Result, array::taken_bytes};

/// What a sort of rows may use.
#[derive(Clone, Debug)]
pub struct RowConfig {
    /// Bytes of the job's budget that it may use in all its phases. More means fewer and longer runs.
    pub memory_bytes: u64,
    /// Threads that sort (1 or more).
    pub threads: usize,
    /// The greatest key first; equal keys keep the order of the input all the same.
    pub descending: bool,
    /// Forces the bytes of rows in an arena, so that tests write runs; `None`: as many as the memory allows.
    pub arena_bytes: Option<usize>,
    /// Keeps runs for the sort that goes on with this one, and goes on with those that are there
    /// ([`super::RowSort::bytes_kept`]).
    pub keep: Option<Keep>,
    /// The name of scratch files and in errors; a valid part of a file name.
    pub name: &'static str,
}

impl Default for RowConfig {
    /// 256 MiB, two threads, ascending.
    fn default() -> Self {
        RowConfig {
            memory_bytes: 256 << 20,
            threads: 2,
            descending: false,
            arena_bytes: None,
            keep: None,
            name: "rows",
        }
    }
}

/// The smallest [`RowConfig::memory_bytes`] that works with so many threads: it sorts rows of up to 16 KiB.
pub fn smallest_row_memory_bytes(threads: usize) -> u64 {
    (arenas(threads.max(1)) * ARENA_BYTES_MIN) as u64
}

const ARENA_BYTES_MIN: usize = 384 << 10;
/// Arenas beyond this gain nothing: 64 MB a thread cost about what 160 MB cost.
const ARENA_BYTES_MAX: usize = 256 << 20;
/// Bytes of the word and of the start of a row.
const INDEX_BYTES: usize = 12;
/// Requests beyond this gain nothing.
const IO_BYTES_MAX: usize = 1 << 20;
const BLOCK_BYTES_MAX: usize = 64 << 10;
/// Smaller requests, of several merges at a time, would cost more than a second thread gains.
const READ_BYTES_GOOD: usize = 128 << 10;

/// One is filled, one is waiting, and each thread sorts one.
fn arenas(threads: usize) -> usize {
    threads + 2
}

/// Sizes of everything.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowPlan {
    pub memory_bytes: usize,
    pub arenas: usize,
    /// Bytes of rows in an arena.
    pub arena_bytes: usize,
    /// Rows of which the order is found at once.
    pub rows_max: usize,
    pub block_bytes: usize,
    pub write_bytes: usize,
    /// Bytes that the checksums of all runs may take.
    pub sums_bytes: usize,
    /// The longest row that is accepted.
    pub row_bytes_max: usize,
}

impl RowPlan {
    /// Divides the memory: a sixteenth for checksums of runs, the rest in equal shares for arenas with their words and,
    /// for each thread, two buffers to write.
    ///
    /// # Errors
    /// [`Error::BudgetTooSmall`].
    pub fn new<S: RowShape>(config: &RowConfig, shape: &S) -> Result<RowPlan> {
        let threads = config.threads.max(1);
        let memory_bytes = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX / 2);
        let smallest = smallest_row_memory_bytes(threads);
        if config.memory_bytes < smallest {
            let what = format!("sorting {} with {threads} threads", config.name);
            return Err(Error::BudgetTooSmall { what, given: config.memory_bytes, smallest }.into());
        }
        let arenas = arenas(threads);
        let sums_bytes = memory_bytes / 16;
        let share = (memory_bytes - sums_bytes) / arenas;
        let block_bytes = (1usize << (share / 32).ilog2()).clamp(PAGE_BYTES, BLOCK_BYTES_MAX);
        let write_bytes = (share / 16).clamp(block_bytes, IO_BYTES_MAX) / block_bytes * block_bytes;
        let all = share - taken_bytes(2 * write_bytes);
        let row = shape.row_bytes_hint().clamp(8, 1 << 20);
        let arena_bytes = (all as u64 * row as u64 / (row + INDEX_BYTES) as u64) as usize;
        let arena_bytes = arena_bytes.min(ARENA_BYTES_MAX).min(config.arena_bytes.unwrap_or(usize::MAX));
        let of = |arena_bytes: usize| RowPlan {
            memory_bytes,
            arenas,
            arena_bytes,
            rows_max: (arena_bytes / row).clamp(64, u32::MAX as usize / 2),
            block_bytes,
            write_bytes,
            sums_bytes,
            row_bytes_max: (arena_bytes / 4).min(memory_bytes / 64),
        };
        let mut plan = of(arena_bytes / PAGE_BYTES * PAGE_BYTES);
        // Buffers are whole pages, large ones whole huge pages.
        while plan.arena_taken_bytes() > all {
            plan = of((plan.arena_bytes - plan.arena_bytes / 64 - 1) / PAGE_BYTES * PAGE_BYTES);
        }
        Ok(plan)
    }

    /// What one arena takes.
    pub fn arena_taken_bytes(&self) -> usize {
        taken_bytes(self.arena_bytes) + taken_bytes(self.rows_max * 8) + taken_bytes((self.rows_max + 1) * 4)
    }

    /// Bytes for reading runs in a merge that writes one: what checksums and two buffers leave.
    fn read_bytes(&self) -> usize {
        self.memory_bytes
            - self.sums_bytes
            - taken_bytes(2 * self.write_bytes)
            - (2 << 20).min(self.memory_bytes / 4)
    }

    /// How many runs can be merged at once, where the longest row has `row_bytes`: two buffers of one block each, and
    /// the row that lies across two of them.
    pub fn fan_in(&self, row_bytes: usize) -> usize {
        (self.read_bytes() / (2 * self.block_bytes + row_bytes)).max(2)
    }

    /// How many could be merged at once through buffers that a drive reads well.
    pub fn fan_in_large(&self, row_bytes: usize) -> usize {
        self.read_bytes() / (2 * self.block_bytes.max(READ_BYTES_GOOD) + row_bytes)
    }

    /// Size and number of the buffers of each of `runs` runs.
    pub fn read_buffers(&self, runs: usize, row_bytes: usize) -> (usize, usize) {
        let each = (self.read_bytes() / runs.max(1)).saturating_sub(row_bytes);
        let count = if each >= 4 * IO_BYTES_MAX { 4 } else { 2 };
        let bytes = (each / count).min(IO_BYTES_MAX) / self.block_bytes * self.block_bytes;
        (bytes.max(self.block_bytes), count)
    }
}
