//! Divides the memory: among arenas during the input, and among the readers of runs during a merge.

use inshore_store::{Error, Keep, PAGE_BYTES};

use super::shape::RowShape;
use crate::{Result, array::taken_bytes};

/// The configuration of a sort of rows.
#[derive(Clone, Debug)]
pub struct RowConfig {
    /// The bytes of the job's budget for all phases. More memory results in fewer and longer runs.
    pub memory_bytes: u64,
    /// The number of threads that sort (1 or more).
    pub threads: usize,
    /// True if the greatest key comes first. Rows with equal keys keep the order of the input in both cases.
    pub descending: bool,
    /// Forces the bytes of rows in an arena. Tests set a small size so that runs are written. `None` uses as much
    /// memory as possible.
    pub arena_bytes: Option<usize>,
    /// Saves runs so that an interrupted sort can resume, and resumes from saved runs
    /// ([`super::RowSort::bytes_kept`]).
    pub keep: Option<Keep>,
    /// The name of this sort in scratch files and errors. The name must be valid within a file name.
    pub name: &'static str,
}

impl Default for RowConfig {
    /// Returns a configuration for 256 MiB, two threads and ascending order.
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

/// Returns the smallest [`RowConfig::memory_bytes`] for this number of threads, with rows of up to 64 KiB.
pub fn smallest_row_memory_bytes(threads: usize) -> u64 {
    (arenas(threads.max(1)) * ARENA_BYTES_MIN) as u64
}

/// Returns about the smallest [`RowConfig::memory_bytes`] with which this number of threads sorts `input_bytes` bytes
/// of rows and all arenas stay in use. Checksums of all runs are in memory, so the input is limited to about 250
/// times the budget or more. With more input, the sort uses the memory of one arena for checksums and continues with
/// the other arenas. The limit is then some thousand times the budget.
pub fn smallest_row_memory_bytes_for(threads: usize, input_bytes: u64) -> u64 {
    let mut memory_bytes = smallest_row_memory_bytes(threads);
    while MemoryShares::new(memory_bytes as usize, threads).run_bytes_max() < input_bytes {
        memory_bytes += memory_bytes / 8;
    }
    memory_bytes
}

const ARENA_BYTES_MIN: usize = 384 << 10;
/// The maximum bytes of an arena. In measurements, arenas of 64 MB per thread took about the same time as arenas of
/// 160 MB.
const ARENA_BYTES_MAX: usize = 256 << 20;
/// The bytes of a row's sort word and of its start offset.
const INDEX_BYTES: usize = 12;
/// The maximum bytes of a read or write request. Larger requests are not faster.
const IO_BYTES_MAX: usize = 1 << 20;
/// The maximum bytes of a check block (the unit of checksums) in runs. The first runs have smaller blocks, so that
/// many runs can be merged at once. Blocks have this size after half of the memory for checksums is used.
const BLOCK_BYTES_MAX: usize = 64 << 10;
/// The bytes of a block's checksum.
const SUM_BYTES: usize = 4;
/// The bytes of memory for each block of the runs that are written during the input: its checksum, and half a
/// checksum for merged runs. A merged run exists together with the runs that it replaces.
const INDEX_BYTES_A_BLOCK: u64 = SUM_BYTES as u64 * 3 / 2;
/// The minimum bytes of a read request that a drive handles efficiently. With smaller requests, parallel merges would
/// lose more time than a second thread saves.
const READ_BYTES_GOOD: usize = 128 << 10;

/// Returns the number of arenas. One arena is filled, one arena waits for a thread, and each thread sorts one arena.
fn arenas(threads: usize) -> usize {
    threads + 2
}

/// The division of the memory, which is the same for all row shapes. A sixteenth is for checksums of runs. The rest
/// is divided into one equal share per arena. A share is for the arena with its words, and for two write buffers.
#[derive(Clone, Copy, Debug)]
struct MemoryShares {
    /// The bytes of memory for the checksums of all runs.
    sums_bytes: usize,
    /// The bytes of a check block in the first runs.
    block_bytes: usize,
    write_bytes: usize,
    /// The bytes of memory for an arena with its words.
    arena_taken_bytes: usize,
}

impl MemoryShares {
    fn new(memory_bytes: usize, threads: usize) -> MemoryShares {
        let sums_bytes = memory_bytes / 16;
        let share = (memory_bytes - sums_bytes) / arenas(threads.max(1));
        let block_bytes = (1usize << (share / 32).ilog2()).clamp(PAGE_BYTES, BLOCK_BYTES_MAX);
        let write_bytes =
            (share / 16).clamp(BLOCK_BYTES_MAX, IO_BYTES_MAX) / BLOCK_BYTES_MAX * BLOCK_BYTES_MAX;
        let arena_taken_bytes = share - taken_bytes(2 * write_bytes);
        MemoryShares { sums_bytes, block_bytes, write_bytes, arena_taken_bytes }
    }

