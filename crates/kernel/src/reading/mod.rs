//! Reads the blocks of a source and cuts them at line ends.
//!
//! - [`RandomAccessSource`] is a file or dataset that is read at any position. Other sources are streams.
//! - [`ReadBuffers`] are the buffers of one worker. The worker reads blocks by memory maps, by copies from the page
//!   cache, or by direct reads in flight.
//! - [`Plan`] computes the sizes of buffers and reads from the free memory.

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

/// The largest size in bytes of a direct read (a read that bypasses the page cache). The size is one huge page. Virtual
/// drives read this size fastest. Reads are smaller if the memory budget is small.
const DIRECT_BYTES: usize = 2 << 20;
const DIRECT_BYTES_MIN: usize = 256 << 10;
/// The number of direct reads that a worker has in flight while it processes a block. If the memory budget is large, a
/// worker has [`AHEAD_MANY`] reads in flight instead.
const AHEAD: usize = 2;
const AHEAD_MANY: usize = 4;
/// The size in bytes of the margin, which is read after a block. The margin usually contains the end of the block's
/// last line.
const MARGIN_BYTES: usize = 4096;

/// The sizes of each worker's buffers and reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    cached_bytes: usize,
    direct_bytes: usize,
    ahead: usize,
    line_bytes_max: u64,
    takes_windows: bool,
}

impl Plan {
    /// Computes the buffer sizes for `workers` workers. All buffers together take at most half of the free memory,
    /// unless the smallest sizes take more. Cached files are copied in blocks of `cached_bytes` bytes. If the compute
    /// kernel accepts windows (memory maps) and memory suffices, large files are mapped in blocks of 1 MiB instead.
    pub fn new(budget: &Budget, workers: usize, cached_bytes: usize, takes_windows: bool) -> Plan {
        let each = budget.free_bytes() / workers as u64;
        let direct = (each / 2 / (AHEAD as u64 + 1)).min(DIRECT_BYTES as u64) as usize / DIRECT_BYTES_MIN;
        Plan {
            cached_bytes,
            direct_bytes: direct.max(1) * DIRECT_BYTES_MIN,
            ahead: if each / 8 >= ((AHEAD_MANY + 1) * DIRECT_BYTES) as u64 { AHEAD_MANY } else { AHEAD },
            line_bytes_max: (each / 4).clamp(1 << 16, 1 << 30),
            // If the system cannot map a file, the worker copies a block of this size, so it needs memory for the copy.
            takes_windows: takes_windows && each >= 4 * WINDOW_BLOCK_BYTES,
        }
    }

    /// Returns the size of a block of a cached file together with its margin, in bytes.
    pub fn block_bytes(cached_bytes: usize) -> usize {
        cached_bytes + MARGIN_BYTES
    }

    /// The least memory with which a worker can read, in bytes.
    pub const WORKER_BYTES_MIN: u64 =
        (CACHED_BYTES + MARGIN_BYTES + LONG_LINE_BYTES + (AHEAD + 1) * DIRECT_BYTES_MIN) as u64;
}
