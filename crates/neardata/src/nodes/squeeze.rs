//! Whether a task's answers are compressed on their way: where they wait for the wire, the node has time to make them smaller.
//!
//! ```text
//!   plain ──► fast (zstd -1) ──► small (zstd 1)         up where answers wait and more of them then arrive in the same time
//!         ◄──                ◄──                        down where no fewer then arrive
//! ```
//!
//! A way is tried for a moment and kept if answers then go faster, counted as they are before compression. Nothing is assumed about the network, the
//! processor or the data: where the client is the limit, the node's processor, or data that is packed already, a trial gains nothing, is
//! taken back, and comes again after twice as long. So do trials of a cheaper way: what was worth it once may not be any more.
//!
//! Measured, one core: decoded rows of TPC-H shrink to 0.29 at 530 MB/s (fast) and 0.24 at 320 MB/s (small); English text to 0.6 and 0.4.
//! A link of 1 Gbit/s carries 119 MB/s. LZ4 is no faster than "fast" and its frames do not say how long they get, so that a client could
//! not bound them.

use std::time::{Duration, Instant};

/// Levels of zstd, after none.
pub(super) const LEVELS: [i32; 2] = [-1, 1];

/// What is looked at together: so long and so many batches at least.
const WINDOW: Duration = Duration::from_millis(250);
const WINDOW_BATCHES: u32 = 4;
/// Share of the time that answers wait from which on it would help if they were smaller.
const WAITS: f64 = 0.3;
/// A trial is kept where so many times as much arrives, and a cheaper way where no less than so much does.
const GAIN: f64 = 1.1;
const LOSS: f64 = 0.97;
/// The next trial comes after so long; each that gains nothing doubles it.
const PAUSE: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// Decides by what was sent how the next batch is to be sent.
#[derive(Debug)]
pub(super) struct Squeeze {
    /// 0 for plain, else one of [`LEVELS`].
    way: usize,
    window: Window,
    trial: Option<Trial>,
    /// When the next trial may begin, and how long after one that gains nothing.
    next_trial: Instant,
    pause: Duration,
    /// The next trial may be of a way that costs more; else it is of one that costs less.
    may_cost_more: bool,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    bytes: u64,
    batches: u32,
    waited: Duration,
}

/// A way that is being tried.
#[derive(Debug)]
struct Trial {
    from: usize,
    /// Bytes a second before.
    before: f64,
    /// What was sent before it began is on its way no more.
    has_settled: bool,
}

impl Squeeze {
    pub fn new(now: Instant) -> Squeeze {
        let window = Window::new(now);
        Squeeze { way: 0, window, trial: None, next_trial: now, pause: PAUSE, may_cost_more: true }
    }

    /// How the next batch goes: plainly, or by a level of zstd (a place in [`LEVELS`]).
    pub fn level(&self) -> Option<usize> {
        self.way.checked_sub(1)
    }

    /// A batch of so many bytes, before compression, was sent, and waited so long for a place on the wire.
    pub fn sent(&mut self, bytes: u64, waited: Duration, now: Instant) {
        let window = &mut self.window;
        window.bytes += bytes;
        window.batches += 1;
        window.waited += waited;
        let lasted = now.saturating_duration_since(window.began);
        if lasted < WINDOW || window.batches < WINDOW_BATCHES {
            return;
        }
        let rate = window.bytes as f64 / lasted.as_secs_f64();
        let waiting = window.waited.as_secs_f64() / lasted.as_secs_f64();
        self.window = Window::new(now);
        match &mut self.trial {
            Some(trial) if !trial.has_settled => trial.has_settled = true,
            Some(trial) => {
                let costs_more = self.way > trial.from;
                if rate > trial.before * if costs_more { GAIN } else { LOSS } {
                    // Further in this direction may be better still.
                    (self.pause, self.next_trial) = (PAUSE, if costs_more { now } else { now + PAUSE });
                } else {
                    self.way = trial.from;
                    self.may_cost_more = !costs_more;
                    self.next_trial = now + self.pause;
                    self.pause = (self.pause * 2).min(PAUSE_MAX);
                }
                self.trial = None;
            }
            None if now < self.next_trial => {}
            None => {
                let can_gain = waiting > WAITS && self.way < LEVELS.len();
                match can_gain && (self.may_cost_more || self.way == 0) {
                    true => self.begin(self.way + 1, rate),
                    false if self.way > 0 => self.begin(self.way - 1, rate),
                    false => {}
                }
                self.may_cost_more = true;
            }
        }
    }

