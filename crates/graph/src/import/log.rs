//! Logs of edges in the order of input, in scratch: 16 bytes per edge, and 8 more for a weight in a second file.

use inshore_store::{CheckedFile, FileReader, FileWriter, Job};

use crate::Result;

const BLOCK_BYTES: usize = 64 << 10;
/// The bytes of memory that a writer of a log with weights takes.
pub(super) const WRITE_BYTES: u64 = 4 * BLOCK_BYTES as u64;
/// The bytes of memory that a reader of a log with weights takes.
pub(super) const READ_BYTES: u64 = 2 * (2 * BLOCK_BYTES + BLOCK_BYTES) as u64;

/// Writes a log.
pub(super) struct EdgeLogWriter {
    edges: FileWriter,
    weights: Option<FileWriter>,
}

impl EdgeLogWriter {
    pub fn new(job: &Job, weighted: bool) -> Result<EdgeLogWriter> {
        let create = |name| FileWriter::create(job, name, BLOCK_BYTES, BLOCK_BYTES);
        let weights = if weighted { Some(create("log-weights")?) } else { None };
        Ok(EdgeLogWriter { edges: create("log")?, weights })
    }

    #[inline]
    pub fn push(&mut self, source: u64, destination: u64, weight: f64) -> Result<()> {
        let mut record = [0; 16];
        record[..8].copy_from_slice(&source.to_le_bytes());
        record[8..].copy_from_slice(&destination.to_le_bytes());
        self.edges.write(&record)?;
        if let Some(weights) = &mut self.weights {
            weights.write(&weight.to_le_bytes())?;
        }
        Ok(())
    }

    pub fn finish(self) -> Result<EdgeLog> {
        let weights = self.weights.map(FileWriter::finish).transpose()?;
        Ok(EdgeLog { edges: self.edges.finish()?, weights })
    }
}

/// A complete log.
pub(super) struct EdgeLog {
    edges: CheckedFile,
    weights: Option<CheckedFile>,
}

impl EdgeLog {
    /// Returns the number of edges.
    pub fn len(&self) -> u64 {
        self.edges.len() / 16
    }

    /// Tells whether the edges have weights.
    pub fn is_weighted(&self) -> bool {
        self.weights.is_some()
    }

    /// Calls `each(source, destination, weight)`; the weight is 1 in a log without weights.
    pub fn for_each(&self, job: &Job, mut each: impl FnMut(u64, u64, f64) -> Result<()>) -> Result<()> {
        // The buffers of edges are twice as large as those of weights, so that pieces of both files end at the same
        // edge.
        let mut edges = FileReader::new(job, &self.edges, 0..self.edges.len(), 2 * BLOCK_BYTES)?;
        let mut weights = match &self.weights {
            Some(file) => Some(FileReader::new(job, file, 0..file.len(), BLOCK_BYTES)?),
            None => None,
        };
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("8 bytes"));
        while let Some(piece) = edges.next_piece()? {
            let weights = match &mut weights {
                Some(reader) => reader.next_piece()?.expect("a weight for each edge"),
                None => &[],
            };
            for (number, edge) in piece.chunks_exact(16).enumerate() {
                let weight = weights.get(number * 8..number * 8 + 8).map_or(1.0, |w| f64::from_bits(word(w)));
                each(word(&edge[..8]), word(&edge[8..]), weight)?;
            }
            job.progress().add(piece.len() as u64 / 16);
        }
        Ok(())
    }
}

/// Returns the number of lanes of a job: one per thread, as long as their logs fit in a 16th of the budget.
pub(super) fn lanes(job: &Job) -> usize {
    let fit = job.budget().memory_bytes() / 16 / WRITE_BYTES;
    job.budget().threads().min(fit as usize).max(1)
}
