//! This module merges the sorted lines or records of several nodes, and writes them unchanged.

use std::{cmp::Ordering, ops::Range, path::Path};

use arrow_array::{Array, BinaryArray, RecordBatch, cast::AsArray};
use inshore_nodes::{DistributedFile, GatherReport, Merged, OrderedRow, Streams};
use inshore_sortreduce::rows::{Lines, RowShape};
use inshore_store::FileSink;
use inshore_tables::{NewFile, SortSummary};

use super::{Result, Sorting, What, told};

/// The layout of the rows to sort: lines or records.
#[derive(Clone, Copy, Debug)]
pub(super) enum Shape {
    /// Lines, including the line feed. The key is the line without the line feed.
    Lines,
    /// Records of a fixed length, each followed by the number of its shard. The fields are the length including
    /// this number, the start of the key, and the end of the key.
    Records(usize, usize, usize),
}

/// The size in bytes of the number of a shard.
const NUMBER_BYTES: usize = size_of::<u32>();

impl Shape {
    /// Returns the layout of records of a length, with the range of the key.
    pub fn records(record_bytes: usize, key: &Range<usize>) -> Shape {
        Shape::Records(record_bytes + NUMBER_BYTES, key.start, key.end)
    }

    /// Returns the length in bytes of the first row, given the bytes of several complete rows.
    pub fn row_len(&self, rows: &[u8]) -> usize {
        match self {
            Shape::Lines => Lines.row_len(rows).unwrap_or(rows.len()),
            Shape::Records(row_bytes, ..) => *row_bytes,
        }
    }

    /// Returns the length of a record in bytes without the number of its shard, or 0 for lines.
    pub fn record_bytes(&self) -> usize {
        match self {
            Shape::Lines => 0,
            Shape::Records(row_bytes, ..) => row_bytes - NUMBER_BYTES,
        }
    }

    /// Returns true if the bytes are exactly one row.
    fn is_row(&self, bytes: &[u8]) -> bool {
        match self {
            Shape::Lines => bytes.ends_with(b"\n") && self.row_len(bytes) == bytes.len(),
            Shape::Records(row_bytes, ..) => bytes.len() == *row_bytes,
        }
    }

    pub fn key<'a>(&self, row: &'a [u8]) -> &'a [u8] {
        match *self {
            Shape::Lines => &row[..row.len() - 1],
            Shape::Records(_, start, end) => &row[start..end],
        }
    }

    /// Returns the part of a row that is written to the output.
    pub fn written<'a>(&self, row: &'a [u8]) -> &'a [u8] {
        &row[..row.len() - self.number(row).len()]
    }

    /// Returns the number of the row's shard, as big-endian bytes.
    fn number<'a>(&self, row: &'a [u8]) -> &'a [u8] {
        match self {
            Shape::Lines => &[],
            Shape::Records(..) => &row[row.len() - NUMBER_BYTES..],
        }
    }
}

/// The layout and order of rows, and the maximal size of a batch in bytes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RowHow {
    pub shape: Shape,
    pub descending: bool,
    pub bytes_max: usize,
}

/// The rows of a batch of lines or records.
#[derive(Debug)]
pub(super) struct ByteRows {
    rows: BinaryArray,
    how: RowHow,
}

impl ByteRows {
    /// Returns the bytes of a row.
    pub fn row(&self, row: usize) -> &[u8] {
        self.rows.value(row)
    }

    /// Returns the bytes of a range of rows.
    pub fn run(&self, rows: &Range<usize>) -> &[u8] {
        let offset = |row: usize| self.rows.value_offsets()[row] as usize;
        &self.rows.value_data()[offset(rows.start)..offset(rows.end)]
    }
}

impl OrderedRow for ByteRows {
    const ADDS_UP: bool = false;
    type How = RowHow;

