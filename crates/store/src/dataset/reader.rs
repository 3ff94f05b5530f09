//! A file reader streams a byte range of a file. While the caller uses one piece, the reads of the next pieces are in
//! flight.

use std::{collections::VecDeque, ops::Range};

use crate::{Buffer, CheckedFile, Job, PendingRead, Result};

/// `FileReader` streams a byte range of a file. While the caller uses one buffer, the other buffers are in flight.
#[derive(Debug)]
pub struct FileReader {
    job: Job,
    file: CheckedFile,
    buffer_bytes: usize,
    spare: Vec<Buffer>,
    ahead: VecDeque<PendingRead>,
    current: Option<(Buffer, Range<usize>)>,
    next: u64,
    end: u64,
}

impl FileReader {
    /// Reads `range` through two buffers of `buffer_bytes` bytes from the budget. The size is a multiple of the file's
    /// block size.
    pub fn new(job: &Job, file: &CheckedFile, range: Range<u64>, buffer_bytes: usize) -> Result<FileReader> {
        Self::deep(job, file, range, buffer_bytes, 2)
    }

    /// Reads `range` through `buffers` buffers. All but one of the buffers can be in flight; four buffers of 1 MiB keep
    /// a drive busy.
    pub fn deep(
        job: &Job,
        file: &CheckedFile,
        range: Range<u64>,
        buffer_bytes: usize,
        buffers: usize,
    ) -> Result<FileReader> {
        let buffers = Buffer::zeroed(job.budget(), buffers * buffer_bytes, "a file's read buffers")?;
        Self::with_buffers(job, file, range, buffers.split(buffer_bytes))
    }

    /// Reads `range` through the given buffers, of which there is at least one. All buffers have the same size, which
    /// is a multiple of the file's block size.
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
            // Each read ends at a multiple of the buffer size, so that all reads except the first are aligned.
            let end = (self.next / self.buffer_bytes as u64 + 1) * self.buffer_bytes as u64;
            let range = self.next..end.min(self.end);
            self.next = range.end;
            self.ahead.push_back(self.file.submit_read(&self.job, range, buffer)?);
        }
        Ok(())
    }

    /// Returns the next piece, which ends at a multiple of the buffer size or at the end of the range. The result is
    /// `None` after the end of the range.
    ///
    /// # Errors
    /// - Returns [`crate::Error::Io`] if the operating system refuses an operation on a file.
    /// - Returns [`crate::Error::Damaged`] if the checksum of stored bytes does not match.
    /// - Returns [`crate::Error::Cancelled`] if the job was cancelled.
    pub fn next_piece(&mut self) -> Result<Option<&[u8]>> {
        self.job.check_cancelled()?;
        self.spare.extend(self.current.take().map(|(buffer, _)| buffer));
        self.read_ahead()?;
        let Some(pending) = self.ahead.pop_front() else { return Ok(None) };
        self.current = Some(pending.wait()?);
        Ok(Some(self.piece()))
    }

    /// Returns the current piece again. Before the first piece and after the last piece, the result is empty.
    pub fn piece(&self) -> &[u8] {
        self.current.as_ref().map_or(&[], |(buffer, wanted)| &buffer[wanted.clone()])
    }

    /// Returns the buffers, so that the next reader can reuse them.
    pub fn into_buffers(mut self) -> Result<Vec<Buffer>> {
        for pending in self.ahead.drain(..) {
            self.spare.push(pending.wait()?.0);
        }
        self.spare.extend(self.current.take().map(|(buffer, _)| buffer));
        Ok(self.spare)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{Budget, Cancel, Store};

    #[test]
    fn a_dropped_reader_returns_its_read_ahead_at_once() {
        let folder = tempfile::tempdir().unwrap();
        // The first store uses io_uring, if the system supports it. The second store uses a pool of threads.
        let real = Store::open(folder.path().join("real")).unwrap();
        let memory: Arc<dyn crate::Device> = Arc::new(crate::Memory::new(64));
        let held = Store::open_on(folder.path(), vec![memory]).unwrap();
        for store in [real, held] {
            let job = store.job(Budget::new(16 << 20, 2), Cancel::default()).unwrap();
            let mut writer = crate::FileWriter::create(&job, "scratch", 64 << 10, 1 << 20).unwrap();
            writer.write(&vec![7; 10 << 20]).unwrap();
            let file = writer.finish().unwrap();
            let reserved = job.budget().reserved_bytes();
            for pieces in 0..3 {
                let mut reader = FileReader::deep(&job, &file, 0..file.len(), 1 << 20, 4).unwrap();
                (0..pieces).for_each(|_| assert!(reader.next_piece().unwrap().is_some()));
                drop(reader);
                assert_eq!(job.budget().reserved_bytes(), reserved);
            }
            drop(file);
            assert_eq!((job.budget().reserved_bytes(), job.extents_in_use()), (0, 0));
        }
    }
}
