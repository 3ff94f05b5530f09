//! Queries over the columns of vectors on nodes: they select vectors by a predicate, and read values for answers.

use std::{cmp::Reverse, collections::HashMap, iter::once, path::PathBuf, sync::Arc};

use arrow_array::{ArrayRef, RecordBatch, UInt64Array, cast::AsArray, types::UInt64Type};
use arrow_cast::cast;
use arrow_schema::{ArrowError, SchemaRef};
use arrow_select::{concat::concat_batches, take::take};
use inshore_nodes::RunOptions;
use inshore_sql::{Query, RemoteExecutor, Tables};
use inshore_store::{Job, Reservation, format_bytes};
use inshore_vectors::{Error as VectorError, ROW_COLUMN, RowSet, schema_with, taken_bytes};

use super::VectorsOnNodes;
use crate::{
    error::Result,
    queries::NodeTables,
    row_selection::{quoted, select_rows},
};

/// The largest size of the bitmap of a selection in bytes. The bitmap is a part of each request to the nodes, and a
/// request is at most 16 MiB.
const SELECTION_BYTES_MAX: u64 = 6 << 20;
/// The number of rows of an answer whose columns are read together. The text of their query stays below the limit
/// of 64 KiB.
const PENDING_ROWS: usize = 4 << 10;
/// The largest number of ranges of row numbers in a query. Nodes skip row groups outside of the ranges. They would
/// not skip row groups by the list of all numbers, since statistics are compared with short lists only.
const RANGES_MAX: usize = 16;
/// The position of the column of row numbers in the rows of a search.
const NUMBERS: usize = 2;
/// The smallest and the largest memory, in bytes, for the values of columns. Between these limits, the memory is
/// the budget divided by `MEMORY_SHARE`.
const MEMORY_BYTES_MIN: u64 = 2 << 20;
const MEMORY_BYTES_MAX: u64 = 64 << 20;
const MEMORY_SHARE: u64 = 8;
/// The memory for values is divided by this number. At each step, values take at most two of these parts: as they
/// were received and joined, joined and converted, or converted and in the answer.
const VALUES_SHARE: u64 = 4;

/// The columns of vectors as a table on nodes.
struct ColumnsTable {
    nodes: Arc<NodeTables>,
    /// The name of the vectors, which is also the name of the table in queries.
    name: String,
    /// The name of the table on the nodes.
    path: String,
}

impl ColumnsTable {
    fn find(vectors: &VectorsOnNodes) -> Result<ColumnsTable> {
        let path = format!("store:{}", vectors.columns_table()?);
        // A selection without the rows of a lost node would be a wrong answer.
        let options = RunOptions { partial: false, ..vectors.on.options.clone() };
        let nodes = Arc::new(NodeTables::new(&vectors.on.nodes, options)?);
        Ok(ColumnsTable { nodes, name: vectors.info.name.clone(), path })
    }

    /// Returns the tables of a query.
    fn tables(&self) -> Tables {
        let tables = Tables::default().with_files(&self.name, &[PathBuf::from(&self.path)]);
        tables.with_elsewhere(self.nodes.clone())
    }
}

/// Selects the vectors for which the SQL expression `predicate`, over the columns of the vectors, is true.
///
/// Each node evaluates the predicate over the columns of its shards, and returns the numbers of the selected rows.
/// The memory of the query is freed when the query ends. The memory of the set stays reserved until the set is
/// dropped.
///
/// # Errors
/// - Returns [`inshore_nodes::Error::Unfit`] if the vectors have no columns, or their columns were replaced.
/// - Returns [`VectorError::BadOption`] if there are too many vectors for the bitmap of a request.
/// - Returns an error if the predicate is not an SQL expression, or has an unknown column.
/// - Returns an error that names a node if the node cannot run queries, or does not answer.
/// - Returns an error if the budget has too little free memory or the job was cancelled.
pub(crate) fn select_on_nodes(vectors: &VectorsOnNodes, job: &Job, predicate: &str) -> Result<RowSet> {
    if RowSet::bytes(vectors.info.vectors) > SELECTION_BYTES_MAX {
        let found = format!("a predicate over {} vectors", vectors.info.vectors);
        let expected = format!("at most {} vectors on nodes", 8 * SELECTION_BYTES_MAX);
        return Err(VectorError::BadOption { option: "where", found, expected }.into());
    }
    let table = ColumnsTable::find(vectors)?;
    select_rows(job, &vectors.info, predicate, table.tables())
}

