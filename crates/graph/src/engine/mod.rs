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
//! The budget decides what lies where ([`Layout`]): updates in cells, one for each vertex, where these fit
//! (semi-external, [`direct`]), and through sort-reduce otherwise (external); vertex state in memory where it fits
//! beside them, on flash otherwise. Where all vertices are active in several supersteps, edges are cut into columns first,
//! and their updates combined a column at a time ([`columns`]). Some supersteps go the other way: vertices look along their edges for
//! who is active ([`back`], [`gather`]).
//!
//! Cost of one superstep with all vertices active, V vertices and E edges: up to 4 E bytes of edges (2.4 E in Kronecker graphs) and
//! 4 V of index read; with state on flash 2 x state read and 1 x written; with sort-reduce about a third of 12 E written and read
//! again (Kronecker graphs at 64 MiB, PageRank).

mod back;
mod chunks;
mod columns;
mod direct;
mod frontier;
mod gather;
mod left;
mod state;

use std::{ops::Range, sync::Mutex};

use inshore_sortreduce::{Config, Operation, Sink, SortReduce, Sorted, Strategy, smallest_memory_bytes};
use inshore_store::{Job, format_bytes};

pub(crate) use back::{Direction, LooksBack, Marks, are_few, edges_of};
pub(crate) use chunks::Sender;
pub(crate) use columns::{Asked, Columns};
pub(crate) use direct::Message;
use direct::{Cells, Touched};
pub(crate) use frontier::{Frontier, FrontierBuilder, KeyLog};
pub(crate) use gather::Gathers;
pub(crate) use left::Left;
use left::Room;
pub(crate) use state::{State, StateCursor, VertexArray, flash_memory_bytes, memory_bytes};

use crate::{
    Regime, Result, Summary, Tuning,
    checkpoint::{Checkpoints, Point},
    csr::Csr,
    turns::Turns,
};

/// What an algorithm does at one vertex: the thesis' four functions, one for weights, and three small ones for sums over vertices.
pub(crate) trait VertexProgram: Clone + Send + Sync + 'static {
    /// What is kept of each vertex.
    type State: State;
    /// What an edge carries.
    type Message: Message;

    /// What stands for no message: reduced with a message it gives that message.
    const NOTHING: Self::Message;

    /// Whether `finalize` runs for every vertex in each superstep, with [`VertexProgram::NOTHING`] where none arrived.
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

    /// Whether a message can still improve on what [`VertexProgram::kept`] gave: then each one that does counts as new.
    const CELLS_KEEP_STATE: bool = false;

    /// A message that a vertex with this state has seen already: every message that would change nothing is passed over
    /// where it meets this one. Nothing but supersteps may change states then.
    fn kept(&self, _state: &Self::State) -> Self::Message {
        Self::NOTHING
    }

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
struct Reduce<P>(P);

impl<P: VertexProgram> Operation for Reduce<P> {
    type Key = u32;
    type Value = P::Message;
    fn combine(&self, a: P::Message, b: P::Message) -> P::Message {
        self.0.reduce(a, b)
    }
}

/// Supersteps that a job's report tells one by one.
const PHASES_MAX: u32 = 64;

/// Memory that is left beside rows in memory, for logs, cursors and what comes after supersteps.
const BESIDE_HELD_BYTES: u64 = 4 << 20;
/// Vertices to which one thread gives new states at once.
const SETTLED_VERTICES: usize = 16 << 10;

/// Rows as short as this are pushed edge by edge.
const SHORT_ROW: usize = 64;

/// Sends into sort-reduce.
struct Sorting<'a, P>(&'a P);

impl<P: VertexProgram> Sender for Sorting<'_, P> {
    type State = P::State;
    type Sent = P::Message;
    type Sink = Sink<Reduce<P>>;
    const READS_WEIGHTS: bool = P::WEIGHTED;

    fn send(&self, vertex: u32, state: &P::State, degree: u32) -> Option<P::Message> {
        self.0.edge_program(vertex, state, degree)
    }

    fn add_up(&self, state: &P::State, degree: u32) -> u64 {
        self.0.gather(state, degree)
    }

    #[inline]
    fn push(
        &self,
        sink: &mut Sink<Reduce<P>>,
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
            return Ok(sink.push_many(targets, |place| self.0.along(message, weights[place]))?);
        }
        for (&target, &weight) in targets.iter().zip(weights) {
            sink.push(target, self.0.along(message, weight))?;
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
    /// Whether updates go into cells.
    is_direct: bool,
    /// Vertices of a frontier that are kept in memory.
    frontier_keys: usize,
    /// What sort-reduce may use, where updates go through it.
    sort_bytes: u64,
}

