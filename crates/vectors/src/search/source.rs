//! The queries of a search come from a file, or from a dataset of vectors.
//!
//! ```text
//!   VectorFile ─┐
//!               ├─► Source ─► QueryRows ─► blocks of queries that fit into the memory
//!   Vectors   ──┘
//! ```
//!
//! Both kinds are read in order, through a small buffer: a search never holds more queries than one block.

use inshore_store::{FileReader, Job, Reservation};

use crate::{
    Element, Error, Result, VectorFile, Vectors,
    element::{aligned, bytes_of},
    file::Rows,
};

/// The size of each of the two buffers through which the vectors of a dataset are read.
const BUFFER_BYTES: usize = 64 << 10;
/// The size of the vectors that are returned at once, but at least one vector.
const ROWS_BYTES: usize = 16 << 10;

/// The vectors for which a search finds neighbours.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The vectors of a file.
    File(&'a VectorFile),
    /// The vectors of a dataset: a join.
    Stored(&'a Vectors),
}

impl<'a> From<&'a VectorFile> for Source<'a> {
    fn from(file: &'a VectorFile) -> Source<'a> {
        Source::File(file)
    }
}

impl<'a> From<&'a Vectors> for Source<'a> {
    fn from(vectors: &'a Vectors) -> Source<'a> {
        Source::Stored(vectors)
    }
}

impl Source<'_> {
    /// Returns the path of the file, or the name of the dataset.
    pub fn name(&self) -> String {
        match self {
            Source::File(file) => file.path().display().to_string(),
            Source::Stored(vectors) => vectors.info().name.clone(),
        }
    }

    /// Returns the number of queries.
    pub fn count(&self) -> u64 {
        match self {
            Source::File(file) => file.count(),
            Source::Stored(vectors) => vectors.info().vectors,
        }
    }

    /// Returns the number of dimensions of a query.
    pub fn dimensions(&self) -> usize {
        match self {
            Source::File(file) => file.dimensions(),
            Source::Stored(vectors) => vectors.info().dimensions,
        }
    }

    /// Returns the element type of the queries.
    pub fn element(&self) -> Element {
        match self {
            Source::File(file) => file.element(),
            Source::Stored(vectors) => vectors.info().element,
        }
    }

    /// Returns the error of a value at `dimension` of query `row`.
    pub(crate) fn bad_value(&self, row: u64, dimension: usize, found: String, expected: String) -> Error {
        let place = format!("vector {row}, dimension {dimension}");
        Error::BadFile { file: self.name(), place, found, expected }
    }

    /// Returns the bytes of memory that [`Source::rows`] reserves.
    pub(crate) fn rows_bytes(&self) -> u64 {
        let buffers = match self {
            Source::File(_) => 0,
            Source::Stored(_) => inshore_store::taken_bytes(2 * BUFFER_BYTES) as u64,
        };
        buffers + self.others_bytes()
    }

    /// Returns the bytes of memory beside the buffers of a dataset, which reserve their own memory.
    fn others_bytes(&self) -> u64 {
        match self {
            Source::File(file) => file.rows_bytes(false),
            Source::Stored(vectors) => (rows_at_once(vectors) * vectors.info().row_bytes()) as u64 + 16,
        }
    }

    /// Reads the queries, from the first one on.
    ///
    /// # Errors
    /// I/O; too little memory.
    pub(crate) fn rows(&self, job: &Job) -> Result<QueryRows> {
        let reservation = job.budget().reserve(self.others_bytes(), "queries")?;
        let reading = match self {
            Source::File(file) => Reading::File(file.rows(job, 0, false)?),
            Source::Stored(vectors) => {
                let file = &vectors.file;
                Reading::Stored(StoredRows {
                    reader: FileReader::new(job, file, 0..file.len(), BUFFER_BYTES)?,
                    at: 0,
                    rows: aligned(rows_at_once(vectors) * vectors.info().row_bytes()),
                    rows_at_once: rows_at_once(vectors) as u64,
                    row_bytes: vectors.info().row_bytes(),
                    left: vectors.info().vectors,
                })
            }
        };
        Ok(QueryRows { reading, _reservation: reservation })
    }
}

/// Returns the number of vectors that are returned at once.
fn rows_at_once(vectors: &Vectors) -> usize {
    (ROWS_BYTES / vectors.info().row_bytes()).max(1)
}

/// `QueryRows` reads queries in order.
pub(crate) struct QueryRows {
    reading: Reading,
    _reservation: Reservation,
}

enum Reading {
    File(Rows),
    Stored(StoredRows),
}

impl QueryRows {
    /// Returns the bytes of the next queries, at most `most` queries, as elements of [`Source::element`]. The result is
    /// empty after the last query.
    ///
    /// # Errors
    /// For a file, [`Error::BadFile`] as of an import; I/O and damage; cancellation.
    pub fn next(&mut self, most: u64) -> Result<&[u8]> {
        match &mut self.reading {
            Reading::File(rows) => rows.next(most),
            Reading::Stored(rows) => rows.next(most),
        }
    }
}

/// `StoredRows` reads the vectors of a dataset in order. Vectors may lie across the ends of reads, so they are copied.
struct StoredRows {
    reader: FileReader,
    /// The bytes of the current piece of the reader that were copied.
    at: usize,
    rows: Vec<u64>,
    rows_at_once: u64,
    row_bytes: usize,
    left: u64,
}

impl StoredRows {
    fn next(&mut self, most: u64) -> Result<&[u8]> {
        let count = most.min(self.left).min(self.rows_at_once);
        let out = bytes_of(&mut self.rows, count as usize * self.row_bytes);
        let mut filled = 0;
        while filled < out.len() {
            if self.at == self.reader.piece().len() {
                // The length of the file was checked against the number of vectors.
                assert!(self.reader.next_piece()?.is_some(), "the file has all its vectors");
                self.at = 0;
            }
            let piece = &self.reader.piece()[self.at..];
            let part = piece.len().min(out.len() - filled);
            out[filled..filled + part].copy_from_slice(&piece[..part]);
            self.at += part;
            filled += part;
        }
        self.left -= count;
        Ok(out)
    }
}
