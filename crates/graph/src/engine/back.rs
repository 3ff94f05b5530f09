//! A superstep the other way, for searches: each vertex that waits looks along its in-edges for one that is active, and stops
//! at the first (Beamer, Asanović and Patterson, "Direction-optimizing breadth-first search", 2012).
//!
//! Where most vertices are reached from the present ones, most edges lead to vertices that were reached already. Looking
//! back reads the rows of the others only, and sends one message to a vertex where as many would arrive as it has edges.

use std::ops::Range;

use inshore_store::{Budget, Buffer, Job, taken_bytes};

use super::{
    Engine, Frontier, Reduce, Sender, Sorting, State, Step, VertexProgram,
    direct::{Direct, Touched},
    left::{Leaving, Left},
};
use crate::{
    Result,
    csr::{self, Csr, IndexCursor},
};

/// A program whose vertices can look for a message instead of getting it.
pub(crate) trait LooksBack: VertexProgram {
    /// Whether a vertex with this state wants a message.
    fn waits(&self, state: &Self::State) -> bool;

    /// What an active vertex has to say. Of two the one of the smaller number is what they reduce to.
    fn said_by(&self, vertex: u32) -> Self::Message;
}

/// A sender that can also send to one vertex.
pub(super) trait Deliver: Sender {
    type Message;

    /// `is_only`: nobody else delivers to this vertex.
    fn deliver(
        &self,
        sink: &mut Self::Sink,
        vertex: u32,
        message: Self::Message,
        is_only: bool,
    ) -> Result<()>;
}

impl<P: VertexProgram> Deliver for Sorting<'_, P> {
    type Message = P::Message;

    #[inline]
    fn deliver(&self, sink: &mut Self::Sink, vertex: u32, message: P::Message, _: bool) -> Result<()> {
        Ok(sink.push(vertex, message)?)
    }
}

impl<P: VertexProgram> Deliver for Direct<'_, P> {
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

/// Sends what the first active vertex of a row says to the vertex whose row it is.
struct Back<'a, P, T> {
    program: &'a P,
    active: Marked<'a>,
    to: T,
}

impl<P: LooksBack, T> Back<'_, P, T> {
    /// What the first active vertex of a row says. Rows are in ascending order; the parts of a long one come one by one.
    #[inline]
    fn said_along(&self, row: &[u32]) -> Option<P::Message> {
        let source = row.iter().find(|&&source| self.active.has(source));
        source.map(|&source| self.program.said_by(source))
    }
}

impl<P, T> Sender for Back<'_, P, T>
where
    P: LooksBack,
    T: Deliver<State = P::State, Message = P::Message>,
{
    type State = P::State;
    /// The vertex and its degree.
    type Sent = (u32, u32);
    type Sink = T::Sink;

    fn send(&self, vertex: u32, state: &P::State, degree: u32) -> Option<(u32, u32)> {
        self.program.waits(state).then_some((vertex, degree))
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
        match self.said_along(&window[row]) {
            Some(message) => self.to.deliver(sink, vertex, message, is_whole),
            None => Ok(()),
        }
    }
}

/// The same, and keeps the rows of the others.
struct Keeping<'a, P: LooksBack>(Back<'a, P, Direct<'a, P>>);

impl<P: LooksBack> Back<'_, P, Direct<'_, P>> {
    /// Whether a vertex got a message along its row.
    #[inline]
    fn look(&self, touched: &mut Touched, vertex: u32, row: &[u32], is_whole: bool) -> bool {
        let said = self.said_along(row);
        said.inspect(|&message| self.to.send_to(vertex, message, is_whole, touched)).is_some()
    }
}

impl<P: LooksBack> Sender for Keeping<'_, P> {
    type State = P::State;
    type Sent = (u32, u32);
    type Sink = (Touched, Leaving);

    fn send(&self, vertex: u32, state: &P::State, degree: u32) -> Option<(u32, u32)> {
        self.0.send(vertex, state, degree)
    }

    #[inline]
    fn push(
        &self,
        (touched, leaving): &mut Self::Sink,
        window: &[u32],
        row: Range<usize>,
        _: &[f64],
        (vertex, degree): (u32, u32),
    ) -> Result<()> {
        let is_whole = row.len() == degree as usize;
        let row = &window[row];
        if !self.0.look(touched, vertex, row, is_whole) {
            leaving.push(vertex, row, is_whole);
        }
        Ok(())
    }
}

