//! Reads files of datasets, as a stream or with random access. This machine may have only some parts of a file.

use std::{
    io::{self, Read},
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use inshore_store::{Buffer, CheckedFile, FileReader, Job};

use crate::{Error, Result};

/// The minimum size of a read in bytes. This is also the size of the largest block that has a checksum.
const WINDOW_BYTES: usize = 256 << 10;
/// The maximum number of windows (read buffers) of one file. Up to this number of columns can be read at the same time
/// without reading bytes twice. All windows together take at most a sixteenth of the budget.
const WINDOWS_MAX: usize = 32;

/// A file of a dataset, and the job that reads it.
#[derive(Clone, Debug)]
pub(crate) struct StoredFile {
    pub job: Job,
    pub file: CheckedFile,
}

impl StoredFile {
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    fn window_bytes(&self) -> usize {
        WINDOW_BYTES.max(self.file.block_bytes()).next_multiple_of(self.file.block_bytes())
    }

    /// Streams the whole file from its start.
    pub fn stream(&self) -> Result<StoredStream> {
        self.stream_of(0..self.len())
    }

    fn stream_of(&self, range: Range<u64>) -> Result<StoredStream> {
        let reader = FileReader::new(&self.job, &self.file, range, self.window_bytes())?;
        Ok(StoredStream { reader, given: 0 })
    }
}

/// A part of a file, beginning at byte `at` of the file.
#[derive(Clone, Debug)]
pub struct FilePart {
    /// The offset of the part in the file.
    pub at: u64,
    /// The bytes of the part.
    pub bytes: PartBytes,
}

/// The place where the bytes of a part are stored.
#[derive(Clone, Debug)]
pub enum PartBytes {
    /// The bytes are in memory.
    Memory(Arc<[u8]>),
    /// The bytes are in a file of a dataset on the store of a job.
    Stored(Job, CheckedFile, Range<u64>),
}

impl FilePart {
    fn range(&self) -> Range<u64> {
        let len = match &self.bytes {
            PartBytes::Memory(bytes) => bytes.len() as u64,
            PartBytes::Stored(.., range) => range.end - range.start,
        };
        self.at..self.at + len
    }
}

/// A file of which this machine has some parts.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    pub len: u64,
    /// The parts in order, without overlaps.
    list: Vec<FilePart>,
}

impl Parts {
    /// Sorts the parts by their offsets. A part that overlaps with an earlier part of `parts` is dropped.
    pub fn new(len: u64, parts: Vec<FilePart>) -> Parts {
        let mut list: Vec<FilePart> = Vec::new();
        for part in parts {
            let range = part.range();
            let is_over = |other: &FilePart| {
                let other = other.range();
                other.start < range.end && range.start < other.end
            };
            if !list.iter().any(is_over) {
                list.push(part);
            }
        }
        list.sort_by_key(|part| part.at);
        Parts { len, list }
    }

    /// Returns true if a single part has all bytes of `range`.
    pub fn hold(&self, range: &Range<u64>) -> bool {
        self.list.iter().any(|part| {
            let part = part.range();
            part.start <= range.start && range.end <= part.end
        })
    }

    /// Returns the total size, in bytes, of the parts that are not in memory.
    #[cfg(feature = "records")]
    pub fn stored_bytes(&self) -> u64 {
        let stored = self.list.iter().filter(|part| matches!(part.bytes, PartBytes::Stored(..)));
        stored.map(|part| part.range().end - part.at).sum()
    }

    /// Streams the parts of the file one after the other. Gaps between the parts are left out.
    pub fn stream(&self) -> PartsStream {
        PartsStream { parts: self.clone(), next: 0, current: None }
    }

    pub fn pieces(&self) -> PartPieces {
        let piece = |part: &FilePart| match &part.bytes {
            PartBytes::Memory(_) => None,
            PartBytes::Stored(job, file, _) => {
                Some(StoredPieces::new(StoredFile { job: job.clone(), file: file.clone() }))
            }
        };
        PartPieces { stored: self.list.iter().map(piece).collect(), parts: self.clone() }
    }
}

/// The parts of a file as a stream of bytes.
pub(crate) struct PartsStream {
    parts: Parts,
    next: usize,
    current: Option<Box<dyn Read + Send>>,
}

impl Read for PartsStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            if let Some(current) = &mut self.current {
                let read = current.read(out)?;
                if read > 0 || out.is_empty() {
                    return Ok(read);
                }
            }
            let Some(part) = self.parts.list.get(self.next) else { return Ok(0) };
            self.next += 1;
            // The previous part releases its memory before the next part is opened.
            self.current = None;
            self.current = Some(match &part.bytes {
                PartBytes::Memory(bytes) => Box::new(io::Cursor::new(bytes.clone())),
                PartBytes::Stored(job, file, range) => {
                    let stored = StoredFile { job: job.clone(), file: file.clone() };
                    Box::new(stored.stream_of(range.clone()).map_err(io::Error::other)?)
                }
            });
        }
    }
}

/// The parts of a file, with random access.
pub(crate) struct PartPieces {
    parts: Parts,
    stored: Vec<Option<StoredPieces>>,
}

