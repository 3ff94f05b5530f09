//! Progress shows how much of its work a job has done, and describes the current step.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// `Progress` is the progress of a job, for a display.
#[derive(Debug, Default)]
pub struct Progress {
    state: Mutex<(String, &'static str, Option<Instant>)>,
    done: AtomicU64,
    total: AtomicU64,
    /// The lines for the display. The value is `None` if no display has called [`Progress::listen`].
    messages: Mutex<Option<Messages>>,
}

/// `Messages` holds lines that describe the work of a job and that no display has taken yet.
#[derive(Debug, Default)]
struct Messages {
    waiting: Vec<String>,
    last: String,
}

/// The largest number of lines that wait for the display. Further lines are dropped.
const MESSAGES_MAX: usize = 100;

/// `ProgressState` is a snapshot of a job's [`Progress`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgressState {
    /// The current phase ("parsing", "superstep 3"); empty before the first phase.
    pub phase: String,
    /// The unit that is counted ("bytes", "edges").
    pub unit: &'static str,
    /// The number of units done in this phase.
    pub done: u64,
    /// The number of units in this phase; 0 if the total is unknown.
    pub total: u64,
}

impl Progress {
    /// Adds `units` to the number of units done in the current phase.
    pub fn add(&self, units: u64) {
        self.done.fetch_add(units, Ordering::Relaxed);
    }

    /// Adds a line that describes how the job does its next step, if a display [listens](Self::listen).
    pub fn tell(&self, plan: impl FnOnce() -> String) {
        let mut messages = self.messages.lock().expect("no panic under this lock");
        let Some(messages) = messages.as_mut().filter(|messages| messages.waiting.len() < MESSAGES_MAX)
        else {
            return;
        };
        let plan = plan();
        if plan != messages.last {
            messages.waiting.push(plan.clone());
            messages.last = plan;
        }
    }

    /// Starts to store lines for the display, which [takes](Self::take_told) them.
    pub fn listen(&self) {
        self.messages.lock().expect("no panic under this lock").get_or_insert_default();
    }

    /// Takes the lines that were added since the last call. A line that was added several times in a row is returned
    /// once.
    pub fn take_told(&self) -> Vec<String> {
        let mut messages = self.messages.lock().expect("no panic under this lock");
        messages.as_mut().map(|messages| std::mem::take(&mut messages.waiting)).unwrap_or_default()
    }

    /// Returns a snapshot of the progress.
    pub fn state(&self) -> ProgressState {
        let state = self.state.lock().expect("no panic under this lock");
        ProgressState {
            phase: state.0.clone(),
            unit: state.1,
            done: self.done.load(Ordering::Relaxed),
            total: self.total.load(Ordering::Relaxed),
        }
    }

    /// Begins a phase. Returns the previous phase, if there was one, with its duration in seconds.
    pub(crate) fn start(
        &self,
        phase: String,
        unit: &'static str,
        total: u64,
        now: Option<Instant>,
    ) -> Option<(String, f64)> {
        let mut state = self.state.lock().expect("no panic under this lock");
        let (phase, _, started) = std::mem::replace(&mut *state, (phase, unit, now));
        self.done.store(0, Ordering::Relaxed);
        self.total.store(total, Ordering::Relaxed);
        Some((phase, started?.elapsed().as_secs_f64()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_wait_for_a_listener_and_repetitions_are_dropped() {
        let progress = Progress::default();
        progress.tell(|| unreachable!("nobody listens"));
        progress.listen();
        for plan in ["a", "a", "b", "a"] {
            progress.tell(|| plan.to_string());
        }
        assert_eq!(progress.take_told(), ["a", "b", "a"]);
        progress.tell(|| "a".to_string());
        assert!(progress.take_told().is_empty());
        // More lines are added than the limit allows.
        (0..2 * MESSAGES_MAX).for_each(|number| progress.tell(|| number.to_string()));
        assert_eq!(progress.take_told().len(), MESSAGES_MAX);
    }
}
