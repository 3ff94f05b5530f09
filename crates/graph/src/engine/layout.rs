//! Lists all layouts of the memory budget that fit, and chooses one of them. The choice is a pure function of
//! estimates.

use inshore_sortreduce::smallest_memory_bytes;
use inshore_store::{format_bytes, taken_bytes};

use super::{
    blocking::plan,
    chunks, direct,
    estimates::{BlockingPlan, Estimates, Layout, Pull},
    frontier::{self, frontier_keys},
};
use crate::{Regime, Result, csr};

/// The bits of active vertices take at most the budget divided by this number.
const ACTIVE_BITS_SHARE: u64 = 16;
/// With sort-reduce, vertex state is in memory if it takes at most sort-reduce's memory divided by this number.
const STATE_SHARE: u64 = 4;

impl Layout {
    /// Describes the layout for the option `--explain`.
    pub fn plan(&self, vertices: u64) -> String {
        if let Some(plan) = &self.blocks {
            return plan.describe(vertices);
        }
        let states = if self.state_in_memory { "in memory" } else { "on flash" };
        let updates = match self.is_direct {
            true => "in an array in memory".to_string(),
            false => format!("through sort-reduce in {}", format_bytes(self.sort_bytes)),
        };
        format!("vertex state {states}, updates {updates}, edges on flash")
    }
}

impl Estimates {
    /// Returns the memory of the bits of active vertices, and of the cursor that counts edges. Returns `None` if no
    /// vertex can pull, or if this memory is too large a part of the budget.
    pub fn active_bits_bytes(&self) -> Option<u64> {
        let can_pull = self.needs.pull != Pull::Never && self.has_in_edges;
        let bytes = taken_bytes(self.vertices.div_ceil(64) as usize * 8) as u64;
        (can_pull && bytes <= self.budget_bytes / ACTIVE_BITS_SHARE).then_some(bytes + csr::CURSOR_BYTES)
    }

    /// Returns the memory that the algorithm needs itself, plus the memory of the bits of active vertices.
    pub fn all_kept_bytes(&self) -> u64 {
        self.kept_bytes + self.active_bits_bytes().unwrap_or(0)
    }

    /// Returns a layout that does not yet decide where state and updates are. Also returns the memory that the rest of
    /// the layout takes.
    fn bare(&self) -> (Layout, u64) {
        let free = self.free_bytes.saturating_sub(self.all_kept_bytes());
        let (workers, window_bytes) = chunks::workers(self.threads, free, self.needs.weighted);
        let layout = Layout {
            workers,
            window_bytes,
            state_in_memory: false,
            is_direct: false,
            frontier_keys: frontier_keys(self.vertices, free),
            sort_bytes: 0,
            has_active_bits: self.active_bits_bytes().is_some() && self.needs.pull == Pull::First,
            blocks: None,
        };
        let windows = chunks::memory_bytes(workers, window_bytes, self.needs.weighted);
        (layout, windows + frontier::memory_bytes(layout.frontier_keys))
    }

    /// Returns a layout with updates in accumulators. Returns `None` if accumulators are not allowed or do not fit.
    fn direct(&self, state_in_memory: bool) -> Option<Layout> {
        let (layout, fixed) = self.bare();
        let free = self.free_bytes.saturating_sub(self.all_kept_bytes());
        let states = if state_in_memory { self.needs.state_bytes } else { self.needs.flash_bytes };
        let is_allowed = self.needs.has_accumulators
            && self.tuning.allows_dense()
            && (state_in_memory || self.tuning.regime.is_none());
        let fits = fixed + self.accumulators_bytes(layout.workers) + states <= free;
        let has_active_bits = self.active_bits_bytes().is_some();
        (is_allowed && fits).then_some(Layout { state_in_memory, is_direct: true, has_active_bits, ..layout })
    }

    fn accumulators_bytes(&self, workers: usize) -> u64 {
        direct::memory_bytes(self.vertices, self.needs.message_bytes, workers)
    }

    /// Tells whether the tuning forces updates into accumulators.
    fn must_be_direct(&self) -> bool {
        let is_forced = self.tuning.strategy.is_some() || self.tuning.regime.is_some();
        self.needs.has_accumulators && self.tuning.allows_dense() && is_forced
    }

