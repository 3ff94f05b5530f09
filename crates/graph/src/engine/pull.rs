//! A superstep of all vertices the other way: each vertex looks at what the sources of its in-edges have to say.
//!
//! Messages lie in memory, one for each vertex with out-edges, in the order of [`Ranks`], so that those which most edges
//! ask for lie together in the cache. Reading them needs no atomic operation, misses of the cache overlap, and each state
//! is written once, in order. A random access beyond the cache is what a superstep in memory costs: this saves most of them.

use inshore_sortreduce::Strategy;
use inshore_store::Job;

use super::{Engine, Message, State, VertexProgram, chunks};
use crate::{
    Result,
    csr::{self, Csr, Degrees, Rows, parallel_parts, parallel_ranges},
    ranks::Ranks,
};

/// Windows of in-edges that each worker has at most, one of them in use.
const BUFFERS_MAX: u64 = 8;

/// The edges of a graph as [`Engine::pull`] wants them.
pub(crate) struct PullEdges {
    /// Out-edges, of which only the number is asked.
    out: Csr,
    /// In-edges, in the job's scratch, with the ranks of their sources.
    incoming: Csr,
    ranks: Ranks,
}

impl PullEdges {
    /// At the price of one sort of all edges.
    pub fn new(job: &Job, out: &Csr) -> Result<PullEdges> {
        let ranks = Ranks::new(job, out, csr::scan_threads(job))?;
        let mut incoming = csr::transpose_to_scratch(job, out, Some(&ranks))?;
        incoming.entry_range = ranks.len();
        Ok(PullEdges { out: out.unweighted(), incoming, ranks })
    }
}

impl<S: State> Engine<S> {
    /// Whether there is room for [`Engine::pull`].
    pub fn can_pull(&self) -> bool {
        self.cells.is_some() && self.layout.state_in_memory && self.buffers() >= 2
    }

    /// Windows for each worker in what the edge phase would take.
    fn buffers(&self) -> u64 {
        let layout = &self.layout;
        let each = chunks::memory_bytes(layout.workers, layout.window_bytes, false) / layout.workers as u64;
        (each.saturating_sub(csr::CURSOR_BYTES) / csr::WINDOW_BYTES as u64).min(BUFFERS_MAX)
    }

    /// As [`Engine::superstep`] with all vertices active, for a program that finalizes all. Gives the sum of
    /// [`VertexProgram::change`].
    pub fn pull<P: VertexProgram<State = S>>(&mut self, program: &mut P, edges: &PullEdges) -> Result<u64> {
        let PullEdges { out, incoming, ranks } = edges;
        assert!(P::EVERY_VERTEX && !P::WEIGHTED, "all vertices, and no weights");
        self.used(Strategy::Dense);
        self.begin_superstep(incoming.entries);
        self.edges_traversed += incoming.entries;
        let buffers = self.buffers() as usize;
        let (job, vertices, workers) = (&self.job, self.vertices, self.layout.workers);
        let states = self.state.in_memory().expect("checked by the caller");
        let messages = self.cells.as_mut().expect("checked by the caller").unused::<P::Message>();

        let sums = parallel_ranges(vertices, vec![0; workers], |sum, range| {
            job.check_cancelled()?;
            let mut degrees = Degrees::new(job, out)?;
            let mut ranks = ranks.from(range.start);
            let states = &states[range.start as usize..range.end as usize];
            for (vertex, state) in (range.start as u32..).zip(states) {
                let degree = degrees.of(vertex)?;
                *sum += program.gather(state, degree);
                if let Some(rank) = ranks.next(degree) {
                    let sent = program.edge_program(vertex, state, degree).unwrap_or(P::NOTHING);
                    sent.store(&messages[rank as usize]);
                }
            }
            Ok(())
        })?;
        program.gathered(sums.into_iter().sum());

        let program = &*program;
        let changes = parallel_parts(states, vec![0; workers], |change, range, states| {
            let rows = Rows::deep(job, incoming, range.clone(), buffers)?;
            let (mut states, mut edges) = (states.iter_mut(), 0);
            let add = |received: P::Message, row: &[u32]| {
                edges += row.len() as u64;
                let messages = row.iter().map(|&source| P::Message::load(&messages[source as usize]));
                messages.fold(received, |a, b| program.reduce(a, b))
            };
            rows.fold(range, P::NOTHING, add, |vertex, received| {
                let state = states.next().expect("a state for each vertex");
                let new = program.finalize(vertex, received, state);
                *change += program.change(&new, state);
                *state = new;
                Ok(())
            })?;
            job.progress().add(edges);
            Ok(())
        })?;
        Ok(changes.into_iter().sum())
    }
}
