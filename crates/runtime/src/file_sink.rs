//! Writes a plain file of the file system without the page cache, for results that are as large as the input.
//!
//! Ten gigabytes of results that are written through the cache push all other cached data out of memory, and
//! a process in a memory cgroup waits for its own dirty pages. A file sink therefore has a few buffers on
//! huge pages in flight to the drive while it fills the next one.

use std::{
    collections::VecDeque,
    fs::File,
    io::{self, Write},
    ops::Range,
    os::unix::fs::FileExt,
    sync::Arc,
};

use rustix::fs::{FallocateFlags, OFlags, fallocate, fcntl_getfl, fcntl_setfl};

use crate::{Buffer, Context, Direction, Error, PAGE_BYTES, Part, Pending, Result, Storage};

const BUFFER_BYTES: usize = 1 << 20;
const BUFFERS: usize = 4;

/// `FileSink` writes a file from start to end, or a part of a file.
#[derive(Debug)]
pub struct FileSink {
    context: Context,
    output: Arc<Output>,
    filling: Buffer,
    /// The first byte of `filling` that belongs to this part.
    skipped: usize,
    filled: usize,
    spare: Vec<Buffer>,
    in_flight: VecDeque<(Pending, u64, usize)>,
    offset: u64,
    /// The bytes at the start and the end of a part, which are written later. The value is `None` if the sink writes a
    /// complete file.
    edges: Option<FileEdges>,
}

/// `FileEdges` holds the bytes at the start and the end of a part of a file that do not fill a page. Such a page
/// also contains bytes of the neighbouring part. The edges are therefore written after all parts.
#[derive(Debug, Default)]
pub struct FileEdges {
    /// Ranges of bytes with their offsets in the file.
    bytes: Vec<(u64, Vec<u8>)>,
}

impl FileSink {
    /// Begins to write `file`, which must be empty and open for writing; errors call the file `name`. `bytes_hint` is
    /// the expected length, which lets the file system allocate the file at once. The sink takes four buffers of 1 MiB.
    ///
    /// # Errors
    /// - Returns [`Error::OverBudget`] if the budget has too little free memory.
    /// - Returns [`Error::Io`] if a file of the expected length does not fit.
    pub fn new(context: &Context, file: File, name: &str, bytes_hint: Option<u64>) -> Result<FileSink> {
        let output = Output::new(file, name, bytes_hint)?;
        Self::with(context, Arc::new(output), BUFFER_BYTES)
    }

    /// Begins to write `file` in parts, which may be written at the same time. `starts` are the offsets of
    /// the parts and ascend from 0. Each part ends at the start of the next part, and the last part ends at
    /// offset `bytes`. All parts share four buffers of 1 MiB. The caller passes the results of
    /// [`FileSink::finish_part`] to [`FileEdges::write`].
    ///
    /// # Errors
    /// Returns the errors of [`FileSink::new`].
    pub fn in_parts(
        context: &Context,
        file: File,
        name: &str,
        bytes: u64,
        starts: &[u64],
    ) -> Result<Vec<FileSink>> {
        assert!(starts.first() == Some(&0) && starts.is_sorted(), "{starts:?}");
        let output = Arc::new(Output::new(file, name, Some(bytes))?);
        let buffer_bytes = (BUFFER_BYTES / starts.len().next_power_of_two()).max(PAGE_BYTES);
        let part = |&start: &u64| {
            let mut sink = Self::with(context, output.clone(), buffer_bytes)?;
            // Offsets of buffers are multiples of the buffer size from the start of the file, not of the part.
            sink.skipped = (start % buffer_bytes as u64) as usize;
            (sink.filled, sink.offset) = (sink.skipped, start - sink.skipped as u64);
            sink.edges = Some(FileEdges::default());
            Ok(sink)
        };
        starts.iter().map(part).collect()
    }

    /// Begins to write to a pipe, a terminal or standard output, from its current position, one write after the other.
    ///
    /// # Errors
    /// Returns [`Error::OverBudget`] if the budget has too little free memory.
    pub fn stream(context: &Context, file: File, name: &str) -> Result<FileSink> {
        let output = Output { name: name.to_string(), file: Arc::new(file), direct: false, is_stream: true };
        Self::with(context, Arc::new(output), BUFFER_BYTES)
    }

    fn with(context: &Context, output: Arc<Output>, buffer_bytes: usize) -> Result<FileSink> {
        let buffers = Buffer::zeroed(context.budget(), BUFFERS * buffer_bytes, "buffers to write a file")?;
        let mut spare = buffers.split(buffer_bytes);
        Ok(FileSink {
            context: context.clone(),
            output,
            filling: spare.pop().expect("four of them"),
            skipped: 0,
            filled: 0,
            spare,
            in_flight: VecDeque::new(),
            offset: 0,
            edges: None,
        })
    }

    /// Returns the number of bytes written so far.
    pub fn len(&self) -> u64 {
        self.offset + self.filled as u64
    }

    /// Returns true if no bytes were written yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the free space of the current buffer, which is never empty. The caller fills some of the space and then
    /// calls [`FileSink::advance`].
    pub fn space(&mut self) -> &mut [u8] {
        &mut self.filling[self.filled..]
    }

