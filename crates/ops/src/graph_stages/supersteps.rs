//! The supersteps of PageRank, and the stages that make rows of the ranks.

use std::{collections::HashMap, fmt::Write as _, sync::Arc};

use arrow_array::{ArrayRef, Float64Array, RecordBatch, UInt64Array, cast::AsArray, types::UInt64Type};
use arrow_cast::display::{ArrayFormatter, FormatOptions};
use arrow_schema::{DataType, Field, Schema};
use inshore_graph::RankArithmetic;
use inshore_kernel::Failure;
use inshore_stages::{MergeInputs, OutputWriter, RangeInput, StageTask};
use inshore_store::Job;

use super::{
    Arguments,
    exchange::{BATCH_ROWS, RangesWriter, Totals},
    memory::Growing,
    rows::{StoredRows, partition_of},
};

/// Computes the ranks of a partition after an iteration, and sends shares, or the ranks after the last iteration.
pub(super) fn superstep(
    task: &StageTask<'_>,
    arguments: &Arguments,
    inputs: MergeInputs,
    output: &mut OutputWriter,
) -> Result<(), Failure> {
    let MergeInputs { mut ranges, states, .. } = inputs;
    let job = task.job;
    let mut states = states.into_iter();
    let rows = states.next().ok_or("a superstep has no rows")?;
    let rows = StoredRows::open(job, task.partition, rows)?;
    let messages = ranges.pop().ok_or("a superstep has no messages")?;
    let mut sums = vec![0; rows.ids.len()];
    let totals =
        Totals::read(job, messages, |vertices, shares| add_shares(&rows.ids, vertices, shares, &mut sums))?;
    let arithmetic = RankArithmetic::new(totals.vertices.max(1), arguments.damping)?;
    let mut own = Totals { vertices: rows.ids.len() as u64, edges: rows.edge_count(), ..Totals::default() };
    let ranks = match states.next() {
        None => {
            sums.fill(arithmetic.start());
            sums
        }
        Some(ranks) => {
            own.iterations = totals.iterations;
            own.final_change = totals.final_change.or_else(|| final_change(&totals, arguments));
            let base = arithmetic.base(totals.dangling);
            let is_final = own.final_change.is_some();
            own.iterations += u64::from(!is_final);
            each_rank(job, ranks, &mut sums, |sum, rank| {
                let new = if is_final { rank } else { arithmetic.rank(base, sum) };
                own.change += new.abs_diff(rank);
                new
            })?;
            sums
        }
    };
    let is_dangling = |(&rank, &degree): (&u64, &u32)| if degree == 0 { rank } else { 0 };
    own.dangling = ranks.iter().zip(&rows.degrees).map(is_dangling).sum();
    if task.stage == arguments.collect() {
        // Rows were built before the first superstep, and then ranges had totals with samples.
        let samples = match ranges.pop() {
            Some(of_rows) => Totals::read(job, of_rows, |_, _| Ok(()))?.sample,
            None => totals.sample,
        };
        return collect(&rows.ids, &ranks, samples, &own, (arguments.partitions, output));
    }
    write_ranks(&ranks, arguments.partitions, output)?;
    let messages = RangesWriter::new(output, &own, arguments.partitions)?;
    match own.final_change {
        Some(_) => messages.finish(),
        None => send(job, rows, ranks, arithmetic, (arguments.partitions, messages)),
    }
}

/// Returns the change of the last iteration if it is so small that no further iteration follows. Ranks that no iteration
/// has changed yet are not final.
fn final_change(totals: &Totals, arguments: &Arguments) -> Option<u64> {
    let is_small = RankArithmetic::to_f64(totals.change) <= arguments.tolerance;
    (totals.iterations > 0 && is_small).then_some(totals.change)
}

/// Adds shares to the sums of their vertices. Both lists of vertices ascend.
pub(super) fn add_shares(
    ids: &[u64],
    vertices: &[u64],
    shares: &[u64],
    sums: &mut [u64],
) -> Result<(), Failure> {
    let Some(first) = vertices.first() else { return Ok(()) };
    let mut index = ids.partition_point(|id| id < first);
    for (vertex, share) in vertices.iter().zip(shares) {
        index += distance(&ids[index..], *vertex);
        match ids.get(index) {
            Some(id) if id == vertex => sums[index] += share,
            _ => return Err(format!("invalid messages: partition without the vertex {vertex}").into()),
        }
    }
    Ok(())
}

/// Returns the index of the first id that is not less than `vertex`, by an exponential search: the index is usually small.
fn distance(ids: &[u64], vertex: u64) -> usize {
    let mut bound = 1;
    while bound < ids.len() && ids[bound] < vertex {
        bound *= 2;
    }
    let (start, end) = (bound / 2, (bound + 1).min(ids.len()));
    start + ids[start..end].partition_point(|&id| id < vertex)
}

