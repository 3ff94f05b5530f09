//! Makes threads write their results in the order of the input. Each thread works on ranges of rows, and writes the
//! result of a range when the results of all earlier rows are written. A *turn* is the time in which a thread may
//! write.

use std::{
    ops::Range,
    sync::{Condvar, Mutex},
    time::Duration,
};

use inshore_store::Job;

use crate::Result;

/// The interval at which a thread that waits for its turn checks for cancellation.
const TICK: Duration = Duration::from_millis(50);

/// The order in which threads write.
pub(super) struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// The number of the first row whose result is not written.
    next: u64,
    /// True if a [`Writer`] was dropped. A waiting thread then may wait for a turn that never comes.
    has_failed: bool,
}

impl Turns {
    /// Returns the order for rows that start with the number `first`.
    pub fn new(first: u64) -> Turns {
        Turns { state: Mutex::new(State { next: first, has_failed: false }), changed: Condvar::new() }
    }

    /// Waits until the results of all rows before `rows` are written. Then calls `write`, which writes the results of
    /// `rows`.
    ///
    /// # Errors
    /// - Returns the error of `write`.
    /// - Returns [`inshore_store::Error::Cancelled`] if the job was cancelled, or if another thread has failed.
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
        // The lock is not held during the write, since no other thread has this turn.
        write()?;
        self.state.lock().expect("no panic under this lock").next = rows.end;
        self.changed.notify_all();
        Ok(())
    }
}

/// A guard that each writing thread owns. A thread that fails drops its guard, so the threads that wait for its turn
/// end.
pub(super) struct Writer<'a>(pub &'a Turns);

impl Drop for Writer<'_> {
    fn drop(&mut self) {
        self.0.state.lock().expect("no panic under this lock").has_failed = true;
        self.0.changed.notify_all();
    }
}
