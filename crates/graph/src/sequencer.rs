//! Lets parallel threads hand over their results in the order of parts.

use std::sync::{Condvar, Mutex, MutexGuard};

/// A value that threads change in the order of parts.
pub(crate) struct Sequencer<T> {
    state: Mutex<SequencerState<T>>,
    changed: Condvar,
}

pub(crate) struct SequencerState<T> {
    /// The part whose thread may change the value.
    part: usize,
    failed: bool,
    pub value: T,
}

impl<T> Sequencer<T> {
    /// Creates a sequencer that begins with part 0.
    pub fn new(value: T) -> Sequencer<T> {
        Sequencer {
            state: Mutex::new(SequencerState { part: 0, failed: false, value }),
            changed: Condvar::new(),
        }
    }

    /// Waits until all earlier parts are done. Returns `None` if another thread failed.
    pub fn wait(&self, part: usize) -> Option<MutexGuard<'_, SequencerState<T>>> {
        let state = self.state.lock().expect("no panic under this lock");
        let waiting = |turn: &mut SequencerState<T>| turn.part < part && !turn.failed;
        let turn = self.changed.wait_while(state, waiting).expect("no panic under this lock");
        if turn.failed { None } else { Some(turn) }
    }

    /// Waits until no other thread changes the value. Returns `None` if another thread failed.
    pub fn any(&self) -> Option<MutexGuard<'_, SequencerState<T>>> {
        let state = self.state.lock().expect("no panic under this lock");
        if state.failed { None } else { Some(state) }
    }

    /// Ends the current part, so that the thread of the next part can continue.
    pub fn next(&self, mut turn: MutexGuard<'_, SequencerState<T>>) {
        turn.part += 1;
        drop(turn);
        self.changed.notify_all();
    }

    /// Runs a thread's work; a failure wakes the other threads, so that they do not wait for ever.
    pub fn guard<R, E>(&self, work: impl FnOnce() -> Result<R, E>) -> Result<R, E> {
        let alarm = FailOnDrop(self);
        let done = work()?;
        std::mem::forget(alarm);
        Ok(done)
    }

    pub fn into_value(self) -> T {
        self.state.into_inner().expect("no panic under this lock").value
    }
}

/// Marks the sequencer as failed when it is dropped, which happens only after an error or a panic.
struct FailOnDrop<'a, T>(&'a Sequencer<T>);

impl<T> Drop for FailOnDrop<'_, T> {
    fn drop(&mut self) {
        if let Ok(mut turn) = self.0.state.lock() {
            turn.failed = true;
        }
        self.0.changed.notify_all();
    }
}