/// Adds columns of the vectors to the rows of an answer. If the vectors have a column of ids, the values of this
/// column replace the row numbers in the answer.
///
/// The memory is an eighth of the budget, but at least 2 MiB and at most 64 MiB. It is reserved. The columns are
/// read for the vectors of the answer, in queries for up to 4,096 rows of the answer. Each query needs further
/// memory of the budget while it runs.
pub(crate) struct ColumnsOfAnswer {
    job: Job,
    table: ColumnsTable,
    /// The columns that are read, each once: the column of ids and the selected columns.
    read: Vec<String>,
    id: Option<String>,
    columns: SchemaRef,
    schema: SchemaRef,
    pending: Vec<RecordBatch>,
    pending_rows: usize,
    memory: Reservation,
}

/// The receiver of the batches of an answer.
type Each<'a> = &'a mut dyn FnMut(RecordBatch) -> Result<()>;

impl ColumnsOfAnswer {
    /// Finds the columns `selected` and the column of ids.
    ///
    /// # Errors
    /// - Returns the errors of [`schema_with`], for example if a column does not exist.
    /// - Returns [`inshore_nodes::Error::Unfit`] if the vectors have no columns, or their columns were replaced.
    /// - Returns [`VectorError::BadDataset`] if the columns do not have one row for each vector, or lack the column
    ///   of ids.
    /// - Returns an error if a node does not answer, or the budget has too little free memory.
    pub fn open(vectors: &VectorsOnNodes, job: &Job, selected: &[String]) -> Result<ColumnsOfAnswer> {
        let (table, id) = (ColumnsTable::find(vectors)?, vectors.id_column().map(str::to_string));
        let known = table.nodes.describe(job, &table.path, &[])?;
        let known = known.expect("a table whose name begins with store: is on nodes");
        let bad = |found: String, expected: String| VectorError::BadDataset {
            name: table.name.clone(),
            what: "columns",
            found,
            expected,
        };
        if let Some(id) = id.as_ref().filter(|id| known.schema.index_of(id).is_err()) {
            return Err(bad("no column of ids".to_string(), format!("the column '{id}'")).into());
        }
        if known.rows.is_some_and(|rows| rows != vectors.info.vectors) {
            let rows = known.rows.unwrap_or_default();
            let expected = format!("{}, one for each vector", vectors.info.vectors);
            return Err(bad(format!("{rows} rows"), expected).into());
        }
        let schema = schema_with(&known.schema, &table.name, id.as_deref(), selected)?;
        let mut read: Vec<String> = id.iter().chain(selected).cloned().collect();
        read.sort_unstable();
        read.dedup();
        let bytes = job.budget().memory_bytes() / MEMORY_SHARE;
        let bytes = bytes.clamp(MEMORY_BYTES_MIN, MEMORY_BYTES_MAX);
        let memory = job.budget().reserve(bytes, "columns of an answer")?;
        Ok(ColumnsOfAnswer {
            job: job.clone(),
            table,
            read,
            id,
            columns: known.schema,
            schema,
            pending: Vec::new(),
            pending_rows: 0,
            memory,
        })
    }

    /// Returns the schema of the answer.
    pub fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    /// Collects rows of a search. Once enough rows are collected, they are passed to `each` with their columns.
    ///
    /// # Errors
    /// Returns the errors of [`ColumnsOfAnswer::finish`].
    pub fn add(&mut self, batch: RecordBatch, each: Each<'_>) -> Result<()> {
        let mut place = 0;
        while place < batch.num_rows() {
            let rows = (PENDING_ROWS - self.pending_rows).min(batch.num_rows() - place);
            self.pending.push(batch.slice(place, rows));
            self.pending_rows += rows;
            place += rows;
            if self.pending_rows == PENDING_ROWS {
                self.finish(each)?;
            }
        }
        Ok(())
    }

