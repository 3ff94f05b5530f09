//! Cursors over sorted rows of a run on flash, or of an arena in memory.

use std::{ops::Range, sync::Arc};

use inshore_store::{CheckedFile, FileReader, Job};

use super::{
    arena::{Arena, RunFacts},
    shape::RowShape,
};
use crate::Result;

/// A run: a sorted sequence of rows on flash.
#[derive(Clone, Debug)]
pub(crate) struct RowRun {
    pub file: CheckedFile,
    pub facts: RunFacts,
}

impl RowRun {
    /// Returns the byte range of the whole run.
    pub fn bytes(&self) -> Range<u64> {
        0..self.file.len()
    }

    /// Returns the number of check blocks (units of checksums) in the run.
    pub fn blocks(&self) -> u64 {
        self.file.len().div_ceil(self.file.block_bytes() as u64)
    }
}

/// A cursor over the sorted rows of a run or an arena.
pub(crate) enum Cursor<S> {
    RowRun(RowRunCursor<S>),
    Arena(ArenaCursor),
}

impl<S: RowShape> Cursor<S> {
    /// Returns the current row.
    #[inline]
    pub fn row(&self) -> &[u8] {
        match self {
            Cursor::RowRun(cursor) => cursor.row(),
            Cursor::Arena(cursor) => cursor.arena.row(cursor.place),
        }
    }

    /// Moves to the next row. Returns `false` at the end.
    #[inline]
    pub fn advance(&mut self) -> Result<bool> {
        match self {
            Cursor::RowRun(cursor) => cursor.advance(),
            Cursor::Arena(cursor) => {
                cursor.place += 1;
                cursor.arena.prefetch((cursor.place + 4).min(cursor.rows - 1));
                Ok(cursor.place < cursor.rows)
            }
        }
    }
}

/// A cursor over the rows of an arena in memory.
pub(crate) struct ArenaCursor {
    arena: Arc<Arena>,
    /// The end index of the rows in the arena's sorted order.
    rows: usize,
    place: usize,
}

impl ArenaCursor {
    /// Creates a cursor over the rows with the indices `places` in the arena's sorted order. The range must not be
    /// empty.
    pub fn new(arena: Arc<Arena>, places: Range<usize>) -> Self {
        ArenaCursor { arena, rows: places.end, place: places.start }
    }
}

/// A cursor that reads the rows of a run.
pub(crate) struct RowRunCursor<S> {
    shape: S,
    reader: FileReader,
    /// The offset of the row in the reader's current buffer. If the row is in `carry`, this is the offset at which
    /// the row ends.
    position: usize,
    row_len: usize,
    /// A copy of the row if it crosses the end of a buffer; otherwise empty.
    carry: Vec<u8>,
}

impl<S: RowShape> RowRunCursor<S> {
    /// Creates a cursor at the first row of a byte range of a run. The range must consist of one or more complete
    /// rows.
    pub fn new(
        job: &Job,
        run: &RowRun,
        range: Range<u64>,
        shape: S,
        (bytes, count): (usize, usize),
    ) -> Result<Self> {
        let reader = FileReader::deep(job, &run.file, range, bytes, count)?;
        let mut cursor = RowRunCursor { shape, reader, position: 0, row_len: 0, carry: Vec::new() };
        let some = cursor.advance()?;
        assert!(some, "there are rows in the range");
        Ok(cursor)
    }

    #[inline]
    pub fn row(&self) -> &[u8] {
        if self.carry.is_empty() {
            &self.reader.piece()[self.position..][..self.row_len]
        } else {
            &self.carry
        }
    }

    #[inline]
    pub fn advance(&mut self) -> Result<bool> {
        if self.carry.is_empty() {
            self.position += self.row_len;
        }
        self.carry.clear();
        match self.shape.row_len(&self.reader.piece()[self.position..]) {
            Some(len) => {
                self.row_len = len;
                Ok(true)
            }
            None => self.next_piece(),
        }
    }

    /// Reads the next buffer, since the row does not end in the current buffer.
    #[cold]
    fn next_piece(&mut self) -> Result<bool> {
        loop {
            self.carry.extend_from_slice(&self.reader.piece()[self.position..]);
            self.position = 0;
            if self.reader.next_piece()?.is_none() {
                assert!(self.carry.is_empty(), "a run ends with a whole row");
                self.row_len = 0;
                return Ok(false);
            }
            let piece = self.reader.piece();
            if self.carry.is_empty() {
                if let Some(len) = self.shape.row_len(piece) {
                    self.row_len = len;
                    return Ok(true);
                }
            } else if let Some(missing) = self.shape.missing_len(&self.carry, piece) {
                self.carry.extend_from_slice(&piece[..missing]);
                self.position = missing;
                return Ok(true);
            }
        }
    }
}