    fn begin(&mut self, way: usize, before: f64) {
        self.trial = Some(Trial { from: self.way, before, has_settled: false });
        self.way = way;
    }
}

impl Window {
    fn new(now: Instant) -> Window {
        Window { began: now, bytes: 0, batches: 0, waited: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A wire, a processor that compresses, and a client, each with its rate in bytes a second.
    struct World {
        wire: f64,
        /// What is left of a byte, and how many bytes are compressed a second, for each way.
        ways: [(f64, f64); 3],
        /// Seconds that the work takes for a byte, and the client.
        work: f64,
        client: f64,
    }

    const PLAIN: (f64, f64) = (1.0, f64::INFINITY);
    const BATCH: u64 = 1 << 20;

    impl World {
        /// Seconds that a batch takes, and how much of them its answer waits.
        fn batch(&self, way: usize) -> (f64, f64) {
            let (left, rate) = self.ways[way];
            let made = self.work + 1.0 / rate;
            let taken = (left / self.wire).max(self.client);
            (BATCH as f64 * made.max(taken), BATCH as f64 * (taken - made).max(0.0))
        }

        /// How fast a minute of batches goes beside the best way alone; and the ways of the batches.
        fn run(&self) -> (f64, Vec<usize>) {
            let began = Instant::now();
            let (mut time, mut ways) = (0.0, Vec::new());
            let mut squeeze = Squeeze::new(began);
            while time < 60.0 {
                let way = squeeze.level().map_or(0, |level| level + 1);
                let (seconds, waited) = self.batch(way);
                time += seconds;
                squeeze.sent(BATCH, Duration::from_secs_f64(waited), began + Duration::from_secs_f64(time));
                ways.push(way);
            }
            let best = (0..self.ways.len()).map(|way| self.batch(way).0).fold(f64::INFINITY, f64::min);
            (best * ways.len() as f64 / time, ways)
        }
    }

    fn most(ways: &[usize]) -> usize {
        (0..3).max_by_key(|way| ways.iter().filter(|&other| other == way).count()).expect("three")
    }

    #[test]
    fn answers_that_wait_for_the_wire_are_compressed_as_much_as_is_fastest() {
        let rows = [PLAIN, (0.29, 530e6), (0.24, 320e6)];
        let little = [PLAIN, (0.29, 212e6), (0.24, 128e6)];
        let packed = [PLAIN, (1.0, 800e6), (1.0, 500e6)];
        let world = World { wire: 119e6, ways: rows, work: 1e-9, client: 0.0 };
        for (what, way, world) in [
            ("a link of 1 Gbit/s", 1, World { ..world }),
            ("a slow link", 2, World { wire: 12e6, ..world }),
            ("a link of 10 Gbit/s", 0, World { wire: 1.19e9, ..world }),
            ("four tenths of a core", 1, World { ways: little, ..world }),
            ("a tenth of a core", 0, World { ways: [PLAIN, (0.29, 53e6), (0.24, 32e6)], ..world }),
            ("work that is slower than the wire", 0, World { work: 2e-8, ..world }),
            ("a client that is slower", 0, World { client: 2e-8, ..world }),
            ("what was packed before", 0, World { ways: packed, ..world }),
        ] {
            let (speed, ways) = world.run();
            assert_eq!(most(&ways), way, "{what}");
            assert!(speed > 0.93, "{what}: {speed}");
        }
    }

    #[test]
    fn what_is_no_longer_worth_it_is_left() {
        let began = Instant::now();
        let mut squeeze = Squeeze { way: 2, ..Squeeze::new(began) };
        // Nothing waits, and less compression makes no difference: down to none.
        for step in 1..200u64 {
            squeeze.sent(BATCH, Duration::ZERO, began + Duration::from_millis(step * 50));
        }
        assert_eq!(squeeze.level(), None);
    }
}
