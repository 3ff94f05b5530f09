//! Bottom-up supersteps for sums: each waiting vertex sums the messages of active vertices in its row.
//!
//! A sum needs the messages of all active vertices in a row, while a search ([`super::pull_first`]) stops at the first.
//! Pulling is nevertheless faster than pushing if waiting vertices do not have many more edges than active ones. A pull
//! tests the active set, whose bits are in a near cache, and loads only the messages of active vertices. A push does a
//! compare-and-swap that misses the cache for each edge.

use std::ops::Range;

use super::{
    Choice, Engine, Frontier, KeyLog, Sender, State, Step, StepProgram, SuperstepOutcome,
    cached::{CacheSpace, CachedRows, CachedRowsWriter},
    direct::{AccumulatorSender, Accumulators, FirstMessages},
    pull_first::{ActiveBits, ActiveView},
};
use crate::{Result, csr::Csr};

/// Sends the sum of the messages of active vertices in a row to the vertex that owns the row.
struct PullAll<'a, P: StepProgram> {
    active: ActiveView<'a>,
    direct: AccumulatorSender<'a, P>,
}

/// Buffers and results of a worker for its current rows.
struct PullBuffers<M> {
    touched: FirstMessages,
    /// The message of each vertex in the window, up to the last row that was passed to `look`.
    messages: Vec<M>,
    /// Offsets of active vertices in the window. There is room for the offsets of all vertices in the window.
    places: Vec<u32>,
    /// Collects the rows without an active vertex, if they are to be cached.
    writer: Option<CachedRowsWriter>,
}

/// Accumulators are prefetched this number of active vertices ahead.
const AHEAD: usize = 64;

impl<P: StepProgram> Sender for PullAll<'_, P> {
    type State = P::State;
    /// The vertex that owns the row, and its degree.
    type Sent = (u32, u32);
    type Sink = PullBuffers<P::Message>;
    const LOOKS: bool = true;

    fn send(&self, vertex: u32, state: &P::State, degree: u32) -> Option<(u32, u32)> {
        self.direct.program().waits(vertex, state).then_some((vertex, degree))
    }

    /// Processes several rows together without branches, since a processor can predict neither active vertices nor ends
    /// of rows.
    fn look(&self, buffers: &mut PullBuffers<P::Message>, window: &[u32], rows: Range<usize>) {
        let PullBuffers { messages, places, .. } = buffers;
        if messages.len() < window.len() {
            messages.resize(window.len(), P::NOTHING);
            places.resize(window.len(), 0);
        }
        messages[rows.clone()].fill(P::NOTHING);
        let (mut count, places) = (0, &mut places[..rows.len()]);
        for (place, &vertex) in (rows.start as u32..).zip(&window[rows]) {
            places[count] = place;
            count += usize::from(self.active.has(vertex));
        }
        let places = &places[..count];
        for (at, &place) in places.iter().enumerate() {
            if let Some(&ahead) = places.get(at + AHEAD) {
                self.direct.ask_for(window[ahead as usize]);
            }
            messages[place as usize] = self.direct.message_of(window[place as usize]);
        }
    }

    #[inline]
    fn push(
        &self,
        buffers: &mut PullBuffers<P::Message>,
        window: &[u32],
        row: Range<usize>,
        _: &[f64],
        (vertex, degree): (u32, u32),
    ) -> Result<()> {
        let is_whole = row.len() == degree as usize;
        let messages = buffers.messages[row.clone()].iter();
        let sum = messages.fold(P::NOTHING, |a, &b| self.direct.program().reduce_at(vertex, a, b));
        match &mut buffers.writer {
            Some(writer) if sum == P::NOTHING => writer.push(vertex, &window[row], is_whole),
            // If this part is not the whole row, other workers may have other parts of the row.
            _ => self.direct.send_to(vertex, sum, is_whole, &mut buffers.touched),
        }
        Ok(())
    }
}

impl<P: StepProgram> PullAll<'_, P> {
    /// Sums the messages of the active vertices in a row.
    fn sum(&self, to: u32, row: &[u32]) -> P::Message {
        let active = row.iter().filter(|&&vertex| self.active.has(vertex));
        active.fold(P::NOTHING, |sum, &vertex| {
            self.direct.program().reduce_at(to, sum, self.direct.message_of(vertex))
        })
    }
}