/// Replaces each sum by `new(sum, rank)`.
fn each_rank(
    job: &Job,
    ranks: RangeInput,
    sums: &mut [u64],
    mut new: impl FnMut(u64, u64) -> u64,
) -> Result<(), Failure> {
    let mut sums = sums.iter_mut();
    for batch in ranks.open(job)? {
        let batch = batch?;
        let ranks = batch.columns().first().and_then(|ranks| ranks.as_primitive_opt::<UInt64Type>());
        for &rank in ranks.ok_or("invalid state: expected ranks")?.values() {
            let sum = sums.next().ok_or("invalid state: more ranks than vertices")?;
            *sum = new(*sum, rank);
        }
    }
    match sums.next() {
        None => Ok(()),
        Some(_) => Err("invalid state: fewer ranks than vertices".into()),
    }
}

fn write_ranks(ranks: &[u64], state: u32, output: &mut OutputWriter) -> Result<(), Failure> {
    for ranks in ranks.chunks(2 * BATCH_ROWS) {
        let ranks: ArrayRef = Arc::new(UInt64Array::from(ranks.to_vec()));
        output.batch(state, &RecordBatch::try_from_iter([("rank", ranks)])?)?;
    }
    Ok(())
}

/// Sends the sum of all shares of this partition to each target. The memory of `ranks` becomes that of the shares.
fn send(
    job: &Job,
    rows: StoredRows,
    mut ranks: Vec<u64>,
    arithmetic: RankArithmetic,
    (partitions, mut messages): (u32, RangesWriter<'_>),
) -> Result<(), Failure> {
    for (rank, &degree) in ranks.iter_mut().zip(&rows.degrees) {
        *rank = if degree == 0 { 0 } else { arithmetic.share(*rank, degree) };
    }
    let (shares, mut open) = (ranks, None::<(u64, u64)>);
    rows.each_edge(job, |target, source| {
        let share = *shares.get(source).ok_or("invalid state: an edge without its source")?;
        match &mut open {
            Some((of, sum)) if *of == target => *sum += share,
            open => {
                if let Some((of, sum)) = open.replace((target, share)) {
                    messages.push(partition_of(of, partitions), of, sum)?;
                }
            }
        }
        Ok(())
    })?;
    if let Some((of, sum)) = open {
        messages.push(partition_of(of, partitions), of, sum)?;
    }
    messages.finish()
}

/// Divides the vertices of a partition at ids, and writes them with their ranks.
fn collect(
    ids: &[u64],
    ranks: &[u64],
    samples: Vec<u64>,
    own: &Totals,
    (partitions, output): (u32, &mut OutputWriter),
) -> Result<(), Failure> {
    let splitters = splitters(samples, partitions);
    let mut rows = RangesWriter::new(output, own, partitions)?;
    let mut range = 0;
    for (&id, &rank) in ids.iter().zip(ranks) {
        while splitters.get(range as usize).is_some_and(|&splitter| splitter <= id) {
            range += 1;
        }
        rows.push(range, id, rank)?;
    }
    rows.finish()
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

/// The names under which the schema of result rows has the number of iterations, the change of the last one, and the
/// number of edges.
pub(super) const ITERATIONS: &str = "iterations";
pub(super) const CHANGE: &str = "change";
pub(super) const EDGES: &str = "edges";

/// The columns of the result.
pub(super) fn result_fields() -> Vec<Field> {
    vec![Field::new("vertex", DataType::UInt64, false), Field::new("rank", DataType::Float64, false)]
}

/// Writes the rows of a range of ids in ascending order, as batches or as lines of CSV.
pub(super) fn result(
    task: &StageTask<'_>,
    arguments: &Arguments,
    inputs: MergeInputs,
    output: &mut OutputWriter,
) -> Result<(), Failure> {
    let mut rows = Growing::new(task.job, "the rows of a range of ids")?;
    let ranges = inputs.ranges.into_iter().flatten().collect();
    let totals = Totals::read(task.job, ranges, |vertices, ranks| {
        rows.room(task.job, task.partition, vertices.len(), |_| ())?;
        rows.values.extend(vertices.iter().copied().zip(ranks.iter().copied()));
        Ok(())
    })?;
    rows.values.sort_unstable();
    let facts = [
        (ITERATIONS, totals.iterations),
        (CHANGE, totals.final_change.unwrap_or(totals.change)),
        (EDGES, totals.edges),
    ];
    let facts: HashMap<String, String> =
        facts.into_iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
    let schema = Arc::new(Schema::new_with_metadata(result_fields(), facts));
    let batch = |rows: &[(u64, u64)]| {
        let ids: ArrayRef = Arc::new(UInt64Array::from_iter_values(rows.iter().map(|row| row.0)));
        let ranks = rows.iter().map(|row| RankArithmetic::to_f64(row.1));
        RecordBatch::try_new(schema.clone(), vec![ids, Arc::new(Float64Array::from_iter_values(ranks))])
    };
    if !arguments.to_csv {
        // A range without rows has the facts, too.
        output.batch(0, &batch(&[])?)?;
    } else if task.partition == 0 {
        output.bytes(b"vertex,rank\n")?;
    }
    for rows in rows.values.chunks(BATCH_ROWS) {
        task.job.check_cancelled()?;
        match arguments.to_csv {
            true => output.bytes(csv(&batch(rows)?)?.as_bytes())?,
            false => output.batch(0, &batch(rows)?)?,
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