/// Who is active: a bit for each vertex.
pub(crate) struct Marks(Buffer);

impl Marks {
    /// Memory that they and [`edges_of`] take; `None` where that is too much of the budget.
    pub fn bytes(budget: &Budget, vertices: u64) -> Option<u64> {
        let bytes = taken_bytes(vertices.div_ceil(64) as usize * 8) as u64;
        (bytes <= budget.memory_bytes() / BUDGET_SHARE).then_some(bytes + csr::CURSOR_BYTES)
    }

    pub fn new(job: &Job, vertices: u64) -> Result<Marks> {
        let bytes = vertices.div_ceil(64) as usize * 8;
        Ok(Marks(Buffer::zeroed(job.budget(), bytes, "active vertices")?))
    }

    pub fn set(&mut self, vertex: u32) {
        self.0.typed_mut::<u64>()[vertex as usize / 64] |= 1 << (vertex % 64);
    }

    pub fn clear_all(&mut self) {
        self.0.typed_mut::<u64>().fill(0);
    }

    pub fn clear(&mut self, vertex: u32) {
        self.0.typed_mut::<u64>()[vertex as usize / 64] &= !(1 << (vertex % 64));
    }

    pub(super) fn get(&self) -> Marked<'_> {
        Marked(self.0.typed::<u64>())
    }
}

/// [`Marks`] to be read.
#[derive(Clone, Copy)]
pub(super) struct Marked<'a>(&'a [u64]);

impl Marked<'_> {
    #[inline(always)]
    pub fn has(&self, vertex: u32) -> bool {
        self.0[vertex as usize / 64] >> (vertex % 64) & 1 == 1
    }
}

