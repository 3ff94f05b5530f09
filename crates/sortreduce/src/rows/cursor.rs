//! Sorted rows one after the other: of a run on flash, or of an arena.

use std::{ops::Range, sync::Arc};

use inshore_store::{CheckedFile, FileReader, Job};

use super::{
    arena::{Arena, RunFacts},
    shape::RowShape,
};
use crate::Result;

/// A sorted sequence of rows on flash.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub file: CheckedFile,
    pub facts: RunFacts,
}

impl Run {
    /// All of it.
    pub fn bytes(&self) -> Range<u64> {
        0..self.file.len()
    }

    /// Its check blocks.
    pub fn blocks(&self) -> u64 {
        self.file.len().div_ceil(self.file.block_bytes() as u64)
    }
}

/// Where sorted rows come from.
pub(crate) enum Cursor<S> {
    Run(RunCursor<S>),
    Arena(ArenaCursor),
}

impl<S: RowShape> Cursor<S> {
    /// The row it stands on.
    #[inline]
    pub fn row(&self) -> &[u8] {
        match self {
            Cursor::Run(cursor) => cursor.row(),
            Cursor::Arena(cursor) => cursor.arena.row(cursor.place),
        }
    }

    /// Goes to the next row; `false` at the end.
    #[inline]
    pub fn advance(&mut self) -> Result<bool> {
        match self {
            Cursor::Run(cursor) => cursor.advance(),
            Cursor::Arena(cursor) => {
                cursor.place += 1;
                cursor.arena.prefetch((cursor.place + 4).min(cursor.rows - 1));
                Ok(cursor.place < cursor.rows)
            }
        }
    }
}

/// Rows of an arena that never left memory.
pub(crate) struct ArenaCursor {
    arena: Arc<Arena>,
    /// The place behind the last one.
    rows: usize,
    place: usize,
}

impl ArenaCursor {
    /// Of the rows at some places of the order, at least one.
    pub fn new(arena: Arc<Arena>, places: Range<usize>) -> Self {
        ArenaCursor { arena, rows: places.end, place: places.start }
    }
}

/// The rows of a run.
pub(crate) struct RunCursor<S> {
    shape: S,
    reader: FileReader,
    /// Where in the reader's piece the row begins, or what is behind it if the row is in `carry`.
    position: usize,
    row_len: usize,
    /// A row that lies across two pieces.
    carry: Vec<u8>,
}

impl<S: RowShape> RunCursor<S> {
    /// Stands on the first row of a range of a run, which begins and ends with whole rows and has one at least.
    pub fn new(
        job: &Job,
        run: &Run,
        range: Range<u64>,
        shape: S,
        (bytes, count): (usize, usize),
    ) -> Result<Self> {
        let reader = FileReader::deep(job, &run.file, range, bytes, count)?;
        let mut cursor = RunCursor { shape, reader, position: 0, row_len: 0, carry: Vec::new() };
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

    /// The row does not end in this piece.
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
