//! Storage holds the bytes that a job reads and writes.

use std::{fmt::Debug, fs::File, io, ops::Range, sync::Arc};

/// Bytes that are read and written at offsets: a file, or an extent of a device. All calls take `&self`: any thread may
/// call at any time.
pub trait Storage: Send + Sync + Debug {
    /// Fills `buffer` from byte `offset` on.
    ///
    /// # Errors
    /// Errors of the system.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes all of `buffer` from byte `offset` on.
    ///
    /// # Errors
    /// Errors of the system; part of the bytes may then have been written.
    fn write(&self, offset: u64, buffer: &[u8]) -> io::Result<()>;

    /// The file that holds the bytes, and where in the file they begin: for io_uring, which moves them without the calls
    /// above. After a write of that kind [`Storage::note_written`] is called. `None`, as for all that is more or less than
    /// a file: only the calls above reach the bytes.
    ///
    /// # Errors
    /// Errors of the system.
    fn raw(&self, _is_write: bool) -> io::Result<Option<(Arc<File>, u64)>> {
        Ok(None)
    }

    /// A write past [`Storage::write`] has ended.
    fn note_written(&self) {}
}

/// Which way the bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Into the buffer.
    Read,
    /// Out of the buffer.
    Write,
}

/// A range of a buffer and where its bytes belong.
#[derive(Clone, Debug)]
pub struct Part {
    /// The storage that holds the bytes.
    pub storage: Arc<dyn Storage>,
    /// Where they begin in it.
    pub offset: u64,
    /// Where they begin and end in the buffer.
    pub range: Range<usize>,
}

impl Part {
    /// Moves the bytes, and waits for that.
    ///
    /// # Errors
    /// Errors of the storage.
    pub fn transfer(&self, direction: Direction, buffer: &mut [u8]) -> io::Result<()> {
        let bytes = &mut buffer[self.range.clone()];
        match direction {
            Direction::Read => self.storage.read(self.offset, bytes),
            Direction::Write => self.storage.write(self.offset, bytes),
        }
    }

    /// The file and the place in it, if there is one that io_uring can be given.
    pub(crate) fn raw(&self, direction: Direction) -> Option<(Arc<File>, u64)> {
        // What cannot be opened is an error for the thread that tries it again.
        let (file, start) = self.storage.raw(direction == Direction::Write).ok()??;
        Some((file, start + self.offset))
    }
}