    /// Returns the maximum number of check blocks in the runs that are written during the input. These runs use half
    /// of the memory for checksums. The other half is for merged runs, which exist together with their inputs.
    fn blocks_max(&self) -> u64 {
        (self.sums_bytes / SUM_BYTES / 2) as u64
    }

    /// Returns the bytes of runs for which the memory for checksums suffices in the worst case. In this case, the
    /// last block of each run has only one row. Rows have eight bytes, so that the smallest part of an arena is
    /// available for rows.
    fn run_bytes_max(&self) -> u64 {
        let arena_bytes = (self.arena_taken_bytes.min(ARENA_BYTES_MAX) * 8 / (8 + INDEX_BYTES)) as u64;
        let bytes = u128::from(self.blocks_max() / 2) * (self.block_bytes + BLOCK_BYTES_MAX) as u128;
        let whole = bytes * u128::from(arena_bytes) / u128::from(arena_bytes + BLOCK_BYTES_MAX as u64);
        u64::try_from(whole).unwrap_or(u64::MAX)
    }
}

/// The sizes of all buffers of a sort of rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RowPlan {
    pub memory_bytes: usize,
    shares: MemoryShares,
    pub arenas: usize,
    /// The bytes of rows in an arena.
    pub arena_bytes: usize,
    /// The maximum number of rows that one sort of an arena orders.
    pub rows_max: usize,
    pub write_bytes: usize,
    /// The length in bytes of the longest row that fits.
    pub row_bytes_max: usize,
}

impl RowPlan {
    /// Divides the memory.
    ///
    /// # Errors
    /// Returns [`Error::BudgetTooSmall`] if the memory does not suffice.
    pub fn new<S: RowShape>(config: &RowConfig, shape: &S) -> Result<RowPlan> {
        let threads = config.threads.max(1);
        let memory_bytes = usize::try_from(config.memory_bytes).unwrap_or(usize::MAX / 2);
        let smallest = smallest_row_memory_bytes(threads);
        if config.memory_bytes < smallest {
            let what = format!("sorting {} with {threads} threads", config.name);
            return Err(Error::BudgetTooSmall { what, given: config.memory_bytes, smallest }.into());
        }
        let shares = MemoryShares::new(memory_bytes, threads);
        let all = shares.arena_taken_bytes;
        let row = shape.row_bytes_hint().clamp(8, 1 << 20);
        let arena_bytes = (all as u64 * row as u64 / (row + INDEX_BYTES) as u64) as usize;
        let arena_bytes = arena_bytes.min(ARENA_BYTES_MAX).min(config.arena_bytes.unwrap_or(usize::MAX));
        let of = |arena_bytes: usize| RowPlan {
            memory_bytes,
            shares,
            arenas: arenas(threads),
            arena_bytes,
            rows_max: (arena_bytes / row).clamp(64, u32::MAX as usize / 2),
            write_bytes: shares.write_bytes,
            row_bytes_max: (arena_bytes / 4).min(memory_bytes / 16),
        };
        let mut plan = of(arena_bytes / PAGE_BYTES * PAGE_BYTES);
        // The loop is needed since buffers are rounded up to pages, and large buffers to huge pages.
        while plan.arena_taken_bytes() > all {
            plan = of((plan.arena_bytes - plan.arena_bytes / 64 - 1) / PAGE_BYTES * PAGE_BYTES);
        }
        Ok(plan)
    }

    /// Returns the bytes of memory of one arena with its words.
    pub fn arena_taken_bytes(&self) -> usize {
        taken_bytes(self.arena_bytes) + taken_bytes(self.rows_max * 8) + taken_bytes((self.rows_max + 1) * 4)
    }

