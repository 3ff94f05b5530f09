//! Ctrl-C and SIGTERM: the first signal asks the job to stop, the second ends the process at once. A deadline asks the job to
//! stop too, and ends the process soon afterwards.
//!
//! A query runs in a worker process. The worker's parent receives the signals: see [`crate::job::worker`].
//!
//! SIGHUP keeps its default action, so that `nohup inshore ...` outlives its terminal. Ending the process at once, or
//! by a kill, is safe: the store is consistent at every instant, and the next job removes the scratch folder.

#[cfg(feature = "sql")]
use std::sync::Mutex;
use std::{
    process,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use anyhow::{Context, Result};
use inshore::store::Cancel;
use signal_hook::{
    consts::{SIGABRT, SIGINT, SIGTERM, SIGXFSZ},
    flag,
    iterator::Signals,
};

use crate::report::{failure, outcome::say};

/// A flag in the exit code of a worker that ended without cleaning up. The parent then cleans up and prints no message.
#[cfg(feature = "sql")]
pub const UNCLEAN_WORKER: u8 = 64;

/// Tells whether this process is a worker.
static IS_WORKER: AtomicBool = AtomicBool::new(false);

/// Ends the process without cleaning up.
fn end_unclean(code: u8) -> ! {
    #[cfg(feature = "sql")]
    let code = if IS_WORKER.load(Ordering::Relaxed) { code + UNCLEAN_WORKER } else { code };
    process::exit(code.into())
}

/// Prints the reason, and ends the process without cleaning up. A process that is not a worker also prints that nothing
/// was cleaned up.
fn report_end_unclean(code: u8, why: &str) -> ! {
    match IS_WORKER.load(Ordering::Relaxed) {
        true => say(&format!("inshore: {why}")),
        false => {
            say(&format!("inshore: {why} without cleaning up; the next job removes leftover scratch"));
        }
    }
    end_unclean(code)
}

/// The time in which a job must notice a stop request. Jobs check every few milliseconds; only waiting for a pipe or
/// for a drive that does not answer takes longer.
const PATIENCE: Duration = Duration::from_secs(10);
/// The same time for a worker, which runs a query. One step of a join without an equality can take minutes, and the parent
/// removes the scratch files of a worker that ended without cleaning up.
#[cfg(feature = "sql")]
const WORKER_PATIENCE: Duration = Duration::from_secs(1);

fn patience() -> Duration {
    #[cfg(feature = "sql")]
    if IS_WORKER.load(Ordering::Relaxed) {
        return WORKER_PATIENCE;
    }
    PATIENCE
}

/// Turns an abort into a failed command. If an allocation fails, the standard library prints a message and aborts the
/// process, but for the user this is an error like any other.
pub fn exit_at_abort() {
    let always = Arc::new(AtomicBool::new(true));
    // If the handler cannot be registered, an abort stays an abort.
    let _ = flag::register_conditional_shutdown(SIGABRT, failure::FAILED.into(), always);
}

/// In a worker, stop requests come from its parent through this channel, and not from signals.
#[cfg(feature = "sql")]
static STOPS: Mutex<Option<inshore::sandbox::StopRequests>> = Mutex::new(None);

/// Declares that this process is a worker, whose parent sends stop requests.
#[cfg(feature = "sql")]
pub fn listen_to_parent(stops: inshore::sandbox::StopRequests) {
    *STOPS.lock().expect("no panic under this lock") = Some(stops);
    IS_WORKER.store(true, Ordering::Relaxed);
}

/// Returns an iterator that yields one item for each stop request.
fn stops() -> Result<Box<dyn Iterator<Item = ()> + Send>> {
    #[cfg(feature = "sql")]
    if let Some(mut stops) = STOPS.lock().expect("no panic under this lock").take() {
        return Ok(Box::new(std::iter::repeat_with(move || stops.wait())));
    }
    let mut signals = Signals::new([SIGINT, SIGTERM]).context("cannot listen for signals")?;
    Ok(Box::new(std::iter::from_fn(move || signals.forever().next().map(drop))))
}

/// The time in which a job must notice that its deadline has passed.
const LATE: Duration = Duration::from_secs(2);

/// Begins to listen for stop requests. The first signal sets `cancel`.
pub fn listen(cancel: &Cancel) -> Result<()> {
    let stops = stops()?;
    // If this signal is caught, a write beyond the limit on file sizes is an ordinary error.
    flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).context("cannot listen for signals")?;
    if let Some(deadline) = cancel.deadline() {
        let wait = move || {
            thread::sleep(deadline.left() + LATE);
            report_end_unclean(failure::FAILED, &format!("{}: stopped", failure::deadline_message(deadline)));
        };
        thread::Builder::new()
            .name("deadline".into())
            .spawn(wait)
            .context("cannot start a thread for the deadline")?;
    }
    let cancel = cancel.clone();
    let wait = move || {
        for () in stops {
            if cancel.is_cancelled() {
                end_unclean(failure::STOPPED);
            }
            cancel.cancel();
            thread::spawn(|| {
                thread::sleep(patience());
                report_end_unclean(failure::STOPPED, "stopped");
            });
        }
    };
    thread::Builder::new().name("signals".into()).spawn(wait).context("cannot start a thread for signals")?;
    Ok(())
}