    /// Appends the first `len` bytes of [`FileSink::space`].
    ///
    /// # Errors
    /// - Returns [`Error::Io`] if this write or an earlier write failed.
    /// - Returns [`Error::Cancelled`] if the job was cancelled.
    pub fn advance(&mut self, len: usize) -> Result<()> {
        self.filled += len;
        if self.filled == self.filling.len() { self.flush() } else { Ok(()) }
    }

    /// Appends `bytes`.
    ///
    /// # Errors
    /// Returns the errors of [`FileSink::advance`].
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
        self.context.check_cancelled()?;
        let (first, len) = (std::mem::take(&mut self.skipped), std::mem::take(&mut self.filled));
        if self.output.is_stream {
            let written = (&*self.output.file).write_all(&self.filling[..len]);
            written.map_err(|error| Error::io("write", &self.output.name, error))?;
            self.offset += len as u64;
            return Ok(());
        }
        let range = match &mut self.edges {
            None => {
                let whole = if self.output.direct { len.next_multiple_of(PAGE_BYTES) } else { len };
                self.filling[len..whole].fill(0);
                0..whole
            }
            Some(edges) => edges.cut(self.offset, &self.filling, first..len),
        };
        if !range.is_empty() {
            let next = match self.spare.pop() {
                Some(buffer) => buffer,
                None => self.wait_oldest()?,
            };
            let buffer = std::mem::replace(&mut self.filling, next);
            self.submit(buffer, range, len);
        }
        self.offset += len as u64;
        Ok(())
    }

    fn submit(&mut self, buffer: Buffer, range: Range<usize>, len: usize) {
        let offset = self.offset + range.start as u64;
        let part = Part { storage: self.output.clone(), offset, range };
        let pending = self.context.submit_uncounted(Direction::Write, part, buffer);
        self.in_flight.push_back((pending, self.offset, len));
    }

    fn wait_oldest(&mut self) -> Result<Buffer> {
        let (pending, offset, len) = self.in_flight.pop_front().expect("something is on its way");
        let (buffer, result) = pending.wait();
        result.map_err(|error| {
            Error::io(format!("write {len} bytes at {offset} of"), &self.output.name, error)
        })?;
        Ok(buffer)
    }

    /// Writes the remaining bytes and returns the length of the file. The file is not synced; the caller syncs the file
    /// before renaming it.
    ///
    /// # Errors
    /// Returns the errors of [`FileSink::advance`].
    pub fn finish(mut self) -> Result<u64> {
        self.flush_and_wait()?;
        if !self.output.is_stream {
            let fail = |error| Error::io("end", &self.output.name, error);
            self.output.file.set_len(self.offset).map_err(fail)?;
        }
        Ok(self.offset)
    }

    /// Writes the remaining bytes of a part except its edges, and returns the edges.
    ///
    /// # Errors
    /// Returns the errors of [`FileSink::advance`].
    pub fn finish_part(mut self) -> Result<FileEdges> {
        self.flush_and_wait()?;
        Ok(self.edges.expect("a part"))
    }

    fn flush_and_wait(&mut self) -> Result<()> {
        if self.filled > self.skipped {
            self.flush()?;
        }
        while !self.in_flight.is_empty() {
            self.wait_oldest()?;
        }
        Ok(())
    }
}

impl FileEdges {
    /// Stores those bytes of `range` that do not fill a page as edges, and returns the range of the complete pages.
    /// `offset` is the offset in the file of the first byte of `buffer`.
    fn cut(&mut self, offset: u64, buffer: &[u8], range: Range<usize>) -> Range<usize> {
        let pages = range.start.next_multiple_of(PAGE_BYTES)..range.end / PAGE_BYTES * PAGE_BYTES;
        let (before, behind) = match pages.start > pages.end {
            true => (range, 0..0),
            false => (range.start..pages.start, pages.end..range.end),
        };
        for edge in [before, behind].into_iter().filter(|edge| !edge.is_empty()) {
            self.bytes.push((offset + edge.start as u64, buffer[edge].to_vec()));
        }
        pages
    }

    /// Ends a file after all parts are written: writes their edges and sets the length to `bytes`.
    ///
    /// # Errors
    /// Returns [`Error::Io`] if the operating system refuses an operation on the file.
    pub fn write(parts: Vec<FileEdges>, file: &File, name: &str, bytes: u64) -> Result<()> {
        let write = || -> io::Result<()> {
            // Edges do not fill pages, so they are written without O_DIRECT. Direct writes and writes of
            // edges never touch the same page.
            fcntl_setfl(file, fcntl_getfl(file)? - OFlags::DIRECT)?;
            for (offset, edge) in parts.iter().flat_map(|part| &part.bytes) {
                file.write_all_at(edge, *offset)?;
            }
            file.set_len(bytes)
        };
        write().map_err(|error| Error::io("end", name, error))
    }
}

/// `Output` is the file, pipe or terminal to which a sink writes.
#[derive(Debug)]
struct Output {
    name: String,
    file: Arc<File>,
    direct: bool,
    is_stream: bool,
}

