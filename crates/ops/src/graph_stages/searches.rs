//! Searches: programs in which the value of a vertex is the smallest message.
//!
//! | search | first value | message along an edge | a vertex takes a message |
//! |---|---|---|---|
//! | breadth-first search | the source: its own id | id of the sender, the parent | if it has no value |
//! | components | each vertex: its own id | value of the sender | if it is smaller |
//! | shortest paths | the source: 0 | value of the sender plus the weight | if it is smaller |
//!
//! A vertex is *active* in the superstep that has set its value, and only active vertices send. A partition without an
//! active vertex reads no edges, and one without a message copies its values. The search ends when no vertex is active.
//!
//! The values are those of the algorithms on one machine. Messages that reach a vertex in the same superstep are
//! reduced to the smallest, so its parent is the sender with the smallest id. The distance of a path is added up from
//! the source on. Distances are not negative, so their bits have the order of the numbers.

use std::sync::Arc;

use arrow_array::{ArrayRef, Float64Array, UInt32Array, UInt64Array};
use arrow_buffer::{BooleanBuffer, NullBuffer};
use arrow_schema::{DataType, Field};
use inshore_kernel::Failure;
use inshore_stages::{MergeInputs, OutputWriter, RangeInput, StageTask};
use inshore_store::Job;
use serde::{Deserialize, Serialize};

use super::{
    exchange::{NEVER, RangesWriter, Visit, columns, find_all, read_values, write_values},
    messages::MessageWriter,
    rows::StoredRows,
    weights::Weight,
};

/// A search.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Search {
    Bfs { source: u64 },
    Components,
    Sssp { source: u64 },
}

impl Search {
    /// Returns the vertex from which the search starts, if it is one.
    pub fn source(self) -> Option<u64> {
        match self {
            Search::Bfs { source } | Search::Sssp { source } => Some(source),
            Search::Components => None,
        }
    }

    /// Returns the value of a vertex before the first message.
    pub fn first(self, vertex: u64) -> Visit {
        let since = if self.source().is_none_or(|source| source == vertex) { 0 } else { NEVER };
        let value = if matches!(self, Search::Sssp { .. }) { 0 } else { vertex };
        Visit { value, since }
    }

    /// Returns the message of an active vertex along an edge.
    fn message(self, vertex: u64, value: u64, weight: f64) -> Result<Option<u64>, Failure> {
        match self {
            Search::Bfs { .. } => Ok(Some(vertex)),
            Search::Components => Ok(Some(value)),
            Search::Sssp { .. } if weight < 0.0 => Err(format!(
                "an edge of vertex {vertex} has the weight {weight}: expected weights of 0 or more"
            )
            .into()),
            // A sum that no float holds is no distance.
            Search::Sssp { .. } => {
                let sum = f64::from_bits(value) + weight;
                Ok(sum.is_finite().then_some(sum.to_bits()))
            }
        }
    }

    /// Lets a vertex take a message in superstep `number`, if it is one that the vertex takes.
    pub fn take(self, visit: &mut Visit, message: u64, number: u32) {
        let may_improve = visit.since == number || !matches!(self, Search::Bfs { .. });
        if visit.since == NEVER || may_improve && message < visit.value {
            *visit = Visit { value: message, since: number };
        }
    }

    /// Returns the columns of the result besides that of vertices.
    pub fn fields(self) -> Vec<Field> {
        match self {
            Search::Bfs { .. } => vec![
                Field::new("parent", DataType::UInt64, true),
                Field::new("level", DataType::UInt32, true),
            ],
            Search::Components => vec![Field::new("component", DataType::UInt64, false)],
            Search::Sssp { .. } => vec![Field::new("distance", DataType::Float64, true)],
        }
    }

    /// Returns the columns of a batch of the result besides that of vertices. Arrow stores a value even for a null; this
    /// value is 0.
    pub fn columns(self, visits: &[(u64, Visit)]) -> Vec<ArrayRef> {
        let is_reached = |row: &(u64, Visit)| row.1.since != NEVER;
        let values = visits.iter().map(|row| if is_reached(row) { row.1.value } else { 0 });
        let nulls = BooleanBuffer::collect_bool(visits.len(), |at| is_reached(&visits[at]));
        let nulls = Some(NullBuffer::from(nulls)).filter(|nulls| nulls.null_count() > 0);
        match self {
            Search::Bfs { .. } => {
                let levels = visits.iter().map(|row| if is_reached(row) { row.1.since } else { 0 });
                let parents = UInt64Array::new(values.collect(), nulls.clone());
                vec![Arc::new(parents), Arc::new(UInt32Array::new(levels.collect(), nulls))]
            }
            Search::Components => vec![Arc::new(UInt64Array::from_iter_values(values))],
            Search::Sssp { .. } => {
                vec![Arc::new(Float64Array::new(values.map(f64::from_bits).collect(), nulls))]
            }
        }
    }

