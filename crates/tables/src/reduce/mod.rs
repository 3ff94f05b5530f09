//! Implements GROUP BY for tables that are larger than memory. Rows with equal keys are combined.
//!
//! ```text
//!   a column of whole numbers is the key,
//!   all aggregates are numbers, no nulls      ─► numbers:  SortReduce of (key, words), many threads
//!   anything else                             ─► rows:     RowSort of (encoded keys, states)
//! ```
//!
//! Both methods give equal results, and `numbers` is an order of magnitude faster. If `numbers` finds a null, the job
//! restarts with `rows`. Input that can be read only once uses `rows` from the start.
//!
//! If all inputs are Parquet with statistics, the ranges of keys and values are known, and records are narrower. Groups
//! in a small range of keys are combined in an array in memory. A larger range is partitioned into bins. In a bin, the
//! key and the values of a row take one word of 32 bits if they fit into it (`CompactWords`). If a key or a value is
//! outside of the known range, `numbers` restarts without the range.

mod aggregate;
mod groups;
mod numbers;
mod rows;
#[cfg(test)]
mod tests;

use std::path::Path;

use arrow_schema::{DataType, Field, Schema, SchemaRef};
use inshore_sortreduce::Choice;
use inshore_store::{Job, Keep};
use serde::Serialize;

pub use aggregate::{Aggregate, Function};
pub use groups::{Fold, NumberConfig, NumberGroups, NumberState, SortedGroups};

use self::numbers::Outcome;
use crate::{
    Error, Input, Result, TableReader, TableWriter,
    reader::with_exact_columns,
    resume,
    sort::{different, no_column, sort_memory},
};

/// The number of rows of a batch.
const BATCH_ROWS: usize = 8 << 10;

/// The options of a reduce.
#[derive(Clone, Debug, Default)]
pub struct ReduceOptions {
    /// The columns whose values determine the group of a row. If there are none, all rows are one group.
    pub by: Vec<String>,
    /// The aggregates of each group, in the order of the result's columns.
    pub aggregates: Vec<Aggregate>,
    /// Columns of CSV that are read as text, even if their values look like numbers.
    pub as_text: Vec<String>,
    /// Uses the method `rows` even if the faster method `numbers` is possible. Only tests set this option.
    pub general: bool,
    /// Keeps finished sorted runs if the reduce is interrupted. Resumes an interrupted reduce that had the same
    /// options.
    pub resume: bool,
}

/// The counters that a reduce returns.
#[derive(Clone, Debug, Serialize)]
pub struct ReduceSummary {
    /// The number of rows read.
    pub rows_in: u64,
    /// The number of groups written.
    pub groups: u64,
    /// The name of the grouping method, "numbers" or "rows".
    pub way: &'static str,
    /// The name of the sort-reduce strategy that combined the groups, or "rows".
    pub strategy: String,
    /// The number of sorted runs written.
    pub runs: u64,
    /// The number of bytes of sorted runs written.
    pub bytes_spilled: u64,
    /// The number of rows that the sorted runs of an earlier, interrupted reduce already contained.
    pub rows_kept: u64,
    /// The estimated cost of each strategy. The value is `None` if only one strategy was possible.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub choice: Option<Choice>,
}

/// Groups the rows of all inputs by some columns and writes one row for each group to `output`. The key columns come
/// first, then the aggregates. Rows are in ascending order of the keys, and nulls come last. Aggregates ignore nulls,
/// as in SQL. All nulls of a key column form one group, and so do all NaNs. -0.0 is in the group of 0.0.
///
/// Column types of CSV and JSON lines are guessed from the first rows. If a later row contradicts a guess, the types
/// are inferred from all rows.
///
/// Sums of whole numbers are whole numbers of 64 bits. A sum that needs more bits is an error. A sum or mean of n
/// floating-point numbers depends on the order of the additions, and therefore on the budget and the number of threads.
/// The difference between two orders is at most `n * f64::EPSILON` times the sum of the magnitudes. All other results
/// depend neither on the budget nor on the number of threads.
///
/// # Errors
/// - Returns the errors of [`TableReader::open_stored`] and [`TableWriter::create`].
/// - Returns [`Error::NoColumn`] if an input does not have a column.
/// - Returns [`Error::Unsupported`] if a column's type does not support an aggregate, or if 64 bits do not hold a sum.
pub fn reduce(job: &Job, inputs: &[Input], output: &Path, options: &ReduceOptions) -> Result<ReduceSummary> {
    TableWriter::check_path(output)?;
    let work = |inputs: &[Input]| reduce_known(&ReduceRequest { job, inputs, output, options });
    with_exact_columns(job, inputs, &options.as_text, work)
}

/// Groups inputs with the column types that the files state, the caller has set, or the first rows suggest.
fn reduce_known(asked: &ReduceRequest<'_>) -> Result<ReduceSummary> {
    let ReduceRequest { inputs, options, .. } = *asked;
    let is_stream = inputs.iter().any(|input| input.compressed_bytes().is_none());
    if !is_stream && !options.general {
        let schema = asked.schema(&inputs[0])?;
        if let Some(plan) = numbers::RecordPlan::new(asked, &schema) {
            let outcome = match numbers::reduce(asked, &plan)? {
                Outcome::OutOfRange => numbers::reduce(asked, &plan.without_range())?,
                outcome => outcome,
            };
            if let Outcome::Done(summary) = outcome {
                return Ok(summary);
            }
        }
    }
    rows::reduce(asked)
}