impl<S: State> Engine<S> {
    /// Runs a superstep in which each of the `waiting` vertices sums the messages of the `active` vertices in its row.
    /// If the choice has memory for cached rows, rows without an active vertex are cached for the next supersteps.
    pub(super) fn pull_all<P: StepProgram<State = S>>(
        &mut self,
        program: &P,
        rows: &Csr,
        [active, waiting]: [&Frontier; 2],
        choice: &Choice,
        collect: bool,
        log: Option<&mut KeyLog>,
    ) -> Result<SuperstepOutcome> {
        let mut active_bits = self.active_bits.take().expect("bits, where vertices pull");
        let mut accumulators = self.accumulators.take().expect("accumulators, where vertices pull");
        let touched = accumulators.open(program).1;
        {
            let messages = accumulators.all::<P::Message>();
            let mut states = self.state.cursor();
            let mut reader = active.reader(&self.job, self.vertices)?;
            while let Some(vertex) = reader.next()? {
                if let Some(message) = program.edge_program(vertex, states.get(vertex)?, 0) {
                    messages[vertex as usize] = message;
                    active_bits.set(vertex);
                }
            }
        }
        let pull = PullAll { active: active_bits.get(), direct: accumulators.direct(program) };
        let touched = match choice.step {
            Step::PullCached => self.pull_all_cached(&pull, touched)?,
            _ => self.pull_all_rows(&pull, touched, rows, waiting, choice.unvisited_bytes)?,
        };
        // If all accumulators are scanned afterwards, the accumulators of active vertices need not be cleared here.
        // They change nothing, and the scan clears them.
        let are_all = Accumulators::is_crowded(&touched) || accumulators.are_many(active.count());
        if !are_all {
            let messages = accumulators.all::<P::Message>();
            let mut reader = active.reader(&self.job, self.vertices)?;
            while let Some(vertex) = reader.next()? {
                messages[vertex as usize] = P::NOTHING;
            }
        }
        self.clear_active_bits(active_bits, active, are_all)?;
        self.finalize_some(program, accumulators, touched, are_all, collect, log)
    }

    /// Clears the bits of the `active` vertices, or all bits, and returns the set to the engine.
    fn clear_active_bits(
        &mut self,
        mut active_bits: ActiveBits,
        active: &Frontier,
        are_all: bool,
    ) -> Result<()> {
        if are_all {
            active_bits.clear_all();
        } else {
            let mut reader = active.reader(&self.job, self.vertices)?;
            while let Some(vertex) = reader.next()? {
                active_bits.clear(vertex);
            }
        }
        self.active_bits = Some(active_bits);
        Ok(())
    }

    fn pull_all_rows<P: StepProgram<State = S>>(
        &mut self,
        pull: &PullAll<'_, P>,
        touched: Vec<FirstMessages>,
        rows: &Csr,
        waiting: &Frontier,
        room_bytes: Option<u64>,
    ) -> Result<Vec<FirstMessages>> {
        let room = room_bytes.map(|bytes| CacheSpace::new(self.job.budget(), bytes)).transpose()?;
        let buffers = touched.into_iter().map(|touched| PullBuffers {
            touched,
            messages: Vec::new(),
            places: Vec::new(),
            writer: room.as_ref().map(CacheSpace::writer),
        });
        let (sinks, _) = self.send(pull, &[rows], waiting, buffers.collect())?;
        let (touched, writer): (_, Vec<_>) =
            sinks.into_iter().map(|buffers| (buffers.touched, buffers.writer)).unzip();
        if room.is_some() {
            self.cached = CachedRows::of(writer.into_iter().flatten());
        }
        Ok(touched)
    }

    /// Pulls along the cached rows of waiting vertices.
    fn pull_all_cached<P: StepProgram<State = S>>(
        &mut self,
        pull: &PullAll<'_, P>,
        touched: Vec<FirstMessages>,
    ) -> Result<Vec<FirstMessages>> {
        let mut cached = self.begin_cached()?;
        let states = &*self.state.in_memory().expect("rows are kept where states are in memory");
        let mut sinks: Vec<_> = touched.into_iter().map(|touched| (touched, 0)).collect();
        cached.retain(&mut sinks, |(touched, edges), vertex, row, is_whole| {
            if pull.direct.program().waits(vertex, &states[vertex as usize]) {
                *edges += row.len() as u64;
                pull.direct.send_to(vertex, pull.sum(vertex, row), is_whole, touched);
            }
            // All rows are kept, since a vertex that is reached now sends along its row on the reverse pass.
            true
        });
        Ok(self.end_cached(cached, sinks))
    }

    /// Runs a superstep in which `active` vertices send along their rows, all of which are cached.
    pub(super) fn push_cached<P: StepProgram<State = S>>(
        &mut self,
        program: &P,
        active: &Frontier,
    ) -> Result<SuperstepOutcome> {
        let mut active_bits = self.active_bits.take().expect("bits, where rows were kept");
        let mut accumulators = self.accumulators.take().expect("accumulators, where vertices pull");
        active_bits.set_all(&self.job, active, self.vertices)?;
        let (direct, touched) = accumulators.open(program);
        let mut cached = self.begin_cached()?;
        let (active_view, states) =
            (active_bits.get(), &*self.state.in_memory().expect("as where rows were kept"));
        let mut sinks: Vec<_> = touched.into_iter().map(|touched| (touched, 0)).collect();
        cached.retain(&mut sinks, |(touched, edges), vertex, row, _| {
            let is_active = active_view.has(vertex);
            let send = || direct.program().edge_program(vertex, &states[vertex as usize], row.len() as u32);
            if let Some(message) = is_active.then(send).flatten() {
                *edges += row.len() as u64;
                row.iter().for_each(|&to| direct.combine(to, message, touched));
            }
            true
        });
        let touched = self.end_cached(cached, sinks);
        self.clear_active_bits(active_bits, active, false)?;
        self.finalize_accumulators(program, accumulators, touched, false, None)
    }
}
