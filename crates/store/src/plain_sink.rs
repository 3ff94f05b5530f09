//! Writes a plain file of the file system past the page cache, for results that are as large as the input.
//!
//! Written through the cache, ten gigabytes of results push everything else out of memory, and a process in a memory
//! cgroup waits for its own dirty pages. Here a few buffers on huge pages are on their way to the drive while the next
//! one is filled.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Write},
    ops::Range,
    os::unix::fs::FileExt,
    sync::Arc,
};

use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl};

use crate::{
    Buffer, Device, EXTENT_BYTES, Error, Job, PAGE_BYTES, Result,
    io::{Direction, Part, Pending},
};

const BUFFER_BYTES: usize = 1 << 20;
const BUFFERS: usize = 4;

/// Writes a file from start to end.
#[derive(Debug)]
pub struct FileSink {
    job: Job,
    device: Arc<Target>,
    filling: Buffer,
    filled: usize,
    spare: Vec<Buffer>,
    flying: VecDeque<(Pending, u64, usize)>,
    offset: u64,
}

impl FileSink {
    /// Begins to write `file`, which is empty and open for writing and is called `name` in errors. `bytes_hint` is how
    /// long it will be, if anyone knows: the file system can lay it out at once. Takes four buffers of 1 MiB.
    ///
    /// # Errors
    /// [`Error::OverBudget`]; [`Error::Io`] where the hint says that the file does not fit.
    pub fn new(job: &Job, file: File, name: &str, bytes_hint: Option<u64>) -> Result<FileSink> {
        let fail = |error: io::Error| Error::io("write", name, error);
        let kind = file.metadata().map_err(fail)?.file_type();
        // File systems without O_DIRECT take the same writes through the cache.
        let direct = kind.is_file()
            && fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags | OFlags::DIRECT)).is_ok();
        if let Some(bytes) = bytes_hint.filter(|&bytes| bytes > 0 && kind.is_file()) {
            // Only a hint: a file system that cannot do it is none the worse.
            if let Err(error @ rustix::io::Errno::NOSPC) =
                fallocate(&file, FallocateFlags::KEEP_SIZE, 0, bytes)
            {
                return Err(fail(error.into()));
            }
        }
        Self::with(job, Target { name: name.to_string(), file: Arc::new(file), direct, is_stream: false })
    }

    /// Begins to write to a pipe, a terminal, or standard output, whatever that is: from where it stands, one write after
    /// the other.
    ///
    /// # Errors
    /// [`Error::OverBudget`].
    pub fn stream(job: &Job, file: File, name: &str) -> Result<FileSink> {
        Self::with(
            job,
            Target { name: name.to_string(), file: Arc::new(file), direct: false, is_stream: true },
        )
    }

    fn with(job: &Job, target: Target) -> Result<FileSink> {
        let buffers = Buffer::zeroed(job.budget(), BUFFERS * BUFFER_BYTES, "buffers to write a file")?;
        let mut spare = buffers.split(BUFFER_BYTES);
        let device = Arc::new(target);
        Ok(FileSink {
            job: job.clone(),
            device,
            filling: spare.pop().expect("four of them"),
            filled: 0,
            spare,
            flying: VecDeque::new(),
            offset: 0,
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

    /// Where the next bytes may be put; never empty.
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.filling[self.filled..]
    }

    /// Appends the first `len` bytes of [`FileSink::space`].
    ///
    /// # Errors
    /// [`Error::Io`] of this or an earlier write; [`Error::Cancelled`].
    pub fn advance(&mut self, len: usize) -> Result<()> {
        self.filled += len;
        if self.filled == self.filling.len() { self.flush() } else { Ok(()) }
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// As [`FileSink::advance`].
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let space = self.space();
            let part = bytes.len().min(space.len());
            space[..part].copy_from_slice(&bytes[..part]);
            bytes = &bytes[part..];
            self.advance(part)?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.job.check_cancelled()?;
        let len = self.filled;
        self.filled = 0;
        if self.device.is_stream {
            let written = (&*self.device.file).write_all(&self.filling[..len]);
            written.map_err(|error| Error::io("write", &self.device.name, error))?;
            self.offset += len as u64;
            return Ok(());
        }
        let whole = if self.device.direct { len.next_multiple_of(PAGE_BYTES) } else { len };
        self.filling[len..whole].fill(0);
        let next = match self.spare.pop() {
            Some(buffer) => buffer,
            None => self.land()?,
        };
        let buffer = std::mem::replace(&mut self.filling, next);
        let (extent, offset) = (self.offset / EXTENT_BYTES as u64, self.offset % EXTENT_BYTES as u64);
        let part = Part {
            device: self.device.clone(),
            extent: extent as u32,
            offset: offset as usize,
            range: 0..whole,
        };
        let pending = self.job.submit_elsewhere(Direction::Write, vec![part], buffer);
        self.flying.push_back((pending, self.offset, len));
        self.offset += len as u64;
        Ok(())
    }

    fn land(&mut self) -> Result<Buffer> {
        let (pending, offset, len) = self.flying.pop_front().expect("something is on its way");
        let (buffer, result) = pending.wait();
        result.map_err(|error| {
            Error::io(format!("write {len} bytes at {offset} of"), &self.device.name, error)
        })?;
        Ok(buffer)
    }

    /// Writes what is left and gives the length of the file. Nothing is synced: whoever gives the file its name does
    /// that.
    ///
    /// # Errors
    /// As [`FileSink::advance`].
    pub fn finish(mut self) -> Result<u64> {
        if self.filled > 0 {
            self.flush()?;
        }
        while !self.flying.is_empty() {
            self.land()?;
        }
        if !self.device.is_stream {
            let fail = |error| Error::io("end", &self.device.name, error);
            self.device.file.set_len(self.offset).map_err(fail)?;
        }
        Ok(self.offset)
    }
}

/// A file as a device, so that it is written as devices are.
#[derive(Debug)]
struct Target {
    name: String,
    file: Arc<File>,
    direct: bool,
    is_stream: bool,
}

impl Device for Target {
    fn extents(&self) -> u32 {
        u32::MAX
    }

    fn read(&self, _: u32, _: usize, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn write(&self, extent: u32, offset: usize, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, extent as u64 * EXTENT_BYTES as u64 + offset as u64)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_all()
    }

    fn prepare(&self, _: Range<u32>) -> io::Result<()> {
        Ok(())
    }

    fn discard(&self, _: Range<u32>) -> io::Result<()> {
        Ok(())
    }

    fn raw(&self, extent: u32, _: bool) -> io::Result<Option<(Arc<File>, u64)>> {
        Ok(Some((self.file.clone(), extent as u64 * EXTENT_BYTES as u64)))
    }

    fn is_direct(&self) -> bool {
        self.direct
    }

    fn name(&self) -> String {
        self.name.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_of_any_length_is_written_whole() {
        let (folder, job) = crate::job::test_job(16 << 20, &[]);
        let path = folder.path().join("file");
        for len in [0usize, 1, 4096, 5000, 1 << 20, (6 << 20) + 77] {
            for hint in [None, Some(len as u64)] {
                let bytes: Vec<u8> = (0..len).map(|i| (i * 31 + i / 4096) as u8).collect();
                let mut sink = FileSink::new(&job, File::create(&path).unwrap(), "file", hint).unwrap();
                bytes.chunks(70_001).for_each(|piece| sink.write(piece).unwrap());
                assert_eq!(sink.finish().unwrap(), len as u64);
                assert!(fs::read(&path).unwrap() == bytes, "{len}");
            }
        }
        assert_eq!(job.budget().reserved_bytes(), 0);
    }

    #[test]
    fn a_pipe_takes_the_same_bytes() {
        let (_folder, job) = crate::job::test_job(16 << 20, &[]);
        let (mut reader, writer) = io::pipe().unwrap();
        let bytes: Vec<u8> = (0..3_000_000usize).map(|i| (i * 7) as u8).collect();
        let reading = std::thread::spawn(move || {
            let mut found = Vec::new();
            io::Read::read_to_end(&mut reader, &mut found).map(|_| found)
        });
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let mut sink = FileSink::stream(&job, file, "pipe").unwrap();
        sink.write(&bytes).unwrap();
        assert_eq!(sink.finish().unwrap(), bytes.len() as u64);
        assert!(reading.join().unwrap().unwrap() == bytes);
    }

    #[test]
    fn a_full_device_is_an_error() {
        let (_folder, job) = crate::job::test_job(16 << 20, &[]);
        let file = File::options().write(true).open("/dev/full").unwrap();
        let mut sink = FileSink::stream(&job, file, "full").unwrap();
        assert!(sink.write(&vec![1; 2 << 20]).is_err());
    }
}
