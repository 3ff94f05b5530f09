//! Where answers let what is fetched go first.
//!
//! Where what nodes answer is more than what they read for it (rows that travel decoded), each byte of the wire does more when this machine fetches
//! what they have not begun. A node that waits for its answers to be taken begins no more, so the rest is left for this machine; and when
//! nothing is fetched, or what is fetched waits for this machine, the wire is for answers again.
//!
//! So it is where the wire is what is waited for. Where it is the nodes' drives, or a node that hangs, much less comes than the wire has brought before, and
//! answers would wait for nothing: then they are let through for some seconds. So they are at first, until it is known what the wire brings.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Nobody waits longer for a message: a node whose answers nobody takes for some seconds sets its task aside.
const WAIT_MAX: Duration = Duration::from_millis(500);
/// It is looked again so often.
const NAP: Duration = Duration::from_millis(2);
/// What is looked at together.
const WINDOW: Duration = Duration::from_millis(500);
/// Where less than this share comes of what came in the best of these times, the wire is not the limit.
const LITTLE: f64 = 0.5;
/// What the wire brings is known of so many of these times.
const FREE_MIN: u32 = 2;
/// Answers are let through for so long then, before it is looked again.
const OPEN: Duration = Duration::from_secs(8);

/// Who waits for the wire.
#[derive(Debug, Default)]
pub(in crate::nodes) struct Gate {
    /// What nodes answer is more than what they read.
    is_wide: AtomicBool,
    /// So many reads wait for bytes on their way here.
    fetching: AtomicUsize,
    seen: Mutex<Seen>,
}

/// How much came.
#[derive(Debug, Default)]
struct Seen {
    window: Option<Window>,
    /// Answers were held back since it began, and in the one before.
    has_held: bool,
    had_held: bool,
    /// In so many something came and nothing was held back.
    free: u32,
    /// Bytes a second, at most.
    best: f64,
    open_until: Option<Instant>,
}

/// Since when, how many bytes, and how many of them nobody holds back.
#[derive(Clone, Copy, Debug)]
struct Window {
    began: Instant,
    bytes: u64,
    fetched: u64,
}

impl Window {
    fn new(began: Instant) -> Window {
        Window { began, bytes: 0, fetched: 0 }
    }
}

impl Seen {
    fn came(&mut self, bytes: u64, is_fetched: bool, now: Instant) {
        let window = self.window.get_or_insert(Window::new(now));
        window.bytes += bytes;
        window.fetched += if is_fetched { bytes } else { 0 };
        self.look(now);
    }

    /// Whether answers are let through.
    fn is_open(&mut self, now: Instant) -> bool {
        self.look(now);
        let is_open = self.open_until.is_some() || self.free < FREE_MIN;
        if !is_open && !self.has_held {
            // What came before says nothing of what comes now.
            (self.window, self.has_held) = (Some(Window::new(now)), true);
        }
        is_open
    }

    fn look(&mut self, now: Instant) {
        if self.open_until.is_some_and(|until| now >= until) {
            (self.open_until, self.window, self.has_held) = (None, None, false);
        }
        let Window { began, bytes, fetched } = *self.window.get_or_insert(Window::new(now));
        let lasted = now.saturating_duration_since(began);
        if lasted < WINDOW {
            return;
        }
        self.window = None;
        let rate = |bytes: u64| bytes as f64 / lasted.as_secs_f64();
        let has_held = std::mem::take(&mut self.has_held);
        match (std::mem::replace(&mut self.had_held, has_held), has_held) {
            (_, true) => {
                self.best = self.best.max(rate(fetched));
                if rate(bytes) < self.best * LITTLE {
                    self.open_until = Some(now + OPEN);
                }
            }
            // What had come before and was held back comes all at once, and says nothing of the wire.
            (true, false) => {}
            (false, false) => {
                self.best = self.best.max(rate(bytes));
                self.free += u32::from(bytes > 0 && self.free < FREE_MIN);
            }
        }
    }
}

