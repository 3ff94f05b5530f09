//! The bytes of the rows of a file of vectors, as a stream.

use std::io::{self, Read};

use inshore_store::{Context, FILE_SOURCE_BYTES, Reservation};

use crate::{Error, Result, VectorFile, file::Rows};

/// Reads the vectors of a file as stored elements without gaps, in order and checked as an import does.
///
/// Memory: that of the import of a file.
pub struct RowReader {
    rows: Rows,
    /// Bytes of some rows, and the number of those that were read.
    pending: Vec<u8>,
    at: usize,
    error: Option<Error>,
    _memory: Reservation,
}

impl RowReader {
    /// Begins to read a file.
    ///
    /// # Errors
    /// I/O; too little memory.
    pub fn new(context: &Context, file: &VectorFile) -> Result<RowReader> {
        // The source reserves its own memory. The rows are in memory as they are in the file, as elements, and pending.
        let rows_bytes = file.rows_bytes(true) - FILE_SOURCE_BYTES;
        let memory = context.budget().reserve(2 * rows_bytes, "vectors that are imported")?;
        let rows = file.rows(context, 0, true)?;
        Ok(RowReader { rows, pending: Vec::new(), at: 0, error: None, _memory: memory })
    }

    /// Returns the error that ended the stream, if it was one of a vector.
    pub fn error(self) -> Option<Error> {
        self.error
    }

    /// Returns the number of elements that were rounded so far.
    pub fn rounded(&self) -> u64 {
        self.rows.rounded()
    }
}

impl Read for RowReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        if self.at == self.pending.len() {
            self.pending.clear();
            self.at = 0;
            match self.rows.next(u64::MAX) {
                Ok(bytes) => self.pending.extend_from_slice(bytes),
                Err(error) => {
                    let what = error.to_string();
                    self.error = Some(error);
                    return Err(io::Error::other(what));
                }
            }
        }
        let part = out.len().min(self.pending.len() - self.at);
        out[..part].copy_from_slice(&self.pending[self.at..self.at + part]);
        self.at += part;
        Ok(part)
    }
}
