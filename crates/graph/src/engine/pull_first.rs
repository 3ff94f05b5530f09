//! Bottom-up supersteps for searches. Each waiting vertex scans its in-edges for an active vertex, and stops at the
//! first one (Beamer, Asanović and Patterson, "Direction-optimizing breadth-first search", 2012).
//!
//! When most vertices have been reached, most edges lead to reached vertices. A pull reads only the rows of vertices
//! that were not reached, and sends one message to each vertex that it reaches. A push would send one message per edge.

use std::ops::Range;

use inshore_store::{Buffer, Job};

use super::{
    Choice, Engine, Frontier, ReduceOperation, Sender, State, Step, StepProgram, SuperstepOutcome,
    cached::{CacheSpace, CachedRows, CachedRowsWriter},
    direct::{AccumulatorSender, FirstMessages},
    sorted::Sorting,
};
use crate::{
    Result,
    csr::{Csr, IndexCursor},
};

/// A sender that can also send a message to a single vertex, without edges.
pub(super) trait SingleSender: Sender {
    type Message;

    /// Delivers a message to a vertex. The caller sets `is_only` if no other worker delivers to this vertex.
    fn deliver(
        &self,
        sink: &mut Self::Sink,
        vertex: u32,
        message: Self::Message,
        is_only: bool,
    ) -> Result<()>;
}

impl<P: StepProgram> SingleSender for Sorting<'_, P> {
    type Message = P::Message;

    #[inline]
    fn deliver(&self, sink: &mut Self::Sink, vertex: u32, message: P::Message, _: bool) -> Result<()> {
        Ok(sink.push(vertex, message)?)
    }
}

impl<P: StepProgram> SingleSender for AccumulatorSender<'_, P> {
    type Message = P::Message;

    #[inline]
    fn deliver(
        &self,
        touched: &mut Self::Sink,
        vertex: u32,
        message: P::Message,
        is_only: bool,
    ) -> Result<()> {
        self.send_to(vertex, message, is_only, touched);
        Ok(())
    }
}

/// Sends the message of the first active vertex in a row to the vertex that owns the row.
struct PullFirst<'a, P, T> {
    program: &'a P,
    active: ActiveView<'a>,
    to: T,
}

impl<P: StepProgram, T> PullFirst<'_, P, T> {
    /// Returns the message of the first active vertex in a row. Rows are in ascending order, and the parts of a long
    /// row are passed one after the other.
    #[inline]
    fn first_message(&self, row: &[u32]) -> Option<P::Message> {
        let source = row.iter().find(|&&source| self.active.has(source));
        source.map(|&source| self.program.message_of(source))
    }
}

impl<P, T> Sender for PullFirst<'_, P, T>
where
    P: StepProgram,
    T: SingleSender<State = P::State, Message = P::Message>,
{
    type State = P::State;
    /// The vertex that owns the row, and its degree.
    type Sent = (u32, u32);
    type Sink = T::Sink;

    fn send(&self, vertex: u32, state: &P::State, degree: u32) -> Option<(u32, u32)> {
        self.program.waits(vertex, state).then_some((vertex, degree))
    }

    #[inline]
    fn push(
        &self,
        sink: &mut T::Sink,
        window: &[u32],
        row: Range<usize>,
        _: &[f64],
        (vertex, degree): (u32, u32),
    ) -> Result<()> {
        let is_whole = row.len() == degree as usize;
        match self.first_message(&window[row]) {
            Some(message) => self.to.deliver(sink, vertex, message, is_whole),
            None => Ok(()),
        }
    }
}

/// Pulls as [`PullFirst`] does, and caches the rows in which no vertex was active.
struct PullFirstCaching<'a, P: StepProgram>(PullFirst<'a, P, AccumulatorSender<'a, P>>);

impl<P: StepProgram> PullFirst<'_, P, AccumulatorSender<'_, P>> {
    /// Sends the message of the row's first active vertex, if there is one; returns whether there is one.
    #[inline]
    fn look(&self, touched: &mut FirstMessages, vertex: u32, row: &[u32], is_whole: bool) -> bool {
        let said = self.first_message(row);
        said.inspect(|&message| self.to.send_to(vertex, message, is_whole, touched)).is_some()
    }
}

