//! Plans columns: how edges are partitioned, which arrays are in memory and which on flash, and whether columns are
//! faster than other methods. The choice is a pure function of estimates.

use inshore_store::{DriveProfile, Job, format_bytes, taken_bytes};

use super::{cut, messages, read, senders};
use crate::{
    Regime, csr,
    engine::{
        chunks,
        estimates::{BlockingPlan, Dense, DriveRates, Estimates},
        frontier::{self, frontier_keys},
        state,
    },
};

/// Size of a column's accumulators in bytes, such that they fit in a core's caches. Of the sizes from 1 to 16 MiB, 4
/// MiB was the fastest, on cores with a cache of 2 MiB.
const CACHE_BYTES: u64 = 4 << 20;
/// Columns begin at multiples of this number of vertices, which fill whole blocks of vertex state.
const WIDTH_UNIT: u64 = 16 << 10;
const WIDTH_MAX: u64 = 1 << 31;
const CHUNK_BYTES_MIN: usize = 8 << 10;
const CHUNK_BYTES_MAX: usize = 64 << 10;
/// The assumed size of a packed edge in bytes, for an estimate of the memory of lists of chunks. In most graphs a
/// packed edge has half this size.
const EDGE_BYTES: u64 = 6;
/// The assumed number of columns as long as their width is not known.
const COLUMNS_USUAL: u64 = 64;
/// With at least this many bytes of free memory, buffers have the size at which a drive is fastest.
const LARGE_BYTES: u64 = 48 << 20;
/// The bytes of memory that are left free for allocations that are not reserved.
const SLACK_BYTES: u64 = 128 << 10;
/// Assumed rate of a drive that was not measured, in bytes per second.
const USUAL_RATE: f64 = 1e9;

impl Dense {
    /// Describes the supersteps in which all vertices are active, with the measured rates of the job's drive.
    pub fn new(job: &Job, senders: u64, supersteps: u32, has_sparse: bool) -> Dense {
        const MEASURED: u64 = 1 << 30;
        let profile = job.store().drive_profile();
        let rate = |seconds: fn(&DriveProfile) -> f64| {
            profile.as_ref().map_or(USUAL_RATE, |profile| MEASURED as f64 / seconds(profile))
        };
        let drive = DriveRates {
            read: rate(|profile| profile.read_seconds(MEASURED, messages::WINDOW_BYTES as u64, true)),
            written: rate(|profile| profile.write_seconds(MEASURED, messages::WINDOW_BYTES as u64, true)),
        };
        Dense { senders, supersteps, has_sparse, drive }
    }
}

/// Chooses a plan; returns `None` if other methods are faster, or no plan fits.
pub(crate) fn choose(estimates: &Estimates) -> Option<BlockingPlan> {
    let dense = estimates.dense?;
    let is_forced = estimates.tuning.column_vertices.is_some();
    // With few supersteps, partitioning takes more time than columns save. Accumulators that fit in caches are fast
    // without columns.
    let accumulators_bytes = estimates.vertices * estimates.needs.message_bytes;
    let free = estimates.free_bytes.checked_sub(estimates.kept_bytes)?;
    let are_accumulators_fast = accumulators_bytes <= (estimates.threads as u64 * CACHE_BYTES).min(free / 4);
    if !is_forced && (dense.supersteps < 2 || are_accumulators_fast) {
        return None;
    }
    let plans = possible(estimates);
    let first = *plans.first()?;
    if is_forced || first.messages_in_memory {
        return Some(first);
    }
    let costs = Costs::new(estimates, &dense);
    let timed = |plan: BlockingPlan| (costs.of_columns(&plan, estimates.vertices), plan);
    let (seconds, plan) = plans.into_iter().map(timed).min_by(|(one, _), (other, _)| one.total_cmp(other))?;
    let supersteps = f64::from(dense.supersteps);
    tracing::debug!(seconds, sorted = costs.of_sorting(), cutting = costs.of_cutting(), "columns");
    (costs.of_cutting() + seconds * supersteps < costs.of_sorting() * supersteps).then_some(plan)
}

/// Lists all plans that fit. Plans that keep more in memory come first.
pub(crate) fn possible(estimates: &Estimates) -> Vec<BlockingPlan> {
    all(estimates).unwrap_or_default()
}