/// What an algorithm needs of the budget.
struct Needs {
    state_bytes: u64,
    /// With state on flash.
    flash_bytes: u64,
    /// Of cells by the number of workers; `None` where updates are more than a word for a vertex.
    cell_bytes: Option<fn(u64, usize) -> u64>,
    weighted: bool,
}

impl Needs {
    fn of<S: State>(vertices: u64, weighted: bool) -> Needs {
        Needs {
            state_bytes: state::memory_bytes::<S>(vertices),
            flash_bytes: state::flash_memory_bytes::<S>(vertices),
            cell_bytes: None,
            weighted,
        }
    }
}

/// The free memory with which all fits: windows and frontiers grow with it, and `others` takes the number of workers.
fn smallest_free(threads: usize, vertices: u64, weighted: bool, others: impl Fn(usize) -> u64) -> u64 {
    let mut free = 0;
    loop {
        let (workers, window_bytes) = chunks::workers(threads, free, weighted);
        let needed = chunks::memory_bytes(workers, window_bytes, weighted)
            + frontier::memory_bytes(frontier_keys(vertices, free))
            + others(workers);
        if needed <= free {
            return free;
        }
        free = needed;
    }
}

/// Keys of a frontier in memory: two lists of them, the one that is read and the one that is written, take a sixteenth.
fn frontier_keys(vertices: u64, free: u64) -> usize {
    (free / 16 / 8).min(vertices).max(frontier::MEMORY_KEYS as u64) as usize
}

impl Layout {
    /// `kept_bytes` stay free for what the algorithm itself keeps.
    fn new(job: &Job, vertices: u64, tuning: &Tuning, kept_bytes: u64, needs: &Needs) -> Result<Layout> {
        let free = job.budget().free_bytes().saturating_sub(kept_bytes);
        let (workers, window_bytes) = chunks::workers(job.budget().threads(), free, needs.weighted);
        let frontier_keys = frontier_keys(vertices, free);
        let fixed = chunks::memory_bytes(workers, window_bytes, needs.weighted)
            + frontier::memory_bytes(frontier_keys);
        let layout = |state_in_memory, is_direct, sort_bytes| Layout {
            workers,
            window_bytes,
            state_in_memory,
            is_direct,
            frontier_keys,
            sort_bytes,
        };
        if let Some(cell_bytes) = needs.cell_bytes.filter(|_| tuning.allows_dense()) {
            let cells = fixed + cell_bytes(vertices, workers);
            if cells + needs.state_bytes <= free {
                return Ok(layout(true, true, 0));
            }
            if cells + needs.flash_bytes <= free && tuning.regime.is_none() {
                return Ok(layout(false, true, 0));
            }
            if tuning.strategy.is_some() || tuning.regime.is_some() {
                let (what, given) = ("updates in memory".to_string(), job.budget().memory_bytes());
                let states = if tuning.regime.is_none() { needs.flash_bytes } else { needs.state_bytes };
                let others = |workers| cell_bytes(vertices, workers) + states;
                let smallest =
                    given - free + smallest_free(job.budget().threads(), vertices, needs.weighted, others);
                return Err(inshore_store::Error::BudgetTooSmall { what, given, smallest }.into());
            }
        }
        let with_flash = free.saturating_sub(fixed + needs.flash_bytes);
        // State in memory pays where it is small.
        let state_in_memory = needs.state_bytes <= with_flash / 4 && tuning.regime != Some(Regime::External);
        let sort_bytes =
            if state_in_memory { free.saturating_sub(fixed + needs.state_bytes) } else { with_flash };
        Ok(layout(state_in_memory, false, sort_bytes))
    }

    /// For `--explain`, before anything is done.
    fn plan(&self) -> String {
        let states = if self.state_in_memory { "in memory" } else { "on flash" };
        let updates = match self.is_direct {
            true => "in an array in memory".to_string(),
            false => format!("through sort-reduce in {}", format_bytes(self.sort_bytes)),
        };
        format!("vertex state {states}, updates {updates}, edges on flash")
    }
}

