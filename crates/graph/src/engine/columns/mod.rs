//! A superstep of all vertices, column by column: edges lie by ranges of their destinations, so that the updates of one range
//! fit in memory, or in a cache (Zhu, Han and Chen, "GridGraph", 2015; Beamer, Asanović and Patterson, "Reducing PageRank
//! communication via propagation blocking", 2017).
//!
//! ```text
//!                  destinations ──►
//!            ┌────────┬────────┬────────┐    messages   of all senders, in order: an array, or a file of each thread
//!   senders  │ column │ column │ column │    a column    its edges in order, packed: sender and destination are one number,
//!      │     │   0    │   1    │   2    │                and a frame keeps how far apart they are
//!      ▼     └────────┴────────┴────────┘    cells       of one column, which one thread combines without any lock
//! ```
//!
//! Columns are cut once, by walking over the rows in order: nothing is sorted. In each superstep every vertex writes its
//! message down; then each thread takes a column, adds up its edges' messages in cells, and gives its vertices their new
//! states when it is its turn. Messages are read in order for each column: where they do not fit in memory, their file is
//! read once for each column, and columns are as wide as cells have room. Where that are many columns for the drive, all
//! threads work on one of them, each on a part of the senders, and share its cells, so that it can be as much wider.
//!
//! Cost, V vertices, E edges in c columns: cutting reads and writes about 2.5 E bytes (Kronecker graphs). A superstep reads
//! about 2 E, where they do not stay in memory, and with messages of m bytes on flash writes m V and reads c m V. An edge
//! takes a core 5 to 7 ns (scale 24, all in memory), of which unpacking is a quarter.

mod add;
mod cut;
mod messages;
mod read;
mod senders;

use std::{
    ops::Range,
    sync::atomic::{AtomicUsize, Ordering},
    thread::ScopedJoinHandle,
};

use inshore_store::{Buffer, DriveProfile, Job, format_bytes, taken_bytes};

use self::{
    add::{Adder, Own, SharedCells},
    cut::Cut,
    messages::{MessageWriter, Messages, Part},
    senders::Senders,
};
use super::{
    Engine, Finalizing, Layout, Message, State, Step, VertexProgram, chunks, frontier, frontier_keys,
    state::{self, StatePeek},
};
use crate::{
    Error, Regime, Result, Tuning,
    csr::{self, Csr, Degrees, PAGE_VERTICES, RANGE_UNIT, parallel_ranges},
    turns::Turns,
};

type Packing = inshore_sortreduce::Packing<u64, ()>;

/// Cells of a column that a core's caches hold: 4 MiB were the quickest of 1 to 16, on cores with 2 MiB of their own.
const CACHE_BYTES: u64 = 4 << 20;
/// Columns begin at multiples of this many vertices: whole blocks of vertex state.
const WIDTH_UNIT: u64 = 16 << 10;
const WIDTH_MAX: u64 = 1 << 31;
const CHUNK_BYTES_MIN: usize = 8 << 10;
const CHUNK_BYTES_MAX: usize = 64 << 10;
/// Bytes that a packed edge is taken to need in the estimate of lists: twice what it needs in most graphs.
const EDGE_BYTES: u64 = 6;
/// Columns that are taken to be needed before their width is known.
const COLUMNS_USUAL: u64 = 64;
/// From so much free memory on buffers are as large as is good for a drive.
const LARGE_BYTES: u64 = 48 << 20;
/// Memory that is left for what is not told.
const SLACK_BYTES: u64 = 128 << 10;

/// How columns are cut and what lies where.
#[derive(Clone, Copy, Debug)]
struct Plan {
    workers: usize,
    /// Vertices in a column.
    width: u64,
    /// What packed edges are written and read in.
    chunk_bytes: usize,
    /// Edges of so many bytes stay in memory.
    held_bytes: u64,
    messages_in_memory: bool,
    /// All threads work on one column and share its cells.
    is_shared: bool,
    all_message_bytes: u64,
    state_in_memory: bool,
    /// Windows of edges that a worker has while edges are cut.
    windows: usize,
    /// Supersteps that go through sort-reduce are to follow.
    has_sparse: bool,
}

