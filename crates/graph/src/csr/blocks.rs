//! Finds the block of packed edges that holds an entry.

use std::ops::Range;

use inshore_store::{Buffer, Job};

use super::{BLOCK_BYTES, Csr, packed::FRAME, typed};
use crate::{Error, Result};

/// The bytes of memory that one [`BlockCursor`] takes.
pub(super) const CURSOR_BYTES: u64 = BLOCK_BYTES as u64;
const WINDOW_BLOCKS: u64 = CURSOR_BYTES / 4;

/// Finds blocks of the file of edges. Lookups in ascending order of entries are the fastest.
pub(super) struct BlockCursor {
    job: Job,
    csr: Csr,
    blocks: u64,
    /// The first frames of consecutive blocks, read from the file of blocks, and the range of these blocks' numbers.
    buffer: Option<Buffer>,
    window: Range<u64>,
    /// The number of the block that was found last, and the range of its entries.
    found: u64,
    entries: Range<u64>,
}

impl BlockCursor {
    pub fn new(job: &Job, csr: &Csr) -> Result<BlockCursor> {
        let buffer = Some(Buffer::zeroed(job.budget(), CURSOR_BYTES as usize, "the index of edge blocks")?);
        let (job, csr, blocks) = (job.clone(), csr.clone(), csr.blocks.len() / 4);
        Ok(BlockCursor { job, csr, blocks, buffer, window: 0..0, found: 0, entries: 0..0 })
    }

    /// Returns the entries of the block that was found last.
    pub fn entries(&self) -> &Range<u64> {
        &self.entries
    }

    /// Finds the block that holds `entry`. The block must not come before block `hint`.
    #[inline]
    pub fn find(&mut self, entry: u64, hint: u64) -> Result<u64> {
        if self.entries.contains(&entry) { Ok(self.found) } else { self.look_up(entry, hint) }
    }

    fn look_up(&mut self, entry: u64, hint: u64) -> Result<u64> {
        let behind = if entry >= self.entries.end { self.found } else { 0 };
        let mut low = hint.max(behind);
        if low >= self.blocks || self.first_entry(low)? > entry {
            return Err(self.bad(format!("no block for edge {entry} (searched from block {low})")));
        }
        // Searches for the last block that begins at or before the entry. The search begins with the blocks whose first
        // frames are in memory, and continues with the following blocks of the file.
        loop {
            let first = (low - self.window.start) as usize;
            let starts = &self.starts()[first..];
            low += starts.partition_point(|&frame| start_of(frame) <= entry) as u64 - 1;
            let next = self.window.end;
            if low + 1 < next || next >= self.blocks || self.first_entry(next)? > entry {
                break;
            }
            low = next;
        }
        let entries = self.first_entry(low)?..self.first_entry(low + 1)?;
        if !entries.contains(&entry) {
            return Err(self.bad(format!("block {low} with edges {entries:?} instead of edge {entry}")));
        }
        (self.found, self.entries) = (low, entries);
        Ok(low)
    }

    /// Returns the number of the first entry of a block. If `block` is after the last block, returns the number of all
    /// entries of the file.
    pub fn first_entry(&mut self, block: u64) -> Result<u64> {
        if block >= self.blocks {
            return Ok(self.csr.entries);
        }
        if !self.window.contains(&block) {
            self.load(block)?;
        }
        Ok(start_of(self.starts()[(block - self.window.start) as usize]))
    }

    fn starts(&self) -> &[u32] {
        let buffer = self.buffer.as_ref().expect("a read gives it back");
        &typed(buffer)[..(self.window.end - self.window.start) as usize]
    }

    #[inline(never)]
    fn load(&mut self, block: u64) -> Result<()> {
        let start = block / WINDOW_BLOCKS * WINDOW_BLOCKS;
        let window = start..(start + WINDOW_BLOCKS).min(self.blocks);
        self.window = 0..0;
        let bytes = window.start * 4..window.end * 4;
        let buffer = match self.buffer.take() {
            Some(buffer) => buffer,
            // The buffer is missing only after a read that failed.
            None => Buffer::zeroed(self.job.budget(), CURSOR_BYTES as usize, "the index of edge blocks")?,
        };
        self.buffer = Some(self.csr.blocks.submit_read(&self.job, bytes, buffer)?.wait()?.0);
        self.window = window;
        if self.starts().is_sorted() {
            Ok(())
        } else {
            Err(self.bad("block numbers that do not ascend".to_string()))
        }
    }

    pub fn bad(&self, found: String) -> Error {
        let name = self.csr.blocks.name().to_string();
        Error::BadGraph {
            name,
            what: "the index of edge blocks",
            found,
            expected: "ascending block numbers".to_string(),
        }
    }
}

fn start_of(frame: u32) -> u64 {
    u64::from(frame) * FRAME as u64
}
