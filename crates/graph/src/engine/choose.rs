//! Decides how each superstep is run: how the memory budget is divided, which step sends the messages, and whether rows
//! are cached to make later supersteps faster.
//!
//! ```text
//!   graph, budget, tuning             ┐
//!   needs of the algorithm            ├─► Estimates ─► possible   every choice that gives the right answer
//!   frontier, cached rows             ┘       └──────► choose     the choice that is taken, with its reason
//! ```
//!
//! [`choose`] is called once before the first superstep, for the layout, and once for each superstep. It does no I/O:
//! the engine collects the numbers, carries out the choice, and makes no further decision. There are two exceptions.
//! The messages that arrived in a superstep decide whether new states are computed for a list of vertices or by a scan
//! of all vertices. Sort-reduce itself chooses the strategy that sorts updates (`sortreduce/cost.rs`).
//!
//! The steps:
//!
//! - [`Step::Blocks`] requires that edges are cut into destination blocks, and that all vertices are active. It is
//!   chosen whenever it is possible, since edges are cut only if this saves time (`blocking/plan.rs`).
//! - [`Step::Pull`] requires in-edges, a bit for each vertex and, for sums, accumulators. It is chosen if scanning the
//!   edges of waiting vertices costs less than sending along the edges of active vertices.
//! - [`Step::PullCached`] requires the rows of all waiting vertices in memory. It is chosen if scanning these rows
//!   costs less than reading the rows of active vertices from flash.
//! - [`Step::PushCached`] requires the rows of all active vertices in memory, on the reverse pass. It is chosen if
//!   scanning these rows costs less than reading them from flash.
//! - [`Step::Push`] is always possible without destination blocks. It is chosen if no other step is.

use std::fmt;

use inshore_sortreduce::Strategy;

use super::{
    cached::room_bytes,
    chunks,
    estimates::{Estimates, Layout, Pull},
    frontier,
};
use crate::{Regime, Result, Step, Tuning, generate::random_u64};

/// Pulling is considered only if the number of active vertices is at least that of all vertices divided by this number.
/// With fewer active vertices, counting their edges would cost more than a pull saves.
const ASKED_SHARE: u64 = 4096;
/// Cost of an edge along which a message is sent, as a multiple of the cost of an edge that is scanned. Sending is
/// slower because the accumulator is rarely in a cache (8 ns instead of 3 ns in a Kronecker graph of scale 25).
const SENT_COST: u64 = 2;
/// Cost of reading one row from flash, as a multiple of the cost of scanning one edge in memory.
const ROW_COST: u64 = 4096;
/// All vertices are scanned as long as more edges carry a message than the number of all edges divided by this number.
/// Edges then go by destination blocks if there are any, since an edge takes a twelfth of the time that it takes
/// through sort-reduce.
const LISTED_SHARE: u64 = 16;
/// The bytes of memory that cached rows leave free for logs, cursors and the output phase.
const BESIDE_CACHED_BYTES: u64 = 4 << 20;

/// The decision and its reason.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Choice {
    pub layout: Layout,
    pub step: Step,
    /// True if all rows are read into memory before the superstep.
    pub caches_rows: bool,
    /// Memory for caching the rows in which a pull finds no active vertex. The value is `None` if these rows are not
    /// cached.
    pub unvisited_bytes: Option<u64>,
    /// True if the next frontiers are kept as lists.
    pub lists: bool,
    pub why: StepReason,
}

/// The reason for a step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum StepReason {
    /// No other step is possible.
    Only,
    Forced,
    /// Few vertices are active, so the number of their edges does not matter. The value is the number of these
    /// vertices.
    Few(u64),
    /// The number of edges of active vertices, and the number of edges of waiting vertices.
    Edges(u64, u64),
    /// The number of edges in memory, and the number of rows that a push would read.
    Cached(u64, u64),
}

impl fmt::Display for StepReason {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StepReason::Only => Ok(()),
            StepReason::Forced => write!(out, " (forced)"),
            StepReason::Few(1) => write!(out, " (1 vertex is active)"),
            StepReason::Few(active) => write!(out, " ({active} vertices are active)"),
            StepReason::Edges(active, waiting) => {
                write!(out, " (edges: about {active} of active vertices, {waiting} of waiting ones)")
            }
            StepReason::Cached(edges, rows) => {
                write!(out, " ({edges} edges in memory, else {rows} rows to read)")
            }
        }
    }
}

