//! A file source reads files of the file system at the speed of their drive: from start to end, or in ranges by many
//! threads.
//!
//! A file that is not in the page cache is read directly, with several requests of 1 MiB in flight. On a virtual drive
//! this is two to three times as fast as reading through the cache (1.1 to 1.5 GB/s). A file that is in the cache is
//! copied from there.

use std::{
    collections::VecDeque,
    fs::File,
    hash::{BuildHasher, Hasher, RandomState},
    io,
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

use rustix::{
    fs::{Mode, OFlags},
    io::{IoSliceMut, ReadWriteFlags, preadv2},
};

use crate::{Buffer, Context, Direction, Error, MemoryMap, PAGE_BYTES, Part, Pending, Result, Storage};

const BUFFER_BYTES: usize = 1 << 20;
const BUFFERS: usize = 4;
/// The number of bytes that a [`FileSource`] takes from the budget.
pub const FILE_SOURCE_BYTES: u64 = (BUFFERS * BUFFER_BYTES) as u64;
/// The number of pages that are probed to decide if a file is in the page cache.
const SAMPLES: u64 = 16;

/// `FileSource` streams a file of the file system from start to end.
#[derive(Debug)]
pub struct FileSource {
    context: Context,
    file: PlainFile,
    next: u64,
    spare: Vec<Buffer>,
    ahead: VecDeque<PendingPiece>,
    current: Option<(Buffer, usize)>,
}

impl FileSource {
    /// Opens a file and begins to read. The source takes four buffers of 1 MiB from the budget.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the file cannot be opened, or if `path` is not a regular file.
    pub fn open(context: &Context, path: &Path) -> Result<FileSource> {
        Self::open_at(context, path, 0)
    }

    /// Opens a file and begins to read at byte `start`, rounded down to a multiple of 1 MiB.
    ///
    /// # Errors
    /// Returns the errors of [`FileSource::open`].
    pub fn open_at(context: &Context, path: &Path, start: u64) -> Result<FileSource> {
        Self::of(context, PlainFile::open(path)?, start)
    }

    /// Begins to read an open file at byte `start`, rounded down to a multiple of 1 MiB.
    ///
    /// # Errors
    /// Returns [`Error::OverBudget`] if there is no memory for the buffers.
    pub fn of(context: &Context, file: PlainFile, start: u64) -> Result<FileSource> {
        let buffers = Buffer::zeroed(context.budget(), BUFFERS * BUFFER_BYTES, "buffers to read a file")?;
        let (spare, ahead) = (buffers.split(BUFFER_BYTES), VecDeque::new());
        let next = start.min(file.len()) / BUFFER_BYTES as u64 * BUFFER_BYTES as u64;
        let mut source = FileSource { context: context.clone(), file, next, spare, ahead, current: None };
        source.read_ahead();
        Ok(source)
    }

    /// Returns the offset of the next piece.
    pub fn position(&self) -> u64 {
        self.next - self.ahead.iter().map(|read| read.len as u64).sum::<u64>()
    }

    /// Returns the length of the file when it was opened. Exactly this many bytes are read.
    pub fn len(&self) -> u64 {
        self.file.len()
    }

    /// Returns true if the file is empty.
    pub fn is_empty(&self) -> bool {
        self.file.is_empty()
    }

    fn read_ahead(&mut self) {
        while self.next < self.len() {
            let Some(buffer) = self.spare.pop() else { break };
            let read = self.file.submit_read(&self.context, self.next, buffer);
            self.next += read.len as u64;
            self.ahead.push_back(read);
        }
    }

    /// Returns the next piece, of 1 MiB except the last one; `None` at the end.
    ///
    /// # Errors
    /// - Returns [`Error::Io`] if a read fails or the file became shorter.
    /// - Returns [`Error::Cancelled`] if the job was cancelled.
    pub fn next_piece(&mut self) -> Result<Option<&[u8]>> {
        self.context.check_cancelled()?;
        self.spare.extend(self.current.take().map(|(buffer, _)| buffer));
        self.read_ahead();
        let Some(read) = self.ahead.pop_front() else { return Ok(None) };
        self.current = Some(read.wait()?);
        Ok(Some(self.piece()))
    }

    /// Returns the current piece again; it is empty before the first piece and at the end.
    pub fn piece(&self) -> &[u8] {
        self.current.as_ref().map_or(&[], |(buffer, len)| &buffer[..*len])
    }
}

/// The magic numbers of file systems whose files the kernel generates as they are read. The reported size of a
/// generated file is 0 (proc, tracefs, cgroup) or a page (sysfs).
const MADE_UP: [u32; 14] = [
    0x0000_9fa0, // proc
    0x6265_6572, // sysfs
    0x6462_6720, // debugfs
    0x7472_6163, // tracefs
    0x0027_e0eb, // cgroup
    0x6367_7270, // cgroup2
    0x6265_6570, // configfs
    0x7363_6673, // securityfs
    0x6165_676c, // pstore
    0xcafe_4a11, // bpf
    0xf97c_ff8c, // selinux
    0x0765_5821, // resctrl
    0x4249_4e4d, // binfmt_misc
    0x6e73_6673, // nsfs
];
/// The magic number of FUSE. The program behind a FUSE file system may also generate files, as lxcfs does.
/// Generated files are small.
const FUSE: u32 = 0x6573_5546;
const SMALL_BYTES: u64 = 64 << 10;

/// Returns the length of an open file if the reported length is reliable. The result is `None` for pipes, devices and
/// folders, for files that the kernel generates as they are read (/proc, /sys), and for small files of FUSE, which may
/// also be generated. The length of a generated file is known only after the file has been read to the end.
///
/// # Errors
/// Returns the error of the system if the metadata cannot be read.
pub fn file_bytes(file: &File) -> io::Result<Option<u64>> {
    let found = file.metadata()?;
    if !found.is_file() {
        return Ok(None);
    }
    let kind = rustix::fs::fstatfs(file)?.f_type as u32;
    let is_known = !MADE_UP.contains(&kind) && (kind != FUSE || found.len() > SMALL_BYTES);
    Ok(is_known.then_some(found.len()))
}

/// Returns true if most of a file is in the page cache, that is, if a sample of its pages can be read without
/// waiting. Each call samples different pages: a probe of a missing page makes the system read that page in
/// the background, so a later probe of the same page would find it in the cache.
fn is_cached(file: &File, len: u64) -> bool {
    // The offset within each sample is random.
    let place = RandomState::new().build_hasher().finish() % (len / SAMPLES).max(1);
    let mut byte = [0];
    let there = (0..SAMPLES).filter(|sample| {
        let offset = len / SAMPLES * sample + place;
        preadv2(file, &mut [IoSliceMut::new(&mut byte)], offset, ReadWriteFlags::NOWAIT).is_ok()
    });
    there.count() as u64 * 2 > SAMPLES
}

/// `PlainFile` is a file of the file system that many threads read in ranges. Clones share the open file.
#[derive(Clone, Debug)]
pub struct PlainFile {
    open: Arc<OpenFile>,
    is_cached: bool,
}

impl PlainFile {
    /// Opens a file in the mode in which reads are fastest. Reads go through the page cache if most of the file is
    /// cached, if the file is small, or if its file system lacks O_DIRECT; otherwise they are direct.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the file cannot be opened, or if `path` is not a regular file.
    pub fn open(path: &Path) -> Result<PlainFile> {
        let file = File::open(path).map_err(|error| Error::io("open", path, error))?;
        Self::of(file, path)
    }

    /// Wraps a file that was opened at `path`, in the mode that [`PlainFile::open`] chooses.
    ///
    /// # Errors
    /// Returns the errors of [`PlainFile::open`].
    pub fn of(file: File, path: &Path) -> Result<PlainFile> {
        let fail = |error| Error::io("open", path, error);
        let found = file.metadata().map_err(fail)?;
        if !found.is_file() {
            return Err(fail(io::Error::new(io::ErrorKind::InvalidInput, "it is not a regular file")));
        }
        let len = found.len();
        let through = |file| OpenFile { path: path.to_path_buf(), file: Arc::new(file), len };
        if len < BUFFER_BYTES as u64 || is_cached(&file, len) {
            return Ok(PlainFile { open: Arc::new(through(file)), is_cached: true });
        }
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        let direct = rustix::fs::open(path, flags, Mode::empty()).ok().map(File::from);
        let is_cached = false;
        Ok(PlainFile { open: Arc::new(through(direct.unwrap_or(file))), is_cached })
    }

    /// Returns the path at which the file was opened.
    pub fn path(&self) -> &Path {
        &self.open.path
    }

    /// Returns the length of the file when it was opened.
    pub fn len(&self) -> u64 {
        self.open.len
    }

    /// Returns true if the file is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns true if [`PlainFile::read`] copies from the page cache and does not wait for a drive: most of the file
    /// was cached when it was opened, or the file is small.
    pub fn is_cached(&self) -> bool {
        self.is_cached
    }

    /// Reads `buffer.len()` bytes from byte `start` on (fewer at the end of the file), and returns the number of bytes.
    /// For files that are [cached](PlainFile::is_cached) the read is a copy at the speed of memory.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if a read fails or the file became shorter.
    pub fn read(&self, start: u64, buffer: &mut [u8]) -> Result<usize> {
        self.open.read_at(start, buffer).map_err(|error| Error::io("read", &self.open.path, error))
    }

    /// Maps `len` bytes from byte `start` on, without a copy; `start` must be a multiple of 4096. The result is `None`
    /// if the system can provide no mapping, or if the range ends after the file. The method is meant for files that
    /// are [cached](PlainFile::is_cached).
    pub fn window(&self, start: u64, len: usize) -> Option<MemoryMap> {
        (start + len as u64 <= self.len()).then(|| MemoryMap::open(&self.open.file, start, len))?
    }

    /// Checks that all bytes read so far from the memory map `window` were the file's bytes.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the file became shorter or the drive failed, since the memory map then contained zeros.
    pub fn check(&self, window: &MemoryMap) -> Result<()> {
        window.check(&self.open.file, self.path())
    }

    /// Returns the time of the last write to the file.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the operating system refuses an operation on the file.
    pub fn written(&self) -> Result<SystemTime> {
        let found = self.open.file.metadata().and_then(|found| found.modified());
        found.map_err(|error| Error::io("look at", self.path(), error))
    }

    /// Begins to read into `buffer` from byte `start` on; the read ends when `buffer` is full or the file ends.
    ///
    /// # Panics
    /// Panics if `start` or the buffer's length is not a multiple of 4096, or `start` is not in the file.
    pub fn submit_read(&self, context: &Context, start: u64, buffer: Buffer) -> PendingPiece {
        assert!(start.is_multiple_of(PAGE_BYTES as u64) && start < self.len(), "{start} of {}", self.len());
        assert!(buffer.len().is_multiple_of(PAGE_BYTES), "a buffer of {} bytes", buffer.len());
        let len = (self.len() - start).min(buffer.len() as u64) as usize;
        let range = 0..len.next_multiple_of(PAGE_BYTES);
        let part = Part { storage: self.open.clone(), offset: start, range };
        let pending = context.submit_uncounted(Direction::Read, part, buffer);
        PendingPiece { pending, len, open: self.open.clone() }
    }
}

/// Another process may read the file through this descriptor. The other process must use its own offsets, and must not
/// read past the length that the file had when it was opened.
impl AsFd for PlainFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.open.file.as_fd()
    }
}

