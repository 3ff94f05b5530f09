//! The output of an attempt: a scratch file with a range for each partition of the next stage.
//!
//! ```text
//!   file:       | range 0: batches as an Arrow IPC stream | range 2 ... | ...        ranges without rows take no bytes
//!   directory:  offset, length and CRC-32 of each range, in memory
//! ```

use std::{collections::VecDeque, io::Read};

use arrow_array::RecordBatch;
use arrow_ipc::{reader::StreamReader, writer::StreamWriter};
use inshore_kernel::Failure;
use inshore_store::{Budget, CheckedFile, FileReader, FileWriter, Job, Reservation};

/// The size of a checksum block and of a read buffer, in bytes.
pub(super) const BLOCK_BYTES: usize = 64 << 10;
/// The size of a write buffer, in bytes. A writer has two.
const WRITE_BYTES: usize = 512 << 10;

/// The memory of an [`OutputWriter`], in bytes: two write buffers, and an encoded batch.
pub const WRITER_BYTES: u64 = 2 * WRITE_BYTES as u64 + (1 << 20);
/// The memory of a [`RangeReader`] that reads a file, in bytes: two read buffers, and a decoded batch.
pub const READER_BYTES: u64 = 4 * BLOCK_BYTES as u64;

/// The location and checksum of a range in its file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeEntry {
    pub offset: u64,
    pub bytes: u64,
    pub crc: u32,
}

/// The complete output of an attempt.
#[derive(Debug)]
pub(super) struct StoredOutput {
    pub file: CheckedFile,
    pub ranges: Vec<RangeEntry>,
    /// The number of line feeds in bytes that were written without batches.
    pub lines: u64,
    /// The checksum of the directory.
    pub checksum: u64,
    /// The memory of the directory.
    _memory: Reservation,
}

impl StoredOutput {
    /// Returns the size of all ranges, in bytes.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| range.bytes).sum()
    }

    /// Returns the entry of a range. A range without bytes has an entry of zeros.
    pub fn range(&self, number: u32) -> RangeEntry {
        self.ranges.get(number as usize).copied().unwrap_or_default()
    }
}

/// Returns the checksum of a directory.
fn checksum(ranges: &[RangeEntry]) -> u64 {
    let mut hasher = crc32fast::Hasher::new();
    for RangeEntry { offset, bytes, crc } in ranges {
        hasher.update(&offset.to_le_bytes());
        hasher.update(&bytes.to_le_bytes());
        hasher.update(&crc.to_le_bytes());
    }
    hasher.finalize().into()
}

/// Writes the output of an attempt.
pub struct OutputWriter {
    budget: Budget,
    file: FileWriter,
    ranges: Vec<RangeEntry>,
    open: Option<OpenRange>,
    lines: u64,
}

struct OpenRange {
    number: u32,
    offset: u64,
    crc: crc32fast::Hasher,
    encoder: Option<StreamWriter<Vec<u8>>>,
}

impl std::fmt::Debug for OutputWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OutputWriter").field("bytes", &self.file.len()).finish_non_exhaustive()
    }
}

impl OutputWriter {
    /// Begins an output in the scratch space of `job`. The writer takes [`WRITER_BYTES`] of the budget.
    pub(super) fn create(job: &Job, name: &str) -> inshore_store::Result<OutputWriter> {
        let file = FileWriter::create(job, name, BLOCK_BYTES, WRITE_BYTES)?;
        let budget = job.budget().clone();
        Ok(OutputWriter { budget, file, ranges: Vec::new(), open: None, lines: 0 })
    }

    /// Appends a batch of rows to a range. All batches of a range have the same columns, and ranges are written in
    /// ascending order.
    ///
    /// # Errors
    /// Returns an error if the rows cannot be written.
    pub fn batch(&mut self, range: u32, batch: &RecordBatch) -> Result<(), Failure> {
        let open = self.range(range)?;
        let encoder = match &mut open.encoder {
            Some(encoder) => encoder,
            none => none.insert(StreamWriter::try_new(Vec::new(), &batch.schema())?),
        };
        encoder.write(batch)?;
        let bytes = std::mem::take(encoder.get_mut());
        self.append(&bytes)
    }