impl Choice {
    /// Describes how updates are sent and combined, for the option `--explain`. `pull` tells which messages the program
    /// can pull. `strategy` is the strategy of sort-reduce, if updates go through sort-reduce.
    pub fn way(&self, pull: Pull, strategy: Option<Strategy>) -> &'static str {
        match (self.step, pull, strategy) {
            (Step::Blocks, ..) => "combined by edge partition",
            (Step::PushCached, ..) => "sent along edges that are in memory, in an array in memory",
            (Step::Pull, Pull::All, _) => "pulled along edges, from an array in memory",
            (Step::Pull, _, None) => "pulled along in-edges, in an array in memory",
            (Step::Pull, _, Some(_)) => "pulled along in-edges, through sort-reduce",
            (Step::PullCached, Pull::All, _) => {
                "pulled along edges that are in memory, from an array in memory"
            }
            (Step::PullCached, ..) => "pulled along in-edges that are in memory, in an array in memory",
            (Step::Push, _, None) => "combined in an array in memory",
            (Step::Push, _, Some(Strategy::Dense)) => "combined in an array in memory",
            (Step::Push, _, Some(Strategy::Partition)) => "combined by ranges of vertices",
            (Step::Push, _, Some(Strategy::Merge | Strategy::HashFirst)) => "sorted and merged",
        }
    }
}

/// Chooses the layout if there is none yet, and otherwise the step of the next superstep.
///
/// # Errors
/// Returns [`inshore_store::Error::BudgetTooSmall`] if the tuning forces a layout that does not fit.
pub(crate) fn choose(estimates: &Estimates) -> Result<Choice> {
    let choice = match estimates.layout {
        None => Choice::first(estimates.usual_layout()?),
        Some(layout) => estimates.next(layout)?,
    };
    let choice = estimates.forced(&choice).unwrap_or(choice);
    debug_assert!(possible(estimates).contains(&Choice { why: StepReason::Only, ..choice }));
    Ok(choice)
}

/// Lists all choices that give the right answer and that the strategy and regime of [`Tuning`] allow.
pub(crate) fn possible(estimates: &Estimates) -> Vec<Choice> {
    let Some(layout) = estimates.layout else {
        return estimates.layouts().into_iter().map(Choice::first).collect();
    };
    let mut all = Vec::new();
    for caches_rows in [true, false] {
        let is_allowed = if caches_rows { estimates.fits_rows(&layout) } else { !estimates.must_cache() };
        let lists = estimates.lists();
        let can = |step: &Step| is_allowed && estimates.can(*step, &layout);
        for step in Step::ALL.into_iter().filter(can) {
            let choice = Choice { step, caches_rows, lists, ..Choice::first(layout) };
            let unvisited_bytes = estimates.unvisited_bytes(&choice);
            if unvisited_bytes.is_some() {
                all.push(Choice { unvisited_bytes, ..choice });
            }
            all.push(choice);
        }
    }
    all
}

impl Choice {
    /// Returns the choice with which a job of this layout begins.
    pub fn first(layout: Layout) -> Choice {
        let step = if layout.blocks.is_some() { Step::Blocks } else { Step::Push };
        Choice {
            layout,
            step,
            caches_rows: false,
            unvisited_bytes: None,
            lists: false,
            why: StepReason::Only,
        }
    }
}

impl Estimates {
    /// Returns the choice that the tuning forces in place of `usual`, if any. The tuning can name the step, or draw a
    /// choice at random.
    fn forced(&self, usual: &Choice) -> Option<Choice> {
        let Tuning { step, draw, .. } = self.tuning;
        if draw.is_none() && step.is_none_or(|step| step == usual.step) {
            return None;
        }
        let all = possible(self).into_iter();
        let (named, others): (Vec<_>, Vec<_>) = all.partition(|choice| Some(choice.step) == step);
        let place = |seed, len| (random_u64(seed, self.superstep.into()) % len as u64) as usize;
        let choice = match draw {
            None => *named.first()?,
            Some(seed) if named.is_empty() => others[place(seed, others.len())],
            Some(seed) => named[place(seed, named.len())],
        };
        Some(Choice { why: StepReason::Forced, ..choice })
    }