    /// Passes the collected rows to `each` with their columns.
    ///
    /// # Errors
    /// - Returns [`VectorError::BadDataset`] if a vector has no row in the columns, or if the values of one row do
    ///   not fit into the memory.
    /// - Returns the errors of `each` and of the query.
    pub fn finish(&mut self, each: Each<'_>) -> Result<()> {
        let pending = std::mem::take(&mut self.pending);
        self.pending_rows = 0;
        let Some(first) = pending.first() else { return Ok(()) };
        let batch = concat_batches(&first.schema(), &pending).map_err(|error| self.damaged(error))?;
        self.fill(&batch, each)
    }

    /// Adds the columns to the rows of `batch`. If the values of the columns do not fit into the memory, the batch
    /// is split into halves.
    fn fill(&self, batch: &RecordBatch, each: Each<'_>) -> Result<()> {
        let (rows, numbers) = (batch.num_rows(), batch.column(NUMBERS).as_primitive::<UInt64Type>());
        if let Some(values) = self.values_of(numbers)? {
            return each(self.answer(batch, &values)?);
        }
        if rows == 1 {
            let found = format!("more than {} in row {}", format_bytes(self.limit()), numbers.value(0));
            return Err(self.bad(found, "less, or more --memory"));
        }
        self.fill(&batch.slice(0, rows / 2), each)?;
        self.fill(&batch.slice(rows / 2, rows - rows / 2), each)
    }

    /// The largest size of the values of a query at each step, in bytes.
    fn limit(&self) -> u64 {
        self.memory.bytes() / VALUES_SHARE
    }

    /// Returns the values of the columns [`ColumnsOfAnswer::read`] for each of the vectors `numbers`. Returns
    /// `None` if the values take more memory than [`ColumnsOfAnswer::limit`].
    fn values_of(&self, numbers: &UInt64Array) -> Result<Option<Vec<ArrayRef>>> {
        let mut distinct = numbers.values().to_vec();
        distinct.sort_unstable();
        distinct.dedup();
        let Some(found) = self.query(&distinct)? else { return Ok(None) };
        let rows = found.column(0).as_primitive::<UInt64Type>();
        let places: HashMap<u64, u64> = rows.values().iter().copied().zip(0..).collect();
        let place = |number: &u64| places.get(number).copied();
        let places = numbers.values().iter().map(place).collect::<Option<Vec<u64>>>();
        let Some(places) = places.filter(|_| found.num_rows() == distinct.len()) else {
            return Err(self.damaged(format!("{} rows of {} vectors", found.num_rows(), distinct.len())));
        };
        let places = UInt64Array::from(places);
        let converted = found.columns()[1..].iter().zip(&self.read).map(|(values, name)| {
            // A query may return texts in another layout than that of the table.
            cast(values, self.columns.field_with_name(name)?.data_type())
        });
        let converted: std::result::Result<Vec<ArrayRef>, ArrowError> = converted.collect();
        let converted = converted.map_err(|error| self.damaged(error))?;
        drop(found);
        let bytes = converted.iter().map(|values| taken_bytes(values, &places)).fold(0, u64::saturating_add);
        if bytes > self.limit() {
            return Ok(None);
        }
        let taken = converted.iter().map(|values| take(values, &places, None));
        let taken: std::result::Result<Vec<ArrayRef>, ArrowError> = taken.collect();
        taken.map(Some).map_err(|error| self.damaged(error))
    }

