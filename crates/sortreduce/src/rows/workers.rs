//! The workers of a sort of rows, which sort arenas, and write them as runs if memory is exhausted.

use std::sync::{
    Mutex, MutexGuard,
    atomic::{AtomicU64, Ordering},
};

use crossbeam_channel::{Receiver, Sender};
use inshore_store::{FileWriter, Job};

use super::{
    arena::{Arena, ArenaPart},
    cursor::RowRun,
    keep::{self, Span},
    plan::{RowConfig, RowPlan},
    shape::{RowOperation, RowShape},
};
use crate::{Error, Result};

/// The state that a sort of rows shares with its workers.
pub(super) struct RowShared<S, O> {
    pub job: Job,
    pub shape: S,
    pub operation: O,
    pub config: RowConfig,
    pub plan: RowPlan,
    pub recycle: Sender<Arena>,
    pub state: Mutex<RowState>,
    pub rows_in: AtomicU64,
    /// The number of input bytes whose rows an interrupted sort saved in runs, and the number of these rows.
    pub bytes_kept: u64,
    pub rows_kept: u64,
}

#[derive(Default)]
pub(super) struct RowState {
    /// The sorted arenas that stay in memory until their memory is needed. Each arena has its start offset in the
    /// input.
    pub held: Vec<(u64, Arena, ArenaPart)>,
    /// True if sorted arenas are written as runs.
    pub is_spilling: bool,
    /// The runs, each with the start offset of its rows in the input.
    pub runs: Vec<(u64, RowRun)>,
    /// The number of check blocks in all runs.
    pub blocks: u64,
    /// True if the memory of one arena was given to checksums.
    pub is_arena_given_up: bool,
    pub error: Option<Error>,
}

/// A task for a worker thread. The first field is the start offset of the arena in the input.
pub(super) enum RowTask {
    Sort(u64, Arena),
    Write(u64, Arena, ArenaPart),
}

impl<S: RowShape, O: RowOperation> RowShared<S, O> {
    pub fn state(&self) -> MutexGuard<'_, RowState> {
        self.state.lock().expect("no panic under this lock")
    }

    pub fn work(&self, tasks: &Receiver<RowTask>) {
        for task in tasks {
            if let Err(error) = self.serve(task) {
                self.state().error.get_or_insert(error);
                // A thread that waits for an arena is woken by the next free arena, and then finds the error.
            }
        }
    }

    fn serve(&self, task: RowTask) -> Result<()> {
        match task {
            RowTask::Sort(place, mut arena) => {
                let result = self.sort(place, &mut arena);
                match result {
                    Ok(Some(part)) => self.hold_or_write(place, arena, part),
                    Ok(None) => {
                        self.give_back(arena);
                        Ok(())
                    }
                    Err(error) => {
                        self.fail(error, arena);
                        Ok(())
                    }
                }
            }
            RowTask::Write(place, arena, part) => self.write_and_give_back(place, arena, part),
        }
    }

    /// Records an error, and releases the arena, which wakes a thread that waits for one.
    fn fail(&self, error: Error, arena: Arena) {
        self.state().error.get_or_insert(error);
        self.give_back(arena);
    }

    fn give_back(&self, mut arena: Arena) {
        {
            let mut state = self.state();
            if !state.is_arena_given_up && state.blocks > self.plan.blocks_max() && state.error.is_none() {
                state.is_arena_given_up = true;
                // This arena is dropped, and its memory is given to checksums. A waiting thread gets another arena.
                return;
            }
        }
        arena.filled = 0;
        // After the end of the sort, no thread receives the arena, so a failed send is ignored.
        let _ = self.recycle.send(arena);
    }

    /// Sorts an arena. If rows are short, the arena may have more rows than words. It is then sorted and written in
    /// several parts. Otherwise the only part is returned.
    fn sort(&self, place: u64, arena: &mut Arena) -> Result<Option<ArenaPart>> {
        let mut start = 0;
        loop {
            self.job.check_cancelled()?;
            let part = arena.sort(&self.shape, self.config.descending, start);
            self.rows_in.fetch_add(part.rows as u64, Ordering::Relaxed);
            self.check_rows(part)?;
            if start == 0 && part.end == arena.filled {
                return Ok(Some(part));
            }
            self.write(place + start as u64..place + part.end as u64, arena, part)?;
            if part.end == arena.filled {
                return Ok(None);
            }
            start = part.end;
        }
    }

    fn check_rows(&self, part: ArenaPart) -> Result<()> {
        let limit = self.plan.row_bytes_max;
        if part.row_bytes_max <= limit {
            return Ok(());
        }
        Err(Error::RowTooLong {
            name: self.config.name,
            bytes: Some(part.row_bytes_max as u64),
            limit: limit as u64,
        })
    }

    fn hold_or_write(&self, place: u64, arena: Arena, part: ArenaPart) -> Result<()> {
        let mut state = self.state();
        if !state.is_spilling {
            state.held.push((place, arena, part));
            return Ok(());
        }
        drop(state);
        self.write_and_give_back(place, arena, part)
    }

    fn write_and_give_back(&self, place: u64, arena: Arena, part: ArenaPart) -> Result<()> {
        match self.write(place..place + part.end as u64, &arena, part) {
            Ok(()) => self.give_back(arena),
            Err(error) => self.fail(error, arena),
        }
        Ok(())
    }

    /// Writes the sorted rows of `part` as a run. `span` is the byte range of the rows in the input.
    pub fn write(&self, span: Span, arena: &Arena, part: ArenaPart) -> Result<()> {
        let _span = tracing::debug_span!("run", rows = part.rows).entered();
        let (start, write) = (span.start, self.plan.write_bytes);
        let block = self.plan.run_block_bytes(self.state().blocks);
        let write_to = |writer: &mut FileWriter| arena.write(part, &self.shape, &self.operation, writer);
        let run = match &self.config.keep {
            None => {
                let mut writer = FileWriter::create(&self.job, self.config.name, block, write)?;
                let facts = write_to(&mut writer)?;
                RowRun { file: writer.finish()?, facts }
            }
            Some(keep) => {
                let mut piece = keep.begin(&self.job)?;
                let mut writer = piece.file("rows", block, write)?;
                let facts = write_to(&mut writer)?;
                let run = RowRun { file: piece.add_and_open(writer)?, facts };
                // A failure of the operation is reported at the end; a resumed sort must not use this run.
                if self.operation.is_sound() {
                    keep.commit(piece, &keep::state(&run.facts, span, part.rows as u64))?;
                }
                run
            }
        };
        let mut state = self.state();
        state.is_spilling = true;
        state.blocks += run.blocks();
        state.runs.push((start, run));
        if state.blocks > self.plan.blocks_max_with_fewer_arenas() {
            let spilled = state.runs.iter().map(|(_, run)| run.file.len()).sum();
            let memory = self.plan.memory_bytes as u64;
            return Err(Error::TooManyRuns { name: self.config.name, spilled, memory, enough: None });
        }
        Ok(())
    }
}
