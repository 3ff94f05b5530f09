//! Files whose every byte is checked when it is read back.
//!
//! ```text
//!   data blocks (16 or 64 KiB each, the last one padded with zeros to 4 KiB)
//!   checksum pages (4 KiB: the CRC-32 of 1024 blocks)      only in a dataset's files
//! ```
//!
//! A checksum is kept in the reference to the data and never beside it, which also catches a read that went to
//! the wrong place or gave an older version. A scratch file's checksums stay in memory (4 bytes for each block,
//! counted in the budget); a dataset's lie in pages at the file's end, and the dataset's manifest holds the
//! CRC-32 of each page, so that memory for a file of any size is four pages.

use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use crate::{
    Buffer, DeviceFile, Error, FileRecord, Job, Reservation, Result,
    io::{Direction, Pending},
};

/// The unit of O_DIRECT: offsets and lengths of all I/O are multiples of it.
pub const PAGE_BYTES: usize = 4096;
const SUMS_PER_PAGE: usize = PAGE_BYTES / 4;
const CACHED_PAGES: usize = 4;
/// The reservation for a writer's checksums grows in steps of this size.
const SUMS_STEP: usize = 4096;

/// A finished file. Clones share it; any thread may read.
#[derive(Clone, Debug)]
pub struct CheckedFile(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    file: Arc<dyn DeviceFile>,
    name: String,
    path: PathBuf,
    len: u64,
    block_bytes: usize,
    sums: Sums,
}

#[derive(Debug)]
enum Sums {
    Memory { sums: Vec<u32>, _reservation: Reservation },
    Paged { roots: Vec<u32>, cache: Mutex<[Option<SumsPage>; CACHED_PAGES]> },
}

/// The number of a checksum page and its checksums.
type SumsPage = (u64, Box<[u32]>);

impl CheckedFile {
    /// Opens a dataset's file as its manifest describes it.
    pub(crate) fn from_record(
        file: Arc<dyn DeviceFile>,
        name: String,
        path: PathBuf,
        record: &FileRecord,
    ) -> Self {
        CheckedFile(Arc::new(Inner {
            file,
            name,
            path,
            len: record.len,
            block_bytes: record.block_bytes as usize,
            sums: Sums::Paged { roots: record.roots.clone(), cache: Mutex::default() },
        }))
    }

    /// What errors call it: the name in the scratch folder, or `dataset/file`.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Bytes of data.
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether there is no data.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The unit of checking: reads of whole, aligned blocks waste nothing.
    pub fn block_bytes(&self) -> usize {
        self.0.block_bytes
    }

    /// Bytes that a buffer must hold to read `range`: the blocks that it touches.
    pub fn read_bytes(&self, range: &Range<u64>) -> usize {
        let touched = self.touched(range);
        (touched.end - touched.start) as usize
    }

    /// The bytes of the file that a read of `range` moves.
    fn touched(&self, range: &Range<u64>) -> Range<u64> {
        let block = self.0.block_bytes as u64;
        let end = range.end.next_multiple_of(block).min(self.0.len.next_multiple_of(PAGE_BYTES as u64));
        range.start / block * block..end
    }

    /// Starts to read the blocks that `range` touches into `buffer`.
    ///
    /// # Panics
    /// Where the range is empty or ends after the file, or the buffer is smaller than [`Self::read_bytes`].
    pub fn submit_read(&self, job: &Job, range: Range<u64>, buffer: Buffer) -> Result<PendingRead> {
        assert!(range.start < range.end && range.end <= self.0.len, "read of {range:?} of {}", self.0.len);
        let touched = self.touched(&range);
        let len = (touched.end - touched.start) as usize;
        assert!(buffer.len() >= len, "buffer of {} bytes for {len}", buffer.len());
        let block = self.0.block_bytes as u64;
        let expected = self.sums(job, touched.start / block..touched.end.div_ceil(block))?;
        let start = (range.start - touched.start) as usize;
        Ok(PendingRead {
            pending: job.submit(Direction::Read, self.0.file.clone(), touched.start, len, buffer),
            name: self.0.name.clone(),
            path: self.0.path.clone(),
            offset: touched.start,
            len,
            block_bytes: self.0.block_bytes,
            expected,
            wanted: start..start + (range.end - range.start) as usize,
        })
    }