    /// Returns a layout with updates through sort-reduce, and whether `state_in_memory` is the better of its two
    /// values.
    fn sorted(&self, state_in_memory: bool) -> (Layout, bool) {
        let (layout, fixed) = self.bare();
        let free = self.free_bytes.saturating_sub(self.all_kept_bytes());
        let with_flash = free.saturating_sub(fixed + self.needs.flash_bytes);
        let is_small = self.needs.state_bytes <= with_flash / STATE_SHARE
            && self.tuning.regime != Some(Regime::External);
        let sort_bytes = match state_in_memory {
            true => free.saturating_sub(fixed + self.needs.state_bytes),
            false => with_flash,
        };
        (Layout { state_in_memory, sort_bytes, ..layout }, is_small == state_in_memory)
    }

    /// Returns a layout with edges cut into blocks. Supersteps of only some vertices go through sort-reduce.
    pub fn in_blocks(&self, plan: BlockingPlan) -> Layout {
        let (layout, fixed) = self.bare();
        let windows = chunks::memory_bytes(layout.workers, layout.window_bytes, false);
        let fixed = if plan.has_sparse { fixed } else { fixed - windows };
        let states = if plan.state_in_memory { self.needs.state_bytes } else { self.needs.flash_bytes };
        let free = self.free_bytes.saturating_sub(self.all_kept_bytes());
        Layout {
            state_in_memory: plan.state_in_memory,
            sort_bytes: free.saturating_sub(fixed + states),
            blocks: Some(plan),
            ..layout
        }
    }

    /// Lists all layouts that fit.
    pub fn layouts(&self) -> Vec<Layout> {
        let mut all: Vec<_> = plan::possible(self).into_iter().map(|plan| self.in_blocks(plan)).collect();
        all.extend([true, false].into_iter().filter_map(|in_memory| self.direct(in_memory)));
        if !self.must_be_direct() {
            let smallest =
                |layout: &Layout| smallest_memory_bytes(layout.workers, self.needs.record_bytes as usize);
            let sorted = [true, false].into_iter().map(|in_memory| self.sorted(in_memory));
            let is_enough = |(layout, is_right): &(Layout, bool)| {
                let is_allowed = !(layout.state_in_memory && self.tuning.regime == Some(Regime::External));
                *is_right || is_allowed && layout.sort_bytes >= smallest(layout)
            };
            all.extend(sorted.filter(is_enough).map(|(layout, _)| layout));
        }
        all
    }

    /// Chooses the layout.
    ///
    /// # Errors
    /// Returns [`inshore_store::Error::BudgetTooSmall`] if the tuning forces updates into accumulators, which do not
    /// fit.
    pub fn usual_layout(&self) -> Result<Layout> {
        let in_blocks = plan::choose(self).map(|plan| self.in_blocks(plan));
        if let Some(layout) = in_blocks.or_else(|| self.direct(true)).or_else(|| self.direct(false)) {
            return Ok(layout);
        }
        if self.must_be_direct() {
            let is_on_flash = self.tuning.regime.is_none();
            let states = if is_on_flash { self.needs.flash_bytes } else { self.needs.state_bytes };
            let used = self.budget_bytes - self.free_bytes.saturating_sub(self.all_kept_bytes());
            let others = |workers| self.accumulators_bytes(workers) + states;
            return Err(self.too_small("updates in memory", used + self.smallest_free(others)));
        }
        let (in_memory, is_right) = self.sorted(true);
        Ok(if is_right { in_memory } else { self.sorted(false).0 })
    }

    /// Returns the least amount of free memory that suffices. Windows and frontiers take more memory if more is free.
    /// `others` returns the memory of everything else for a number of workers.
    pub fn smallest_free(&self, others: impl Fn(usize) -> u64) -> u64 {
        let mut free = 0;
        loop {
            let (workers, window_bytes) = chunks::workers(self.threads, free, self.needs.weighted);
            let needed = chunks::memory_bytes(workers, window_bytes, self.needs.weighted)
                + frontier::memory_bytes(frontier_keys(self.vertices, free))
                + others(workers);
            if needed <= free {
                return free;
            }
            free = needed;
        }
    }

    pub fn too_small(&self, what: &str, smallest: u64) -> crate::Error {
        let (what, given) = (what.to_string(), self.budget_bytes);
        inshore_store::Error::BudgetTooSmall { what, given, smallest }.into()
    }
}
