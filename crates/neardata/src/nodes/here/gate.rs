//! Where answers let what is fetched go first.
//!
//! Where what nodes answer is more than what they read for it (rows that travel decoded), each byte of the wire does more when this machine fetches
//! what they have not begun. A node that waits for its answers to be taken begins no more, so the rest is left for this machine; and when
//! nothing is fetched, or what is fetched waits for this machine, the wire is for answers again.
//!
//! So it is where the wire is what is waited for. Where it is the nodes' drives, or a node that hangs, answers would wait for nothing: so they are let
//! through for a moment now and then, and further, if more gets here then ([`Trials`]), counted by what was read for it.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use super::super::trials::{How, Trials};

/// Nobody waits longer for a message: a node whose answers nobody takes for some seconds sets its task aside.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// It is looked again so often.
const NAP: Duration = Duration::from_millis(2);
/// Ways of [`Trials`] beyond holding answers back, which is 0.
const LETS_THROUGH: usize = 1;

const HOW: How = How {
    way_max: LETS_THROUGH,
    // Answers that were let through come in bursts.
    lasts: Duration::from_millis(500),
    // Where it is not the wire, it is far more; and each byte costs this machine time, too.
    gain: 1.5,
    pause: Duration::from_secs(8),
};

/// Who waits for the wire.
#[derive(Debug)]
pub(in crate::nodes) struct Gate {
    /// How many bytes nodes answer for each that they read, as the bits of a float; nothing where that is not more than one.
    width: AtomicU64,
    /// So many reads wait for bytes on their way here.
    fetching: AtomicUsize,
    trials: Mutex<Trials>,
}

/// A read waits for bytes, until it goes.
pub(in crate::nodes) struct Fetching<'a>(&'a Gate);

impl Default for Gate {
    fn default() -> Gate {
        let trials = Mutex::new(Trials::new(HOW, Instant::now()));
        Gate { width: AtomicU64::new(0), fetching: AtomicUsize::new(0), trials }
    }
}

impl Gate {
    /// How many bytes nodes answer for each that they read, where that is more than one.
    pub fn set_width(&self, width: Option<f64>) {
        let before = self.width.swap(width.map_or(0, f64::to_bits), Ordering::Relaxed);
        if before == 0 && width.is_some() {
            self.trials.lock().expect("no panic under this lock").restart(Instant::now());
        }
    }

    fn width(&self) -> Option<f64> {
        Some(f64::from_bits(self.width.load(Ordering::Relaxed))).filter(|width| *width > 1.0)
    }

    /// A read begins to wait for bytes.
    pub fn fetches(&self) -> Fetching<'_> {
        self.fetching.fetch_add(1, Ordering::Relaxed);
        Fetching(self)
    }

    /// So many bytes of what is read came.
    pub fn fetched(&self, bytes: u64) {
        self.came(bytes as f64, Instant::now());
    }

    /// So many bytes of answers came.
    pub fn answered(&self, bytes: u64) {
        self.came(bytes as f64 / self.width().unwrap_or(1.0), Instant::now());
    }

    fn came(&self, read: f64, now: Instant) {
        if self.width().is_some() {
            // Something always waits.
            self.trials.lock().expect("no panic under this lock").count(read, HOW.lasts, now);
        }
    }

    fn is_closed(&self) -> bool {
        let is_behind = self.width().is_some() && self.fetching.load(Ordering::Relaxed) > 0;
        is_behind && self.trials.lock().expect("no panic under this lock").way() != LETS_THROUGH
    }

    /// Waits as long as reads go first.
    pub async fn pass(&self) {
        let began = Instant::now();
        while self.is_closed() && began.elapsed() < WAIT_MAX {
            tokio::time::sleep(NAP).await;
        }
    }
}

impl Drop for Fetching<'_> {
    fn drop(&mut self) {
        self.0.fetching.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn answers_wait_for_reads_where_they_are_wide_and_not_for_ever() {
        let gate = Gate::default();
        let passes = async |gate: &Gate| tokio::time::timeout(WAIT_MAX / 4, gate.pass()).await.is_ok();
        let fetching = gate.fetches();
        assert!(passes(&gate).await);
        gate.set_width(Some(1.5));
        assert!(!passes(&gate).await);
        gate.pass().await;
        drop(fetching);
        assert!(passes(&gate).await);
    }

    /// Share of a minute in which answers of three times as many bytes as were read for them are held back, where a wire brings so many bytes a second
    /// and drives give as many to reads.
    fn held_back(wire: f64, drives: f64) -> f64 {
        let gate = Gate::default();
        gate.set_width(Some(3.0));
        let _fetching = gate.fetches();
        let (mut now, mut held, step) = (Instant::now(), 0, Duration::from_millis(20));
        for _ in 0..3000 {
            now += step;
            let is_closed = gate.is_closed();
            held += u32::from(is_closed);
            let fetched = drives.min(if is_closed { wire } else { wire / 2.0 });
            gate.came(fetched * step.as_secs_f64(), now);
            if !is_closed {
                gate.came((wire - fetched) / 3.0 * step.as_secs_f64(), now);
            }
        }
        f64::from(held) / 3000.0
    }

    #[test]
    fn answers_are_held_back_where_the_wire_is_the_limit_and_not_where_drives_are() {
        assert!(held_back(119e6, 400e6) > 0.85, "{}", held_back(119e6, 400e6));
        assert!(held_back(119e6, 20e6) < 0.25, "{}", held_back(119e6, 20e6));
        assert!(held_back(119e6, 0.0) < 0.25, "a node that hangs: {}", held_back(119e6, 0.0));
    }
}