    /// The recorded checksums of `blocks`.
    fn sums(&self, job: &Job, blocks: Range<u64>) -> Result<Vec<u32>> {
        match &self.0.sums {
            Sums::Memory { sums, .. } => Ok(sums[blocks.start as usize..blocks.end as usize].to_vec()),
            Sums::Paged { roots, cache } => {
                let mut expected = Vec::with_capacity((blocks.end - blocks.start) as usize);
                let mut cache = cache.lock().expect("no panic under this lock");
                for block in blocks {
                    let page = block / SUMS_PER_PAGE as u64;
                    let slot = &mut cache[page as usize % CACHED_PAGES];
                    if !matches!(slot, Some((cached, _)) if *cached == page) {
                        *slot = Some((page, self.read_sums_page(job, page, roots[page as usize])?));
                    }
                    let (_, sums) = slot.as_ref().expect("filled above");
                    expected.push(sums[block as usize % SUMS_PER_PAGE]);
                }
                Ok(expected)
            }
        }
    }

    fn read_sums_page(&self, job: &Job, page: u64, root: u32) -> Result<Box<[u32]>> {
        let offset = self.0.len.next_multiple_of(PAGE_BYTES as u64) + page * PAGE_BYTES as u64;
        let buffer = Buffer::zeroed(job.budget(), PAGE_BYTES, "a checksum page")?;
        let pending = job.submit(Direction::Read, self.0.file.clone(), offset, PAGE_BYTES, buffer);
        let (buffer, result) = pending.wait();
        result.map_err(|error| read_error(&self.0.path, PAGE_BYTES, offset, error))?;
        check(&self.0.name, offset, &buffer, PAGE_BYTES, &[root])?;
        Ok(buffer.typed::<u32>().iter().map(|sum| u32::from_le(*sum)).collect())
    }
}

fn read_error(path: &Path, len: usize, offset: u64, error: std::io::Error) -> Error {
    let short = error.kind() == std::io::ErrorKind::UnexpectedEof;
    let error = if short { std::io::Error::other("the file ends before that") } else { error };
    Error::io(format!("read {len} bytes at {offset}"), path, error)
}

/// Compares each block of `bytes` with its checksum.
fn check(name: &str, offset: u64, bytes: &[u8], block_bytes: usize, expected: &[u32]) -> Result<()> {
    for (number, (block, &expected)) in bytes.chunks(block_bytes).zip(expected).enumerate() {
        let found = crc32fast::hash(block);
        if found != expected {
            let offset = offset + (number * block_bytes) as u64;
            return Err(Error::Damaged { file: name.to_string(), offset, found, expected });
        }
    }
    Ok(())
}

/// A read on its way.
#[derive(Debug)]
pub struct PendingRead {
    pending: Pending,
    name: String,
    path: PathBuf,
    offset: u64,
    len: usize,
    block_bytes: usize,
    expected: Vec<u32>,
    wanted: Range<usize>,
}

impl PendingRead {
    /// Waits, checks, and gives the buffer back with the place of the wanted bytes in it.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Damaged`].
    pub fn wait(self) -> Result<(Buffer, Range<usize>)> {
        let (buffer, result) = self.pending.wait();
        result.map_err(|error| read_error(&self.path, self.len, self.offset, error))?;
        check(&self.name, self.offset, &buffer[..self.len], self.block_bytes, &self.expected)?;
        Ok((buffer, self.wanted))
    }
}

/// Writes a file from start to end. Two buffers: one is filled while the other is on its way to the device.
#[derive(Debug)]
pub struct FileWriter {
    job: Job,
    file: Arc<dyn DeviceFile>,
    name: String,
    path: PathBuf,
    block_bytes: usize,
    filling: Option<Buffer>,
    filled: usize,
    flying: Flying,
    offset: u64,
    sums: Vec<u32>,
    reservation: Reservation,
}

#[derive(Debug)]
enum Flying {
    Idle(Option<Buffer>),
    Busy { pending: Pending, offset: u64, len: usize },
}

