//! The source of the queries of a search. It is a file, or a dataset of vectors.
//!
//! ```text
//!   VectorFile ─┐
//!               ├─► Source ─► QueryRows ─► blocks of queries that fit into the memory
//!   Vectors   ──┘
//! ```
//!
//! Both kinds of sources are read in order, through a small buffer. The memory never holds more queries than one block.

use inshore_store::{FileReader, Job, Reservation};

use crate::{
    Element, Error, Result, RowSet, VectorFile, Vectors,
    element::{aligned, bytes_of},
    file::Rows,
    ids::Ids,
    live::{live_bytes, live_rows},
};

/// The size of each of the two buffers through which the vectors of a dataset are read.
const BUFFER_BYTES: usize = 64 << 10;
/// One call returns vectors of about this number of bytes. A call returns at least one vector, even if the vector has
/// more bytes.
const ROWS_BYTES: usize = 16 << 10;

/// The vectors for which a search finds neighbours.
#[derive(Clone, Copy, Debug)]
pub enum Source<'a> {
    /// The vectors of a file.
    File(&'a VectorFile),
    /// The live vectors of a dataset, in a join.
    Stored(&'a Vectors),
    /// The queries are vectors in memory. The measurement of an index's recall uses this source.
    #[doc(hidden)]
    Held(&'a HeldRows),
}

/// Vectors in memory, with their ids. The owner reserves the memory.
#[doc(hidden)]
#[derive(Debug)]
pub struct HeldRows {
    /// The name of the dataset or the file from which the vectors come.
    pub name: String,
    /// The elements of the vectors.
    pub element: Element,
    /// The number of dimensions of a vector.
    pub dimensions: usize,
    /// The ids of the vectors.
    pub ids: Vec<u64>,
    /// The elements of all vectors.
    pub bytes: Vec<u8>,
}

impl HeldRows {
    /// Returns the bytes of a vector.
    pub(crate) fn row(&self, number: usize) -> &[u8] {
        let row_bytes = self.element.row_bytes(self.dimensions);
        &self.bytes[number * row_bytes..][..row_bytes]
    }
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
            Source::Held(held) => held.name.clone(),
        }
    }

    /// Returns the number of queries.
    pub fn count(&self) -> u64 {
        match self {
            Source::File(file) => file.count(),
            Source::Stored(vectors) => vectors.info().live(),
            Source::Held(held) => held.ids.len() as u64,
        }
    }

    /// Returns the number of dimensions of a query.
    pub fn dimensions(&self) -> usize {
        match self {
            Source::File(file) => file.dimensions(),
            Source::Stored(vectors) => vectors.info().dimensions,
            Source::Held(held) => held.dimensions,
        }
    }

    /// Returns the element type of the queries.
    pub fn element(&self) -> Element {
        match self {
            Source::File(file) => file.element(),
            Source::Stored(vectors) => vectors.info().element,
            Source::Held(held) => held.element,
        }
    }

    /// Returns an error for a value that the vectors cannot hold, at `dimension` of the query with the number `row`.
    pub(crate) fn bad_value(&self, row: u64, dimension: usize, found: String, expected: String) -> Error {
        let place = format!("vector {row}, dimension {dimension}");
        Error::BadFile { file: self.name(), place, found, expected }
    }

    /// Returns the memory, in bytes, that [`Source::rows`] reserves.
    pub(crate) fn rows_bytes(&self) -> u64 {
        let reserved_by_others = match self {
            Source::File(_) | Source::Held(_) => 0,
            Source::Stored(vectors) => {
                let buffers = inshore_store::taken_bytes(2 * BUFFER_BYTES) as u64;
                buffers + live_bytes(vectors.info()) + Ids::bytes(vectors.info())
            }
        };
        reserved_by_others + self.others_bytes()
    }

    /// Returns the memory, in bytes, that [`Source::rows`] reserves itself. The buffers, live rows and ids of a dataset
    /// reserve their own memory.
    fn others_bytes(&self) -> u64 {
        match self {
            Source::File(file) => file.rows_bytes(false),
            Source::Stored(vectors) => (rows_at_once(vectors) * vectors.info().row_bytes()) as u64 + 16,
            Source::Held(held) => held.bytes.len() as u64 + 8 * held.ids.len() as u64,
        }
    }

    /// Starts to read the queries, with the first one.
    ///
    /// # Errors
    /// Returns [`Error::Store`] if an I/O operation fails or the budget has too little free memory.
    pub(crate) fn rows(&self, job: &Job) -> Result<QueryRows> {
        let reservation = job.budget().reserve(self.others_bytes(), "queries")?;
        let reading = match self {
            Source::File(file) => Reading::File(file.rows(job, 0, false)?, 0),
            Source::Held(held) => {
                let row_bytes = held.element.row_bytes(held.dimensions);
                Reading::Held { ids: held.ids.clone(), bytes: held.bytes.clone(), row_bytes, next: 0 }
            }
            Source::Stored(vectors) => {
                let file = &vectors.file;
                let (live, ids) = (live_rows(job, vectors)?, Ids::read(job, vectors)?);
                Reading::Stored(StoredRows {
                    live,
                    ids,
                    next: 0,
                    reader: FileReader::new(job, file, 0..file.len(), BUFFER_BYTES)?,
                    at: 0,
                    rows: aligned(rows_at_once(vectors) * vectors.info().row_bytes()),
                    rows_at_once: rows_at_once(vectors) as u64,
                    row_bytes: vectors.info().row_bytes(),
                    count: vectors.info().vectors,
                })
            }
        };
        Ok(QueryRows { reading, _reservation: reservation })
    }
}