impl<P: StepProgram> Sender for PullFirstCaching<'_, P> {
    type State = P::State;
    type Sent = (u32, u32);
    type Sink = (FirstMessages, CachedRowsWriter);

    fn send(&self, vertex: u32, state: &P::State, degree: u32) -> Option<(u32, u32)> {
        self.0.send(vertex, state, degree)
    }

    #[inline]
    fn push(
        &self,
        (touched, writer): &mut Self::Sink,
        window: &[u32],
        row: Range<usize>,
        _: &[f64],
        (vertex, degree): (u32, u32),
    ) -> Result<()> {
        let is_whole = row.len() == degree as usize;
        let row = &window[row];
        if !self.0.look(touched, vertex, row, is_whole) {
            writer.push(vertex, row, is_whole);
        }
        Ok(())
    }
}

/// The set of active vertices: a bit for each vertex.
pub(super) struct ActiveBits(Buffer);

impl ActiveBits {
    pub fn new(job: &Job, vertices: u64) -> Result<ActiveBits> {
        let bytes = vertices.div_ceil(64) as usize * 8;
        Ok(ActiveBits(Buffer::zeroed(job.budget(), bytes, "active vertices")?))
    }

    pub fn set(&mut self, vertex: u32) {
        self.0.typed_mut::<u64>()[vertex as usize / 64] |= 1 << (vertex % 64);
    }

    /// Sets the bits of a list of vertices of a graph with `vertices` vertices.
    pub fn set_all(&mut self, job: &Job, list: &Frontier, vertices: u64) -> Result<()> {
        let mut reader = list.reader(job, vertices)?;
        while let Some(vertex) = reader.next()? {
            self.set(vertex);
        }
        Ok(())
    }

    pub fn clear_all(&mut self) {
        self.0.typed_mut::<u64>().fill(0);
    }

    pub fn clear(&mut self, vertex: u32) {
        self.0.typed_mut::<u64>()[vertex as usize / 64] &= !(1 << (vertex % 64));
    }

    pub(super) fn get(&self) -> ActiveView<'_> {
        ActiveView(self.0.typed::<u64>())
    }
}

/// A read-only view of [`ActiveBits`].
#[derive(Clone, Copy)]
pub(super) struct ActiveView<'a>(&'a [u64]);

impl ActiveView<'_> {
    #[inline(always)]
    pub fn has(&self, vertex: u32) -> bool {
        self.0[vertex as usize / 64] >> (vertex % 64) & 1 == 1
    }
}

/// If the given vertices are more than all vertices divided by this number, their edges are counted in a sample.
const MANY_SHARE: u64 = 64;
/// A sample takes every n-th range of vertices, where n is this number.
const SAMPLED_SHARE: u32 = 8;
/// The number of vertices in a range: about as many as the index pages have that a cursor holds in memory.
const SAMPLED_VERTICES: u32 = 64 << 10;

/// Estimates the number of edges of these vertices. For many vertices a sample suffices, since reading the whole index
/// would take longer than a better choice saves.
pub(super) fn edges_of(job: &Job, rows: &Csr, vertices: &Frontier) -> Result<u64> {
    let are_many = vertices.count().is_none_or(|count| count > rows.vertices / MANY_SHARE);
    let share = if are_many { SAMPLED_SHARE } else { 1 };
    let mut index = IndexCursor::new(job, rows)?;
    let (mut count, mut asked, mut edges) = (0u64, 0u64, 0u64);
    let mut reader = vertices.reader(job, rows.vertices)?;
    while let Some(vertex) = reader.next()? {
        count += 1;
        if (vertex / SAMPLED_VERTICES).is_multiple_of(share) {
            asked += 1;
            edges += u64::from(index.find(vertex)?.1);
        }
    }
    Ok((u128::from(edges) * u128::from(count) / u128::from(asked.max(1))) as u64)
}

