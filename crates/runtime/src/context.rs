//! One run of one command, as far as it needs no store.

use std::{any::Any, sync::Arc, time::Instant};

use crate::{
    Budget, Buffer, Cancel, Counters, Direction, Error, Part, Pending, ProcessCounts, Progress, Report,
    Result,
    counters::{cpu_seconds, resident_bytes_max},
    io::Io,
};

/// A context is what one run of one command works with: its budget, I/O, counters, progress and stop flag. Clones share it.
///
/// A context knows no store. What only reads and writes plain files takes a context, so that nothing of a store can be asked
/// of it; a job on a store has one.
#[derive(Clone, Debug)]
pub struct Context {
    inner: Arc<Inner>,
    /// All of the job's, or the part that some of its work was given.
    budget: Budget,
}

impl AsRef<Context> for Context {
    fn as_ref(&self) -> &Context {
        self
    }
}

#[derive(Debug)]
struct Inner {
    io: Io,
    budget: Budget,
    cancel: Cancel,
    counters: Counters,
    progress: Progress,
    started: Instant,
}

/// A guard is kept alive by a request until its bytes are moved.
pub type Guard = Arc<dyn Any + Send + Sync>;

impl Context {
    /// A run that starts now.
    pub fn new(budget: Budget, cancel: Cancel) -> Context {
        let inner = Inner {
            io: Io::new(),
            budget: budget.clone(),
            cancel,
            counters: Counters::default(),
            progress: Progress::default(),
            started: Instant::now(),
        };
        Context { inner: Arc::new(inner), budget }
    }

    /// The same run, for work that may use `budget` alone: a [`Budget::part`] of the run's.
    pub fn within(&self, budget: Budget) -> Context {
        Context { inner: self.inner.clone(), budget }
    }

    /// The memory and threads of this run.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The counters of the work so far.
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// The counts of this process so far, for another one, which [adds](Counters::add_of_process) them to a run of its own.
    pub fn counts(&self) -> ProcessCounts {
        let counters = self.counters();
        ProcessCounts {
            bytes_read: counters.bytes_read(),
            bytes_written: counters.bytes_written(),
            repairs: counters.repairs(),
            cpu_us: (cpu_seconds() * 1e6) as u64,
        }
    }

    /// How far it is.
    pub fn progress(&self) -> &Progress {
        &self.inner.progress
    }

    /// How it reads and writes, as [`Report::io`] says.
    pub fn io_name(&self) -> &'static str {
        self.inner.io.name()
    }

    /// The stop flag.
    pub fn cancel(&self) -> &Cancel {
        &self.inner.cancel
    }

    /// To be called every few milliseconds of work.
    ///
    /// # Errors
    /// [`Error::Cancelled`] once someone asked to stop, or the deadline is over.
    pub fn check_cancelled(&self) -> Result<()> {
        if self.inner.cancel.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Starts a phase of `total` units (0 where nobody knows); the phase before ends.
    pub fn start_phase(&self, phase: impl Into<String>, unit: &'static str, total: u64) {
        let ended = self.progress().start(phase.into(), unit, total, Some(Instant::now()));
        if let Some((phase, seconds)) = ended {
            self.counters().add_phase(phase, seconds);
        }
    }

    /// Ends the last phase and gives the counters.
    pub fn report(&self) -> Report {
        if let Some((phase, seconds)) = self.progress().start(String::new(), "", 0, None) {
            self.counters().add_phase(phase, seconds);
        }
        let counters = self.counters();
        Report {
            seconds: self.inner.started.elapsed().as_secs_f64(),
            cpu_seconds: cpu_seconds() + counters.other_cpu_seconds(),
            memory_budget_bytes: self.inner.budget.memory_bytes(),
            memory_reserved_bytes_max: self.inner.budget.reserved_bytes_max(),
            memory_resident_bytes_max: resident_bytes_max(),
            threads: self.inner.budget.threads(),
            bytes_read: counters.bytes_read(),
            bytes_written: counters.bytes_written(),
            repairs: counters.repairs(),
            direct_io: false,
            io: self.inner.io.name(),
            drive_floor: None,
            phases: counters.phases(),
            levels: counters.levels(),
        }
    }

    /// Starts to move the bytes of `parts` from or to `buffer`, and counts them. `guard` lives until that is done.
    pub fn submit(
        &self,
        direction: Direction,
        parts: Vec<Part>,
        buffer: Buffer,
        guard: Option<Guard>,
    ) -> Pending {
        let bytes = parts.iter().map(|part| part.range.len() as u64).sum();
        match direction {
            Direction::Read => self.counters().add_read(bytes),
            Direction::Write => self.counters().add_written(bytes),
        }
        self.inner.io.submit(direction, parts, buffer, guard)
    }

    /// The same for bytes of plain files, which are not counted.
    pub(crate) fn submit_uncounted(&self, direction: Direction, part: Part, buffer: Buffer) -> Pending {
        self.inner.io.submit(direction, vec![part], buffer, None)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Deadline;

    #[test]
    fn a_run_ends_at_its_deadline_as_if_it_were_asked_to_stop() {
        let context = |given: Duration| {
            let cancel = Cancel::at(Deadline::after(given));
            Context::new(Budget::new(1 << 20, 1), cancel)
        };
        assert!(matches!(context(Duration::ZERO).check_cancelled(), Err(Error::Cancelled)));
        let later = context(Duration::from_secs(3600));
        later.check_cancelled().unwrap();
        // A clone shares the deadline and the flag.
        let cancel = later.cancel().clone();
        assert!(cancel.deadline().unwrap().left() > Duration::from_secs(3000));
        cancel.cancel();
        assert!(later.check_cancelled().is_err());
        assert!(Deadline::after(Duration::MAX).is_none());
    }

    #[test]
    fn phases_of_one_name_are_added_up_in_order() {
        let context = Context::new(Budget::new(1 << 20, 2), Cancel::default());
        for phase in ["edges", "apply", "edges"] {
            context.start_phase(phase, "units", 10);
            context.progress().add(3);
            assert_eq!(context.progress().state().done, 3);
        }
        let names: Vec<_> = context.report().phases.into_iter().map(|phase| phase.phase).collect();
        assert_eq!(names, ["edges", "apply"]);
    }

    #[test]
    fn a_report_knows_this_process() {
        let context = Context::new(Budget::new(1 << 20, 2), Cancel::default());
        let report = context.report();
        assert!(report.memory_resident_bytes_max > 1 << 20);
        assert!(report.cpu_seconds >= 0.0 && report.cpu_seconds < 1e6);
    }
}
