//! What holds bytes: the [`Device`] trait and the ordinary device, a folder on a file system.
//!
//! A device is numbered extents of 2 MiB and nothing else: no names, no directories. So a drive, a piece of memory,
//! an emulated flash card or one of the wrappers that tests need ([`crate::Faulty`], [`crate::Recording`],
//! [`crate::Throttled`]) can stand in for each other. Offsets and lengths are multiples of 4 KiB, as O_DIRECT wants
//! them.

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

/// The unit of allocation.
pub const EXTENT_BYTES: usize = 2 << 20;
/// Extents in a segment, which is one file of a [`Directory`]. The first of each segment holds the headers of the
/// others.
pub const SEGMENT_EXTENTS: u32 = 128;

/// Something that holds bytes. All calls take `&self`: any thread may call at any time.
///
/// What was never written, or was discarded, may read as anything, zeros included; checksums are the caller's.
pub trait Device: Send + Sync + Debug {
    /// How many extents there are.
    fn extents(&self) -> u32;

    /// Fills `buffer` from `offset` of an extent.
    ///
    /// # Errors
    /// Whatever the system reports.
    fn read(&self, extent: u32, offset: usize, buffer: &mut [u8]) -> io::Result<()>;

    /// Writes all of `buffer` at `offset` of an extent.
    ///
    /// # Errors
    /// Whatever the system reports; part of the bytes may then have been written.
    fn write(&self, extent: u32, offset: usize, buffer: &[u8]) -> io::Result<()>;

    /// Returns when everything that was written through this handle before is durable. A failed sync must not be
    /// retried: the system may have dropped what it could not write.
    ///
    /// # Errors
    /// Whatever the system reports.
    fn sync(&self) -> io::Result<()>;

    /// Takes space for extents, so that writing to them will not fail for lack of it.
    ///
    /// # Errors
    /// No space left; whatever the system reports.
    fn prepare(&self, extents: Range<u32>) -> io::Result<()>;

    /// Gives back the space of extents whose bytes nobody needs. A device that cannot does nothing.
    ///
    /// # Errors
    /// Whatever the system reports.
    fn discard(&self, extents: Range<u32>) -> io::Result<()>;

    /// The file that holds an extent, and where in it the extent begins: for io_uring, which moves the bytes without
    /// the calls above. After a write of that kind [`Device::note_written`] is called. `None`, as for every device that
    /// is more or less than a file: only the calls above reach it.
    ///
    /// # Errors
    /// Whatever the system reports.
    fn raw(&self, _extent: u32, _is_write: bool) -> io::Result<Option<(Arc<File>, u64)>> {
        Ok(None)
    }

    /// A write past [`Device::write`] has ended, and the next sync is about it too.
    fn note_written(&self, _extent: u32) {}

    /// Gives up everything: no store has it any more.
    ///
    /// # Errors
    /// The error that the system reports; part of the extents may then be left.
    fn clear(&self) -> io::Result<()> {
        self.discard(0..self.extents())
    }

    /// Bytes that the file system still has for this device and others; `None`: the extents are all there is.
    ///
    /// # Errors
    /// Whatever the system reports.
    fn free_bytes(&self) -> io::Result<Option<u64>> {
        Ok(None)
    }

    /// Whether all I/O so far went past the page cache.
    fn is_direct(&self) -> bool;

    /// What errors call it.
    fn name(&self) -> String;

    /// The folder that it is. `None` where it is none: then it cannot be looked for when the store is opened again, and
    /// those who are at work do not meet on it.
    fn folder(&self) -> Option<&Path> {
        None
    }
}

/// A part of a request: a range of a buffer, and the extent and the offset in it where its bytes belong.
pub(crate) fn part(device: Arc<dyn Device>, extent: u32, offset: usize, range: Range<usize>) -> Part {
    Part { storage: Arc::new(Extent { device, number: extent }), offset: offset as u64, range }
}

/// An extent of a device, as a job reads and writes it.
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

/// Where a device is, as the superblock says it: its folder, or else what errors call it.
pub(crate) fn path_of(device: &dyn Device) -> PathBuf {
    device.folder().map_or_else(|| PathBuf::from(device.name()), Path::to_path_buf)
}

/// Stands for a device that is not there: everything fails.
#[derive(Debug)]
pub(crate) struct Missing(pub u16);

impl Missing {
    fn refuse<T>(&self) -> io::Result<T> {
        Err(io::Error::new(io::ErrorKind::NotFound, self.name()))
    }
}

impl Device for Missing {
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

/// The ordinary device: a folder with segment files of 128 extents, read and written with O_DIRECT.
///
/// A file system without O_DIRECT (some in-memory and network ones) is used through the page cache instead;
/// [`Device::is_direct`], and with it every job's report, says so. Segment files are made on first use, are never
/// removed while the device exists, and take only the space that was written.
#[derive(Debug)]
pub struct Directory {
    path: PathBuf,
    extents: u32,
    segments: RwLock<HashMap<u32, Arc<File>>>,
    dirty: Mutex<Dirty>,
    buffered: AtomicBool,
    /// A segment could be opened for reading only: nothing is written any more.
    read_only: AtomicBool,
    /// Held during a sync: whether an earlier one failed.
    sync_failed: Mutex<bool>,
}

/// The part of a device that the next sync makes durable.
#[derive(Debug, Default)]
struct Dirty {
    /// Segments that were written since the last sync.
    segments: BTreeSet<u32>,
    /// A segment file was made, or opened for the first time. The process that made a file which is there may have died
    /// before it synced the file's name.
    has_new_names: bool,
}

/// Makes the name of a folder durable, and those of the folders above it on the same file system: a process that made
/// one of them may have died before it was synced. A folder that must not be read was made by somebody else, and is left out
/// with those above it.
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
    /// A device in the folder `path`, which must be there. It may grow to all of the file system, or to `bytes` if
    /// named.
    ///
    /// # Errors
    /// Whatever the system reports.
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

    /// The file of a segment; `None` where it does not exist and is not to be made.
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
            // A store on a file system that is mounted read-only can still be read.
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

    fn sync_dirty(&self, dirty: &Dirty) -> io::Result<()> {
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

/// Cuts a range of extents at the borders of segments.
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

/// Where an extent begins in its segment's file.
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
                // Beyond the end of the file nothing was written yet.
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

    /// Noted when it has ended, not when it begins: a sync of another thread in between would not be about it.
    fn note_written(&self, extent: u32) {
        self.dirty.lock().expect("no panic under this lock").segments.insert(extent / SEGMENT_EXTENTS);
    }

    /// One at a time: who finds nothing to sync knows that it was synced, and not that another thread is about to.
    fn sync(&self) -> io::Result<()> {
        let mut failed = self.sync_failed.lock().expect("no panic under this lock");
        if *failed {
            return Err(io::Error::other(
                "an earlier sync failed, and nobody knows what was lost: open the store again",
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
                    let zeros = crate::log::metadata_buffer(EXTENT_BYTES).map_err(io::Error::other)?;
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
                // Other processes may have it open: the space is to be free before they end.
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

    /// The process that made the file may have been killed before it synced the file's name.
    #[test]
    fn who_first_writes_to_a_segment_that_another_made_makes_its_name_durable() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Directory::open(folder.path(), Some(1 << 30)).unwrap();
        let page = crate::log::metadata_buffer(4096).unwrap();
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
    fn a_device_that_is_given_up_leaves_no_segment() {
        let folder = tempfile::tempdir().unwrap();
        let device = Directory::open(folder.path(), Some(1 << 30)).unwrap();
        let page = crate::log::metadata_buffer(4096).unwrap();
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
