//! The output of an attempt: a scratch file with a range for each partition of the next stage.
//!
//! ```text
//!   file:       | range 0 | range 2 | range 3 | range 0 | range 3 | ...      segments: rows as an Arrow IPC stream
//!   directory:  bytes, CRC-32 and segments of each range, in memory
//! ```
//!
//! Rows arrive in any order of ranges. Encoded rows wait in a buffer that all ranges share, and a full buffer is written
//! as one segment for each range. Segments that touch each other are one, so a range whose rows arrive together has one
//! segment.

use std::{
    collections::{BTreeMap, VecDeque},
    io::Read,
    ops::Range,
};

use arrow_array::RecordBatch;
use arrow_ipc::{reader::StreamReader, writer::StreamWriter};
use inshore_kernel::Failure;
use inshore_store::{Budget, CheckedFile, FileReader, FileWriter, Job, Reservation};

/// The size of a checksum block and of a read buffer, in bytes.
pub(super) const BLOCK_BYTES: usize = 64 << 10;
/// The size of a write buffer, in bytes. A writer has two.
const WRITE_BYTES: usize = 512 << 10;
/// The size at which the buffer of encoded rows is written, in bytes.
const BUFFER_BYTES: usize = 512 << 10;

/// The memory of an [`OutputWriter`], in bytes: two write buffers, the buffer of encoded rows, and an encoded batch.
pub const WRITER_BYTES: u64 = 2 * WRITE_BYTES as u64 + BUFFER_BYTES as u64 + (512 << 10);
/// The memory of a [`RangeReader`] that reads a file, in bytes: two read buffers, and a decoded batch.
pub const READER_BYTES: u64 = 4 * BLOCK_BYTES as u64;

/// The location and checksum of a range in its file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct RangeEntry {
    pub bytes: u64,
    pub crc: u32,
    /// The positions in the file, in the order of the range.
    pub segments: Vec<Range<u64>>,
}

/// The complete output of an attempt.
#[derive(Debug)]
pub(super) struct StoredOutput {
    pub file: CheckedFile,
    pub ranges: Vec<RangeEntry>,
    /// The number of line feeds in bytes that were written without batches.
    pub lines: u64,
    /// The counts of the attempt.
    pub counts: Vec<u64>,
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

    /// Returns the entry of a range. A range without bytes has an empty entry.
    pub fn range(&self, number: u32) -> RangeEntry {
        self.ranges.get(number as usize).cloned().unwrap_or_default()
    }
}

/// Returns the checksum of a directory.
fn checksum(ranges: &[RangeEntry]) -> u64 {
    let mut hasher = crc32fast::Hasher::new();
    for RangeEntry { bytes, crc, segments } in ranges {
        hasher.update(&bytes.to_le_bytes());
        hasher.update(&crc.to_le_bytes());
        for segment in segments {
            hasher.update(&segment.start.to_le_bytes());
        }
    }
    hasher.finalize().into()
}

/// Writes the output of an attempt.
pub struct OutputWriter {
    budget: Budget,
    file: FileWriter,
    ranges: Vec<RangeEntry>,
    /// The ranges whose rows are being encoded.
    open: BTreeMap<u32, OpenRange>,
    /// The size at which the buffers of all open ranges are written, in bytes.
    buffer_bytes: usize,
    /// The number of encoded bytes that are not written.
    buffered: usize,
    /// The memory of a buffer that is larger than that of [`WRITER_BYTES`].
    buffer: Option<Reservation>,
    lines: u64,
    counts: Vec<u64>,
}