/// What [`Columns::new`] is asked.
pub(crate) struct Asked<'a> {
    /// Whose edges are walked along.
    pub rows: &'a Csr,
    /// Vertices with edges, at most.
    pub senders: u64,
    /// Supersteps of all vertices that are to come.
    pub supersteps: u32,
    /// Memory that the algorithm itself keeps.
    pub kept_bytes: u64,
    /// Whether supersteps of some vertices come too.
    pub has_sparse: bool,
}

impl Plan {
    /// `None` where other ways are better, or nothing else fits.
    fn new<P: VertexProgram>(job: &Job, tuning: &Tuning, asked: &Asked) -> Option<Plan> {
        if tuning.strategy.is_some() || P::WEIGHTED {
            return None;
        }
        let vertices = asked.rows.vertices;
        let message_bytes = size_of::<P::Message>() as u64;
        let free = job.budget().free_bytes().checked_sub(asked.kept_bytes)?;
        let threads = job.budget().threads();
        let is_forced = tuning.column_vertices.is_some();
        // Few supersteps do not pay for cutting, and cells of all vertices that a cache holds are quick anyhow.
        let cells_bytes = vertices * message_bytes;
        let are_cells_quick = cells_bytes <= (threads as u64 * CACHE_BYTES).min(free / 4);
        if !is_forced && (asked.supersteps < 2 || are_cells_quick) {
            return None;
        }
        let beside = frontier::memory_bytes(frontier_keys(vertices, free))
            + threads as u64 * csr::CURSOR_BYTES
            + senders::memory_bytes(vertices)
            + SLACK_BYTES;
        let sparse = if asked.has_sparse {
            let (workers, window_bytes) = chunks::workers(threads, free, false);
            chunks::memory_bytes(workers, window_bytes, false)
        } else {
            0
        };
        let entries = asked.rows.entries;
        let free = free.checked_sub(beside + sparse)?;
        let (windows, chunk_bytes) =
            if free < LARGE_BYTES { (2, CHUNK_BYTES_MAX / 2) } else { (4, CHUNK_BYTES_MAX) };
        let in_cache = (CACHE_BYTES / message_bytes).next_multiple_of(WIDTH_UNIT);
        let plan = Plan {
            workers: threads,
            width: tuning.column_vertices.unwrap_or(in_cache).clamp(1, WIDTH_MAX),
            chunk_bytes: if is_forced { CHUNK_BYTES_MIN } else { chunk_bytes },
            held_bytes: 0,
            messages_in_memory: true,
            is_shared: false,
            all_message_bytes: asked.senders * message_bytes,
            state_in_memory: true,
            windows,
            has_sparse: asked.has_sparse,
        };
        let state_bytes = state::memory_bytes::<P::State>(vertices);
        let flash_bytes = state::flash_memory_bytes::<P::State>(vertices);
        let messages = taken_bytes(plan.all_message_bytes as usize) as u64;
        let fits = |plan: Plan, fixed: u64| plan.fits(free, fixed, (vertices, entries), message_bytes);
        if tuning.regime != Some(Regime::External)
            && let Some(plan) = fits(plan, state_bytes + messages)
        {
            let held_bytes = if tuning.regime == Some(Regime::SemiExternal) { 0 } else { plan.held_bytes };
            return Some(Plan { held_bytes, ..plan });
        }
        if tuning.regime.is_some_and(|regime| regime != Regime::External) {
            return None;
        }
        let plan = Plan { state_in_memory: false, ..plan };
        if tuning.regime.is_none()
            && let Some(plan) = fits(plan, flash_bytes + messages)
        {
            return Some(plan);
        }
        let plan = Plan { messages_in_memory: false, ..plan };
        if is_forced {
            return fits(Plan { is_shared: threads > 1, ..plan }, flash_bytes);
        }
        // Messages are read for each column: as few as can be.
        let lists = plan.lists_bytes(entries, COLUMNS_USUAL);
        let room = free.checked_sub(flash_bytes + plan.beside_cells() + lists)?;
        // As wide as can be; or such that each thread has as many of them as the others.
        let plans = [(false, false), (false, true), (true, false)];
        let widest = |(is_shared, is_even): (bool, bool)| {
            let plan = Plan { is_shared, ..plan };
            let cells = whole_bytes(room / plan.cell_arrays()) / message_bytes / WIDTH_UNIT * WIDTH_UNIT;
            let columns = vertices.div_ceil(cells.max(WIDTH_UNIT));
            let columns = if is_even { columns.next_multiple_of(threads as u64) } else { columns };
            let width = vertices.div_ceil(columns).next_multiple_of(WIDTH_UNIT).min(WIDTH_MAX);
            fits(Plan { width, ..plan }, flash_bytes)
        };
        let costs = Costs::new(job, entries, asked.senders * message_bytes, message_bytes);
        let timed = |plan: Plan| (costs.of_columns(&plan, vertices), plan);
        let plans = plans.into_iter().filter(|&(is_shared, _)| !is_shared || threads > 1);
        let (seconds, plan) =
            plans.filter_map(widest).map(timed).min_by(|(one, _), (other, _)| one.total_cmp(other))?;
        let supersteps = f64::from(asked.supersteps);
        tracing::debug!(seconds, sorted = costs.of_sorting(), cutting = costs.of_cutting(), "columns");
        (costs.of_cutting() + seconds * supersteps < costs.of_sorting() * supersteps).then_some(plan)
    }