impl FileWriter {
    /// Creates `path`, which must not exist. `name` is what errors call the file; `block_bytes` is the unit
    /// of checking (a multiple of 4 KiB) and `buffer_bytes` the unit of writing, a multiple of that. Takes
    /// twice `buffer_bytes` from the job's budget, and 4 bytes for each block written.
    pub fn create(
        job: &Job,
        path: PathBuf,
        name: String,
        block_bytes: usize,
        buffer_bytes: usize,
    ) -> Result<FileWriter> {
        assert!(block_bytes > 0 && block_bytes.is_multiple_of(PAGE_BYTES), "block of {block_bytes} bytes");
        assert!(
            buffer_bytes > 0 && buffer_bytes.is_multiple_of(block_bytes),
            "buffer of {buffer_bytes} bytes"
        );
        let mut buffers =
            Buffer::zeroed(job.budget(), 2 * buffer_bytes, "a file's write buffers")?.split(buffer_bytes);
        let file = job.device().create(&path).map_err(|error| Error::io("create", &path, error))?;
        let reservation = job.budget().reserve(0, "a file's checksums")?;
        Ok(FileWriter {
            job: job.clone(),
            file,
            name,
            path,
            block_bytes,
            filling: buffers.pop(),
            filled: 0,
            flying: Flying::Idle(buffers.pop()),
            offset: 0,
            sums: Vec::new(),
            reservation,
        })
    }

    /// Bytes written so far.
    pub fn len(&self) -> u64 {
        self.offset + self.filled as u64
    }

    /// Whether nothing was written yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// [`Error::Io`] of this or an earlier write; [`Error::Cancelled`].
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let buffer = self.filling.as_mut().expect("only empty inside flush");
            let part = bytes.len().min(buffer.len() - self.filled);
            buffer[self.filled..self.filled + part].copy_from_slice(&bytes[..part]);
            self.filled += part;
            bytes = &bytes[part..];
            if self.filled == buffer.len() {
                self.flush()?;
            }
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.job.check_cancelled()?;
        let mut buffer = self.filling.take().expect("a buffer outside flush");
        let len = self.filled.next_multiple_of(PAGE_BYTES);
        buffer[self.filled..len].fill(0);
        if (self.sums.len() + len.div_ceil(self.block_bytes)) * 4 > self.reservation.bytes() as usize {
            self.reservation.resize(self.reservation.bytes() + SUMS_STEP as u64)?;
        }
        self.sums.extend(buffer[..len].chunks(self.block_bytes).map(crc32fast::hash));
        self.filling = Some(self.land()?);
        let pending = self.job.submit(Direction::Write, self.file.clone(), self.offset, len, buffer);
        self.flying = Flying::Busy { pending, offset: self.offset, len };
        self.offset += self.filled as u64;
        self.filled = 0;
        Ok(())
    }

    /// Waits for the write on its way and gives its buffer.
    fn land(&mut self) -> Result<Buffer> {
        match std::mem::replace(&mut self.flying, Flying::Idle(None)) {
            Flying::Idle(buffer) => Ok(buffer.expect("two buffers")),
            Flying::Busy { pending, offset, len } => {
                let (buffer, result) = pending.wait();
                result.map_err(|error| {
                    Error::io(format!("write {len} bytes at {offset}"), &self.path, error)
                })?;
                Ok(buffer)
            }
        }
    }

    fn complete(&mut self) -> Result<()> {
        if self.filled > 0 {
            self.flush()?;
        }
        self.land().map(drop)
    }

    /// Ends a scratch file: its checksums stay in memory, and nothing is made durable.
    ///
    /// # Errors
    /// [`Error::Io`] of a write that was still on its way.
    pub fn finish(mut self) -> Result<CheckedFile> {
        self.complete()?;
        // Many small scratch files may be open at once: none keeps a whole step.
        self.reservation.resize(self.sums.len() as u64 * 4)?;
        Ok(CheckedFile(Arc::new(Inner {
            file: self.file,
            name: self.name,
            path: self.path,
            len: self.offset,
            block_bytes: self.block_bytes,
            sums: Sums::Memory { sums: self.sums, _reservation: self.reservation },
        })))
    }

    /// Ends a dataset's file: appends its checksum pages, makes all of it durable, and gives what the
    /// manifest keeps.
    pub(crate) fn seal(mut self) -> Result<FileRecord> {
        self.complete()?;
        let mut roots = Vec::with_capacity(self.sums.len().div_ceil(SUMS_PER_PAGE));
        let mut offset = self.offset.next_multiple_of(PAGE_BYTES as u64);
        for sums in self.sums.chunks(SUMS_PER_PAGE) {
            let mut page = Buffer::zeroed(self.job.budget(), PAGE_BYTES, "a checksum page")?;
            for (place, sum) in page.typed_mut::<u32>().iter_mut().zip(sums) {
                *place = sum.to_le();
            }
            roots.push(crc32fast::hash(&page));
            let pending = self.job.submit(Direction::Write, self.file.clone(), offset, PAGE_BYTES, page);
            pending.wait().1.map_err(|error| Error::io("write checksums", &self.path, error))?;
            offset += PAGE_BYTES as u64;
        }
        self.file.sync().map_err(|error| Error::io("sync", &self.path, error))?;
        Ok(FileRecord { name: self.name, len: self.offset, block_bytes: self.block_bytes as u32, roots })
    }
}