    /// Tells whether this superstep decides if rows are read into memory. The decision is due once as many edges were
    /// read as all rows have, since the job may then read as many again. The decision is not due on a reverse pass,
    /// since rows that an earlier pull cached then occupy that memory.
    pub fn are_rows_due(&self) -> bool {
        let is_early = self.tuning.regime == Some(Regime::Memory);
        self.needs.rereads
            && !self.is_backwards
            && self.are_rows_cached.is_none()
            && (is_early || self.edges_walked >= self.rows_edges)
    }

    /// Tells whether rows must be in memory from the first superstep on.
    fn must_cache(&self) -> bool {
        self.are_rows_due() && self.tuning.regime == Some(Regime::Memory)
    }

    /// Tells whether all rows fit in memory together with the buffers of supersteps.
    fn fits_rows(&self, layout: &Layout) -> bool {
        self.needs.rereads
            && self.are_rows_cached.is_none()
            && layout.is_direct
            && layout.state_in_memory
            && self.tuning.regime != Some(Regime::SemiExternal)
            && self.rows_bytes + self.beside_bytes(layout, self.needs.weighted) <= self.free_bytes
    }

    /// Returns the memory that rows in memory must leave free.
    fn beside_bytes(&self, layout: &Layout, weighted: bool) -> u64 {
        let windows = chunks::memory_bytes(layout.workers, layout.window_bytes, weighted);
        // After the first superstep, the free memory does not include the buffers of the edge phase, but still includes
        // the memory of their lists of rows.
        let to_come = if self.has_windows { windows / 4 } else { windows };
        to_come + frontier::memory_bytes(layout.frontier_keys) + self.all_kept_bytes() + BESIDE_CACHED_BYTES
    }

    /// Returns the memory for rows in which a pull finds no active vertex. Returns `None` if there is too little
    /// memory, or if edges must stay on flash.
    fn unvisited_bytes(&self, choice: &Choice) -> Option<u64> {
        let layout = &choice.layout;
        let can_keep = choice.step == Step::Pull
            && layout.is_direct
            && (self.needs.pull == Pull::First || layout.state_in_memory)
            && !self.is_backwards
            && self.cached_edges.is_none()
            && self.tuning.regime != Some(Regime::SemiExternal);
        let cached = if choice.caches_rows { self.rows_bytes } else { 0 };
        let free = self.free_bytes.saturating_sub(cached + self.beside_bytes(layout, false));
        room_bytes(free, self.edges).filter(|_| can_keep)
    }

    /// Tells whether the step gives the right answer in this superstep.
    fn can(&self, step: Step, layout: &Layout) -> bool {
        let has_cached = self.cached_edges.is_some() && layout.is_direct;
        match step {
            Step::Push => layout.blocks.is_none_or(|plan| plan.has_sparse),
            Step::PushCached => has_cached && self.is_backwards,
            Step::Pull => {
                let has_accumulators = self.needs.pull == Pull::First || layout.is_direct;
                self.has_waiting && layout.has_active_bits && has_accumulators
            }
            Step::PullCached => has_cached && !self.is_backwards,
            Step::Blocks => layout.blocks.is_some() && self.active.is_none() && !self.lists(),
        }
    }

    fn are_few_active(&self) -> bool {
        self.active.is_some_and(|active| active < self.vertices / ASKED_SHARE)
    }

    /// Tells whether the choice depends on the number of edges of active vertices, so that the engine has to count them
    /// first.
    pub fn wants_active_edges(&self) -> bool {
        self.layout.is_some_and(|layout| self.can(Step::Pull, &layout))
            && self.cached_edges.is_none()
            && self.active_edges.is_none()
            && self.active.is_some()
            && !self.are_few_active()
    }

