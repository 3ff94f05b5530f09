//! Destination blocking: a superstep of all vertices that processes one column of the adjacency matrix after the other.
//! Edges are grouped by ranges of destinations (columns), so that the accumulators of one range fit in memory, or in a
//! cache (Zhu, Han and Chen, "GridGraph", 2015; Beamer, Asanović and Patterson, "Reducing PageRank communication via
//! propagation blocking", 2017).
//!
//! ```text
//!                  destinations ──►
//!            ┌────────┬────────┬────────┐    messages   of all senders, in order: an array, or a file of each thread
//!   senders  │ column │ column │ column │    a column    edges in order, packed: a number has sender and destination,
//!      │     │   0    │   1    │   2    │                and a frame keeps the differences of these numbers
//!      ▼     └────────┴────────┴────────┘    accumulators of one column, which one thread updates without any lock
//! ```
//!
//! Edges are partitioned into columns once, without a sort, by a pass over the rows in order. In each superstep every
//! vertex writes its message. Then each thread takes a column, adds the messages of the column's edges to accumulators,
//! and writes the new states of the column's vertices in order. Messages are read in order for each column. If messages
//! do not fit in memory, they are read from flash once per column, and columns are as wide as the accumulators' memory
//! allows. If the drive would then read too much, all threads work on one column. Each thread then has a part of the
//! senders, and all threads share the column's accumulators, so that with n threads columns can be n times wider.
//!
//! Cost with V vertices and E edges in c columns: partitioning reads and writes about 2.5 E bytes (Kronecker graphs). A
//! superstep reads about 2 E bytes, except edges that stay in memory. With messages of m bytes on flash it also writes
//! m V bytes and reads c m V bytes. A processor core needs 5 to 7 ns per edge (Kronecker graph of scale 24, all data in
//! memory). A quarter of this time is for unpacking.

mod add;
mod cut;
mod messages;
pub(crate) mod plan;
mod read;
mod senders;

use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
    thread::ScopedJoinHandle,
};

use inshore_store::{Buffer, Job};

use self::{
    add::{Adder, OwnAccumulators, SharedAccumulators},
    cut::PartitionOutput,
    messages::{MessageFile, MessageWriter, Messages},
    senders::Senders,
};
use super::{
    Engine, Message, State, StepProgram, SuperstepOutcome, estimates::BlockingPlan, finalize::Finalizer,
    state::StatePeek,
};
use crate::{
    Error, Result,
    csr::{Csr, Degrees, PAGE_VERTICES, RANGE_UNIT, parallel_ranges},
    sequencer::Sequencer,
};

type Packing = inshore_sortreduce::Packing<u64, ()>;

/// The edges of a graph, partitioned into columns.
pub(crate) struct DestinationBlocks {
    plan: BlockingPlan,
    rows: Csr,
    senders: Senders,
    /// The number of low bits of a key that hold the destination within its column. The higher bits of the key hold the
    /// sender.
    bits: u32,
    /// The output of each worker. The workers partitioned consecutive parts of the vertices, in this order.
    cuts: Vec<PartitionOutput>,
}

