//! Runs a superstep. The engine collects estimates, makes one choice from these estimates, and carries out the choice.

use inshore_sortreduce::Strategy;
use inshore_store::format_bytes;

use super::{
    Engine, Frontier, KeyLog, Pull, ReduceOperation, State, Step, StepProgram, SuperstepOutcome,
    blocking::DestinationBlocks,
    cached::CachedRows,
    choose::{Choice, choose},
    estimates::Estimates,
    pull_first::edges_of,
    sorted::Sorting,
};
use crate::{Regime, Result, csr::Csr};

/// Selects whether a superstep collects the next frontier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrontierCollection {
    No,
    Yes,
    /// Collects the frontier once few edges carry a message. Until then all vertices count as active.
    WhenFew,
}

/// A request for a superstep.
pub(crate) struct Superstep<'a> {
    /// The vertices that send. In a pull, each waiting vertex searches its row for active vertices.
    pub active: &'a Frontier,
    pub collect: FrontierCollection,
    /// A log to which the vertices of the next frontier are added.
    pub log: Option<&'a mut KeyLog>,
    /// The number of edges out of vertices that were active earlier in the same search, as far as they were counted.
    pub edges_before: u64,
    pub backwards: Option<ReverseSuperstep<'a>>,
}

/// A superstep along in-edges, on the reverse pass of a search.
pub(crate) struct ReverseSuperstep<'a> {
    /// The vertices that get messages, if they are known.
    pub waiting: Option<&'a Frontier>,
    /// The number of edges of active vertices, and the number of edges of waiting vertices.
    pub edges: [u64; 2],
    /// True if the rows that the forward pass kept in memory include those of all active vertices.
    pub are_cached: bool,
}

impl<'a> Superstep<'a> {
    /// Requests a forward superstep from these vertices.
    pub fn new(active: &'a Frontier, collect: FrontierCollection) -> Superstep<'a> {
        Superstep { active, collect, log: None, edges_before: 0, backwards: None }
    }
}

impl<S: State> Engine<S> {
    /// Sends messages from `active` vertices along their edges, by the chosen step. Finalizes the vertices that got a
    /// message, or all vertices.
    pub fn superstep<P: StepProgram<State = S>>(
        &mut self,
        program: &mut P,
        asked: Superstep,
    ) -> Result<SuperstepOutcome> {
        let mut estimates = self.estimates(&asked);
        let mut edges_counted = None;
        if estimates.wants_active_edges() {
            edges_counted = Some(edges_of(&self.job, &self.rows[0], asked.active)?);
            estimates.active_edges = edges_counted;
        }
        let choice = choose(&estimates)?;
        tracing::debug!(?choice, "superstep");
        self.cache_rows(&choice, estimates.are_rows_due())?;
        if choice.lists {
            // The columns are dropped here, since sort-reduce uses their memory.
            self.columns = None;
        }
        if self.layout.is_direct || choice.step == Step::Blocks {
            self.report_way(&choice, None);
        }
        let (rows, columns) = (std::mem::take(&mut self.rows), self.columns.take());
        let active_edges = estimates.active_edges;
        let done = self.carry_out(program, &rows, columns.as_ref(), asked, &choice, active_edges);
        (self.rows, self.columns) = (rows, columns);
        Ok(SuperstepOutcome { edges_counted, ..done? })
    }

    fn estimates(&self, asked: &Superstep) -> Estimates {
        let back = asked.backwards.as_ref();
        let has_cached = back.is_none_or(|back| back.are_cached);
        let cached = self.cached.as_ref().filter(|_| has_cached);
        Estimates {
            free_bytes: self.job.budget().free_bytes(),
            superstep: self.supersteps + 1,
            has_windows: self.pools.is_made(),
            cached_edges: cached.map(CachedRows::edges),
            is_backwards: back.is_some(),
            active: asked.active.count(),
            has_waiting: back.is_none_or(|back| back.waiting.is_some()),
            edges_before: asked.edges_before,
            active_edges: back.map(|back| back.edges[0]),
            waiting_edges: back.map(|back| back.edges[1]),
            lists_when_few: asked.collect == FrontierCollection::WhenFew,
            ..self.facts
        }
    }