/// `PendingPiece` is a read of a [`PlainFile`] that is in flight.
#[derive(Debug)]
pub struct PendingPiece {
    pending: Pending,
    len: usize,
    open: Arc<OpenFile>,
}

impl PendingPiece {
    /// Waits for the read, and returns the buffer with the number of bytes that were read into it.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if a read fails or the file became shorter.
    pub fn wait(self) -> Result<(Buffer, usize)> {
        let (buffer, result) = self.pending.wait();
        result.map_err(|error| Error::io("read", &self.open.path, error))?;
        Ok((buffer, self.len))
    }
}

/// `OpenFile` is the storage behind a [`PlainFile`].
#[derive(Debug)]
struct OpenFile {
    path: PathBuf,
    file: Arc<File>,
    len: u64,
}

impl OpenFile {
    fn read_at(&self, start: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let there = self.len.saturating_sub(start).min(buffer.len() as u64) as usize;
        let mut filled = 0;
        while filled < there {
            match self.file.read_at(&mut buffer[filled..], start + filled as u64) {
                Ok(0) => return Err(io::Error::other("the file became shorter while it was read")),
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(there)
    }
}

impl Storage for OpenFile {
    fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        self.read_at(offset, buffer).map(drop)
    }

    fn write(&self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::ReadOnlyFilesystem.into())
    }

