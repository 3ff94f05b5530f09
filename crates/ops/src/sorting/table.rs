//! This module merges the sorted rows that several nodes return, and writes the rows as one table.

use std::{cmp::Ordering, path::Path, sync::Arc};

use arrow_array::{Array, ArrayRef, BinaryArray, RecordBatch, UInt32Array, cast::AsArray, types::UInt32Type};
use arrow_row::{RowConverter, SortField};
use arrow_schema::{DataType, SchemaRef};
use arrow_select::interleave::interleave;
use inshore_nodes::{DistributedFile, GatherReport, Merged, OrderedRow};
use inshore_tables::{Error as TableError, SortSummary, TableLayout, TableWriter, normal_floats};

use super::{BATCH_BYTES, Result, Sorting, What, node::slice_bytes, told};

/// The number of rows at which an output batch is written.
const ROWS: usize = 8 << 10;
/// The approximate size in bytes of the input batches in memory while one output batch is collected.
const HELD_BYTES: usize = 2 << 20;
/// The largest ratio of a row's size in columns to its size in the sort's encoding: an empty text takes four bytes in
/// a column and one byte in the encoding.
const COLUMNS_PER_ROW: usize = 8;

/// The layout and order of a table's rows.
#[derive(Debug)]
pub(super) struct TableHow {
    schema: SchemaRef,
    keys: Vec<usize>,
    /// True if only one of several rows with equal keys is written. Floating-point numbers are then compared in
    /// their normal form.
    is_unique: bool,
    converter: RowConverter,
    bytes_max: usize,
}

impl TableHow {
    /// Returns the layout of a table with these columns. Errors call the table `name`.
    pub fn new(name: &str, layout: TableLayout, is_unique: bool, row_bytes_max: usize) -> Result<TableHow> {
        let TableLayout { read: schema, keys, .. } = layout;
        let field = |&(column, order): &(usize, _)| {
            SortField::new_with_options(schema.field(column).data_type().clone(), order)
        };
        let converter = RowConverter::new(keys.iter().map(field).collect());
        let converter = converter.map_err(|error| unsupported(name, error))?;
        Ok(TableHow {
            schema,
            is_unique,
            keys: keys.into_iter().map(|(column, _)| column).collect(),
            converter,
            bytes_max: COLUMNS_PER_ROW * (BATCH_BYTES + row_bytes_max),
        })
    }
}

fn unsupported(name: &str, error: impl ToString) -> TableError {
    TableError::Unsupported { file: name.to_string(), what: error.to_string() }
}

/// The rows of a batch of a table.
#[derive(Debug)]
pub(super) struct TableRows {
    /// The columns of the table, without the column of shard numbers. The value is `None` for a copy of a single row.
    batch: Option<RecordBatch>,
    /// The keys, in an encoding whose bytes compare in the order of the keys.
    keys: BinaryArray,
    /// The number of each row's shard.
    pieces: UInt32Array,
}

impl OrderedRow for TableRows {
    const ADDS_UP: bool = false;
    type How = TableHow;

    fn of_batch(batch: &RecordBatch, how: &TableHow) -> Option<TableRows> {
        let (pieces, columns) = batch.columns().split_last()?;
        let kinds = |columns: &[ArrayRef]| -> Vec<DataType> {
            columns.iter().map(|column| column.data_type().clone()).collect()
        };
        let is_known = kinds(columns).iter().eq(how.schema.fields().iter().map(|field| field.data_type()));
        if !is_known || slice_bytes(batch) > how.bytes_max {
            return None;
        }
        let pieces =
            pieces.as_primitive_opt::<UInt32Type>().filter(|pieces| pieces.null_count() == 0)?.clone();
        let key = |&column: &usize| match how.is_unique {
            true => normal_floats(&columns[column]),
            false => columns[column].clone(),
        };
        let keys: Vec<ArrayRef> = how.keys.iter().map(key).collect();
        let keys = how.converter.convert_columns(&keys).ok()?.try_into_binary().ok()?;
        let batch = RecordBatch::try_new(how.schema.clone(), columns.to_vec()).ok()?;
        let found = TableRows { batch: Some(batch), keys, pieces };
        let is_ordered = (1..found.rows()).all(|row| found.compare(row - 1, &found, row).is_le());
        is_ordered.then_some(found)
    }

    fn rows(&self) -> usize {
        self.keys.len()
    }

    fn compare(&self, row: usize, other: &TableRows, other_row: usize) -> Ordering {
        let by_key = self.keys.value(row).cmp(other.keys.value(other_row));
        by_key.then_with(|| self.pieces.value(row).cmp(&other.pieces.value(other_row)))
    }

