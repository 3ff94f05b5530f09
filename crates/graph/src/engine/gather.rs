//! A superstep the other way, for sums: each vertex that waits adds up what active vertices at the other ends of its edges say.
//!
//! A sum needs all of them, where a search ([`super::back`]) stops at the first. It pays all the same where waiting vertices have
//! not many more edges than active ones: what an active vertex says is read, by no more than a load, and only where it is
//! active (of which the bits lie in a near cache), where a message sent is a compare-and-swap far away.

use std::ops::Range;

use super::{
    Engine, Frontier, KeyLog, Marks, Sender, State, Step, VertexProgram,
    back::Marked,
    direct::{Direct, Touched},
};
use crate::{Result, csr::Csr};

/// A program whose vertices can add up what others say instead of getting it.
pub(crate) trait Gathers: VertexProgram {
    /// Whether a vertex with this state wants messages; no active vertex does.
    fn waits(&self, state: &Self::State) -> bool;
}

/// Sends the sum of what the active vertices of a row say to the vertex whose row it is.
struct Gather<'a, P: VertexProgram> {
    active: Marked<'a>,
    direct: Direct<'a, P>,
}

/// What a worker found in the present rows.
struct Looked<M> {
    touched: Touched,
    /// What each vertex in the window says, as far as rows reach.
    said: Vec<M>,
    /// Places of the active ones, and room for as many as there could be.
    places: Vec<u32>,
}

/// Active vertices ahead of the present one whose cells are asked for.
const AHEAD: usize = 24;

impl<P: Gathers> Sender for Gather<'_, P> {
    type State = P::State;
    /// The vertex and its degree.
    type Sent = (u32, u32);
    type Sink = Looked<P::Message>;
    const LOOKS: bool = true;

    fn send(&self, vertex: u32, state: &P::State, degree: u32) -> Option<(u32, u32)> {
        self.direct.program().waits(state).then_some((vertex, degree))
    }

    /// Which vertices are active, and where rows end, cannot be foreseen: rows are looked at together, without branches.
    fn look(&self, looked: &mut Looked<P::Message>, window: &[u32], rows: Range<usize>) {
        let Looked { said, places, .. } = looked;
        if said.len() < window.len() {
            said.resize(window.len(), P::NOTHING);
            places.resize(window.len(), 0);
        }
        said[rows.clone()].fill(P::NOTHING);
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
            said[place as usize] = self.direct.said_by(window[place as usize]);
        }
    }

    #[inline]
    fn push(
        &self,
        looked: &mut Looked<P::Message>,
        _: &[u32],
        row: Range<usize>,
        _: &[f64],
        (vertex, degree): (u32, u32),
    ) -> Result<()> {
        let is_whole = row.len() == degree as usize;
        let said = looked.said[row].iter();
        let sum = said.fold(P::NOTHING, |a, &b| self.direct.program().reduce(a, b));
        match is_whole {
            true => self.direct.put(vertex, sum, &mut looked.touched),
            // Its parts may be several workers'.
            false => self.direct.combine(vertex, sum, &mut looked.touched),
        }
        Ok(())
    }
}

impl<S: State> Engine<S> {
    /// Whether vertices can gather: whether what the active ones say fits in memory.
    pub fn can_gather(&self) -> bool {
        self.cells.is_some()
    }

    /// As [`Engine::superstep`], but the `waiting` vertices look along `rows` for `active` ones. `marks` are clear before and
    /// after.
    pub fn gather_step<P: Gathers<State = S>>(
        &mut self,
        program: &mut P,
        marks: &mut Marks,
        rows: &Csr,
        [active, waiting]: [&Frontier; 2],
        collect: bool,
        log: Option<&mut KeyLog>,
    ) -> Result<Step> {
        let mut cells = self.cells.take().expect("cells, where vertices gather");
        let touched = cells.open(program).1;
        {
            let said = cells.all::<P::Message>();
            let mut states = self.state.cursor();
            let mut reader = active.reader(&self.job, self.vertices)?;
            while let Some(vertex) = reader.next()? {
                if let Some(message) = program.edge_program(vertex, states.get(vertex)?, 0) {
                    said[vertex as usize] = message;
                    marks.set(vertex);
                }
            }
        }
        self.goes("gathered along edges, from an array in memory");
        let gather = Gather { active: marks.get(), direct: cells.direct(program) };
        let looked = |touched| Looked { touched, said: Vec::new(), places: Vec::new() };
        let sinks = touched.into_iter().map(looked).collect();
        let (sinks, _) = self.send(&gather, &[rows], waiting, sinks)?;
        let touched = sinks.into_iter().map(|looked| looked.touched).collect();
        let said = cells.all::<P::Message>();
        let mut reader = active.reader(&self.job, self.vertices)?;
        while let Some(vertex) = reader.next()? {
            said[vertex as usize] = P::NOTHING;
            marks.clear(vertex);
        }
        self.settle(program, cells, touched, collect, log)
    }
}