/// Streams a range of a file. One buffer is read by the caller while the others are on their way.
#[derive(Debug)]
pub struct FileReader {
    job: Job,
    file: CheckedFile,
    buffer_bytes: usize,
    spare: Vec<Buffer>,
    ahead: std::collections::VecDeque<PendingRead>,
    current: Option<Buffer>,
    next: u64,
    end: u64,
}

impl FileReader {
    /// Reads `range` through two buffers of `buffer_bytes` (a multiple of the file's block) from the budget.
    pub fn new(job: &Job, file: &CheckedFile, range: Range<u64>, buffer_bytes: usize) -> Result<FileReader> {
        let buffers = Buffer::zeroed(job.budget(), 2 * buffer_bytes, "a file's read buffers")?;
        Self::with_buffers(job, file, range, buffers.split(buffer_bytes))
    }

    /// Reads `range` through `buffers`: at least one, all of one size, a multiple of the file's block.
    pub fn with_buffers(
        job: &Job,
        file: &CheckedFile,
        range: Range<u64>,
        buffers: Vec<Buffer>,
    ) -> Result<FileReader> {
        let buffer_bytes = buffers[0].len();
        assert!(buffer_bytes.is_multiple_of(file.block_bytes()), "buffer of {buffer_bytes} bytes");
        assert!(buffers.iter().all(|buffer| buffer.len() == buffer_bytes));
        assert!(range.end <= file.len(), "{range:?} of {}", file.len());
        let mut reader = FileReader {
            job: job.clone(),
            file: file.clone(),
            buffer_bytes,
            spare: buffers,
            ahead: Default::default(),
            current: None,
            next: range.start,
            end: range.end,
        };
        reader.read_ahead()?;
        Ok(reader)
    }

    fn read_ahead(&mut self) -> Result<()> {
        while self.next < self.end {
            let Some(buffer) = self.spare.pop() else { break };
            // Up to the next multiple of the buffer's size, so that all reads but the first are aligned.
            let end = (self.next / self.buffer_bytes as u64 + 1) * self.buffer_bytes as u64;
            let range = self.next..end.min(self.end);
            self.next = range.end;
            self.ahead.push_back(self.file.submit_read(&self.job, range, buffer)?);
        }
        Ok(())
    }

    /// The next piece: up to the next multiple of the buffer's size. `None` at the end of the range.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Damaged`], [`Error::Cancelled`].
    pub fn next_piece(&mut self) -> Result<Option<&[u8]>> {
        self.job.check_cancelled()?;
        self.spare.extend(self.current.take());
        self.read_ahead()?;
        let Some(pending) = self.ahead.pop_front() else { return Ok(None) };
        let (buffer, wanted) = pending.wait()?;
        let buffer = self.current.insert(buffer);
        Ok(Some(&buffer[wanted]))
    }

