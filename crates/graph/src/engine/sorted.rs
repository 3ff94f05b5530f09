//! Combines updates by sort-reduce, if accumulators do not fit in memory. Sort-reduce turns a stream of messages into a
//! sorted stream with one message per vertex.

use std::ops::Range;

use inshore_sortreduce::{Config, Operation, Sink, SortReduce, Sorted, Strategy, smallest_memory_bytes};

use super::{
    Choice, Engine, Frontier, KeyLog, ReduceOperation, Sender, State, Step, StepProgram, SuperstepOutcome,
    finalize::Finalizer,
};
use crate::{Regime, Result, Tuning, csr::Csr};

/// Rows of at most this length are pushed edge by edge.
const SHORT_ROW: usize = 64;

/// Sends messages into sort-reduce.
pub(super) struct Sorting<'a, P>(pub &'a P);

impl<P: StepProgram> Sender for Sorting<'_, P> {
    type State = P::State;
    type Sent = P::Message;
    type Sink = Sink<ReduceOperation<P>>;
    const READS_WEIGHTS: bool = P::WEIGHTED;

    fn send(&self, vertex: u32, state: &P::State, degree: u32) -> Option<P::Message> {
        self.0.edge_program(vertex, state, degree)
    }

    fn aggregate(&self, vertex: u32, state: &P::State, degree: u32) -> u64 {
        self.0.aggregate(vertex, state, degree)
    }

    #[inline]
    fn push(
        &self,
        sink: &mut Sink<ReduceOperation<P>>,
        window: &[u32],
        row: Range<usize>,
        weights: &[f64],
        message: P::Message,
    ) -> Result<()> {
        let targets = &window[row.clone()];
        if !P::WEIGHTED {
            return Ok(sink.push_all(targets, message)?);
        }
        let weights = &weights[row];
        if targets.len() > SHORT_ROW {
            return Ok(
                sink.push_many(targets, |place| self.0.along(targets[place], message, weights[place]))?
            );
        }
        for (&target, &weight) in targets.iter().zip(weights) {
            sink.push(target, self.0.along(target, message, weight))?;
        }
        Ok(())
    }
}

fn sort_config<O: Operation>(vertices: u64, sinks: usize, memory_bytes: u64, tuning: &Tuning) -> Config {
    // The external regime forces merging, since the dense strategy keeps an array of updates in memory.
    let external = (tuning.regime == Some(Regime::External)).then_some(Strategy::Merge);
    Config {
        // Only keys of 32 bits are vertices. A wider key consists of a vertex and a second number, and has no known
        // range.
        key_range: (size_of::<O::Key>() == size_of::<u32>()).then_some(vertices),
        memory_bytes,
        sinks,
        strategy: tuning.strategy.or(external),
        chunk_bytes: tuning.chunk_bytes,
        name: "updates",
        ..Config::default()
    }
}

impl<S: State> Engine<S> {
    /// Runs the first half of a superstep through sort-reduce: sends messages from the `active` vertices along the
    /// edges of each of `rows`. Returns the reduced messages, in the order of keys, and the sum of
    /// [`Sender::aggregate`].
    pub fn exchange<O: Operation, P: Sender<State = S, Sink = Sink<O>>>(
        &mut self,
        sender: &P,
        operation: O,
        rows: &[&Csr],
        active: &Frontier,
    ) -> Result<(Sorted<O>, u64)> {
        self.exchange_as(sender, operation, rows, active, &Choice::first(self.layout))
    }

    /// Does what [`Engine::exchange`] does, for a step that was chosen before.
    pub(super) fn exchange_as<O: Operation, P: Sender<State = S, Sink = Sink<O>>>(
        &mut self,
        sender: &P,
        operation: O,
        rows: &[&Csr],
        active: &Frontier,
        choice: &Choice,
    ) -> Result<(Sorted<O>, u64)> {
        let layout = self.layout;
        let mut config =
            sort_config::<O>(self.vertices, layout.workers, layout.sort_bytes, &self.facts.tuning);
        // If keys are vertices, each edge sends one record at most, which limits the number of records.
        if config.key_range.is_some() {
            let edges = rows.iter().map(|rows| rows.entries).sum();
            config.records_max = Some(edges);
            // A pull sends one message per row with an active vertex. A push sends one message per edge of the active
            // vertices, which are assumed to have an average number of edges.
            let share = active.count().map_or(1.0, |count| count as f64 / self.vertices as f64);
            config.expected_records = (choice.step == Step::Push).then_some((edges as f64 * share) as u64);
        }
        // If another strategy is forced, its memory is not reduced, since the strategy needs a minimum of its own.
        if matches!(config.strategy, None | Some(Strategy::Merge))
            && let Some(edges) = self.pools.few_edges(&self.job, rows, active)?
        {
            let record_bytes = size_of::<O::Key>() + size_of::<O::Value>();
            config.memory_bytes =
                config.memory_bytes.min(smallest_memory_bytes(layout.workers, record_bytes));
            config.expected_records = Some(edges);
        }
        let sorter = SortReduce::new(&self.job, operation, &config)?;
        self.used(sorter.strategy());
        self.report_way(choice, Some(sorter.strategy()));
        let mut sinks = Vec::with_capacity(layout.workers);
        for _ in 0..layout.workers {
            sinks.push(sorter.sink()?);
        }
        let (sinks, aggregate) = self.send(sender, rows, active, sinks)?;
        for sink in sinks {
            sink.finish()?;
        }
        Ok((sorter.finish()?, aggregate))
    }

    pub(super) fn apply<P: StepProgram<State = S>>(
        &mut self,
        program: &P,
        mut updates: Sorted<ReduceOperation<P>>,
        collect: bool,
        log: Option<&mut KeyLog>,
    ) -> Result<SuperstepOutcome> {
        let vertices = self.vertices;
        let mut finalizing = Finalizer::new(self, program, collect, log)?;
        let mut next = 0;
        while let Some(block) = updates.next_block()? {
            for (&vertex, &message) in block.keys.iter().zip(block.values) {
                if P::EVERY_VERTEX {
                    while next < vertex {
                        finalizing.vertex(next, P::NOTHING)?;
                        next += 1;
                    }
                    next += 1;
                }
                finalizing.vertex(vertex, message)?;
            }
        }
        if P::EVERY_VERTEX {
            for vertex in next as u64..vertices {
                finalizing.vertex(vertex as u32, P::NOTHING)?;
            }
        }
        finalizing.finish()
    }
}
