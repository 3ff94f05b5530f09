//! Handles Ctrl-C and SIGTERM: the first signal requests that the job stops, and the second signal ends the process at
//! once. An expired deadline also requests that the job stops. If the job has not stopped two seconds later, the
//! process ends.
//!
//! A query runs in a worker process. The worker's parent receives the signals: see [`crate::job::worker`].
//!
//! The command does not change the action of SIGHUP, so that `nohup inshore ...` survives the end of its terminal. A
//! sudden end of the process is safe: the store is consistent at every instant, and the next job removes the scratch
//! folder.

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

/// This number is added to the exit code of a worker that ended without cleaning up. The parent then cleans up, and
/// prints no message of its own.
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

/// Prints the reason, and ends the process without cleaning up. The message of a process that is not a worker also says
/// that nothing was cleaned up.
fn report_end_unclean(code: u8, why: &str) -> ! {
    match IS_WORKER.load(Ordering::Relaxed) {
        true => say(&format!("inshore: {why}")),
        false => {
            say(&format!("inshore: {why} without cleaning up; the next job removes leftover scratch"));
        }
    }
    end_unclean(code)
}

/// The time in which a job must notice a stop request. Jobs check for requests every few milliseconds, unless they wait
/// for a pipe or for a drive that does not respond.
const PATIENCE: Duration = Duration::from_secs(10);
/// The time in which a worker must notice a stop request. One step of a join without an equality condition can take
/// minutes. The worker then ends without cleaning up, and its parent removes the scratch files.
#[cfg(feature = "sql")]
const WORKER_PATIENCE: Duration = Duration::from_secs(1);

fn patience() -> Duration {
    #[cfg(feature = "sql")]
    if IS_WORKER.load(Ordering::Relaxed) {
        return WORKER_PATIENCE;
    }
    PATIENCE
}

/// Makes an aborted process end with the exit code of a failed command. The standard library aborts the process if an
/// allocation fails, but for the user this is an ordinary error.
pub fn exit_at_abort() {
    let always = Arc::new(AtomicBool::new(true));
    // If the handler cannot be registered, an abort ends the process by the signal SIGABRT.
    let _ = flag::register_conditional_shutdown(SIGABRT, failure::FAILED.into(), always);
}

/// The channel through which a worker gets the stop requests of its parent. The worker itself ignores SIGINT and
/// SIGTERM.
#[cfg(feature = "sql")]
static STOPS: Mutex<Option<inshore::sandbox::StopRequests>> = Mutex::new(None);

/// Marks this process as a worker, which gets stop requests from its parent instead of from signals.
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

/// Begins to listen for stop requests. The first request sets `cancel`.
pub fn listen(cancel: &Cancel) -> Result<()> {
    let stops = stops()?;
    // If SIGXFSZ is caught, a write beyond the limit on file sizes returns an error, and does not kill the process.
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