/// Sorting may use this fraction (numerator and denominator) of the budget. The rest is for pages, batches and the
/// writer.
const MEMORY_PART: (u64, u64) = (3, 4);

/// A reduce with its inputs and options.
struct ReduceRequest<'a> {
    job: &'a Job,
    inputs: &'a [Input],
    output: &'a Path,
    options: &'a ReduceOptions,
}

impl ReduceRequest<'_> {
    /// Returns the columns that are read. The key columns come first, and each aggregated column follows once.
    fn columns(&self) -> Vec<String> {
        let mut columns = self.options.by.clone();
        for column in self.options.aggregates.iter().filter_map(|aggregate| aggregate.column.as_ref()) {
            if !columns.contains(column) {
                columns.push(column.clone());
            }
        }
        columns
    }

    /// Opens a part of the rows of an input. `part` is the number of the part and the number of all parts, as in
    /// [`TableReader::open_stored`].
    fn open(&self, input: &Input, part: (usize, usize)) -> Result<TableReader> {
        let input = input.clone().stopped_by(self.job.cancel());
        let mut columns = self.columns();
        let (text, budget) = (&self.options.as_text, self.job.budget());
        if columns.is_empty() {
            // If rows are only counted, any column can be read.
            let all = TableReader::open_stored(&input, None, text, BATCH_ROWS, budget, part)?;
            if input.is_stdin() {
                return Ok(all);
            }
            columns.extend(all.schema().fields().first().map(|field| field.name().clone()));
        }
        TableReader::open_stored(&input, Some(&columns), text, BATCH_ROWS, budget, part)
    }

    fn schema(&self, input: &Input) -> Result<SchemaRef> {
        let schema = self.open(input, (0, 1))?.schema().clone();
        for column in &self.columns() {
            if schema.column_with_name(column).is_none() {
                return Err(no_column(input.name(), column, &schema));
            }
        }
        for aggregate in &self.options.aggregates {
            self.check(input, aggregate, &schema)?;
        }
        Ok(schema)
    }

    fn check(&self, input: &Input, aggregate: &Aggregate, schema: &Schema) -> Result<()> {
        let Some(column) = &aggregate.column else { return Ok(()) };
        let kind = schema.field_with_name(column).expect("looked for above").data_type();
        let adds = matches!(aggregate.function, Function::Sum | Function::Mean);
        let is_number = kind.is_integer() || kind.is_floating() || matches!(kind, DataType::Decimal128(..));
        if adds && !is_number {
            let what =
                format!("column '{column}' has type {kind}, which has no {}", aggregate.function.name());
            return Err(Error::unsupported(input.name(), what));
        }
        Ok(())
    }

    fn check_same(&self, input: &Input, expected: &Schema, found: &Schema) -> Result<()> {
        if expected == found { Ok(()) } else { Err(different(input, expected, found)) }
    }

    /// Returns the columns of the result.
    fn result_schema(&self, schema: &Schema) -> SchemaRef {
        let kind =
            |column: &String| schema.field_with_name(column).expect("checked before").data_type().clone();
        let by = self.options.by.iter().map(|column| Field::new(column, kind(column), true));
        let aggregates = self.options.aggregates.iter().map(|aggregate| {
            let of = aggregate.column.as_ref().map(kind);
            Field::new(aggregate.name(), aggregate.function.result_type(of.as_ref()), true)
        });
        Schema::new(by.chain(aggregates).collect::<Vec<_>>()).into()
    }

    /// Opens the store's folder for finished sorted runs, if the options ask for resuming. The columns, and `way` with
    /// its parameters, identify the sorted runs of this reduce.
    fn keep(&self, way: impl std::fmt::Debug, schema: &Schema) -> Result<Option<Keep>> {
        let ReduceOptions { by, aggregates, as_text, .. } = self.options;
        let question = (way, by, aggregates, as_text, schema.fields());
        resume::keep(self.options.resume, self.job, "reduce", question, self.inputs)
    }

    /// Makes the error for a sum that 64 bits do not hold.
    fn overflow(&self) -> Error {
        let sums = self.options.aggregates.iter().filter(|aggregate| aggregate.function == Function::Sum);
        let names: Vec<String> = sums.map(Aggregate::name).collect();
        let what = format!(
            "a sum ({}) does not fit 64 bits, or 38 digits of a decimal: convert the column to floating point",
            names.join(", ")
        );
        Error::unsupported(self.inputs[0].name(), what)
    }

    /// Returns how many bytes of the budget sorting may use.
    fn memory_bytes(&self, smallest: u64) -> Result<u64> {
        sort_memory(self.job.budget(), "grouping", 0, MEMORY_PART, smallest)
    }

    fn compressed_bytes(&self) -> u64 {
        self.inputs.iter().filter_map(Input::compressed_bytes).sum()
    }
}