    /// Returns the bytes of all read buffers in a merge that writes one run. This is the memory without the checksums
    /// of `blocks` check blocks, two write buffers, and a reserve of up to 2 MiB.
    fn read_bytes(&self, blocks: u64) -> usize {
        let sums_bytes = self.shares.sums_bytes.max((blocks * INDEX_BYTES_A_BLOCK) as usize);
        self.memory_bytes
            - sums_bytes
            - taken_bytes(2 * self.write_bytes)
            - (2 << 20).min(self.memory_bytes / 4)
    }

    /// Returns how many checksummed blocks the runs of the input may have in total before an arena's memory is given
    /// to checksums.
    pub fn blocks_max(&self) -> u64 {
        self.shares.blocks_max()
    }

    /// Returns the maximum number of check blocks after an arena's memory is given to checksums.
    pub fn blocks_max_with_fewer_arenas(&self) -> u64 {
        (self.shares.sums_bytes + self.arena_taken_bytes()) as u64 / INDEX_BYTES_A_BLOCK
    }

    /// Returns the size in bytes of check blocks in the next run, if the existing runs have `blocks` check blocks.
    pub fn run_block_bytes(&self, blocks: u64) -> usize {
        if blocks < self.blocks_max() / 2 { self.shares.block_bytes } else { BLOCK_BYTES_MAX }
    }

    /// Returns whether a run with check blocks of `block_bytes` bytes can be merged.
    pub fn can_read(&self, block_bytes: usize) -> bool {
        block_bytes <= BLOCK_BYTES_MAX
    }

    /// Returns the number of runs that can be merged at once. The runs have `blocks` check blocks of up to
    /// `block_bytes` bytes, and rows of up to `row_bytes` bytes. A run takes two buffers of one block each, and a
    /// copy of a row that crosses the end of a buffer.
    pub fn fan_in(&self, blocks: u64, block_bytes: usize, row_bytes: usize) -> usize {
        (self.read_bytes(blocks) / (2 * block_bytes + row_bytes)).max(2)
    }

    /// Returns the number of runs that can be merged at once if read buffers have a size that a drive reads
    /// efficiently.
    pub fn fan_in_large(&self, blocks: u64, row_bytes: usize) -> usize {
        self.read_bytes(blocks) / (2 * READ_BYTES_GOOD + row_bytes)
    }

    /// Returns the size in bytes and the number of read buffers per run, if `runs` runs are merged.
    pub fn read_buffers(
        &self,
        blocks: u64,
        runs: usize,
        block_bytes: usize,
        row_bytes: usize,
    ) -> (usize, usize) {
        let each = (self.read_bytes(blocks) / runs.max(1)).saturating_sub(row_bytes);
        let count = if each >= 4 * IO_BYTES_MAX { 4 } else { 2 };
        let bytes = (each / count).min(IO_BYTES_MAX) / block_bytes * block_bytes;
        (bytes.max(block_bytes), count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::FixedRows;

    #[test]
    fn a_budget_that_is_enough_for_an_input_has_room_for_the_checksums_of_its_runs() {
        for threads in [1, 2, 16, 64] {
            for input_bytes in [0, 1 << 20, 700_000_000, 5 << 30, 1 << 40] {
                let smallest = smallest_row_memory_bytes_for(threads, input_bytes);
                for memory_bytes in [smallest, smallest + (1 << 20), 2 * smallest] {
                    let config = RowConfig { memory_bytes, threads, ..RowConfig::default() };
                    let plan = RowPlan::new(&config, &FixedRows::new(8, 0..8)).unwrap();
                    let (mut blocks, mut bytes) = (0, 0);
                    while bytes < input_bytes {
                        blocks += plan.arena_bytes.div_ceil(plan.run_block_bytes(blocks)) as u64;
                        bytes += plan.arena_bytes as u64;
                        assert!(blocks <= plan.blocks_max(), "{threads} threads: {bytes} of {input_bytes}");
                    }
                    assert!(
                        plan.fan_in(plan.blocks_max(), BLOCK_BYTES_MAX, 16 << 10) >= 4,
                        "{threads}: {plan:?}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_budget_of_eight_mebibytes_is_enough_for_700_megabytes_with_sixteen_threads() {
        assert!(smallest_row_memory_bytes_for(16, 700_000_000) <= 7 << 20);
        assert!(smallest_row_memory_bytes_for(16, 1 << 33) > 8 << 20);
    }
}