impl DestinationBlocks {
    /// Partitions edges as planned. Returns `None` if the store has too little space for the edges. If the tuning
    /// forces columns, too little space is an error.
    pub fn new(
        job: &Job,
        plan: BlockingPlan,
        rows: &Csr,
        is_forced: bool,
    ) -> Result<Option<DestinationBlocks>> {
        tracing::debug!(?plan, "columns");
        let rows = rows.unweighted();
        let senders = Senders::new(job, &rows, plan.workers)?;
        match cut::cut(job, plan, rows, senders) {
            Ok(columns) => Ok(Some(columns)),
            Err(Error::Store(error)) if error.is_no_space() && !is_forced => {
                tracing::debug!("no room for columns");
                job.progress().tell(|| "not enough space on the drive for the edge partition".to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn vertices(&self) -> u64 {
        self.rows.vertices
    }

    fn count(&self) -> usize {
        self.vertices().div_ceil(self.plan.width) as usize
    }

    /// Returns the range of vertices of a column.
    fn range(&self, column: usize) -> Range<u64> {
        let start = column as u64 * self.plan.width;
        start..(start + self.plan.width).min(self.vertices())
    }

    fn entries(&self) -> u64 {
        self.rows.entries
    }

    /// Creates the error for a malformed frame. Checksums protect edges on flash, so a malformed frame was already
    /// malformed when it was written.
    fn bad_frame(&self) -> Error {
        let (found, expected) =
            ("a malformed frame of edges".to_string(), "packed pairs of sender and destination".to_string());
        Error::BadGraph { name: self.rows.edges.name().to_string(), what: "edge partition", found, expected }
    }
}

impl<S: State> Engine<S> {
    /// Runs a superstep in which all vertices are active, by columns.
    pub(super) fn column_step<P: StepProgram<State = S>>(
        &mut self,
        program: &mut P,
        columns: &DestinationBlocks,
        collect: bool,
    ) -> Result<SuperstepOutcome> {
        let entries = columns.entries();
        self.has_columns = true;
        self.begin_superstep(entries);
        self.facts.edges_walked += entries;
        let (messages, sums) = self.write_messages(program, columns)?;
        self.facts.edges_sent = Some(sums.edges);
        program.set_aggregate(sums.aggregate);

        let program = &*program;
        match columns.plan.is_shared {
            false => self.add_side_by_side(program, columns, &messages, collect),
            true => self.add_together(program, columns, &messages, collect),
        }
    }

    /// Processes several columns at once, each by one thread.
    fn add_side_by_side<P: StepProgram<State = S>>(
        &mut self,
        program: &P,
        columns: &DestinationBlocks,
        messages: &Messages,
        collect: bool,
    ) -> Result<SuperstepOutcome> {
        let (job, plan, count) = (self.job.clone(), columns.plan, columns.count());
        let cell_bytes = plan.width as usize * size_of::<P::Message>();
        let mut workers = Vec::with_capacity(plan.workers);
        for _ in 0..plan.workers.min(count) {
            let accumulators = Buffer::zeroed(job.budget(), cell_bytes, "updates of a column")?;
            workers.push((accumulators, Adder::new(&job, columns, messages, 0..columns.cuts.len())?));
        }
        let finalizing = Finalizer::new(self, program, collect, None)?;
        let (sequencer, next) = (Sequencer::new(finalizing), AtomicUsize::new(0));
        let work = |mut accumulators: Buffer, mut adder: Adder<P::Message>| -> Result<()> {
            loop {
                let column = next.fetch_add(1, Ordering::Relaxed);
                if column >= count {
                    return Ok(());
                }
                job.check_cancelled()?;
                let range = columns.range(column);
                let accumulators =
                    &mut accumulators.typed_mut::<P::Message>()[..(range.end - range.start) as usize];
                accumulators.fill(P::NOTHING);
                adder.add_up(
                    &mut OwnAccumulators { program, first: range.start as u32, accumulators },
                    column,
                )?;
                // Lists of active vertices, and states on flash, must be written in the order of columns.
                let in_order = collect || !plan.state_in_memory;
                let turn = if in_order { sequencer.wait(column) } else { sequencer.any() };
                let Some(mut turn) = turn else { return Ok(()) };
                turn.value.column(range.start as u32, accumulators)?;
                sequencer.next(turn);
            }
        };
        std::thread::scope(|scope| {
            let spawn = |(accumulators, adder)| {
                let (sequencer, work) = (&sequencer, &work);
                scope.spawn(move || sequencer.guard(|| work(accumulators, adder)))
            };
            all_joined(workers.into_iter().map(spawn).collect())
        })?;
        sequencer.into_value().finish()
    }

    /// Processes the columns one after the other, each by all threads. Each thread adds the messages of its part of the
    /// senders.
    fn add_together<P: StepProgram<State = S>>(
        &mut self,
        program: &P,
        columns: &DestinationBlocks,
        messages: &Messages,
        collect: bool,
    ) -> Result<SuperstepOutcome> {
        let job = self.job.clone();
        let cell_bytes = columns.plan.width as usize * size_of::<P::Message>();
        let mut accumulators = Buffer::zeroed(job.budget(), cell_bytes, "updates of a column")?;
        let adder = |cut| Adder::new(&job, columns, messages, cut..cut + 1);
        let mut adders = (0..columns.cuts.len()).map(adder).collect::<Result<Vec<Adder<P::Message>>>>()?;
        let mut finalizing = Finalizer::new(self, program, collect, None)?;
        for column in 0..columns.count() {
            job.check_cancelled()?;
            let range = columns.range(column);
            let (first, len) = (range.start as u32, (range.end - range.start) as usize);
            accumulators.typed_mut::<P::Message>()[..len].fill(P::NOTHING);
            let shared = &accumulators.typed_mut::<<P::Message as Message>::Cell>()[..len];
            std::thread::scope(|scope| {
                let work = |adder| scope.spawn(move || add_to(adder, column, program, first, shared));
                all_joined(adders.iter_mut().map(work).collect())
            })?;
            finalizing.column(first, &accumulators.typed::<P::Message>()[..len])?;
        }
        finalizing.finish()
    }

    /// Writes the messages of all senders.
    fn write_messages<P: StepProgram<State = S>>(
        &mut self,
        program: &P,
        columns: &DestinationBlocks,
    ) -> Result<(Messages, MessageSums)> {
        let job = self.job.clone();
        let (vertices, workers) = (columns.vertices(), columns.plan.workers);
        let states = self.state.peeks(&job, workers)?;
        let write = |states: &mut StatePeek<S>, writer: &mut MessageWriter<P::Message>, range| {
            walk(&job, &columns.rows, range, |vertex, degree| {
                let state = states.get(vertex)?;
                let mut edges = 0;
                if degree > 0 {
                    let message = program.edge_program(vertex, state, degree);
                    edges = message.map_or(0, |_| degree.into());
                    writer.push(message.unwrap_or(P::NOTHING))?;
                }
                Ok(MessageSums { aggregate: program.aggregate(vertex, state, degree), edges })
            })
        };
        if columns.plan.messages_in_memory {
            let bytes = columns.senders.count().max(1) as usize * size_of::<P::Message>();
            let mut buffer = Buffer::zeroed(job.budget(), bytes, "messages of vertices")?;
            let accumulators = &*buffer.typed_mut::<<P::Message as Message>::Cell>();
            let workers = states.into_iter().map(|states| (states, MessageSums::default())).collect();
            let workers = parallel_ranges(vertices, workers, |(states, sums), range| {
                let mut writer = MessageWriter::memory(accumulators, columns.senders.before(range.start));
                sums.add(write(states, &mut writer, range)?);
                Ok(())
            })?;
            let sums = MessageSums::sum(workers.into_iter().map(|(_, sums)| sums));
            return Ok((Messages::Memory(buffer), sums));
        }
        // Each thread writes a file of its own.
        let step = vertices.div_ceil(workers as u64).next_multiple_of(RANGE_UNIT);
        let parts = std::thread::scope(|scope| {
            let write = |mut states: StatePeek<'_, S>, start| -> Result<(MessageFile, MessageSums)> {
                let mut writer = MessageWriter::flash(&job)?;
                let sums = write(&mut states, &mut writer, start..(start + step).min(vertices))?;
                Ok((
                    MessageFile { first_sender: columns.senders.before(start), file: writer.finish()? },
                    sums,
                ))
            };
            let starts = (0..vertices).step_by(step as usize);
            let spawn = |(states, start)| scope.spawn(move || write(states, start));
            all_joined(states.into_iter().zip(starts).map(spawn).collect())
        })?;
        let (parts, sums): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        Ok((Messages::Flash(parts), MessageSums::sum(sums)))
    }
}

/// Sums over the vertices that sent messages.
#[derive(Clone, Copy, Default)]
struct MessageSums {
    /// The sum of [`StepProgram::aggregate`].
    aggregate: u64,
    /// The number of edges of the vertices that sent a message.
    edges: u64,
}

impl MessageSums {
    fn add(&mut self, other: MessageSums) {
        self.aggregate = self.aggregate.wrapping_add(other.aggregate);
        self.edges += other.edges;
    }

    fn sum(all: impl IntoIterator<Item = MessageSums>) -> MessageSums {
        let mut sum = MessageSums::default();
        all.into_iter().for_each(|sums| sum.add(sums));
        sum
    }
}

/// Calls `each` with every vertex of a range and its degree, and returns the sum of the results.
fn walk(
    job: &Job,
    rows: &Csr,
    range: Range<u64>,
    mut each: impl FnMut(u32, u32) -> Result<MessageSums>,
) -> Result<MessageSums> {
    let mut degrees = Degrees::new(job, rows)?;
    let (mut sum, mut start) = (MessageSums::default(), range.start);
    while start < range.end {
        job.check_cancelled()?;
        let end = ((start / PAGE_VERTICES + 1) * PAGE_VERTICES).min(range.end);
        for (vertex, &degree) in (start as u32..end as u32).zip(degrees.from(start as u32)?) {
            sum.add(each(vertex, degree)?);
        }
        start = end;
    }
    Ok(sum)
}

/// Adds the messages of a column that come from one thread's part of the senders.
fn add_to<P: StepProgram>(
    adder: &mut Adder<'_, P::Message>,
    column: usize,
    program: &P,
    first: u32,
    accumulators: &[<P::Message as Message>::Cell],
) -> Result<()> {
    adder.add_up(&mut SharedAccumulators { program, first, accumulators }, column)
}

impl<P: StepProgram> Finalizer<'_, '_, P> {
    /// Computes the new states of a column's vertices.
    fn column(&mut self, first: u32, accumulators: &[P::Message]) -> Result<()> {
        for (vertex, &cell) in (first..).zip(accumulators) {
            if P::EVERY_VERTEX || cell != P::NOTHING {
                self.vertex(vertex, cell)?;
            }
        }
        Ok(())
    }
}

/// Waits for all threads; returns the first error.
fn all_joined<T>(threads: Vec<ScopedJoinHandle<'_, Result<T>>>) -> Result<Vec<T>> {
    let ends: Vec<_> =
        threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect();
    ends.into_iter().collect()
}
