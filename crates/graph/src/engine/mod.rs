//! The superstep engine: runs a vertex program over edges on flash in constant memory (2018 thesis, section 9.4,
//! algorithm 3).
//!
//! ```text
//!   active vertices ──► index ──► edges ──► edge_program ──► sort-reduce ──► finalize ──► state
//!         ▲                (read in batches, in order)          (reduce)         │
//!         └──────────────────────────── is_active ◄─────────────────────────────┘
//! ```
//!
//! Everything moves in the order of vertices: the list of active vertices is sorted because the reduced updates
//! are, so index, edges and state are all read forwards, and nothing is ever looked up at random. What needs random
//! access, adding an update to its destination, is what sort-reduce turns into a sorted stream.
//!
//! The budget decides what lies where ([`Layout`]): vertex state in memory where it fits beside the array of
//! updates, on flash otherwise; updates in an array (`dense`) where that fits, through sorted runs (`merge`)
//! otherwise.
//!
//! Cost of one superstep with all vertices active, V vertices and E edges: 4 E bytes of edges and 4 V of index
//! read; with state on flash 2 x state read and 1 x written; with `merge` about a third of 12 E written and read
//! again (Kronecker graphs at 64 MiB, PageRank).

mod chunks;
mod frontier;
mod state;

use inshore_sortreduce::{Config, Operation, Sink, SortReduce, Sorted, Strategy, Value, choose};
use inshore_store::Job;

pub(crate) use chunks::Sender;
pub(crate) use frontier::{Frontier, FrontierBuilder, KeyLog};
pub(crate) use state::{State, StateCursor, VertexArray, flash_memory_bytes, memory_bytes};

use crate::{Result, Summary, Tuning, csr::Csr};

/// What an algorithm does at one vertex: the thesis' four functions, one for weights, and three small ones for sums over vertices.
pub(crate) trait VertexProgram: Clone + Send + Sync + 'static {
    /// What is kept of each vertex.
    type State: State;
    /// What an edge carries.
    type Message: Value;

    /// Whether `finalize` runs for every vertex in each superstep, with a default message where none arrived.
    const EVERY_VERTEX: bool = false;

    /// Whether the weights of edges matter: whether [`VertexProgram::along`] is called.
    const WEIGHTED: bool = false;

    /// What an active vertex sends along each of its edges; `None` sends nothing.
    fn edge_program(&self, vertex: u32, state: &Self::State, degree: u32) -> Option<Self::Message>;

    /// What arrives at the end of an edge of this weight.
    fn along(&self, message: Self::Message, _weight: f64) -> Self::Message {
        message
    }

    /// Combines two messages to one vertex; associative and commutative.
    fn reduce(&self, a: Self::Message, b: Self::Message) -> Self::Message;

    /// The new state of a vertex.
    fn finalize(&self, vertex: u32, message: Self::Message, state: &Self::State) -> Self::State;

    /// Whether a vertex with this new and old state takes part in the next superstep.
    fn is_active(&self, new: &Self::State, old: &Self::State) -> bool;

    /// What an active vertex adds to the sum that `gathered` is given.
    fn gather(&self, _state: &Self::State, _degree: u32) -> u64 {
        0
    }

    /// Called between the edges and `finalize` with the sum of `gather` over all active vertices.
    fn gathered(&mut self, _sum: u64) {}

    /// What a vertex adds to [`Step::change`].
    fn change(&self, _new: &Self::State, _old: &Self::State) -> u64 {
        0
    }
}

/// The operation of sort-reduce that a program's `reduce` is.
#[derive(Clone)]
pub(crate) struct Reduce<P>(P);

impl<P: VertexProgram> Operation for Reduce<P> {
    type Key = u32;
    type Value = P::Message;
    fn combine(&self, a: P::Message, b: P::Message) -> P::Message {
        self.0.reduce(a, b)
    }
}

/// Rows as short as this are pushed edge by edge.
const SHORT_ROW: usize = 64;

impl<P: VertexProgram> Sender for P {
    type State = P::State;
    type Sent = P::Message;
    type Operation = Reduce<P>;
    const READS_WEIGHTS: bool = P::WEIGHTED;

    fn send(&self, vertex: u32, state: &P::State, degree: u32) -> Option<P::Message> {
        self.edge_program(vertex, state, degree)
    }

    fn add_up(&self, state: &P::State, degree: u32) -> u64 {
        self.gather(state, degree)
    }

    #[inline]
    fn push(
        &self,
        sink: &mut Sink<Reduce<P>>,
        targets: &[u32],
        weights: &[f64],
        message: P::Message,
    ) -> Result<()> {
        if !P::WEIGHTED {
            sink.push_all(targets, message)?;
        } else if targets.len() > SHORT_ROW {
            sink.push_many(targets, |place| self.along(message, weights[place]))?;
        } else {
            for (&target, &weight) in targets.iter().zip(weights) {
                sink.push(target, self.along(message, weight))?;
            }
        }
        Ok(())
    }
}