/// Returns how many vectors one call returns at most.
fn rows_at_once(vectors: &Vectors) -> usize {
    (ROWS_BYTES / vectors.info().row_bytes()).max(1)
}

/// Reads queries in order.
pub(crate) struct QueryRows {
    reading: Reading,
    _reservation: Reservation,
}

enum Reading {
    /// The reader of a file, and the number of the next row.
    File(Rows, u64),
    Stored(StoredRows),
    /// A copy of rows in memory, and the number of the next row.
    Held {
        ids: Vec<u64>,
        bytes: Vec<u8>,
        row_bytes: usize,
        next: usize,
    },
}

impl QueryRows {
    /// Returns the bytes of the next queries, as elements of the type [`Source::element`]. The result has at most
    /// `most` queries, and is empty after the last query. The ids of the queries are appended to `ids`. The id of a
    /// query from a file is its number.
    ///
    /// # Errors
    /// - Returns [`Error::BadFile`] if a vector of a file is malformed or has a value that cannot be stored.
    /// - Returns [`Error::Store`] if a read fails, stored bytes are damaged, or the job was cancelled.
    pub fn next(&mut self, most: u64, ids: &mut Vec<u64>) -> Result<&[u8]> {
        match &mut self.reading {
            Reading::File(rows, number) => {
                let row_bytes = rows.row_bytes();
                let bytes = rows.next(most)?;
                let end = *number + (bytes.len() / row_bytes) as u64;
                ids.extend(*number..end);
                *number = end;
                Ok(bytes)
            }
            Reading::Stored(rows) => rows.next(most, ids),
            Reading::Held { ids: all, bytes, row_bytes, next } => {
                let rows = *next..all.len().min(*next + most as usize);
                *next = rows.end;
                ids.extend_from_slice(&all[rows.clone()]);
                Ok(&bytes[rows.start * *row_bytes..rows.end * *row_bytes])
            }
        }
    }
}

/// Reads the vectors of a dataset in order. A vector may be split between two reads, so vectors are copied to `rows`.
struct StoredRows {
    /// The rows that were not removed. The value is `None` if no row was removed.
    live: Option<RowSet>,
    ids: Ids,
    /// The number of the next row. The next field is the number of all rows.
    next: u64,
    count: u64,
    reader: FileReader,
    /// How many bytes of the data that the reader returned last were already copied.
    at: usize,
    rows: Vec<u64>,
    rows_at_once: u64,
    row_bytes: usize,
}

impl StoredRows {
    fn next(&mut self, most: u64, ids: &mut Vec<u64>) -> Result<&[u8]> {
        let most = most.min(self.rows_at_once);
        let mut count = 0;
        while count < most && self.next < self.count {
            let is_live = self.live.as_ref().is_none_or(|live| live.contains(self.next));
            // A row is read even if it was removed, but the next row then overwrites it.
            self.read_row(count as usize)?;
            if is_live {
                ids.push(self.ids.id(self.next));
                count += 1;
            }
            self.next += 1;
        }
        Ok(bytes_of(&mut self.rows, count as usize * self.row_bytes))
    }

    /// Copies the next row to position `place` of the rows that the call returns.
    fn read_row(&mut self, place: usize) -> Result<()> {
        let end = (place + 1) * self.row_bytes;
        let out = &mut bytes_of(&mut self.rows, end)[place * self.row_bytes..];
        let mut filled = 0;
        while filled < out.len() {
            if self.at == self.reader.piece().len() {
                // The length of the file was checked against the number of rows.
                assert!(self.reader.next_piece()?.is_some(), "the file has all its rows");
                self.at = 0;
            }
            let piece = &self.reader.piece()[self.at..];
            let part = piece.len().min(out.len() - filled);
            out[filled..filled + part].copy_from_slice(&piece[..part]);
            self.at += part;
            filled += part;
        }
        Ok(())
    }
}