    /// Reads the columns of the vectors `numbers`, which must ascend. The first column of the result has the
    /// numbers, in any order. Returns `None` if the values take more memory than [`ColumnsOfAnswer::limit`].
    fn query(&self, numbers: &[u64]) -> Result<Option<RecordBatch>> {
        let text = self.text(numbers);
        let mut query = Query::start(&self.job, &text, self.table.tables())?;
        let (mut found, mut bytes) = (Vec::new(), 0);
        while let Some(batch) = query.next_batch()? {
            bytes += batch.get_array_memory_size() as u64;
            found.push(batch);
            // Later rows are received without being kept. The query has freed its memory at its end, and the next
            // query may need this memory.
            if bytes > self.limit() {
                found.clear();
            }
        }
        if bytes > self.limit() {
            return Ok(None);
        }
        concat_batches(query.schema(), &found).map(Some).map_err(|error| self.damaged(error))
    }

    /// Returns the text of the query for the columns of the vectors `numbers`, which must ascend.
    fn text(&self, numbers: &[u64]) -> String {
        let row = quoted(ROW_COLUMN);
        let columns = once(ROW_COLUMN).chain(self.read.iter().map(String::as_str));
        let columns: Vec<String> =
            columns.enumerate().map(|(place, name)| format!("{} AS c{place}", quoted(name))).collect();
        let ranges: Vec<String> = ranges_of(numbers)
            .into_iter()
            .map(|(first, last)| format!("{row} BETWEEN {first} AND {last}"))
            .collect();
        let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
        format!(
            "SELECT {} FROM {} WHERE ({}) AND {row} IN ({})",
            columns.join(", "),
            quoted(&self.table.name),
            ranges.join(" OR "),
            numbers.join(",")
        )
    }

    /// Combines the columns that a search returns with the values of the columns [`ColumnsOfAnswer::read`].
    fn answer(&self, batch: &RecordBatch, values: &[ArrayRef]) -> Result<RecordBatch> {
        let value = |name: &String| {
            let place = self.read.iter().position(|read| read == name);
            values[place.expect("a column that is read")].clone()
        };
        let mut columns = batch.columns().to_vec();
        if let Some(id) = &self.id {
            columns[NUMBERS] = value(id);
        }
        columns.extend(self.schema.fields()[columns.len()..].iter().map(|field| value(field.name())));
        RecordBatch::try_new(self.schema.clone(), columns).map_err(|error| self.damaged(error))
    }

    fn damaged(&self, what: impl ToString) -> crate::Error {
        self.bad(what.to_string(), "a row for each vector")
    }

    fn bad(&self, found: String, expected: &str) -> crate::Error {
        let (name, expected) = (self.table.name.clone(), expected.to_string());
        VectorError::BadDataset { name, what: "columns", found, expected }.into()
    }
}

/// Returns up to [`RANGES_MAX`] ranges that contain all `numbers`, as pairs of a first and a last number. The
/// numbers must ascend. The largest gaps between numbers separate the ranges.
fn ranges_of(numbers: &[u64]) -> Vec<(u64, u64)> {
    let mut starts: Vec<usize> = (1..numbers.len()).collect();
    starts.sort_by_key(|&place| Reverse(numbers[place] - numbers[place - 1]));
    starts.truncate(RANGES_MAX - 1);
    starts.sort_unstable();
    let ends = starts.iter().copied().chain([numbers.len()]);
    once(0)
        .chain(starts.iter().copied())
        .zip(ends)
        .map(|(start, end)| (numbers[start], numbers[end - 1]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_contain_all_numbers_and_leave_out_the_largest_gaps() {
        assert_eq!(ranges_of(&[7]), [(7, 7)]);
        assert_eq!(ranges_of(&[1, 2, 90]), [(1, 1), (2, 2), (90, 90)]);
        let numbers: Vec<u64> = (0..100).map(|number| number * 3 + number / 10 * 1000).collect();
        let ranges = ranges_of(&numbers);
        assert_eq!(ranges.len(), RANGES_MAX);
        assert!(ranges.iter().all(|(first, last)| first <= last));
        assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0));
        let is_in = |number: &u64| ranges.iter().any(|(first, last)| (first..=last).contains(&number));
        assert!(numbers.iter().all(is_in));
        assert!(ranges.iter().all(|(first, last)| last - first < 1000), "{ranges:?}");
    }
}