    /// Returns true if the summary counts a vertex: as reached, or as the one that gives a component its name.
    pub fn is_counted(self, vertex: u64, visit: Visit) -> bool {
        match self {
            Search::Components => visit.value == vertex,
            Search::Bfs { .. } | Search::Sssp { .. } => visit.since != NEVER,
        }
    }
}

/// Lets the vertices of a partition take their messages, and sends those of the vertices that became active. Counts the
/// active vertices, their edges, and all vertices of the partition.
pub(super) fn superstep<W: Weight>(
    task: &StageTask<'_>,
    (partitions, search): (u32, Search),
    number: u32,
    inputs: MergeInputs,
    output: &mut OutputWriter,
) -> Result<(), Failure> {
    let MergeInputs { mut ranges, states, .. } = inputs;
    let job = task.job;
    let mut states = states.into_iter();
    let rows = states.next().ok_or("a superstep has no rows")?;
    let messages = ranges.pop().ok_or("a superstep has no messages")?;
    let before = if number == 0 { None } else { Some(states.next().ok_or("a superstep has no values")?) };
    let before = match before {
        Some(before) if messages.iter().all(|range| range.bytes() == 0) => {
            return copy(job, before, partitions, output);
        }
        before => before,
    };
    let rows = StoredRows::open(job, task.partition, rows)?;
    let visits = match before {
        // The ranges of rows have totals, and no messages.
        None => rows.ids.iter().map(|&id| search.first(id)).collect(),
        Some(before) => {
            let mut visits: Vec<Visit> = read_values(job, before, rows.ids.len())?;
            for range in messages {
                job.check_cancelled()?;
                take_all(job, search, number, &rows.ids, &mut visits, range)?;
            }
            visits
        }
    };
    write_values(&visits, partitions, output)?;
    let is_active = |visit: &Visit| visit.since == number;
    let active = visits.iter().filter(|visit| is_active(visit)).count() as u64;
    let degrees = visits.iter().zip(&rows.degrees).filter(|(visit, _)| is_active(visit));
    let edges = degrees.map(|(_, &degree)| u64::from(degree)).sum();
    output.set_counts([active, edges, rows.ids.len() as u64]);
    // If no active vertex has an edge, no edge is read.
    if edges == 0 { Ok(()) } else { send::<W>(job, rows, &visits, (search, number), partitions, output) }
}

/// Copies the values of a partition that no message reached.
fn copy(job: &Job, before: RangeInput, state: u32, output: &mut OutputWriter) -> Result<(), Failure> {
    for batch in before.open(job)? {
        output.batch(state, &batch?)?;
    }
    Ok(())
}

/// Lets vertices take the messages of a range.
fn take_all(
    job: &Job,
    search: Search,
    number: u32,
    ids: &[u64],
    visits: &mut [Visit],
    range: RangeInput,
) -> Result<(), Failure> {
    for batch in range.open(job)? {
        let batch = batch?;
        let (vertices, values) = columns(&batch)?;
        let values = values.ok_or("invalid messages: vertices without values")?;
        find_all(ids, vertices, |index, place| search.take(&mut visits[index], values[place], number))?;
    }
    Ok(())
}

/// Sends the smallest message of the active vertices to each target.
fn send<W: Weight>(
    job: &Job,
    rows: StoredRows,
    visits: &[Visit],
    (search, number): (Search, u32),
    partitions: u32,
    output: &mut OutputWriter,
) -> Result<(), Failure> {
    let ranges = RangesWriter::new(output, None, partitions)?;
    let mut messages = MessageWriter::new(ranges, partitions, u64::min);
    rows.edges.each::<W>(job, |target, source, weight| {
        let visit = visits.get(source).ok_or("invalid state: an edge without its source")?;
        if visit.since != number {
            return Ok(());
        }
        let Some(message) = search.message(rows.ids[source], visit.value, weight.get())? else {
            return Ok(());
        };
        messages.push(target, message)
    })?;
    messages.finish()
}
