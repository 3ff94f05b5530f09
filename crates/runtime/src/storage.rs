//! Storage holds the bytes that a job reads and writes.

use std::{any::Any, fmt::Debug, fs::File, io, ops::Range, sync::Arc};

/// `Storage` holds bytes that are read and written at offsets: a file, or an extent of a device. All
/// functions take `&self` and may be called by any thread at any time.
pub trait Storage: Send + Sync + Debug {
    /// Fills `buffer` with the bytes from `offset` on.
    ///
    /// # Errors
    /// Returns the error of the system if the operation fails.
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes all of `buffer` at `offset`.
    ///
    /// # Errors
    /// Returns the error of the system if the write fails. Some of the bytes may then have been written.
    fn write(&self, offset: u64, buffer: &[u8]) -> io::Result<()>;

    /// Returns the file that holds the bytes, and the offset in the file at which they begin. io_uring then transfers
    /// bytes without [`Storage::read`] and [`Storage::write`]; after such a write [`Storage::note_written`] is called.
    /// The result is `None` for storage that is not exactly a range of a file; io_uring does not transfer its bytes.
    ///
    /// # Errors
    /// Returns the error of the system if the operation fails.
    fn raw(&self, _is_write: bool) -> io::Result<Option<(Arc<File>, u64)>> {
        Ok(None)
    }

    /// Notes the end of a write that did not use [`Storage::write`].
    fn note_written(&self) {}
}

/// A request keeps its `Guard` alive until the bytes are transferred.
pub type Guard = Arc<dyn Any + Send + Sync>;

/// `Direction` is the direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// Bytes are transferred from the storage into the buffer.
    Read,
    /// Bytes are transferred from the buffer to the storage.
    Write,
}

/// `Part` maps a range of a buffer to a range of a storage.
#[derive(Clone, Debug)]
pub struct Part {
    /// The storage that holds the bytes.
    pub storage: Arc<dyn Storage>,
    /// The offset of the bytes in the storage.
    pub offset: u64,
    /// The range of the bytes in the buffer.
    pub range: Range<usize>,
}

impl Part {
    /// Transfers the bytes, and waits for the end of the transfer.
    ///
    /// # Errors
    /// Returns the errors of the storage.
    pub fn transfer(&self, direction: Direction, buffer: &mut [u8]) -> io::Result<()> {
        let bytes = &mut buffer[self.range.clone()];
        match direction {
            Direction::Read => self.storage.read(self.offset, bytes),
            Direction::Write => self.storage.write(self.offset, bytes),
        }
    }

    /// Returns the storage's file and the part's offset in it, if the storage is a range of a file.
    pub(crate) fn raw(&self, direction: Direction) -> Option<(Arc<File>, u64)> {
        // If the file cannot be opened, a thread of the pool gets the same error and reports it.
        let (file, start) = self.storage.raw(direction == Direction::Write).ok()??;
        Some((file, start + self.offset))
    }
}