    /// Makes the choice for a superstep.
    fn next(&self, layout: Layout) -> Result<Choice> {
        let caches_rows = self.are_rows_due() && self.fits_rows(&layout);
        if self.must_cache() && !caches_rows {
            let used = self.budget_bytes - self.free_bytes + self.rows_bytes;
            let others = used + self.all_kept_bytes() + BESIDE_CACHED_BYTES;
            return Err(self.too_small("edges in memory", self.smallest_free(|_| others)));
        }
        let (step, why) = self.step(&layout);
        let choice = Choice { step, why, caches_rows, lists: self.lists(), ..Choice::first(layout) };
        Ok(Choice { unvisited_bytes: self.unvisited_bytes(&choice), ..choice })
    }

    /// Tells whether the next frontier is kept as a list. The engine does not choose this by cost, since the algorithm
    /// may run another program on a list.
    fn lists(&self) -> bool {
        let are_few = self.edges_sent.is_some_and(|sent| sent <= self.edges / LISTED_SHARE);
        self.lists_when_few && are_few
    }

    fn step(&self, layout: &Layout) -> (Step, StepReason) {
        let can = |step| self.can(step, layout);
        if can(Step::Blocks) {
            return (Step::Blocks, StepReason::Only);
        }
        let cached = if self.is_backwards { Step::PushCached } else { Step::PullCached };
        if let Some(edges) = self.cached_edges.filter(|_| can(cached)) {
            let rows = self.active.unwrap_or(self.vertices);
            let why = StepReason::Cached(edges, rows);
            if edges < rows * ROW_COST {
                return (cached, why);
            }
            // The cached rows belong to all waiting vertices, so reading these rows from flash again would cost more.
            if !self.is_backwards {
                return (Step::Push, why);
            }
        }
        if !can(Step::Pull) {
            return (Step::Push, StepReason::Only);
        }
        let Some(active) = self.active_edges else {
            return (Step::Push, self.active.map_or(StepReason::Only, StepReason::Few));
        };
        // The estimate assumes that the waiting vertices have as many in-edges as out-edges.
        let to_come = self.edges.saturating_sub(self.edges_before + active);
        let waiting = self.waiting_edges.unwrap_or(to_come);
        let step = if waiting < active * SENT_COST { Step::Pull } else { Step::Push };
        (step, StepReason::Edges(active, waiting))
    }
}

#[cfg(test)]
mod tests {
    use inshore_sortreduce::Operation;

    use super::*;
    use crate::engine::estimates::StepNeeds;

    /// Describes a search in a graph of a million vertices, with in-edges and plenty of memory.
    fn search(pull: Pull) -> Estimates {
        let needs =
            StepNeeds { pull, ..StepNeeds { has_accumulators: true, ..StepNeeds::of::<u64, Sums>(1 << 20) } };
        let mut estimates = Estimates {
            needs,
            vertices: 1 << 20,
            edges: 16 << 20,
            rows_edges: 16 << 20,
            rows_bytes: 40 << 20,
            has_in_edges: true,
            budget_bytes: 1 << 30,
            free_bytes: 1 << 30,
            threads: 2,
            ..Estimates::default()
        };
        estimates.layout = Some(choose(&estimates).unwrap().layout);
        Estimates { has_waiting: true, active: Some(1000), ..estimates }
    }

    struct Sums;

    impl Clone for Sums {
        fn clone(&self) -> Sums {
            Sums
        }
    }

    impl Operation for Sums {
        type Key = u32;
        type Value = u64;
        fn combine(&self, a: u64, b: u64) -> u64 {
            a + b
        }
    }

