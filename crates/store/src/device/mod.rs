//! Devices store the bytes of a store. This module defines the [`Device`] trait and [`Directory`], the device that is a
//! folder of a file system.
//!
//! A device consists of numbered extents of 2 MiB, without names or directories. A drive, a block of memory, an
//! emulated flash card and the wrappers for tests ([`crate::Faulty`], [`crate::Recording`], [`crate::Throttled`]) are
//! therefore interchangeable. Offsets and lengths are multiples of 4 KiB, as O_DIRECT requires.

pub(crate) mod faulty;
pub(crate) mod measure;
pub(crate) mod memory;
pub(crate) mod profile;
pub(crate) mod recording;
pub(crate) mod throttled;

use std::{
    collections::{BTreeSet, HashMap},
    fmt::Debug,
    fs::File,
    io,
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use inshore_runtime::{Part, Storage};
use rustix::fs::{FallocateFlags, Mode, OFlags, fallocate};

use crate::{Budget, Buffer, PAGE_BYTES, Result};

/// The size in bytes of an extent, which is the unit of space allocation.
pub const EXTENT_BYTES: usize = 2 << 20;
/// The number of extents in a segment, which is one file of a [`Directory`]. The first extent of each segment contains
/// the headers of the other extents.
pub const SEGMENT_EXTENTS: u32 = 128;

/// `Device` stores bytes in numbered extents. Any thread may call any method at any time.
///
/// Reads of bytes that were never written, or were discarded, may return any value. The caller must therefore verify
/// checksums.
pub trait Device: Send + Sync + Debug {
    /// Returns the number of extents.
    fn extents(&self) -> u32;

    /// Reads bytes at `offset` of an extent until `buffer` is full.
    ///
    /// # Errors
    /// Returns the error of the operating system if the operation fails.
    fn read(&self, extent: u32, offset: usize, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes all of `buffer` at `offset` of an extent.
    ///
    /// # Errors
    /// Returns the error of the operating system if the write fails. After an error, some of the bytes may have been
    /// written.
    fn write(&self, extent: u32, offset: usize, buffer: &[u8]) -> io::Result<()>;

    /// Makes all earlier writes through this device object durable. A failed sync must not be retried, since the
    /// operating system may have dropped the bytes that it could not write.
    ///
    /// # Errors
    /// Returns the error of the operating system if the operation fails.
    fn sync(&self) -> io::Result<()>;

    /// Allocates space for extents, so that later writes to them cannot fail for lack of space.
    ///
    /// # Errors
    /// Returns the error of the operating system if the operation fails, for example "No space left on device".
    fn prepare(&self, extents: Range<u32>) -> io::Result<()>;

    /// Frees the space of extents on the file system. The bytes of these extents are no longer needed. A device that
    /// cannot free space does nothing.
    ///
    /// # Errors
    /// Returns the error of the operating system if the operation fails.
    fn discard(&self, extents: Range<u32>) -> io::Result<()>;

    /// Returns the file that contains an extent, and the offset of the extent in the file. The caller can then transfer
    /// bytes by io_uring, without [`Device::read`] and [`Device::write`]. After such a write, the caller must call
    /// [`Device::note_written`]. The result is `None` for a device whose bytes are not the bytes of a file.
    ///
    /// # Errors
    /// Returns the error of the operating system if the operation fails.
    fn raw(&self, _extent: u32, _is_write: bool) -> io::Result<Option<(Arc<File>, u64)>> {
        Ok(None)
    }

    /// Records that a write to the file of [`Device::raw`] has ended. The next sync then includes the write.
    fn note_written(&self, _extent: u32) {}

    /// Discards all data of a device that no store uses any more.
    ///
    /// # Errors
    /// Returns the error of the operating system if the operation fails. After an error, some extents may still have
    /// data.
    fn clear(&self) -> io::Result<()> {
        self.discard(0..self.extents())
    }

    /// Returns the free space of the device's file system in bytes. Other programs use this space too. The result is
    /// `None` if the number of extents is the only limit.
    ///
    /// # Errors
    /// Returns the error of the operating system if the operation fails.
    fn free_bytes(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }

    /// Returns true if all I/O so far has bypassed the page cache.
    fn is_direct(&self) -> bool;

    /// Returns the name of the device in error messages.
    fn name(&self) -> String;

    /// Returns the folder of the device. The result is `None` for a device without a folder. The store cannot search
    /// for a device without a folder, and processes cannot coordinate through files in it.
    fn folder(&self) -> Option<&Path> {
        None
    }
}

/// Allocates memory for metadata. This memory is small and belongs to no job's budget.
pub(crate) fn metadata_buffer(len: usize) -> Result<Buffer> {
    Ok(Buffer::zeroed(&Budget::new(u64::MAX, 1), len.next_multiple_of(PAGE_BYTES), "metadata")?)
}

/// Creates one transfer of an I/O request: between the bytes `range` of a buffer and the bytes at `offset` of an
/// extent.
pub(crate) fn part(device: Arc<dyn Device>, extent: u32, offset: usize, range: Range<usize>) -> Part {
    Part { storage: Arc::new(Extent { device, number: extent }), offset: offset as u64, range }
}

/// `Extent` is an extent of a device, as the storage of an I/O request.
#[derive(Debug)]
struct Extent {
    device: Arc<dyn Device>,
    number: u32,
}

impl Storage for Extent {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.device.read(self.number, offset as usize, buffer)
    }

    fn write(&self, offset: u64, buffer: &[u8]) -> io::Result<()> {
        self.device.write(self.number, offset as usize, buffer)
    }

    fn raw(&self, is_write: bool) -> io::Result<Option<(Arc<File>, u64)>> {
        self.device.raw(self.number, is_write)
    }

    fn note_written(&self) {
        self.device.note_written(self.number);
    }
}

/// Returns the path of a device that the superblock records: its folder, or its name if it has no folder.
pub(crate) fn path_of(device: &dyn Device) -> PathBuf {
    device.folder().map_or_else(|| PathBuf::from(device.name()), Path::to_path_buf)
}

/// `MissingDevice` takes the role of a missing device. All its I/O fails.
#[derive(Debug)]
pub(crate) struct MissingDevice(pub u16);

impl MissingDevice {
    fn refuse<T>(&self) -> io::Result<T> {
        Err(io::Error::new(io::ErrorKind::NotFound, self.name()))
    }
}

impl Device for MissingDevice {
    fn extents(&self) -> u32 {
        0
    }

    fn read(&self, _: u32, _: usize, _: &mut [u8]) -> io::Result<()> {
        self.refuse()
    }

    fn write(&self, _: u32, _: usize, _: &[u8]) -> io::Result<()> {
        self.refuse()
    }

    fn sync(&self) -> io::Result<()> {
        self.refuse()
    }

    fn prepare(&self, _: Range<u32>) -> io::Result<()> {
        self.refuse()
    }

    fn discard(&self, _: Range<u32>) -> io::Result<()> {
        self.refuse()
    }

    fn is_direct(&self) -> bool {
        true
    }

    fn name(&self) -> String {
        format!("device {} of the store is missing", self.0)
    }
}

/// `Directory` is a device in a folder of a file system. The folder contains segment files of 128 extents each, which
/// are read and written with O_DIRECT.
///
/// On a file system without O_DIRECT (some in-memory and network file systems), I/O goes through the page cache.
/// [`Device::is_direct`] and the report of every job then show that I/O is not direct. A segment file is created on
/// first use and exists as long as the device. It takes only the space that was written.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    extents: u32,
    segments: RwLock<HashMap<u32, Arc<File>>>,
    dirty: Mutex<DirtyRanges>,
    buffered: AtomicBool,
    /// True if a segment could be opened only for reading. All further writes are then refused.
    read_only: AtomicBool,
    /// True once a sync has failed. The lock is held during a sync.
    sync_failed: Mutex<bool>,
}

