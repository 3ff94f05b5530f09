//! Encodes the parts of a compute kernel (its results of blocks) as rows of record batches.

use std::sync::Arc;

use arrow_array::{BinaryArray, RecordBatch, UInt8Array, UInt64Array};
use arrow_schema::{DataType, Field, Schema, SchemaRef};

use crate::ResumePosition;

pub(super) const PART: u8 = 0;
pub(super) const END: u8 = 1;
pub(super) const FAILED: u8 = 2;
pub(super) const BEGINNING: u8 = 3;

/// The content of a row that [`Parts`](super::Parts) sends for a source.
#[derive(Debug)]
pub enum Answer {
    /// The beginning of a part that is larger than a batch. The next row of the source continues the part.
    Beginning(Vec<u8>),
    /// The serialized part of a block. If the part is larger than a batch, this is its last piece.
    Part(Vec<u8>),
    /// The end of the source. Either the source was read completely, or the rest of the source cannot change the
    /// result.
    End,
    /// The error message of a source that could not be read.
    Failed(String),
}

/// A row that [`Parts`](super::Parts) sends.
#[derive(Debug)]
pub struct PartRow {
    /// The number of the source in the request.
    pub number: u64,
    /// The position in the source up to which the client has received all parts, including the part of this row. If the
    /// row contains only the beginning of a part, the position is valid after the last row of the part.
    pub reach: ResumePosition,
    /// The content of the row.
    pub answer: Answer,
}

/// Returns the columns of the batches that [`Parts`](super::Parts) sends:
///
/// - `source`: the number of the source.
/// - `bytes` and `lines`: the number of bytes and of lines up to the resume position.
/// - `what`: the type of the row. 0 is a part, 1 is the end of the source, 2 is an error, 3 is the beginning of a part.
/// - `part`: the part, or the text of the error.
pub fn part_schema() -> SchemaRef {
    let field = |name: &str, kind| Field::new(name, kind, false);
    Arc::new(Schema::new(vec![
        field("source", DataType::UInt64),
        field("bytes", DataType::UInt64),
        field("lines", DataType::UInt64),
        field("what", DataType::UInt8),
        field("part", DataType::Binary),
    ]))
}

/// Parses the rows of a batch with the columns of [`part_schema`]. Returns `None` if the batch has other columns, or if
/// a row has an unknown type.
pub fn part_rows(batch: &RecordBatch) -> Option<Vec<PartRow>> {
    let numbers = |column: usize| batch.columns().get(column)?.as_any().downcast_ref::<UInt64Array>();
    let (sources, bytes, lines) = (numbers(0)?, numbers(1)?, numbers(2)?);
    let whats = batch.columns().get(3)?.as_any().downcast_ref::<UInt8Array>()?;
    let parts = batch.columns().get(4)?.as_any().downcast_ref::<BinaryArray>()?;
    (0..batch.num_rows())
        .map(|row| {
            let part = parts.value(row);
            let answer = match whats.value(row) {
                PART => Answer::Part(part.to_vec()),
                END => Answer::End,
                BEGINNING => Answer::Beginning(part.to_vec()),
                FAILED => Answer::Failed(String::from_utf8_lossy(part).into_owned()),
                _ => return None,
            };
            let reach = ResumePosition { bytes: bytes.value(row), lines: lines.value(row) };
            Some(PartRow { number: sources.value(row), reach, answer })
        })
        .collect()
}

/// Returns the error message of the first failed source in a batch of [`part_schema`], if any source failed.
pub fn failure_told(batch: &RecordBatch) -> Option<String> {
    let whats = batch.columns().get(3)?.as_any().downcast_ref::<UInt8Array>()?;
    let row = whats.values().iter().position(|&what| what == FAILED)?;
    let parts = batch.columns().get(4)?.as_any().downcast_ref::<BinaryArray>()?;
    Some(String::from_utf8_lossy(parts.value(row)).into_owned())
}
