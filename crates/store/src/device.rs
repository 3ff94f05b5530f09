//! What holds bytes: the [`Device`] trait and the ordinary device, a folder on a file system.
//!
//! All bulk I/O goes through this trait, so that a faulty device can stand in for the drive in tests.
//! Offsets and lengths are multiples of 4 KiB, as O_DIRECT wants them.

use std::{
    fs::File,
    io,
    os::unix::fs::FileExt,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use rustix::fs::{Mode, OFlags};

/// An open file of a device. All calls take `&self`: any thread may call at any time.
pub trait DeviceFile: Send + Sync + std::fmt::Debug {
    /// Fills `buffer` from `offset`.
    ///
    /// # Errors
    /// `UnexpectedEof` where the file ends before; whatever the system reports otherwise.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;

    /// Writes all of `buffer` at `offset`, growing the file.
    ///
    /// # Errors
    /// Whatever the system reports; part of the bytes may then have been written.
    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()>;

    /// Returns when everything written before is durable. A failed sync must not be retried: the system may
    /// have dropped the pages that it could not write.
    ///
    /// # Errors
    /// Whatever the system reports.
    fn sync(&self) -> io::Result<()>;
}

/// Something that holds bytes.
pub trait Device: Send + Sync + std::fmt::Debug {
    /// Creates a file that must not exist yet, for reading and writing.
    ///
    /// # Errors
    /// Whatever the system reports.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DeviceFile>>;

    /// Opens a file for reading.
    ///
    /// # Errors
    /// Whatever the system reports.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn DeviceFile>>;

    /// Whether every file so far was opened past the page cache.
    fn is_direct(&self) -> bool;
}

/// The ordinary device: folders on a file system, read and written with O_DIRECT.
///
/// A file system without O_DIRECT (some in-memory and network ones) is used through the page cache instead;
/// [`Device::is_direct`], and with it every job's report, says so.
#[derive(Debug, Default)]
pub struct Directory {
    buffered: AtomicBool,
}

impl Directory {
    /// A device for any folder.
    pub fn new() -> Self {
        Directory::default()
    }

    fn open_with(&self, path: &Path, flags: OFlags) -> io::Result<Arc<dyn DeviceFile>> {
        let mode = Mode::from_raw_mode(0o666);
        let direct = rustix::fs::open(path, flags | OFlags::DIRECT | OFlags::CLOEXEC, mode);
        let file = match direct {
            Ok(file) => file,
            Err(rustix::io::Errno::INVAL) => {
                // The file may have been created before the flag was refused, so it may exist now.
                let again = flags.difference(OFlags::EXCL) | OFlags::CLOEXEC;
                let file = rustix::fs::open(path, again, mode)?;
                self.buffered.store(true, Ordering::Relaxed);
                file
            }
            Err(error) => return Err(error.into()),
        };
        Ok(Arc::new(PlainFile(File::from(file))))
    }
}

impl Device for Directory {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DeviceFile>> {
        self.open_with(path, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL)
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DeviceFile>> {
        self.open_with(path, OFlags::RDONLY)
    }

    fn is_direct(&self) -> bool {
        !self.buffered.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct PlainFile(File);

impl DeviceFile for PlainFile {
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        self.0.read_exact_at(buffer, offset)
    }

    fn write_at(&self, buffer: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(buffer, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}
