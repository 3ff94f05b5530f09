//! A context holds the state of one run of a command that does not depend on a store.

use std::{sync::Arc, time::Instant};

use crate::{
    Budget, Buffer, Cancel, Counters, Direction, Error, Guard, Part, Pending, ProcessCounts, Progress,
    Report, Result,
    counters::{cpu_seconds, resident_bytes_max},
    io::Io,
};

/// `Context` holds the budget, I/O, counters, progress and stop flag of one run of one command. Clones share them.
///
/// A context gives no access to a store. A function that only reads and writes plain files takes a context,
/// so the compiler ensures that the function uses no store. A job on a store contains a context.
#[derive(Clone, Debug)]
pub struct Context {
    inner: Arc<Inner>,
    /// The budget of the run, or a part of it if this context was made by [`Context::within`].
    budget: Budget,
    /// The stop flag of the run, or that of a call if this context was made by [`Context::with_cancel`].
    cancel: Cancel,
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
    counters: Counters,
    progress: Progress,
    started: Instant,
}

impl Context {
    /// Starts a run.
    pub fn new(budget: Budget, cancel: Cancel) -> Context {
        let inner = Inner {
            io: Io::new(),
            budget: budget.clone(),
            counters: Counters::default(),
            progress: Progress::default(),
            started: Instant::now(),
        };
        Context { inner: Arc::new(inner), budget, cancel }
    }

    /// Returns a context of the same run that may use only `budget`, a [`Budget::part`] of the run's budget.
    pub fn within(&self, budget: Budget) -> Context {
        Context { budget, ..self.clone() }
    }

    /// Returns a context of the same run that stops at the flag `cancel` alone: the context of one of several calls
    /// that share the run.
    pub fn with_cancel(&self, cancel: Cancel) -> Context {
        Context { cancel, ..self.clone() }
    }

    /// Returns the memory and threads of this run.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Returns the counters of the job so far.
    pub fn counters(&self) -> &Counters {
        &self.inner.counters
    }

    /// Returns the counts of this process so far, for a parent process that [adds](Counters::add_of_process) them to
    /// its own run.
    pub fn counts(&self) -> ProcessCounts {
        let counters = self.counters();
        ProcessCounts {
            bytes_read: counters.bytes_read(),
            bytes_written: counters.bytes_written(),
            repairs: counters.repairs(),
            cpu_us: (cpu_seconds() * 1e6) as u64,
        }
    }

    /// Returns the progress of the run.
    pub fn progress(&self) -> &Progress {
        &self.inner.progress
    }

    /// Returns the name of the I/O mechanism, as in [`Report::io`].
    pub fn io_name(&self) -> &'static str {
        self.inner.io.name()
    }

    /// Returns the stop flag.
    pub fn cancel(&self) -> &Cancel {
        &self.cancel
    }

    /// Checks the stop flag. Long loops call this function every few milliseconds.
    ///
    /// # Errors
    /// Returns [`Error::Cancelled`] if the flag is set or the deadline has passed.
    pub fn check_cancelled(&self) -> Result<()> {
        if self.cancel.is_cancelled() { Err(Error::Cancelled) } else { Ok(()) }
    }

    /// Ends the current phase and starts one of `total` units (0 if the total is unknown).
    pub fn start_phase(&self, phase: impl Into<String>, unit: &'static str, total: u64) {
        let ended = self.progress().start(phase.into(), unit, total, Some(Instant::now()));
        if let Some((phase, seconds)) = ended {
            self.counters().add_phase(phase, seconds);
        }
    }

    /// Ends the last phase and returns the counters.
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

    /// Starts to transfer `parts` of `buffer`, and counts their bytes. `guard` lives until the transfer is done.
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

    /// Starts to transfer bytes of a plain file. The counters do not include these bytes.
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
    fn a_call_of_a_run_has_a_stop_flag_of_its_own() {
        let run = Context::new(Budget::new(1 << 20, 1), Cancel::default());
        let call = run.with_cancel(Cancel::default());
        call.cancel().cancel();
        assert!(call.check_cancelled().is_err());
        run.check_cancelled().unwrap();
        call.counters().add_read(7);
        assert_eq!(run.counters().bytes_read(), 7);
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
