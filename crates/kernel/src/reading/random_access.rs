//! Reads sources at any position: files and datasets.

use std::{
    io::{self, Read},
    ops::Range,
    os::fd::AsFd,
};

use inshore_store::{Buffer, CheckedFile, Context, FileReader, Job, PendingPiece, PendingRead, PlainFile};

use super::{
    MARGIN_BYTES, Plan,
    memory_maps::{MemoryMaps, WINDOW_BLOCK_BYTES, WINDOW_BYTES},
};
use crate::{FileBlocks, OpenedSource, Result};

const PAGE_BYTES: u64 = 4096;

/// A source that is read at any position.
#[derive(Debug)]
pub(crate) enum RandomAccessSource {
    /// A file in the page cache. The memory maps are present if blocks are mapped instead of copied.
    Cached(PlainFile, Option<MemoryMaps>),
    Direct(PlainFile),
    /// A byte range of a dataset's file. Bytes outside of the range do not belong to the source.
    Dataset(Job, CheckedFile, Range<u64>),
}

impl RandomAccessSource {
    /// Converts an opened source. If the source can only be read sequentially, the result is `Err` with a stream. This
    /// is also the case for a dataset whose checksum blocks are too large for the read size of the plan.
    pub fn of(opened: OpenedSource, plan: &Plan) -> Result<std::result::Result<RandomAccessSource, Stream>> {
        Ok(match opened {
            OpenedSource::File(file) if file.is_cached() => {
                let takes_windows = plan.takes_windows && file.len() >= 2 * WINDOW_BYTES;
                let windows = takes_windows.then(|| MemoryMaps::new(&file)).transpose()?;
                Ok(RandomAccessSource::Cached(file, windows))
            }
            OpenedSource::File(file) => Ok(RandomAccessSource::Direct(file)),
            OpenedSource::Dataset(job, file, range)
                if (1 + touched_beside(&file, &range)) * file.block_bytes() > plan.direct_bytes =>
            {
                Err(DatasetStream::open(&job, &file, range)?)
            }
            OpenedSource::Dataset(job, file, range) => Ok(RandomAccessSource::Dataset(job, file, range)),
            OpenedSource::Stream(stream) => Err(stream),
        })
    }

    pub fn len(&self) -> u64 {
        match self {
            RandomAccessSource::Cached(file, _) | RandomAccessSource::Direct(file) => file.len(),
            RandomAccessSource::Dataset(.., range) => range.end - range.start,
        }
    }

    pub fn name(&self) -> String {
        match self {
            RandomAccessSource::Cached(file, _) | RandomAccessSource::Direct(file) => {
                file.path().display().to_string()
            }
            RandomAccessSource::Dataset(_, file, _) => file.name().to_string(),
        }
    }

    /// Returns true if reads take so long that workers start them before they need the bytes.
    pub fn is_slow(&self) -> bool {
        !matches!(self, RandomAccessSource::Cached(..))
    }

    /// Returns the distance between the starts of two consecutive blocks, in bytes. The distance is chosen so that a
    /// block and its margin fit into a buffer.
    pub fn stride(&self, plan: &Plan) -> u64 {
        let bytes = match self {
            RandomAccessSource::Cached(_, Some(_)) => WINDOW_BLOCK_BYTES as usize,
            RandomAccessSource::Cached(_, None) => plan.cached_bytes,
            RandomAccessSource::Direct(_) => plan.direct_bytes - MARGIN_BYTES,
            RandomAccessSource::Dataset(_, file, range) => {
                plan.direct_bytes - touched_beside(file, range) * file.block_bytes().max(MARGIN_BYTES)
            }
        };
        bytes as u64
    }

    /// Returns `count` blocks, starting with block `number`, for a compute kernel that reads blocks itself. The result
    /// is `None` if the file is not in the page cache.
    pub fn blocks(&self, plan: &Plan, number: u64, count: u64, base: u64) -> Option<FileBlocks<'_>> {
        let (RandomAccessSource::Cached(file, _), stride) = (self, self.stride(plan)) else { return None };
        let (file_bytes, start, file) = (file.len(), number * stride, file.as_fd());
        Some(FileBlocks { file, file_bytes, start, stride, count, base })
    }

    pub fn margin(&self) -> u64 {
        match self {
            RandomAccessSource::Cached(..) | RandomAccessSource::Direct(_) => MARGIN_BYTES as u64,
            RandomAccessSource::Dataset(_, file, _) => file.block_bytes() as u64,
        }
    }

    pub fn begin(&self, context: &Context, range: Range<u64>, buffer: Buffer) -> Result<ReadInFlight> {
        Ok(match self {
            RandomAccessSource::Cached(file, _) | RandomAccessSource::Direct(file) => {
                let start = range.start / PAGE_BYTES * PAGE_BYTES;
                let wanted = (range.start - start) as usize..(range.end - start) as usize;
                ReadInFlight::Piece(file.submit_read(context, start, buffer), wanted)
            }
            RandomAccessSource::Dataset(job, file, all) => {
                let range = all.start + range.start..all.start + range.end;
                ReadInFlight::Checked(file.submit_read(job, range, buffer)?)
            }
        })
    }
}

/// Returns the number of additional checksum blocks that are read with a block. One checksum block after the block
/// contains the end of its last line. If the range does not begin at the start of a checksum block, one more is read.
fn touched_beside(file: &CheckedFile, range: &Range<u64>) -> usize {
    if range.start.is_multiple_of(file.block_bytes() as u64) { 1 } else { 2 }
}

pub(crate) type Stream = Box<dyn Read + Send>;

/// Reads a file of a dataset as a stream.
struct DatasetStream {
    reader: FileReader,
    piece: Vec<u8>,
    place: usize,
}

impl DatasetStream {
    fn open(job: &Job, file: &CheckedFile, range: Range<u64>) -> Result<Stream> {
        let reader = FileReader::new(job, file, range, file.block_bytes())?;
        Ok(Box::new(DatasetStream { reader, piece: Vec::new(), place: 0 }))
    }
}

impl OpenedSource {
    /// Returns the bytes of a dataset or of a stream, in their order. Returns `None` for a file of the file system.
    ///
    /// # Errors
    /// Returns an error if the budget of the dataset's job does not suffice for the buffers of a reader.
    pub fn into_stream(self) -> Result<Option<Box<dyn Read + Send>>> {
        match self {
            OpenedSource::File(_) => Ok(None),
            OpenedSource::Dataset(job, file, range) => DatasetStream::open(&job, &file, range).map(Some),
            OpenedSource::Stream(stream) => Ok(Some(stream)),
        }
    }
}

impl Read for DatasetStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.place == self.piece.len() {
            let Some(piece) = self.reader.next_piece().map_err(io::Error::other)? else { return Ok(0) };
            self.piece.clear();
            self.piece.extend_from_slice(piece);
            self.place = 0;
        }
        let len = out.len().min(self.piece.len() - self.place);
        out[..len].copy_from_slice(&self.piece[self.place..self.place + len]);
        self.place += len;
        Ok(len)
    }
}

/// A read of a block in flight.
pub(crate) enum ReadInFlight {
    Piece(PendingPiece, Range<usize>),
    Checked(PendingRead),
}

impl ReadInFlight {
    pub fn wait(self) -> Result<(Buffer, Range<usize>)> {
        Ok(match self {
            ReadInFlight::Piece(pending, wanted) => (pending.wait()?.0, wanted),
            ReadInFlight::Checked(pending) => pending.wait()?,
        })
    }
}
