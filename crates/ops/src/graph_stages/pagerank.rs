//! The supersteps of PageRank.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array};
use arrow_schema::{DataType, Field};
use inshore_graph::RankArithmetic;
use inshore_kernel::Failure;
use inshore_stages::{MergeInputs, OutputWriter, StageTask};
use inshore_store::Job;

use super::{
    exchange::{RangesWriter, Totals, find_all, read_values, write_values},
    messages::MessageWriter,
    rows::StoredRows,
};

/// The columns of the result besides that of vertices.
pub(super) fn fields() -> Vec<Field> {
    vec![Field::new("rank", DataType::Float64, false)]
}

/// Returns the columns of a batch of the result besides that of vertices.
pub(super) fn columns(ranks: &[(u64, u64)]) -> Vec<ArrayRef> {
    let ranks = ranks.iter().map(|row| RankArithmetic::to_f64(row.1));
    vec![Arc::new(Float64Array::from_iter_values(ranks))]
}

/// Computes the ranks of a partition after the iteration `number`, and sends shares if another iteration may follow. Counts
/// the changes of ranks, the edges, and the vertices.
pub(super) fn superstep(
    task: &StageTask<'_>,
    (partitions, damping): (u32, f64),
    (number, sends): (u32, bool),
    inputs: MergeInputs,
    output: &mut OutputWriter,
) -> Result<(), Failure> {
    let MergeInputs { mut ranges, states, .. } = inputs;
    let job = task.job;
    let mut states = states.into_iter();
    let rows = states.next().ok_or("a superstep has no rows")?;
    let rows = StoredRows::open(job, task.partition, rows)?;
    let messages = ranges.pop().ok_or("a superstep has no messages")?;
    let mut ranks = vec![0; rows.ids.len()];
    let totals =
        Totals::read(job, messages, |vertices, shares| add_shares(&rows.ids, vertices, shares, &mut ranks))?;
    let arithmetic = RankArithmetic::new(totals.vertices.max(1), damping)?;
    let mut change = 0;
    if number == 0 {
        ranks.fill(arithmetic.start());
    } else {
        let before = states.next().ok_or("a superstep has no ranks")?;
        let before: Vec<u64> = read_values(job, before, ranks.len())?;
        let base = arithmetic.base(totals.dangling);
        for (sum, before) in ranks.iter_mut().zip(before) {
            *sum = arithmetic.rank(base, *sum);
            change += sum.abs_diff(before);
        }
    }
    write_values(&ranks, partitions, output)?;
    output.set_counts([change, rows.edge_count(), ranks.len() as u64]);
    if !sends {
        return Ok(());
    }
    let is_dangling = |(&rank, &degree): (&u64, &u32)| if degree == 0 { rank } else { 0 };
    let dangling = ranks.iter().zip(&rows.degrees).map(is_dangling).sum();
    let own = Totals { vertices: ranks.len() as u64, dangling, ..Totals::default() };
    let ranges = RangesWriter::new(output, Some(&own), partitions)?;
    send(job, rows, ranks, arithmetic, MessageWriter::new(ranges, partitions, |sum, share| sum + share))
}

/// Adds shares to the sums of their vertices. Both lists of vertices are in ascending order.
pub(super) fn add_shares(
    ids: &[u64],
    vertices: &[u64],
    shares: &[u64],
    sums: &mut [u64],
) -> Result<(), Failure> {
    find_all(ids, vertices, |index, place| sums[index] += shares[place])
}

/// Sends the sum of all shares of this partition to each target. The memory of `ranks` becomes that of the shares.
fn send(
    job: &Job,
    rows: StoredRows,
    mut ranks: Vec<u64>,
    arithmetic: RankArithmetic,
    mut messages: MessageWriter<'_>,
) -> Result<(), Failure> {
    for (rank, &degree) in ranks.iter_mut().zip(&rows.degrees) {
        *rank = if degree == 0 { 0 } else { arithmetic.share(*rank, degree) };
    }
    let shares = ranks;
    rows.edges.each(job, |target, source, ()| {
        let share = *shares.get(source).ok_or("invalid state: an edge without its source")?;
        messages.push(target, share)
    })?;
    messages.finish()
}
