//! The sort of rows. A sink fills arenas, workers sort the arenas and write runs, and runs are merged.

use std::{
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
};

use crossbeam_channel::{Receiver, Sender, unbounded};
use inshore_store::{FileWriter, Job, PAGE_BYTES};

use super::{
    arena::{Arena, ArenaPart, RunFacts},
    cursor::{ArenaCursor, Cursor, RowRun, RowRunCursor},
    keep,
    merge::{RowStats, SortedPart, SortedRows, Tree, common_of_runs},
    order::common_len,
    parts::{KeyOrder, cut_arenas, cut_runs},
    plan::{RowConfig, RowPlan},
    shape::{RowOperation, RowShape},
    workers::{RowShared, RowState, RowTask},
};
use crate::{Error, Result};

/// Sorts rows within a memory budget. The caller passes the input to [`RowSort::write`] or to one [`RowSink`].
/// [`RowSort::finish`] returns the rows in order. Rows with equal keys keep the order of the input.
pub struct RowSort<S: RowShape, O: RowOperation> {
    shared: Arc<RowShared<S, O>>,
    free: Receiver<Arena>,
    tasks: Option<Sender<RowTask>>,
    workers: Vec<JoinHandle<()>>,
    filling: PendingInput,
}

/// The part of the input that was not yet passed to the workers.
#[derive(Default)]
struct PendingInput {
    /// The byte offset in the input at which the next arena starts.
    place: u64,
    arena: Option<Arena>,
    /// The beginning of an incomplete row, which is copied to the start of the next arena.
    carry: Vec<u8>,
    bytes: u64,
}

impl<S: RowShape, O: RowOperation> RowSort<S, O> {
    /// Starts a sort: reserves the memory of the arenas, and starts the workers.
    ///
    /// # Errors
    /// Returns [`inshore_store::Error::BudgetTooSmall`] if `config.memory_bytes` is below
    /// [`super::smallest_row_memory_bytes`]. Returns [`inshore_store::Error::OverBudget`] if the job's budget has
    /// less free memory than configured.
    pub fn new(job: &Job, shape: S, operation: O, config: &RowConfig) -> Result<Self> {
        let plan = RowPlan::new(config, &shape)?;
        let (recycle, free) = unbounded();
        for _ in 0..plan.arenas {
            let _ = recycle.send(Arena::new(&plan, job.budget())?);
        }
        let found = config.keep.as_ref().map(|keep| keep::find(keep, &plan)).transpose()?.unwrap_or_default();
        let blocks = found.runs.iter().map(|(_, run)| run.blocks()).sum();
        let state =
            RowState { is_spilling: !found.runs.is_empty(), runs: found.runs, blocks, ..RowState::default() };
        let shared = Arc::new(RowShared {
            job: job.clone(),
            shape,
            operation,
            config: config.clone(),
            plan,
            recycle,
            state: Mutex::new(state),
            rows_in: AtomicU64::new(found.rows_in),
            bytes_kept: found.bytes,
            rows_kept: found.rows_in,
        });
        let (tasks, queue) = unbounded();
        let start = |_| {
            let (shared, queue) = (shared.clone(), queue.clone());
            thread::spawn(move || shared.work(&queue))
        };
        let workers = (0..config.threads.max(1)).map(start).collect();
        let filling = PendingInput { place: shared.bytes_kept, ..PendingInput::default() };
        Ok(RowSort { shared, free, tasks: Some(tasks), workers, filling })
    }

    /// Returns the number of bytes from the start of the input whose rows an interrupted sort saved in runs. The sink
    /// skips these bytes.
    pub fn bytes_kept(&self) -> u64 {
        self.shared.bytes_kept
    }

