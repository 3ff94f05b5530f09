//! What is done with a block.

use std::{cell::OnceCell, os::fd::BorrowedFd};

use inshore_store::Context;

use crate::{Error, lines::LineCounts};

/// A block of a file in the page cache, unless the kernel wants others: it is copied into a buffer that stays in a core's cache
/// of the second level.
pub(crate) const CACHED_BYTES: usize = 256 << 10;

/// A streaming function over blocks of sources. What comes of the blocks of a source is handed over in their order, or
/// kept by the worker where order does not matter; either way it merges, so that a source may be cut anywhere.
///
/// Nothing in a kernel may assume where it runs: it sees bytes, and never a path.
pub trait Kernel: Sync {
    /// What it fails with.
    type Error: From<Error> + Send;
    /// What a worker keeps from block to block: buffers, tables.
    type Worker: Send;
    /// What comes of a block.
    type Part: Send;

    /// Where a source may be cut.
    fn border(&self) -> Border;

    /// Makes what a worker keeps, within the job's budget.
    ///
    /// # Errors
    /// Those of the kernel; a budget that has no room.
    fn worker(&self, context: &Context) -> Result<Self::Worker, Self::Error>;

    /// Works on a block.
    ///
    /// # Errors
    /// Those of the kernel. The source is left then, and the consumer is told.
    fn block(&self, worker: &mut Self::Worker, block: &Block<'_>) -> Result<Self::Part, Self::Error>;

    /// Bytes of the blocks of files in the page cache, each worker's memory for one: 256 KiB, and more where each block costs
    /// something by itself.
    fn cached_block_bytes(&self) -> usize {
        CACHED_BYTES
    }

    /// Whether blocks of large files in the page cache may be given where they lie there, without a copy, 1 MiB each. Who writes to such a file
    /// meanwhile changes the bytes of the block under the kernel's eyes: only for kernels that take them for nothing but bytes,
    /// and check whatever they conclude from them (what was UTF-8 a moment ago need not be now).
    fn takes_windows(&self) -> bool {
        false
    }

    /// Whether it reads blocks of files in the page cache itself, by [`Kernel::file_blocks`], several at a time: for a kernel that
    /// has another process work on them, so that the bytes stay in the cache of that one's core. Lines can't be numbered then.
    fn reads_files(&self) -> bool {
        false
    }

    /// Reads blocks of a file in the page cache, from the first on, works on them, and adds to `done` for each where its lines end
    /// in the file and what came of it, or `None` where that is nothing and need not be told. It may stop before any block: the next
    /// is asked for anew. Where it adds none at all, the first one is read for it and given to [`Kernel::block`].
    ///
    /// # Errors
    /// Those of the kernel, of the first block that it did not add.
    fn file_blocks(
        &self,
        _worker: &mut Self::Worker,
        _blocks: &FileBlocks<'_>,
        _done: &mut Vec<Option<(u64, Self::Part)>>,
    ) -> Result<(), Self::Error> {
        Ok(())
    }

    /// True where the kernel takes bytes behind a NUL byte for binary data. Of a run of NUL bytes in a line that is longer than the
    /// memory for a line, the kernel then sees only one. Where a file has such a hole, the offsets of what lies behind it in the same
    /// block are then too small.
    fn zeros_end_lines(&self) -> bool {
        false
    }

    /// About how much memory a part takes: parts that wait for their turn are limited by it.
    fn part_bytes(&self, _part: &Self::Part) -> u64 {
        size_of::<Self::Part>() as u64
    }
}

/// Blocks of a file, one after the other, for a kernel that [reads them itself](Kernel::reads_files). A block has the lines
/// that begin in it, but not one that begins exactly where it does, unless that is the start of the file: that one is of the
/// block before it.
#[derive(Clone, Copy, Debug)]
pub struct FileBlocks<'a> {
    /// The file, open for reading.
    pub file: BorrowedFd<'a>,
    /// Bytes that it had when it was opened: what is behind them is not read.
    pub file_bytes: u64,
    /// Where the first block begins.
    pub start: u64,
    /// Bytes from one to the next.
    pub stride: u64,
    /// How many.
    pub count: u64,
    /// Bytes of the whole that the file is a part of, before it.
    pub base: u64,
}

/// Where a source may be cut into blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Border {
    /// After a line feed: a block has whole lines, and the last line of a source may lack its end.
    Line {
        /// Whether [`Block::first_line`] will be asked for, which counts the lines of all blocks.
        numbered: bool,
    },
    /// Anywhere.
    Byte,
}

/// Some bytes of a source.
#[derive(Debug)]
pub struct Block<'a> {
    /// The number of the source, as they were given, from 0.
    pub source: usize,
    /// Where in the source the bytes begin, or in the whole that it is a part of.
    pub offset: u64,
    /// The bytes; empty where all of the source is, and never else.
    pub bytes: &'a [u8],
    pub(crate) number: u64,
    /// Lines of the whole before the source.
    pub(crate) lines_before: u64,
    pub(crate) lines: Option<&'a LineCounts>,
    pub(crate) first_line: OnceCell<u64>,
}

impl Block<'_> {
    /// Whether the source, or the whole that it is a part of, begins with it.
    pub fn is_first(&self) -> bool {
        self.offset == 0
    }

    /// The number of the first line, where the first of a source (or the whole that it is a part of) is 1. Waits until the lines of all blocks before this one
    /// are counted, which other workers do.
    ///
    /// # Panics
    /// Where the [`Border`] said that nobody would ask.
    pub fn first_line(&self) -> u64 {
        *self.first_line.get_or_init(|| {
            1 + self.lines_before
                + self.lines.expect("a kernel that numbers lines says so").before(self.number)
        })
    }
}