/// `DirtyRanges` describes what the next sync of a device has to make durable.
#[derive(Debug, Default)]
struct DirtyRanges {
    /// The numbers of the segments that were written since the last sync.
    segments: BTreeSet<u32>,
    /// True if a segment file was created, or opened for the first time. Another process may have created the file and
    /// died before it synced the file's name.
    has_new_names: bool,
}

/// Makes the names of a folder and of its parent folders on the same file system durable. A process that created one of
/// them may have died before the sync. The sync stops at a folder without read permission, which another user has
/// created.
pub(crate) fn sync_names(folder: &Path) -> io::Result<()> {
    let file_system = |path: &Path| std::fs::metadata(path).map(|found| found.dev());
    let own = file_system(folder)?;
    for above in folder.ancestors().skip(1) {
        match File::open(above) {
            Err(error) if is_refusal(&error) => break,
            Ok(_) if file_system(above)? != own => break,
            opened => opened?.sync_all()?,
        }
    }
    Ok(())
}

impl Directory {
    /// Opens a device in the folder `path`, which must exist. The device may take up to `bytes` bytes, or all of the
    /// file system if there is no limit.
    ///
    /// # Errors
    /// Returns the error of the operating system if the operation fails.
    pub fn open(path: &Path, bytes: Option<u64>) -> io::Result<Self> {
        let space = rustix::fs::statvfs(path)?;
        let bytes = bytes.unwrap_or(space.f_blocks.saturating_mul(space.f_frsize));
        let extents = (bytes / EXTENT_BYTES as u64).min(u32::MAX as u64) as u32;
        Ok(Directory {
            path: path.to_path_buf(),
            extents,
            segments: RwLock::default(),
            dirty: Mutex::default(),
            buffered: AtomicBool::new(false),
            read_only: AtomicBool::new(false),
            sync_failed: Mutex::new(false),
        })
    }

