//! Files of the store's datasets, as tables read them: from start to end, or piece by piece.

use std::{
    io::{self, Read},
    ops::Range,
    sync::{Mutex, PoisonError},
};

use inshore_store::{Buffer, CheckedFile, FileReader, Job};

use crate::{Error, Result};

/// Bytes that are read at once, at least: checked blocks are at most as long.
const WINDOW_BYTES: usize = 256 << 10;
/// Windows of one file that are kept at most: as many columns are read beside each other without reading anything twice. All
/// together take a sixteenth of the budget.
const WINDOWS_MAX: usize = 8;

/// A file of a dataset, and the job that reads it.
#[derive(Clone, Debug)]
pub(crate) struct Stored {
    pub job: Job,
    pub file: CheckedFile,
}

impl Stored {
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    fn window_bytes(&self) -> usize {
        WINDOW_BYTES.max(self.file.block_bytes()).next_multiple_of(self.file.block_bytes())
    }

    /// All of it, from the start.
    pub fn stream(&self) -> Result<StoredStream> {
        let reader = FileReader::new(&self.job, &self.file, 0..self.len(), self.window_bytes())?;
        Ok(StoredStream { reader, given: 0 })
    }
}

/// A file as a stream of bytes.
pub(crate) struct StoredStream {
    reader: FileReader,
    /// Bytes of the current piece that were given.
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

/// A file of which any part is read, through a few windows: pages of a column follow each other.
pub(crate) struct StoredPieces {
    stored: Stored,
    windows: Mutex<Vec<Window>>,
}

/// Part of a file in memory.
struct Window {
    range: Range<u64>,
    /// Where in the buffer it lies.
    start: usize,
    buffer: Buffer,
}

impl Window {
    fn bytes(&self, from: u64) -> &[u8] {
        let len = (self.range.end - self.range.start) as usize;
        &self.buffer[self.start..self.start + len][(from - self.range.start) as usize..]
    }
}

impl StoredPieces {
    pub fn new(stored: Stored) -> StoredPieces {
        StoredPieces { stored, windows: Mutex::default() }
    }

    /// Fills `out` with what stands from byte `start` on, which lies in the file.
    pub fn read_exact_at(&self, mut out: &mut [u8], mut start: u64) -> Result<()> {
        let mut windows = self.windows.lock().unwrap_or_else(PoisonError::into_inner);
        while !out.is_empty() {
            let at = match windows.iter().position(|window| window.range.contains(&start)) {
                Some(at) => at,
                None => self.load(&mut windows, start)?,
            };
            // The one that was used last stands last.
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

    /// Reads the window around `start`; gives its place. Where the budget has no more, an older one is read over.
    fn load(&self, windows: &mut Vec<Window>, start: u64) -> Result<usize> {
        let Stored { job, file } = &self.stored;
        let window_bytes = self.stored.window_bytes();
        let first = start / window_bytes as u64 * window_bytes as u64;
        let range = first..(first + window_bytes as u64).min(file.len());
        let oldest = |windows: &mut Vec<Window>| windows.remove(0).buffer;
        let share = job.budget().memory_bytes() / 16 / job.budget().threads() as u64;
        let most = (share as usize / window_bytes).clamp(1, WINDOWS_MAX);
        let buffer = match windows.len() < most {
            false => oldest(windows),
            true => match Buffer::zeroed(job.budget(), window_bytes, "windows of a file") {
                Err(inshore_store::Error::OverBudget { .. }) if !windows.is_empty() => oldest(windows),
                more => more?,
            },
        };
        let (buffer, place) = file.submit_read(job, range.clone(), buffer)?.wait()?;
        windows.push(Window { range, start: place.start, buffer });
        Ok(windows.len() - 1)
    }
}