fn all(estimates: &Estimates) -> Option<Vec<BlockingPlan>> {
    let Estimates { tuning, needs, vertices, edges, threads, .. } = *estimates;
    let dense = estimates.dense.filter(|_| tuning.strategy.is_none() && !needs.weighted)?;
    let message_bytes = needs.message_bytes;
    let free = estimates.free_bytes.checked_sub(estimates.kept_bytes)?;
    let is_forced = tuning.column_vertices.is_some();
    let beside = frontier::memory_bytes(frontier_keys(vertices, free))
        + threads as u64 * csr::CURSOR_BYTES
        + senders::memory_bytes(vertices)
        + SLACK_BYTES;
    let sparse = if dense.has_sparse {
        let (workers, window_bytes) = chunks::workers(threads, free, false);
        chunks::memory_bytes(workers, window_bytes, false)
    } else {
        0
    };
    let free = free.checked_sub(beside + sparse)?;
    let (windows, chunk_bytes) =
        if free < LARGE_BYTES { (2, CHUNK_BYTES_MAX / 2) } else { (4, CHUNK_BYTES_MAX) };
    let in_cache = (CACHE_BYTES / message_bytes).next_multiple_of(WIDTH_UNIT);
    let plan = BlockingPlan {
        workers: threads,
        width: tuning.column_vertices.unwrap_or(in_cache).clamp(1, WIDTH_MAX),
        chunk_bytes: if is_forced { CHUNK_BYTES_MIN } else { chunk_bytes },
        held_bytes: 0,
        messages_in_memory: true,
        is_shared: false,
        all_message_bytes: dense.senders * message_bytes,
        state_in_memory: true,
        windows,
        has_sparse: dense.has_sparse,
    };
    let messages = taken_bytes(plan.all_message_bytes as usize) as u64;
    let fits = |plan: BlockingPlan, fixed: u64| plan.fits(free, fixed, (vertices, edges), message_bytes);
    let mut plans = Vec::new();
    if tuning.regime != Some(Regime::External)
        && let Some(plan) = fits(plan, needs.state_bytes + messages)
    {
        let held_bytes = if tuning.regime == Some(Regime::SemiExternal) { 0 } else { plan.held_bytes };
        plans.push(BlockingPlan { held_bytes, ..plan });
    }
    if tuning.regime.is_some_and(|regime| regime != Regime::External) {
        return Some(plans);
    }
    let plan = BlockingPlan { state_in_memory: false, ..plan };
    if tuning.regime.is_none() {
        plans.extend(fits(plan, needs.flash_bytes + messages));
    }
    let plan = BlockingPlan { messages_in_memory: false, ..plan };
    if is_forced {
        plans.extend(fits(BlockingPlan { is_shared: threads > 1, ..plan }, needs.flash_bytes));
        return Some(plans);
    }
    // Messages on flash are read once per column, so the number of columns is made as small as possible.
    let lists = plan.lists_bytes(edges, COLUMNS_USUAL);
    let Some(room) = free.checked_sub(needs.flash_bytes + plan.beside_accumulators() + lists) else {
        return Some(plans);
    };
    // Columns are as wide as possible, or a little narrower such that all threads have the same number of columns.
    let widest = |(is_shared, is_even): (bool, bool)| {
        let plan = BlockingPlan { is_shared, ..plan };
        let accumulators =
            whole_bytes(room / plan.accumulator_arrays()) / message_bytes / WIDTH_UNIT * WIDTH_UNIT;
        let columns = vertices.div_ceil(accumulators.max(WIDTH_UNIT));
        let columns = if is_even { columns.next_multiple_of(threads as u64) } else { columns };
        let width = vertices.div_ceil(columns).next_multiple_of(WIDTH_UNIT).min(WIDTH_MAX);
        fits(BlockingPlan { width, ..plan }, needs.flash_bytes)
    };
    let ways = [(false, false), (false, true), (true, false)];
    plans.extend(ways.into_iter().filter(|&(is_shared, _)| !is_shared || threads > 1).filter_map(widest));
    Some(plans)
}

impl BlockingPlan {
    /// Describes the plan for the option `--explain`.
    pub fn describe(&self, vertices: u64) -> String {
        let place = |is_in_memory| if is_in_memory { "in memory" } else { "on flash" };
        format!(
            "vertex state {}, messages {}, edges in {} columns of {} vertices, {} of them in memory",
            place(self.state_in_memory),
            place(self.messages_in_memory),
            vertices.div_ceil(self.width),
            self.width,
            format_bytes(self.held_bytes),
        )
    }

    /// Returns the memory of the locations and checksums of chunks. The last, incomplete chunk of each worker and
    /// column counts too.
    fn lists_bytes(&self, entries: u64, columns: u64) -> u64 {
        (entries * EDGE_BYTES / self.chunk_bytes as u64 + self.workers as u64 * columns)
            * cut::listed_bytes(self)
    }