#[derive(Default)]
struct OpenRange {
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
        Ok(OutputWriter {
            file: FileWriter::create(job, name, BLOCK_BYTES, WRITE_BYTES)?,
            budget: job.budget().clone(),
            ranges: Vec::new(),
            open: BTreeMap::new(),
            buffer_bytes: BUFFER_BYTES,
            buffered: 0,
            buffer: None,
            lines: 0,
            counts: Vec::new(),
        })
    }

    /// Takes `bytes` bytes of the budget of `job` as the buffer of encoded rows. With a larger buffer, a range has fewer
    /// and longer segments.
    ///
    /// # Errors
    /// Returns an error if the budget has fewer bytes.
    pub fn set_buffer(&mut self, job: &Job, bytes: u64) -> Result<(), Failure> {
        self.buffer = Some(job.budget().reserve(bytes, "encoded rows of an exchange")?);
        self.buffer_bytes = usize::try_from(bytes)?.max(BUFFER_BYTES);
        Ok(())
    }

    /// Appends a batch of rows to a range. All batches of a range have the same columns.
    ///
    /// # Errors
    /// Returns an error if the rows cannot be written, or if the range was closed.
    pub fn batch(&mut self, range: u32, batch: &RecordBatch) -> Result<(), Failure> {
        let open = self.open(range)?;
        let before = open.encoder.as_ref().map_or(0, |encoder| encoder.get_ref().len());
        let encoder = match &mut open.encoder {
            Some(encoder) => encoder,
            none => none.insert(StreamWriter::try_new(Vec::new(), &batch.schema())?),
        };
        encoder.write(batch)?;
        self.buffered += encoder.get_ref().len() - before;
        if self.buffered >= self.buffer_bytes { self.flush() } else { Ok(()) }
    }

    /// Appends bytes to a result partition, which has one range.
    ///
    /// # Errors
    /// Returns an error if the bytes cannot be written.
    pub fn bytes(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.open(0)?;
        self.lines += memchr::memchr_iter(b'\n', bytes).count() as u64;
        self.append(0, bytes)
    }

    /// Sets the counts of the attempt, such as that of the vertices which changed. The driver adds up those of a stage, one
    /// number after the other: see [`run_growing`](crate::run_growing) and
    /// [`FinishedJob::counts`](crate::FinishedJob::counts).
    pub fn set_counts(&mut self, counts: impl Into<Vec<u64>>) {
        self.counts = counts.into();
    }

    /// Ends a range, which gets no more rows. An open range keeps an encoder in memory.
    ///
    /// # Errors
    /// Returns an error if the rows cannot be written.
    pub fn close(&mut self, range: u32) -> Result<(), Failure> {
        let Some(encoder) = self.open.get_mut(&range).map(|open| open.encoder.take()) else { return Ok(()) };
        if let Some(encoder) = encoder {
            let before = encoder.get_ref().len();
            let bytes = encoder.into_inner()?;
            self.buffered -= before;
            self.append(range, &bytes)?;
        }
        let crc = self.open.remove(&range).map_or(0, |open| open.crc.finalize());
        self.entry(range).crc = crc;
        Ok(())
    }

    /// Writes the encoded rows of all open ranges.
    fn flush(&mut self) -> Result<(), Failure> {
        let encoded = |(&range, open): (&u32, &mut OpenRange)| {
            let bytes = std::mem::take(open.encoder.as_mut()?.get_mut());
            (!bytes.is_empty()).then_some((range, bytes))
        };
        let all: Vec<(u32, Vec<u8>)> = self.open.iter_mut().filter_map(encoded).collect();
        self.buffered = 0;
        all.into_iter().try_for_each(|(range, bytes)| self.append(range, &bytes))
    }

    fn append(&mut self, range: u32, bytes: &[u8]) -> Result<(), Failure> {
        self.open.get_mut(&range).expect("the range is open").crc.update(bytes);
        let start = self.file.len();
        self.file.write(bytes)?;
        let end = self.file.len();
        let entry = self.entry(range);
        entry.bytes += end - start;
        match entry.segments.last_mut().filter(|last| last.end == start) {
            Some(last) => last.end = end,
            None => entry.segments.push(start..end),
        }
        Ok(())
    }

    fn entry(&mut self, range: u32) -> &mut RangeEntry {
        let number = range as usize;
        if self.ranges.len() <= number {
            self.ranges.resize(number + 1, RangeEntry::default());
        }
        &mut self.ranges[number]
    }

    fn open(&mut self, range: u32) -> Result<&mut OpenRange, Failure> {
        let is_closed = !self.open.contains_key(&range)
            && self.ranges.get(range as usize).is_some_and(|entry| entry.bytes > 0);
        if is_closed {
            return Err(format!("range {range} is written after its end").into());
        }
        Ok(self.open.entry(range).or_default())
    }

    pub(super) fn finish(mut self) -> Result<StoredOutput, Failure> {
        for range in self.open.keys().copied().collect::<Vec<_>>() {
            self.close(range)?;
        }
        let segments: usize = self.ranges.iter().map(|range| range.segments.len()).sum();
        let bytes = self.ranges.len() * size_of::<RangeEntry>() + segments * size_of::<Range<u64>>();
        let memory = self.budget.reserve(bytes as u64, "the directory of an output")?;
        let file = self.file.finish()?;
        let checksum = checksum(&self.ranges);
        let (lines, counts) = (self.lines, self.counts);
        Ok(StoredOutput { file, ranges: self.ranges, lines, counts, checksum, _memory: memory })
    }
}