    fn segment_path(&self, segment: u32) -> PathBuf {
        self.path.join(format!("segment-{segment:08}"))
    }

    /// Opens the file of a segment, and creates it if `make` is set. The result is `None` if the file does not exist.
    fn segment(&self, segment: u32, make: bool) -> io::Result<Option<Arc<File>>> {
        if make && self.read_only.load(Ordering::Relaxed) {
            return Err(rustix::io::Errno::ROFS.into());
        }
        if let Some(file) = self.segments.read().expect("no panic under this lock").get(&segment) {
            return Ok(Some(file.clone()));
        }
        let mut segments = self.segments.write().expect("no panic under this lock");
        if let Some(file) = segments.get(&segment) {
            return Ok(Some(file.clone()));
        }
        let path = self.segment_path(segment);
        let file = match self.open_file(&path, OFlags::RDWR) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                if !make {
                    return Ok(None);
                }
                self.open_file(&path, OFlags::RDWR | OFlags::CREATE)?
            }
            // If the file system is mounted read-only, the store can still be read.
            Err(error) if !make && is_refusal(&error) => {
                let file = self.open_file(&path, OFlags::RDONLY)?;
                self.read_only.store(true, Ordering::Relaxed);
                file
            }
            opened => opened?,
        };
        self.dirty.lock().expect("no panic under this lock").has_new_names = true;
        let file = Arc::new(file);
        segments.insert(segment, file.clone());
        Ok(Some(file))
    }

    fn open_file(&self, path: &Path, flags: OFlags) -> io::Result<File> {
        let mode = Mode::from_raw_mode(0o666);
        let file = match rustix::fs::open(path, flags | OFlags::DIRECT | OFlags::CLOEXEC, mode) {
            Err(rustix::io::Errno::INVAL) => {
                self.buffered.store(true, Ordering::Relaxed);
                rustix::fs::open(path, flags | OFlags::CLOEXEC, mode)?
            }
            opened => opened?,
        };
        Ok(File::from(file))
    }

    fn sync_dirty(&self, dirty: &DirtyRanges) -> io::Result<()> {
        for &segment in &dirty.segments {
            if let Some(file) = self.segment(segment, false)? {
                file.sync_data()?;
            }
        }
        if dirty.has_new_names { File::open(&self.path)?.sync_all() } else { Ok(()) }
    }

    fn made(&self, extent: u32) -> io::Result<Arc<File>> {
        Ok(self.segment(extent / SEGMENT_EXTENTS, true)?.expect("made where it was not"))
    }
}

