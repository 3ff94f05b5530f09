//! The second half of a superstep, which computes new states and the next frontier.

use std::sync::Mutex;

use inshore_sortreduce::Strategy;

use super::{
    Engine, Frontier, FrontierBuilder, KeyLog, State, StepProgram,
    direct::{Accumulators, FirstMessages},
    state::StateCursor,
};
use crate::{Result, sequencer::Sequencer};

/// The number of vertices that one thread finalizes per step.
const FINALIZED_VERTICES: usize = 16 << 10;

/// The outcome of a superstep.
pub(crate) struct SuperstepOutcome {
    /// The next frontier. It is empty if frontiers are not collected. With [`super::FrontierCollection::WhenFew`], it
    /// has all vertices until collection begins.
    pub active: Frontier,
    /// The sum of [`StepProgram::change`] over the finalized vertices.
    pub change: u64,
    /// Estimated number of edges of active vertices.
    pub edges: u64,
    /// The number of edges of active vertices, if they were counted for the choice.
    pub edges_counted: Option<u64>,
}

impl SuperstepOutcome {
    pub(super) fn new(active: Frontier, change: u64) -> SuperstepOutcome {
        SuperstepOutcome { active, change, edges: 0, edges_counted: None }
    }
}

impl<S: State> Engine<S> {
    /// Finalizes a superstep whose messages are in accumulators.
    pub(super) fn finalize_accumulators<P: StepProgram<State = S>>(
        &mut self,
        program: &P,
        accumulators: Accumulators,
        touched: Vec<FirstMessages>,
        collect: bool,
        log: Option<&mut KeyLog>,
    ) -> Result<SuperstepOutcome> {
        let are_all = P::EVERY_VERTEX || Accumulators::is_crowded(&touched);
        self.finalize_some(program, accumulators, touched, are_all, collect, log)
    }

    /// Finalizes all vertices, or only those in the workers' lists.
    pub(super) fn finalize_some<P: StepProgram<State = S>>(
        &mut self,
        program: &P,
        mut accumulators: Accumulators,
        touched: Vec<FirstMessages>,
        are_all: bool,
        collect: bool,
        log: Option<&mut KeyLog>,
    ) -> Result<SuperstepOutcome> {
        self.used(Strategy::Dense);
        let step = if are_all && self.state.in_memory().is_some() {
            self.finalize_all(program, accumulators.all(), collect, log)?
        } else {
            let mut finalizing = Finalizer::new(self, program, collect, log)?;
            let mut finalize_accumulators = |vertex, cell: &mut P::Message| -> Result<()> {
                *cell = program.kept(&finalizing.vertex(vertex, *cell)?);
                Ok(())
            };
            if are_all {
                let with_message =
                    |(_, cell): &(u32, &mut P::Message)| P::EVERY_VERTEX || **cell != P::NOTHING;
                (0..)
                    .zip(accumulators.all())
                    .filter(with_message)
                    .try_for_each(|(vertex, cell)| finalize_accumulators(vertex, cell))?;
            } else {
                accumulators.listed(&touched, finalize_accumulators)?;
            }
            finalizing.finish()?
        };
        accumulators.close(touched);
        self.accumulators = Some(accumulators);
        Ok(step)
    }

    /// Finalizes all vertices, or all that got a message, by several threads. States must be in memory. Each thread
    /// takes parts of the vertices, and appends its active vertices in the order of parts.
    fn finalize_all<P: StepProgram<State = S>>(
        &mut self,
        program: &P,
        accumulators: &mut [P::Message],
        collect: bool,
        log: Option<&mut KeyLog>,
    ) -> Result<SuperstepOutcome> {
        let active = FrontierBuilder::new(&self.job, self.layout.frontier_keys);
        let states = self.state.in_memory().expect("states in memory");
        let parts = states.chunks_mut(FINALIZED_VERTICES).zip(accumulators.chunks_mut(FINALIZED_VERTICES));
        let parts = Mutex::new(parts.enumerate());
        let sequencer = Sequencer::new((active, log, 0u64));
        let job = &self.job;
        let work = || -> Result<()> {
            // The list's memory is not reserved: the list takes the memory of the edge phase's lists of rows, which
            // were dropped.
            let mut active = Vec::new();
            loop {
                job.check_cancelled()?;
                let next = parts.lock().expect("no panic under this lock").next();
                let Some((number, (states, accumulators))) = next else { return Ok(()) };
                let first = (number * FINALIZED_VERTICES) as u32;
                let mut change = 0;
                for (vertex, (state, cell)) in (first..).zip(states.iter_mut().zip(accumulators)) {
                    if P::EVERY_VERTEX || *cell != P::NOTHING {
                        let new = program.finalize(vertex, *cell, state);
                        change += program.change(&new, state);
                        if collect && program.is_active(vertex, &new, state) {
                            active.push(vertex);
                        }
                        *state = new;
                        *cell = program.kept(&new);
                    }
                }
                let Some(mut turn) = sequencer.wait(number) else { return Ok(()) };
                let (all_active, log, all_change) = &mut turn.value;
                for vertex in active.drain(..) {
                    all_active.push(vertex)?;
                    if let Some(log) = log {
                        log.push(vertex)?;
                    }
                }
                *all_change += change;
                sequencer.next(turn);
            }
        };
        std::thread::scope(|scope| -> Result<()> {
            let others = (1..self.layout.workers).map(|_| scope.spawn(|| sequencer.guard(work)));
            let others: Vec<_> = others.collect();
            let mine = sequencer.guard(work);
            let theirs = others.into_iter().map(|thread| thread.join().expect("a worker does not panic"));
            theirs.fold(mine, |result, other| result.and(other))
        })?;
        let (active, _, change) = sequencer.into_value();
        Ok(SuperstepOutcome::new(active.finish()?, change))
    }
}

/// Computes the new states of vertices, and collects the next frontier.
pub(super) struct Finalizer<'a, 'l, P: StepProgram> {
    program: &'a P,
    state: StateCursor<'a, P::State>,
    active: FrontierBuilder,
    collect: bool,
    log: Option<&'l mut KeyLog>,
    change: u64,
}

impl<'a, 'l, P: StepProgram> Finalizer<'a, 'l, P> {
    pub fn new(
        engine: &'a mut Engine<P::State>,
        program: &'a P,
        collect: bool,
        log: Option<&'l mut KeyLog>,
    ) -> Result<Self> {
        let active = FrontierBuilder::new(&engine.job, engine.layout.frontier_keys);
        Ok(Finalizer { program, state: engine.state.cursor(), active, collect, log, change: 0 })
    }

    /// Finalizes a vertex and returns the new state.
    #[inline]
    pub fn vertex(&mut self, vertex: u32, message: P::Message) -> Result<P::State> {
        let old = *self.state.get(vertex)?;
        let new = self.program.finalize(vertex, message, &old);
        self.state.replace(vertex, &old, new)?;
        self.change += self.program.change(&new, &old);
        if self.collect && self.program.is_active(vertex, &new, &old) {
            self.active.push(vertex)?;
            if let Some(log) = &mut self.log {
                log.push(vertex)?;
            }
        }
        Ok(new)
    }

    pub fn finish(self) -> Result<SuperstepOutcome> {
        Ok(SuperstepOutcome::new(self.active.finish()?, self.change))
    }
}
