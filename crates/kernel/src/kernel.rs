//! Kernels: functions over blocks.

use std::{cell::OnceCell, os::fd::BorrowedFd};

use inshore_store::Context;

use crate::{Error, lines::LineCounts};

/// The default size of a block of a file in the page cache. A block of a file in the page cache is copied into a buffer
/// that fits a core's second-level cache.
pub(crate) const CACHED_BYTES: usize = 256 << 10;

/// A streaming function over blocks of sources. The parts of a source's blocks are delivered in order, or, if the order
/// does not matter, merged in the worker's state. In both cases results can be merged, so a source may be cut anywhere.
///
/// A kernel must not depend on where it runs: it receives bytes, and never a path.
pub trait Kernel: Sync {
    /// The error type of the kernel.
    type Error: From<Error> + Send;
    /// The state that a worker keeps from block to block, such as buffers and tables.
    type Worker: Send;
    /// The result of a block.
    type Part: Send;

    /// Returns the positions at which a source may be cut.
    fn border(&self) -> Border;

    /// Creates the state of a worker, within the job's budget.
    ///
    /// # Errors
    /// Errors of the kernel; an error if the budget is too small.
    fn worker(&self, context: &Context) -> Result<Self::Worker, Self::Error>;

    /// Processes a block.
    ///
    /// # Errors
    /// Errors of the kernel. The rest of the source is then skipped, and the consumer receives the error.
    fn block(&self, worker: &mut Self::Worker, block: &Block<'_>) -> Result<Self::Part, Self::Error>;

    /// Returns the block size in bytes for files in the page cache, which is also the size of each worker's buffer. The
    /// default is 256 KiB; kernels with a high cost per block choose a larger size.
    fn cached_block_bytes(&self) -> usize {
        CACHED_BYTES
    }

    /// Returns true if blocks of large cached files may be memory-mapped instead of copied, 1 MiB each. While the
    /// kernel reads a mapped block, a concurrent writer to the file may change the block's bytes. A kernel may return
    /// true only if it makes no assumption about the bytes (valid UTF-8 may become invalid) and verifies every
    /// conclusion.
    fn takes_windows(&self) -> bool {
        false
    }

    /// Returns true if the kernel itself reads blocks of cached files, several at a time, in [`Kernel::file_blocks`].
    /// Kernels that run in another process read blocks themselves, so that the bytes stay in the cache of that
    /// process's core. The lines of blocks that a kernel reads cannot be numbered.
    fn reads_files(&self) -> bool {
        false
    }

    /// Reads and processes consecutive blocks of a cached file. For each block the kernel adds an element to `done`:
    /// the end of the block's lines in the file and the part, or `None` if there is no part to deliver. The kernel may
    /// stop before any block; the next call begins at that block. If the kernel adds nothing at all, the runner reads
    /// the first block and calls [`Kernel::block`].
    ///
    /// # Errors
    /// Errors of the kernel, for the first block that was not added.
    fn file_blocks(
        &self,
        _worker: &mut Self::Worker,
        _blocks: &FileBlocks<'_>,
        _done: &mut Vec<Option<(u64, Self::Part)>>,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Returns true if the kernel treats bytes after a NUL byte as binary data. In a line that exceeds the memory for a
    /// line, each run of NUL bytes (such as a hole in a file) is then reduced to one NUL byte. Offsets of bytes after
    /// such a run, within the same block, are too small, since the run counts as one byte.
    fn zeros_end_lines(&self) -> bool {
        false
    }

    /// Returns the approximate memory of a part in bytes, which limits the parts that wait for delivery.
    fn part_bytes(&self, _part: &Self::Part) -> u64 {
        size_of::<Self::Part>() as u64
    }
}

/// Consecutive blocks of a file, for a kernel that [reads blocks itself](Kernel::reads_files). A block contains the
/// lines that begin within the block. A line that begins exactly at the block's start belongs to the previous block,
/// unless the block is the first of the file.
#[derive(Clone, Copy, Debug)]
pub struct FileBlocks<'a> {
    /// The file, open for reading.
    pub file: BorrowedFd<'a>,
    /// The length of the file when it was opened. Bytes beyond this length are not read.
    pub file_bytes: u64,
    /// The offset of the first block.
    pub start: u64,
    /// The distance between two blocks in bytes.
    pub stride: u64,
    /// The number of blocks.
    pub count: u64,
    /// The offset of this file in the larger file that it is a part of; 0 if the file is complete.
    pub base: u64,
}

/// The positions at which a source may be cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Border {
    /// A source may be cut after a line feed. A block has complete lines, and the last line of a source may lack its
    /// line feed.
    Line {
        /// True if the kernel calls [`Block::first_line`], which requires counting the lines of all blocks.
        numbered: bool,
    },
    /// A source may be cut anywhere.
    Byte,
}

/// A block: consecutive bytes of a source.
#[derive(Debug)]
pub struct Block<'a> {
    /// The number of the source in the order of the run, from 0.
    pub source: usize,
    /// The offset of the bytes in the source; if the source is a part of a file, the offset in that file.
    pub offset: u64,
    /// The bytes of the block; they are empty only if the complete source is empty.
    pub bytes: &'a [u8],
    pub(crate) number: u64,
    /// If the source is a part of a file, the number of lines of the file before the source; otherwise 0.
    pub(crate) lines_before: u64,
    pub(crate) lines: Option<&'a LineCounts>,
    pub(crate) first_line: OnceCell<u64>,
}

impl Block<'_> {
    /// Returns true if the block is the beginning of the source and the source is not a later part of a file.
    pub fn is_first(&self) -> bool {
        self.offset == 0
    }

    /// Returns the number of the block's first line, counted from 1 at the beginning of the source or of the file that
    /// it is a part of. The function waits until other workers have counted the lines of all earlier blocks.
    ///
    /// # Panics
    /// Panics if the [`Border`] is not `numbered`.
    pub fn first_line(&self) -> u64 {
        *self.first_line.get_or_init(|| {
            1 + self.lines_before
                + self.lines.expect("a kernel that numbers lines says so").before(self.number)
        })
    }
}