    /// Appends bytes to a result partition, which has one range.
    ///
    /// # Errors
    /// Returns an error if the bytes cannot be written.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.range(0)?;
        self.lines += memchr::memchr_iter(b'\n', bytes).count() as u64;
        self.append(bytes)
    }

    fn append(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.open.as_mut().expect("a range is open").crc.update(bytes);
        Ok(self.file.write(bytes)?)
    }

    /// Returns a range that is open. Closes the range before it.
    fn range(&mut self, number: u32) -> Result<&mut OpenRange, Failure> {
        let last = self.open.as_ref().map(|open| open.number);
        if last != Some(number) {
            if last.is_some_and(|last| last > number) || (self.ranges.len() as u32) > number {
                return Err(format!("range {number} is written after a later range").into());
            }
            self.close()?;
            let (offset, crc) = (self.file.len(), crc32fast::Hasher::new());
            self.open = Some(OpenRange { number, offset, crc, encoder: None });
        }
        Ok(self.open.as_mut().expect("opened above"))
    }

    fn close(&mut self) -> Result<(), Failure> {
        if let Some(encoder) = self.open.as_mut().and_then(|open| open.encoder.take()) {
            self.append(&encoder.into_inner()?)?;
        }
        let Some(OpenRange { number, offset, crc, .. }) = self.open.take() else { return Ok(()) };
        self.ranges.resize(number as usize, RangeEntry::default());
        let bytes = self.file.len() - offset;
        self.ranges.push(RangeEntry { offset, bytes, crc: crc.finalize() });
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<StoredOutput, Failure> {
        self.close()?;
        let bytes = (self.ranges.len() * size_of::<RangeEntry>()) as u64;
        let memory = self.budget.reserve(bytes, "the directory of an output")?;
        let file = self.file.finish()?;
        let checksum = checksum(&self.ranges);
        Ok(StoredOutput { file, ranges: self.ranges, lines: self.lines, checksum, _memory: memory })
    }
}

/// The place where the bytes of a range are stored.
#[derive(Debug)]
pub(super) enum RangeBytes {
    /// The pieces of the range, with the reservation of their memory.
    Memory(Vec<Vec<u8>>, Option<Reservation>),
    File(CheckedFile, RangeEntry),
}

/// Reads the batches of one range. A range in a file takes [`READER_BYTES`] of the budget.
pub struct RangeReader(Option<StreamReader<Box<dyn Read + Send>>>);

impl std::fmt::Debug for RangeReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RangeReader").field("is_empty", &self.0.is_none()).finish()
    }
}

impl RangeReader {
    pub(super) fn open(job: &Job, bytes: RangeBytes) -> Result<RangeReader, Failure> {
        let read: Box<dyn Read + Send> = match bytes {
            RangeBytes::Memory(pieces, _) if pieces.is_empty() => return Ok(RangeReader(None)),
            RangeBytes::Memory(pieces, memory) => {
                Box::new(Pieces { pieces: pieces.into(), used: 0, _memory: memory })
            }
            RangeBytes::File(_, entry) if entry.bytes == 0 => return Ok(RangeReader(None)),
            RangeBytes::File(file, entry) => Box::new(FileBytes::open(job, &file, entry)?),
        };
        Ok(RangeReader(Some(StreamReader::try_new(read, None)?)))
    }
}

impl Iterator for RangeReader {
    type Item = Result<RecordBatch, Failure>;

    fn next(&mut self) -> Option<Result<RecordBatch, Failure>> {
        Some(self.0.as_mut()?.next()?.map_err(Failure::from))
    }
}

/// The bytes of a range in memory, as a reader that frees each piece after its last byte.
struct Pieces {
    pieces: VecDeque<Vec<u8>>,
    used: usize,
    _memory: Option<Reservation>,
}

impl Read for Pieces {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let Some(piece) = self.pieces.front() else { return Ok(0) };
        let len = (piece.len() - self.used).min(out.len());
        out[..len].copy_from_slice(&piece[self.used..self.used + len]);
        self.used += len;
        if self.used == piece.len() {
            self.pieces.pop_front();
            self.used = 0;
        }
        Ok(len)
    }
}

/// The bytes of a range in a file, as a reader that checks the range's CRC-32 at the end.
struct FileBytes {
    reader: FileReader,
    used: usize,
    left: u64,
    crc: crc32fast::Hasher,
    expected: u32,
}

impl FileBytes {
    fn open(job: &Job, file: &CheckedFile, entry: RangeEntry) -> inshore_store::Result<FileBytes> {
        let range = entry.offset..entry.offset + entry.bytes;
        let reader = FileReader::new(job, file, range, BLOCK_BYTES)?;
        let crc = crc32fast::Hasher::new();
        Ok(FileBytes { reader, used: 0, left: entry.bytes, crc, expected: entry.crc })
    }
}

impl Read for FileBytes {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 || out.is_empty() {
            return Ok(0);
        }
        if self.used == self.reader.piece().len() {
            self.used = 0;
            self.reader.next_piece().map_err(std::io::Error::other)?;
        }
        let piece = &self.reader.piece()[self.used..];
        let len = piece.len().min(out.len());
        out[..len].copy_from_slice(&piece[..len]);
        self.crc.update(&piece[..len]);
        self.used += len;
        self.left -= len as u64;
        if self.left == 0 && self.crc.clone().finalize() != self.expected {
            return Err(std::io::Error::other("the checksum of a range does not match"));
        }
        Ok(len)
    }
}