    fn of_batch(batch: &RecordBatch, how: &RowHow) -> Option<ByteRows> {
        let [rows] = batch.columns() else { return None };
        let rows = rows.as_binary_opt::<i32>()?.clone();
        let found = ByteRows { rows, how: *how };
        let rows = &found.rows;
        let is_short = found.run(&(0..rows.len())).len() <= how.bytes_max;
        let are_rows =
            is_short && rows.null_count() == 0 && rows.iter().flatten().all(|row| how.shape.is_row(row));
        let are_in_order = || (1..rows.len()).all(|row| found.compare(row - 1, &found, row).is_le());
        (are_rows && are_in_order()).then_some(found)
    }

    fn rows(&self) -> usize {
        self.rows.len()
    }

    fn compare(&self, row: usize, other: &ByteRows, other_row: usize) -> Ordering {
        let RowHow { shape, descending, .. } = self.how;
        let (row, other) = (self.rows.value(row), other.rows.value(other_row));
        let by_key = shape.key(row).cmp(shape.key(other));
        let by_key = if descending { by_key.reverse() } else { by_key };
        by_key.then_with(|| shape.number(row).cmp(shape.number(other)))
    }

    fn alone(&self, row: usize) -> ByteRows {
        ByteRows { rows: BinaryArray::from(vec![self.rows.value(row)]), how: self.how }
    }
}

impl Sorting<'_> {
    /// Sorts lines or records on nodes, and writes the output.
    pub(super) fn bytes(
        &self,
        what: What,
        by_line: bool,
        how: RowHow,
        wholes: &[DistributedFile],
    ) -> Result<(SortSummary, GatherReport)> {
        let (asker, is_stdout) = (self.asker, self.output == Path::new("-"));
        let target = if is_stdout { NewFile::stdout()? } else { NewFile::create(self.output)? };
        let bytes: u64 = wholes.iter().map(DistributedFile::bytes).sum();
        asker.context.start_phase("sorting", "bytes", bytes);
        self.with_streams(what, by_line, wholes, |streams| {
            self.write_bytes(streams, how, (target, bytes), wholes)
        })
    }

    /// Merges the lines or records of the nodes and writes them to the output. `bytes` is the expected size of the
    /// output.
    fn write_bytes(
        &self,
        streams: Streams,
        how: RowHow,
        (target, bytes): (NewFile, u64),
        wholes: &[DistributedFile],
    ) -> Result<(SortSummary, GatherReport)> {
        let (asker, shape) = (self.asker, how.shape);
        let is_in_place = NewFile::is_in_place(self.output);
        let mut merged = Merged::<ByteRows>::new(streams, how)?;
        let file = target.file()?;
        let mut out = match is_in_place {
            true => FileSink::stream(asker.context, file, target.name())?,
            false => {
                let hint = (!self.options.unique && !asker.options.partial).then_some(bytes);
                FileSink::new(asker.context, file, &self.output.display().to_string(), hint)?
            }
        };
        let (mut written, mut last) = (0, Vec::new());
        while let Some((rows, run)) = merged.next()? {
            let before = out.len();
            if matches!(shape, Shape::Lines) && !self.options.unique {
                out.write(rows.run(&run))?;
                written += run.len() as u64;
            } else {
                for row in run {
                    let row = rows.rows.value(row);
                    if self.options.unique {
                        if written > 0 && shape.key(row) == last {
                            continue;
                        }
                        last.clear();
                        last.extend_from_slice(shape.key(row));
                    }
                    out.write(shape.written(row))?;
                    written += 1;
                }
            }
            asker.context.progress().add(out.len() - before);
        }
        let mut summary = told(merged.summaries());
        let gathered = merged.finish();
        if !self.options.unique && gathered.missing.is_empty() {
            // If the last line of a file has no line feed, the sort adds a line feed. The output may therefore
            // have one more byte for each file.
            let ends = if matches!(shape, Shape::Lines) { wholes.len() as u64 } else { 0 };
            super::check_all(wholes, "bytes", out.len(), bytes..=bytes + ends)?;
        }
        summary.bytes = out.finish()?;
        target.publish()?;
        (summary.rows, summary.stats.rows_out) = (written, written);
        Ok((summary, gathered))
    }
}
