//! Finds the fastest of several ways to send, such as levels of compression, by trial, since the network, the
//! processors and the data are not known beforehand.
//!
//! ```text
//!   way 0 ──► way 1 ──► way 2         up if the throughput increases
//!         ◄──       ◄──               down if the throughput does not decrease
//! ```
//!
//! A way is tried for a short time, and then stays in use or is abandoned. After a failed trial, the pause
//! before the next trial doubles. Ways with lower numbers are tried as well, since a way with a higher number
//! may lose its advantage over time.

use std::time::{Duration, Instant};

/// The minimum number of messages in a measurement window.
const WINDOW_MESSAGES: u32 = 4;
/// The share of time spent waiting above which a higher way is tried.
const WAITS: f64 = 0.3;
/// The minimum throughput, relative to the higher way, at which a lower way stays in use after its trial.
const LOSS: f64 = 0.97;
/// The maximum pause after failed trials.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// The parameters of the trials.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TrialOptions {
    /// The number of the last way; the first way has number 0.
    pub way_max: usize,
    /// The minimum duration of a measurement window.
    pub lasts: Duration,
    /// The minimum throughput, relative to the lower way, at which a higher way stays in use after its trial.
    pub gain: f64,
    /// The pause after a failed trial; each further failure doubles the pause.
    pub pause: Duration,
}

/// Chooses the next way to send from the measured throughput.
#[derive(Debug)]
pub(crate) struct Trials {
    how: TrialOptions,
    way: usize,
    window: TrialWindow,
    trial: Option<Trial>,
    /// The earliest time of the next trial. `pause` is the pause after the next failed trial.
    next_trial: Instant,
    pause: Duration,
    /// True if the next trial may be a higher way; otherwise a lower way is tried.
    may_go_up: bool,
}

#[derive(Debug)]
struct TrialWindow {
    began: Instant,
    amount: f64,
    messages: u32,
    waited: Duration,
}

/// A trial of a way.
#[derive(Debug)]
struct Trial {
    from: usize,
    /// The throughput per second before the trial.
    before: f64,
    /// True once all data that was sent before the trial has been transmitted.
    has_settled: bool,
}

impl Trials {
    /// Creates the state with way 0.
    pub fn new(how: TrialOptions, now: Instant) -> Trials {
        let (window, pause) = (TrialWindow::new(now), how.pause);
        Trials { how, way: 0, window, trial: None, next_trial: now, pause, may_go_up: true }
    }

    pub fn way(&self) -> usize {
        self.way
    }

    /// Records an amount of sent data, and the time that the data waited to be sent.
    pub fn count(&mut self, amount: f64, waited: Duration, now: Instant) {
        let window = &mut self.window;
        window.amount += amount;
        window.messages += 1;
        window.waited += waited;
        let lasted = now.saturating_duration_since(window.began);
        if lasted < self.how.lasts || window.messages < WINDOW_MESSAGES {
            return;
        }
        let rate = window.amount / lasted.as_secs_f64();
        let waiting = window.waited.as_secs_f64() / lasted.as_secs_f64();
        self.window = TrialWindow::new(now);
        match &mut self.trial {
            Some(trial) if !trial.has_settled => trial.has_settled = true,
            Some(trial) => {
                let is_up = self.way > trial.from;
                if rate > trial.before * if is_up { self.how.gain } else { LOSS } {
                    // The pause is reset; after a successful step up the next trial starts at once, since a
                    // further step up may increase the throughput again.
                    self.pause = self.how.pause;
                    self.next_trial = if is_up { now } else { now + self.pause };
                } else {
                    self.way = trial.from;
                    self.may_go_up = !is_up;
                    self.next_trial = now + self.pause;
                    self.pause = (self.pause * 2).min(PAUSE_MAX);
                }
                self.trial = None;
            }
            None if now < self.next_trial => {}
            None => {
                let can_gain = waiting > WAITS && self.way < self.how.way_max;
                match can_gain && (self.may_go_up || self.way == 0) {
                    true => self.begin(self.way + 1, rate),
                    false if self.way > 0 => self.begin(self.way - 1, rate),
                    false => {}
                }
                self.may_go_up = true;
            }
        }
    }

    /// Excludes from the current measurement window a period in which there was no data to send.
    pub fn pass_over(&mut self, idle: Duration) {
        self.window.began += idle;
    }

    fn begin(&mut self, way: usize, before: f64) {
        self.trial = Some(Trial { from: self.way, before, has_settled: false });
        self.way = way;
    }
}

impl TrialWindow {
    fn new(now: Instant) -> TrialWindow {
        TrialWindow { began: now, amount: 0.0, messages: 0, waited: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(50);
    const HOW: TrialOptions = TrialOptions {
        way_max: 2,
        lasts: Duration::from_millis(250),
        gain: 1.1,
        pause: Duration::from_secs(1),
    };

    /// Returns the way of each message in some minutes, for the given throughput per second of each way.
    fn ways(trials: &mut Trials, began: Instant, minutes: u32, rate: impl Fn(usize) -> f64) -> Vec<usize> {
        (1..minutes * 1200)
            .map(|step| {
                let way = trials.way();
                trials.count(rate(way) * STEP.as_secs_f64(), STEP, began + STEP * step);
                way
            })
            .collect()
    }

    fn share(ways: &[usize], way: usize) -> f64 {
        ways.iter().filter(|&&other| other == way).count() as f64 / ways.len() as f64
    }

    #[test]
    fn the_way_that_gets_most_through_is_taken_and_others_hardly() {
        for (best, rates) in [(0, [3.0, 2.0, 1.0]), (1, [1.0, 2.0, 1.5]), (2, [1.0, 2.0, 3.0])] {
            let began = Instant::now();
            let mut trials = Trials::new(HOW, began);
            let ways = ways(&mut trials, began, 2, |way| rates[way]);
            assert!(share(&ways, best) > 0.85, "{rates:?}: {}", share(&ways, best));
        }
    }

    #[test]
    fn what_becomes_better_is_found_later() {
        let mut began = Instant::now();
        let mut trials = Trials::new(TrialOptions { way_max: 1, ..HOW }, began);
        ways(&mut trials, began, 1, |way| [2.0, 1.0][way]);
        assert_eq!(trials.way(), 0);
        began += Duration::from_secs(60);
        ways(&mut trials, began, 3, |way| [1.0, 2.0][way]);
        assert_eq!(trials.way(), 1);
    }

    #[test]
    fn time_without_anything_to_send_does_not_count() {
        let began = Instant::now();
        let mut trials = Trials::new(TrialOptions { way_max: 1, ..HOW }, began);
        let mut now = began;
        // Half of the time or more is idle; the throughput stays the same while there is data.
        for step in 0..400 {
            now += STEP;
            trials.count(1.0, STEP, now);
            let idle = STEP * (step / 50);
            now += idle;
            trials.pass_over(idle);
            assert!(step < 20 || trials.trial.is_none() || trials.trial.as_ref().unwrap().before > 19.0);
        }
    }
}