/// A read waits for bytes, until it goes.
pub(in crate::nodes) struct Fetching<'a>(&'a Gate);

impl Gate {
    /// Whether what nodes answer is more than what they read for it.
    pub fn set_wide(&self, is_wide: bool) {
        self.is_wide.store(is_wide, Ordering::Relaxed);
    }

    /// A read begins to wait for bytes.
    pub fn fetches(&self) -> Fetching<'_> {
        self.fetching.fetch_add(1, Ordering::Relaxed);
        Fetching(self)
    }

    /// So many bytes came, of answers or of what is fetched.
    pub fn came(&self, bytes: u64, is_fetched: bool) {
        self.seen.lock().expect("no panic under this lock").came(bytes, is_fetched, Instant::now());
    }

    fn is_closed(&self, now: Instant) -> bool {
        let is_behind = self.is_wide.load(Ordering::Relaxed) && self.fetching.load(Ordering::Relaxed) > 0;
        is_behind && !self.seen.lock().expect("no panic under this lock").is_open(now)
    }

    /// Waits as long as reads go first.
    pub async fn pass(&self) {
        let began = Instant::now();
        while self.is_closed(Instant::now()) && began.elapsed() < WAIT_MAX {
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
        gate.set_wide(true);
        assert!(passes(&gate).await, "it is not known what the wire brings");
        let now = Instant::now();
        (0..=3).for_each(|windows| gate.seen.lock().unwrap().came(1000, false, now + WINDOW * windows));
        assert!(!passes(&gate).await);
        gate.pass().await;
        drop(fetching);
        assert!(passes(&gate).await);
    }

    /// Share of a minute in which answers are held back, where a wire brings so many bytes a second, and drives give as many to reads; the wire has been
    /// full before for so long.
    fn held_back(wire: u64, drives: u64, before: Duration) -> f64 {
        let gate = Gate::default();
        let (mut now, step) = (Instant::now(), Duration::from_millis(20));
        let mut come = |fetched: u64, answers: u64| {
            now += step;
            let mut seen = gate.seen.lock().unwrap();
            seen.came(fetched / 50, true, now);
            seen.came(answers / 50, false, now);
            now
        };
        (0..before.as_millis() / step.as_millis()).for_each(|_| {
            come(0, wire);
        });
        gate.set_wide(true);
        let _fetching = gate.fetches();
        let (mut held, fetched) = (0, drives.min(wire));
        let mut is_closed = false;
        for _ in 0..3000 {
            let now = come(fetched, if is_closed { 0 } else { wire - fetched });
            is_closed = gate.is_closed(now);
            held += u32::from(is_closed);
        }
        f64::from(held) / 3000.0
    }

    #[test]
    fn answers_are_held_back_where_the_wire_is_the_limit_and_not_where_drives_are() {
        for before in [Duration::ZERO, Duration::from_millis(300), Duration::from_secs(2)] {
            assert!(held_back(119_000_000, 400_000_000, before) > 0.95);
            assert!(held_back(119_000_000, 20_000_000, before) < 0.1);
            assert!(held_back(119_000_000, 0, before) < 0.1, "a node that hangs");
        }
    }

    #[test]
    fn what_comes_at_once_after_it_was_held_back_says_nothing_of_the_wire() {
        let (mut seen, mut now, step) = (Seen::default(), Instant::now(), Duration::from_millis(20));
        let wire = 12_500_000 / 50;
        (0..100).for_each(|_| {
            now += step;
            seen.came(wire, false, now);
        });
        for _ in 0..20 {
            // Two seconds in which something is fetched, and half of one in which what waited comes beside what the wire brings.
            (0..100).for_each(|_| {
                now += step;
                seen.came(wire, true, now);
                assert!(!seen.is_open(now));
            });
            now += step;
            seen.came(8 << 20, false, now);
            (0..25).for_each(|_| {
                now += step;
                seen.came(wire, false, now);
            });
        }
    }
}