fn sort_config<O: Operation>(vertices: u64, sinks: usize, memory_bytes: u64, tuning: &Tuning) -> Config {
    // An array of updates would be in memory.
    let external = (tuning.regime == Some(Regime::External)).then_some(Strategy::Merge);
    Config {
        // Wider keys are a vertex and something else.
        key_range: (size_of::<O::Key>() == size_of::<u32>()).then_some(vertices),
        memory_bytes,
        sinks,
        strategy: tuning.strategy.or(external),
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
    cells: Option<Cells>,
    pools: chunks::Pools,
    supersteps: u32,
    supersteps_kept: Option<u32>,
    edges_traversed: u64,
    /// Those of the last superstep that had something to carry.
    edges_sent: u64,
    strategies: Vec<Strategy>,
    /// Whether a superstep went by columns.
    has_columns: bool,
    /// How the last superstep went, as it was told.
    way: &'static str,
    /// Whether rows lie in memory; `None` before that was decided.
    holding: Option<bool>,
}

impl<S: State> Engine<S> {
    /// Lays out the budget for the program `P` and gives every vertex its first state. `kept_bytes` of the budget
    /// stay free for the caller.
    pub fn new<P: VertexProgram<State = S>>(
        job: &Job,
        vertices: u64,
        tuning: &Tuning,
        kept_bytes: u64,
        initial: impl Fn(u32) -> S + Sync,
    ) -> Result<Engine<S>> {
        let needs = Needs {
            cell_bytes: Some(direct::memory_bytes::<P::Message>),
            ..Needs::of::<S>(vertices, P::WEIGHTED)
        };
        let layout = Layout::new(job, vertices, tuning, kept_bytes, &needs)?;
        job.progress().tell(|| layout.plan());
        let cells = match layout.is_direct {
            true => Some(Cells::new::<P::Message>(job.budget(), vertices, layout.workers)?),
            false => None,
        };
        Self::laid_out(job, vertices, tuning, layout, cells, initial)
    }

    /// For an algorithm that sends by [`Engine::exchange`] only.
    pub fn for_exchange(
        job: &Job,
        vertices: u64,
        tuning: &Tuning,
        kept_bytes: u64,
        initial: impl Fn(u32) -> S + Sync,
    ) -> Result<Engine<S>> {
        let layout = Layout::new(job, vertices, tuning, kept_bytes, &Needs::of::<S>(vertices, false))?;
        job.progress().tell(|| layout.plan());
        Self::laid_out(job, vertices, tuning, layout, None, initial)
    }

    fn laid_out(
        job: &Job,
        vertices: u64,
        tuning: &Tuning,
        layout: Layout,
        cells: Option<Cells>,
        initial: impl Fn(u32) -> S + Sync,
    ) -> Result<Engine<S>> {
        tracing::debug!(?layout, "engine");
        Ok(Engine {
            job: job.clone(),
            vertices,
            state: VertexArray::new(job, vertices, layout.state_in_memory, initial)?,
            tuning: *tuning,
            layout,
            cells,
            pools: chunks::Pools::new(layout.window_bytes),
            supersteps: 0,
            supersteps_kept: None,
            edges_traversed: 0,
            edges_sent: 0,
            strategies: Vec::new(),
            has_columns: false,
            way: "",
            holding: None,
        })
    }

    /// As [`Engine::hold`], once as many edges were walked along as the rows have: who comes that far may walk as far again.
    pub fn hold_if_walked(&mut self, rows: &mut [Csr], kept_bytes: u64) -> Result<()> {
        let entries: u64 = rows.iter().map(|rows| rows.entries).sum();
        let is_forced = self.tuning.regime == Some(Regime::Memory);
        if is_forced || self.edges_traversed >= entries {
            self.hold(rows, kept_bytes, is_forced)?;
        }
        Ok(())
    }

    /// Puts `rows` into memory where these and what supersteps need beside `kept_bytes` fit; where they do not, that is an
    /// error if it `is_forced`. It is tried once.
    fn hold(&mut self, rows: &mut [Csr], kept_bytes: u64, is_forced: bool) -> Result<()> {
        if self.holding.is_some() {
            return Ok(());
        }
        let weighted = rows.iter().any(|rows| rows.weights.is_some());
        let bytes: u64 = rows.iter().map(Csr::held_bytes).sum();
        let (budget, layout) = (self.job.budget(), &self.layout);
        let beside = self.beside_bytes(weighted, kept_bytes);
        let fits = bytes + beside <= budget.free_bytes();
        let is_roomy = layout.is_direct && layout.state_in_memory;
        if fits && is_roomy && self.tuning.regime != Some(Regime::SemiExternal) {
            match rows.iter().map(|rows| rows.hold(&self.job)).collect::<Result<Vec<_>>>() {
                Ok(held) => {
                    rows.clone_from_slice(&held);
                    self.holding = Some(true);
                    self.job.progress().tell(|| format!("edges in memory, {}", format_bytes(bytes)));
                    self.pools.forget_rows();
                    return Ok(());
                }
                Err(error) if is_forced || error.is_cancelled() => return Err(error),
                // What is damaged may never be needed.
                Err(error) => tracing::debug!(%error, "edges stay on flash"),
            }
        }
        self.holding = Some(false);
        if !is_forced {
            return Ok(());
        }
        let (what, given) = ("edges in memory".to_string(), budget.memory_bytes());
        let used = given - budget.free_bytes() + bytes;
        let others = used + kept_bytes + BESIDE_HELD_BYTES;
        let smallest = smallest_free(budget.threads(), self.vertices, weighted, |_| others);
        Err(inshore_store::Error::BudgetTooSmall { what, given, smallest }.into())
    }

    /// Room for the rows that are left in a superstep for the next one, where there is any and no edges are to stay on flash.
    fn room_for_left(&self, edges: u64, kept_bytes: u64) -> Result<Option<Room>> {
        if self.tuning.regime == Some(Regime::SemiExternal) {
            return Ok(None);
        }
        let budget = self.job.budget();
        Room::new(budget, budget.free_bytes().saturating_sub(self.beside_bytes(false, kept_bytes)), edges)
    }

    /// Memory that is left beside rows in memory.
    fn beside_bytes(&self, weighted: bool, kept_bytes: u64) -> u64 {
        let layout = &self.layout;
        let windows = chunks::memory_bytes(layout.workers, layout.window_bytes, weighted);
        // Those of supersteps before are there already, but for lists of their rows.
        let to_come = if self.pools.is_made() { windows / 4 } else { windows };
        to_come + frontier::memory_bytes(layout.frontier_keys) + kept_bytes + BESIDE_HELD_BYTES
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
        let Some(mut cells) = self.cells.take() else {
            let operation = Reduce(program.clone());
            let (updates, gathered) = self.exchange(&Sorting(program), operation, rows, active)?;
            program.gathered(gathered);
            return self.apply(program, updates, collect, log);
        };
        let (direct, touched) = cells.open(program);
        self.goes("combined in an array in memory");
        let (touched, gathered) = self.send(&direct, rows, active, touched)?;
        program.gathered(gathered);
        self.settle(program, cells, touched, collect, log)
    }

    /// The second half of a superstep in cells.
    fn settle<P: VertexProgram<State = S>>(
        &mut self,
        program: &P,
        cells: Cells,
        touched: Vec<Touched>,
        collect: bool,
        log: Option<&mut KeyLog>,
    ) -> Result<Step> {
        let are_all = P::EVERY_VERTEX || Cells::is_crowded(&touched);
        self.settle_some(program, cells, touched, are_all, collect, log)
    }

    /// The same, for all vertices or for those that are listed.
    fn settle_some<P: VertexProgram<State = S>>(
        &mut self,
        program: &P,
        mut cells: Cells,
        touched: Vec<Touched>,
        are_all: bool,
        collect: bool,
        log: Option<&mut KeyLog>,
    ) -> Result<Step> {
        self.used(Strategy::Dense);
        let step = if are_all && self.state.in_memory().is_some() {
            self.settle_all(program, cells.all(), collect, log)?
        } else {
            let mut finalizing = Finalizing::new(self, program, collect, log)?;
            let mut settle = |vertex, cell: &mut P::Message| -> Result<()> {
                *cell = program.kept(&finalizing.vertex(vertex, *cell)?);
                Ok(())
            };
            if are_all {
                let with_message =
                    |(_, cell): &(u32, &mut P::Message)| P::EVERY_VERTEX || **cell != P::NOTHING;
                (0..)
                    .zip(cells.all())
                    .filter(with_message)
                    .try_for_each(|(vertex, cell)| settle(vertex, cell))?;
            } else {
                cells.listed(&touched, settle)?;
            }
            finalizing.finish()?
        };
        cells.close(touched);
        self.cells = Some(cells);
        Ok(step)
    }

    /// Gives new states, which are in memory, to all vertices with a message, or to all, by all threads: each takes parts of
    /// them, and tells who is active in the order of parts.
    fn settle_all<P: VertexProgram<State = S>>(
        &mut self,
        program: &P,
        cells: &mut [P::Message],
        collect: bool,
        log: Option<&mut KeyLog>,
    ) -> Result<Step> {
        let active = FrontierBuilder::new(&self.job, self.layout.frontier_keys);
        let states = self.state.in_memory().expect("states in memory");
        let parts = states.chunks_mut(SETTLED_VERTICES).zip(cells.chunks_mut(SETTLED_VERTICES));
        let parts = Mutex::new(parts.enumerate());
        let turns = Turns::new((active, log, 0u64));
        let job = &self.job;
        let work = || -> Result<()> {
            // In the memory of rows, of which there are none now.
            let mut active = Vec::new();
            loop {
                job.check_cancelled()?;
                let next = parts.lock().expect("no panic under this lock").next();
                let Some((number, (states, cells))) = next else { return Ok(()) };
                let first = (number * SETTLED_VERTICES) as u32;
                let mut change = 0;
                for (vertex, (state, cell)) in (first..).zip(states.iter_mut().zip(cells)) {
                    if P::EVERY_VERTEX || *cell != P::NOTHING {
                        let new = program.finalize(vertex, *cell, state);
                        change += program.change(&new, state);
                        if collect && program.is_active(&new, state) {
                            active.push(vertex);
                        }
                        *state = new;
                        *cell = program.kept(&new);
                    }
                }
                let Some(mut turn) = turns.wait(number) else { return Ok(()) };
                let (all_active, log, all_change) = &mut turn.value;
                for vertex in active.drain(..) {
                    all_active.push(vertex)?;
                    if let Some(log) = log {
                        log.push(vertex)?;
                    }
                }
                *all_change += change;
                turns.next(turn);
            }
        };
        std::thread::scope(|scope| -> Result<()> {
            let others = (1..self.layout.workers).map(|_| scope.spawn(|| turns.guard(work)));
            let others: Vec<_> = others.collect();
            let mine = turns.guard(work);
            let theirs = others.into_iter().map(|thread| thread.join().expect("a worker does not panic"));
            theirs.fold(mine, |result, other| result.and(other))
        })?;
        let (active, _, change) = turns.into_value();
        Ok(Step { active: active.finish()?, change })
    }

    /// `edges` are those that it will walk along, 0 where that is not known.
    fn begin_superstep(&mut self, edges: u64) {
        self.supersteps += 1;
        // A deep search has ten thousands: a report has no room for all of them.
        let phase = match self.supersteps {
            number @ ..=PHASES_MAX => format!("superstep {number}"),
            _ => format!("supersteps after {PHASES_MAX}"),
        };
        self.job.start_phase(phase, "edges", edges);
    }

    /// Tells how the next superstep is going to go, where that is not how the one before went.
    fn goes(&mut self, way: &'static str) {
        if self.way != way {
            self.way = way;
            let number = self.supersteps + 1;
            self.job.progress().tell(|| format!("from superstep {number} on updates are {way}"));
        }
    }

    /// The edges of those that had something to send in the last superstep.
    pub fn edges_sent(&self) -> u64 {
        self.edges_sent
    }

    fn used(&mut self, strategy: Strategy) {
        if !self.strategies.contains(&strategy) {
            self.strategies.push(strategy);
        }
    }

    /// Sends from the `active` vertices along the edges of each of `rows` into `sinks`, one for each worker. Gives them
    /// back, and the sum of [`Sender::add_up`].
    fn send<P: Sender<State = S>>(
        &mut self,
        sender: &P,
        rows: &[&Csr],
        active: &Frontier,
        mut sinks: Vec<P::Sink>,
    ) -> Result<(Vec<P::Sink>, u64)> {
        let entries = rows.iter().map(|rows| rows.entries).sum();
        self.begin_superstep(if active.is_all() { entries } else { 0 });
        let mut gathered = 0;
        self.edges_sent = 0;
        for rows in rows {
            let state = &mut self.state;
            let sent = chunks::send(&self.job, sender, rows, active, state, &mut self.pools, sinks)?;
            sinks = sent.sinks;
            gathered += sent.gathered;
            self.edges_traversed += sent.edges;
            self.edges_sent += sent.edges;
        }
        Ok((sinks, gathered))
    }

    /// The first half of a superstep through sort-reduce: sends from the `active` vertices along the edges of each of
    /// `rows`. Gives what arrived, in the order of keys, and the sum of [`Sender::add_up`].
    pub fn exchange<O: Operation, P: Sender<State = S, Sink = Sink<O>>>(
        &mut self,
        sender: &P,
        operation: O,
        rows: &[&Csr],
        active: &Frontier,
    ) -> Result<(Sorted<O>, u64)> {
        self.exchange_as(sender, operation, rows, active, None)
    }

    /// As [`Engine::exchange`]; `way` is how this is told, where there is more to tell than how updates are combined.
    fn exchange_as<O: Operation, P: Sender<State = S, Sink = Sink<O>>>(
        &mut self,
        sender: &P,
        operation: O,
        rows: &[&Csr],
        active: &Frontier,
        way: Option<&'static str>,
    ) -> Result<(Sorted<O>, u64)> {
        let layout = self.layout;
        let mut config = sort_config::<O>(self.vertices, layout.workers, layout.sort_bytes, &self.tuning);
        // Where keys are vertices, each edge sends one record at most.
        if config.key_range.is_some() {
            let edges = rows.iter().map(|rows| rows.entries).sum();
            config.records_max = Some(edges);
            // Those who look back send where they find somebody. Others as many as vertices have on average, or all.
            let share = active.count().map_or(1.0, |count| count as f64 / self.vertices as f64);
            config.expected_records = way.is_none().then_some((edges as f64 * share) as u64);
        }
        // Other strategies have a smallest size of their own.
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
        self.goes(way.unwrap_or(match sorter.strategy() {
            Strategy::Dense => "combined in an array in memory",
            Strategy::Partition => "combined by ranges of vertices",
            Strategy::Merge | Strategy::HashFirst => "sorted and merged",
        }));
        let mut sinks = Vec::with_capacity(layout.workers);
        for _ in 0..layout.workers {
            sinks.push(sorter.sink()?);
        }
        let (sinks, gathered) = self.send(sender, rows, active, sinks)?;
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
        log: Option<&mut KeyLog>,
    ) -> Result<Step> {
        let vertices = self.vertices;
        let mut finalizing = Finalizing::new(self, program, collect, log)?;
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

    /// Goes on from the newest checkpoint, if there is one: who is active, and what the algorithm counted.
    pub fn take_up(&mut self, checkpoints: &Checkpoints) -> Result<Option<(Frontier, [u64; 2])>> {
        let keys = self.layout.frontier_keys;
        let point = checkpoints.take_up(&self.job, self.vertices, &mut self.state, keys)?;
        Ok(point.map(|point| self.taken_up(point)))
    }

    /// As [`Engine::take_up`], for an algorithm that keeps other states from checkpoint to checkpoint.
    pub fn take_up_of<T: State>(
        &mut self,
        checkpoints: &Checkpoints,
        states: &mut VertexArray<T>,
    ) -> Result<Option<(Frontier, [u64; 2])>> {
        let point = checkpoints.take_up(&self.job, self.vertices, states, self.layout.frontier_keys)?;
        Ok(point.map(|point| self.taken_up(point)))
    }

    fn taken_up(&mut self, point: Point) -> (Frontier, [u64; 2]) {
        (self.supersteps, self.edges_traversed) = (point.supersteps as u32, point.edges_traversed);
        self.supersteps_kept = Some(self.supersteps);
        (point.active, point.numbers)
    }

    /// Makes a checkpoint, if it is time to.
    pub fn save(
        &mut self,
        checkpoints: &mut Checkpoints,
        active: &Frontier,
        numbers: [u64; 2],
    ) -> Result<()> {
        let point = self.point(active, numbers);
        checkpoints.save(&self.job, self.vertices, &mut self.state, point)
    }

    fn point<'a>(&self, active: &'a Frontier, numbers: [u64; 2]) -> impl FnOnce() -> Point + use<'a, S> {
        let (supersteps, edges_traversed) = (self.supersteps.into(), self.edges_traversed);
        move || Point { active: active.clone(), supersteps, edges_traversed, numbers }
    }

    /// As [`Engine::save`], of other states.
    pub fn save_of<T: State>(
        &self,
        checkpoints: &mut Checkpoints,
        states: &mut VertexArray<T>,
        active: &Frontier,
        numbers: [u64; 2],
    ) -> Result<()> {
        let point = self.point(active, numbers);
        checkpoints.save(&self.job, self.vertices, states, point)
    }

    /// Changes the state of every vertex, in order.
    pub fn for_each(&mut self, mut change: impl FnMut(u32, &mut S) -> Result<()>) -> Result<()> {
        let mut state = self.state.cursor();
        for vertex in 0..self.vertices as u32 {
            let old = *state.get(vertex)?;
            let mut new = old;
            change(vertex, &mut new)?;
            state.replace(vertex, &old, new)?;
        }
        Ok(())
    }

    /// The states, to be read and changed in the order of vertices.
    pub fn cursor(&mut self) -> StateCursor<'_, S> {
        self.state.cursor()
    }

    /// Changes the state of one vertex.
    pub fn set(&mut self, vertex: u32, change: impl FnOnce(&mut S)) -> Result<()> {
        let mut state = self.state.cursor();
        change(state.get_mut(vertex)?);
        Ok(())
    }

    /// What is to be said of the run.
    pub fn summary(&self) -> Summary {
        let has = |strategy| self.strategies.contains(&strategy);
        let has_merge = has(Strategy::Merge) || has(Strategy::HashFirst);
        let ways = [
            (self.has_columns, "columns"),
            (has(Strategy::Dense), "dense"),
            (has(Strategy::Partition), "partition"),
            (has_merge, "merge"),
        ];
        let used: Vec<_> = ways.into_iter().filter(|(is_used, _)| *is_used).map(|(_, name)| name).collect();
        let strategy = match used[..] {
            // Nothing was left to do.
            [] if self.cells.is_some() => "dense".to_string(),
            [] => "merge".to_string(),
            _ => used.join(" and "),
        };
        Summary {
            supersteps: self.supersteps,
            supersteps_kept: self.supersteps_kept,
            edges_traversed: self.edges_traversed,
            state: if self.layout.state_in_memory { "memory" } else { "flash" },
            edges_held: self.holding == Some(true),
            strategy,
            ..Summary::default()
        }
    }

    /// The states, to be streamed in order.
    pub fn into_stream(self) -> Result<StateStream<S>> {
        StateStream::new(self.vertices, self.state)
    }
}

