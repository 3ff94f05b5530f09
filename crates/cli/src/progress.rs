//! A bar on the terminal that shows what a job is doing: phase, how far, how fast, how long still.
//!
//! The job only counts; a thread looks at its counters ten times a second and draws. Nothing is drawn where
//! standard error is no terminal.

use std::{
    io::IsTerminal,
    sync::mpsc::{self, RecvTimeoutError},
    thread::{self, JoinHandle},
    time::Duration,
};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use inshore::store::{Job, ProgressState};

const PERIOD: Duration = Duration::from_millis(100);

/// A bar that is drawn until it is dropped, and then wiped off.
pub struct Bar {
    // Never sent on: dropping it ends the thread.
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Bar {
    /// Draws `job`, or nothing where nobody would see it.
    pub fn draw(job: &Job) -> Option<Bar> {
        if !std::io::stderr().is_terminal() {
            return None;
        }
        let job = job.clone();
        let (stop, stopped) = mpsc::channel();
        let draw = move || {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(20));
            let mut phase = String::new();
            while stopped.recv_timeout(PERIOD) == Err(RecvTimeoutError::Timeout) {
                let state = job.progress().state();
                if state.phase.is_empty() {
                    continue;
                }
                if state.phase != phase {
                    phase.clone_from(&state.phase);
                    begin(&bar, &state);
                }
                // Work that was estimated too low must not show more than all of it.
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
            // A bar that cannot be drawn is no reason to fail.
            let _ = thread.join();
        }
    }
}

fn begin(bar: &ProgressBar, state: &ProgressState) {
    bar.reset();
    if state.total == 0 {
        bar.unset_length()
    } else {
        bar.set_length(state.total)
    }
    bar.set_prefix(state.phase.clone());
    bar.set_message(state.unit);
    bar.set_style(style(state.unit == "bytes", state.total != 0));
}

fn style(bytes: bool, known: bool) -> ProgressStyle {
    let template = match (bytes, known) {
        (true, true) => {
            "{prefix:20} {bar:28} {percent:>3}%  {binary_bytes} of {binary_total_bytes}  \
             {binary_bytes_per_sec}  {eta} left"
        }
        (true, false) => "{prefix:20} {spinner} {binary_bytes}  {binary_bytes_per_sec}",
        (false, true) => {
            "{prefix:20} {bar:28} {percent:>3}%  {human_pos} of {human_len} {msg}  {per_sec}  {eta} left"
        }
        (false, false) => "{prefix:20} {spinner} {human_pos} {msg}  {per_sec}",
    };
    ProgressStyle::with_template(template).expect("templates are part of the program").progress_chars("━╸─")
}

#[cfg(test)]
mod tests {
    #[test]
    fn templates_are_understood() {
        for (bytes, known) in [(true, true), (true, false), (false, true), (false, false)] {
            super::style(bytes, known);
        }
    }
}
