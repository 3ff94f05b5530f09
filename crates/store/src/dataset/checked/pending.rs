//! A pending read waits for the devices, verifies the checksums of the blocks, and repairs damaged blocks.

use std::{ops::Range, path::PathBuf};

use inshore_runtime::Pending;

use super::CheckedFile;
use crate::{Buffer, EXTENT_BYTES, Error, Job, Result, space::extents::pieces};

/// Compares the checksum of each block of `bytes` with the expected checksum.
pub(super) fn check(
    name: &str,
    offset: u64,
    bytes: &[u8],
    block_bytes: usize,
    expected: &[u32],
) -> Result<()> {
    for (number, (block, &expected)) in bytes.chunks(block_bytes).zip(expected).enumerate() {
        let found = crc32fast::hash(block);
        if found != expected {
            let offset = offset + (number * block_bytes) as u64;
            return Err(Error::Damaged { file: name.to_string(), offset, found, expected });
        }
    }
    Ok(())
}

/// `Source` is the source of the bytes of a read: a device or memory.
#[derive(Debug)]
pub(super) enum Source {
    Device(Pending),
    /// The file is in memory. The bytes are already copied, and their checksums were verified earlier.
    Held(Buffer),
}

/// `PendingRead` is a read in flight.
#[derive(Debug)]
pub struct PendingRead {
    pub(super) source: Source,
    pub(super) job: Job,
    pub(super) file: CheckedFile,
    pub(super) touched: Range<u64>,
    pub(super) expected: Vec<u32>,
    pub(super) wanted: Range<usize>,
}

impl PendingRead {
    /// Waits until one of several reads has ended, and returns the index of this read. Random reads may end in any
    /// order.
    ///
    /// # Panics
    /// Panics if `reads` is empty.
    pub fn wait_any(reads: &[PendingRead]) -> usize {
        let held = reads.iter().position(|read| matches!(read.source, Source::Held(_)));
        held.unwrap_or_else(|| {
            Pending::wait_any(reads.iter().filter_map(|read| match &read.source {
                Source::Device(pending) => Some(pending),
                Source::Held(_) => None,
            }))
        })
    }

    /// Waits for the read and verifies the checksums. Returns the buffer, and the range of the requested bytes in the
    /// buffer. If the dataset has redundancy, damaged or unreadable bytes are restored, and the damaged extent is
    /// repaired on the device.
    ///
    /// # Errors
    /// - Returns [`Error::Io`] if a read fails.
    /// - Returns [`Error::Damaged`] if a checksum does not match.
    pub fn wait(self) -> Result<(Buffer, Range<usize>)> {
        let pending = match self.source {
            Source::Held(buffer) => return Ok((buffer, self.wanted)),
            Source::Device(pending) => pending,
        };
        let (mut buffer, result) = pending.wait();
        let (file, name) = (&self.file, &self.file.0.layout.name);
        let len = (self.touched.end - self.touched.start) as usize;
        let failed = result.err().map(|error| {
            Error::io(format!("read {len} bytes at {}", self.touched.start), PathBuf::from(name), error)
        });
        let has_failed = failed.is_some();
        if let Some(error) = failed
            && file.0.layout.redundancy.devices() == 1
        {
            return Err(error);
        }
        let block = file.0.layout.block_bytes;
        if !has_failed && check(name, self.touched.start, &buffer[..len], block, &self.expected).is_ok() {
            return Ok((buffer, self.wanted));
        }
        let mut sums = &self.expected[..];
        for (extent, offset, range) in pieces(self.touched.clone()) {
            let (expected, rest) = sums.split_at(range.len().div_ceil(block));
            sums = rest;
            let at = extent * EXTENT_BYTES as u64 + offset as u64;
            // After a failed read, the buffer may contain any bytes, even valid bytes of an older read.
            if let Err(found) = check(name, at, &buffer[range.clone()], block, expected) {
                file.repair(&self.job, (extent, offset), &mut buffer, range, expected, found)?;
            }
        }
        Ok((buffer, self.wanted))
    }
}