    fn alone(&self, row: usize) -> TableRows {
        let keys = BinaryArray::from(vec![self.keys.value(row)]);
        TableRows { batch: None, keys, pieces: vec![self.pieces.value(row)].into() }
    }
}

/// Rows of several batches that are written together as one batch.
#[derive(Default)]
struct Waiting {
    batches: Vec<RecordBatch>,
    bytes: usize,
    /// For each row, in the order of the output: the index of its batch in `batches`, and its index within that
    /// batch.
    rows: Vec<(usize, usize)>,
}

impl Waiting {
    /// Returns the index of a batch in `batches`, after adding the batch if it is not yet there.
    fn place(&mut self, batch: &RecordBatch) -> usize {
        let is_it = |held: &RecordBatch| Arc::ptr_eq(held.column(0), batch.column(0));
        self.batches.iter().rposition(is_it).unwrap_or_else(|| {
            self.bytes += slice_bytes(batch);
            self.batches.push(batch.clone());
            self.batches.len() - 1
        })
    }

    fn is_full(&self) -> bool {
        self.rows.len() >= ROWS || self.bytes >= HELD_BYTES
    }

    /// Removes all rows, and returns them in order as one batch.
    fn take(&mut self, schema: &SchemaRef) -> std::result::Result<RecordBatch, arrow_schema::ArrowError> {
        let column = |column: usize| {
            let all: Vec<&dyn Array> =
                self.batches.iter().map(|batch| batch.column(column).as_ref()).collect();
            interleave(&all, &self.rows)
        };
        let columns = (0..schema.fields().len()).map(column).collect::<std::result::Result<_, _>>()?;
        *self = Waiting::default();
        RecordBatch::try_new(schema.clone(), columns)
    }
}

impl Sorting<'_> {
    /// Sorts the rows of a table on nodes, and writes the output. `rows` is the number of rows if known.
    pub(super) fn table(
        &self,
        what: What,
        how: TableHow,
        schema: &SchemaRef,
        rows: Option<u64>,
        wholes: &[DistributedFile],
    ) -> Result<(SortSummary, GatherReport)> {
        self.asker.context.start_phase("sorting", "rows", rows.unwrap_or(0));
        self.with_streams(what, false, wholes, |streams| {
            self.write_table(Merged::new(streams, how)?, schema, rows, wholes)
        })
    }

    /// Merges the rows of the nodes, and writes them to the output. `rows` is the number of rows if known.
    fn write_table(
        &self,
        mut merged: Merged<TableRows>,
        schema: &SchemaRef,
        rows: Option<u64>,
        wholes: &[DistributedFile],
    ) -> Result<(SortSummary, GatherReport)> {
        let (asker, name) = (self.asker, self.output.display().to_string());
        // This memory holds the batches in `waiting`, and the batch that is written.
        let _memory = asker.context.budget().reserve(2 * HELD_BYTES as u64, "combined batches of rows")?;
        let mut writer = TableWriter::create(self.output, schema.clone(), asker.context.budget())?;
        let mut waiting = Waiting::default();
        let (mut last, mut given) = (None::<Vec<u8>>, 0);
        let mut write = |waiting: &mut Waiting| -> Result<()> {
            asker.context.check_cancelled()?;
            let batch = waiting.take(schema).map_err(|error| unsupported(&name, error))?;
            asker.context.progress().add(batch.num_rows() as u64);
            Ok(writer.write(&batch)?)
        };
        while let Some((found, run)) = merged.next()? {
            let batch = found.batch.as_ref().expect("a row alone is not given");
            let place = waiting.place(batch);
            given += run.len() as u64;
            for row in run {
                if self.options.unique {
                    let key = found.keys.value(row);
                    if last.as_deref() == Some(key) {
                        continue;
                    }
                    let last = last.get_or_insert_default();
                    last.clear();
                    last.extend_from_slice(key);
                }
                waiting.rows.push((place, row));
            }
            if waiting.is_full() {
                write(&mut waiting)?;
            }
        }
        if !waiting.rows.is_empty() {
            write(&mut waiting)?;
        }
        let mut summary = told(merged.summaries());
        let gathered = merged.finish();
        if let Some(rows) = rows.filter(|_| !self.options.unique && gathered.missing.is_empty()) {
            super::check_all(wholes, "rows", given, rows..=rows)?;
        }
        let written = writer.finish()?;
        if self.output != Path::new("-") {
            summary.bytes = std::fs::metadata(self.output).map_or(0, |written| written.len());
        }
        (summary.rows, summary.stats.rows_out) = (written, written);
        Ok((summary, gathered))
    }
}
