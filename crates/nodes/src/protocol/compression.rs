//! Decides on the compression of a task's answers: if answers wait for the network, the node has time to compress.
//!
//! ```text
//!   plain ──► fast (zstd -1) ──► small (zstd 1)         up if answers wait and the throughput then increases
//!         ◄──                ◄──                        down if the throughput does not decrease
//! ```
//!
//! A level is tried for a short time, and stays in use if the throughput increases ([`Trials`]). The
//! throughput counts the bytes before compression. The method assumes nothing about the network, the
//! processor or the data: if the limit is the client, the processor of the node, or data that is already
//! compressed, a trial shows no gain. Measured on one core: decoded rows of TPC-H shrink to 0.29 of their
//! size at 530 MB/s (fast), and to 0.24 at 320 MB/s (small). English text shrinks to 0.6 (fast) and 0.4
//! (small) of its size. A link of 1 Gbit/s carries 119 MB/s. LZ4 is no faster than zstd at level -1, and its
//! frames do not limit their decompressed length, so a client could not bound the memory.

use std::time::{Duration, Instant};

use super::trials::{TrialOptions, Trials};

/// The levels of zstd. Option 0 of the trials is no compression, and these levels follow.
pub(crate) const LEVELS: [i32; 2] = [-1, 1];

const HOW: TrialOptions = TrialOptions {
    way_max: LEVELS.len(),
    lasts: Duration::from_millis(250),
    gain: 1.1,
    pause: Duration::from_secs(1),
};

/// Selects the compression of the next batch, from the measurements of the batches sent so far.
#[derive(Debug)]
pub(crate) struct CompressionSelector {
    /// The trials. Option 0 is no compression, the other options are [`LEVELS`].
    trials: Trials,
    /// The number of tasks that send. `idle_since` is the time of the last end of a task.
    tasks: u32,
    idle_since: Instant,
}

impl CompressionSelector {
    pub fn new(now: Instant) -> CompressionSelector {
        CompressionSelector { trials: Trials::new(HOW, now), tasks: 0, idle_since: now }
    }

    /// Records that a task begins to send.
    pub fn begins(&mut self, now: Instant) {
        if self.tasks == 0 {
            self.trials.pass_over(now.saturating_duration_since(self.idle_since));
        }
        self.tasks += 1;
    }

    /// Records that a task has stopped sending.
    pub fn ends(&mut self, now: Instant) {
        self.tasks -= 1;
        self.idle_since = now;
    }

    /// Returns the compression of the next batch: none, or a level of zstd (an index in [`LEVELS`]).
    pub fn level(&self) -> Option<usize> {
        self.trials.way().checked_sub(1)
    }

    /// Records a sent batch: its bytes before compression, and the time that it waited for the wire.
    pub fn sent(&mut self, bytes: u64, waited: Duration, now: Instant) {
        self.trials.count(bytes as f64, waited / self.tasks.max(1), now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A simulated network, processor and client, each with its rate in bytes per second.
    struct SimulatedLink {
        wire: f64,
        /// The compression ratio and the compression rate in bytes per second, for each option.
        ways: [(f64, f64); 3],
        /// The seconds that the node works on a byte. `client` is the number of seconds that the client takes for a
        /// byte.
        work: f64,
        client: f64,
    }

    const PLAIN: (f64, f64) = (1.0, f64::INFINITY);
    const BATCH: u64 = 1 << 20;

    impl SimulatedLink {
        /// Returns the duration of a batch in seconds, and the waiting time of its answer in seconds.
        fn batch(&self, way: usize) -> (f64, f64) {
            let (left, rate) = self.ways[way];
            let made = self.work + 1.0 / rate;
            let taken = (left / self.wire).max(self.client);
            (BATCH as f64 * made.max(taken), BATCH as f64 * (taken - made).max(0.0))
        }

        /// Returns the speed of a minute of batches relative to the best single option, and the option of each batch.
        fn run(&self) -> (f64, Vec<usize>) {
            let began = Instant::now();
            let (mut time, mut ways) = (0.0, Vec::new());
            let mut compression = CompressionSelector::new(began);
            while time < 60.0 {
                let way = compression.level().map_or(0, |level| level + 1);
                let (seconds, waited) = self.batch(way);
                time += seconds;
                compression.sent(
                    BATCH,
                    Duration::from_secs_f64(waited),
                    began + Duration::from_secs_f64(time),
                );
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
        let world = SimulatedLink { wire: 119e6, ways: rows, work: 1e-9, client: 0.0 };
        for (what, way, world) in [
            ("a link of 1 Gbit/s", 1, SimulatedLink { ..world }),
            ("a slow link", 2, SimulatedLink { wire: 12e6, ..world }),
            ("a link of 10 Gbit/s", 0, SimulatedLink { wire: 1.19e9, ..world }),
            ("four tenths of a core", 1, SimulatedLink { ways: little, ..world }),
            ("a tenth of a core", 0, SimulatedLink { ways: [PLAIN, (0.29, 53e6), (0.24, 32e6)], ..world }),
            ("work that is slower than the wire", 0, SimulatedLink { work: 2e-8, ..world }),
            ("a client that is slower", 0, SimulatedLink { client: 2e-8, ..world }),
            ("what was packed before", 0, SimulatedLink { ways: packed, ..world }),
        ] {
            let (speed, ways) = world.run();
            assert_eq!(most(&ways), way, "{what}");
            assert!(speed > 0.93, "{what}: {speed}");
        }
    }

    #[test]
    fn what_is_no_longer_worth_it_is_left() {
        let began = Instant::now();
        let mut compression = CompressionSelector::new(began);
        let mut now = began;
        let mut run = |compression: &mut CompressionSelector, seconds: u64, rate: [u64; 3], waits: f64| {
            let until = now + Duration::from_secs(seconds);
            while now < until {
                let way = compression.level().map_or(0, |level| level + 1);
                let took = Duration::from_secs_f64(BATCH as f64 / (rate[way] as f64 * 1e6));
                now += took;
                compression.sent(BATCH, took.mul_f64(waits), now);
            }
        };
        run(&mut compression, 60, [12, 40, 48], 0.9);
        assert_eq!(compression.level(), Some(1));
        // No answer waits, and less compression makes no difference: the level falls to none.
        run(&mut compression, 200, [50, 50, 50], 0.0);
        assert_eq!(compression.level(), None);
    }

    #[test]
    fn reads_that_come_after_one_another_are_as_one() {
        let began = Instant::now();
        let mut compression = CompressionSelector::new(began);
        let mut now = began;
        let mut levels = Vec::new();
        // Each read takes a second, with a pause of some seconds in between, over a link on which the first
        // level is three times as fast.
        for _ in 0..30 {
            compression.begins(now);
            let until = now + Duration::from_secs(1);
            while now < until {
                let rate = [40e6, 120e6, 80e6][compression.level().map_or(0, |level| level + 1)];
                let took = Duration::from_secs_f64(BATCH as f64 / rate);
                now += took;
                levels.push(compression.level());
                compression.sent(BATCH, took.mul_f64(0.9), now);
            }
            compression.ends(now);
            now += Duration::from_secs(4);
        }
        let fast = levels.iter().filter(|&&level| level == Some(0)).count();
        assert!(fast * 10 > levels.len() * 8, "{fast} of {}", levels.len());
    }
}
