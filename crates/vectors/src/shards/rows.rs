//! Reads the rows of a file of vectors as a stream of bytes.

use std::io::{self, Read};

use inshore_store::{Context, FILE_SOURCE_BYTES, Reservation};

use crate::{Error, Result, VectorFile, byte_stream::ByteStream, file::Rows};

/// A reader of the vectors of a file. The stream contains the stored elements of all vectors, in order and without
/// gaps. The reader checks the vectors as an import does.
///
/// The reader takes as much memory as the import of a file.
pub struct RowReader {
    rows: Rows,
    stream: ByteStream,
    _memory: Reservation,
}

impl RowReader {
    /// Begins to read a file.
    ///
    /// # Errors
    /// Returns [`Error::Store`] if an I/O operation fails or the budget has too little free memory.
    pub fn new(context: &Context, file: &VectorFile) -> Result<RowReader> {
        // The source of the rows reserves its own memory. This reservation covers the rows as the file contains them,
        // the rows as elements, and the pending bytes of the stream.
        let rows_bytes = file.rows_bytes(true) - FILE_SOURCE_BYTES;
        let memory = context.budget().reserve(2 * rows_bytes, "vectors that are imported")?;
        let rows = file.rows(context, 0, true)?;
        Ok(RowReader { rows, stream: ByteStream::default(), _memory: memory })
    }

    /// Returns the error that ended the stream. Returns `None` if the file was read without an error.
    pub fn error(self) -> Option<Error> {
        self.stream.into_error()
    }

    /// Returns the number of elements that were rounded so far.
    pub fn rounded(&self) -> u64 {
        self.rows.rounded()
    }
}

impl Read for RowReader {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let RowReader { rows, stream, .. } = self;
        stream.read(out, |pending| {
            pending.extend_from_slice(rows.next(u64::MAX)?);
            Ok(())
        })
    }
}
