//! Files of remaining edges in scratch: pairs of two 32-bit numbers.

use inshore_store::{CheckedFile, FileReader, FileWriter, Job};

use crate::Result;

const BYTES: usize = 8;
/// Files of pairs have one checksum per block of this size, or of the size of the writer's buffer if that is smaller.
const BLOCK_BYTES: usize = 64 << 10;

/// Returns the bytes of memory that a writer with buffers of this size takes.
pub(super) const fn writer_bytes(buffer_bytes: usize) -> u64 {
    2 * buffer_bytes as u64
}

/// The bytes of memory that [`Pairs::for_each`] takes.
pub(super) const READER_BYTES: u64 = 3 * BLOCK_BYTES as u64;

/// Writes pairs.
pub(super) struct PairWriter(FileWriter);

impl PairWriter {
    /// Creates a writer; `buffer_bytes` is 4 KiB times a power of two.
    pub fn new(job: &Job, name: &'static str, buffer_bytes: usize) -> Result<PairWriter> {
        Ok(PairWriter(FileWriter::create(job, name, buffer_bytes.min(BLOCK_BYTES), buffer_bytes)?))
    }

    #[inline]
    pub fn push(&mut self, a: u32, b: u32) -> Result<()> {
        Ok(self.0.write(&(u64::from(a) << 32 | u64::from(b)).to_le_bytes())?)
    }

    pub fn finish(self) -> Result<Pairs> {
        Ok(Pairs(self.0.finish()?))
    }
}

/// A complete file of pairs.
pub(super) struct Pairs(CheckedFile);

impl Pairs {
    pub fn len(&self) -> u64 {
        self.0.len() / BYTES as u64
    }

    /// Calls `each` with the pairs in the order in which they were written.
    pub fn for_each(&self, job: &Job, mut each: impl FnMut(u32, u32) -> Result<()>) -> Result<()> {
        let mut reader = FileReader::new(job, &self.0, 0..self.0.len(), BLOCK_BYTES)?;
        while let Some(piece) = reader.next_piece()? {
            job.check_cancelled()?;
            for pair in piece.as_chunks::<BYTES>().0 {
                let pair = u64::from_le_bytes(*pair);
                each((pair >> 32) as u32, pair as u32)?;
            }
        }
        Ok(())
    }
}