    #[test]
    fn the_cheaper_direction_is_taken() {
        let million = 1 << 20;
        let few = Estimates { active: Some(255), ..search(Pull::First) };
        let is_asked = Estimates { active: Some(256), ..few };
        assert!(!few.wants_active_edges() && is_asked.wants_active_edges());
        let counted = |active, before| Estimates {
            active_edges: Some(active),
            edges_before: before,
            ..search(Pull::First)
        };
        let back = |edges: [u64; 2]| Estimates {
            is_backwards: true,
            active_edges: Some(edges[0]),
            waiting_edges: Some(edges[1]),
            ..search(Pull::All)
        };
        let cached = |edges, active| Estimates {
            cached_edges: Some(edges),
            active: Some(active),
            ..search(Pull::First)
        };
        let cases = [
            (few, Step::Push, StepReason::Few(255)),
            (Estimates { active: None, ..few }, Step::Push, StepReason::Only),
            (Estimates { has_waiting: false, ..few }, Step::Push, StepReason::Only),
            // With 16 million edges, push and pull cost the same if active vertices have a third of the edges.
            (counted(5 * million, 0), Step::Push, StepReason::Edges(5 * million, 11 * million)),
            (counted(6 * million, 0), Step::Pull, StepReason::Edges(6 * million, 10 * million)),
            (counted(5 * million, 2 * million), Step::Pull, StepReason::Edges(5 * million, 9 * million)),
            (back([4, 8]), Step::Push, StepReason::Edges(4, 8)),
            (back([4, 7]), Step::Pull, StepReason::Edges(4, 7)),
            (cached(4095, 1), Step::PullCached, StepReason::Cached(4095, 1)),
            (cached(4096, 1), Step::Push, StepReason::Cached(4096, 1)),
            (
                Estimates { cached_edges: Some(4095), active: Some(1), ..back([4, 8]) },
                Step::PushCached,
                StepReason::Cached(4095, 1),
            ),
            (
                Estimates { cached_edges: Some(4096), active: Some(1), ..back([4, 7]) },
                Step::Pull,
                StepReason::Edges(4, 7),
            ),
        ];
        for (estimates, step, why) in cases {
            let choice = choose(&estimates).unwrap();
            assert_eq!((choice.step, choice.why), (step, why), "{estimates:?}");
            let forced = |step| {
                let tuning = Tuning { step: Some(step), ..Tuning::default() };
                choose(&Estimates { tuning, ..estimates }).unwrap()
            };
            for other in possible(&estimates) {
                assert_eq!(forced(other.step).step, other.step);
            }
        }
    }

    #[test]
    fn rows_are_read_into_memory_once_all_edges_were_walked_along() {
        let all = search(Pull::Never);
        let needs = StepNeeds { rereads: true, ..all.needs };
        let walked = |edges_walked| Estimates { needs, edges_walked, ..all };
        let caches = |estimates: Estimates| choose(&estimates).unwrap().caches_rows;
        assert!(!caches(walked((16 << 20) - 1)) && caches(walked(16 << 20)));
        assert!(!caches(Estimates { are_rows_cached: Some(false), ..walked(16 << 20) }));
        assert!(!caches(Estimates { rows_bytes: 1 << 30, ..walked(16 << 20) }));
        assert!(!caches(Estimates { edges_walked: 16 << 20, ..all }), "where they are not read again");
        let regime = |regime| Tuning { regime: Some(regime), ..Tuning::default() };
        assert!(!caches(Estimates { tuning: regime(Regime::SemiExternal), ..walked(16 << 20) }));
        let must = Estimates { tuning: regime(Regime::Memory), ..walked(0) };
        assert!(caches(must) && choose(&Estimates { rows_bytes: 1 << 30, ..must }).is_err());
    }

    #[test]
    fn the_budget_decides_what_lies_in_memory() {
        let layout = |free_bytes, tuning| {
            let budget = Estimates {
                budget_bytes: free_bytes,
                free_bytes,
                layout: None,
                tuning,
                ..search(Pull::Never)
            };
            choose(&budget).map(|choice| choice.layout)
        };
        let usual = |mib: u64| layout(mib << 20, Tuning::default()).unwrap();
        let places = |mib| (usual(mib).state_in_memory, usual(mib).is_direct);
        assert_eq!([64, 16, 8].map(places), [(true, true), (false, true), (false, false)]);
        let dense = Tuning { regime: Some(Regime::Memory), ..Tuning::default() };
        let error = layout(16 << 20, dense).unwrap_err().to_string();
        assert!(error.contains("updates in memory"), "{error}");
        let merge = Tuning { strategy: Some(Strategy::Merge), ..Tuning::default() };
        assert!(!layout(64 << 20, merge).unwrap().is_direct);
    }
}
