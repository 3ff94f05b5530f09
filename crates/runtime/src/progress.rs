//! How far a job is, and how it goes about its work.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// How far a job is; read by whoever draws it.
#[derive(Debug, Default)]
pub struct Progress {
    state: Mutex<(String, &'static str, Option<Instant>)>,
    done: AtomicU64,
    total: AtomicU64,
    /// None while nobody listens.
    told: Mutex<Option<Told>>,
}

/// Lines about how a job goes about its work that nobody has taken yet.
#[derive(Debug, Default)]
struct Told {
    waiting: Vec<String>,
    last: String,
}

/// The most lines that wait to be taken; later ones are left out.
const TOLD_MAX: usize = 100;

/// A moment of a job's [`Progress`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgressState {
    /// The phase that the job is in ("parsing", "superstep 3"); empty before the first phase.
    pub phase: String,
    /// The unit that is counted ("bytes", "edges").
    pub unit: &'static str,
    /// Units done in this phase.
    pub done: u64,
    /// Units in this phase; 0 where nobody knows.
    pub total: u64,
}

impl Progress {
    /// Adds to the units done in the current phase.
    pub fn add(&self, units: u64) {
        self.done.fetch_add(units, Ordering::Relaxed);
    }

    /// Tells how the job goes about what comes now, for somebody who [listens](Self::listen).
    pub fn tell(&self, plan: impl FnOnce() -> String) {
        let mut told = self.told.lock().expect("no panic under this lock");
        let Some(told) = told.as_mut().filter(|told| told.waiting.len() < TOLD_MAX) else { return };
        let plan = plan();
        if plan != told.last {
            told.waiting.push(plan.clone());
            told.last = plan;
        }
    }

    /// From now on what is told waits to be [taken](Self::take_told).
    pub fn listen(&self) {
        self.told.lock().expect("no panic under this lock").get_or_insert_default();
    }

    /// Takes the lines that were told since the last call; a line that was told several times in a row comes once.
    pub fn take_told(&self) -> Vec<String> {
        let mut told = self.told.lock().expect("no panic under this lock");
        told.as_mut().map(|told| std::mem::take(&mut told.waiting)).unwrap_or_default()
    }

    /// Where the job is now.
    pub fn state(&self) -> ProgressState {
        let state = self.state.lock().expect("no panic under this lock");
        ProgressState {
            phase: state.0.clone(),
            unit: state.1,
            done: self.done.load(Ordering::Relaxed),
            total: self.total.load(Ordering::Relaxed),
        }
    }

    /// Begins a phase; gives the one before with the seconds that it took, if there was one.
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
    fn what_is_told_waits_for_who_listens_and_says_nothing_twice() {
        let progress = Progress::default();
        progress.tell(|| unreachable!("nobody listens"));
        progress.listen();
        for plan in ["a", "a", "b", "a"] {
            progress.tell(|| plan.to_string());
        }
        assert_eq!(progress.take_told(), ["a", "b", "a"]);
        progress.tell(|| "a".to_string());
        assert!(progress.take_told().is_empty());
        // Nobody takes them: there is an end.
        (0..2 * TOLD_MAX).for_each(|number| progress.tell(|| number.to_string()));
        assert_eq!(progress.take_told().len(), TOLD_MAX);
    }
}