    /// Opens the sink, which takes the whole input from its start. Only one sink may be open, since the order of its
    /// bytes is the input order of the rows.
    pub fn sink(&mut self) -> RowSink<'_, S, O> {
        RowSink { sort: self }
    }

    /// Returns the buffer for the next bytes of the input. The buffer has at least one byte.
    fn space(&mut self) -> Result<&mut [u8]> {
        if self.filling.arena.is_none() {
            let mut arena = self.arena()?;
            let carry = &mut self.filling.carry;
            arena.bytes[..carry.len()].copy_from_slice(carry);
            arena.filled = carry.len();
            carry.clear();
            self.filling.arena = Some(arena);
        }
        let arena = self.filling.arena.as_mut().expect("set above");
        Ok(&mut arena.bytes[arena.filled..])
    }

    /// Accepts `len` bytes that the caller wrote to the start of [`RowSort::space`].
    fn advance(&mut self, len: usize) -> Result<()> {
        self.filling.bytes += len as u64;
        let arena = self.filling.arena.as_mut().expect("filled by the caller");
        arena.filled += len;
        if arena.filled == arena.bytes.len() { self.send_arena() } else { Ok(()) }
    }

    /// Takes the next bytes of the input, which may begin and end inside a row. Bytes whose rows an interrupted sort
    /// saved in runs are skipped.
    ///
    /// # Errors
    /// - Returns [`Error::RowTooLong`] if a row does not fit in memory.
    /// - Returns the error of a worker if a worker failed.
    /// - Returns [`inshore_store::Error::Cancelled`] if the job was cancelled.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        let passed_over = self.to_pass_over().min(bytes.len() as u64);
        self.filling.bytes += passed_over;
        bytes = &bytes[passed_over as usize..];
        while !bytes.is_empty() {
            let space = self.space()?;
            let part = space.len().min(bytes.len());
            space[..part].copy_from_slice(&bytes[..part]);
            bytes = &bytes[part..];
            self.advance(part)?;
        }
        Ok(())
    }

    fn to_pass_over(&self) -> u64 {
        self.shared.bytes_kept.saturating_sub(self.filling.bytes)
    }

    /// Passes a full arena to the workers.
    fn send_arena(&mut self) -> Result<()> {
        let Some(mut arena) = self.filling.arena.take() else { return Ok(()) };
        let shared = &self.shared;
        let whole = shared.shape.whole_rows_len(&arena.bytes[..arena.filled]);
        let rest = arena.filled - whole;
        if whole == 0 || rest > shared.plan.row_bytes_max {
            let limit = shared.plan.row_bytes_max as u64;
            return Err(Error::RowTooLong { name: shared.config.name, bytes: None, limit });
        }
        self.filling.carry.extend_from_slice(&arena.bytes[whole..arena.filled]);
        arena.filled = whole;
        self.send(RowTask::Sort(self.filling.place, arena));
        self.filling.place += whole as u64;
        Ok(())
    }

    /// Passes the last arena to the workers, and returns the bytes of an incomplete last row.
    fn flush(&mut self) -> Result<Vec<u8>> {
        if let Some(arena) = &self.filling.arena {
            let whole = self.shared.shape.whole_rows_len(&arena.bytes[..arena.filled]);
            if whole > 0 {
                self.send_arena()?;
            } else {
                self.filling.carry.extend_from_slice(&arena.bytes[..arena.filled]);
                self.filling.arena = None;
            }
        }
        Ok(std::mem::take(&mut self.filling.carry))
    }

    /// Returns an empty arena. If no arena is free, the sorted arenas in memory are written as runs, and the function
    /// waits for a free arena.
    fn arena(&self) -> Result<Arena> {
        self.check()?;
        if let Ok(arena) = self.free.try_recv() {
            return Ok(arena);
        }
        self.spill();
        // A worker that fails still returns its arena, so the wait ends.
        let arena = self.free.recv().expect("the sender lives in `shared`");
        self.check()?;
        Ok(arena)
    }

    fn check(&self) -> Result<()> {
        self.shared.job.check_cancelled()?;
        match self.shared.state().error.take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Writes the sorted arenas in memory as runs. From this call on, arenas are written as runs after they are
    /// sorted.
    fn spill(&self) {
        let held = {
            let mut state = self.shared.state();
            state.is_spilling = true;
            std::mem::take(&mut state.held)
        };
        for (place, arena, part) in held {
            self.send(RowTask::Write(place, arena, part));
        }
    }

    fn send(&self, task: RowTask) {
        let tasks = self.tasks.as_ref().expect("open until the end");
        assert!(tasks.send(task).is_ok(), "the workers live as long as the queue");
    }

    fn join(&mut self) {
        self.tasks = None;
        for worker in self.workers.drain(..) {
            worker.join().expect("workers do not panic");
        }
    }

    /// Ends the input and returns the result. Runs are merged until one merge remains, which runs while the result is
    /// read.
    ///
    /// # Errors
    /// - Returns an error if a run cannot be written or read.
    /// - Returns [`inshore_store::Error::Cancelled`] if the job was cancelled.
    pub fn finish(self) -> Result<SortedRows<S, O>> {
        let mut parts = self.finish_in_parts(1)?;
        Ok(parts.pop().expect("one part").rows)
    }

    /// Ends the input and returns the result in up to `parts` parts. The parts are in order and may be read at the
    /// same time. There is only one part if the operation combines rows, if rows cannot be found in the middle of a
    /// run ([`super::FramedRows`]), or if there is too little memory.
    ///
    /// # Errors
    /// Returns the errors of [`RowSort::finish`].
    pub fn finish_in_parts(mut self, parts: usize) -> Result<Vec<SortedPart<S, O>>> {
        let parts = if O::COMBINES { 1 } else { parts.max(1) };
        let cut = self.flush()?;
        debug_assert!(cut.is_empty(), "a last row that does not end is taken from the sink");
        if self.shared.state().is_spilling {
            self.spill();
        }
        self.join();
        // A worker may have failed after the last check.
        self.check()?;
        let shared = self.shared.clone();
        while self.free.try_recv().is_ok() {}
        let (held, is_spilling) = {
            let mut state = shared.state();
            (std::mem::take(&mut state.held), state.is_spilling)
        };
        let rows_in = shared.rows_in.load(Ordering::Relaxed);
        let mut stats = RowStats { rows_in, rows_kept: shared.rows_kept, ..RowStats::default() };
        if !is_spilling {
            return Ok(shared.finish_in_memory(held, stats, parts));
        }
        for (place, arena, part) in held {
            shared.write(place..place + part.end as u64, &arena, part)?;
        }
        drop(self);
        let mut runs = std::mem::take(&mut shared.state().runs);
        runs.sort_by_key(|(place, _)| *place);
        stats.runs = runs.len() as u64;
        shared.finish_on_flash(runs.into_iter().map(|(_, run)| run).collect(), stats, parts)
    }
}

