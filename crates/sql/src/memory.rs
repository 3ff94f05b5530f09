//! The memory pool of a query, which divides the job's budget among operators.
//!
//! ```text
//!   budget  [ batches in flight | DataFusion's operators | a part for each begun operator of this crate | free ]
//!                                                   at least the floors of operators that have not begun  ▲
//! ```
//!
//! When its first rows arrive, an operator of this crate takes a part of the budget, and stays within that part. The
//! part is half of the free memory, or seven eighths if no other operator has yet to begin. For each operator that
//! has not begun, the pool reserves a floor, which is enough memory for a sort. Operators of DataFusion reserve
//! memory in small steps. The pool refuses a request that would leave less than the floors. Partial aggregates can
//! emit their rows early, so the pool refuses their requests at a lower limit.

use std::{
    fmt::{self, Display, Formatter},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, Ordering},
    },
};

use datafusion::{
    error::{DataFusionError, Result},
    execution::memory_pool::{MemoryLimit, MemoryPool, MemoryReservation},
};
use inshore_sortreduce::rows::smallest_row_memory_bytes;
use inshore_store::{Budget, Reservation, format_bytes};

/// The memory pool of a query.
#[derive(Debug)]
pub(crate) struct Memory {
    budget: Budget,
    state: Mutex<PoolState>,
    /// The maximum memory of one partial aggregate.
    partial_bytes: u64,
    /// The floor for each sort of an operator of this crate.
    floor_bytes: u64,
}

#[derive(Debug)]
struct PoolState {
    /// The reservation for the memory that DataFusion's operators hold.
    held: Reservation,
    /// The bytes that DataFusion uses beyond the reservation `held`, since some of its requests cannot be refused.
    /// The number begins with the bytes set aside for batches in flight.
    owed: u64,
    /// The sum of the floors of operators that have not begun, in bytes.
    floors: u64,
    /// The number of operators that have not begun.
    waiting: usize,
    /// True if operators may run more than once, as in a recursive query. Their floors then stay reserved.
    are_again: bool,
}

/// Returns the bytes that are set aside from the start for batches in flight between operators.
fn in_flight_bytes(budget: &Budget) -> u64 {
    budget.memory_bytes() / 8
}

impl Memory {
    /// Creates a pool that divides the free memory of `budget` among operators.
    pub fn new(budget: &Budget) -> inshore_store::Result<Memory> {
        let held = budget.reserve(0, "a query")?;
        // A GROUP BY uses half of its part for a sort, so a floor is twice the minimum memory of a sort.
        let floor_bytes = (budget.memory_bytes() / 32).clamp(2 * smallest_row_memory_bytes(1), 4 << 20);
        let state =
            PoolState { held, owed: in_flight_bytes(budget), floors: 0, waiting: 0, are_again: false };
        let partial_bytes = budget.memory_bytes() / 8 / budget.threads() as u64;
        Ok(Memory { budget: budget.clone(), state: Mutex::new(state), partial_bytes, floor_bytes })
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.state.lock().expect("no panic under this lock")
    }

    /// Reserves a floor for an operator that will run in `partitions` partitions, each with `sorts` concurrent sorts.
    pub fn expect(self: &Arc<Self>, partitions: usize, sorts: usize) -> Arc<Claim> {
        let floor = self.floor_bytes * (partitions * sorts) as u64;
        let mut state = self.state();
        state.floors += floor;
        state.waiting += 1;
        let (memory, taken, is_waiting) =
            (self.clone(), Mutex::new(ClaimState::Nothing), AtomicBool::new(true));
        Arc::new(Claim { memory, floor, partitions, taken, is_waiting })
    }

    /// Records that the operators of the plan may run more than once.
    pub fn expect_again(&self) {
        self.state().are_again = true;
    }

    /// Returns the bytes that no operator may take: the floors of operators that have not begun, and `owed`. The
    /// floors count for at most half of the budget, since not all operators of a large plan run at once.
    fn held_back(&self, state: &PoolState) -> u64 {
        state.floors.min(self.budget.memory_bytes() / 2) + state.owed
    }

    /// Returns whether DataFusion may take `bytes` more. The same limit applies to an operator that collects one side
    /// of a join.
    fn may_hold(&self, state: &PoolState, bytes: u64) -> bool {
        bytes.saturating_add(self.held_back(state)) <= self.budget.free_bytes()
    }

    /// Adds `bytes` to the reservation `held`, unless less memory than the floors would remain. Returns whether the
    /// bytes were reserved.
    pub fn hold(&self, held: &mut Reservation, bytes: u64) -> bool {
        let state = self.state();
        self.may_hold(&state, bytes) && held.resize(held.bytes() + bytes).is_ok()
    }

    /// Makes an empty reservation.
    pub fn nothing(&self, what: &'static str) -> inshore_store::Result<Reservation> {
        Ok(self.budget.reserve(0, what)?)
    }
}

