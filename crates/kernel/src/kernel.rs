//! Defines compute kernels: functions over blocks of sources.

use std::{cell::OnceCell, os::fd::BorrowedFd};

use inshore_store::Context;

use crate::{Error, lines::LineCounts};

/// The default block size in bytes for files in the page cache. A worker copies each block into a buffer. A buffer of
/// this size fits the second-level cache of a core.
pub(crate) const CACHED_BYTES: usize = 256 << 10;

/// A compute kernel: a streaming function over blocks of sources. The result of a block is called a part, and the
/// runner delivers the parts in order. If the order does not matter, the compute kernel can instead merge its results
/// in the state of each worker. In both cases, the final result must not depend on the positions at which a source is
/// cut into blocks.
///
/// A compute kernel must not depend on the machine on which it runs. It receives the bytes of blocks or an open file,
/// and never a path.
pub trait Kernel: Sync {
    /// The error type of the compute kernel.
    type Error: From<Error> + Send;
    /// The state that a worker thread keeps from block to block, such as buffers and tables.
    type Worker: Send;
    /// The result of processing one block.
    type Part: Send;

    /// Returns the positions at which a source may be cut into blocks.
    fn border(&self) -> Border;

    /// Creates the state of a worker thread, within the memory budget of the job.
    ///
    /// # Errors
    /// Returns an error of the compute kernel, for example if the budget is too small.
    fn worker(&self, context: &Context) -> Result<Self::Worker, Self::Error>;

    /// Processes a block and returns its part.
    ///
    /// # Errors
    /// Returns an error if the compute kernel cannot process the block. After an error, the runner skips the rest of
    /// the source, and the consumer receives the error.
    fn block(&self, worker: &mut Self::Worker, block: &Block<'_>) -> Result<Self::Part, Self::Error>;

    /// Returns the block size in bytes for files in the page cache. Each worker has a buffer for a block of this size.
    /// The default is 256 KiB. Compute kernels with a high fixed cost per block choose a larger size.
    fn cached_block_bytes(&self) -> usize {
        CACHED_BYTES
    }

    /// Returns true if blocks of large cached files may be memory-mapped instead of copied. A mapped block has 1 MiB.
    /// While the compute kernel reads a mapped block, another process may write to the file and change the bytes of the
    /// block. A compute kernel may therefore return true only if it does not rely on unchanged bytes. For example,
    /// valid UTF-8 may become invalid. The compute kernel must check every value that it has derived from the bytes.
    fn takes_windows(&self) -> bool {
        false
    }

    /// Returns true if the compute kernel itself reads blocks of cached files, several at a time, in
    /// [`Kernel::file_blocks`]. Compute kernels that run in another process read blocks themselves. The bytes then stay
    /// in the cache of the core that runs the other process. The runner ignores the value `true` if the compute kernel
    /// needs line numbers, or if its border is [`Border::Byte`].
    fn reads_files(&self) -> bool {
        false
    }

    /// Reads and processes consecutive blocks of a cached file. For each block, the compute kernel adds an element to
    /// `done`. The element contains the offset at which the lines of the block end, and the part. The element is `None`
    /// if no line begins in the block. The compute kernel may stop before any block, and the next call begins at that
    /// block. If the compute kernel adds no element, the runner reads the first block and calls [`Kernel::block`].
    ///
    /// # Errors
    /// Returns an error if the compute kernel cannot process a block. The error belongs to the first block that has no
    /// element in `done`.
    fn file_blocks(
        &self,
        _worker: &mut Self::Worker,
        _blocks: &FileBlocks<'_>,
        _done: &mut Vec<Option<(u64, Self::Part)>>,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Returns true if the compute kernel treats bytes after a NUL byte as binary data. In a line that extends far
    /// beyond the end of its block, the reader then replaces consecutive NUL bytes (such as a hole in a file) by one
    /// NUL byte. Offsets that the compute kernel computes for later bytes of this block are therefore too small.
    fn zeros_end_lines(&self) -> bool {
        false
    }

    /// Returns the approximate memory of a part in bytes. The runner limits the total memory of the parts that wait for
    /// delivery.
    fn part_bytes(&self, _part: &Self::Part) -> u64 {
        size_of::<Self::Part>() as u64
    }
}

/// Consecutive blocks of a file, for a compute kernel that [reads blocks itself](Kernel::reads_files). A line belongs
/// to the block in which it begins. As an exception, a line that begins exactly at the start of a block belongs to the
/// previous block. The first line of the file belongs to the first block.
#[derive(Clone, Copy, Debug)]
pub struct FileBlocks<'a> {
    /// The file, open for reading.
    pub file: BorrowedFd<'a>,
    /// The length of the file when it was opened. Bytes beyond this length are not read.
    pub file_bytes: u64,
    /// The offset of the first block.
    pub start: u64,
    /// The distance between the starts of two consecutive blocks, in bytes.
    pub stride: u64,
    /// The number of blocks.
    pub count: u64,
    /// If the file is a shard of a larger file, the offset of the shard in the larger file. Otherwise 0.
    pub base: u64,
}

/// The positions at which a source may be cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Border {
    /// A source may be cut after a line feed. A block contains complete lines. The last line of a source may lack its
    /// line feed.
    Line {
        /// True if the compute kernel calls [`Block::first_line`]. The workers then count the lines of all blocks.
        numbered: bool,
    },
    /// A source may be cut anywhere.
    Byte,
}

/// A block: the consecutive bytes of a source that a compute kernel processes in one call.
#[derive(Debug)]
pub struct Block<'a> {
    /// The index of the source among the sources that the call of [`run`](crate::run) received. The first source has
    /// index 0.
    pub source: usize,
    /// The offset of the bytes in the source. If the source is a shard of a file, the offset counts from the start of
    /// that file.
    pub offset: u64,
    /// The bytes of the block. A block is empty only if the complete source is empty.
    pub bytes: &'a [u8],
    pub(crate) number: u64,
    /// If the source is a shard of a file, the number of lines of the file before the shard. Otherwise 0.
    pub(crate) lines_before: u64,
    pub(crate) lines: Option<&'a LineCounts>,
    pub(crate) first_line: OnceCell<u64>,
}

impl Block<'_> {
    /// Returns true if the block begins at the first byte of its file. If the source is a shard of a larger file, the
    /// block must begin at the first byte of the larger file.
    pub fn is_first(&self) -> bool {
        self.offset == 0
    }

    /// Returns the number of the block's first line. Lines are counted from 1 at the beginning of the source. If the
    /// source is a shard of a larger file, lines are counted from the beginning of the larger file. The call waits
    /// until other workers have counted the lines of all earlier blocks.
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