    /// The buffers, for the next reader.
    pub fn into_buffers(mut self) -> Result<Vec<Buffer>> {
        for pending in self.ahead.drain(..) {
            self.spare.push(pending.wait()?.0);
        }
        self.spare.extend(self.current.take());
        Ok(self.spare)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Budget, Directory, Fault, Faulty, Store, job::test_job};

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
    }

    fn write(job: &Job, bytes: &[u8], step: usize) -> Result<CheckedFile> {
        let mut writer = FileWriter::create(job, job.scratch_path("file"), "file".into(), 4096, 8192)?;
        for part in bytes.chunks(step) {
            writer.write(part)?;
        }
        writer.finish()
    }

    fn read(job: &Job, file: &CheckedFile, range: Range<u64>) -> Result<Vec<u8>> {
        let mut reader = FileReader::new(job, file, range, 8192)?;
        let mut bytes = Vec::new();
        while let Some(piece) = reader.next_piece()? {
            bytes.extend_from_slice(piece);
        }
        Ok(bytes)
    }

    #[test]
    fn what_was_written_is_read_back_in_any_range() {
        let (_folder, job) = test_job(1 << 20, &[]);
        for len in [0, 1, 4095, 4096, 4097, 8192, 50_000] {
            let bytes = pattern(len);
            let file = write(&job, &bytes, 777).unwrap();
            assert_eq!(file.len(), len as u64);
            for start in [0, 1, 4096, 8191, 20_000] {
                for end in [1, 4096, 8193, 33_333, len] {
                    let (start, end) = (start.min(len), end.min(len));
                    if start <= end {
                        let got = read(&job, &file, start as u64..end as u64).unwrap();
                        assert_eq!(got, &bytes[start..end], "{start}..{end} of {len}");
                    }
                }
            }
            std::fs::remove_file(job.scratch_path("file")).unwrap();
        }
        assert_eq!(job.budget().reserved_bytes(), 0);
    }

    #[test]
    fn every_faulty_read_and_write_is_an_error_and_never_wrong_bytes() {
        let bytes = pattern(100_000);
        let (_folder, job) = test_job(1 << 20, &[]);
        let file = write(&job, &bytes, 5000).unwrap();
        read(&job, &file, 0..100_000).unwrap();
        let faults = (0..13).flat_map(|n| {
            [
                Fault::FailRead(n),
                Fault::FlipRead(n),
                Fault::FailWrite(n),
                Fault::DropWrite(n),
                Fault::TearWrite(n),
                Fault::NoSpaceFromWrite(n),
            ]
        });
        for fault in faults {
            let (_folder, job) = test_job(1 << 20, &[fault]);
            let result = write(&job, &bytes, 5000).and_then(|file| read(&job, &file, 0..100_000));
            let error = result.expect_err(&format!("{fault:?}")).to_string();
            let told = match fault {
                Fault::NoSpaceFromWrite(_) => "No space left on device",
                // The last write is one page: without it the file is short, where any other leaves a hole.
                Fault::DropWrite(12) | Fault::TearWrite(12) => "the file ends before that",
                Fault::FlipRead(_) | Fault::TearWrite(_) | Fault::DropWrite(_) => "damaged at offset",
                _ => "Input/output error",
            };
            assert!(error.contains(told), "{fault:?}: {error}");
            // A read-ahead may still be on its way: it ends before the job does.
            let budget = job.budget().clone();
            drop(job);
            assert_eq!(budget.reserved_bytes(), 0, "{fault:?}");
        }
    }

    #[test]
    fn checksum_pages_are_checked_too() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        let job = store.job(Budget::new(1 << 20, 1), Default::default()).unwrap();
        let mut builder = store.create_dataset(&job, "data", "test").unwrap();
        let mut writer = builder.file("bytes", 4096, 4096 * 64).unwrap();
        let bytes = pattern(4096 * 1500 + 5); // two checksum pages
        writer.write(&bytes).unwrap();
        builder.add(writer).unwrap();
        builder.commit(&[]).unwrap();
        let dataset = store.dataset("data").unwrap();
        let file = dataset.file("bytes").unwrap();
        assert_eq!(read(&job, &file, 0..bytes.len() as u64).unwrap(), bytes);
        let path = dataset.path().join("bytes");
        let mut raw = std::fs::read(&path).unwrap();
        let last = raw.len() - 4096;
        raw[last] ^= 1;
        std::fs::write(&path, raw).unwrap();
        let file = store.dataset("data").unwrap().file("bytes").unwrap();
        let error = read(&job, &file, 0..bytes.len() as u64).unwrap_err();
        assert!(matches!(error, Error::Damaged { .. }), "{error}");
    }

    #[test]
    fn a_faulty_device_counts_what_it_saw() {
        let folder = tempfile::tempdir().unwrap();
        let device = Faulty::new(Arc::new(Directory::new()), &[]);
        let store = Store::open_on(folder.path(), Arc::new(device.clone())).unwrap();
        let job = store.job(Budget::new(1 << 20, 1), Default::default()).unwrap();
        write(&job, &pattern(20_000), 20_000).unwrap();
        assert_eq!(device.counts().1, 3);
    }
}