/// What one superstep did.
pub(crate) struct Step {
    /// The vertices that are active next; empty unless collected.
    pub active: Frontier,
    /// The sum of [`VertexProgram::change`].
    pub change: u64,
}

/// What lies where in the budget.
#[derive(Clone, Copy, Debug)]
struct Layout {
    workers: usize,
    /// The unit in which edges are read.
    window_bytes: usize,
    state_in_memory: bool,
    /// What sort-reduce may use.
    sort_bytes: u64,
}

impl Layout {
    /// `kept_bytes` stay free for what the algorithm itself keeps.
    fn new<S: Sender>(job: &Job, vertices: u64, tuning: &Tuning, kept_bytes: u64) -> Layout {
        let free = job.budget().free_bytes().saturating_sub(kept_bytes);
        let (workers, window_bytes) = chunks::workers(job.budget().threads(), free, S::READS_WEIGHTS);
        let fixed = chunks::memory_bytes(workers, window_bytes, S::READS_WEIGHTS) + frontier::MEMORY_BYTES;
        let state_bytes = state::memory_bytes::<S::State>(vertices);
        let with_flash = free.saturating_sub(fixed + state::flash_memory_bytes::<S::State>(vertices));
        let with_memory = free.saturating_sub(fixed + state_bytes);
        let value_bytes = size_of::<<S::Operation as Operation>::Value>();
        let strategy = |sort_bytes| {
            choose(&sort_config::<S::Operation>(vertices, workers, sort_bytes, tuning), value_bytes)
        };
        // State in memory pays where updates still fit in memory beside it, or where it is small.
        let state_in_memory = free > fixed + state_bytes
            && (strategy(with_memory) == Strategy::Dense || state_bytes <= with_flash / 4);
        let sort_bytes = if state_in_memory { with_memory } else { with_flash };
        Layout { workers, window_bytes, state_in_memory, sort_bytes }
    }
}

fn sort_config<O: Operation>(vertices: u64, sinks: usize, memory_bytes: u64, tuning: &Tuning) -> Config {
    Config {
        // Wider keys are a vertex and something else.
        key_range: (size_of::<O::Key>() == size_of::<u32>()).then_some(vertices),
        memory_bytes,
        sinks,
        strategy: tuning.strategy,
        chunk_bytes: tuning.chunk_bytes,
        name: "updates",
        ..Config::default()
    }
}

/// Vertex state and the means to run supersteps over it.
pub(crate) struct Engine<S: State> {
    job: Job,
    vertices: u64,
    state: VertexArray<S>,
    tuning: Tuning,
    layout: Layout,
    supersteps: u32,
    edges_traversed: u64,
    strategies: Vec<Strategy>,
}

impl<S: State> Engine<S> {
    /// Lays out the budget for the program `P` and gives every vertex its first state. `kept_bytes` of the budget
    /// stay free for the caller.
    pub fn new<P: Sender<State = S>>(
        job: &Job,
        vertices: u64,
        tuning: &Tuning,
        kept_bytes: u64,
        initial: impl Fn(u32) -> S,
    ) -> Result<Engine<S>> {
        let layout = Layout::new::<P>(job, vertices, tuning, kept_bytes);
        tracing::debug!(?layout, "engine");
        let state = VertexArray::new(job, vertices, layout.state_in_memory, initial)?;
        Ok(Engine {
            job: job.clone(),
            vertices,
            state,
            tuning: *tuning,
            layout,
            supersteps: 0,
            edges_traversed: 0,
            strategies: Vec::new(),
        })
    }

    /// Sends messages from the `active` vertices along the edges of each of `rows`, and finalizes who got one (or
    /// everyone). The next active vertices are collected if `collect` says so, and logged in `log`.
    pub fn superstep<P: VertexProgram<State = S>>(
        &mut self,
        program: &mut P,
        rows: &[&Csr],
        active: &Frontier,
        collect: bool,
        log: Option<&mut KeyLog>,
    ) -> Result<Step> {
        let operation = Reduce(program.clone());
        let (updates, gathered) = self.exchange(program, operation, rows, active)?;
        program.gathered(gathered);
        self.apply(program, updates, collect, log)
    }

    /// The first half of a superstep: sends from the `active` vertices along the edges of each of `rows`. Gives what
    /// arrived, in the order of keys, and the sum of [`Sender::add_up`].
    pub fn exchange<P: Sender<State = S>>(
        &mut self,
        sender: &P,
        operation: P::Operation,
        rows: &[&Csr],
        active: &Frontier,
    ) -> Result<(Sorted<P::Operation>, u64)> {
        self.supersteps += 1;
        let layout = self.layout;
        let config =
            sort_config::<P::Operation>(self.vertices, layout.workers, layout.sort_bytes, &self.tuning);
        let sorter = SortReduce::new(&self.job, operation, &config)?;
        if !self.strategies.contains(&sorter.strategy()) {
            self.strategies.push(sorter.strategy());
        }
        let entries = rows.iter().map(|rows| rows.entries).sum();
        let phase = format!("superstep {}", self.supersteps);
        self.job.start_phase(phase, "edges", if active.is_all() { entries } else { 0 });
        let mut gathered = 0;
        let mut sinks = Vec::with_capacity(layout.workers);
        for _ in 0..layout.workers {
            sinks.push(sorter.sink()?);
        }
        for rows in rows {
            let sent =
                chunks::send(&self.job, sender, rows, active, &mut self.state, layout.window_bytes, sinks)?;
            sinks = sent.sinks;
            gathered += sent.gathered;
            self.edges_traversed += sent.edges;
        }
        for sink in sinks {
            sink.finish()?;
        }
        Ok((sorter.finish()?, gathered))
    }

