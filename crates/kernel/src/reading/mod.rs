//! Reads the blocks of a source and cuts them at line ends.
//!
//! - [`RandomAccessSource`]: a file or dataset that is read at any position; other sources are streams.
//! - [`ReadBuffers`]: the buffers of one worker, which reads blocks through memory maps, as copies from the page cache,
//!   or with direct reads in flight.
//! - [`Plan`]: the sizes of buffers and reads, from the free memory.

mod buffers;
mod long_line;
mod memory_maps;
mod random_access;
mod stream;

use inshore_store::Budget;

pub(crate) use self::{
    buffers::ReadBuffers,
    random_access::{RandomAccessSource, ReadInFlight},
};
use self::{long_line::LONG_LINE_BYTES, memory_maps::WINDOW_BLOCK_BYTES};
use crate::kernel::CACHED_BYTES;

/// The size of a direct read past the page cache: one huge page, the size that virtual drives read fastest. Reads are
/// smaller if the budget is small.
const DIRECT_BYTES: usize = 2 << 20;
const DIRECT_BYTES_MIN: usize = 256 << 10;
/// The number of direct reads in flight while a worker processes a block; [`AHEAD_MANY`] if their memory is a small
/// part of the budget.
const AHEAD: usize = 2;
const AHEAD_MANY: usize = 4;
/// The number of bytes read with a block beyond its end, which usually contain the end of the block's last line.
const MARGIN_BYTES: usize = 4096;

/// The sizes of the buffers and requests of each worker.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    cached_bytes: usize,
    direct_bytes: usize,
    ahead: usize,
    line_bytes_max: u64,
    takes_windows: bool,
}

impl Plan {
    /// Divides the budget's free memory among `workers` workers: at most half of the free memory, if half suffices.
    /// Blocks of cached files have `cached_bytes` bytes, and are not copied if the kernel accepts windows.
    pub fn new(budget: &Budget, workers: usize, cached_bytes: usize, takes_windows: bool) -> Plan {
        let each = budget.free_bytes() / workers as u64;
        let direct = (each / 2 / (AHEAD as u64 + 1)).min(DIRECT_BYTES as u64) as usize / DIRECT_BYTES_MIN;
        Plan {
            cached_bytes,
            direct_bytes: direct.max(1) * DIRECT_BYTES_MIN,
            ahead: if each / 8 >= ((AHEAD_MANY + 1) * DIRECT_BYTES) as u64 { AHEAD_MANY } else { AHEAD },
            line_bytes_max: (each / 4).clamp(1 << 16, 1 << 30),
            // If the system maps no window, a block of the same size is copied.
            takes_windows: takes_windows && each >= 4 * WINDOW_BLOCK_BYTES,
        }
    }

    /// Returns the size of a block of a cached file together with its margin, in bytes.
    pub fn block_bytes(cached_bytes: usize) -> usize {
        cached_bytes + MARGIN_BYTES
    }

    /// The smallest memory of a worker, in bytes.
    pub const WORKER_BYTES_MIN: u64 =
        (CACHED_BYTES + MARGIN_BYTES + LONG_LINE_BYTES + (AHEAD + 1) * DIRECT_BYTES_MIN) as u64;
}