impl<S: RowShape, O: RowOperation> RowShared<S, O> {
    fn finish_in_memory(
        &self,
        mut held: Vec<(u64, Arena, ArenaPart)>,
        stats: RowStats,
        parts: usize,
    ) -> Vec<SortedPart<S, O>> {
        held.sort_by_key(|(place, ..)| *place);
        held.retain(|(_, _, part)| part.rows > 0);
        let held: Vec<_> = held.into_iter().map(|(_, arena, part)| (Arc::new(arena), part)).collect();
        let key = |(arena, _): &(Arc<Arena>, ArenaPart), place| self.shape.key(arena.row(place)).to_vec();
        let first = held.first().map(|held| key(held, 0)).unwrap_or_default();
        let ends = held.iter().flat_map(|held| [key(held, 0), key(held, held.1.rows - 1)]);
        let common = ends.map(|end| common_len(&first, &end)).min().unwrap_or(0);
        let cut = match parts {
            1 => held.iter().map(|(_, part)| vec![(0..part.rows, 0)]).collect(),
            _ => cut_arenas(&held, &self.key_order(), parts),
        };
        let level = Some((0, stats.rows_in));
        let merges = by_part(&cut).into_iter().map(|ranges| {
            let some = held.iter().zip(&ranges).filter(|(_, (places, _))| !places.is_empty());
            let cursor = |((arena, _), (places, _)): (&(Arc<Arena>, _), &(Range<usize>, u64))| {
                Cursor::Arena(ArenaCursor::new(arena.clone(), places.clone()))
            };
            let tree =
                Tree::new(some.map(cursor).collect(), self.shape.clone(), self.config.descending, common);
            (tree, ranges.iter().map(|(_, bytes)| bytes).sum())
        });
        self.in_order(merges, stats, level)
    }