    fn apply<P: VertexProgram<State = S>>(
        &mut self,
        program: &P,
        mut updates: Sorted<Reduce<P>>,
        collect: bool,
        mut log: Option<&mut KeyLog>,
    ) -> Result<Step> {
        let mut state = self.state.cursor()?;
        let mut active = FrontierBuilder::new(&self.job)?;
        let mut change = 0;
        let mut finalize = |vertex: u32, message: P::Message| -> Result<()> {
            let place = state.get_mut(vertex)?;
            let old = *place;
            let new = program.finalize(vertex, message, &old);
            *place = new;
            change += program.change(&new, &old);
            if collect && program.is_active(&new, &old) {
                active.push(vertex)?;
                if let Some(log) = &mut log {
                    log.push(vertex)?;
                }
            }
            Ok(())
        };
        let mut next = 0;
        while let Some(block) = updates.next_block()? {
            for (&vertex, &message) in block.keys.iter().zip(block.values) {
                if P::EVERY_VERTEX {
                    while next < vertex {
                        finalize(next, P::Message::default())?;
                        next += 1;
                    }
                    next += 1;
                }
                finalize(vertex, message)?;
            }
        }
        if P::EVERY_VERTEX {
            for vertex in next as u64..self.vertices {
                finalize(vertex as u32, P::Message::default())?;
            }
        }
        state.finish()?;
        Ok(Step { active: active.finish()?, change })
    }

    /// Changes the state of every vertex, in order.
    pub fn for_each(&mut self, mut change: impl FnMut(u32, &mut S) -> Result<()>) -> Result<()> {
        let mut state = self.state.cursor()?;
        for vertex in 0..self.vertices {
            change(vertex as u32, state.get_mut(vertex as u32)?)?;
        }
        state.finish()
    }

    /// The states, to be read and changed in the order of vertices.
    pub fn cursor(&mut self) -> Result<StateCursor<'_, S>> {
        self.state.cursor()
    }

    /// Changes the state of one vertex.
    pub fn set(&mut self, vertex: u32, change: impl FnOnce(&mut S)) -> Result<()> {
        let mut state = self.state.cursor()?;
        change(state.get_mut(vertex)?);
        state.finish()
    }

    /// What is to be said of the run.
    pub fn summary(&self) -> Summary {
        let has = |strategy| self.strategies.contains(&strategy);
        let has_merge = has(Strategy::Merge) || has(Strategy::HashFirst);
        let strategy = match (has(Strategy::Dense), has(Strategy::Partition), has_merge) {
            (true, true, true) => "dense, partition and merge",
            (true, true, false) => "dense and partition",
            (true, false, true) => "dense and merge",
            (true, false, false) => "dense",
            (false, true, true) => "partition and merge",
            (false, true, false) => "partition",
            (false, false, _) => "merge",
        };
        Summary {
            supersteps: self.supersteps,
            edges_traversed: self.edges_traversed,
            state: if self.layout.state_in_memory { "memory" } else { "flash" },
            strategy,
            ..Summary::default()
        }
    }

    /// The states, to be streamed in order.
    pub fn into_stream(self) -> Result<StateStream<S>> {
        StateStream::new(self.vertices, self.state)
    }
}

/// Streams the final states in the order of vertices.
pub(crate) struct StateStream<S: State> {
    vertices: u64,
    next: u64,
    reader: state::StateReader<S>,
}

impl<S: State> StateStream<S> {
    pub fn new(vertices: u64, states: VertexArray<S>) -> Result<StateStream<S>> {
        Ok(StateStream { vertices, next: 0, reader: states.into_reader()? })
    }

    /// The number of the next vertex.
    pub fn position(&self) -> u32 {
        self.next as u32
    }

    /// The next states, at most `count`; empty at the end.
    pub fn take(&mut self, count: usize) -> Result<Vec<S>> {
        let count = count.min((self.vertices - self.next) as usize);
        let mut states = Vec::with_capacity(count);
        for _ in 0..count {
            states.push(*self.reader.get(self.next as u32)?);
            self.next += 1;
        }
        Ok(states)
    }

    /// Walks over all states; the stream begins again afterwards.
    pub fn for_each(&mut self, mut each: impl FnMut(u32, &S) -> Result<()>) -> Result<()> {
        for vertex in 0..self.vertices {
            each(vertex as u32, self.reader.get(vertex as u32)?)?;
        }
        Ok(())
    }
}