impl Output {
    fn new(file: File, name: &str, bytes_hint: Option<u64>) -> Result<Output> {
        let fail = |error: io::Error| Error::io("write", name, error);
        let kind = file.metadata().map_err(fail)?.file_type();
        // On file systems without O_DIRECT, the same writes go through the page cache.
        let direct = kind.is_file()
            && fcntl_getfl(&file).and_then(|flags| fcntl_setfl(&file, flags | OFlags::DIRECT)).is_ok();
        if let Some(bytes) = bytes_hint.filter(|&bytes| bytes > 0 && kind.is_file()) {
            // The length is only a hint, so it is no error if the file system lacks fallocate. If the file has its full
            // length from the start, several writes proceed at the same time (1.7 GB/s on ext4). If each write extends
            // the file, writes proceed one by one (1.15 GB/s).
            if let Err(error @ rustix::io::Errno::NOSPC) = fallocate(&file, FallocateFlags::empty(), 0, bytes)
            {
                return Err(fail(error.into()));
            }
        }
        Ok(Output { name: name.to_string(), file: Arc::new(file), direct, is_stream: false })
    }
}

impl Storage for Output {
    fn read(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, offset)
    }

    fn raw(&self, _: bool) -> io::Result<Option<(Arc<File>, u64)>> {
        Ok(Some((self.file.clone(), 0)))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{Budget, Cancel};

    fn context() -> Context {
        Context::new(Budget::new(16 << 20, 2), Cancel::default())
    }

    #[test]
    fn a_file_of_any_length_is_written_whole() {
        let folder = tempfile::tempdir().unwrap();
        let context = context();
        let path = folder.path().join("file");
        for len in [0usize, 1, 4096, 5000, 1 << 20, (6 << 20) + 77] {
            for hint in [None, Some(len as u64)] {
                let bytes: Vec<u8> = (0..len).map(|i| (i * 31 + i / 4096) as u8).collect();
                let mut sink = FileSink::new(&context, File::create(&path).unwrap(), "file", hint).unwrap();
                bytes.chunks(70_001).for_each(|piece| sink.write(piece).unwrap());
                assert_eq!(sink.finish().unwrap(), len as u64);
                assert!(fs::read(&path).unwrap() == bytes, "{len}");
            }
        }
        assert_eq!(context.budget().reserved_bytes(), 0);
    }

    #[test]
    fn a_file_is_written_in_parts_that_begin_anywhere() {
        let folder = tempfile::tempdir().unwrap();
        let context = context();
        let path = folder.path().join("file");
        let bytes: Vec<u8> = (0..(5usize << 20) + 77).map(|i| (i * 31 + i / 4096) as u8).collect();
        let len = bytes.len() as u64;
        for starts in [
            vec![0],
            vec![0, 1],
            vec![0, 4096, 4097, 4099, 8192],
            vec![0, 0, 1 << 20, (1 << 20) + 5000, len - 1, len],
            vec![0, 3_000_001, 3_000_002, 3_500_000],
        ] {
            let file = File::create(&path).unwrap();
            let sinks =
                FileSink::in_parts(&context, file.try_clone().unwrap(), "file", len, &starts).unwrap();
            let mut ends = starts[1..].to_vec();
            ends.push(len);
            let parts =
                std::iter::zip(&starts, &ends).map(|(&start, &end)| &bytes[start as usize..end as usize]);
            let mut edges = Vec::new();
            // The last part is written first, which is possible since no part waits for another.
            for (mut sink, part) in sinks.into_iter().zip(parts).collect::<Vec<_>>().into_iter().rev() {
                part.chunks(70_001).for_each(|piece| sink.write(piece).unwrap());
                edges.push(sink.finish_part().unwrap());
            }
            FileEdges::write(edges, &file, "file", len).unwrap();
            assert!(fs::read(&path).unwrap() == bytes, "{starts:?}");
        }
        assert_eq!(context.budget().reserved_bytes(), 0);
    }

    #[test]
    fn a_pipe_takes_the_same_bytes() {
        let context = context();
        let (mut reader, writer) = io::pipe().unwrap();
        let bytes: Vec<u8> = (0..3_000_000usize).map(|i| (i * 7) as u8).collect();
        let reading = std::thread::spawn(move || {
            let mut found = Vec::new();
            io::Read::read_to_end(&mut reader, &mut found).map(|_| found)
        });
        let file = File::from(std::os::fd::OwnedFd::from(writer));
        let mut sink = FileSink::stream(&context, file, "pipe").unwrap();
        sink.write(&bytes).unwrap();
        assert_eq!(sink.finish().unwrap(), bytes.len() as u64);
        assert!(reading.join().unwrap().unwrap() == bytes);
    }

    #[test]
    fn a_full_device_is_an_error() {
        let context = context();
        let file = File::options().write(true).open("/dev/full").unwrap();
        let mut sink = FileSink::stream(&context, file, "full").unwrap();
        assert!(sink.write(&vec![1; 2 << 20]).is_err());
    }
}
