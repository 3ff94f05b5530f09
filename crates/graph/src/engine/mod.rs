//! The superstep engine: runs a vertex program over edges on flash, within a fixed memory budget (2018 thesis, section
//! 9.4, algorithm 3).
//!
//! ```text
//!   active vertices ──► index ──► edges ──► edge_program ──► sort-reduce ──► finalize ──► state
//!         ▲                (read in batches, in order)          (reduce)         │
//!         └──────────────────────────── is_active ◄─────────────────────────────┘
//! ```
//!
//! All accesses to flash are in the order of vertices. The list of active vertices is sorted, and so are the reduced
//! updates. Index, edges and state are therefore read sequentially. Updates arrive in random order of destinations.
//! Sort-reduce sorts the updates, or an array in memory combines them.
//!
//! A single function makes all decisions, once for each superstep ([`mod@choose`]). The budget decides whether updates
//! and vertex state are in memory or on flash. Updates are combined in accumulators, one per vertex, if these fit
//! (semi-external, [`direct`]), and by sort-reduce otherwise (external, [`sorted`]). Vertex state is in memory if it
//! fits together with the updates, and on flash otherwise. If all vertices are active in several supersteps, edges may
//! first be partitioned by destination. Updates are then combined in one partition at a time (destination blocking,
//! [`blocking`]). In some supersteps vertices pull: waiting vertices scan their edges for active vertices
//! ([`pull_first`], [`pull_all`]). Later supersteps may scan rows that a pull cached in memory ([`cached`]).
//!
//! Cost of one superstep in which all V vertices are active and E edges are read: up to 4 E bytes of edges (2.4 E in
//! Kronecker graphs) and 4 V bytes of index are read. If state is on flash, it is read twice and written once. With
//! sort-reduce, about a third of 12 E bytes is written and read again (measured for PageRank on Kronecker graphs at 64
//! MiB).

mod blocking;
mod cached;
mod choose;
mod chunks;
mod direct;
mod estimates;
mod finalize;
mod frontier;
mod layout;
mod message;
mod pools;
mod program;
mod pull_all;
mod pull_first;
mod sorted;
mod state;
mod superstep;

use inshore_sortreduce::{Operation, Strategy};
use inshore_store::Job;

use blocking::DestinationBlocks;
use cached::CachedRows;
use choose::{Choice, choose};
pub(crate) use chunks::Sender;
use direct::Accumulators;
pub(crate) use estimates::{Dense, Pull};
use estimates::{Estimates, Layout, StepNeeds};
pub(crate) use finalize::SuperstepOutcome;
pub(crate) use frontier::{Frontier, FrontierBuilder, KeyLog};
pub(crate) use message::Message;
use program::ReduceOperation;
pub(crate) use program::StepProgram;
use pull_first::ActiveBits;
pub(crate) use state::{State, StateCursor, StateStream, VertexArray, flash_memory_bytes, memory_bytes};
pub(crate) use superstep::{FrontierCollection, ReverseSuperstep, Superstep};

use crate::{
    Result, Step, Summary, Tuning,
    checkpoint::{CheckpointPosition, Checkpoints},
    csr::Csr,
};

/// The number of vertices between two checks for cancellation.
const SCANNED_VERTICES: u32 = 64 << 10;
/// The largest number of supersteps that a job's report lists one by one.
const PHASES_MAX: u32 = 64;

/// The graph and the options of an engine.
pub(crate) struct Setup<'a> {
    pub tuning: &'a Tuning,
    /// The out-edges. If vertices of a directed graph pull along in-edges, the in-edges are the last element.
    pub rows: Vec<Csr>,
    /// Tells whether the last of `rows` are in-edges.
    pub has_in_edges: bool,
    /// Describes the supersteps in which all vertices are active, if the algorithm has such supersteps.
    pub dense: Option<Dense>,
    /// The bytes of memory that the algorithm needs outside of the engine.
    pub kept_bytes: u64,
}

/// Runs supersteps. The engine holds the state of all vertices and the buffers of a superstep.
pub(crate) struct Engine<S: State> {
    job: Job,
    vertices: u64,
    state: VertexArray<S>,
    layout: Layout,
    /// The out-edges. If vertices of a directed graph pull along in-edges, the in-edges are the last element.
    rows: Vec<Csr>,
    accumulators: Option<Accumulators>,
    pools: pools::Pools,
    columns: Option<DestinationBlocks>,
    active_bits: Option<ActiveBits>,
    /// The rows in which a pull found no active vertex. These rows stay in memory for later pulls.
    cached: Option<CachedRows>,
    /// The inputs of decisions, except the numbers that are collected anew for each superstep.
    facts: Estimates,
    supersteps: u32,
    supersteps_kept: Option<u32>,
    strategies: Vec<Strategy>,
    /// True if a superstep used destination blocks.
    has_columns: bool,
    /// The description of how updates are sent and combined, as it was last reported.
    way: &'static str,
}