    fn carry_out<P: StepProgram<State = S>>(
        &mut self,
        program: &mut P,
        rows: &[Csr],
        columns: Option<&DestinationBlocks>,
        asked: Superstep,
        choice: &Choice,
        active_edges: Option<u64>,
    ) -> Result<SuperstepOutcome> {
        let Superstep { active, collect, log, backwards, .. } = asked;
        let (out, incoming) = (&rows[0], rows.last().expect("out-edges at least"));
        let (pushed, pulled) = if backwards.is_some() { (incoming, out) } else { (out, incoming) };
        let waits_for_few = collect == FrontierCollection::WhenFew && !choice.lists;
        let collect = collect != FrontierCollection::No && !waits_for_few;
        let mut done = match choice.step {
            Step::Push => self.push(program, pushed, active, choice, collect, log)?,
            Step::Blocks => self.column_step(program, columns.expect("cut before"), collect)?,
            Step::PushCached => self.push_cached(program, active)?,
            Step::Pull | Step::PullCached if P::PULL == Pull::First => {
                self.pull_first(program, pulled, active, choice)?
            }
            Step::Pull | Step::PullCached => {
                // The edges are counted, since the reverse pass of a search compares the numbers of edges of two
                // levels.
                let edges = active_edges.map_or_else(|| edges_of(&self.job, pushed, active), Ok)?;
                let waiting = backwards.and_then(|back| back.waiting).unwrap_or(&Frontier::All);
                let sides = [active, waiting];
                let done = self.pull_all(program, pulled, sides, choice, collect, log)?;
                SuperstepOutcome { edges, ..done }
            }
        };
        if let (Step::Push | Step::Blocks, Some(edges)) = (choice.step, self.facts.edges_sent) {
            done.edges = edges;
        }
        if waits_for_few {
            done.active = Frontier::All;
        }
        Ok(done)
    }

    /// Sends messages from the `active` vertices along the edges of `rows`, into accumulators or through sort-reduce.
    fn push<P: StepProgram<State = S>>(
        &mut self,
        program: &mut P,
        rows: &Csr,
        active: &Frontier,
        choice: &Choice,
        collect: bool,
        log: Option<&mut KeyLog>,
    ) -> Result<SuperstepOutcome> {
        let Some(mut accumulators) = self.accumulators.take() else {
            let operation = ReduceOperation(program.clone());
            let (updates, aggregate) =
                self.exchange_as(&Sorting(program), operation, &[rows], active, choice)?;
            program.set_aggregate(aggregate);
            return self.apply(program, updates, collect, log);
        };
        let (direct, touched) = accumulators.open(program);
        let (touched, aggregate) = self.send(&direct, &[rows], active, touched)?;
        program.set_aggregate(aggregate);
        self.finalize_accumulators(program, accumulators, touched, collect, log)
    }

    /// Reads all rows into memory if this was chosen. If the choice was due, but was not to read the rows, they stay on
    /// flash for the rest of the job.
    fn cache_rows(&mut self, choice: &Choice, is_due: bool) -> Result<()> {
        if !choice.caches_rows {
            self.facts.are_rows_cached = if is_due { Some(false) } else { self.facts.are_rows_cached };
            return Ok(());
        }
        self.facts.are_rows_cached = Some(true);
        match self.rows.iter().map(|rows| rows.hold(&self.job)).collect::<Result<Vec<_>>>() {
            Ok(held) => {
                self.rows = held;
                let bytes = self.facts.rows_bytes;
                self.job.progress().tell(|| format!("edges in memory, {}", format_bytes(bytes)));
                self.pools.forget_rows();
            }
            Err(error) if self.facts.tuning.regime == Some(Regime::Memory) || error.is_cancelled() => {
                return Err(error);
            }
            Err(error) => {
                // The job does not fail with this error, since the damaged row may never be needed.
                tracing::debug!(%error, "edges stay on flash");
                self.facts.are_rows_cached = Some(false);
            }
        }
        Ok(())
    }

    /// Reports how updates are sent and combined in the next superstep, and the reason, if this differs from the last
    /// superstep.
    pub(super) fn report_way(&mut self, choice: &Choice, strategy: Option<Strategy>) {
        let way = choice.way(self.facts.needs.pull, strategy);
        if self.way != way {
            self.way = way;
            let (number, why) = (self.supersteps + 1, choice.why);
            self.job.progress().tell(|| format!("from superstep {number} on updates are {way}{why}"));
        }
    }
}
