//! Threads that work on parts of an input write their results in the order of the input.

use std::{
    ops::Range,
    sync::{Condvar, Mutex},
    time::Duration,
};

use inshore_store::Job;

use crate::Result;

/// A thread that waits for its turn checks the stop flag so often.
const TICK: Duration = Duration::from_millis(50);

/// The order in which threads write.
pub(super) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The number of the next row.
    next: u64,
    /// A thread has ended without its turn.
    has_failed: bool,
}

impl Turns {
    /// Returns the turns of rows from `first` on.
    pub fn new(first: u64) -> Turns {
        Turns { state: Mutex::new(State { next: first, has_failed: false }), changed: Condvar::new() }
    }

    /// Waits until the results of all rows before `rows` were written, and writes those of `rows`.
    ///
    /// # Errors
    /// The error of `write`; [`inshore_store::Error::Cancelled`], also if another thread has failed.
    pub fn write(&self, job: &Job, rows: Range<u64>, write: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut state = self.state.lock().expect("no panic under this lock");
        while state.next != rows.start {
            job.check_cancelled()?;
            if state.has_failed {
                return Err(inshore_store::Error::Cancelled.into());
            }
            state = self.changed.wait_timeout(state, TICK).expect("no panic under this lock").0;
        }
        drop(state);
        // No other thread has this turn.
        write()?;
        self.state.lock().expect("no panic under this lock").next = rows.end;
        self.changed.notify_all();
        Ok(())
    }
}

/// A thread that writes in its turns. A thread that fails drops this value while others wait.
pub(super) struct Writer<'a>(pub &'a Turns);

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.0.state.lock().expect("no panic under this lock").has_failed = true;
        self.0.changed.notify_all();
    }
}