/// The place where the bytes of a range are stored.
#[derive(Debug)]
pub(super) enum RangeBytes {
    /// The pieces of the range, with the reservation of their memory.
    Memory(Vec<Vec<u8>>, Option<Reservation>),
    File(CheckedFile, RangeEntry),
}

/// A range that a merge attempt reads.
#[derive(Debug)]
pub struct RangeInput(pub(super) RangeBytes);

impl RangeInput {
    /// Returns the size of the range, in bytes.
    pub fn bytes(&self) -> u64 {
        match &self.0 {
            RangeBytes::Memory(pieces, _) => pieces.iter().map(|piece| piece.len() as u64).sum(),
            RangeBytes::File(_, entry) => entry.bytes,
        }
    }

    /// Opens the range. A range in a file takes [`READER_BYTES`] of the budget.
    ///
    /// # Errors
    /// Returns an error if the budget does not suffice, or if the range is damaged.
    pub fn open(self, job: &Job) -> Result<RangeReader, Failure> {
        let bytes = self.open_bytes(job)?;
        Ok(RangeReader(bytes.map(|bytes| StreamReader::try_new(bytes, None)).transpose()?))
    }

    /// Opens the range as bytes of an Arrow IPC stream. Returns `None` for a range without rows.
    ///
    /// # Errors
    /// Returns an error if the budget does not suffice.
    pub fn open_bytes(self, job: &Job) -> Result<Option<Box<dyn Read + Send>>, Failure> {
        Ok(match self.0 {
            RangeBytes::Memory(pieces, _) if pieces.is_empty() => None,
            RangeBytes::Memory(pieces, memory) => {
                Some(Box::new(Pieces { pieces: pieces.into(), used: 0, _memory: memory }))
            }
            RangeBytes::File(_, entry) if entry.bytes == 0 => None,
            RangeBytes::File(file, entry) => Some(Box::new(FileBytes::open(job, file, entry)?)),
        })
    }
}

/// Reads the batches of one range. A range in a file takes [`READER_BYTES`] of the budget.
pub struct RangeReader(Option<StreamReader<Box<dyn Read + Send>>>);

impl std::fmt::Debug for RangeReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RangeReader").field("is_empty", &self.0.is_none()).finish()
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
    job: Job,
    file: CheckedFile,
    /// The segments that follow the one that is read.
    segments: std::vec::IntoIter<Range<u64>>,
    reader: FileReader,
    used: usize,
    left: u64,
    crc: crc32fast::Hasher,
    expected: u32,
}

impl FileBytes {
    fn open(job: &Job, file: CheckedFile, entry: RangeEntry) -> inshore_store::Result<FileBytes> {
        let mut segments = entry.segments.into_iter();
        let first = segments.next().unwrap_or(0..0);
        let reader = FileReader::new(job, &file, first, BLOCK_BYTES)?;
        let (job, crc, expected) = (job.clone(), crc32fast::Hasher::new(), entry.crc);
        Ok(FileBytes { job, file, segments, reader, used: 0, left: entry.bytes, crc, expected })
    }

    /// Reads the next piece. After the last piece of a segment follows the next segment.
    fn advance(&mut self) -> inshore_store::Result<()> {
        self.used = 0;
        while self.reader.next_piece()?.is_none() {
            let Some(segment) = self.segments.next() else { return Ok(()) };
            self.reader = FileReader::new(&self.job, &self.file, segment, BLOCK_BYTES)?;
        }
        Ok(())
    }
}

impl Read for FileBytes {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        if self.left == 0 || out.is_empty() {
            return Ok(0);
        }
        if self.used == self.reader.piece().len() {
            self.advance().map_err(std::io::Error::other)?;
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