fn is_refusal(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// Splits a range of extents at the boundaries of segments.
fn by_segment(extents: Range<u32>) -> impl Iterator<Item = (u32, Range<u32>)> {
    let mut next = extents.start;
    std::iter::from_fn(move || {
        if next >= extents.end {
            return None;
        }
        let segment = next / SEGMENT_EXTENTS;
        let end = extents.end.min((segment + 1).saturating_mul(SEGMENT_EXTENTS));
        Some((segment, std::mem::replace(&mut next, end)..end))
    })
}

/// Returns the offset of an extent in its segment's file.
fn offset_of(extent: u32) -> u64 {
    (extent % SEGMENT_EXTENTS) as u64 * EXTENT_BYTES as u64
}

impl Device for Directory {
    fn extents(&self) -> u32 {
        self.extents
    }

    fn read(&self, extent: u32, offset: usize, buffer: &mut [u8]) -> io::Result<()> {
        let Some(file) = self.segment(extent / SEGMENT_EXTENTS, false)? else {
            buffer.fill(0);
            return Ok(());
        };
        let start = offset_of(extent) + offset as u64;
        let mut filled = 0;
        while filled < buffer.len() {
            match file.read_at(&mut buffer[filled..], start + filled as u64) {
                // Bytes beyond the end of the file were never written.
                Ok(0) => {
                    buffer[filled..].fill(0);
                    break;
                }
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn write(&self, extent: u32, offset: usize, buffer: &[u8]) -> io::Result<()> {
        let file = self.made(extent)?;
        let written = file.write_all_at(buffer, offset_of(extent) + offset as u64);
        self.note_written(extent);
        written
    }

    fn raw(&self, extent: u32, is_write: bool) -> io::Result<Option<(Arc<File>, u64)>> {
        let file = self.segment(extent / SEGMENT_EXTENTS, is_write)?;
        Ok(file.map(|file| (file, offset_of(extent))))
    }

    /// Marks the segment as dirty. The mark is set only after the write has ended. Otherwise a sync by another thread
    /// could clear the mark before the bytes are written.
    fn note_written(&self, extent: u32) {
        self.dirty.lock().expect("no panic under this lock").segments.insert(extent / SEGMENT_EXTENTS);
    }

    /// Syncs under a lock. A thread that finds nothing to sync must not return before the sync by another thread has
    /// ended.
    fn sync(&self) -> io::Result<()> {
        let mut failed = self.sync_failed.lock().expect("no panic under this lock");
        if *failed {
            return Err(io::Error::other(
                "an earlier sync failed, and data may be lost: open the store again",
            ));
        }
        let dirty = std::mem::take(&mut *self.dirty.lock().expect("no panic under this lock"));
        let synced = self.sync_dirty(&dirty);
        *failed = synced.is_err();
        synced
    }

    fn prepare(&self, extents: Range<u32>) -> io::Result<()> {
        for (segment, extents) in by_segment(extents) {
            let file = self.segment(segment, true)?.expect("made where it was not");
            let len = extents.len() as u64 * EXTENT_BYTES as u64;
            match fallocate(&file, FallocateFlags::empty(), offset_of(extents.start), len) {
                Err(rustix::io::Errno::OPNOTSUPP) => {
                    let zeros = metadata_buffer(EXTENT_BYTES).map_err(io::Error::other)?;
                    extents
                        .into_iter()
                        .try_for_each(|extent| file.write_all_at(&zeros, offset_of(extent)))?;
                }
                prepared => prepared?,
            }
        }
        Ok(())
    }

    fn discard(&self, extents: Range<u32>) -> io::Result<()> {
        for (segment, extents) in by_segment(extents) {
            if let Some(file) = self.segment(segment, false)? {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                let len = extents.len() as u64 * EXTENT_BYTES as u64;
                match fallocate(&file, flags, offset_of(extents.start), len) {
                    Err(rustix::io::Errno::OPNOTSUPP) => {}
                    discarded => discarded?,
                }
            }
        }
        Ok(())
    }

    fn clear(&self) -> io::Result<()> {
        self.segments.write().expect("no panic under this lock").clear();
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("segment-")) {
                // Other processes may have the file open. The truncation frees the space before these processes close
                // the file.
                let _ = File::options().write(true).open(&path).and_then(|file| file.set_len(0));
                std::fs::remove_file(path)?;
            }
        }
        Ok(())
    }

    fn free_bytes(&self) -> io::Result<Option<u64>> {
        let space = rustix::fs::statvfs(&self.path)?;
        Ok(Some(space.f_bavail.saturating_mul(space.f_frsize)))
    }

    fn is_direct(&self) -> bool {
        !self.buffered.load(Ordering::Relaxed)
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn folder(&self) -> Option<&Path> {
        Some(&self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Another process that created the file may have been killed before it synced the file's name.
    #[test]
    fn the_first_write_to_a_segment_of_another_process_makes_its_name_durable() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Directory::open(folder.path(), Some(1 << 30)).unwrap();
        let page = metadata_buffer(4096).unwrap();
        let has_new_names = |device: &Directory| device.dirty.lock().unwrap().has_new_names;
        open().write(SEGMENT_EXTENTS + 2, 0, &page).unwrap();
        let other = open();
        for extent in [2, SEGMENT_EXTENTS + 2] {
            assert!(!has_new_names(&other));
            other.write(extent, 0, &page).unwrap();
            assert!(has_new_names(&other), "{extent}");
            other.sync().unwrap();
        }
        other.write(3, 0, &page).unwrap();
        assert!(!has_new_names(&other), "it is durable already");
    }

    #[test]
    fn a_cleared_device_leaves_no_segment() {
        let folder = tempfile::tempdir().unwrap();
        let device = Directory::open(folder.path(), Some(1 << 30)).unwrap();
        let page = metadata_buffer(4096).unwrap();
        [2, SEGMENT_EXTENTS + 2].iter().for_each(|&extent| device.write(extent, 0, &page).unwrap());
        std::fs::write(folder.path().join("notes"), "mine").unwrap();
        let held = File::open(folder.path().join("segment-00000001")).unwrap();
        device.clear().unwrap();
        let names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(names, ["notes"]);
        assert_eq!(held.metadata().unwrap().len(), 0, "whoever has it open holds no space");
    }
}