    fn raw(&self, _: bool) -> io::Result<Option<(Arc<File>, u64)>> {
        Ok(Some((self.file.clone(), 0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Budget, Cancel};

    #[test]
    fn a_file_is_read_whole_and_one_that_became_shorter_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let context = Context::new(Budget::new(16 << 20, 2), Cancel::default());
        let path = folder.path().join("file");
        for len in [0usize, 1, 4096, 5000, 3 << 20, (5 << 20) + 77] {
            let bytes: Vec<u8> = (0..len).map(|i| (i * 31 + i / 4096) as u8).collect();
            std::fs::write(&path, &bytes).unwrap();
            let mut source = FileSource::open(&context, &path).unwrap();
            let mut found = Vec::new();
            while let Some(piece) = source.next_piece().unwrap() {
                found.extend_from_slice(piece);
            }
            assert!(found == bytes, "{len}");
        }
        let mut source = FileSource::open(&context, &path).unwrap();
        source.next_piece().unwrap();
        File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
        let rest = std::iter::from_fn(|| source.next_piece().map(|piece| piece.map(<[u8]>::len)).transpose());
        let results: Vec<Result<usize>> = rest.take(10).collect();
        assert!(results.iter().any(|result| result.is_err()), "{results:?}");
        assert!(FileSource::open(&context, folder.path()).is_err());
    }

    #[test]
    fn generated_files_have_no_reliable_length() {
        let folder = tempfile::tempdir().unwrap();
        for bytes in [&b""[..], b"abc"] {
            std::fs::write(folder.path().join("file"), bytes).unwrap();
            let file = File::open(folder.path().join("file")).unwrap();
            assert_eq!(file_bytes(&file).unwrap(), Some(bytes.len() as u64));
        }
        for path in ["/proc/version", "/sys/kernel/mm/transparent_hugepage/enabled", "/dev/null", "/"] {
            match File::open(path) {
                Ok(file) => assert_eq!(file_bytes(&file).unwrap(), None, "{path}"),
                Err(_) => println!("skipped: there is no {path}"),
            }
        }
    }

    #[test]
    fn a_probed_file_is_still_read_past_the_page_cache() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        std::fs::write(&path, vec![7; 64 << 20]).unwrap();
        let file = File::open(&path).unwrap();
        file.sync_all().unwrap();
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        if PlainFile::open(&path).unwrap().is_cached() {
            return println!("skipped: the page cache keeps every file here");
        }
        // The system reads ahead around the pages of earlier probes. A later probe may sample pages that were read
        // ahead and find the file cached, but not every probe does.
        let looks: Vec<bool> = (0..3)
            .map(|_| {
                std::thread::sleep(std::time::Duration::from_millis(20));
                PlainFile::open(&path).unwrap().is_cached()
            })
            .collect();
        assert!(looks.contains(&false), "{looks:?}");
    }
}
