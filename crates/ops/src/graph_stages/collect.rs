//! The stages that make rows of the values: each partition divides its vertices at ids, and each range of ids is sorted.

use std::{fmt::Write as _, sync::Arc};

use arrow_array::{ArrayRef, RecordBatch, UInt64Array};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{DataType, Field, Schema};
use inshore_kernel::Failure;
use inshore_stages::{MergeInputs, OutputWriter, StageTask};

use super::{
    Arguments, Program,
    exchange::{BATCH_ROWS, RangesWriter, Totals, Value, columns, read_values},
    memory::Growing,
    pagerank,
    rows::StoredRows,
};

/// Divides the vertices of a partition at ids, and writes them with their values.
pub(super) fn collect<V: Value>(
    task: &StageTask<'_>,
    partitions: u32,
    inputs: MergeInputs,
    output: &mut OutputWriter,
) -> Result<(), Failure> {
    let MergeInputs { mut ranges, states, .. } = inputs;
    let (mut states, job) = (states.into_iter(), task.job);
    let (rows, values) = states.next().zip(states.next()).ok_or("the vertices have no rows or no values")?;
    let rows = StoredRows::open(job, task.partition, rows)?;
    let values: Vec<V> = read_values(job, values, rows.ids.len())?;
    let of_rows = ranges.pop().ok_or("the vertices have no samples")?;
    let splitters = splitters(Totals::read(job, of_rows, |_, _| Ok(()))?.sample, partitions);
    let mut writer = RangesWriter::new(output, None, partitions)?;
    let mut range = 0;
    for (&id, value) in rows.ids.iter().zip(values) {
        while splitters.get(range as usize).is_some_and(|&splitter| splitter <= id) {
            range += 1;
        }
        writer.push(range, id, value)?;
    }
    writer.finish()
}

/// Returns at most `ranges - 1` ascending ids that divide a sample into parts of about equal size.
pub(super) fn splitters(mut sample: Vec<u64>, ranges: u32) -> Vec<u64> {
    sample.sort_unstable();
    let quantile =
        |range: u32| sample.get((sample.len() as u64 * u64::from(range) / u64::from(ranges)) as usize);
    let mut splitters: Vec<u64> = (1..ranges).filter_map(quantile).copied().collect();
    splitters.dedup();
    splitters
}

/// Returns the columns of the result.
pub(super) fn result_fields(program: Program) -> Vec<Field> {
    let more = match program {
        Program::PageRank { .. } => pagerank::fields(),
        Program::Search(search) => search.fields(),
    };
    std::iter::once(Field::new("vertex", DataType::UInt64, false)).chain(more).collect()
}

/// Writes the rows of a range of ids in ascending order, as batches or as lines of CSV. Counts the vertices, and those that
/// `is_counted` selects.
pub(super) fn result<V: Value>(
    task: &StageTask<'_>,
    arguments: &Arguments,
    inputs: MergeInputs,
    output: &mut OutputWriter,
    columns_of: impl Fn(&[(u64, V)]) -> Vec<ArrayRef>,
    is_counted: impl Fn(u64, V) -> bool,
) -> Result<(), Failure> {
    let job = task.job;
    let mut rows = Growing::new(job, "the rows of a range of ids")?;
    for range in inputs.ranges.into_iter().flatten() {
        job.check_cancelled()?;
        for batch in range.open(job)? {
            let batch = batch?;
            let (ids, _) = columns(&batch)?;
            let values = V::read(&batch.columns()[1..])?;
            rows.room(job, task.partition, ids.len(), |_| ())?;
            rows.values.extend(ids.iter().copied().zip(values));
        }
    }
    rows.values.sort_unstable_by_key(|row| row.0);
    let counted = rows.values.iter().filter(|row| is_counted(row.0, row.1)).count();
    output.set_counts([rows.values.len() as u64, counted as u64]);
    let schema = Arc::new(Schema::new(result_fields(arguments.program)));
    if arguments.to_csv && task.partition == 0 {
        let names: Vec<&str> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        output.bytes(format!("{}\n", names.join(",")).as_bytes())?;
    }
    for rows in rows.values.chunks(BATCH_ROWS) {
        job.check_cancelled()?;
        let ids: ArrayRef = Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.0)));
        let columns = std::iter::once(ids).chain(columns_of(rows)).collect();
        let batch = RecordBatch::try_new(schema.clone(), columns)?;
        match arguments.to_csv {
            true => output.bytes(csv(&batch)?.as_bytes())?,
            false => output.batch(0, &batch)?,
        }
    }
    Ok(())
}

/// Returns rows as lines of CSV, as a file of CSV has them.
fn csv(batch: &RecordBatch) -> Result<String, Failure> {
    let options = FormatOptions::default();
    let columns = batch.columns().iter().map(|column| ArrayFormatter::try_new(column, &options));
    let columns = columns.collect::<Result<Vec<_>, _>>()?;
    let mut text = String::with_capacity(32 * batch.num_rows());
    for row in 0..batch.num_rows() {
        for (number, column) in columns.iter().enumerate() {
            let separator = if number == 0 { "" } else { "," };
            write!(text, "{separator}{}", column.value(row).try_to_string()?)?;
        }
        text.push('\n');
    }
    Ok(text)
}
