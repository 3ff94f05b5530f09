//! An arena is the memory into which input rows are read. Rows are sorted in the arena, but their bytes are not
//! moved.

use inshore_store::{Budget, Buffer, FileWriter};

use super::{
    order::{RowsInMemory, common_len, sort_rows},
    plan::RowPlan,
    shape::{RowOperation, RowShape},
};
use crate::{
    Result,
    array::Array,
    cache::{LINE_BYTES, prefetch_place},
};

/// The properties of a run of rows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunFacts {
    pub rows: u64,
    pub row_bytes_max: usize,
    /// The length in bytes of the common prefix of all keys of the run, at most [`RunFacts::FIRST_KEY_BYTES`].
    pub common: usize,
    pub first_key: Vec<u8>,
    /// The number of merges that the rows went through.
    pub level: u32,
}

impl RunFacts {
    /// The maximum number of bytes of the first key that are stored.
    pub const FIRST_KEY_BYTES: usize = 64;
}

/// The bytes of rows, and the memory to sort these rows.
pub(crate) struct Arena {
    pub bytes: Buffer,
    /// The number of bytes in the arena that are filled with rows.
    pub filled: usize,
    words: Array<u64>,
    starts: Array<u32>,
}

/// A range of an arena's rows that was sorted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ArenaPart {
    pub rows: usize,
    /// The byte offset in the arena at which the part ends and the next part starts.
    pub end: usize,
    pub row_bytes_max: usize,
}

/// The prefetch distance: the number of rows between the current row and the row that is prefetched.
const AHEAD: usize = 12;

impl Arena {
    pub fn new(plan: &RowPlan, budget: &Budget) -> Result<Arena> {
        let what = "an arena that rows are sorted in";
        Ok(Arena {
            bytes: Buffer::zeroed(budget, plan.arena_bytes, what)?,
            filled: 0,
            words: Array::zeroed(budget, plan.rows_max, what)?,
            starts: Array::zeroed(budget, plan.rows_max + 1, what)?,
        })
    }

    /// Sorts the rows from byte `start` on, up to the number of words in the arena.
    pub fn sort<S: RowShape>(&mut self, shape: &S, descending: bool, start: usize) -> ArenaPart {
        let part = self.find_rows(shape, start);
        let rows = RowsInMemory {
            shape,
            bytes: &self.bytes[..self.filled],
            starts: &self.starts[..=part.rows],
            descending,
        };
        sort_rows(&rows, &mut self.words[..part.rows]);
        part
    }

    fn find_rows<S: RowShape>(&mut self, shape: &S, start: usize) -> ArenaPart {
        let bytes = &self.bytes[..self.filled];
        let mut part = ArenaPart { end: start, ..ArenaPart::default() };
        while part.end < bytes.len() && part.rows < self.words.len() {
            let len = shape.row_len(&bytes[part.end..]).expect("an arena holds whole rows");
            self.starts[part.rows] = part.end as u32;
            part.rows += 1;
            part.end += len;
            part.row_bytes_max = part.row_bytes_max.max(len);
        }
        self.starts[part.rows] = part.end as u32;
        part
    }

    /// Returns the row at index `place` of the sorted order.
    #[inline]
    pub fn row(&self, place: usize) -> &[u8] {
        let number = self.words[place] as usize;
        &self.bytes[self.starts[number] as usize..self.starts[number + 1] as usize]
    }

    /// Prefetches the row at index `place` of the sorted order.
    #[inline]
    pub fn prefetch(&self, place: usize) {
        if let Some(&number) = self.words.get(place) {
            let start = self.starts[number as usize] as usize;
            prefetch_place(&self.bytes, start);
            // A row rarely begins at the start of a cache line, so even a short row often extends into the next line.
            prefetch_place(&self.bytes, start + LINE_BYTES);
        }
    }

    /// Writes the sorted rows of a part. Rows with equal keys are combined.
    pub fn write<S: RowShape, O: RowOperation>(
        &self,
        part: ArenaPart,
        shape: &S,
        operation: &O,
        writer: &mut FileWriter,
    ) -> Result<RunFacts> {
        let mut rows = 0;
        if O::COMBINES {
            let mut current: Vec<u8> = Vec::new();
            for place in 0..part.rows {
                self.prefetch((place + AHEAD).min(part.rows - 1));
                let row = self.row(place);
                if place > 0 && shape.key(&current) == shape.key(row) {
                    operation.combine(&mut current, row);
                    continue;
                }
                writer.write(&current)?;
                rows += 1;
                current.clear();
                current.extend_from_slice(row);
            }
            writer.write(&current)?;
        } else {
            for place in 0..part.rows {
                self.prefetch((place + AHEAD).min(part.rows - 1));
                writer.write(self.row(place))?;
            }
            rows = part.rows as u64;
        }
        let (first, last) = (shape.key(self.row(0)), shape.key(self.row(part.rows - 1)));
        Ok(RunFacts {
            rows,
            row_bytes_max: part.row_bytes_max,
            common: common_len(first, last).min(RunFacts::FIRST_KEY_BYTES),
            first_key: first[..first.len().min(RunFacts::FIRST_KEY_BYTES)].to_vec(),
            level: 0,
        })
    }
}