    /// Returns the memory that workers need in addition to accumulators and fixed buffers.
    fn beside_accumulators(&self) -> u64 {
        let if_flash = |in_memory: bool, bytes: u64| if in_memory { 0 } else { bytes };
        let of_messages = |bytes| if_flash(self.messages_in_memory, bytes);
        let states = if_flash(self.state_in_memory, state::BUFFERS_BYTES as u64);
        let writing = states + of_messages(messages::WRITER_BYTES as u64);
        let adding = read::memory_bytes(self.chunk_bytes) + of_messages(messages::reader_bytes() as u64);
        let sums = of_messages(messages::sums_bytes(self.workers, self.all_message_bytes));
        sums + self.workers as u64 * writing.max(adding)
    }

    /// Chooses the largest chunks with which both phases fit in `free` bytes. The first phase partitions edges. The
    /// second phase is a superstep, which also needs `fixed` bytes for other arrays.
    fn fits(
        self,
        free: u64,
        fixed: u64,
        (vertices, entries): (u64, u64),
        message_bytes: u64,
    ) -> Option<BlockingPlan> {
        let columns = vertices.div_ceil(self.width) as usize;
        let accumulators =
            taken_bytes(self.width as usize * message_bytes as usize) as u64 * self.accumulator_arrays();
        let mut plan = self;
        loop {
            let lists = plan.lists_bytes(entries, columns as u64);
            let cutting = lists + cut::memory_bytes(&plan, columns);
            let running = lists + fixed + accumulators + plan.beside_accumulators();
            if cutting <= free && running <= free {
                if plan.state_in_memory {
                    // Edges that are held in memory stay there during both phases, so they get the memory that neither
                    // phase needs.
                    plan.held_bytes = free - cutting.max(running);
                }
                return Some(plan);
            }
            if plan.chunk_bytes / 2 < CHUNK_BYTES_MIN {
                return None;
            }
            plan.chunk_bytes /= 2;
        }
    }

    /// Returns the number of accumulator arrays: one per thread, or one that all threads share.
    fn accumulator_arrays(&self) -> u64 {
        if self.is_shared { 1 } else { self.workers as u64 }
    }
}

/// Estimates the seconds that partitioning takes, and the seconds that one superstep takes.
struct Costs {
    edges: f64,
    /// The bytes of all messages together, and the bytes of one message.
    messages_bytes: f64,
    message_bytes: f64,
    threads: f64,
    drive: DriveRates,
}

impl Costs {
    fn new(estimates: &Estimates, dense: &Dense) -> Costs {
        let message_bytes = estimates.needs.message_bytes;
        Costs {
            edges: estimates.edges as f64,
            messages_bytes: (dense.senders * message_bytes) as f64,
            message_bytes: message_bytes as f64,
            threads: estimates.threads as f64,
            drive: dense.drive,
        }
    }

    /// Returns the seconds that all edges take if a core needs this number of nanoseconds per edge.
    fn cores(&self, nanoseconds: f64) -> f64 {
        self.edges * nanoseconds / 1e9 / self.threads
    }

    fn drive(&self, read_bytes: f64, written_bytes: f64) -> f64 {
        read_bytes / self.drive.read + written_bytes / self.drive.written
    }

    /// Estimates the seconds of a superstep by columns, which reads packed edges once and messages once per column. (A
    /// core needed 9 ns per edge, or 12 ns with shared accumulators. This was measured at 64 MiB on two cores, for a
    /// Kronecker graph of scale 25.)
    fn of_columns(&self, plan: &BlockingPlan, vertices: u64) -> f64 {
        let columns = vertices.div_ceil(plan.width) as f64;
        // Threads wait for those that process the last columns if the number of columns is not a multiple of the number
        // of threads.
        let busiest = (columns / self.threads).ceil() * self.threads / columns;
        let cores = self.cores(if plan.is_shared { 12.0 } else { 9.0 * busiest });
        cores.max(self.drive(2.2 * self.edges + columns * self.messages_bytes, self.messages_bytes))
    }

    fn of_cutting(&self) -> f64 {
        self.cores(10.0).max(self.drive(4.0 * self.edges, 2.2 * self.edges))
    }

    /// Estimates the seconds of a superstep through sort-reduce: about a third of the messages are written to the drive
    /// and read again. (The estimate is 60 ns of a core per edge. A core needed 72 ns, measured at 16 MiB for a
    /// Kronecker graph of scale 25.)
    fn of_sorting(&self) -> f64 {
        let spilled = (4.0 + self.message_bytes) / 3.0 * self.edges;
        self.cores(60.0).max(self.drive(4.0 * self.edges + spilled, spilled))
    }
}

/// Returns the size of the largest buffer that takes at most this number of bytes of memory.
fn whole_bytes(bytes: u64) -> u64 {
    let whole = |unit: u64| bytes / unit * unit;
    [whole(2 << 20), whole(4 << 10)]
        .into_iter()
        .find(|&len| len > 0 && taken_bytes(len as usize) as u64 <= bytes)
        .unwrap_or(0)
}