impl<S: State> Engine<S> {
    /// Runs a superstep in which each waiting vertex scans its row for the first `active` vertex. Rows without an
    /// active vertex are cached for the next superstep if the choice has memory for them.
    pub(super) fn pull_first<P: StepProgram<State = S>>(
        &mut self,
        program: &P,
        rows: &Csr,
        active: &Frontier,
        choice: &Choice,
    ) -> Result<SuperstepOutcome> {
        let mut active_bits = self.active_bits.take().expect("bits, where vertices pull");
        active_bits.set_all(&self.job, active, self.vertices)?;
        let done = match self.accumulators.take() {
            None => {
                let pull = PullFirst { program, active: active_bits.get(), to: Sorting(program) };
                let operation = ReduceOperation(program.clone());
                let (updates, _) = self.exchange_as(&pull, operation, &[rows], &Frontier::All, choice)?;
                self.apply(program, updates, true, None)?
            }
            Some(mut accumulators) => {
                let (direct, touched) = accumulators.open(program);
                let pull = PullFirst { program, active: active_bits.get(), to: direct };
                let touched = match choice.step {
                    Step::PullCached => self.pull_cached(&pull, touched)?,
                    _ => self.pull_rows(pull, touched, rows, choice.unvisited_bytes)?,
                };
                self.finalize_accumulators(program, accumulators, touched, true, None)?
            }
        };
        active_bits.clear_all();
        self.active_bits = Some(active_bits);
        Ok(done)
    }

    /// Scans the rows of all waiting vertices. Caches the rows without an active vertex, if all of these rows fit in
    /// `room_bytes`.
    fn pull_rows<P: StepProgram<State = S>>(
        &mut self,
        pull: PullFirst<'_, P, AccumulatorSender<'_, P>>,
        touched: Vec<FirstMessages>,
        incoming: &Csr,
        room_bytes: Option<u64>,
    ) -> Result<Vec<FirstMessages>> {
        let Some(bytes) = room_bytes else {
            return Ok(self.send(&pull, &[incoming], &Frontier::All, touched)?.0);
        };
        let room = CacheSpace::new(self.job.budget(), bytes)?;
        let sinks = touched.into_iter().map(|touched| (touched, room.writer())).collect();
        let (sinks, _) = self.send(&PullFirstCaching(pull), &[incoming], &Frontier::All, sinks)?;
        let (touched, writer): (_, Vec<_>) = sinks.into_iter().unzip();
        self.cached = CachedRows::of(writer);
        Ok(touched)
    }

    /// Scans the cached rows, and keeps the rows that still have no active vertex.
    fn pull_cached<P: StepProgram<State = S>>(
        &mut self,
        pull: &PullFirst<'_, P, AccumulatorSender<'_, P>>,
        touched: Vec<FirstMessages>,
    ) -> Result<Vec<FirstMessages>> {
        let mut cached = self.begin_cached()?;
        let mut sinks: Vec<_> = touched.into_iter().map(|touched| (touched, 0)).collect();
        cached.retain(&mut sinks, |(touched, edges), vertex, row, is_whole| {
            // A vertex was reached in this superstep or an earlier one if its accumulator holds a message.
            let waits = pull.to.message_of(vertex) == P::NOTHING;
            *edges += if waits { row.len() as u64 } else { 0 };
            waits && !pull.look(touched, vertex, row, is_whole)
        });
        Ok(self.end_cached(cached, sinks))
    }

    /// Begins a superstep over the cached rows.
    pub(super) fn begin_cached(&mut self) -> Result<CachedRows> {
        let cached = self.cached.take().expect("rows that were kept");
        self.begin_superstep(cached.edges());
        self.job.check_cancelled()?;
        Ok(cached)
    }

    /// Ends the superstep, and returns the workers' lists of vertices that got a message. `sinks` also has the number
    /// of edges that each worker scanned.
    pub(super) fn end_cached(
        &mut self,
        cached: CachedRows,
        sinks: Vec<(FirstMessages, u64)>,
    ) -> Vec<FirstMessages> {
        self.cached = Some(cached);
        let edges = sinks.iter().map(|(_, edges)| edges).sum();
        self.facts.edges_walked += edges;
        self.job.progress().add(edges);
        sinks.into_iter().map(|(touched, _)| touched).collect()
    }
}