impl PartPieces {
    /// Returns how many bytes lie between `start` and the end of the part that contains `start`. If no part contains
    /// `start`, the result is `u64::MAX`, and a read at `start` fails.
    pub fn bytes_from(&self, start: u64) -> u64 {
        let mut parts = self.parts.list.iter().map(FilePart::range);
        parts.find(|part| part.contains(&start)).map_or(u64::MAX, |part| part.end - start)
    }

    /// Fills `out` with the bytes of the file from `start` on.
    pub fn read_exact_at(&self, name: &str, mut out: &mut [u8], mut start: u64) -> Result<()> {
        while !out.is_empty() {
            let found = self.parts.list.iter().position(|part| part.range().contains(&start));
            let place = found.ok_or_else(|| {
                let end = start + out.len() as u64;
                Error::damaged(name, format!("bytes {start} to {end} were not sent to this machine"))
            })?;
            let part = &self.parts.list[place];
            let range = part.range();
            let len = (range.end - start).min(out.len() as u64) as usize;
            let (filled, rest) = std::mem::take(&mut out).split_at_mut(len);
            let from = start - range.start;
            match (&part.bytes, &self.stored[place]) {
                (PartBytes::Memory(bytes), _) => {
                    filled.copy_from_slice(&bytes[from as usize..from as usize + len]);
                }
                (PartBytes::Stored(.., inside), Some(stored)) => {
                    stored.read_exact_at(filled, inside.start + from)?;
                }
                (PartBytes::Stored(..), None) => unreachable!("made together"),
            }
            (out, start) = (rest, start + len as u64);
        }
        Ok(())
    }
}

/// A file as a stream of bytes.
pub(crate) struct StoredStream {
    reader: FileReader,
    /// How many bytes of the current read buffer were already returned.
    given: usize,
}

impl Read for StoredStream {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.given == self.reader.piece().len() {
            self.given = 0;
            let next = self.reader.next_piece().map_err(|error| io::Error::other(Error::Store(error)))?;
            if next.is_none() {
                return Ok(0);
            }
        }
        let piece = &self.reader.piece()[self.given..];
        let len = piece.len().min(out.len());
        out[..len].copy_from_slice(&piece[..len]);
        self.given += len;
        Ok(len)
    }
}

/// A file with random access through read buffers. A few buffers suffice, since the pages of a column are consecutive.
pub(crate) struct StoredPieces {
    stored: StoredFile,
    windows: Mutex<Vec<StoredWindow>>,
}

/// A window. A window is a read buffer that contains a range of the file.
struct StoredWindow {
    range: Range<u64>,
    /// The position in the buffer of the first byte of the range.
    start: usize,
    buffer: Buffer,
}

impl StoredWindow {
    fn bytes(&self, from: u64) -> &[u8] {
        let len = (self.range.end - self.range.start) as usize;
        &self.buffer[self.start..self.start + len][(from - self.range.start) as usize..]
    }
}

impl StoredPieces {
    pub fn new(stored: StoredFile) -> StoredPieces {
        StoredPieces { stored, windows: Mutex::default() }
    }

    /// Fills `out` with the bytes of the file from `start` on. All these bytes must lie within the file.
    pub fn read_exact_at(&self, mut out: &mut [u8], mut start: u64) -> Result<()> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        while !out.is_empty() {
            let at = match windows.iter().position(|window| window.range.contains(&start)) {
                Some(at) => at,
                None => self.load(&mut windows, start)?,
            };
            // `windows` is ordered by use. The last window was used most recently.
            let window = windows.remove(at);
            let bytes = window.bytes(start);
            let len = bytes.len().min(out.len());
            let (filled, rest) = std::mem::take(&mut out).split_at_mut(len);
            filled.copy_from_slice(&bytes[..len]);
            (out, start) = (rest, start + len as u64);
            windows.push(window);
        }
        Ok(())
    }

    /// Reads the window around `start`, and returns its index. If no further window is allowed, or if the budget has no
    /// memory for it, the least recently used window is replaced.
    fn load(&self, windows: &mut Vec<StoredWindow>, start: u64) -> Result<usize> {
        let StoredFile { job, file } = &self.stored;
        let window_bytes = self.stored.window_bytes();
        let first = start / window_bytes as u64 * window_bytes as u64;
        let range = first..(first + window_bytes as u64).min(file.len());
        let oldest = |windows: &mut Vec<StoredWindow>| windows.remove(0).buffer;
        let share = job.budget().memory_bytes() / 16 / job.budget().threads() as u64;
        let most = (share as usize / window_bytes).clamp(1, WINDOWS_MAX);
        let buffer = match windows.len() < most {
            false => oldest(windows),
            true => match Buffer::zeroed(job.budget(), window_bytes, "read buffers of a file") {
                Err(inshore_store::RuntimeError::OverBudget { .. }) if !windows.is_empty() => oldest(windows),
                more => more?,
            },
        };
        let (buffer, place) = file.submit_read(job, range.clone(), buffer)?.wait()?;
        windows.push(StoredWindow { range, start: place.start, buffer });
        Ok(windows.len() - 1)
    }
}