    fn finish_on_flash(
        &self,
        mut runs: Vec<RowRun>,
        mut stats: RowStats,
        parts: usize,
    ) -> Result<Vec<SortedPart<S, O>>> {
        let in_runs = runs.iter().map(|run| run.facts.rows).sum();
        self.job.counters().add_level(0, stats.rows_in, in_runs);
        stats.bytes_spilled = runs.iter().map(|run| run.file.len()).sum();
        let row_bytes = runs.iter().map(|run| run.facts.row_bytes_max).max().unwrap_or(0);
        let blocks = runs.iter().map(RowRun::blocks).sum();
        let fan_in = self.plan.fan_in(blocks, block_bytes_max(&runs), row_bytes);
        stats.fan_in = fan_in;
        while runs.len() > fan_in {
            runs = self.merge_pass(runs, fan_in, (blocks, row_bytes), &mut stats)?;
        }
        let level = level_above(&runs);
        stats.merge_passes = level;
        let rows_in = runs.iter().map(|run| run.facts.rows).sum();
        let parts = parts.min(self.plan.fan_in_large(blocks, row_bytes) / runs.len().max(1));
        let cut = match parts {
            0 | 1 => runs.iter().map(|run| vec![run.bytes()]).collect(),
            _ => cut_runs(&self.job, &runs, &self.key_order(), parts)?,
        };
        let parts = by_part(&cut);
        let block_bytes = block_bytes_max(&runs);
        let buffers = self.plan.read_buffers(blocks, runs.len() * parts.len(), block_bytes, row_bytes);
        let merge = |ranges: Vec<Range<u64>>| {
            let bytes = ranges.iter().map(|range| range.end - range.start).sum();
            Ok((self.tree(&runs, &ranges, buffers)?, bytes))
        };
        let merges = parts.into_iter().map(merge).collect::<Result<Vec<_>>>()?;
        Ok(self.in_order(merges.into_iter(), stats, Some((level, rows_in))))
    }

    fn key_order(&self) -> KeyOrder<S> {
        KeyOrder { shape: self.shape.clone(), descending: self.config.descending }
    }

    /// Creates the parts of the result from merges and the result bytes of each merge. The first part has the
    /// counters of the input.
    fn in_order(
        &self,
        merges: impl Iterator<Item = (Tree<S>, u64)>,
        stats: RowStats,
        level: Option<(u32, u64)>,
    ) -> Vec<SortedPart<S, O>> {
        let mut start = 0;
        let part = |(number, (tree, bytes)): (usize, (Tree<S>, u64))| {
            let (shape, operation) = (self.shape.clone(), self.operation.clone());
            let (stats, level) = match number {
                0 => (stats, level),
                _ => (RowStats::default(), level.map(|(level, _)| (level, 0))),
            };
            let rows = SortedRows::new(tree, &self.job, shape, operation, stats, level);
            start += bytes;
            SortedPart { start: start - bytes, rows }
        };
        merges.enumerate().map(part).collect()
    }

    /// Merges adjacent runs into longer runs. As few runs as possible are merged, so that one more merge suffices if
    /// possible. `limits` are the number of check blocks in all runs, and the bytes of the longest row.
    fn merge_pass(
        &self,
        runs: Vec<RowRun>,
        fan_in: usize,
        limits: (u64, usize),
        stats: &mut RowStats,
    ) -> Result<Vec<RowRun>> {
        let mut merged = Vec::new();
        let mut runs = runs.into_iter();
        while merged.len() + runs.len() > fan_in && runs.len() > 1 {
            let group = fan_in.min(merged.len() + runs.len() - fan_in + 1);
            let group: Vec<RowRun> = runs.by_ref().take(group).collect();
            let run = self.merge_group(group, limits)?;
            stats.bytes_spilled += run.file.len();
            merged.push(run);
        }
        merged.extend(runs);
        Ok(merged)
    }

