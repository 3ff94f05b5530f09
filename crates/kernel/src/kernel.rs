//! Kernels: functions over blocks.

use std::{cell::OnceCell, os::fd::BorrowedFd};

use inshore_store::Context;

use crate::{Error, lines::LineCounts};

/// The default size of a block of a file in the page cache. Such a block is copied into a buffer that fits a core's
/// second-level cache.
pub(crate) const CACHED_BYTES: usize = 256 << 10;

/// A streaming function over blocks of sources. The parts of a source's blocks are delivered in order, or merged in the
/// worker's state if the order does not matter; either way results merge, so that a source may be cut anywhere.
///
/// A kernel must not depend on the place where it runs: a kernel receives bytes, and never a path.
pub trait Kernel: Sync {
    /// The error type of the kernel.
    type Error: From<Error> + Send;
    /// The state of a worker from block to block: buffers, tables.
    type Worker: Send;
    /// The result of a block.
    type Part: Send;

    /// Returns the positions at which a source may be cut.
    fn border(&self) -> Border;

    /// Creates the state of a worker, within the job's budget.
    ///
    /// # Errors
    /// Errors of the kernel; a budget that is too small.
    fn worker(&self, context: &Context) -> Result<Self::Worker, Self::Error>;

    /// Processes a block.
    ///
    /// # Errors
    /// Errors of the kernel. The rest of the source is skipped then, and the consumer receives the error.
    fn block(&self, worker: &mut Self::Worker, block: &Block<'_>) -> Result<Self::Part, Self::Error>;

    /// Returns the block size for files in the page cache in bytes, which is also the size of each worker's buffer. The
    /// default is 256 KiB; kernels with a high cost per block choose more.
    fn cached_block_bytes(&self) -> usize {
        CACHED_BYTES
    }

    /// Returns true if blocks of large cached files may be memory-mapped instead of copied, 1 MiB each. A concurrent
    /// writer to such a file changes the block's bytes while the kernel reads them. Only kernels that treat the bytes
    /// as plain bytes and check every conclusion may return true (bytes that were valid UTF-8 may become invalid).
    fn takes_windows(&self) -> bool {
        false
    }

    /// Returns true if the kernel reads blocks of cached files itself, several at a time, by [`Kernel::file_blocks`].
    /// This serves kernels that run in another process, so that the bytes stay in the cache of that process's core.
    /// Lines cannot be numbered then.
    fn reads_files(&self) -> bool {
        false
    }

    /// Reads and processes consecutive blocks of a cached file. For each block, adds to `done` the end of the block's
    /// lines in the file and the part, or `None` if there is no part to deliver. The kernel may stop before any block;
    /// the next call begins there. If the kernel adds nothing at all, the runner reads the first block and calls
    /// [`Kernel::block`].
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
    /// line, each run of NUL bytes is then reduced to one. After such a hole in a file, offsets within the same block
    /// are too small.
    fn zeros_end_lines(&self) -> bool {
        false
    }

    /// Returns the approximate memory of a part in bytes, which limits the parts that wait for their turn.
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
    /// The offset of this file in the larger file of which it is a part; 0 if it is no such part.
    pub base: u64,
}

/// The positions at which a source may be cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Border {
    /// After a line feed: a block has whole lines, and the last line of a source may lack its line feed.
    Line {
        /// True if the kernel calls [`Block::first_line`], which requires counting the lines of all blocks.
        numbered: bool,
    },
    /// Anywhere.
    Byte,
}

/// A block: consecutive bytes of a source.
#[derive(Debug)]
pub struct Block<'a> {
    /// The number of the source in the order of the run, from 0.
    pub source: usize,
    /// The offset of the bytes in the source, or in the whole of which the source is a part.
    pub offset: u64,
    /// The bytes; empty only if the whole source is empty.
    pub bytes: &'a [u8],
    pub(crate) number: u64,
    /// The number of lines of the whole before the source.
    pub(crate) lines_before: u64,
    pub(crate) lines: Option<&'a LineCounts>,
    pub(crate) first_line: OnceCell<u64>,
}

impl Block<'_> {
    /// Returns true if the block is the beginning of the source, or of the whole of which the source is a part.
    pub fn is_first(&self) -> bool {
        self.offset == 0
    }

    /// Returns the number of the block's first line, counted from 1 at the beginning of the source (or of its whole).
    /// Blocks until other workers have counted the lines of all earlier blocks.
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
