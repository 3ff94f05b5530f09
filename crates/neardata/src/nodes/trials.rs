//! Which of some ways to send gets the most through: by trial, since nobody knows the network, the processors and the data beforehand.
//!
//! ```text
//!   way 0 ──► way 1 ──► way 2         up where more then gets through in the same time
//!         ◄──       ◄──               down where no less then does
//! ```
//!
//! A way is tried for a moment and kept, or taken back; then the next trial comes after twice as long. So do trials of the ways below: what was
//! worth it once may not be any more.

use std::time::{Duration, Instant};

/// What is looked at together has so many messages at least.
const WINDOW_MESSAGES: u32 = 4;
/// Share of the time that something waits from which on a way above is tried.
const WAITS: f64 = 0.3;
/// A trial of a way below is kept where no less than so much gets through.
const LOSS: f64 = 0.97;
/// Trials that gain nothing come no more seldom.
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// How ways are tried.
#[derive(Clone, Copy, Debug)]
pub(super) struct How {
    /// The last way; the first one is 0.
    pub way_max: usize,
    /// What is looked at together takes so long at least.
    pub lasts: Duration,
    /// A trial of a way above is kept where so many times as much gets through.
    pub gain: f64,
    /// A trial that gains nothing has so long a pause behind it, each further one twice as long a one.
    pub pause: Duration,
}

/// Decides by what got through which way is taken next.
#[derive(Debug)]
pub(super) struct Trials {
    how: How,
    way: usize,
    window: Window,
    trial: Option<Trial>,
    /// When the next trial may begin, and how long after one that gains nothing.
    next_trial: Instant,
    pause: Duration,
    /// The next trial may be of a way above; else it is of one below.
    may_go_up: bool,
}

#[derive(Debug)]
struct Window {
    began: Instant,
    amount: f64,
    messages: u32,
    waited: Duration,
}

/// A way that is being tried.
#[derive(Debug)]
struct Trial {
    from: usize,
    /// How much got through a second before.
    before: f64,
    /// What was sent before it began is on its way no more.
    has_settled: bool,
}

impl Trials {
    /// Begins with way 0.
    pub fn new(how: How, now: Instant) -> Trials {
        let (window, pause) = (Window::new(now), how.pause);
        Trials { how, way: 0, window, trial: None, next_trial: now, pause, may_go_up: true }
    }

    pub fn way(&self) -> usize {
        self.way
    }

    /// So much got through at once, and waited so long for that.
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
        self.window = Window::new(now);
        match &mut self.trial {
            Some(trial) if !trial.has_settled => trial.has_settled = true,
            Some(trial) => {
                let is_up = self.way > trial.from;
                if rate > trial.before * if is_up { self.how.gain } else { LOSS } {
                    // Further in this direction may be better still.
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

    /// For so long there was nothing to send.
    pub fn pass_over(&mut self, idle: Duration) {
        self.window.began += idle;
    }

    fn begin(&mut self, way: usize, before: f64) {
        self.trial = Some(Trial { from: self.way, before, has_settled: false });
        self.way = way;
    }
}

impl Window {
    fn new(now: Instant) -> Window {
        Window { began: now, amount: 0.0, messages: 0, waited: Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Duration = Duration::from_millis(50);
    const HOW: How =
        How { way_max: 2, lasts: Duration::from_millis(250), gain: 1.1, pause: Duration::from_secs(1) };

    /// Ways of the messages of some minutes, of which so much gets through a second with each way.
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
        let mut trials = Trials::new(How { way_max: 1, ..HOW }, began);
        ways(&mut trials, began, 1, |way| [2.0, 1.0][way]);
        assert_eq!(trials.way(), 0);
        began += Duration::from_secs(60);
        ways(&mut trials, began, 3, |way| [1.0, 2.0][way]);
        assert_eq!(trials.way(), 1);
    }

    #[test]
    fn time_without_anything_to_send_does_not_count() {
        let began = Instant::now();
        let mut trials = Trials::new(How { way_max: 1, ..HOW }, began);
        let mut now = began;
        // Half of the time is idle, more and more of it: the same rate while there is something.
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