/// About how many edges these vertices have. Where vertices are many, those in a part of all ranges are asked: enough to choose
/// by, and reading the whole index takes longer than all else that is done to choose.
pub(crate) fn edges_of(job: &Job, rows: &Csr, vertices: &Frontier) -> Result<u64> {
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

/// Chooses between both ways, and knows who is active for the way back.
pub(crate) struct Direction {
    out: Csr,
    incoming: Csr,
    active: Marks,
    /// Edges out of vertices that were active, before rows were left.
    walked: u64,
    /// The rows of all vertices that wait, where they are in memory.
    left: Option<Left>,
}

/// Whether it pays is not asked where fewer vertices are active than this part of all.
const ASKED_SHARE: u64 = 4096;
/// More than this part of all vertices are many.
const MANY_SHARE: u64 = 64;
/// Of many vertices, those in one of so many ranges are asked for their edges.
const SAMPLED_SHARE: u32 = 8;
/// A range: what a cursor reads of the index at once has about as many.
const SAMPLED_VERTICES: u32 = 64 << 10;

/// Whether so few vertices are active that sending is right whatever their edges are.
pub(crate) fn are_few(active: &Frontier, vertices: u64) -> bool {
    active.count().is_some_and(|count| count < vertices / ASKED_SHARE)
}
/// An edge along which a message is sent costs as much as so many that are looked at: its cell is far away.
const SENT_COST: u64 = 2;
/// The bits of active vertices take this part of the budget at most.
const BUDGET_SHARE: u64 = 16;

impl Direction {
    /// Memory that it takes; `None` where that is too much of the budget.
    pub fn bytes(budget: &Budget, vertices: u64) -> Option<u64> {
        Marks::bytes(budget, vertices)
    }

    /// `walked`: edges out of vertices that were active in a search that is gone on with.
    pub fn new(job: &Job, out: &Csr, incoming: &Csr, walked: u64) -> Result<Direction> {
        let active = Marks::new(job, out.vertices)?;
        Ok(Direction { out: out.unweighted(), incoming: incoming.unweighted(), active, walked, left: None })
    }

    /// Edges out of vertices that were active.
    pub fn walked(&self) -> u64 {
        self.walked
    }

    /// Whether it pays to look back in the superstep in which these vertices are active.
    fn pays(&mut self, job: &Job, active: &Frontier) -> Result<bool> {
        if let Some(left) = &self.left {
            return Ok(left.is_less_than(active));
        }
        if active.is_all() || are_few(active, self.out.vertices) {
            return Ok(false);
        }
        let ahead = edges_of(job, &self.out, active)?;
        // About as many edges lead to vertices that wait as lead away from them.
        let waiting = self.out.entries.saturating_sub(self.walked + ahead);
        self.walked += ahead;
        tracing::debug!(ahead, waiting, "direction");
        Ok(ahead * SENT_COST > waiting)
    }

    fn set_active(&mut self, job: &Job, active: &Frontier) -> Result<()> {
        self.active.clear_all();
        let mut reader = active.reader(job, self.out.vertices)?;
        while let Some(vertex) = reader.next()? {
            self.active.set(vertex);
        }
        Ok(())
    }
}

impl<S: State> Engine<S> {
    /// As [`Engine::superstep`], in the direction that is quicker. What was looked along in vain stays in memory for the next superstep
    /// where it fits beside `kept_bytes`.
    pub fn search_step<P: LooksBack<State = S>>(
        &mut self,
        program: &mut P,
        direction: &mut Direction,
        active: &Frontier,
        kept_bytes: u64,
    ) -> Result<Step> {
        if !direction.pays(&self.job, active)? {
            return self.superstep(program, &[&direction.out], active, true, None);
        }
        direction.set_active(&self.job, active)?;
        let program = &*program;
        let Some(mut cells) = self.cells.take() else {
            let back = Back { program, active: direction.active.get(), to: Sorting(program) };
            let way = Some("looked for along in-edges, through sort-reduce");
            let operation = Reduce(program.clone());
            let (updates, _) =
                self.exchange_as(&back, operation, &[&direction.incoming], &Frontier::All, way)?;
            return self.apply(program, updates, true, None);
        };
        let (direct, touched) = cells.open(program);
        let back = Back { program, active: direction.active.get(), to: direct };
        let touched = match &mut direction.left {
            Some(left) => self.look_again(&back, touched, left)?,
            left @ None => self.look_back(back, touched, &direction.incoming, kept_bytes, left)?,
        };
        self.settle(program, cells, touched, true, None)
    }

    /// Looks along the rows of all vertices that wait, and keeps those in which nobody was found, if they fit beside `kept_bytes`.
    fn look_back<P: LooksBack<State = S>>(
        &mut self,
        back: Back<'_, P, Direct<'_, P>>,
        touched: Vec<Touched>,
        incoming: &Csr,
        kept_bytes: u64,
        left: &mut Option<Left>,
    ) -> Result<Vec<Touched>> {
        self.goes("looked for along in-edges, in an array in memory");
        let Some(room) = self.room_for_left(incoming.entries, kept_bytes)? else {
            return Ok(self.send(&back, &[incoming], &Frontier::All, touched)?.0);
        };
        let sinks = touched.into_iter().map(|touched| (touched, room.leaving())).collect();
        let (sinks, _) = self.send(&Keeping(back), &[incoming], &Frontier::All, sinks)?;
        let (touched, leaving): (_, Vec<_>) = sinks.into_iter().unzip();
        *left = Left::of(leaving);
        Ok(touched)
    }

    /// Looks along the rows that were kept, and keeps those in which nobody was found again.
    fn look_again<P: LooksBack<State = S>>(
        &mut self,
        back: &Back<'_, P, Direct<'_, P>>,
        touched: Vec<Touched>,
        left: &mut Left,
    ) -> Result<Vec<Touched>> {
        self.goes("looked for along in-edges that are in memory, in an array in memory");
        self.begin_superstep(left.edges());
        self.job.check_cancelled()?;
        let mut sinks: Vec<_> = touched.into_iter().map(|touched| (touched, 0)).collect();
        left.retain(&mut sinks, |(touched, edges), vertex, row, is_whole| {
            // Who was reached has something in its cell, of this superstep or as what it has seen.
            let waits = back.to.said_by(vertex) == P::NOTHING;
            *edges += if waits { row.len() as u64 } else { 0 };
            waits && !back.look(touched, vertex, row, is_whole)
        });
        Ok(self.looked_along(sinks))
    }

    /// The sinks of a superstep over rows that were kept, after the edges that each worker looked along were counted.
    pub(super) fn looked_along<K>(&mut self, sinks: Vec<(K, u64)>) -> Vec<K> {
        let edges = sinks.iter().map(|(_, edges)| edges).sum();
        self.edges_traversed += edges;
        self.job.progress().add(edges);
        sinks.into_iter().map(|(sink, _)| sink).collect()
    }
}