/// The second half of a superstep: new states, and who is active next.
struct Finalizing<'a, 'l, P: VertexProgram> {
    program: &'a P,
    state: StateCursor<'a, P::State>,
    active: FrontierBuilder,
    collect: bool,
    log: Option<&'l mut KeyLog>,
    change: u64,
}

impl<'a, 'l, P: VertexProgram> Finalizing<'a, 'l, P> {
    fn new(
        engine: &'a mut Engine<P::State>,
        program: &'a P,
        collect: bool,
        log: Option<&'l mut KeyLog>,
    ) -> Result<Self> {
        let active = FrontierBuilder::new(&engine.job, engine.layout.frontier_keys);
        Ok(Finalizing { program, state: engine.state.cursor(), active, collect, log, change: 0 })
    }

    /// Gives the new state.
    #[inline]
    fn vertex(&mut self, vertex: u32, message: P::Message) -> Result<P::State> {
        let old = *self.state.get(vertex)?;
        let new = self.program.finalize(vertex, message, &old);
        self.state.replace(vertex, &old, new)?;
        self.change += self.program.change(&new, &old);
        if self.collect && self.program.is_active(&new, &old) {
            self.active.push(vertex)?;
            if let Some(log) = &mut self.log {
                log.push(vertex)?;
            }
        }
        Ok(new)
    }

    fn finish(self) -> Result<Step> {
        Ok(Step { active: self.active.finish()?, change: self.change })
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
