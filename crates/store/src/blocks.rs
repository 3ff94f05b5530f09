//! A scratch file of equal blocks that are changed in place: vertex state that does not fit in memory.

use std::sync::Arc;

use crate::{
    Buffer, DeviceFile, Error, Job, Reservation, Result,
    io::{Direction, Pending},
};

/// A scratch file of `blocks` equal blocks, each read and written as a whole and checked when read.
///
/// The checksums stay in memory: 4 bytes for each block, counted in the budget. A write must have landed
/// ([`PendingBlock::wait`]) before the same block is read again.
#[derive(Debug)]
pub struct BlockFile {
    job: Job,
    file: Arc<dyn DeviceFile>,
    name: String,
    block_bytes: usize,
    sums: Vec<u32>,
    _reservation: Reservation,
}

/// A read or write of one block on its way.
#[derive(Debug)]
pub struct PendingBlock {
    pending: Pending,
    name: String,
    offset: u64,
    expected: Option<u32>,
}

impl BlockFile {
    /// Creates a scratch file for `blocks` blocks of `block_bytes` bytes, a multiple of 4 KiB. Every block
    /// must be written before it is read.
    pub fn create(job: &Job, name: &str, blocks: usize, block_bytes: usize) -> Result<BlockFile> {
        let reservation = job.budget().reserve(blocks as u64 * 4, "checksums of vertex state")?;
        let path = job.scratch_path(name);
        let file = job.device().create(&path).map_err(|error| Error::io("create", &path, error))?;
        let name = name.to_string();
        Ok(BlockFile {
            job: job.clone(),
            file,
            name,
            block_bytes,
            sums: vec![0; blocks],
            _reservation: reservation,
        })
    }

    /// The number of blocks.
    pub fn blocks(&self) -> usize {
        self.sums.len()
    }

    /// Bytes in a block.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    fn offset(&self, block: usize) -> u64 {
        block as u64 * self.block_bytes as u64
    }

    /// Starts to read `block` into `buffer`.
    pub fn submit_read(&self, block: usize, buffer: Buffer) -> PendingBlock {
        let offset = self.offset(block);
        let pending = self.job.submit(Direction::Read, self.file.clone(), offset, self.block_bytes, buffer);
        PendingBlock { pending, name: self.name.clone(), offset, expected: Some(self.sums[block]) }
    }

    /// Starts to write `buffer` as `block`.
    pub fn submit_write(&mut self, block: usize, buffer: Buffer) -> PendingBlock {
        let offset = self.offset(block);
        self.sums[block] = crc32fast::hash(&buffer[..self.block_bytes]);
        let pending = self.job.submit(Direction::Write, self.file.clone(), offset, self.block_bytes, buffer);
        PendingBlock { pending, name: self.name.clone(), offset, expected: None }
    }
}

impl PendingBlock {
    /// Waits, checks a read, and gives the buffer back.
    ///
    /// # Errors
    /// [`Error::Io`] and [`Error::Damaged`].
    pub fn wait(self) -> Result<Buffer> {
        let (buffer, result) = self.pending.wait();
        result.map_err(|error| {
            let what = if self.expected.is_some() { "read" } else { "write" };
            Error::io(format!("{what} {} bytes at {}", buffer.len(), self.offset), &self.name, error)
        })?;
        if let Some(expected) = self.expected {
            let found = crc32fast::hash(&buffer);
            if found != expected {
                return Err(Error::Damaged { file: self.name, offset: self.offset, found, expected });
            }
        }
        Ok(buffer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Fault, job::test_job};

    #[test]
    fn a_block_holds_what_was_written_last_and_damage_is_found() {
        let (_folder, job) = test_job(1 << 20, &[Fault::DropWrite(3)]);
        let mut blocks = BlockFile::create(&job, "state", 3, 4096).unwrap();
        for block in 0..3 {
            let mut buffer = Buffer::zeroed(job.budget(), 4096, "test").unwrap();
            buffer.fill(block as u8);
            blocks.submit_write(block, buffer).wait().unwrap();
        }
        let mut buffer = Buffer::zeroed(job.budget(), 4096, "test").unwrap();
        buffer = blocks.submit_read(1, buffer).wait().unwrap();
        assert!(buffer.iter().all(|&byte| byte == 1));
        buffer.fill(9);
        buffer = blocks.submit_write(1, buffer).wait().unwrap(); // dropped by the device
        assert!(matches!(blocks.submit_read(1, buffer).wait(), Err(Error::Damaged { offset: 4096, .. })));
    }
}
