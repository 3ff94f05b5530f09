//! How an error is told, and which exit code it has.

use std::{io, process::ExitCode};

use inshore::{store, tables};

use crate::{outcome::say, signals};

/// What went wrong was told when it was found.
#[derive(Debug, thiserror::Error)]
#[error("some of the input could not be read")]
pub struct AlreadyTold;

/// Prints `error` with its causes on standard error and gives the exit code.
pub fn tell(error: &anyhow::Error) -> ExitCode {
    if error.chain().any(is_broken_pipe) {
        // Whoever reads our output (`| head`) has seen enough.
        return ExitCode::SUCCESS;
    }
    if !error.is::<AlreadyTold>() {
        say(&format!("inshore: {}", message(error)));
    }
    if error.chain().any(is_cancelled) { ExitCode::from(signals::STOPPED) } else { ExitCode::from(2) }
}

/// The error and its causes. Many errors quote their cause, so a cause that was said already is left out.
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
    #[cfg(feature = "sql")]
    if is(cause, inshore::sql::Error::is_cancelled) {
        return true;
    }
    #[cfg(feature = "nodes")]
    if is(cause, inshore::sorting::Error::is_cancelled) {
        return true;
    }
    is(cause, tables::Error::is_cancelled) || is(cause, store::Error::is_cancelled)
}

#[cfg(test)]
mod tests {
    use anyhow::Context;

    use super::*;

    #[test]
    fn a_cause_is_told_once() {
        let source = io::Error::other("disk on fire");
        let error = anyhow::Error::from(store::Error::io("write", "/x", source)).context("saving ranks");
        assert_eq!(message(&error), "saving ranks\n  because: /x: cannot write: disk on fire");
    }

    #[test]
    fn cancellation_and_broken_pipes_are_found_in_the_chain() {
        let stopped: anyhow::Result<()> = Err(tables::Error::from(store::Error::Cancelled).into());
        assert!(stopped.context("ranking").unwrap_err().chain().any(is_cancelled));
        let stopped = anyhow::Error::from(tables::Error::from(store::Error::Cancelled));
        assert!(stopped.chain().any(is_cancelled));
        let pipe: anyhow::Result<()> = Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
        assert!(pipe.context("printing").unwrap_err().chain().any(is_broken_pipe));
    }
}