impl<S: State> Engine<S> {
    /// Divides the budget for the program `P`, and sets the initial state of every vertex.
    pub fn new<P: StepProgram<State = S>>(
        job: &Job,
        setup: Setup,
        initial: impl Fn(u32) -> S + Sync,
    ) -> Result<Engine<S>> {
        let vertices = setup.rows[0].vertices;
        let needs = StepNeeds {
            pull: P::PULL,
            weighted: P::WEIGHTED,
            rereads: P::REREADS,
            has_accumulators: true,
            ..StepNeeds::of::<S, ReduceOperation<P>>(vertices)
        };
        Self::laid_out::<P::Message>(job, vertices, needs, setup, initial)
    }

    /// Creates an engine for an algorithm that sends messages only by [`Engine::exchange`].
    pub fn for_exchange<O: Operation>(
        job: &Job,
        vertices: u64,
        tuning: &Tuning,
        kept_bytes: u64,
        initial: impl Fn(u32) -> S + Sync,
    ) -> Result<Engine<S>> {
        let setup = Setup { tuning, rows: Vec::new(), has_in_edges: false, dense: None, kept_bytes };
        // This engine has no accumulators, so the type of message does not matter.
        Self::laid_out::<u32>(job, vertices, StepNeeds::of::<S, O>(vertices), setup, initial)
    }

    fn laid_out<M: Message>(
        job: &Job,
        vertices: u64,
        needs: StepNeeds,
        setup: Setup,
        initial: impl Fn(u32) -> S + Sync,
    ) -> Result<Engine<S>> {
        let Setup { tuning, rows, has_in_edges, dense, kept_bytes } = setup;
        let mut facts = Estimates {
            rows_edges: rows.iter().map(|rows| rows.entries).sum(),
            rows_bytes: rows.iter().map(Csr::held_bytes).sum(),
            edges: rows.first().map_or(0, |rows| rows.entries),
            has_in_edges,
            dense,
            kept_bytes,
            tuning: *tuning,
            needs,
            vertices,
            budget_bytes: job.budget().memory_bytes(),
            free_bytes: job.budget().free_bytes(),
            threads: job.budget().threads(),
            ..Estimates::default()
        };
        let mut choice = choose(&facts)?;
        job.progress().tell(|| choice.layout.plan(vertices));
        let mut columns = None;
        if let Some(plan) = choice.layout.blocks {
            columns = DestinationBlocks::new(job, plan, &rows[0], tuning.column_vertices.is_some())?;
            facts.free_bytes = job.budget().free_bytes();
            if columns.is_some() {
                choice.layout = facts.in_blocks(plan);
            } else {
                facts.dense = None;
                choice = choose(&facts)?;
                job.progress().tell(|| choice.layout.plan(vertices));
            }
        }
        let layout = choice.layout;
        tracing::debug!(?layout, "engine");
        facts.layout = Some(layout);
        let accumulators =
            layout.is_direct.then(|| Accumulators::new::<M>(job.budget(), vertices, layout.workers));
        let accumulators = accumulators.transpose()?;
        let state = VertexArray::new(job, vertices, layout.state_in_memory, initial)?;
        let active_bits = layout.has_active_bits.then(|| ActiveBits::new(job, vertices)).transpose()?;
        Ok(Engine {
            job: job.clone(),
            vertices,
            state,
            layout,
            rows,
            accumulators,
            pools: pools::Pools::new(layout.window_bytes),
            columns,
            active_bits,
            cached: None,
            facts,
            supersteps: 0,
            supersteps_kept: None,
            strategies: Vec::new(),
            has_columns: false,
            way: "",
        })
    }

    /// Frees the rows that a search has cached.
    pub fn forget_cached(&mut self) {
        self.cached = None;
    }

    /// Tells whether a search cached rows.
    pub fn has_cached(&self) -> bool {
        self.cached.is_some()
    }

    /// Starts a superstep and its progress report. `edges` is the number of edges to be read, or 0 if it is not known.
    fn begin_superstep(&mut self, edges: u64) {
        self.supersteps += 1;
        // A deep search can have ten thousand supersteps, which are too many to list one by one.
        let phase = match self.supersteps {
            number @ ..=PHASES_MAX => format!("superstep {number}"),
            _ => format!("supersteps after {PHASES_MAX}"),
        };
        self.job.start_phase(phase, "edges", edges);
    }

    fn used(&mut self, strategy: Strategy) {
        if !self.strategies.contains(&strategy) {
            self.strategies.push(strategy);
        }
    }

