//! Error messages and exit codes.

use std::{
    io,
    process::{self, ExitCode},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::anyhow;
use inshore::{
    store::{self, Deadline},
    tables,
};

use crate::report::outcome::say;

/// The exit code of a command that failed.
pub const FAILED: u8 = 2;

/// The exit code of a command that a signal stopped: 128 + SIGINT, as in shells.
pub const STOPPED: u8 = 130;

/// An error whose message was already printed when the error occurred.
#[derive(Debug, thiserror::Error)]
#[error("some of the input could not be read")]
pub struct AlreadyReported;

/// Tells whether this process is a node that runs tasks of clients. A task can then fail without ending the process.
pub static SERVES: AtomicBool = AtomicBool::new(false);

/// Tells whether a panic means that the system can start no more threads. The function searches for panic messages of
/// the standard library and of the async runtime.
fn is_without_threads(panic: &str) -> bool {
    // The last message comes from a new thread that cannot allocate a stack for its signal handlers.
    ["failed to spawn thread", "can't spawn worker thread", "failed to allocate an alternative stack"]
        .iter()
        .any(|words| panic.contains(words))
}

/// Ends the process with an error if a panic means that the system can start no more threads. A node does not end: only
/// the task that panicked fails.
pub fn end_without_threads(panic: &str) {
    if is_without_threads(panic) && !SERVES.load(Ordering::Relaxed) {
        say(
            "inshore: cannot start more threads: use fewer --threads, or raise `ulimit -u`, `ulimit -v` or the limits of the cgroup",
        );
        process::exit(FAILED.into());
    }
}

/// Prints `error` with its causes on standard error and returns the exit code.
pub fn tell(error: &anyhow::Error) -> ExitCode {
    if error.chain().any(is_broken_pipe) {
        // A closed pipe is no failure: the reader of the output, such as `| head`, has read enough.
        return ExitCode::SUCCESS;
    }
    if !error.is::<AlreadyReported>() {
        say(&format!("inshore: {}", message(error)));
    }
    ExitCode::from(if error.chain().any(is_cancelled) { STOPPED } else { FAILED })
}

/// If the deadline stopped a command, replaces the command's error by an error that names the deadline. The exit code
/// is then [`FAILED`] and not [`STOPPED`], since no user stopped the command.
pub fn at_deadline(error: anyhow::Error, deadline: Option<Deadline>) -> anyhow::Error {
    let stopped_by = deadline.filter(|deadline| deadline.is_over() && error.chain().any(is_cancelled));
    match stopped_by {
        Some(deadline) => anyhow!("{}: {}", deadline_message(deadline), message(&error)),
        None => error,
    }
}

/// Returns the message of an expired deadline.
pub fn deadline_message(deadline: Deadline) -> String {
    format!("the deadline of {} s has passed", deadline.given().as_secs_f64())
}

/// Returns the error and its causes. Many errors quote their cause, so a cause that the message already contains is
/// skipped.
fn message(error: &anyhow::Error) -> String {
    let mut message = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        if !message.contains(&cause) {
            message.push_str("\n  because: ");
            message.push_str(&cause);
        }
    }
    message
}

fn is_broken_pipe(cause: &(dyn std::error::Error + 'static)) -> bool {
    cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn is_cancelled(cause: &(dyn std::error::Error + 'static)) -> bool {
    fn is<E: std::error::Error + 'static>(
        cause: &(dyn std::error::Error + 'static),
        is_cancelled: fn(&E) -> bool,
    ) -> bool {
        cause.downcast_ref::<E>().is_some_and(is_cancelled)
    }
    #[cfg(feature = "graph")]
    if is(cause, inshore::graph::Error::is_cancelled) {
        return true;
    }
    #[cfg(feature = "text")]
    if is(cause, inshore::kernels::Error::is_cancelled) {
        return true;
    }
    #[cfg(feature = "wasm")]
    if is(cause, inshore::wasm::Error::is_cancelled) {
        return true;
    }
    #[cfg(feature = "sql")]
    if is(cause, inshore::sql::Error::is_cancelled) {
        return true;
    }
    #[cfg(feature = "vectors")]
    if is(cause, inshore::vectors::Error::is_cancelled) {
        return true;
    }
    #[cfg(feature = "nodes")]
    if is(cause, inshore::sorting::Error::is_cancelled) {
        return true;
    }
    is(cause, tables::Error::is_cancelled)
        || is(cause, store::Error::is_cancelled)
        || is(cause, store::RuntimeError::is_cancelled)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let source = io::Error::other("disk on fire");
        let error = anyhow::Error::from(store::Error::io("write", "/x", source)).context("saving ranks");
        assert_eq!(message(&error), "saving ranks\n  because: /x: cannot write: disk on fire");
    }

    #[test]
    fn a_thread_that_cannot_start_is_told_from_other_panics() {
        let refused = std::thread::Builder::new().stack_size(1 << 60).spawn(|| ()).unwrap_err();
        assert!(is_without_threads(&format!("failed to spawn thread: {refused:?}")));
        assert!(is_without_threads(&format!("OS can't spawn worker thread: {refused}")));
        assert!(!is_without_threads("index out of bounds"));
    }

    #[test]
    fn a_job_that_stopped_at_its_deadline_says_so_and_was_stopped_by_nobody() {
        let stopped = || anyhow::Error::from(store::Error::Cancelled).context("ranking");
        let over = at_deadline(stopped(), Deadline::after(Duration::ZERO));
        let expected =
            "the deadline of 0 s has passed: ranking\n  because: the job was stopped before it was done";
        assert!(over.to_string().starts_with(expected), "{over}");
        assert!(!over.chain().any(is_cancelled));
        for deadline in [None, Deadline::after(Duration::from_secs(3600))] {
            assert!(at_deadline(stopped(), deadline).chain().any(is_cancelled));
        }
        let other = at_deadline(anyhow!("disk on fire"), Deadline::after(Duration::ZERO));
        assert_eq!(other.to_string(), "disk on fire");
    }

    #[test]
    fn cancellation_and_broken_pipes_are_found_in_the_chain() {
        assert!(anyhow::Error::from(store::RuntimeError::Cancelled).chain().any(is_cancelled));
        let stopped: anyhow::Result<()> = Err(tables::Error::from(store::Error::Cancelled).into());
        assert!(stopped.context("ranking").unwrap_err().chain().any(is_cancelled));
        let stopped = anyhow::Error::from(tables::Error::from(store::Error::Cancelled));
        assert!(stopped.chain().any(is_cancelled));
        let pipe: anyhow::Result<()> = Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        assert!(pipe.context("printing").unwrap_err().chain().any(is_broken_pipe));
    }
}
