//! A progress bar on the terminal: phase, progress, rate and remaining time of a job.
//!
//! The job only updates counters. A thread reads the job's counters ten times a second and draws the bar. No bar is
//! drawn if standard error is not a terminal. With `--explain` the thread also prints the plans of the job, each as
//! soon as the job has chosen it.

use std::{
    io::IsTerminal,
    sync::mpsc::{self, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressStyle};
use inshore::store::{Context, ProgressState, format_bytes};

use crate::report::outcome::say;

const PERIOD: Duration = Duration::from_millis(100);

/// A progress bar that is drawn until it is dropped, and then erased.
pub struct Bar {
    // A channel that never carries a message. Dropping it ends the thread.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Bar {
    /// Draws the progress of `job` if `is_drawn`, and prints its plans if `explains`. Returns no bar if neither is
    /// true.
    pub fn draw(job: &Context, is_drawn: bool, explains: bool) -> Option<Bar> {
        let is_drawn = is_drawn && std::io::stderr().is_terminal();
        if !is_drawn && !explains {
            return None;
        }
        if explains {
            job.progress().listen();
        }
        let job = job.clone();
        let (stop, stopped) = mpsc::channel();
        let draw = move || {
            let mut phase = Phase::default();
            let mut bar = ProgressBar::hidden();
            loop {
                let is_over = stopped.recv_timeout(PERIOD) != Err(RecvTimeoutError::Timeout);
                for plan in job.progress().take_told() {
                    bar.suspend(|| say(&marked(&plan)));
                }
                if is_over {
                    break;
                }
                let state = job.progress().state();
                if state.phase.is_empty() || !is_drawn {
                    continue;
                }
                if phase.name != state.phase {
                    phase = Phase::begin(&state);
                    bar.finish_and_clear();
                    bar = new_bar(&state);
                }
                bar.set_message(phase.pace(&state));
                // The bar must not exceed 100 %, even if the estimate of the total work was too low.
                bar.set_position(if state.total == 0 { state.done } else { state.done.min(state.total) });
            }
            bar.finish_and_clear();
        };
        let thread = thread::Builder::new().name("progress".into()).spawn(draw).ok()?;
        Some(Bar { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // The thread's result is ignored, since a bar that cannot be drawn is not an error.
            let _ = thread.join();
        }
    }
}

/// Puts "plan:" before a plan, and indents its further lines.
fn marked(plan: &str) -> String {
    format!("plan: {}", plan.replace('\n', "\n      "))
}

fn new_bar(state: &ProgressState) -> ProgressBar {
    let length = (state.total != 0).then_some(state.total);
    let target = ProgressDrawTarget::stderr_with_hz(20);
    ProgressBar::with_draw_target(length, target)
        .with_style(style(length.is_some()))
        .with_prefix(state.phase.clone())
}

/// Returns a style that fits in 80 columns, since a wrapped bar cannot be erased cleanly.
fn style(known: bool) -> ProgressStyle {
    let template =
        if known { "{prefix:20!} {bar:20} {percent:>3}%  {msg}" } else { "{prefix:20!} {spinner} {msg}" };
    ProgressStyle::with_template(template).expect("templates are part of the program").progress_chars("━╸─")
}

/// A phase, with the time at which it was first seen.
struct Phase {
    name: String,
    seen: Instant,
    done_when_seen: u64,
}

impl Default for Phase {
    fn default() -> Self {
        Phase { name: String::new(), seen: Instant::now(), done_when_seen: 0 }
    }
}

impl Phase {
    fn begin(state: &ProgressState) -> Phase {
        Phase { name: state.phase.clone(), seen: Instant::now(), done_when_seen: state.done }
    }

    /// Formats the average rate of the phase and the remaining time: "12.3 M edges/s, 8s left".
    fn pace(&self, state: &ProgressState) -> String {
        pace(state, state.done.saturating_sub(self.done_when_seen), self.seen.elapsed())
    }
}

fn pace(state: &ProgressState, done: u64, elapsed: Duration) -> String {
    // The rate is not known until some time has passed.
    if elapsed < 2 * PERIOD || done == 0 {
        return String::new();
    }
    let per_second = done as f64 / elapsed.as_secs_f64();
    let speed = speed(per_second, state.unit);
    if state.total == 0 {
        return speed;
    }
    let left = state.total.saturating_sub(state.done) as f64 / per_second;
    format!("{speed}, {:#} left", HumanDuration(Duration::from_secs_f64(left.min(1e9))))
}

fn speed(per_second: f64, unit: &str) -> String {
    match per_second {
        _ if unit == "bytes" => format!("{}/s", format_bytes(per_second as u64)),
        1e6.. => format!("{:.1} M {unit}/s", per_second / 1e6),
        1e3.. => format!("{:.1} k {unit}/s", per_second / 1e3),
        _ => format!("{per_second:.1} {unit}/s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_understood() {
        for known in [true, false] {
            style(known);
        }
    }

    #[test]
    fn a_plan_of_several_lines_is_set_in() {
        assert_eq!(marked("merge\n  merge 1 s"), "plan: merge\n        merge 1 s");
    }

    #[test]
    fn pace_is_work_over_time() {
        let state = |unit, done, total| ProgressState { phase: "p".into(), unit, done, total };
        let ten = Duration::from_secs(10);
        let edges = state("edges", 50_000_000, 90_000_000);
        assert_eq!(pace(&edges, 40_000_000, ten), "4.0 M edges/s, 10s left");
        assert_eq!(pace(&state("bytes", 1 << 20, 0), 1 << 20, ten), "102.4 KiB/s");
        assert_eq!(pace(&state("edges", 9, 8), 9, ten), "0.9 edges/s, 0s left");
        assert_eq!(pace(&edges, 0, ten), "");
        assert_eq!(pace(&edges, 40_000_000, PERIOD), "");
    }
}