    /// Sends messages from the `active` vertices along the edges of each of `rows` into `sinks`, one sink per worker.
    /// Returns the sinks, and the sum of [`Sender::aggregate`].
    fn send<P: Sender<State = S>>(
        &mut self,
        sender: &P,
        rows: &[&Csr],
        active: &Frontier,
        mut sinks: Vec<P::Sink>,
    ) -> Result<(Vec<P::Sink>, u64)> {
        let entries = rows.iter().map(|rows| rows.entries).sum();
        self.begin_superstep(if active.is_all() { entries } else { 0 });
        let mut aggregate = 0;
        let mut edges = 0;
        for rows in rows {
            let state = &mut self.state;
            let sent = chunks::send(&self.job, sender, rows, active, state, &mut self.pools, sinks)?;
            sinks = sent.sinks;
            aggregate = u64::wrapping_add(aggregate, sent.aggregate);
            self.facts.edges_walked += sent.edges;
            edges += sent.edges;
        }
        self.facts.edges_sent = Some(edges);
        Ok((sinks, aggregate))
    }

    /// Resumes from the newest checkpoint, if there is one. Returns the frontier and the algorithm's counters of that
    /// checkpoint.
    pub fn resume_from(&mut self, checkpoints: &Checkpoints) -> Result<Option<(Frontier, [u64; 2])>> {
        let keys = self.layout.frontier_keys;
        let point = checkpoints.resume_from(&self.job, self.vertices, &mut self.state, keys)?;
        Ok(point.map(|point| self.resumed_at(point)))
    }

    /// Resumes as [`Engine::resume_from`] does, but loads the checkpoint into `states` instead of the engine's vertex
    /// state.
    pub fn resume_states_from<T: State>(
        &mut self,
        checkpoints: &Checkpoints,
        states: &mut VertexArray<T>,
    ) -> Result<Option<(Frontier, [u64; 2])>> {
        let point = checkpoints.resume_from(&self.job, self.vertices, states, self.layout.frontier_keys)?;
        Ok(point.map(|point| self.resumed_at(point)))
    }

    fn resumed_at(&mut self, point: CheckpointPosition) -> (Frontier, [u64; 2]) {
        (self.supersteps, self.facts.edges_walked) = (point.supersteps as u32, point.edges_traversed);
        self.supersteps_kept = Some(self.supersteps);
        (point.active, point.numbers)
    }

    /// Saves a checkpoint if the interval between checkpoints has passed.
    pub fn save(
        &mut self,
        checkpoints: &mut Checkpoints,
        active: &Frontier,
        numbers: [u64; 2],
    ) -> Result<()> {
        let point = self.point(active, numbers);
        checkpoints.save(&self.job, self.vertices, &mut self.state, point)
    }

    fn point<'a>(
        &self,
        active: &'a Frontier,
        numbers: [u64; 2],
    ) -> impl FnOnce() -> CheckpointPosition + use<'a, S> {
        let (supersteps, edges_traversed) = (self.supersteps.into(), self.facts.edges_walked);
        move || CheckpointPosition { active: active.clone(), supersteps, edges_traversed, numbers }
    }

    /// Saves a checkpoint as [`Engine::save`] does, but of `states` instead of the engine's vertex state.
    pub fn save_states<T: State>(
        &self,
        checkpoints: &mut Checkpoints,
        states: &mut VertexArray<T>,
        active: &Frontier,
        numbers: [u64; 2],
    ) -> Result<()> {
        let point = self.point(active, numbers);
        checkpoints.save(&self.job, self.vertices, states, point)
    }

    /// Returns the vertices for which `is_active` holds.
    pub fn frontier(&mut self, is_active: impl Fn(u32, &S) -> bool) -> Result<Frontier> {
        let mut active = FrontierBuilder::new(&self.job, self.layout.frontier_keys);
        let (mut states, mut count) = (self.state.cursor(), 0);
        for vertex in 0..self.vertices as u32 {
            if vertex.is_multiple_of(SCANNED_VERTICES) {
                self.job.check_cancelled()?;
            }
            if is_active(vertex, states.get(vertex)?) {
                active.push(vertex)?;
                count += 1;
            }
        }
        if count == self.vertices { Ok(Frontier::All) } else { active.finish() }
    }

    /// Calls `change` with the state of every vertex, in the order of vertices.
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

    /// Returns a cursor that reads and changes states in the order of vertices.
    pub fn cursor(&mut self) -> StateCursor<'_, S> {
        self.state.cursor()
    }

    /// Changes the state of one vertex.
    pub fn set(&mut self, vertex: u32, change: impl FnOnce(&mut S)) -> Result<()> {
        let mut state = self.state.cursor();
        change(state.get_mut(vertex)?);
        Ok(())
    }

    /// Returns the summary of all supersteps.
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
            // No edge carried a message in any superstep.
            [] if self.accumulators.is_some() => "dense".to_string(),
            [] => "merge".to_string(),
            _ => used.join(" and "),
        };
        Summary {
            supersteps: self.supersteps,
            supersteps_kept: self.supersteps_kept,
            edges_traversed: self.facts.edges_walked,
            state: if self.layout.state_in_memory { "memory" } else { "flash" },
            edges_held: self.facts.are_rows_cached == Some(true),
            strategy,
            ..Summary::default()
        }
    }

    /// Returns a stream of the states, in the order of vertices.
    pub fn into_stream(self) -> Result<StateStream<S>> {
        StateStream::new(self.vertices, self.state)
    }
}
