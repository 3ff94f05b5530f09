//! A block file stores the vertex state of a graph algorithm that does not fit in memory. Its blocks have equal size,
//! are in scratch space, and are changed in place.

use std::sync::Arc;

use inshore_runtime::{Direction, Pending};

use crate::{
    Buffer, Error, Job, Redundancy, Reservation, Result,
    device::part,
    space::extents::{Extents, pieces},
};

/// `BlockFile` is a scratch file of blocks of equal size. A read or write always transfers a complete block. A read
/// verifies the checksum of the block.
///
/// The checksums stay in memory. They take 4 bytes per block, which are reserved from the budget. The caller waits for
/// a write to end ([`PendingBlock::wait`]) before it reads the same block again.
#[derive(Debug)]
pub struct BlockFile {
    job: Job,
    extents: Arc<Extents>,
    name: String,
    block_bytes: usize,
    sums: Vec<u32>,
    _reservation: Reservation,
}

/// `PendingBlock` is a read or write of one block in flight.
#[derive(Debug)]
pub struct PendingBlock {
    pending: Pending,
    name: String,
    offset: u64,
    expected: Option<u32>,
}

impl BlockFile {
    /// Creates a scratch file for `blocks` blocks of `block_bytes` bytes, a multiple of 4 KiB. Every block must be
    /// written before it is read.
    pub fn create(job: &Job, name: &str, blocks: usize, block_bytes: usize) -> Result<BlockFile> {
        let reservation = job.budget().reserve(blocks as u64 * 4, "checksums of vertex state")?;
        Ok(BlockFile {
            job: job.clone(),
            extents: Extents::of_lease(job.lease(), Redundancy::Copies(1), 0),
            name: name.to_string(),
            block_bytes,
            sums: vec![0; blocks],
            _reservation: reservation,
        })
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        self.sums.len()
    }

    /// Returns the size of a block in bytes.
    pub fn block_bytes(&self) -> usize {
        self.block_bytes
    }

    fn offset(&self, block: usize) -> u64 {
        block as u64 * self.block_bytes as u64
    }

    /// Starts to read `block` into `buffer`.
    ///
    /// # Errors
    /// Returns [`Error::NoSpace`] if the block was never written.
    pub fn submit_read(&self, block: usize, buffer: Buffer) -> Result<PendingBlock> {
        let pending = self.submit(Direction::Read, block, buffer)?;
        let (name, offset) = (self.name.clone(), self.offset(block));
        Ok(PendingBlock { pending, name, offset, expected: Some(self.sums[block]) })
    }

    /// Starts to write `buffer` as `block`.
    ///
    /// # Errors
    /// Returns [`Error::NoSpace`] if all devices are full.
    pub fn submit_write(&mut self, block: usize, buffer: Buffer) -> Result<PendingBlock> {
        self.sums[block] = crc32fast::hash(&buffer[..self.block_bytes]);
        let pending = self.submit(Direction::Write, block, buffer)?;
        let (name, offset) = (self.name.clone(), self.offset(block));
        Ok(PendingBlock { pending, name, offset, expected: None })
    }

    fn submit(&self, direction: Direction, block: usize, buffer: Buffer) -> Result<Pending> {
        let start = self.offset(block);
        let mut parts = Vec::with_capacity(1);
        for (extent, offset, range) in pieces(start..start + self.block_bytes as u64) {
            let place = self.extents.take(extent)?[0];
            let device = self.job.device(place.device)?;
            parts.push(part(device, place.extent, offset, range));
        }
        Ok(self.job.submit(direction, parts, buffer, Some(self.extents.clone())))
    }
}

impl PendingBlock {
    /// Waits for the transfer and returns the buffer. After a read, the call verifies the checksum.
    ///
    /// # Errors
    /// - Returns [`Error::Io`] if a read fails.
    /// - Returns [`Error::Damaged`] if a checksum does not match.
    pub fn wait(self) -> Result<Buffer> {
        let (buffer, result) = self.pending.wait();
        result.map_err(|error| {
            let what = if self.expected.is_some() { "read" } else { "write" };
            Error::io(format!("{what} {} bytes at offset {}", buffer.len(), self.offset), &self.name, error)
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
    fn a_block_holds_the_last_write_and_damage_is_detected() {
        let (_folder, job) = test_job(1 << 20, &[Fault::DropWrite(3)]);
        let mut blocks = BlockFile::create(&job, "state", 3, 4096).unwrap();
        for block in 0..3 {
            let mut buffer = Buffer::zeroed(job.budget(), 4096, "test").unwrap();
            buffer.fill(block as u8);
            blocks.submit_write(block, buffer).unwrap().wait().unwrap();
        }
        let mut buffer = Buffer::zeroed(job.budget(), 4096, "test").unwrap();
        buffer = blocks.submit_read(1, buffer).unwrap().wait().unwrap();
        assert!(buffer.iter().all(|&byte| byte == 1));
        buffer.fill(9);
        buffer = blocks.submit_write(1, buffer).unwrap().wait().unwrap(); // The device drops this write.
        assert!(matches!(
            blocks.submit_read(1, buffer).unwrap().wait(),
            Err(Error::Damaged { offset: 4096, .. })
        ));
    }
}
