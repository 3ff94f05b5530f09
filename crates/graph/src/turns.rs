//! Threads that work side by side on parts and hand over what they made in the order of parts.

use std::sync::{Condvar, Mutex, MutexGuard};

/// Whose turn it is to change the value.
pub(crate) struct Turns<T> {
    state: Mutex<Turn<T>>,
    changed: Condvar,
}

pub(crate) struct Turn<T> {
    /// The part whose turn it is.
    part: usize,
    failed: bool,
    pub value: T,
}

impl<T> Turns<T> {
    /// It is part 0's turn.
    pub fn new(value: T) -> Turns<T> {
        Turns { state: Mutex::new(Turn { part: 0, failed: false, value }), changed: Condvar::new() }
    }

    /// Waits until all parts before this one are done; `None` where that will not happen.
    pub fn wait(&self, part: usize) -> Option<MutexGuard<'_, Turn<T>>> {
        let state = self.state.lock().expect("no panic under this lock");
        let waiting = |turn: &mut Turn<T>| turn.part < part && !turn.failed;
        let turn = self.changed.wait_while(state, waiting).expect("no panic under this lock");
        if turn.failed { None } else { Some(turn) }
    }

    /// Waits until nobody else changes the value; `None` where another thread failed.
    pub fn any(&self) -> Option<MutexGuard<'_, Turn<T>>> {
        let state = self.state.lock().expect("no panic under this lock");
        if state.failed { None } else { Some(state) }
    }

    /// The present part is done.
    pub fn next(&self, mut turn: MutexGuard<'_, Turn<T>>) {
        turn.part += 1;
        drop(turn);
        self.changed.notify_all();
    }

    /// Runs a thread's work: where it fails, the others are told, so that they do not wait for it.
    pub fn guard<R, E>(&self, work: impl FnOnce() -> Result<R, E>) -> Result<R, E> {
        let alarm = Alarm(self);
        let done = work()?;
        std::mem::forget(alarm);
        Ok(done)
    }

    pub fn into_value(self) -> T {
        self.state.into_inner().expect("no panic under this lock").value
    }
}

/// Dropped where a thread failed or panicked.
struct Alarm<'a, T>(&'a Turns<T>);

impl<T> Drop for Alarm<'_, T> {
    fn drop(&mut self) {
        if let Ok(mut turn) = self.0.state.lock() {
            turn.failed = true;
        }
        self.0.changed.notify_all();
    }
}
