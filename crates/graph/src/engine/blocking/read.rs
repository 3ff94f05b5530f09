//! Reads a column's chunks in order. Chunks in memory are used in place, and chunks on flash are read ahead.

use std::collections::VecDeque;

use inshore_store::{Buffer, Job, PendingRead};

use super::cut::{ChunkLocation, PackedChunk, PartitionOutput};
use crate::Result;

/// The number of chunk buffers of a reader. While one buffer is in use, all other buffers have a read in flight.
const CHUNKS: usize = 16;

/// Returns the bytes of memory that a reader takes.
pub(super) fn memory_bytes(chunk_bytes: usize) -> u64 {
    inshore_store::taken_bytes(CHUNKS * chunk_bytes) as u64
}

pub(super) struct ChunkReader<'a> {
    job: &'a Job,
    chunk_bytes: usize,
    cut: Option<&'a PartitionOutput>,
    /// The chunks of the current column, the number of chunks that were returned, and the number of chunks whose read
    /// was started.
    chunks: &'a [PackedChunk],
    given: usize,
    begun: usize,
    flying: VecDeque<PendingRead>,
    spare: Vec<Buffer>,
    current: Option<Buffer>,
}

impl<'a> ChunkReader<'a> {
    pub fn new(job: &'a Job, chunk_bytes: usize) -> Result<ChunkReader<'a>> {
        // If all chunks are in memory, nothing is written to the buffers, so the buffers take no physical memory.
        let buffers =
            Buffer::zeroed(job.budget(), CHUNKS * chunk_bytes, "read buffers of the edge partition")?;
        Ok(ChunkReader {
            job,
            chunk_bytes,
            cut: None,
            chunks: &[],
            given: 0,
            begun: 0,
            flying: VecDeque::new(),
            spare: buffers.split(chunk_bytes),
            current: None,
        })
    }

    /// Moves to the first chunk of a column in one worker's output. The previous column must have been read to its end.
    pub fn begin(&mut self, cut: &'a PartitionOutput, column: usize) {
        (self.cut, self.chunks) = (Some(cut), &cut.chunks[column]);
        (self.given, self.begun) = (0, 0);
    }

    fn read_ahead(&mut self, cut: &PartitionOutput) -> Result<()> {
        while let Some(chunk) = self.chunks.get(self.begun) {
            if let ChunkLocation::Flash { number } = chunk.place {
                let Some(buffer) = self.spare.pop() else { break };
                let start = u64::from(number) * self.chunk_bytes as u64;
                let range = start..start + self.chunk_bytes as u64;
                let file = cut.file.as_ref().expect("chunks on flash lie in a file");
                self.flying.push_back(file.submit_read(self.job, range, buffer)?);
            }
            self.begun += 1;
        }
        Ok(())
    }

    /// Returns the next chunk and its number of edges. Returns `None` after the last chunk of the column.
    pub fn next(&mut self) -> Result<Option<(&[u8], usize)>> {
        let Some(cut) = self.cut else { return Ok(None) };
        self.spare.extend(self.current.take());
        self.read_ahead(cut)?;
        let Some(chunk) = self.chunks.get(self.given) else { return Ok(None) };
        self.given += 1;
        let edges = chunk.edges as usize;
        match chunk.place {
            ChunkLocation::Held { number } => Ok(Some((&cut.held[number as usize][..], edges))),
            ChunkLocation::Flash { .. } => {
                let (buffer, _) = self.flying.pop_front().expect("begun before").wait()?;
                Ok(Some((&self.current.insert(buffer)[..], edges)))
            }
        }
    }
}