/// One operator's right to a part of the budget. The pool reserves the operator's floor until the operator begins.
#[derive(Debug)]
pub(crate) struct Claim {
    memory: Arc<Memory>,
    floor: u64,
    partitions: usize,
    taken: Mutex<ClaimState>,
    /// True while the pool reserves the floor of the operator.
    is_waiting: AtomicBool,
}

#[derive(Debug)]
enum ClaimState {
    Nothing,
    /// The operator has begun. The fields are the bytes per partition, and the reservation for partitions that have
    /// not begun.
    Share(u64, Reservation),
    /// The operator needs no memory.
    Dropped,
}

impl Claim {
    /// Takes a part of the budget for one partition. Each partition calls this function once.
    pub fn take(&self, what: &'static str) -> inshore_store::Result<Budget> {
        let mut taken = self.taken.lock().expect("no panic under this lock");
        let memory = &*self.memory;
        if matches!(*taken, ClaimState::Nothing) {
            let mut state = memory.state();
            self.begin(&mut state);
            let free = memory.budget.free_bytes().saturating_sub(memory.held_back(&state));
            let wanted = if state.waiting == 0 { free - free / 8 } else { free / 2 };
            let share = wanted.max(self.floor) / self.partitions as u64;
            let all = memory.budget.reserve(share * self.partitions as u64, what)?;
            *taken = ClaimState::Share(share, all);
        }
        let _state = memory.state();
        match &mut *taken {
            ClaimState::Share(share, all) if all.bytes() >= *share => {
                all.resize(all.bytes() - *share)?;
                Ok(memory.budget.part(*share, 1, what)?)
            }
            // A partition that runs again gets its share of the floor.
            _ => Ok(memory.budget.part(self.floor / self.partitions as u64, 1, what)?),
        }
    }

    /// Releases the floor of an operator that needs no part of the budget.
    pub fn drop_floor(&self) {
        let mut taken = self.taken.lock().expect("no panic under this lock");
        if matches!(*taken, ClaimState::Nothing) {
            self.begin(&mut self.memory.state());
            *taken = ClaimState::Dropped;
        }
    }

    /// Releases the floor of an operator that has taken its memory or needs none, unless the operator may run again.
    fn begin(&self, state: &mut PoolState) {
        if !state.are_again {
            self.end(state);
        }
    }

    fn end(&self, state: &mut PoolState) {
        if self.is_waiting.swap(false, Ordering::Relaxed) {
            state.floors -= self.floor;
            state.waiting -= 1;
        }
    }

    pub fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.end(&mut self.memory.state());
    }
}

impl Display for Memory {
    fn fmt(&self, text: &mut Formatter<'_>) -> fmt::Result {
        write!(text, "{} of a job's budget", format_bytes(self.budget.memory_bytes()))
    }
}

impl MemoryPool for Memory {
    fn name(&self) -> &str {
        "budget"
    }

    fn grow(&self, _: &MemoryReservation, additional: usize) {
        let state = &mut *self.state();
        if state.held.resize(state.held.bytes() + additional as u64).is_err() {
            state.owed += additional as u64;
        }
    }

    fn shrink(&self, _: &MemoryReservation, shrink: usize) {
        let state = &mut *self.state();
        let spare = in_flight_bytes(&self.budget);
        let from_owed = state.owed.saturating_sub(spare).min(shrink as u64);
        state.owed -= from_owed;
        let left = state.held.bytes().saturating_sub(shrink as u64 - from_owed);
        let _ = state.held.resize(left);
    }

    fn try_grow(&self, reservation: &MemoryReservation, additional: usize) -> Result<()> {
        // A batch without columns takes no memory. If its reservation failed, an exchange would write such batches to
        // files in an endless loop.
        if additional == 0 {
            return Ok(());
        }
        let consumer = reservation.consumer().name();
        let is_partial = consumer.starts_with("Partial") || consumer.starts_with("GroupedHashAggregate");
        let size = reservation.size() as u64 + additional as u64;
        let state = &mut *self.state();
        if (is_partial && size > self.partial_bytes) || !self.may_hold(state, additional as u64) {
            return Err(self.refused(state, consumer, size));
        }
        let more = state.held.bytes() + additional as u64;
        state.held.resize(more).map_err(|_| self.refused(state, consumer, size))
    }

    fn reserved(&self) -> usize {
        self.state().held.bytes() as usize
    }

    fn memory_limit(&self) -> MemoryLimit {
        MemoryLimit::Finite(self.budget.memory_bytes() as usize)
    }
}

impl Memory {
    fn refused(&self, state: &PoolState, consumer: &str, size: u64) -> DataFusionError {
        let free = self.budget.free_bytes().saturating_sub(self.held_back(state));
        let (size, free) = (format_bytes(size), format_bytes(free));
        DataFusionError::ResourcesExhausted(format!("{consumer} needs {size}, and {free} are free"))
    }
}