    /// For `--explain`, before anything is done.
    fn told(&self, vertices: u64) -> String {
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

    /// Memory of places and checksums of chunks, the last one of each worker and column among them.
    fn lists_bytes(&self, entries: u64, columns: u64) -> u64 {
        (entries * EDGE_BYTES / self.chunk_bytes as u64 + self.workers as u64 * columns)
            * cut::listed_bytes(self)
    }

    /// Memory of workers beside cells and what is fixed.
    fn beside_cells(&self) -> u64 {
        let if_flash = |in_memory: bool, bytes: u64| if in_memory { 0 } else { bytes };
        let of_messages = |bytes| if_flash(self.messages_in_memory, bytes);
        let states = if_flash(self.state_in_memory, state::BUFFERS_BYTES as u64);
        let writing = states + of_messages(messages::WRITER_BYTES as u64);
        let adding = read::memory_bytes(self.chunk_bytes) + of_messages(messages::reader_bytes() as u64);
        let sums = of_messages(messages::sums_bytes(self.workers, self.all_message_bytes));
        sums + self.workers as u64 * writing.max(adding)
    }

    /// The plan with the largest chunks with which cutting, and then a superstep beside `fixed` bytes, fits.
    fn fits(
        self,
        free: u64,
        fixed: u64,
        (vertices, entries): (u64, u64),
        message_bytes: u64,
    ) -> Option<Plan> {
        let columns = vertices.div_ceil(self.width) as usize;
        let cells = taken_bytes(self.width as usize * message_bytes as usize) as u64 * self.cell_arrays();
        let mut plan = self;
        loop {
            let lists = plan.lists_bytes(entries, columns as u64);
            let cutting = lists + cut::memory_bytes(&plan, columns);
            let running = lists + fixed + cells + plan.beside_cells();
            if cutting <= free && running <= free {
                if plan.state_in_memory {
                    // What is cut stays while it is cut and later.
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

    /// Arrays of cells: each thread has its own, or all share one.
    fn cell_arrays(&self) -> u64 {
        if self.is_shared { 1 } else { self.workers as u64 }
    }
}

/// Estimates of seconds, to choose by: of cutting, and of one superstep.
struct Costs {
    edges: f64,
    /// All messages, and one.
    messages_bytes: f64,
    message_bytes: f64,
    threads: f64,
    /// Bytes a second.
    read: f64,
    written: f64,
}

/// What a drive that nobody measured is taken to do, bytes a second.
const USUAL_RATE: f64 = 1e9;

impl Costs {
    fn new(job: &Job, entries: u64, messages_bytes: u64, message_bytes: u64) -> Costs {
        let profile = job.store().drive_profile();
        const MEASURED: u64 = 1 << 30;
        let rate = |seconds: fn(&DriveProfile) -> f64| {
            profile.as_ref().map_or(USUAL_RATE, |profile| MEASURED as f64 / seconds(profile))
        };
        Costs {
            edges: entries as f64,
            messages_bytes: messages_bytes as f64,
            message_bytes: message_bytes as f64,
            threads: job.budget().threads() as f64,
            read: rate(|profile| profile.read_seconds(MEASURED, messages::WINDOW_BYTES as u64, true)),
            written: rate(|profile| profile.write_seconds(MEASURED, messages::WINDOW_BYTES as u64, true)),
        }
    }

    /// So many nanoseconds of a core for each edge.
    fn cores(&self, nanoseconds: f64) -> f64 {
        self.edges * nanoseconds / 1e9 / self.threads
    }

    fn drive(&self, read_bytes: f64, written_bytes: f64) -> f64 {
        read_bytes / self.read + written_bytes / self.written
    }

    /// Packed edges are read, and messages for each column. (Measured at 64 MiB, scale 25, two cores: 9 and 12 ns of a core for an
    /// edge.)
    fn of_columns(&self, plan: &Plan, vertices: u64) -> f64 {
        let columns = vertices.div_ceil(plan.width) as f64;
        // The last ones are waited for, where threads have not as many of them each.
        let busiest = (columns / self.threads).ceil() * self.threads / columns;
        let cores = self.cores(if plan.is_shared { 12.0 } else { 9.0 * busiest });
        cores.max(self.drive(2.2 * self.edges + columns * self.messages_bytes, self.messages_bytes))
    }

    fn of_cutting(&self) -> f64 {
        self.cores(10.0).max(self.drive(4.0 * self.edges, 2.2 * self.edges))
    }

    /// About a third of what is sent goes to the drive and back. (Measured at 16 MiB, scale 25: 72 ns of a core for an edge.)
    fn of_sorting(&self) -> f64 {
        let spilled = (4.0 + self.message_bytes) / 3.0 * self.edges;
        self.cores(60.0).max(self.drive(4.0 * self.edges + spilled, spilled))
    }
}

/// The largest buffer that takes no more than so many bytes.
fn whole_bytes(bytes: u64) -> u64 {
    let whole = |unit: u64| bytes / unit * unit;
    [whole(2 << 20), whole(4 << 10)]
        .into_iter()
        .find(|&len| len > 0 && taken_bytes(len as usize) as u64 <= bytes)
        .unwrap_or(0)
}

/// Edges by columns.
pub(crate) struct Columns {
    plan: Plan,
    rows: Csr,
    senders: Senders,
    /// Bits of a destination within its column; the sender is above them.
    bits: u32,
    /// Each the edges of a part of the senders, one after the other.
    cuts: Vec<Cut>,
}

impl Columns {
    /// Cuts the edges that are asked for, where that is better than other ways. `None`
    /// too where the store has no room for it.
    pub fn new<P: VertexProgram>(job: &Job, tuning: &Tuning, asked: &Asked) -> Result<Option<Columns>> {
        let Some(plan) = Plan::new::<P>(job, tuning, asked) else { return Ok(None) };
        tracing::debug!(?plan, "columns");
        job.progress().tell(|| plan.told(asked.rows.vertices));
        let rows = asked.rows.unweighted();
        let senders = Senders::new(job, &rows, plan.workers)?;
        match cut::cut(job, plan, rows, senders) {
            Ok(columns) => Ok(Some(columns)),
            Err(Error::Store(error)) if error.is_no_space() && tuning.column_vertices.is_none() => {
                tracing::debug!("no room for columns");
                job.progress().tell(|| "no room on the drive for columns".to_string());
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn vertices(&self) -> u64 {
        self.rows.vertices
    }

    fn count(&self) -> usize {
        self.vertices().div_ceil(self.plan.width) as usize
    }

    /// The vertices of a column.
    fn range(&self, column: usize) -> Range<u64> {
        let start = column as u64 * self.plan.width;
        start..(start + self.plan.width).min(self.vertices())
    }

    fn entries(&self) -> u64 {
        self.rows.entries
    }

    /// Edges are checked when they are read from flash: this is for those that were not what they should be when they were
    /// cut.
    fn bad_frame(&self) -> Error {
        let (found, expected) = ("numbers that are none".to_string(), "senders and destinations".to_string());
        Error::BadGraph { name: self.rows.edges.name().to_string(), what: "a column", found, expected }
    }
}

impl<S: State> Engine<S> {
    /// As [`Engine::new`], for supersteps by columns if there are any.
    pub fn with_columns<P: VertexProgram<State = S>>(
        job: &Job,
        columns: Option<&Columns>,
        vertices: u64,
        tuning: &Tuning,
        kept_bytes: u64,
        initial: impl Fn(u32) -> S + Sync,
    ) -> Result<Engine<S>> {
        let Some(Columns { plan, .. }) = columns else {
            return Self::new::<P>(job, vertices, tuning, kept_bytes, initial);
        };
        let free = job.budget().free_bytes().saturating_sub(kept_bytes);
        let (workers, window_bytes) = chunks::workers(job.budget().threads(), free, false);
        let frontier_keys = frontier_keys(vertices, free);
        let mut fixed = frontier::memory_bytes(frontier_keys);
        if plan.has_sparse {
            fixed += chunks::memory_bytes(workers, window_bytes, false);
        }
        fixed += match plan.state_in_memory {
            true => state::memory_bytes::<S>(vertices),
            false => state::flash_memory_bytes::<S>(vertices),
        };
        let layout = Layout {
            workers,
            window_bytes,
            state_in_memory: plan.state_in_memory,
            is_direct: false,
            frontier_keys,
            sort_bytes: free.saturating_sub(fixed),
        };
        Self::laid_out(job, vertices, tuning, layout, None, initial)
    }

    /// As [`Engine::superstep`] with all vertices active.
    pub fn column_step<P: VertexProgram<State = S>>(
        &mut self,
        program: &mut P,
        columns: &Columns,
        collect: bool,
    ) -> Result<Step> {
        let entries = columns.entries();
        self.has_columns = true;
        self.goes("combined column by column");
        self.begin_superstep(entries);
        self.edges_traversed += entries;
        let (messages, said) = self.write_messages(program, columns)?;
        self.edges_sent = said.edges;
        program.gathered(said.gathered);

        let program = &*program;
        match columns.plan.is_shared {
            false => self.add_side_by_side(program, columns, &messages, collect),
            true => self.add_together(program, columns, &messages, collect),
        }
    }

    /// Each thread adds up a column of its own.
    fn add_side_by_side<P: VertexProgram<State = S>>(
        &mut self,
        program: &P,
        columns: &Columns,
        messages: &Messages,
        collect: bool,
    ) -> Result<Step> {
        let (job, plan, count) = (self.job.clone(), columns.plan, columns.count());
        let cell_bytes = plan.width as usize * size_of::<P::Message>();
        let mut workers = Vec::with_capacity(plan.workers);
        for _ in 0..plan.workers.min(count) {
            let cells = Buffer::zeroed(job.budget(), cell_bytes, "updates of a column")?;
            workers.push((cells, Adder::new(&job, columns, messages, 0..columns.cuts.len())?));
        }
        let finalizing = Finalizing::new(self, program, collect, None)?;
        let (turns, next) = (Turns::new(finalizing), AtomicUsize::new(0));
        let work = |mut cells: Buffer, mut adder: Adder<P::Message>| -> Result<()> {
            loop {
                let column = next.fetch_add(1, Ordering::Relaxed);
                if column >= count {
                    return Ok(());
                }
                job.check_cancelled()?;
                let range = columns.range(column);
                let cells = &mut cells.typed_mut::<P::Message>()[..(range.end - range.start) as usize];
                cells.fill(P::NOTHING);
                adder.add_up(&mut Own { program, cells }, column)?;
                // Lists of active vertices and states on flash are written in order.
                let in_order = collect || !plan.state_in_memory;
                let turn = if in_order { turns.wait(column) } else { turns.any() };
                let Some(mut turn) = turn else { return Ok(()) };
                turn.value.column(range.start as u32, cells)?;
                turns.next(turn);
            }
        };
        std::thread::scope(|scope| {
            let spawn = |(cells, adder)| {
                let (turns, work) = (&turns, &work);
                scope.spawn(move || turns.guard(|| work(cells, adder)))
            };
            all_joined(workers.into_iter().map(spawn).collect())
        })?;
        turns.into_value().finish()
    }

    /// All threads add up one column after the other, each what its part of the senders says.
    fn add_together<P: VertexProgram<State = S>>(
        &mut self,
        program: &P,
        columns: &Columns,
        messages: &Messages,
        collect: bool,
    ) -> Result<Step> {
        let job = self.job.clone();
        let cell_bytes = columns.plan.width as usize * size_of::<P::Message>();
        let mut cells = Buffer::zeroed(job.budget(), cell_bytes, "updates of a column")?;
        let adder = |cut| Adder::new(&job, columns, messages, cut..cut + 1);
        let mut adders = (0..columns.cuts.len()).map(adder).collect::<Result<Vec<Adder<P::Message>>>>()?;
        let mut finalizing = Finalizing::new(self, program, collect, None)?;
        for column in 0..columns.count() {
            job.check_cancelled()?;
            let range = columns.range(column);
            let len = (range.end - range.start) as usize;
            cells.typed_mut::<P::Message>()[..len].fill(P::NOTHING);
            let shared = &cells.typed_mut::<<P::Message as Message>::Cell>()[..len];
            std::thread::scope(|scope| {
                let work = |adder| scope.spawn(move || add_to(adder, column, program, shared));
                all_joined(adders.iter_mut().map(work).collect())
            })?;
            finalizing.column(range.start as u32, &cells.typed::<P::Message>()[..len])?;
        }
        finalizing.finish()
    }

    /// What all senders have to say.
    fn write_messages<P: VertexProgram<State = S>>(
        &mut self,
        program: &P,
        columns: &Columns,
    ) -> Result<(Messages, Said)> {
        let job = self.job.clone();
        let (vertices, workers) = (columns.vertices(), columns.plan.workers);
        let states = self.state.peeks(&job, workers)?;
        let write = |states: &mut StatePeek<S>, writer: &mut MessageWriter<P::Message>, range| {
            walk(&job, &columns.rows, range, |vertex, degree| {
                let state = states.get(vertex)?;
                let mut edges = 0;
                if degree > 0 {
                    let message = program.edge_program(vertex, state, degree);
                    edges = message.map_or(0, |_| degree.into());
                    writer.push(message.unwrap_or(P::NOTHING))?;
                }
                Ok(Said { gathered: program.gather(state, degree), edges })
            })
        };
        if columns.plan.messages_in_memory {
            let bytes = columns.senders.count().max(1) as usize * size_of::<P::Message>();
            let mut buffer = Buffer::zeroed(job.budget(), bytes, "messages of vertices")?;
            let cells = &*buffer.typed_mut::<<P::Message as Message>::Cell>();
            let workers = states.into_iter().map(|states| (states, Said::default())).collect();
            let workers = parallel_ranges(vertices, workers, |(states, said), range| {
                let mut writer = MessageWriter::memory(cells, columns.senders.before(range.start));
                said.add(write(states, &mut writer, range)?);
                Ok(())
            })?;
            let said = Said::sum(workers.into_iter().map(|(_, said)| said));
            return Ok((Messages::Memory(buffer), said));
        }
        // Each thread writes a file of its own.
        let step = vertices.div_ceil(workers as u64).next_multiple_of(RANGE_UNIT);
        let parts = std::thread::scope(|scope| {
            let write = |mut states: StatePeek<'_, S>, start| -> Result<(Part, Said)> {
                let mut writer = MessageWriter::flash(&job)?;
                let said = write(&mut states, &mut writer, start..(start + step).min(vertices))?;
                Ok((Part { first_sender: columns.senders.before(start), file: writer.finish()? }, said))
            };
            let starts = (0..vertices).step_by(step as usize);
            let spawn = |(states, start)| scope.spawn(move || write(states, start));
            all_joined(states.into_iter().zip(starts).map(spawn).collect())
        })?;
        let (parts, said): (Vec<_>, Vec<_>) = parts.into_iter().unzip();
        Ok((Messages::Flash(parts), Said::sum(said)))
    }
}

/// Sums over the vertices that were asked for their messages.
#[derive(Clone, Copy, Default)]
struct Said {
    /// Of [`VertexProgram::gather`].
    gathered: u64,
    /// The edges of those that had one.
    edges: u64,
}

impl Said {
    fn add(&mut self, other: Said) {
        self.gathered += other.gathered;
        self.edges += other.edges;
    }

    fn sum(all: impl IntoIterator<Item = Said>) -> Said {
        let mut sum = Said::default();
        all.into_iter().for_each(|said| sum.add(said));
        sum
    }
}

/// Calls `each` with every vertex of a range and the number of its edges, and gives the sum of what it gives.
fn walk(
    job: &Job,
    rows: &Csr,
    range: Range<u64>,
    mut each: impl FnMut(u32, u32) -> Result<Said>,
) -> Result<Said> {
    let mut degrees = Degrees::new(job, rows)?;
    let (mut sum, mut start) = (Said::default(), range.start);
    while start < range.end {
        job.check_cancelled()?;
        let end = ((start / PAGE_VERTICES + 1) * PAGE_VERTICES).min(range.end);
        for (vertex, &degree) in (start as u32..end as u32).zip(degrees.from(start as u32)?) {
            sum.add(each(vertex, degree)?);
        }
        start = end;
    }
    Ok(sum)
}

/// One thread's share of a column.
fn add_to<P: VertexProgram>(
    adder: &mut Adder<'_, P::Message>,
    column: usize,
    program: &P,
    cells: &[<P::Message as Message>::Cell],
) -> Result<()> {
    adder.add_up(&mut SharedCells { program, cells }, column)
}

impl<P: VertexProgram> Finalizing<'_, '_, P> {
    /// Gives the vertices of a column their new states.
    fn column(&mut self, first: u32, cells: &[P::Message]) -> Result<()> {
        for (vertex, &cell) in (first..).zip(cells) {
            if P::EVERY_VERTEX || cell != P::NOTHING {
                self.vertex(vertex, cell)?;
            }
        }
        Ok(())
    }
}

/// Waits for all threads; gives the first error.
fn all_joined<T>(threads: Vec<ScopedJoinHandle<'_, Result<T>>>) -> Result<Vec<T>> {
    let ends: Vec<_> =
        threads.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect();
    ends.into_iter().collect()
}
