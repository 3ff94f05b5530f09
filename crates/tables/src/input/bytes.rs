//! Reads the bytes of an input in order, and may read ahead.

use std::{
    fs::File,
    io::{self, Read},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use inshore_store::{Cancel, FileSource};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::{
    Error, Result,
    stored::{PartsStream, StoredStream},
    unpack::{Compression, DecompressedReader},
};

/// The decompressed bytes of an [`Input`](super::Input).
///
/// If the [`Read`] implementation fails, or finds that compressed data is damaged or truncated, its error contains an
/// [`Error`] that names the file. If a compressed file was truncated exactly between two members or frames, the
/// truncation is not detected.
pub struct Bytes {
    pub(super) name: String,
    pub(super) source: DecompressedReader<CountingReader>,
    pub(super) position: Arc<AtomicU64>,
}

impl Bytes {
    /// Returns how many bytes of the file, before decompression, were read so far.
    /// [`Input::compressed_bytes`](super::Input::compressed_bytes) is the total.
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    /// Returns the name by which errors call the input. The name is the path, or "standard input".
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the compression format of the input. Returns `None` if the input is not compressed.
    pub fn format(&self) -> Option<Compression> {
        self.source.format()
    }

    /// Fills `out` with the next bytes and returns their number. If the number is smaller than the length of `out`, the
    /// input has ended.
    ///
    /// # Errors
    /// - Returns [`Error::Io`] if the input cannot be read.
    /// - Returns [`Error::Damaged`] if compressed data is damaged or truncated.
    pub fn fill(&mut self, out: &mut [u8]) -> Result<usize> {
        let mut filled = 0;
        while filled < out.len() {
            match self.read(&mut out[filled..]) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Error::from_read(&self.name, error)),
            }
        }
        Ok(filled)
    }
}

impl Read for Bytes {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.source.read(&self.name, out).map_err(|error| match error.kind() {
            io::ErrorKind::Interrupted => error,
            _ => io::Error::other(Error::from_read(&self.name, error)),
        })
    }
}

/// The bytes of the source before decompression.
pub(super) enum RawBytes {
    File(File),
    Ahead(Box<ReadAheadFile>),
    Stored(Box<StoredStream>),
    Parts(PartsStream),
    Stream(Box<dyn Read + Send>),
}

/// A file that is read ahead in pieces. `taken` is the number of bytes of the current piece that were already returned.
pub(super) struct ReadAheadFile {
    pub(super) source: FileSource,
    pub(super) taken: usize,
}

impl Read for ReadAheadFile {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.source.piece().len() {
            self.taken = 0;
            self.source.next_piece().map_err(|error| io::Error::other(Error::from(error)))?;
        }
        let mut rest = &self.source.piece()[self.taken..];
        let read = rest.read(out)?;
        self.taken += read;
        Ok(read)
    }
}

pub(super) struct CountingReader {
    pub(super) inner: RawBytes,
    pub(super) position: Arc<AtomicU64>,
    /// The cancellation flag of the job, for reads that may wait for a writer.
    pub(super) cancel: Option<Cancel>,
}

/// The interval at which a read of an empty pipe checks for cancellation.
const POLL_INTERVAL: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

impl CountingReader {
    /// Waits until the file has bytes to read, or has ended. Returns an error if the job is cancelled during the wait.
    fn wait(&self) -> io::Result<()> {
        let (Some(cancel), RawBytes::File(file)) = (&self.cancel, &self.inner) else { return Ok(()) };
        loop {
            if cancel.is_cancelled() {
                return Err(io::Error::other(Error::Store(inshore_store::Error::Cancelled)));
            }
            match poll(&mut [PollFd::new(file, PollFlags::IN)], Some(&POLL_INTERVAL)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Ok(_) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Read for CountingReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.wait()?;
        let read = match &mut self.inner {
            RawBytes::File(file) => file.read(out)?,
            RawBytes::Ahead(ahead) => ahead.read(out)?,
            RawBytes::Stored(stream) => stream.read(out)?,
            RawBytes::Parts(stream) => stream.read(out)?,
            RawBytes::Stream(stream) => stream.read(out)?,
        };
        self.position.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}