    fn merge_group(&self, runs: Vec<RowRun>, (blocks, row_bytes): (u64, usize)) -> Result<RowRun> {
        let _span = tracing::debug_span!("merge", runs = runs.len()).entered();
        let (level, common) = (level_above(&runs), common_of_runs(&runs));
        let rows_in: u64 = runs.iter().map(|run| run.facts.rows).sum();
        let first_key = |run: &RowRun| run.facts.first_key.clone();
        let first = runs.iter().map(first_key);
        let first_key = if self.config.descending { first.max() } else { first.min() };
        let whole: Vec<_> = runs.iter().map(RowRun::bytes).collect();
        // The blocks of the merged run have the size of the largest blocks of its inputs. With smaller blocks, the
        // merged run could have more checksums than all inputs together.
        let block = block_bytes_max(&runs);
        let tree = self.tree(&runs, &whole, self.plan.read_buffers(blocks, runs.len(), block, row_bytes))?;
        drop(runs);
        let (shape, operation) = (self.shape.clone(), self.operation.clone());
        let mut sorted = SortedRows::new(tree, &self.job, shape, operation, RowStats::default(), None);
        let mut writer = FileWriter::create(&self.job, self.config.name, block, self.plan.write_bytes)?;
        loop {
            let space = writer.space();
            let (room, filled) = (space.len(), sorted.fill(space)?);
            writer.advance(filled)?;
            if filled < room {
                break;
            }
        }
        let rows = sorted.stats().rows_out;
        self.job.counters().add_level(level, rows_in, rows);
        let first_key = first_key.unwrap_or_default();
        let facts = RunFacts { rows, row_bytes_max: row_bytes, common, first_key, level };
        Ok(RowRun { file: writer.finish()?, facts })
    }

    /// Opens a merge of one byte range of each run.
    fn tree(&self, runs: &[RowRun], ranges: &[Range<u64>], buffers: (usize, usize)) -> Result<Tree<S>> {
        let some = runs.iter().zip(ranges).filter(|(_, range)| !range.is_empty());
        let cursor = |(run, range): (&RowRun, &Range<u64>)| {
            RowRunCursor::new(&self.job, run, range.clone(), self.shape.clone(), buffers).map(Cursor::RowRun)
        };
        let cursors = some.map(cursor).collect::<Result<_>>()?;
        Ok(Tree::new(cursors, self.shape.clone(), self.config.descending, common_of_runs(runs)))
    }
}

/// Transposes a list of parts for each source (run or arena) to a list of sources for each part.
fn by_part<T: Clone>(cut: &[Vec<T>]) -> Vec<Vec<T>> {
    let parts = cut.first().map_or(1, Vec::len);
    (0..parts).map(|part| cut.iter().map(|of_source| of_source[part].clone()).collect()).collect()
}

/// Returns the size of the largest check block of `runs`. Read buffers are a multiple of this size.
fn block_bytes_max(runs: &[RowRun]) -> usize {
    runs.iter().map(|run| run.file.block_bytes()).max().unwrap_or(PAGE_BYTES)
}

fn level_above(runs: &[RowRun]) -> u32 {
    runs.iter().map(|run| run.facts.level).max().unwrap_or(0) + 1
}

impl<S: RowShape, O: RowOperation> Drop for RowSort<S, O> {
    fn drop(&mut self) {
        self.join();
    }
}

/// The input of a sort of rows, which takes the bytes of rows in order.
pub struct RowSink<'a, S: RowShape, O: RowOperation> {
    sort: &'a mut RowSort<S, O>,
}

impl<S: RowShape, O: RowOperation> RowSink<'_, S, O> {
    /// Takes `bytes`, which may begin and end inside a row.
    ///
    /// # Errors
    /// Returns the errors of [`RowSort::write`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.sort.write(bytes)
    }

    /// Returns how many of the next input bytes the caller may skip, since an interrupted sort saved their rows in
    /// runs.
    pub fn to_pass_over(&self) -> u64 {
        self.sort.to_pass_over()
    }

    /// Skips input bytes, at most [`RowSink::to_pass_over`]. The caller need not read the skipped bytes.
    pub fn pass_over(&mut self, bytes: u64) {
        assert!(bytes <= self.to_pass_over());
        self.sort.filling.bytes += bytes;
    }

    /// Returns the number of input bytes that were taken or skipped.
    pub fn bytes(&self) -> u64 {
        self.sort.filling.bytes
    }

    /// Ends the input, and returns the bytes of an incomplete last row. If all rows are complete, no bytes are
    /// returned.
    ///
    /// # Errors
    /// Returns the errors of [`RowSink::write`].
    pub fn finish(self) -> Result<Vec<u8>> {
        self.sort.flush()
    }
}
